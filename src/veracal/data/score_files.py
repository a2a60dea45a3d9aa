"""Scores in files: saved ones, and scores of any model."""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from veracal._types import Array, Progress
from veracal.data.arrays import read_npz
from veracal.data.dataset import Group
from veracal.data.files import DEFAULT_LIMITS, Limits, atomic_file, by_suffix
from veracal.data.formats import read_table
from veracal.data.labels import TEXT, Label, read_only
from veracal.data.saving import plain_ids
from veracal.data.scores import Kind, Scores
from veracal.data.tables import arrays_to_frame
from veracal.errors import DataError

Columns = Mapping[str, Array]
Writer = Callable[[BinaryIO, str, Columns], None]
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
    write = score_writer(path)
    check_score_columns(scores, unit)
    with atomic_file(path, force=force) as file:
        write(file, scores.kind, _columns(scores, unit))
    return path


def score_writer(path: Path) -> Writer:
    """Return the writer for the suffix of a path, or raise."""
    return by_suffix(path, _WRITERS)


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


def _columns(scores: Scores, unit: str) -> Columns:
    """Arrays of the scores by their names in a file."""
    columns: dict[str, Array] = {scores.kind: scores.values}
    if scores.labels is not None:
        columns["labels"] = np.asarray(scores.classes)[scores.labels]
    if scores.units is not None:
        columns[unit] = plain_ids(scores.units)
    for name, group in scores.groups.items():
        columns[name] = np.asarray(group.names)[group.codes]
    return columns


def _npz(file: BinaryIO, kind: str, columns: Columns) -> None:
    """Write arrays under any name; ``numpy.savez`` reserves its argument names."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _parquet(file: BinaryIO, kind: str, columns: Columns) -> None:
    """Write the scores as a column of lists."""
    table = pl.DataFrame({k: _series(k, v) for k, v in columns.items()})
    try:
        table.write_parquet(file)
    except pl.exceptions.ComputeError as cause:  # raised by polars for a full disk
        raise OSError(str(cause)) from cause


def _csv(file: BinaryIO, kind: str, columns: Columns) -> None:
    """Write one column for each class, with numbers that are read back exactly."""
    by_class = {f"{kind}_{i}": values for i, values in enumerate(columns[kind].T)}
    rest = {name: values for name, values in columns.items() if name != kind}
    pl.DataFrame({k: _series(k, v) for k, v in (by_class | rest).items()}).write_csv(file)


def _series(name: str, values: Array) -> pl.Series:
    """Convert an array to a column."""
    if values.ndim == 2:
        return pl.Series(name, np.ascontiguousarray(values))
    return pl.Series(name, values.tolist() if values.dtype.kind == "U" else values.copy())


_WRITERS: Mapping[str, Writer] = {".npz": _npz, ".parquet": _parquet, ".csv": _csv}


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
    start, k = 0, None
    for frame in _frames(path, ending, rows, limits, progress):
        limits.check("rows", start + frame.height, path)
        for piece in frame.iter_slices(rows):
            with _offset_records(start):
                scores = _scores(piece, path, ending, classes, groups or {}, unit)
            if k not in (None, scores.n_classes):
                raise DataError(
                    str(path),
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
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return join_scores(parts)


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Concatenate scores with the same classes and groups."""
    first = parts[0]
    return Scores(
        read_only(np.concatenate([part.values for part in parts])),
        first.kind,
        first.classes,
        labels=(
            None
            if first.labels is None
            else np.concatenate([part.known_labels for part in parts])
        ),
        groups={
            name: Group(
                np.concatenate([part.groups[name].codes for part in parts]), group.names
            )
            for name, group in first.groups.items()
        },
        units=(None if first.units is None else np.concatenate([part.units for part in parts])),
        name=first.name,
    )


@contextmanager
def _offset_records(start: int) -> Iterator[None]:
    """Translate record numbers in errors about a batch to numbers in the file."""
    try:
        yield
    except DataError as error:
        message = _RECORD.sub(lambda number: str(int(number[0]) + start), error.found)
        raise type(error)(error.where, error.expected, message, error.remedy) from error


