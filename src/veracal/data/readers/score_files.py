"""Scores of anybody's model, from a file."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from veracal._types import Array, Progress
from veracal.data.dataset import Group
from veracal.data.labels import Label
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.readers.formats import read_table
from veracal.data.scores import Kind, Scores
from veracal.errors import DataError


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

    The file has ``logits`` or ``probabilities`` (a two-dimensional array, a list column, or
    columns ``logits_0``, ``logits_1``, …) and, if they are known, ``labels``.

    Parameters
    ----------
    classes : sequence of str or int, optional
        How labels are written; by default 0, …, k-1.
    groups : mapping of column to its declared values, optional
    unit : str, optional
        Column that says whom a row belongs to.
    part : str, optional
        Where one file holds several sets, the suffix of its arrays: with 'test', the arrays
        ``logits_test`` and ``labels_test``.
    rows : int
        Most records at a time.
    """
    path, ending = Path(path), "" if part is None else f"_{part}"
    for frame in _of_part(path, ending, rows, limits, progress):
        limits.check("rows", frame.height, path)
        for piece in frame.iter_slices(rows):
            yield _scores(piece, path, ending, classes, groups or {}, unit)


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
    parts, taken = [], 0
    for scores in scan_scores(
        path,
        classes=classes,
        groups=groups,
        unit=unit,
        part=part,
        limits=limits,
        progress=progress,
    ):
        taken += scores.values.nbytes
        limits.check("memory_bytes", taken, path)
        parts.append(scores)
    if not parts:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return join_scores(parts)


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Join scores of one declaration, row after row."""
    first = parts[0]
    make = Scores.from_logits if first.kind == "logits" else Scores.from_probabilities
    names = np.asarray(first.classes)
    return make(
        np.concatenate([part.values for part in parts]),
        None
        if first.labels is None
        else names[np.concatenate([p.known_labels for p in parts])],
        classes=first.classes,
        groups={
            name: Group(
                np.concatenate([part.groups[name].codes for part in parts]), group.names
            )
            for name, group in first.groups.items()
        },
        units=(None if first.units is None else np.concatenate([part.units for part in parts])),
        name=first.name,
    )


def _of_part(
    path: Path, ending: str, rows: int, limits: Limits, progress: Progress | None
) -> Iterator[pl.DataFrame]:
    """Stream a file; from an npz with several sets, only the arrays of one."""
    if path.suffix.lower() != ".npz" or not ending:
        return read_table(path, rows=rows, limits=limits, progress=progress)
    from veracal.data.readers.arrays import read_npz
    from veracal.data.readers.tables import frame_of_arrays

    arrays = {k: a for k, a in read_npz(path, limits).items() if k.endswith(ending)}
    if not arrays:
        raise DataError(str(path), f"arrays ending in {ending!r}", "none", "Check the part.")
    return iter([frame_of_arrays(arrays, path, limits)])


def _scores(
    frame: pl.DataFrame,
    path: Path,
    ending: str,
    classes: Sequence[Label] | None,
    groups: Mapping[str, Sequence[Label]],
    unit: str | None,
) -> Scores:
    """Make scores of some rows."""
    kind, values = _values(frame, path, ending)
    make = Scores.from_logits if kind == "logits" else Scores.from_probabilities
    for name in (*groups, *((unit,) if unit else ())):
        if name not in frame.columns:
            raise DataError(str(path), f"a column {name!r}", "none", "Check the spelling.")
    labels = frame[f"labels{ending}"] if f"labels{ending}" in frame.columns else None
    return make(
        values,
        None if labels is None else _plain(labels),
        classes=classes,
        groups={name: Group.from_values(_plain(frame[name]), v) for name, v in groups.items()},
        units=None if unit is None else _plain(frame[unit]),
        name=path.name,
    )


def _values(frame: pl.DataFrame, path: Path, ending: str) -> tuple[Kind, Array]:
    """Find the scores among the columns."""
    kinds: tuple[Kind, ...] = ("logits", "probabilities")
    for kind in kinds:
        name = f"{kind}{ending}"
        if name in frame.columns:
            return kind, _matrix(frame[name], path)
        spread = [f"{name}_{i}" for i in range(frame.width) if f"{name}_{i}" in frame.columns]
        if spread:
            columns = frame.select(pl.col(spread).cast(pl.Float64, strict=False))
            return kind, columns.fill_null(np.nan).to_numpy()
    raise DataError(
        str(path),
        "logits or probabilities",
        f"only {', '.join(map(repr, frame.columns[:8]))}",
        "Name the columns so; with several sets in one file, name the part.",
    )


def _matrix(values: pl.Series, path: Path) -> Array:
    """Turn a list column into a matrix."""
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
    return values.to_numpy()


def _plain(values: pl.Series) -> Array:
    """Hand a column to numpy; an unknown value becomes one that nobody declared."""
    if values.dtype.is_numeric():
        return values.to_numpy()
    return (
        values.cast(pl.String).fill_null("(missing)").to_numpy().astype(np.dtypes.StringDType())
    )
