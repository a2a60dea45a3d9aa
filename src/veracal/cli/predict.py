"""The command ``predict``: classes and probabilities for a table, in blocks of rows."""

import io
import json as _json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from veracal.cli import _artifacts, _options, _output

if TYPE_CHECKING:
    from veracal._types import Array, Ints, Progress
    from veracal.artifact import PrivateClassifier
    from veracal.data import ExtraColumns, PredictionWriter


app = typer.Typer(no_args_is_help=True, add_completion=False)

_MAX_LISTED = 20  # dropped rows that are listed by number
_MAX_DROPPED = 1_000  # numbers of dropped rows that are kept
_MEMORY = 2**24  # bytes kept in memory until all rows are known to be valid
_ROWS = 65_536  # of a block
LOW, HIGH, FLIP, REVIEW = "disagreement_low", "disagreement_high", "flip", "review"
# First row of the block, number of rows read, indices of those kept, and their features.
Block = tuple[int, int, "Ints", Any]


@app.command(epilog="Example:  veracal predict model breast-cancer --out predictions.csv")
def predict(
    model: _options.Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Table with the columns of MODEL's schema, with or without the target, or the "
            "name of a built-in set.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write here (.csv, .parquet or .npz) instead of CSV to stdout."),
    ] = None,
    force: _options.Force = False,
    arbitrariness: Annotated[
        bool,
        typer.Option(
            "--arbitrariness",
            help="Add an interval of the disagreement of each decision between training runs, "
            "from the model alone. Needs a model of output or objective perturbation.",
        ),
    ] = False,
    level: _options.Level = 0.95,
    review_above: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Mark decisions for review whose disagreement may exceed T.",
        ),
    ] = None,
    abstain_above: Annotated[
        float | None,
        typer.Option(metavar="T", help="Leave out decisions whose disagreement may exceed T."),
    ] = None,
    json: _options.Json = False,
) -> None:
    """Predict the class of each row of DATA, with a probability for every class.

    Rows are numbered from 1 in the order of the table; rows that the schema
    drops have no prediction. The model may be published, but its predictions
    for individuals may not: treat them like the records.

    With --arbitrariness, each decision has an interval for the probability that
    two training runs on the same records disagree about it. All intervals hold
    together at --level. They cost no privacy. An interval from 0 to 1 is
    uninformative, and exceeds any T below 1.
    """
    if arbitrariness:
        for option, value in (
            ("--review-above", review_above),
            ("--abstain-above", abstain_above),
        ):
            if value is not None and not 0 <= value <= 1:
                raise typer.BadParameter(
                    f"Expected a number from 0 to 1, got {value}.", param_hint=option
                )
    elif (review_above, abstain_above) != (None, None):
        option = "--abstain-above" if review_above is None else "--review-above"
        raise typer.BadParameter("This needs --arbitrariness.", param_hint=option)
    from veracal.data import atomic_file, check_output_path, prediction_writer

    if out is not None:
        prediction_writer(out)  # rejects other suffixes
        real = Path(os.path.realpath(out))
        if str(real) == os.path.realpath(data) or Path(os.path.realpath(model)) in real.parents:
            raise typer.BadParameter(
                f"{out} is DATA, or is in MODEL. Choose another path.", param_hint="--out"
            )
        _output.check_new(out, force=force)
        check_output_path(out, force=force)
    classifier = _artifacts.load_classifier(model)
    decisions = None
    with _output.progress_bar(f"Predicting {data}") as progress:
        blocks = _read_blocks(classifier, data, progress)
        if arbitrariness:
            decisions = Decisions.of_model(classifier, level, review_above, abstain_above)
        summary = Predicted(decisions=decisions)
        if out is None:
            _write_stdout(classifier, blocks, summary, json=json)
        else:
            with atomic_file(out, force=force) as file:  # appears complete or not at all
                _write(classifier, blocks, prediction_writer(out), file, summary)
    if json and out is not None:
        written = {"model": str(model), "data": data, "out": str(out), **summary.to_json()}
        _output.print_json(written)
    summary.report(out)


@dataclass
class Decisions:
    """The arbitrariness of decisions: how it is computed, and counts of the rows so far.

    The level of the intervals is simultaneous: rows come in blocks, and were not fixed before
    the model was released. Unless a decision is shown to have at most the disagreement of the
    first threshold, it is marked for review; of the second, it is left out.
    """

    level: float
    holds_for: str  # the rows that the level covers simultaneously
    estimated: bool  # whether there are estimates of flips
    caveats: list[str]
    thresholds: tuple[float | None, float | None]
    informative: int = 0  # rows with an informative interval
    review: int = 0
    abstained: int = 0

    @classmethod
    def of_model(
        cls,
        classifier: "PrivateClassifier",
        level: float,
        review: float | None,
        abstain: float | None,
    ) -> "Decisions":
        """For no rows yet; an error explains why a model has no arbitrariness."""
        import numpy as np

        X = np.zeros((0, classifier.n_features_in_))
        empty = classifier.arbitrariness(X, level=level)
        flips, caveats = empty.flip is not None, list(empty.caveats)
        return cls(empty.level, empty.holds_for, flips, caveats, (review, abstain))

    def column_types(self) -> "ExtraColumns":
        """Names of the columns, and whether each is boolean."""
        from veracal.data import ABSTAINED

        review, abstain = self.thresholds
        columns = {LOW: False, HIGH: False}
        columns |= {FLIP: False} if self.estimated else {}
        columns |= {} if review is None else {REVIEW: True}
        return columns | ({} if abstain is None else {ABSTAINED: True})

    def compute(self, classifier: "PrivateClassifier", X: Any) -> "dict[str, Array]":
        """The columns for some rows, which are counted."""
        from veracal.data import ABSTAINED
        from veracal.training import is_informative

        result = classifier.arbitrariness(X, level=self.level)
        review, abstain = self.thresholds
        columns: dict[str, Array] = {LOW: result.low, HIGH: result.high}
        if result.flip is not None:
            columns[FLIP] = result.flip
        if review is not None:
            columns[REVIEW] = result.high > review
            self.review += int(columns[REVIEW].sum())
        if abstain is not None:
            columns[ABSTAINED] = result.high > abstain
            self.abstained += int(columns[ABSTAINED].sum())
        self.informative += int(is_informative(result.low, result.high).sum())
        return columns


