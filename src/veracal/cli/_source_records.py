"""Records that a source enrolls, from a file of scores or from a table and an artifact."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import typer

from veracal.accounting import Relation
from veracal.artifact import PrivateClassifier
from veracal.cli import _payment, _predictions
from veracal.cli._artifacts import read_table
from veracal.cli._options import is_name
from veracal.cli._run_output import print_notice
from veracal.data import Dataset, Schema, Scores
from veracal.errors import DataError
from veracal.federation import (
    FileMarkKey,
    PublicKey,
    RecordFile,
    artifact_hash,
    is_hexadecimal,
    model_hash,
)
from veracal.ledger import PartitionRule, PartitionStore, split_and_assign
from veracal.workflow import partitions_path

_MAX_KEY_BYTES = 4_096


@dataclass(frozen=True)
class EnrolledRecords:
    """Scored records and their origin.

    Attributes
    ----------
    scores : Scores
    model : str
        Hash of the model.
    data : RecordFile or None
        State of the data file when it was read.
    model_path : path or None
    seal : callable or None
        For a partition: records its new individuals. Call it before the charge.
    """

    scores: Scores
    model: str
    data: RecordFile | None
    model_path: Path | None
    seal: Callable[[], None] | None = None


@dataclass(frozen=True)
class RecordPaths:
    """Options that say where the records and the model are."""

    scores: Path | None
    data: str | None
    model: Path | None
    model_hash: str | None
    classes: str | None
    unit: str | None
    ledger: Path | None = None
    partition: str | None = None

    @property
    def records(self) -> str:
        """The file or built-in set of the records."""
        return str(self.scores if self.data is None else self.data)

    def ledger_path(self) -> Path:
        """Path of the ledger of the records, which may not exist yet."""
        return _payment.ledger_place(self.records, self.ledger)

    def check(self) -> None:
        """Refuse inconsistent options."""
        if (self.scores is None) == (self.data is None):
            raise typer.BadParameter(
                "give the records once: --scores FILE, or --model ARTIFACT --data TABLE.",
                param_hint="--scores",
            )
        if (self.model is None) == (self.model_hash is None):
            raise typer.BadParameter(
                "give the model that scored the records once: --model FILE or FOLDER, or "
                "--model-hash HEX.",
                param_hint="--model",
            )
        if self.data is None:
            if self.partition is not None:
                raise typer.BadParameter("requires --data TABLE.", param_hint="--partition")
            return
        if self.model is None:
            raise typer.BadParameter("requires --model ARTIFACT.", param_hint="--data")
        if self.classes is not None or self.unit is not None:
            raise typer.BadParameter(
                "not with --data: the artifact's schema declares classes and units.",
                param_hint="--classes" if self.classes is not None else "--unit",
            )

    def check_partition(self, known: Collection[str]) -> None:
        """Refuse an unknown partition."""
        if self.partition is not None and self.partition not in known:
            raise typer.BadParameter(
                f"expected one of {', '.join(known)}, got {self.partition!r}.",
                param_hint="--partition",
            )


def read_records(paths: RecordPaths, relation: Relation, marks: FileMarkKey) -> EnrolledRecords:
    """Read the records, and score a table with the artifact."""
    if paths.data is not None:
        assert paths.model is not None
        return _score_table(paths, relation, marks)
    assert paths.scores is not None
    model_id = paths.model_hash or model_hash(paths.model or "")
    if not is_hexadecimal(model_id, 64):
        raise typer.BadParameter(
            "expected 64 hexadecimal digits, a SHA-256.", param_hint="--model-hash"
        )
    file = RecordFile.read(paths.scores, marks)
    settings = _predictions.settings(paths.classes, None, paths.unit, None)
    scores = _predictions.load(paths.scores, settings)
    return EnrolledRecords(scores, model_id, file.verify(marks), paths.model)


def read_key(text: str) -> PublicKey:
    """Read a coordinator's public key: its digits, or a file that contains them."""
    if is_hexadecimal(text, 64):
        return PublicKey(text)
    path = Path(text)
    try:
        with path.open("rb") as file:
            words = file.read(_MAX_KEY_BYTES).decode("ascii", "replace").split()
    except (OSError, ValueError) as cause:
        raise _key_error(text) from cause
    keys = {word for word in words if is_hexadecimal(word, 64)}
    if len(keys) != 1:
        raise _key_error(text)
    return PublicKey(keys.pop())


def _score_table(paths: RecordPaths, relation: Relation, marks: FileMarkKey) -> EnrolledRecords:
    """Score a table without calibration map, with classes in the order of the weights."""
    model, data = paths.model, paths.data
    assert model is not None
    assert data is not None
    classifier = PrivateClassifier.load(model)
    file = None if is_name(data) else RecordFile.read(Path(data), marks)
    records = read_table(classifier, data, row_digests=paths.partition is not None)
    seal = None
    if paths.partition is not None:
        schema = classifier.schema
        records, seal = partition(records, schema, paths)
    if relation == "replace-one" and records.may_drop:
        raise DataError(
            data,
            "the same number of rows after a record is replaced",
            "a table from which rows were dropped",
            "Create a source with --relation add-remove, or declare how to impute missing "
            "values.",
        )
    scores = _reorder_classes(classifier, classifier.scores(records, mapped=False))
    file = None if file is None else file.verify(marks)
    return EnrolledRecords(scores, artifact_hash(classifier), file, model, seal)


def partition(
    records: Dataset, schema: Schema | None, paths: RecordPaths
) -> tuple[Dataset, Callable[[], None]]:
    """Select the records of one partition, as the ledger of their data set assigned them.

    Returns
    -------
    tuple of (Dataset, callable)
        The records, and a function that records the new individuals among them.

    Raises
    ------
    LedgerError
        If the schema identifies individuals by other columns than earlier runs, which would
        assign them to other partitions.
    """
    ledger, name = paths.ledger_path(), paths.partition
    assert name is not None
    path = partitions_path(ledger)
    if not path.exists():
        raise DataError(
            records.name,
            f"the partitions that 'veracal fit' recorded beside {ledger}",
            "none",
            "Omit --partition to enroll all records and charge every partition.",
        )
    stored = PartitionStore(path).rule
    rule = PartitionRule.for_dataset(
        records, stored.fractions, stored.relation, stored.split_key, schema=schema
    )
    store = PartitionStore.obtain(path, rule, fresh=False)
    split, assignment = split_and_assign(records, store, fresh=False)
    paths.check_partition(split.parts)
    if assignment.notice is not None:
        print_notice(assignment.notice)
    return split.parts[name], partial(store.seal, assignment)


def _reorder_classes(classifier: PrivateClassifier, scores: Scores) -> Scores:
    """Order classes as in the artifact, as calibration maps expect."""
    classes = classifier.manifest.classes
    columns = [scores.classes.index(label) for label in classes]
    position = np.argsort(columns)
    return Scores(
        scores.values[:, columns],
        scores.kind,
        classes,
        position[scores.known_labels],
        units=scores.units,
        name=scores.name,
    )


def _key_error(text: str) -> typer.BadParameter:
    """Error for an invalid public key."""
    return typer.BadParameter(
        f"expected 64 hexadecimal digits, or a file that contains them, got {text[:80]!r}. "
        "`veracal federation init` prints them for the coordinator.",
        param_hint="--coordinator",
    )
