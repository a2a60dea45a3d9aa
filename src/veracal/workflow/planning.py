"""A run that is planned: its model, its queries and everything that it will be charged for."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from veracal._checks import extra
from veracal.accounting import Budget, to_micro
from veracal.artifact import PrivateClassifier
from veracal.calibration import (
    AUTO,
    METHODS,
    NONE,
    MeasurementPlan,
    PrivateCalibratedClassifier,
    measure_planned,
    plan_measurement,
)
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.ledger import Item, Ledger
from veracal.mechanisms import SGD, Adam
from veracal.queries import Curator
from veracal.report import MeasurementRecord
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    StepHook,
)
from veracal.workflow.config import PERTURBED, Config, ModelConfig
from veracal.workflow.records import TEST, TRAIN, LoadedRecords, run_budget

if TYPE_CHECKING:
    from veracal.neural import KnownNetwork

MEASUREMENT, LATER = "measurement", "later"
TRAINING = "training and map"
MIN_MICRO_EPSILON = 100  # of one measurement, so that each of its queries has a share
FIGURES = ("accuracy", "ece", "brier", "curve")
_GRAY, _COLOR = (28, 28), (32, 32, 3)  # image shapes with published architectures


@dataclass(frozen=True, eq=False)
class RunPlan:
    """Partitioned records, a model and queries. Nothing is charged yet."""

    config: Config
    records: LoadedRecords
    budget: Budget  # of each partition
    plan: MeasurementPlan  # of one measurement
    model: Any  # not fitted
    items: tuple[Item, ...]  # everything that will be charged

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
        times = len(config.sides) + config.measurement.reserve
        queries = plan.items(budget.relation, budget.unit, TEST)
        items = merge_items(
            [Item(TRAINING, model.event(), 1, TRAIN)]
            + [Item(item.purpose, item.event, times * item.times, TEST) for item in queries]
        )
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

        ``when`` is "before" or "after" the map, or the name of a later measurement; ``date`` is
        that of the earlier answer.
        """
        name, version = self.config.name, self.config.data.version
        scores = classifier.scores(self.records.test, mapped=when != "before")
        curator = Curator(
            scores.renamed(f"{name}: {when}"), ledger, partition=TEST, version=version
        )
        release = measure_planned(curator, self.plan, request=f"{name}: {MEASUREMENT} {when}")
        return MeasurementRecord.of(release, when, date or today())

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


def measurement_plan(config: Config, records: LoadedRecords) -> MeasurementPlan:
    """The queries of one measurement, for an equal share of epsilon."""
    settings, groups = config.measurement, records.dataset.groups
    names: tuple[str, ...] = ()
    if settings.group is not None:
        if settings.group not in groups:
            raise DataError(
                records.dataset.name,
                f"a declared group {settings.group!r}",
                ", ".join(groups) or "none",
                "Declare it in the schema, under [groups.NAME].",
            )
        names = groups[settings.group].names
    times = len(config.sides) + settings.reserve
    micro_epsilon = to_micro(config.privacy.epsilon) // times
    if micro_epsilon < MIN_MICRO_EPSILON:
        raise ValueError(
            f"Expected epsilon of at least {MIN_MICRO_EPSILON * times / 1e6:g} for {times} "
            f"measurements, got epsilon={config.privacy.epsilon:g}. Spend more, or reserve "
            "fewer measurements."
        )
    return plan_measurement(
        micro_epsilon=micro_epsilon,
        figures=FIGURES,  # type: ignore[arg-type]
        bins=settings.bins,
        group=settings.group,
        group_names=names,
    )


def merge_items(items: Iterable[Item]) -> list[Item]:
    """Merge equal items into one with the sum of their times, as a ledger keeps them."""
    times: Counter[Item] = Counter()
    for item in items:
        times[replace(item, times=1)] += item.times
    return [replace(item, times=n) for item, n in times.items()]


