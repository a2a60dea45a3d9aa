"""Predictions for a table in blocks of rows, so that memory stays bounded."""

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import typer

from veracal._types import Array, Ints, Progress
from veracal.artifact import PrivateClassifier
from veracal.cli import _output
from veracal.cli._artifacts import check_named, no_schema
from veracal.cli._options import is_name
from veracal.cli._output import check_new
from veracal.data import (
    ABSTAINED,
    CsvPredictions,
    ExtraColumns,
    JsonPredictions,
    PredictionWriter,
    atomic_file,
    check_output_path,
    load,
    prediction_writer,
    scan_rows,
)
from veracal.training import is_informative

LOW, HIGH, FLIP, REVIEW = "disagreement_low", "disagreement_high", "flip", "review"


@dataclass(frozen=True)
class ArbitrarinessSummary:
    """Counts of the arbitrariness of decisions, and what to print with them.

    Attributes
    ----------
    level : float
        Of the intervals.
    holds_for : str
        The rows that the level covers simultaneously.
    estimated : bool
        Whether there are estimates of flips.
    caveats : tuple of str
    informative, review, abstained : int
        Rows with an informative interval, rows to review, and rows without a decision.
    """

    level: float
    holds_for: str
    estimated: bool
    caveats: tuple[str, ...]
    informative: int = 0
    review: int = 0
    abstained: int = 0

    def add(self, columns: Mapping[str, Array]) -> "ArbitrarinessSummary":
        """Add a block of rows."""
        return replace(
            self,
            informative=self.informative
            + int(is_informative(columns[LOW], columns[HIGH]).sum()),
            review=self.review + int(np.sum(columns.get(REVIEW, 0))),
            abstained=self.abstained + int(np.sum(columns.get(ABSTAINED, 0))),
        )

    def to_json(self) -> dict[str, Any]:
        """All values as JSON can hold them."""
        return {**asdict(self), "caveats": list(self.caveats)}


@dataclass(frozen=True)
class PredictOptions:
    """Options of the arbitrariness of decisions.

    Attributes
    ----------
    level : float
        Simultaneous level of the intervals: rows come in blocks, and were not fixed before the
        model was released.
    review, abstain : float or None
        Largest acceptable disagreement. Unless a decision is shown to have at most that, it is
        marked for review, or left out.
    """

    level: float = 0.95
    review: float | None = None
    abstain: float | None = None

    def start(self, classifier: PrivateClassifier) -> ArbitrarinessSummary:
        """A summary of no rows; an error explains why a model has no arbitrariness."""
        empty = classifier.arbitrariness(
            np.zeros((0, classifier.n_features_in_)), level=self.level
        )
        return ArbitrarinessSummary(
            empty.level, empty.holds_for, empty.flip is not None, empty.caveats
        )

    def column_types(self, summary: ArbitrarinessSummary) -> ExtraColumns:
        """Names of the columns, and whether each is boolean."""
        columns = {LOW: False, HIGH: False}
        columns |= {FLIP: False} if summary.estimated else {}
        columns |= {} if self.review is None else {REVIEW: True}
        return columns | ({} if self.abstain is None else {ABSTAINED: True})

    def compute(self, classifier: PrivateClassifier, X: Any) -> dict[str, Array]:
        """The columns for some rows."""
        result = classifier.arbitrariness(X, level=self.level)
        columns: dict[str, Array] = {LOW: result.low, HIGH: result.high}
        if result.flip is not None:
            columns[FLIP] = result.flip
        if self.review is not None:
            columns[REVIEW] = result.high > self.review
        if self.abstain is not None:
            columns[ABSTAINED] = result.high > self.abstain
        return columns


_MAX_DROPPED = 1_000  # numbers of dropped rows that are kept
_MEMORY = 2**24  # bytes kept in memory until all rows are known to be valid
_ROWS = 65_536  # of a block

# First row of the block, number of rows read, indices of those kept, and their features.
Block = tuple[int, int, Ints, Any]


@dataclass(frozen=True)
class Predicted:
    """Counts of the rows of a table.

    Attributes
    ----------
    rows, dropped : int
        With a prediction, and without.
    first : tuple of int
        Numbers of the first rows without a prediction, counted from 1.
    arbitrariness : ArbitrarinessSummary or None
    """

    rows: int = 0
    dropped: int = 0
    first: tuple[int, ...] = ()
    arbitrariness: ArbitrarinessSummary | None = None

    def to_json(self) -> dict[str, Any]:
        """All values as JSON can hold them."""
        counts = {"rows": self.rows, "dropped": self.dropped, "first_dropped": list(self.first)}
        if self.arbitrariness is None:
            return counts
        return {**counts, "arbitrariness": self.arbitrariness.to_json()}

    def add(self, start: int, height: int, kept: Ints) -> "Predicted":
        """Add a block of rows."""
        dropped = height - len(kept)
        first = self.first
        if dropped and len(first) < _MAX_DROPPED:
            missing = np.setdiff1d(np.arange(start, start + height), kept) + 1
            first = (*first, *missing[: _MAX_DROPPED - len(first)].tolist())
        return replace(
            self, rows=self.rows + len(kept), dropped=self.dropped + dropped, first=first
        )


