"""What predictions tell of the luck in each decision, from the model alone.

Predictions for a table, a block of rows at a time, so that memory stays as it is.
"""

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
from veracal.cli import _output as _show
from veracal.cli._artifacts import check_named, is_name, no_schema
from veracal.cli._output import check_new
from veracal.data import (
    ABSTAINED,
    Columns,
    CsvPredictions,
    JsonPredictions,
    Writer,
    check_place,
    load,
    placed,
    prediction_writer,
    scan_rows,
)
from veracal.training import informative

LOW, HIGH, FLIP, REVIEW = "disagreement_low", "disagreement_high", "flip", "review"


@dataclass(frozen=True)
class ArbitrarinessSummary:
    """What was found of the people so far, and what to print with it.

    Attributes
    ----------
    level : float
        Of the intervals.
    holds_for : str
        Of whom they hold at once.
    estimated : bool
        Whether there are estimates of flips.
    caveats : tuple of str
    told, review, abstained : int
        People of whom an interval says anything; whose decision should be looked at, or is
        left out.
    """

    level: float
    holds_for: str
    estimated: bool
    caveats: tuple[str, ...]
    told: int = 0
    review: int = 0
    abstained: int = 0

    def and_block(self, found: Mapping[str, Array]) -> "ArbitrarinessSummary":
        """The same after some more people."""
        told = informative(found[LOW], found[HIGH])
        return replace(
            self,
            told=self.told + int(told.sum()),
            review=self.review + int(np.sum(found.get(REVIEW, 0))),
            abstained=self.abstained + int(np.sum(found.get(ABSTAINED, 0))),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {**asdict(self), "caveats": list(self.caveats)}


@dataclass(frozen=True)
class PredictOptions:
    """What is asked of each decision.

    Attributes
    ----------
    level : float
        Of the intervals, which are those for everybody at once: rows come one block after the
        other, and nobody named them before the model was released.
    review, abstain : float or None
        Disagreement that is too much, so that a decision should be looked at or is left out:
        wherever it cannot be shown to be at most that.
    """

    level: float = 0.95
    review: float | None = None
    abstain: float | None = None

    def of_nobody(self, classifier: PrivateClassifier) -> ArbitrarinessSummary:
        """What there will be, or an error that says why there is nothing."""
        none = classifier.arbitrariness(
            np.zeros((0, classifier.n_features_in_)), level=self.level
        )
        return ArbitrarinessSummary(
            none.level, none.holds_for, none.flip is not None, none.caveats
        )

    def columns(self, luck: ArbitrarinessSummary) -> Columns:
        """Names of the columns, and whether each holds yes or no."""
        found = {LOW: False, HIGH: False}
        found |= {FLIP: False} if luck.estimated else {}
        found |= {} if self.review is None else {REVIEW: True}
        return found | ({} if self.abstain is None else {ABSTAINED: True})

    def of(self, classifier: PrivateClassifier, X: Any) -> dict[str, Array]:
        """The columns for some rows."""
        told = classifier.arbitrariness(X, level=self.level)
        found: dict[str, Array] = {LOW: told.low, HIGH: told.high}
        if told.flip is not None:
            found[FLIP] = told.flip
        if self.review is not None:
            found[REVIEW] = told.high > self.review
        if self.abstain is not None:
            found[ABSTAINED] = told.high > self.abstain
        return found


_KEPT = 1_000  # numbers of dropped rows that are remembered
_SMALL = 2**24  # bytes that may wait in memory until all rows are known to be well-formed
_ROWS = 65_536

# How many rows of the table came before, how many were read, numbers of those kept, and
# their features.
Block = tuple[int, int, Ints, Any]


@dataclass(frozen=True)
class Predicted:
    """How many rows were read, and what became of them.

    Attributes
    ----------
    rows, dropped : int
        With a prediction, and without.
    first : tuple of int
        Numbers of the first rows without one, counted from 1.
    luck : Luck or None
        What was found of arbitrariness, if it was asked for.
    """

    rows: int = 0
    dropped: int = 0
    first: tuple[int, ...] = ()
    luck: ArbitrarinessSummary | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        told = {"rows": self.rows, "dropped": self.dropped, "first_dropped": list(self.first)}
        return told if self.luck is None else {**told, "arbitrariness": self.luck.to_json()}

    def and_block(self, start: int, height: int, kept: Ints) -> "Predicted":
        """The same after some more rows."""
        dropped = height - len(kept)
        first = self.first
        if dropped and len(first) < _KEPT:
            lost = np.setdiff1d(np.arange(start, start + height), kept) + 1
            first = (*first, *lost[: _KEPT - len(first)].tolist())
        return replace(
            self, rows=self.rows + len(kept), dropped=self.dropped + dropped, first=first
        )


def check_out(out: Path, model: Path, data: str, *, force: bool) -> None:
    """Refuse a place to write to, before the work and not after it."""
    prediction_writer(out)
    real = Path(os.path.realpath(out))
    if real == Path(os.path.realpath(data)) or Path(os.path.realpath(model)) in real.parents:
        raise typer.BadParameter(f"{out} is DATA, or inside MODEL.", param_hint="--out")
    check_new(out, force=force)
    check_place(out, force=force)


def blocks(classifier: PrivateClassifier, data: str, progress: Progress) -> Iterator[Block]:
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
    given: Iterable[Block],
    out: Path,
    *,
    force: bool,
    asked: PredictOptions | None = None,
) -> Predicted:
    """Write predictions to a file, which appears whole or not at all."""
    with placed(out, force=force) as file:
        return _write(classifier, given, prediction_writer(out), file, asked)