def _frames(
    path: Path, ending: str, rows: int, limits: Limits, progress: Progress | None
) -> Iterator[pl.DataFrame]:
    """Stream a file; of an npz file with several sets, only the arrays of one."""
    if path.suffix.lower() != ".npz":
        return read_table(path, rows=rows, limits=limits, progress=progress)
    arrays = {k: a for k, a in read_npz(path, limits).items() if k.endswith(ending)}
    if not arrays:
        raise DataError(str(path), f"arrays ending in {ending!r}", "none", "Check the part.")
    for kind in _KINDS:
        scores = arrays.get(f"{kind}{ending}")
        if scores is not None and scores.ndim > 2:
            raise DataError(
                f"{path}: {kind}{ending}",
                "shape (n, k), or (n,) for two classes",
                f"shape {scores.shape}",
                "Save one row for each record.",
            )
    return iter([arrays_to_frame(arrays, path, limits)])


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
            raise DataError(str(path), f"a column {name!r}", "none", "Check the spelling.")
    labels = f"labels{ending}"
    if labels not in frame.columns:
        used = {*groups, unit}
        _check_unlabeled([name for name in frame.columns if name not in used], labels, path)

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


def _check_unlabeled(columns: Sequence[str], labels: str, path: Path) -> None:
    """Reject a file whose labels seem to have another name, instead of ignoring them."""
    for name in columns:
        if name.lower() in [labels.replace("labels", often, 1) for often in _LABEL_ALIASES]:
            raise DataError(
                str(path),
                f"labels in a column {labels!r}, or none",
                f"a column {name!r}",
                f"Rename it to {labels!r} if it holds the labels, else to another name.",
            )


def _values(frame: pl.DataFrame, path: Path, ending: str) -> tuple[Kind, Array]:
    """Find the scores among the columns."""
    by_kind = {
        kind: columns
        for kind in _KINDS
        if (columns := _score_columns(frame, f"{kind}{ending}", path))
    }
    if len(by_kind) == 1:
        kind, columns = next(iter(by_kind.items()))
        if columns == [f"{kind}{ending}"]:
            return kind, _matrix(frame[columns[0]], path)
        single = all(frame[column].dtype == pl.Float32 for column in columns)
        arrays = [_numbers(frame[column], path, single=single) for column in columns]
        return kind, np.stack(arrays, 1)
    listed = ", ".join(map(repr, frame.columns[:8]))
    raise DataError(
        str(path),
        "logits or probabilities",
        "both" if by_kind else f"only {listed}",
        "Keep those that the model returned, and remove the others."
        if by_kind
        else "Rename the columns; with several sets in one file, name the part.",
    )


def _score_columns(frame: pl.DataFrame, name: str, path: Path) -> list[str]:
    """Columns with scores of one kind: one of that name, or numbered ones without a gap."""
    pattern = re.compile(rf"{re.escape(name)}(_[0-9]+)?")
    columns = [column for column in frame.columns if pattern.fullmatch(column)]
    expected = [f"{name}_{i}" for i in range(len(columns))]
    if columns == [name] or not columns:
        return columns
    if set(columns) == set(expected):
        return expected
    raise DataError(
        str(path),
        f"one column {name!r}, or one for each class from {name}_0 on, without a gap",
        ", ".join(map(repr, columns[:8])),
        "Number the columns in the order of the classes.",
    )


def _matrix(values: pl.Series, path: Path) -> Array:
    """Convert a column of lists to a matrix, and a column of numbers to a vector."""
    if isinstance(values.dtype, pl.List):
        lengths = values.list.len().unique().to_list()
        if len(lengths) != 1 or lengths[0] is None:
            raise DataError(
                f"{path}: {values.name}",
                "lists of one length",
                f"{lengths[:5]}",
                "Correct them.",
            )
        values = values.list.to_array(lengths[0])
    if isinstance(values.dtype, pl.Array):
        return values.to_numpy()
    return _numbers(values, path, single=values.dtype == pl.Float32)


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
