"""Scores written to a file, from which they can be read again."""

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from veracal._types import Array
from veracal.data.files import by_suffix, placed
from veracal.data.saving import plain_ids
from veracal.data.scores import Scores
from veracal.errors import DataError

Columns = Mapping[str, Array]
Writer = Callable[[BinaryIO, str, Columns], None]
_TAKEN = re.compile(r"labels|(logits|probabilities)(_[0-9]+)?")  # names that readers look for


def save_scores(
    scores: Scores, path: str | Path, *, unit: str = "unit", force: bool = False
) -> Path:
    """Write scores to an npz, Parquet or CSV file, as its suffix says.

    :func:`load_scores`, told of the same classes, groups and unit, gives them back. A CSV file
    holds text: single precision comes back as double, and ids of units as text.

    Parameters
    ----------
    scores : Scores
        Of people, usually: keep the file like their records.
    path : path
        The file appears whole or not at all, and only its owner can read it.
    unit : str
        Column for the ids of units, where there are any.
    force : bool
        Whether a file that is there may be replaced.

    Examples
    --------
    >>> from veracal.data import load_scores
    >>> folder = getfixture("tmp_path")
    >>> scores = Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1])
    >>> load_scores(save_scores(scores, folder / "scores.parquet")).values.tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    path = Path(path)
    write = writer_for(path)
    check_names(scores, unit)
    with placed(path, force=force) as file:
        write(file, scores.kind, _columns(scores, unit))
    return path


def writer_for(path: Path) -> Writer:
    """What writes files of a suffix, or an error that names those there are."""
    return by_suffix(path, _WRITERS)


def check_names(scores: Scores, unit: str) -> None:
    """Refuse names of columns that are another's, before the work and not after it."""
    units = [] if scores.units is None else [unit]
    for name in (*scores.groups, *units):
        if _TAKEN.fullmatch(name) or (name in scores.groups and name in units):
            raise DataError(
                scores.name,
                "groups and units with names of their own",
                repr(name),
                "Rename the group, or the column of the units.",
            )


def _columns(scores: Scores, unit: str) -> Columns:
    """Everything the scores hold, by the name it has in a file."""
    columns: dict[str, Array] = {scores.kind: scores.values}
    if scores.labels is not None:
        columns["labels"] = np.asarray(scores.classes)[scores.labels]
    if scores.units is not None:
        columns[unit] = plain_ids(scores.units)
    for name, group in scores.groups.items():
        columns[name] = np.asarray(group.names)[group.codes]
    return columns


def _npz(file: BinaryIO, kind: str, columns: Columns) -> None:
    """Arrays under their names, whatever those are: numpy's own writer has arguments."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _parquet(file: BinaryIO, kind: str, columns: Columns) -> None:
    """One column of lists for the scores."""
    table = pl.DataFrame({k: _series(k, v) for k, v in columns.items()})
    try:
        table.write_parquet(file)
    except pl.exceptions.ComputeError as cause:  # what polars makes of a disk that is full
        raise OSError(str(cause)) from cause


def _csv(file: BinaryIO, kind: str, columns: Columns) -> None:
    """One column for each class, numbers written so that they come back as they are."""
    spread = {f"{kind}_{i}": values for i, values in enumerate(columns[kind].T)}
    rest = {name: values for name, values in columns.items() if name != kind}
    pl.DataFrame({k: _series(k, v) for k, v in (spread | rest).items()}).write_csv(file)


def _series(name: str, values: Array) -> pl.Series:
    """A column."""
    if values.ndim == 2:
        return pl.Series(name, np.ascontiguousarray(values))
    return pl.Series(name, values.tolist() if values.dtype.kind == "U" else values.copy())


_WRITERS: Mapping[str, Writer] = {".npz": _npz, ".parquet": _parquet, ".csv": _csv}
