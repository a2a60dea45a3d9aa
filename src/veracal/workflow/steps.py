"""The network that a config describes, for records of a form.

The steps of a run: records and their partitions, costs, the data set's ledger, figures.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from veracal._checks import extra
from veracal._types import Progress
from veracal.accounting import Budget, Unit, to_micro
from veracal.artifact import FrozenEncoder
from veracal.calibration import MeasurementPlan, plan_measurement
from veracal.data import (
    SCHEMAS,
    Dataset,
    Schema,
    Split,
    declare,
    limit_contributions,
    load,
    split,
)
from veracal.errors import DataError
from veracal.ledger import AssignmentNotice, Item, PartitionRule
from veracal.workflow.config import Config, ModelConfig

if TYPE_CHECKING:
    from veracal.neural import KnownNetwork, PrivateNetwork


_GRAY, _COLOR = (28, 28), (32, 32, 3)  # pictures that have networks of their own


def front_for(kind: str, records: Dataset) -> FrozenEncoder | None:
    """The frozen network that records go through first, by their form and the kind of model."""
    texts = records.X.dtype.kind == "T"
    images = records.X.dtype == np.uint8 and records.X.ndim > 2
    if kind != "text" and not (kind == "features" and (texts or images)):
        return None  # rows of numbers are features already
    from veracal.neural import EfficientNetLite0, MiniLM, MiniLMTokens

    if kind == "text":
        MiniLMTokens().check(records.X, records.name)
        return FrozenEncoder.of(MiniLMTokens())
    return FrozenEncoder.of(MiniLM() if texts else EfficientNetLite0())


def private_network(
    chosen: ModelConfig, train: Dataset, budget: Budget, descent: dict[str, Any]
) -> "PrivateNetwork":
    """The network to fit.

    Parameters
    ----------
    chosen : ModelConfig
        Settled.
    train : Dataset
        Of which only the form and what is declared are looked at.
    budget : Budget
    descent : dict
        Settings of the descent, and what is public about the records.
    """
    extra("torch", "torch")
    from veracal.neural import PrivateNetwork

    maker = _network(chosen, train)
    return PrivateNetwork(maker, budget.epsilon, budget.delta, **descent)


def _network(chosen: ModelConfig, train: Dataset) -> "KnownNetwork":
    """Which network takes rows of that form."""
    row, classes = train.X.shape[1:], len(train.classes)
    if chosen.kind == "cnn":
        return _known(*_convolutional(row, classes, train.name))
    if chosen.kind == "text":
        return _known("minilm_texts", {"classes": classes})
    if len(row) != 1 or train.X.dtype.kind not in "fiu":
        raise DataError(
            train.name,
            f"rows of numbers, which the model {chosen.kind!r} takes",
            f"{train.X.dtype} of shape {row}",
            "Say --model cnn for pictures, or --model features for pictures and texts.",
        )
    hidden = list(chosen.hidden or ())
    if chosen.kind == "features":
        (width,) = hidden if len(hidden) == 1 else (None,)
        if width is None:
            raise ValueError(
                f"Expected one number of hidden units of the model 'features', got {hidden}."
            )
        told = {"features": row[0], "classes": classes, "hidden": width}
        # Columns of a table have names, and mean different things; features have none.
        return _known("dense_head", {**told, "normalized": not train.feature_names})
    return _known("mlp", {"features": row[0], "classes": classes, "hidden": hidden})


def _convolutional(
    row: tuple[int, ...], classes: int, name: str
) -> tuple[str, dict[str, int | bool]]:
    """Name and settings of a network for pictures."""
    if row == _GRAY:
        return "mnist_cnn", {"classes": classes, "tanh": True}
    if row == _COLOR:
        return "cifar_cnn", {"classes": classes}
    flat, channels = len(row) == 1, 1 if len(row) < 3 else row[2]
    sides = row[:2]
    if flat:  # a square, or three of them for colors
        channels = 1 if math.isqrt(row[0]) ** 2 == row[0] else 3
        sides = (math.isqrt(row[0] // channels),) * 2
    fits = sides[0] == sides[1] >= 8 and math.prod((*sides, channels)) == math.prod(row)
    if not fits:
        raise DataError(
            name,
            "square pictures of 8 pixels a side or more, which the model 'cnn' takes, as bytes "
            "or as rows of numbers",
            f"rows of shape {row}",
            "Say --model mlp for rows of numbers.",
        )
    side = int(sides[0])
    return "five_layer_cnn", {
        "classes": classes,
        "channels": int(channels),
        "side": side,
        "flat": flat,
    }


def _known(name: str, settings: dict[str, Any]) -> "KnownNetwork":
    """A network by its name."""
    from veracal.neural import KnownNetwork

    return KnownNetwork(name, settings)


TRAIN, TEST = "train", "test"
TRAINING = "training and map"
LEAST = 100  # millionths of epsilon, so that each question of a measurement has some
FIGURES = ("accuracy", "ece", "brier", "curve")
Slots = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class LoadedRecords:
    """Records, split into partitions, and the schema and frozen network they came through.

    ``notice`` says how they compare with those of earlier runs: for the data holder only.
    """

    whole: Dataset
    parts: Split
    schema: Schema | None
    front: FrozenEncoder | None = None
    notice: AssignmentNotice | None = None

    @property
    def train(self) -> Dataset:
        """Records that are learnt from."""
        return self.parts.train

    @property
    def test(self) -> Dataset:
        """Records that are measured on."""
        assert self.parts.test is not None
        return self.parts.test


def loaded(
    config: Config, progress: Progress | None = None, schema: Schema | None = None
) -> LoadedRecords:
    """Load the records, and split them as a new ledger would.

    What earlier runs recorded is not consulted
    (:class:`~veracal.workflow.charging.DataAccount` does that).

    Parameters
    ----------
    config : Config
    progress : callable, optional
    schema : Schema, optional
        In place of the file that the config names.

    Raises
    ------
    DataError
        If the number of records is not declared: nothing can be planned without it. Under
        replace-one also without slot ids: nothing else ties a record to its partition.
    """
    chosen = config.data
    if schema is None and chosen.schema is not None:
        schema = Schema.load(chosen.schema)
    whole = load(chosen.source, schema=schema, row_digests=True, progress=progress)
    front = front_for(config.model.kind, whole)
    if front is not None:
        whole = front.dataset(whole, progress)
    return _prepared(config, whole, schema, front)


def declared(config: Config, slots: Slots | None = None) -> LoadedRecords:
    """The records as far as they are declared, and none of them.

    Whatever a run will cost follows from this: the form of a record, classes, groups and
    declared numbers, which a schema states or the catalog of named sets publishes.

    Parameters
    ----------
    config : Config
    slots : three ints, optional
        Slots that earlier runs recorded in each partition. Under replace-one, whose sizes are
        real ones, nothing can be planned without them.

    Raises
    ------
    DataError
        As of :func:`loaded`, for what is wrong with the declaration.
    """
    chosen = config.data
    schema = None if chosen.schema is None else Schema.load(chosen.schema)
    whole = declare(chosen.source, schema=schema)
    front = front_for(config.model.kind, whole)
    if front is not None:
        whole = front.declare(whole)
    return _prepared(config, whole, schema, front, slots or (0, 0, 0))


def _prepared(
    config: Config,
    whole: Dataset,
    schema: Schema | None,
    front: FrozenEncoder | None,
    slots: Slots | None = None,
) -> LoadedRecords:
    """Records in the partitions of a new ledger; of slots there are as many as stated."""
    chosen = config.data
    if chosen.at_most is not None:
        whole = limited(whole, chosen.at_most, schema)
    known = SCHEMAS.get(chosen.source) if schema is None else schema
    return LoadedRecords(whole, _split(config, whole, known, slots), known, front)


def _split(config: Config, whole: Dataset, schema: Schema | None, slots: Slots | None) -> Split:
    """The partitions that a new ledger would record."""
    rule = partition_rule(config, whole, schema)
    if whole.size is None:
        raise DataError(
            whole.name,
            "a declared number of records",
            "none",
            "Write size = … at the top of the schema: a figure that may be public, such as "
            "how many were planned. It is never compared with the real number.",
        )
    public = rule.relation == "replace-one"  # then the number of records is
    parts = split(
        whole, rule.fractions, relation=rule.relation, fixed_size=public, key=rule.split_key
    )
    if public:
        assert parts.test is not None
        train, _, test = slots or (len(parts.train), 0, len(parts.test))
        parts = replace(
            parts,
            train=parts.train._changed(size=train),
            test=parts.test._changed(size=test),
        )
    return parts


def partition_rule(config: Config, whole: Dataset, schema: Schema | None) -> PartitionRule:
    """How a config splits records that were loaded through a schema."""
    test = config.data.test
    fractions = (1 - test, 0.0, test)
    return PartitionRule.for_dataset(
        whole, fractions, config.privacy.relation, config.data.seed, schema=schema
    )


def limited(whole: Dataset, at_most: int, schema: Schema | None) -> Dataset:
    """At most so many rows of each unit, where records have units and no schema says it."""
    if schema is not None or whole.units is None:
        raise DataError(
            whole.name,
            "no at_most where " + ("a schema says it" if schema else "rows belong to nobody"),
            f"at_most={at_most}",
            "Leave it out, or write it in the schema.",
        )
    return limit_contributions(whole, at_most=at_most)


def budget_of(config: Config, records: LoadedRecords) -> Budget:
    """What may be spent on each part, and whom that protects."""
    assert records.whole.size is not None
    privacy, schema = config.privacy, records.schema
    delta = 1 / (10 * records.whole.size) if privacy.delta is None else privacy.delta
    unit = Unit()
    if schema is not None and schema.unit is not None:
        if schema.at_most is None:
            raise DataError(
                records.whole.name,
                f"a declared number of rows that one {schema.unit} has at most",
                "none",
                f"Write at_most = … under [columns.{schema.unit}] in the schema: of whoever "
                "has more rows, that many are drawn.",
            )
        unit = Unit(schema.unit, schema.at_most)
    elif records.whole.units is not None:
        if records.whole.at_most is None:
            raise DataError(
                records.whole.name,
                "a declared number of rows that one unit has at most",
                "none",
                "Say --at-most …, or write at_most = … under [data]: of whoever has more rows, "
                "that many are drawn.",
            )
        unit = Unit("unit", records.whole.at_most)
    return Budget(privacy.epsilon, delta, privacy.relation, unit)


def measurement(config: Config, records: LoadedRecords) -> MeasurementPlan:
    """The questions of one measurement, for an equal share of epsilon."""
    chosen, groups = config.measurement, records.whole.groups
    names: tuple[str, ...] = ()
    if chosen.group is not None:
        if chosen.group not in groups:
            raise DataError(
                records.whole.name,
                f"a declared group {chosen.group!r}",
                ", ".join(groups) or "none",
                "Declare it in the schema, under [groups.NAME].",
            )
        names = groups[chosen.group].names
    times = len(config.sides) + chosen.later
    each = to_micro(config.privacy.epsilon) // times
    if each < LEAST:
        raise ValueError(
            f"Expected epsilon of at least {LEAST * times / 1e6:g} for {times} measurements, "
            f"got epsilon={config.privacy.epsilon:g}: spend more, or keep fewer for later."
        )
    return plan_measurement(
        micro_epsilon=each,
        figures=FIGURES,  # type: ignore[arg-type]
        bins=chosen.bins,
        group=chosen.group,
        group_names=names,
    )


def planned(config: Config, model: Any, plan: MeasurementPlan, budget: Budget) -> list[Item]:
    """Everything that will be charged."""
    times = len(config.sides) + config.measurement.later
    asked = plan.items(budget.relation, budget.unit, TEST)
    return together(
        [
            Item(TRAINING, model.event(), 1, TRAIN),
            *(Item(item.purpose, item.event, times * item.times, TEST) for item in asked),
        ]
    )


def together(items: Iterable[Item]) -> list[Item]:
    """What is alike, once with its number of times, as a ledger keeps it."""
    times: Counter[Item] = Counter()
    for item in items:
        times[replace(item, times=1)] += item.times
    return [replace(item, times=n) for item, n in times.items()]
