"""The steps of a run: records and their partitions, costs, the data set's ledger, figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from veracal._types import Progress
from veracal.artifact.front import Front
from veracal.calibration.private import MeasurementPlan, plan_measurement
from veracal.data import Dataset, Schema, Split, limit_contributions, load, split
from veracal.data.loading import declare
from veracal.data.sets.builtin import SCHEMAS
from veracal.errors import DataError
from veracal.pipeline.config import Config
from veracal.pipeline.networks import front_for
from veracal.privacy import Budget, Item, Unit
from veracal.privacy.costs.pure import micro
from veracal.privacy.partitions import AssignmentNotice, PartitionRule

TRAIN, TEST = "train", "test"
TRAINING = "training and map"
LEAST = 100  # millionths of epsilon, so that each question of a measurement has some
FIGURES = ("accuracy", "ece", "brier", "curve")
Slots = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Loaded:
    """Records, split into partitions, and the schema and frozen network they came through.

    ``notice`` says how they compare with those of earlier runs: for the data holder only.
    """

    whole: Dataset
    parts: Split
    schema: Schema | None
    front: Front | None = None
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
) -> Loaded:
    """Load the records, and split them as a new ledger would.

    What earlier runs recorded is not consulted
    (:class:`~veracal.pipeline.charging.Account` does that).

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


def declared(config: Config, slots: Slots | None = None) -> Loaded:
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
    front: Front | None,
    slots: Slots | None = None,
) -> Loaded:
    """Records in the partitions of a new ledger; of slots there are as many as stated."""
    chosen = config.data
    if chosen.at_most is not None:
        whole = limited(whole, chosen.at_most, schema)
    known = SCHEMAS.get(chosen.source) if schema is None else schema
    return Loaded(whole, _split(config, whole, known, slots), known, front)


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


def budget_of(config: Config, records: Loaded) -> Budget:
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


def measurement(config: Config, records: Loaded) -> MeasurementPlan:
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
    each = micro(config.privacy.epsilon) // times
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
