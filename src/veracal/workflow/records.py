"""The records of a run: loading, declaring, splitting, and the budget that they need."""

from dataclasses import dataclass, replace

from veracal._types import Progress
from veracal.accounting import Budget, Unit
from veracal.artifact import FrozenEncoder
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
from veracal.ledger import AssignmentNotice, PartitionRule
from veracal.workflow.config import Config

TRAIN, TEST = "train", "test"
Slots = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class LoadedRecords:
    """Records in their partitions, with the schema and encoder that they were read through.

    The notice says how the records compare with those of earlier runs, for the data holder only.
    """

    dataset: Dataset
    split: Split
    schema: Schema | None
    encoder: FrozenEncoder | None = None
    notice: AssignmentNotice | None = None

    @property
    def train(self) -> Dataset:
        """Records that the model is trained on."""
        return self.split.train

    @property
    def test(self) -> Dataset:
        """Records that the model is measured on."""
        assert self.split.test is not None
        return self.split.test


def load_records(
    config: Config, progress: Progress | None = None, schema: Schema | None = None
) -> LoadedRecords:
    """Load the records, and split them as a new ledger would.

    Assignments of earlier runs are not consulted
    (:class:`~veracal.workflow.charging.DataAccount` does that). A schema replaces the file that
    the config names.

    Raises
    ------
    DataError
        If the number of records is not declared, since nothing can be planned without it. Under
        replace-one also without slot ids, since nothing else ties a record to its partition.
    """
    if schema is None and config.data.schema is not None:
        schema = Schema.load(config.data.schema)
    dataset = load(config.data.source, schema=schema, row_digests=True, progress=progress)
    encoder = choose_encoder(config.model.kind, dataset)
    if encoder is not None:
        dataset = encoder.encode_dataset(dataset, progress)
    return _partition(config, dataset, schema, encoder)


def declare_records(config: Config, slots: Slots | None = None) -> LoadedRecords:
    """What is declared about the records, without reading one.

    This determines the cost of a run: the form of a record, classes, groups and declared
    numbers, from the schema or from the catalog of named sets. ``slots`` are those in each
    partition, as earlier runs recorded them. Under replace-one, where sizes are exact, nothing
    can be planned without them.
    """
    schema = None if config.data.schema is None else Schema.load(config.data.schema)
    dataset = declare(config.data.source, schema=schema)
    encoder = choose_encoder(config.model.kind, dataset)
    if encoder is not None:
        dataset = encoder.declare(dataset)
    return _partition(config, dataset, schema, encoder, slots or (0, 0, 0))


def _partition(
    config: Config,
    dataset: Dataset,
    schema: Schema | None,
    encoder: FrozenEncoder | None,
    slots: Slots | None = None,
) -> LoadedRecords:
    """Split the records as a new ledger would record it, with the given numbers of slots."""
    most = config.data.max_contributions
    if most is not None:
        if schema is not None or dataset.units is None:
            where = "the schema states it" if schema else "rows have no units"
            raise DataError(
                dataset.name,
                f"no max_contributions where {where}",
                f"max_contributions={most}",
                "Leave it out, or write it in the schema.",
            )
        dataset = limit_contributions(dataset, max_contributions=most)
    known = SCHEMAS.get(config.data.source) if schema is None else schema
    rule = partition_rule(config, dataset, known)
    if dataset.size is None:
        raise DataError(
            dataset.name,
            "a declared number of records",
            "none",
            "Write size = … at the top of the schema: a figure that may be public, such as "
            "the planned number. It is never compared with the real number.",
        )
    exact = rule.relation == "replace-one"  # then the number of records is public
    parts = split(
        dataset, rule.fractions, relation=rule.relation, fixed_size=exact, key=rule.split_key
    )
    if exact:
        assert parts.test is not None
        train, _, test = slots or (len(parts.train), 0, len(parts.test))
        parts = replace(
            parts,
            train=parts.train._changed(size=train),
            test=parts.test._changed(size=test),
        )
    return LoadedRecords(dataset, parts, known, encoder)


def partition_rule(config: Config, dataset: Dataset, schema: Schema | None) -> PartitionRule:
    """The rule by which a config splits records that were loaded through a schema."""
    test = config.data.test
    return PartitionRule.for_dataset(
        dataset,
        (1 - test, 0.0, test),
        config.privacy.relation,
        config.data.split_key,
        schema=schema,
    )


def run_budget(config: Config, records: LoadedRecords) -> Budget:
    """The budget of each partition, and the unit that it protects."""
    dataset, schema = records.dataset, records.schema
    assert dataset.size is not None
    unit = Unit()
    if schema is not None and schema.unit is not None:
        if schema.max_contributions is None:
            raise DataError(
                dataset.name,
                f"a declared maximum number of rows per {schema.unit}",
                "none",
                f"Write max_contributions = … under [columns.{schema.unit}] in the schema. Of a "
                f"{schema.unit} with more rows, that many are drawn at random.",
            )
        unit = Unit(schema.unit, schema.max_contributions)
    elif dataset.units is not None:
        if dataset.max_contributions is None:
            raise DataError(
                dataset.name,
                "a declared maximum number of rows per unit",
                "none",
                "Pass --max-contributions …, or write max_contributions = … under [data]. Of a "
                "unit with more rows, that many are drawn at random.",
            )
        unit = Unit("unit", dataset.max_contributions)
    privacy = config.privacy
    delta = 1 / (10 * dataset.size) if privacy.delta is None else privacy.delta
    return Budget(privacy.epsilon, delta, privacy.relation, unit)


def choose_encoder(kind: str, records: Dataset) -> FrozenEncoder | None:
    """Choose the frozen network that encodes texts, from the model.

    Rows of numbers are features already, and so are images, which `veracal data features`
    encodes.
    """
    if kind != "text" and not (kind == "features" and records.X.dtype.kind == "T"):
        return None
    from veracal.neural import MiniLM, MiniLMTokens

    if kind == "text":
        MiniLMTokens().check(records.X, records.name)
        return FrozenEncoder.of(MiniLMTokens())
    return FrozenEncoder.of(MiniLM())
