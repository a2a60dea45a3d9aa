"""Scores and predictions in files: scores of any model, and predictions written in blocks."""

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

import numpy as np
import polars as pl
import pyarrow.parquet

from veracal._types import Array, Floats, Frozen, Ints, Progress
from veracal.data.arrays import plain_ids, read_npz
from veracal.data.dataset import Group, concatenate
from veracal.data.files import DEFAULT_LIMITS, Limits, atomic_file, check_suffix
from veracal.data.rows import TEXT, Label
from veracal.data.scores import Kind, Scores
from veracal.data.tables import arrays_to_frame, read_table
from veracal.errors import DataError

_RESERVED = re.compile(r"labels|(logits|probabilities)(_[0-9]+)?")  # columns of scores


def save_scores(
    scores: Scores, path: str | Path, *, unit: str = "unit", force: bool = False
) -> Path:
    """Write scores to an npz, Parquet or CSV file, by its suffix.

    :func:`load_scores` with the same classes, groups and unit reads them back. A CSV file holds
    text: single precision is read back as double, and unit ids as text.

    Parameters
    ----------
    scores : Scores
        Usually scores of individuals: protect the file like their records.
    path : path
        The file is written atomically, and only its owner can read it.
    unit : str
        Column for the unit ids, if there are any.
    force : bool
        Whether an existing file may be replaced.

    Examples
    --------
    >>> from veracal.data import load_scores
    >>> folder = getfixture("tmp_path")
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> load_scores(save_scores(scores, folder / "scores.parquet")).values.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    path = Path(path)
    suffix = check_score_suffix(path)
    check_score_columns(scores, unit)
    columns: dict[str, Array] = {scores.kind: scores.values}
    if scores.labels is not None:
        columns["labels"] = np.asarray(scores.classes)[scores.labels]
    if scores.units is not None:
        columns[unit] = plain_ids(scores.units)
    for name, group in scores.groups.items():
        columns[name] = np.asarray(group.names)[group.codes]
    with atomic_file(path, force=force) as file:
        if suffix == ".npz":  # not by numpy.savez, which reserves its argument names
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, values in columns.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, values, allow_pickle=False)
            return path
        if suffix == ".csv":  # one column for each class; numbers are read back exactly
            matrix = columns.pop(scores.kind)
            columns = {f"{scores.kind}_{i}": p for i, p in enumerate(matrix.T)} | columns
        table = pl.DataFrame({name: _series(values) for name, values in columns.items()})
        try:
            (table.write_csv if suffix == ".csv" else table.write_parquet)(file)
        except pl.exceptions.ComputeError as cause:  # raised by polars for a full disk
            raise OSError(str(cause)) from cause
    return path


def check_score_suffix(path: Path) -> str:
    """Return the suffix of a path, which determines the format of saved scores, or raise."""
    return check_suffix(path, (".npz", ".parquet", ".csv"))


def check_score_columns(scores: Scores, unit: str) -> None:
    """Reject groups and units whose column names conflict, before any work."""
    units = [] if scores.units is None else [unit]
    for name in (*scores.groups, *units):
        if _RESERVED.fullmatch(name) or (name in scores.groups and name in units):
            raise DataError(
                scores.name,
                "groups and units with distinct names that are not reserved",
                repr(name),
                "Rename the group, or the column of the units.",
            )


def _series(values: Array) -> pl.Series:
    """Convert an array to a column, a matrix to a column of arrays."""
    if values.ndim == 2:
        return pl.Series(np.ascontiguousarray(values))
    return pl.Series(values.tolist() if values.dtype.kind == "U" else values.copy())


_KINDS: tuple[Kind, ...] = ("logits", "probabilities")
_LABEL_ALIASES = ("label", "y")  # other common names of the column of labels
_RECORD = re.compile(r"(?<= in record )[0-9]+$")


def scan_scores(
    path: str | Path,
    *,
    classes: Sequence[Label] | None = None,
    groups: Mapping[str, Sequence[Label]] | None = None,
    unit: str | None = None,
    part: str | None = None,
    rows: int = 65_536,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Iterator[Scores]:
    """Stream scores from an npz, Parquet, Arrow or CSV file.

    The file has either ``logits`` or ``probabilities`` (a two-dimensional array, a list
    column, or columns ``logits_0`` to ``logits_<k-1>`` in the order of the classes) and, if
    they are known, ``labels``.

    Parameters
    ----------
    classes : sequence of str or int, optional
        Label values; by default 0, …, k-1.
    groups : mapping of column to its declared values, optional
    unit : str, optional
        Column of unit ids: integers or text, present in every record.
    part : str, optional
        Suffix of the arrays, if one file holds several sets: with 'test', the arrays
        ``logits_test`` and ``labels_test``. It becomes part of the name of the scores.
    rows : int
        Maximal number of records at a time.
    """
    path, ending = Path(path), "" if part is None else f"_{part}"
    if path.suffix.lower() == ".npz":
        arrays = {k: a for k, a in read_npz(path, limits).items() if k.endswith(ending)}
        if not arrays:
            raise DataError(path, f"arrays ending in {ending!r}", "none", "Check the part.")
        for name in (f"{kind}{ending}" for kind in _KINDS):
            if name in arrays and arrays[name].ndim > 2:
                raise DataError(
                    f"{path}: {name}",
                    "shape (n, k), or (n,) for two classes",
                    f"shape {arrays[name].shape}",
                    "Save one row for each record.",
                )
        frames = iter([arrays_to_frame(arrays, path, limits)])
    else:
        frames = read_table(path, rows=rows, limits=limits, progress=progress)
    start, k = 0, None
    for frame in frames:
        limits.check("rows", start + frame.height, path)
        for piece in frame.iter_slices(rows):
            with _offset_records(start):
                scores = _scores(piece, path, ending, classes, groups or {}, unit)
            if k not in (None, scores.n_classes):
                raise DataError(
                    path,
                    f"scores for {k} classes in every record",
                    f"{scores.n_classes} in record {start + 1}",
                    "Write lists of one length.",
                )
            yield scores
            start, k = start + len(scores), scores.n_classes


def load_scores(
    path: str | Path,
    *,
    classes: Sequence[Label] | None = None,
    groups: Mapping[str, Sequence[Label]] | None = None,
    unit: str | None = None,
    part: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Scores:
    """Read all scores of a file; the parameters are those of :func:`scan_scores`."""
    parts, used = [], 0
    for scores in scan_scores(
        path,
        classes=classes,
        groups=groups,
        unit=unit,
        part=part,
        limits=limits,
        progress=progress,
    ):
        used += scores.values.nbytes
        limits.check("memory_bytes", used, path)
        parts.append(scores)
    if not parts:
        raise DataError(path, "at least one record", "none", "Name a file with records.")
    return concatenate(parts)


@contextmanager
def _offset_records(start: int) -> Iterator[None]:
    """Translate record numbers in errors about a batch to numbers in the file."""
    try:
        yield
    except DataError as error:
        message = _RECORD.sub(lambda number: str(int(number[0]) + start), error.found)
        raise type(error)(error.where, error.expected, message, error.remedy) from error


def _scores(
    frame: pl.DataFrame,
    path: Path,
    ending: str,
    classes: Sequence[Label] | None,
    groups: Mapping[str, Sequence[Label]],
    unit: str | None,
) -> Scores:
    """Make scores from some rows of a file."""
    kind, values = _values(frame, path, ending)
    make = Scores.from_logits if kind == "logits" else Scores.from_probabilities
    for name in (*groups, *((unit,) if unit else ())):
        if name not in frame.columns:
            raise DataError(path, f"a column {name!r}", "none", "Check the spelling.")
    labels = f"labels{ending}"
    if labels not in frame.columns:
        aliases = [labels.replace("labels", often, 1) for often in _LABEL_ALIASES]
        for name in frame.columns:
            if name.lower() in aliases and name not in {*groups, unit}:
                raise DataError(  # instead of ignoring labels under another name
                    path,
                    f"labels in a column {labels!r}, or none",
                    f"a column {name!r}",
                    f"Rename it to {labels!r} if it holds the labels, else to another name.",
                )

    def column(name: str) -> Array:
        return _plain(frame[name], f"{path}: {name}")

    return make(
        values,
        column(labels) if labels in frame.columns else None,
        classes=classes,
        groups={
            name: Group.from_values(column(name), names, where=f"{path}: group {name!r}")
            for name, names in groups.items()
        },
        units=None if unit is None else column(unit),
        # A ledger identifies records by their name, so sets of one file need different ones.
        name=f"{path.name}: {ending[1:]}" if ending else path.name,
    )


def _values(frame: pl.DataFrame, path: Path, ending: str) -> tuple[Kind, Array]:
    """Find the scores: one column of lists or numbers, or numbered columns without a gap."""
    by_kind: dict[Kind, list[str]] = {}
    for kind in _KINDS:
        name = f"{kind}{ending}"
        pattern = re.compile(rf"{re.escape(name)}(_[0-9]+)?")
        columns = [column for column in frame.columns if pattern.fullmatch(column)]
        if not columns:
            continue
        by_kind[kind] = columns
        if columns != [name]:
            by_kind[kind] = [f"{name}_{i}" for i in range(len(columns))]
            if set(columns) != set(by_kind[kind]):
                raise DataError(
                    path,
                    f"one column {name!r}, or one for each class from {name}_0 on, without a "
                    "gap",
                    ", ".join(map(repr, columns[:8])),
                    "Number the columns in the order of the classes.",
                )
    if len(by_kind) != 1:
        raise DataError(
            path,
            "logits or probabilities",
            "both" if by_kind else f"only {', '.join(map(repr, frame.columns[:8]))}",
            "Keep those that the model returned, and remove the others."
            if by_kind
            else "Rename the columns; with several sets in one file, name the part.",
        )
    ((kind, columns),) = by_kind.items()
    series = [frame[column] for column in columns]
    single = all(each.dtype == pl.Float32 for each in series)
    if columns != [f"{kind}{ending}"]:
        return kind, np.stack([_numbers(each, path, single=single) for each in series], 1)
    lists = series[0]
    if isinstance(lists.dtype, pl.List):
        lengths = lists.list.len().unique().to_list()
        if len(lengths) != 1 or lengths[0] is None:
            raise DataError(
                f"{path}: {lists.name}",
                "lists of one length",
                f"{lengths[:5]}",
                "Correct them.",
            )
        lists = lists.list.to_array(lengths[0])
    if isinstance(lists.dtype, pl.Array):
        return kind, lists.to_numpy()
    return kind, _numbers(lists, path, single=single)


def _numbers(values: pl.Series, path: Path, *, single: bool) -> Array:
    """Convert a column to floats; text that is no number becomes NaN and is rejected later."""
    if isinstance(values.dtype, pl.List | pl.Array):
        raise DataError(
            f"{path}: {values.name}",
            "a number in each record",
            f"a column of type {values.dtype}",
            "Name a matrix without a number; with several sets in one file, name the part.",
        )
    kind = pl.Float32 if single else pl.Float64
    return values.cast(kind, strict=False).fill_null(np.nan).to_numpy()


def _plain(values: pl.Series, where: str) -> Array:
    """Convert a column of labels, values or ids to numpy, if none is missing."""
    if isinstance(values.dtype, pl.List | pl.Array):
        raise DataError(
            where,
            "one value a record",
            f"a column of type {values.dtype}",
            "Save shape (n,): a single column by ravel(), one-hot rows by argmax(axis=1).",
        )
    if values.null_count():
        row = values.is_null().arg_max() or 0
        raise DataError(
            where,
            "a value in every record",
            f"none in record {row + 1}",
            "Fill it in, or leave the record out.",
        )
    if values.dtype.is_integer() or values.dtype.is_float():
        return values.to_numpy()
    return values.cast(pl.String).to_numpy().astype(TEXT)


ABSTAINED = "abstained"
# Names of columns beside classes and probabilities, and whether each is boolean.
ExtraColumns = Mapping[str, bool]
_NO_COLUMNS: ExtraColumns = Frozen()
_NO_ARRAYS: Mapping[str, Array] = Frozen()
_NO_NUMBER = np.iinfo(np.int64).min  # integer class of an abstention in npz files


class PredictionWriter:
    """A context manager that writes predictions to a file in blocks.

    Each block is a table with the number of each record from 1, its class and its class
    probabilities, and the further columns. The class of an abstention is null.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: ExtraColumns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes = file, tuple(classes)
        self._schema: dict[str, Any] = {
            "row": pl.Int64,
            "prediction": pl.Int64 if isinstance(classes[0], int) else pl.String,
            **{f"probability_{label}": pl.Float64 for label in classes},
            **{
                name: pl.Boolean if is_bool else pl.Float64 for name, is_bool in columns.items()
            },
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Write the end of the file, if it has one."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Append records.

        Parameters
        ----------
        rows : array of shape (n,)
            Row numbers in the table, from 0.
        predictions : array of shape (n,)
        probabilities : array of shape (n, classes)
        more : mapping of str to array of shape (n,)
            The further columns that were declared. Where the column ``abstained`` is true,
            the prediction is left out.
        """
        labels: list[Label | None] = predictions.tolist()
        for index in np.flatnonzero(more.get(ABSTAINED, ())):
            labels[index] = None
        columns = [rows + 1, labels, *probabilities.T.copy(), *more.values()]
        names = [*list(self._schema)[: 2 + len(self._classes)], *more]
        data = dict(zip(names, columns, strict=True))
        self._append(pl.DataFrame(data, schema=self._schema))

    def _append(self, table: pl.DataFrame) -> None:
        """Append a block."""
        raise NotImplementedError


class CsvPredictions(PredictionWriter):
    """Predictions as CSV, with numbers that are read back exactly; no text for an abstention."""

    def __enter__(self) -> Self:
        self._file.write(pl.DataFrame(schema=self._schema).write_csv().encode())
        return self

    def _append(self, table: pl.DataFrame) -> None:
        yes_or_no = pl.when(pl.col(pl.Boolean)).then(pl.lit("yes")).otherwise(pl.lit("no"))
        table = table.with_columns(yes_or_no.name.keep())
        self._file.write(table.write_csv(include_header=False).encode())


class ParquetPredictions(PredictionWriter):
    """Predictions as Parquet with a row group for each block."""

    def __enter__(self) -> Self:
        empty = pl.DataFrame(schema=self._schema).to_arrow(compat_level=pl.CompatLevel.oldest())
        self._writer = pyarrow.parquet.ParquetWriter(self._file, empty.schema)
        return self

    def __exit__(self, *raised: object) -> None:
        self._writer.close()

    def _append(self, table: pl.DataFrame) -> None:
        self._writer.write_table(table.to_arrow().cast(self._writer.schema))


class JsonPredictions(PredictionWriter):
    """Items of a JSON list, one object for each record; the caller writes the brackets."""

    _separator = "\n  "

    def _append(self, table: pl.DataFrame) -> None:
        names, k = [str(label) for label in self._classes], len(self._classes)
        for row, label, *values in table.iter_rows():
            by_class = dict(zip(names, values[:k], strict=True))
            item = {"row": row, "prediction": label, "probabilities": by_class}
            item |= dict(zip(table.columns[2 + k :], values[k:], strict=True))
            self._file.write((self._separator + json.dumps(item, allow_nan=False)).encode())
            self._separator = ",\n  "


class NpzPredictions(PredictionWriter):
    """Arrays ``row``, ``prediction``, ``probabilities`` and ``classes``, and further columns.

    The header of an array holds its length, which is known only at the end. Until then,
    numbers are kept in unnamed temporary files and not in memory. Arrays have no null: the
    prediction of an abstention is empty text, or the smallest 64-bit integer.
    """

    def __enter__(self) -> Self:
        self._open, self._n = ExitStack(), 0
        self._buffers: dict[str, tuple[IO[bytes], np.dtype[Any], tuple[int, ...]]] = {}
        return self

    def _append(self, table: pl.DataFrame) -> None:
        self._n += table.height
        kind, k = np.array(self._classes).dtype, len(self._classes)
        null: Label = _NO_NUMBER if kind.kind == "i" else ""
        arrays = {
            "row": table["row"].to_numpy(),
            "prediction": table["prediction"].fill_null(null).to_numpy().astype(kind),
            "probabilities": table[:, 2 : 2 + k].to_numpy(),
            **{column.name: column.to_numpy() for column in table[:, 2 + k :].iter_columns()},
        }
        for name, array in arrays.items():
            if name not in self._buffers:
                buffer = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
                self._buffers[name] = buffer, array.dtype, array.shape[1:]
            self._buffers[name][0].write(np.ascontiguousarray(array).tobytes())

    def __exit__(self, *raised: object) -> None:
        with self._open:
            if raised[0] is not None:
                return
            if not self._buffers:
                self._append(pl.DataFrame(schema=self._schema))
            with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (buffer, kind, width) in self._buffers.items():
                    header = {
                        "descr": np.lib.format.dtype_to_descr(kind),
                        "fortran_order": False,
                        "shape": (self._n, *width),
                    }
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array_header_2_0(member, header)
                        buffer.seek(0)
                        shutil.copyfileobj(buffer, member)
                with archive.open("classes.npy", "w") as member:
                    classes = np.array(self._classes)
                    np.lib.format.write_array(member, classes, allow_pickle=False)


_PREDICTIONS: Mapping[str, type[PredictionWriter]] = {
    ".csv": CsvPredictions,
    ".parquet": ParquetPredictions,
    ".npz": NpzPredictions,
}


def prediction_writer(path: Path) -> type[PredictionWriter]:
    """Return the writer for the suffix of a path, or raise."""
    return _PREDICTIONS[check_suffix(path, _PREDICTIONS)]
