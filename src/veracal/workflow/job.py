"""What only the data holder may see: counts and plain figures.

A run that is decided on: what it will cost, and the parts of it that cost something.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.calibration import (
    CalibrationResult,
    MeasurementPlan,
    ReliabilityCurve,
    measure,
    measure_planned,
)
from veracal.data import Scores
from veracal.ledger import Item, Ledger
from veracal.queries import Curator
from veracal.report import MeasurementRecord
from veracal.training import Hook
from veracal.workflow.config import Config
from veracal.workflow.steps import (
    TEST,
    TRAIN,
    TRAINING,
    LoadedRecords,
    budget_of,
    measurement,
    planned,
)
from veracal.workflow.training import private_model

_WORK, _USUAL = 20_000_000, 100  # numbers that are drawn again, and replicates
_FIGURES = ("accuracy", "ece", "brier", "nll")


def internal_facts(
    config: Config,
    records: LoadedRecords,
    classifier: PrivateClassifier,
    losses: Sequence[float] = (),
) -> dict[str, Any]:
    """Counts and plain figures, for :func:`veracal.report.render`'s second page.

    Guarantees
    ----------
    None. Every number is a plain function of the records.
    """
    chosen = config.measurement
    facts: dict[str, Any] = {
        "records": {"training": len(records.train), "test": len(records.test)},
        "classes": _counts(records.whole.classes, records.whole.y),
        "groups": {
            name: _counts(group.names, group.codes)
            for name, group in records.whole.groups.items()
        },
    }
    for when in ("before", "after") if len(records.test) else ():
        scores = classifier.scores(records.test, mapped=when == "after")
        found = _measured(scores, chosen.bins)
        facts[f"plain figures {when}"] = _plain(found)
        facts[f"plain curve {when}"] = _bins(found.curve)
        if chosen.group is not None:
            facts[f"by group {when}"] = _by_group(scores, chosen.group, chosen.bins)
    return {**facts, **({"training": list(losses)} if losses else {})}


def _counts(names: Sequence[object], codes: Any) -> dict[str, int]:
    """How many records each name has."""
    found = np.bincount(codes[codes >= 0], minlength=len(names))
    return {str(name): int(n) for name, n in zip(names, found, strict=True)}


def _measured(scores: Scores, bins: int) -> CalibrationResult:
    """Plain figures, with intervals unless they would take long."""
    turns = min(_USUAL, _WORK // max(1, scores.values.size))
    # The same in every run: nothing is released, so nothing needs a secret.
    rng = np.random.default_rng(0)
    return measure(scores, figures=_FIGURES, bins=bins, replicates=turns, rng=rng)


def _bins(curve: ReliabilityCurve) -> list[dict[str, Any]]:
    """A reliability curve as rows of a table."""
    rows = [asdict(each) for each in curve.bins]
    return [{"count": row.pop("n"), **row} for row in rows]


def _by_group(scores: Scores, group: str, bins: int) -> dict[str, dict[str, Any]]:
    """Plain figures of every group that anybody is in."""
    attribute, found = scores.groups[group], {}
    for code, name in enumerate(attribute.names):
        rows = scores.take(attribute.codes == code)
        if len(rows):
            found[name] = _plain(_measured(rows, bins))
    return found


def _plain(found: CalibrationResult) -> dict[str, Any]:
    """Figures with their intervals, as what JSON can hold."""
    return {name: asdict(one) for name, one in found.figures.items()}


MEASUREMENT, LATER = "measurement", "later"


@dataclass(frozen=True, eq=False)
class RunPlan:
    """Records that are dealt to parts, a model and questions; nothing of it is charged yet.

    Attributes
    ----------
    config : Config
    records : Loaded
    budget : Budget
        Of each part of the records.
    plan : MeasurementPlan
        The questions of one measurement.
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
        on_step: Hook | None = None,
        *,
        check: bool = True,
    ) -> "RunPlan":
        """Decide everything that can be decided from what is declared.

        ``check`` says whether to see if the model takes these records, which is for those
        that were loaded.
        """
        budget, plan = budget_of(config, records), measurement(config, records)
        model = private_model(config, records.train, budget, on_step)
        if check:
            model.check_records(records.train)  # while nothing is opened or charged
        items = planned(config, model, plan, budget)
        return cls(config, records, budget, plan, model, tuple(items))

    @property
    def body(self) -> bytes:
        """Everything that tells this training from another, always in the same bytes.

        Not where files are: moved, or written otherwise, they are the same records.
        """
        records, told = self.records, self.config.to_json()
        written = None if records.schema is None else records.schema.to_toml()
        told["data"] |= {"source": records.whole.name, "schema": written}
        return json.dumps(told, sort_keys=True, allow_nan=False).encode()

    @property
    def request(self) -> str:
        """Id of the request to train, under which a ledger keeps the classifier."""
        return f"{TRAINING} {hashlib.sha256(self.body).hexdigest()}"

    def trained(self, book: Ledger) -> PrivateClassifier:
        """The classifier that was paid for: fitted now, or as the ledger remembers it."""
        config = self.config
        holder = Curator(self.records.train, book, part=TRAIN, version=config.data.version)
        kept = holder.fit_once(
            self.model,
            lambda fitted: packed(
                PrivateClassifier.of(
                    fitted,
                    schema=self.records.schema,
                    name=config.name,
                    encoder=self.records.front,
                )
            ),
            request=self.request,
            body=self.body,
            purpose=TRAINING,
        )
        return unpacked(kept)

    def asked(
        self, classifier: PrivateClassifier, when: str, book: Ledger, made: str | None = None
    ) -> MeasurementRecord:
        """Measure a classifier on the test records, or repeat what was answered before.

        Parameters
        ----------
        classifier : PrivateClassifier
        when : str
            "before" the map, "after" it, or what a later measurement is called.
        book : Ledger
        made : str, optional
            The date, if that is known to be another than today.
        """
        name, version = self.config.name, self.config.data.version
        scores = classifier.scores(self.records.test, mapped=when != "before")
        holder = Curator(scores.renamed(f"{name}: {when}"), book, part=TEST, version=version)
        found = measure_planned(holder, self.plan, request=f"{name}: {MEASUREMENT} {when}")
        return MeasurementRecord(when, made or today(), found.to_json())

    def later(self, book: Ledger) -> list[str]:
        """Names of the later measurements that a ledger has answered, or begun to."""
        asked = [entry.request or "" for entry in book.entries() if entry.run == book.run]
        names: list[str] = []
        while any(each.startswith(self._later(len(names) + 1)) for each in asked):
            names.append(f"{LATER} {len(names) + 1}")
        return names

    def _later(self, number: int) -> str:
        """What the ids of requests of a later measurement begin with."""
        return f"{self.config.name}: {MEASUREMENT} {LATER} {number}:"


def packed(classifier: PrivateClassifier) -> bytes:
    """A classifier as bytes that a ledger keeps."""
    files = {name: content.hex() for name, content in classifier.files().items()}
    return json.dumps(files).encode()


def unpacked(content: bytes) -> PrivateClassifier:
    """The classifier of such bytes."""
    files = {name: bytes.fromhex(text) for name, text in json.loads(content).items()}
    return PrivateClassifier.from_files(files, "ledger")


def today() -> str:
    """The date, in universal time."""
    return datetime.now(UTC).date().isoformat()