def build_model(
    config: Config, train: Dataset, budget: Budget, on_step: StepHook | None = None
) -> Any:
    """Build the unfitted model, which states its cost before it reads a record.

    Of the records only declared facts are read: form, classes, size and norm. Anything that
    ``on_step`` computes from records is internal.
    """
    public: dict[str, Any] = {
        "classes": train.classes,
        "size": train.size,
        "relation": budget.relation,
        "unit": budget.unit,
    }
    settings = config.model.with_defaults()
    trainer: Any
    if settings.kind in PERTURBED:
        kind = ObjectivePerturbation if settings.kind == "objective" else OutputPerturbation
        norm = train.norm if settings.norm is None else settings.norm
        trainer = kind(budget.epsilon, C=settings.strength, norm=norm, **public)
    else:
        assert settings.learning_rate is not None
        optimizer = Adam if settings.optimizer == "adam" else SGD
        training: dict[str, Any] = {
            "epochs": settings.epochs,
            "sampling_rate": settings.sampling_rate,
            "clip": settings.clip,
            "optimizer": optimizer(settings.learning_rate),
            "weight_decay": settings.weight_decay,
            "on_step": on_step,
            **public,
        }
        if settings.kind == "logistic":
            trainer = PrivateLogisticRegression(budget.epsilon, budget.delta, **training)
        else:
            extra("torch", "torch")
            from veracal.neural import PrivateNetwork

            module = build_network(settings, train)
            trainer = PrivateNetwork(module, budget.epsilon, budget.delta, **training)
    method = config.recalibration.method
    if method == NONE:
        return trainer
    return PrivateCalibratedClassifier(
        trainer,
        method=None if method == AUTO else METHODS[method].unpriced_fitter(),
        epsilon=budget.epsilon,
        delta=budget.delta,
        share=config.recalibration.share,
        **public,
    )


def build_network(settings: ModelConfig, train: Dataset) -> "KnownNetwork":
    """Choose the architecture that takes rows of this form."""
    from veracal.neural import KnownNetwork

    row, classes = train.X.shape[1:], len(train.classes)
    if settings.kind == "cnn":
        return KnownNetwork(*_convolutional(row, classes, train.name))
    if settings.kind == "text":
        return KnownNetwork("minilm_texts", {"classes": classes})
    if len(row) != 1 or train.X.dtype.kind not in "fiu":
        raise DataError(
            train.name,
            f"rows of numbers, which the model {settings.kind!r} takes",
            f"{train.X.dtype} of shape {row}",
            "Use --model cnn for images, or --model features for texts.",
        )
    hidden = list(settings.hidden or ())
    if settings.kind == "mlp":
        return KnownNetwork("mlp", {"features": row[0], "classes": classes, "hidden": hidden})
    if len(hidden) != 1:
        raise ValueError(
            f"Expected one number of hidden units for the model 'features', got {hidden}."
        )
    return KnownNetwork(
        "dense_head",
        {
            "features": row[0],
            "classes": classes,
            "hidden": hidden[0],
            # Columns of a table have names and different scales; encoded features have none.
            "normalized": not train.feature_names,
        },
    )


def _convolutional(
    row: tuple[int, ...], classes: int, name: str
) -> tuple[str, dict[str, int | bool]]:
    """Name and settings of a network for images."""
    if row == _GRAY:
        return "mnist_cnn", {"classes": classes, "tanh": True}
    if row == _COLOR:
        return "cifar_cnn", {"classes": classes}
    flat, channels = len(row) == 1, 1 if len(row) < 3 else row[2]
    sides = row[:2]
    if flat:  # one square, or three of them for colors
        channels = 1 if math.isqrt(row[0]) ** 2 == row[0] else 3
        sides = (math.isqrt(row[0] // channels),) * 2
    fits = sides[0] == sides[1] >= 8 and math.prod((*sides, channels)) == math.prod(row)
    if not fits:
        raise DataError(
            name,
            "square images of at least 8 pixels a side, which the model 'cnn' takes, as bytes "
            "or as rows of numbers",
            f"rows of shape {row}",
            "Use --model mlp for rows of numbers.",
        )
    return "five_layer_cnn", {
        "classes": classes,
        "channels": int(channels),
        "side": int(sides[0]),
        "flat": flat,
    }


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()
