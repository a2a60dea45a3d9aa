"""A run that is planned: its model, its queries and everything that it will be charged for."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.calibration import MeasurementPlan, measure_planned
from veracal.ledger import Item, Ledger
from veracal.queries import Curator
from veracal.report import MeasurementRecord
from veracal.training import StepHook
from veracal.workflow.config import Config
from veracal.workflow.models import build_model
from veracal.workflow.records import (
    TEST,
    TRAIN,
    TRAINING,
    LoadedRecords,
    list_charges,
    measurement_plan,
    run_budget,
)

MEASUREMENT, LATER = "measurement", "later"


@dataclass(frozen=True, eq=False)
class RunPlan:
    """Partitioned records, a model and queries. Nothing is charged yet.

    Attributes
    ----------
    config : Config
    records : LoadedRecords
    budget : Budget
        Of each partition.
    plan : MeasurementPlan
        The queries of one measurement.
    model : private classifier
        Not fitted.
    items : tuple of Item
        Everything that will be charged.
    """

    config: Config
    records: LoadedRecords
    budget: Budget
    plan: MeasurementPlan
    model: Any
    items: tuple[Item, ...]

    @classmethod
    def of(
        cls,
        config: Config,
        records: LoadedRecords,
        on_step: StepHook | None = None,
        *,
        check: bool = True,
    ) -> "RunPlan":
        """Plan a run from declared facts.

        With ``check``, which needs loaded records, also check that the model accepts them.
        """
        budget, plan = run_budget(config, records), measurement_plan(config, records)
        model = build_model(config, records.train, budget, on_step)
        if check:
            model.check_records(records.train)  # before a ledger is opened or charged
        items = list_charges(config, model, plan, budget)
        return cls(config, records, budget, plan, model, tuple(items))

    @property
    def body(self) -> bytes:
        """Canonical bytes of everything that distinguishes this training from another.

        The location of files is left out: the same records at another path are the same.
        """
        records, settings = self.records, self.config.to_json()
        schema = None if records.schema is None else records.schema.to_toml()
        settings["data"] |= {"source": records.dataset.name, "schema": schema}
        return json.dumps(settings, sort_keys=True, allow_nan=False).encode()

    @property
    def request(self) -> str:
        """Id of the training request, under which a ledger keeps the classifier."""
        return f"{TRAINING} {hashlib.sha256(self.body).hexdigest()}"

    def train_model(self, ledger: Ledger) -> PrivateClassifier:
        """Fit the classifier, or return the one that the ledger kept for this request."""
        config, records = self.config, self.records
        curator = Curator(records.train, ledger, partition=TRAIN, version=config.data.version)

        def pack(fitted: Any) -> bytes:
            classifier = PrivateClassifier.of(
                fitted, schema=records.schema, name=config.name, encoder=records.encoder
            )
            files = {name: content.hex() for name, content in classifier.files().items()}
            return json.dumps(files).encode()

        content = curator.fit_once(
            self.model, pack, request=self.request, body=self.body, purpose=TRAINING
        )
        files = {name: bytes.fromhex(text) for name, text in json.loads(content).items()}
        return PrivateClassifier.from_files(files, "ledger")

    def measure(
        self, classifier: PrivateClassifier, when: str, ledger: Ledger, date: str | None = None
    ) -> MeasurementRecord:
        """Measure a classifier on the test records, or repeat an earlier answer.

        Parameters
        ----------
        classifier : PrivateClassifier
        when : str
            "before" or "after" the map, or the name of a later measurement.
        ledger : Ledger
        date : str, optional
            Date of the measurement, if it was made earlier; by default today.
        """
        name, version = self.config.name, self.config.data.version
        scores = classifier.scores(self.records.test, mapped=when != "before")
        curator = Curator(
            scores.renamed(f"{name}: {when}"), ledger, partition=TEST, version=version
        )
        release = measure_planned(curator, self.plan, request=f"{name}: {MEASUREMENT} {when}")
        return MeasurementRecord(when, date or today(), release.to_json())

    def later_measurements(self, ledger: Ledger) -> list[str]:
        """Names of the later measurements that a ledger has answered, or begun to answer."""
        requests = [
            entry.request or "" for entry in ledger.entries() if entry.run == ledger.run
        ]
        names: list[str] = []
        while True:
            name = f"{LATER} {len(names) + 1}"
            prefix = f"{self.config.name}: {MEASUREMENT} {name}:"
            if not any(request.startswith(prefix) for request in requests):
                return names
            names.append(name)


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()
