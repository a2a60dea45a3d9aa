"""Records that a source enrolls: from a file of scores, or from a table and an artifact."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import typer

from veracal.accounting import Relation
from veracal.artifact import PrivateClassifier
from veracal.cli import _payment as _paying
from veracal.cli import _predictions
from veracal.cli._artifacts import read_table
from veracal.cli._options import is_name
from veracal.cli._run_output import show_notice
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

_MOST_KEY = 4_096  # bytes of a file with a public key


@dataclass(frozen=True)
class EnrolledRecords:
    """Scored records, and where they come from.

    Attributes
    ----------
    scores : Scores
    model : str
        Hash of the model.
    data : Origin or None
        The file that they come from, as it was when they were read.
    model_place : path or None
        Where the model lies.
    seal : callable or None
        Of a partition: records its new individuals. To be called before the charge.
    """

    scores: Scores
    model: str
    data: RecordFile | None
    model_place: Path | None
    seal: Callable[[], None] | None = None


@dataclass(frozen=True)
class RecordPaths:
    """Where records and model are, as it was typed."""

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
        """The file or set that the records come from."""
        return str(self.scores if self.data is None else self.data)

    def ledger_place(self) -> Path:
        """Where the ledger of the records is, or will be."""
        return _paying.ledger_place(self.records, self.ledger)

    def check(self) -> None:
        """Refuse what does not go together."""
        if (self.scores is None) == (self.data is None):
            raise typer.BadParameter(
                "name the records once: --scores FILE, or --model ARTIFACT --data TABLE.",
                param_hint="--scores",
            )
        if (self.model is None) == (self.model_hash is None):
            raise typer.BadParameter(
                "name the model that the records were scored by, once: --model FILE or FOLDER, "
                "or --model-hash HEX.",
                param_hint="--model",
            )
        if self.data is None:
            if self.partition is not None:
                raise typer.BadParameter("it needs --data TABLE.", param_hint="--partition")
            return
        if self.model is None:
            raise typer.BadParameter("it needs --model ARTIFACT.", param_hint="--data")
        if self.classes is not None or self.unit is not None:
            raise typer.BadParameter(
                "the artifact's schema names classes and units of a table.",
                param_hint="--classes" if self.classes is not None else "--unit",
            )

    def check_partition(self, known: Collection[str]) -> None:
        """Refuse a partition that there is not."""
        if self.partition is not None and self.partition not in known:
            raise typer.BadParameter(
                f"expected one of {', '.join(known)}, got {self.partition!r}.",
                param_hint="--partition",
            )


def read_records(
    places: RecordPaths, relation: Relation, marks: FileMarkKey
) -> EnrolledRecords:
    """Read the records, and score them if that is still to be done."""
    if places.data is not None:
        assert places.model is not None
        return _scored(places, relation, marks)
    assert places.scores is not None
    mark = places.model_hash or model_hash(places.model or "")
    if not is_hexadecimal(mark, 64):
        raise typer.BadParameter(
            "expected 64 hexadecimal digits, a SHA-256.", param_hint="--model-hash"
        )
    origin = RecordFile.of(places.scores, marks)
    told = _predictions.settings(places.classes, None, places.unit, None)
    scores = _predictions.load(places.scores, told)
    return EnrolledRecords(scores, mark, origin.checked(marks), places.model)


def read_key(text: str) -> PublicKey:
    """A calibrator's public key: its digits, or a file with them."""
    if is_hexadecimal(text, 64):
        return PublicKey(text)
    path = Path(text)
    try:
        with path.open("rb") as file:
            words = file.read(_MOST_KEY).decode("ascii", "replace").split()
    except (OSError, ValueError) as cause:
        raise _no_key(text) from cause
    found = {word for word in words if is_hexadecimal(word, 64)}
    if len(found) != 1:
        raise _no_key(text)
    return PublicKey(found.pop())


def _scored(places: RecordPaths, relation: Relation, marks: FileMarkKey) -> EnrolledRecords:
    """Let an artifact score a table, before any map, classes in the order of its weights."""
    model, data = places.model, places.data
    assert model is not None
    assert data is not None
    classifier = PrivateClassifier.load(model)
    origin = None if is_name(data) else RecordFile.of(Path(data), marks)
    records = read_table(classifier, data, row_digests=places.partition is not None)
    seal = None
    if places.partition is not None:
        schema = classifier.schema
        records, seal = partition(records, schema, places)
    if relation == "replace-one" and records.may_drop:
        raise DataError(
            data,
            "as many rows after replacing a record as before",
            "a table from which rows were dropped",
            "Make a source with --relation add-remove, or declare how to fill in what is "
            "missing.",
        )
    scores = _in_order(classifier, classifier.scores(records, mapped=False))
    still = None if origin is None else origin.checked(marks)
    return EnrolledRecords(scores, artifact_hash(classifier), still, model, seal)


def partition(
    records: Dataset, schema: Schema | None, places: RecordPaths
) -> tuple[Dataset, Callable[[], None]]:
    """The records of one partition, as the ledger of their data set has assigned them.

    Returns
    -------
    tuple of (Dataset, callable)
        The records, and what records the individuals among them that are new.

    Raises
    ------
    LedgerError
        If the schema identifies individuals by other columns than earlier runs did: each would
        be somebody else, and in another partition.
    """
    ledger, name = places.ledger_place(), places.partition
    assert name is not None
    path = partitions_path(ledger)
    if not path.exists():
        raise DataError(
            records.name,
            f"the partitions that 'veracal fit' recorded beside {ledger}",
            "none",
            "Leave out --partition: then all records are enrolled, and every partition pays.",
        )
    kept = PartitionStore(path).rule
    rule = PartitionRule.for_dataset(
        records, kept.fractions, kept.relation, kept.split_key, schema=schema
    )
    store = PartitionStore.obtain(path, rule, fresh=False)
    split, assignment = split_and_assign(records, store, fresh=False)
    places.check_partition(split.parts)
    if assignment.notice is not None:
        show_notice(assignment.notice)
    return split.parts[name], partial(store.seal, assignment)


def _in_order(classifier: PrivateClassifier, scores: Scores) -> Scores:
    """The same scores, with classes as the artifact has them: maps know them so."""
    classes = classifier.manifest.classes
    columns = [scores.classes.index(label) for label in classes]
    place = np.argsort(columns)
    return Scores(
        scores.values[:, columns],
        scores.kind,
        classes,
        place[scores.known_labels],
        units=scores.units,
        name=scores.name,
    )


def _no_key(text: str) -> typer.BadParameter:
    """Error for what is no public key."""
    return typer.BadParameter(
        f"expected 64 hexadecimal digits, or a file with them, got {text[:80]!r}. The "
        "calibrator's `veracal federation init` prints them.",
        param_hint="--calibrator",
    )