@dataclass
class Predicted:
    """Counts of the rows of a table so far."""

    rows: int = 0  # with a prediction
    dropped: int = 0
    first: list[int] = field(default_factory=list)  # dropped rows, counted from 1
    decisions: Decisions | None = None

    def to_json(self) -> dict[str, Any]:
        """All counts as values that JSON can hold."""
        counts = {"rows": self.rows, "dropped": self.dropped, "first_dropped": self.first}
        if self.decisions is None:
            return counts
        arbitrariness = asdict(self.decisions)
        del arbitrariness["thresholds"]
        return {**counts, "arbitrariness": arbitrariness}

    def report(self, out: Path | None) -> None:
        """Report the number of predictions, their file, and the rows without one."""
        if self.dropped:
            first = ", ".join(map(str, self.first[:_MAX_LISTED]))
            more = ", …" * (self.dropped > _MAX_LISTED)
            rows = _output.format_count(self.dropped, "row")
            _output.print_status(
                f"No prediction for {rows}, dropped for a missing value: {first}{more}."
            )
        if self.decisions is not None:
            rows = _output.format_count(self.rows, "row")
            _output.print_status(
                f"Disagreement: at level {self.decisions.level:g}, for "
                f"{self.decisions.holds_for}. The intervals are informative for "
                f"{self.decisions.informative} of {rows}."
            )
            for caveat in self.decisions.caveats:
                _output.print_status(f"  {caveat}")
        if out is not None:
            rows = _output.format_count(self.rows, "prediction")
            _output.print_status(f"Wrote {rows} to {out}. Treat the file like the records.")


def _read_blocks(
    classifier: "PrivateClassifier", data: str, progress: "Progress"
) -> Iterator[Block]:
    """Rows of a table or of a built-in set, encoded by the schema of a classifier."""
    import numpy as np

    from veracal.data import load, scan_rows

    if _options.is_name(data):
        _artifacts.check_named(classifier, data)
        whole = load(data, progress=progress)
        for start in range(0, len(whole), _ROWS):
            X = whole.X[start : start + _ROWS]
            yield start, len(X), start + np.arange(len(X)), X
        return
    if classifier.schema is None:
        raise _artifacts.no_schema(data)
    start = 0
    for height, rows in scan_rows(Path(data), classifier.schema, progress=progress):
        yield start, height, rows.numbers, rows.X
        start += height


def _write_stdout(
    classifier: "PrivateClassifier", blocks: Iterable[Block], summary: Predicted, *, json: bool
) -> None:
    """Print predictions once all rows are known to be valid: as CSV, or as one JSON object.

    In JSON the predictions come first, because the counts follow from them.
    """
    from veracal.data import CsvPredictions, JsonPredictions

    with tempfile.SpooledTemporaryFile(max_size=_MEMORY) as spooled:
        file: Any = spooled
        if json:
            classes = _json.dumps(list(classifier.manifest.classes))
            file.write(f'{{"classes": {classes},\n "predictions": ['.encode())
            _write(classifier, blocks, JsonPredictions, file, summary)
            file.write(f"],\n {_json.dumps(summary.to_json())[1:]}\n".encode())
        else:
            _write(classifier, blocks, CsvPredictions, file, summary)
        file.seek(0)
        text = io.TextIOWrapper(file, "utf-8", newline="")
        if sys.stdout.isatty():  # which would interpret control characters in class names
            for line in text:
                typer.echo(_output.escape_text(line, keep="\n"), nl=False)
        else:
            shutil.copyfileobj(text, sys.stdout)
        sys.stdout.flush()


def _write(
    classifier: "PrivateClassifier",
    blocks: Iterable[Block],
    open_writer: "type[PredictionWriter]",
    file: BinaryIO,
    summary: Predicted,
) -> None:
    """Predict and write block by block, and count the rows."""
    import numpy as np

    decisions = summary.decisions
    types = {} if decisions is None else decisions.column_types()
    with open_writer(file, list(classifier.manifest.classes), types) as writer:
        for start, height, numbers, X in blocks:
            summary.rows += len(numbers)
            summary.dropped += height - len(numbers)
            if height > len(numbers) and len(summary.first) < _MAX_DROPPED:
                missing = np.setdiff1d(np.arange(start, start + height), numbers) + 1
                summary.first += missing[: _MAX_DROPPED - len(summary.first)].tolist()
            if len(numbers):
                probabilities = classifier.predict_proba(X)
                labels = classifier.classes_[probabilities.argmax(axis=1)]
                columns: Mapping[str, Array] = {}
                if decisions is not None:
                    columns = decisions.compute(classifier, X)
                writer.write(numbers, labels, probabilities, columns)
