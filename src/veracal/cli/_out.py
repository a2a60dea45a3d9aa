"""Files that commands write: whole or not at all, and over others only if told to."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from veracal._types import Array
from veracal.calibration.maps import Map
from veracal.data.files import new_file
from veracal.data.limits import no_surprises
from veracal.data.scores import Scores
from veracal.errors import DataError

Columns = Mapping[str, Array]


def check_place(path: Path, *, force: bool) -> None:
    """Refuse a place where a file could not be put, before the work and not after it."""
    with no_surprises(path):
        replaceable = force and path.is_file() and not path.is_symlink()
    if not replaceable:
        new_file(path)


@contextmanager
def placed(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Open a file that appears under its name once everything is written.

    It is for its owner's eyes only. If writing fails, what was there stays.

    Parameters
    ----------
    path : path
    force : bool
        Whether the file may take the place of one that is there.
    """
    check_place(path, force=force)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if force:
                Path(temporary).replace(path)
            else:
                os.link(temporary, path)  # fails if somebody was quicker
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as cause:
        raise DataError(
            str(path), "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause


def save_map(map_: Map, path: Path, *, force: bool = False) -> None:
    """Write a map as :func:`veracal.calibration.maps.save_map` does."""
    with placed(path, force=force) as file:
        file.write((json.dumps(map_.to_json(), allow_nan=False) + "\n").encode())


def save_scores(scores: Scores, path: Path, *, unit: str = "unit", force: bool = False) -> None:
    """Write scores to an npz, Parquet or CSV file, as its suffix says.

    ``load_scores(path)``, with the same classes, groups and unit, gives them back.

    Parameters
    ----------
    scores : Scores
    path : path
    unit : str
        Column for the ids of units, where there are any.
    force : bool
        Whether a file that is there may be replaced.
    """
    write = writer(path)
    columns = _columns(scores, unit)
    with placed(path, force=force) as file:
        write(file, scores.kind, columns)


def writer(path: Path) -> Callable[[BinaryIO, str, Columns], None]:
    """What writes files of a suffix, or an error that names those there are."""
    found = _WRITERS.get(path.suffix.lower())
    if found is None:
        raise DataError(
            str(path),
            f"a file that ends in {', '.join(_WRITERS)}",
            repr(path.suffix) if path.suffix else "no suffix",
            "Name it so; the suffix says how it is written.",
        )
    return found


def check_columns(scores: Scores, unit: str) -> None:
    """Refuse names that two columns would share, before the work and not after it."""
    taken = ["labels", scores.kind, *(f"{scores.kind}_{i}" for i in range(scores.n_classes))]
    taken += [unit] if scores.units is not None else []
    for name in scores.groups:
        if name in taken:
            raise DataError(
                scores.name, "groups with names of their own", repr(name), "Rename the group."
            )


def _columns(scores: Scores, unit: str) -> Columns:
    """Everything the scores hold, by the name it has in a file."""
    check_columns(scores, unit)
    columns: dict[str, Array] = {scores.kind: scores.values}
    if scores.labels is not None:
        columns["labels"] = np.asarray(scores.classes)[scores.labels]
    if scores.units is not None:
        columns[unit] = _plain(scores.units)
    for name, group in scores.groups.items():
        columns[name] = np.asarray(group.names)[group.codes]
    return columns


def _npz(file: BinaryIO, kind: str, columns: Columns) -> None:
    """Arrays under their names."""
    np.savez_compressed(file, **columns)  # type: ignore[arg-type]


def _parquet(file: BinaryIO, kind: str, columns: Columns) -> None:
    """One column of lists for the scores."""
    pl.DataFrame({k: _series(k, v) for k, v in columns.items()}).write_parquet(file)


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


def _plain(ids: Array) -> Array:
    """Ids in a type that npz files hold without pickling."""
    return np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind == "T" else ids


_WRITERS: Mapping[str, Callable[[BinaryIO, str, Columns], None]] = {
    ".npz": _npz,
    ".parquet": _parquet,
    ".csv": _csv,
}