def to_stdout(
    classifier: PrivateClassifier,
    given: Iterable[Block],
    *,
    json: bool,
    asked: PredictOptions | None = None,
) -> Predicted:
    """Print predictions once all rows turned out to be well-formed."""
    with tempfile.SpooledTemporaryFile(max_size=_SMALL) as file:
        writer = _json_items if json else _csv
        done = writer(classifier, given, file, asked)  # type: ignore[arg-type]
        file.seek(0)
        text = io.TextIOWrapper(file, "utf-8", newline="")
        if sys.stdout.isatty():  # which would obey what a stranger's classes are called
            for line in text:
                typer.echo(_show.visible(line, keep="\n"), nl=False)
        else:
            shutil.copyfileobj(text, sys.stdout)
        sys.stdout.flush()
    return done


def _csv(
    classifier: PrivateClassifier,
    given: Iterable[Block],
    file: BinaryIO,
    asked: PredictOptions | None,
) -> Predicted:
    """Lines of a table."""
    return _write(classifier, given, CsvPredictions, file, asked)


def _json_items(
    classifier: PrivateClassifier,
    given: Iterable[Block],
    file: BinaryIO,
    asked: PredictOptions | None,
) -> Predicted:
    """One JSON object, with the predictions first: what is counted is known at the end."""
    classes = _classes(classifier)
    file.write(f'{{"classes": {json.dumps(classes)},\n "predictions": ['.encode())
    done = _write(classifier, given, JsonPredictions, file, asked)
    file.write(f"],\n {json.dumps(done.to_json())[1:]}\n".encode())
    return done


def _write(
    classifier: PrivateClassifier,
    given: Iterable[Block],
    open_on: Writer,
    file: BinaryIO,
    asked: PredictOptions | None,
) -> Predicted:
    """Predict and write, block by block."""
    luck = None if asked is None else asked.of_nobody(classifier)
    done = Predicted(luck=luck)
    columns = {} if luck is None or asked is None else asked.columns(luck)
    with open_on(file, _classes(classifier), columns) as writer:
        for start, height, numbers, X in given:
            done = done.and_block(start, height, numbers)
            if len(numbers):
                shares = classifier.predict_proba(X)
                labels = classifier.classes_[shares.argmax(axis=1)]
                more: dict[str, Any] = {}
                if asked is not None and done.luck is not None:
                    more = asked.of(classifier, X)
                    done = replace(done, luck=done.luck.and_block(more))
                writer.write(numbers, labels, shares, more)
    return done


def _classes(classifier: PrivateClassifier) -> list[str | int]:
    """Classes in the order of the columns."""
    return list(classifier.manifest.classes)