def check_out(out: Path, model: Path, data: str, *, force: bool) -> None:
    """Reject an output path before the predictions are made."""
    prediction_writer(out)
    real = Path(os.path.realpath(out))
    if real == Path(os.path.realpath(data)) or Path(os.path.realpath(model)) in real.parents:
        raise typer.BadParameter(
            f"{out} is DATA, or is in MODEL. Choose another path.", param_hint="--out"
        )
    check_new(out, force=force)
    check_output_path(out, force=force)


def read_blocks(
    classifier: PrivateClassifier, data: str, progress: Progress
) -> Iterator[Block]:
    """Rows of a table or of a built-in set, encoded by the schema of a classifier."""
    path = Path(data)
    if is_name(data):
        check_named(classifier, data)
        whole = load(data, progress=progress)
        for start in range(0, len(whole), _ROWS):
            X = whole.X[start : start + _ROWS]
            yield start, len(X), start + np.arange(len(X)), X
        return
    if classifier.schema is None:
        raise no_schema(data)
    start = 0
    for height, rows in scan_rows(path, classifier.schema, progress=progress):
        yield start, height, rows.numbers, rows.X
        start += height


def to_file(
    classifier: PrivateClassifier,
    blocks: Iterable[Block],
    out: Path,
    *,
    force: bool,
    options: PredictOptions | None = None,
) -> Predicted:
    """Write predictions to a file, which appears complete or not at all."""
    with atomic_file(out, force=force) as file:
        return _write(classifier, blocks, prediction_writer(out), file, options)


def to_stdout(
    classifier: PrivateClassifier,
    blocks: Iterable[Block],
    *,
    as_json: bool,
    options: PredictOptions | None = None,
) -> Predicted:
    """Print predictions once all rows are known to be valid."""
    with tempfile.SpooledTemporaryFile(max_size=_MEMORY) as file:
        write = _write_json if as_json else _write_csv
        summary = write(classifier, blocks, file, options)  # type: ignore[arg-type]
        file.seek(0)
        text = io.TextIOWrapper(file, "utf-8", newline="")
        if sys.stdout.isatty():  # which would interpret control characters in class names
            for line in text:
                typer.echo(_output.escape_text(line, keep="\n"), nl=False)
        else:
            shutil.copyfileobj(text, sys.stdout)
        sys.stdout.flush()
    return summary


def _write_csv(
    classifier: PrivateClassifier,
    blocks: Iterable[Block],
    file: BinaryIO,
    options: PredictOptions | None,
) -> Predicted:
    """Write the rows of a CSV table."""
    return _write(classifier, blocks, CsvPredictions, file, options)


def _write_json(
    classifier: PrivateClassifier,
    blocks: Iterable[Block],
    file: BinaryIO,
    options: PredictOptions | None,
) -> Predicted:
    """Write one JSON object, with the predictions first, because counts follow from them."""
    classes = _classes(classifier)
    file.write(f'{{"classes": {json.dumps(classes)},\n "predictions": ['.encode())
    summary = _write(classifier, blocks, JsonPredictions, file, options)
    file.write(f"],\n {json.dumps(summary.to_json())[1:]}\n".encode())
    return summary


def _write(
    classifier: PrivateClassifier,
    blocks: Iterable[Block],
    open_writer: type[PredictionWriter],
    file: BinaryIO,
    options: PredictOptions | None,
) -> Predicted:
    """Predict and write block by block."""
    arbitrariness = None if options is None else options.start(classifier)
    summary = Predicted(arbitrariness=arbitrariness)
    types: ExtraColumns = {}
    if options is not None and arbitrariness is not None:
        types = options.column_types(arbitrariness)
    with open_writer(file, _classes(classifier), types) as writer:
        for start, height, numbers, X in blocks:
            summary = summary.add(start, height, numbers)
            if len(numbers):
                probabilities = classifier.predict_proba(X)
                labels = classifier.classes_[probabilities.argmax(axis=1)]
                columns: dict[str, Any] = {}
                if options is not None and summary.arbitrariness is not None:
                    columns = options.compute(classifier, X)
                    added = summary.arbitrariness.add(columns)
                    summary = replace(summary, arbitrariness=added)
                writer.write(numbers, labels, probabilities, columns)
    return summary


def _classes(classifier: PrivateClassifier) -> list[str | int]:
    """Classes in the order of the columns."""
    return list(classifier.manifest.classes)
