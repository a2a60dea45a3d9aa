"""From a name or a path to a data set."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from veracal import _checks
from veracal.data.arrays import load_array_folder
from veracal.data.columns import Ignore, Vector
from veracal.data.dataset import Dataset, concatenate
from veracal.data.encode import encode
from veracal.data.formats import read_table
from veracal.data.limits import DEFAULT_LIMITS, Limits, no_surprises
from veracal.data.rows import MappedRows
from veracal.data.schema import Schema
from veracal.data.tables import Progress
from veracal.data.units import limit_contributions
from veracal.errors import DataError


def load(
    what: str | Path,
    *,
    schema: Schema | str | Path | None = None,
    part: str | None = None,
    variant: str | None = None,
    folder: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load a known data set by its name, or a file of records through its schema.

    Parameters
    ----------
    what : str or Path
        A name that ``veracal data list`` shows, or the path of a CSV, TSV, Parquet, Arrow
        or npz file, or of a folder with ``X.npy`` and ``y.npy``, which stays on disk.
    schema : Schema or path of one
        What is publicly known about the file. Named sets bring their own.
    part, variant : str, optional
        For named sets: which part ('train', 'test', …) and which published version.
    folder : path, optional
        Where the user keeps copies of named sets; by default ``$VERACAL_DATA``.
    limits : Limits
        What is refused as too large before it is parsed.
    rng : Generator, optional
        For sets that are drawn at random, and for the choice of rows where a unit has more
        than the schema allows. By default from secret entropy.
    progress : callable, optional
        Called with how much is done and how much there is.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If anything is not as declared. Nothing is returned then, not even a part.

    Examples
    --------
    >>> load("breast-cancer").classes
    ('malignant', 'benign')
    """
    if isinstance(what, str) and _is_name(what):
        return _load_named(what, schema, part, variant, folder, limits, rng, progress)
    path = Path(what)
    for word, value in (("part", part), ("variant", variant)):
        if value is not None:
            raise ValueError(f"Expected no {word} for a file, got {word}={value!r}.")
    declared = _declared(schema, path, limits)
    if (array_folder := _array_folder(path)) is not None:
        whole = _load_mapped(array_folder, declared, limits)
    else:
        whole = _gather(path, declared, limits, progress)
    _check_worth(whole, path)
    return limit_contributions(whole, at_most=declared.at_most, rng=rng)


def scan(
    path: str | Path,
    schema: Schema | str | Path,
    *,
    rows: int = 65_536,
    limits: Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> Iterator[Dataset]:
    """Stream a file of records through its schema, at most ``rows`` of them at a time.

    Memory does not grow with the file. Limits on rows per unit need the whole file and are
    not applied here: each batch has ``at_most=None``.
    """
    _checks.whole(rows=rows)
    path = Path(path)
    declared = _declared(schema, path, limits)
    if (array_folder := _array_folder(path)) is not None:
        yield from _load_mapped(array_folder, declared, limits).batches(rows)
        return
    start = 0
    frames = read_table(
        path,
        header=declared.header,
        names=_written_names(declared),
        separator=declared.separator,
        ignored=[name for name, c in declared.columns.items() if isinstance(c, Ignore)],
        rows=rows,
        limits=limits,
        progress=progress,
    )
    for frame in frames:
        limits.check("rows", start + frame.height, path)
        for piece in frame.iter_slices(rows):
            yield encode(piece, declared, where=path.name, start=start)
            start += piece.height


def _is_name(what: str) -> bool:
    """Tell a name from a path: names have neither a suffix nor a separator."""
    return not Path(what).suffix and len(Path(what).parts) == 1 and not Path(what).exists()


def _load_named(
    name: str,
    schema: object,
    part: str | None,
    variant: str | None,
    folder: str | Path | None,
    limits: Limits,
    rng: np.random.Generator | None,
    progress: Progress | None,
) -> Dataset:
    """Load an entry of the catalog."""
    from veracal.data.catalog import (
        Request,
        entry,
    )  # the catalog knows all loaders: import late

    if schema is not None:
        raise ValueError(f"Expected no schema for {name!r}, which brings its own.")
    where = None if folder is None else Path(folder)
    request = Request(
        folder=where, part=part, variant=variant, limits=limits, rng=rng, progress=progress
    )
    return entry(name).load(request)


def _declared(schema: Schema | str | Path | None, path: Path, limits: Limits) -> Schema:
    """Return the schema, from its file if need be."""
    if schema is None:
        raise DataError(
            str(path),
            "a schema: bounds, categories and classes that are publicly known",
            "none",
            "Nothing is inferred from records. Start from `veracal schema draft FILE`, replace "
            "what it read by public knowledge, and pass schema=.",
        )
    return schema if isinstance(schema, Schema) else Schema.load(schema, limits=limits)


def _written_names(schema: Schema) -> list[str]:
    """Columns of a file without a header: a vector stands for as many as it has entries."""
    return [
        written
        for name, column in schema.columns.items()
        for written in (column.feature_names(name) if isinstance(column, Vector) else (name,))
    ]


def _gather(path: Path, schema: Schema, limits: Limits, progress: Progress | None) -> Dataset:
    """Collect a streamed file, within the limit on memory."""
    parts, taken = [], 0
    for batch in scan(path, schema, limits=limits, progress=progress):
        taken += batch.X.nbytes
        limits.check("memory_bytes", taken, path)
        parts.append(batch)
    if not parts:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return concatenate(parts)


def _array_folder(path: Path) -> Path | None:
    """Folder with ``X.npy`` that a path means, if it means one."""
    if path.suffix.lower() == ".npy":
        return path.parent
    with no_surprises(path):
        return path if path.is_dir() else None


def _load_mapped(folder: Path, schema: Schema, limits: Limits) -> Dataset:
    """Open a matrix on disk whose rows are used as they are, once they are checked."""
    column = schema.columns.get("X")
    if not isinstance(column, Vector) or (column.shift, column.scale) != (0, 1):
        raise DataError(
            str(folder),
            "the schema to declare X as a vector with center = 0 and spread = 1",
            repr(column)[:80],
            "Rows of a matrix on disk are not rescaled: say so, or load an npz file.",
        )
    dataset = load_array_folder(
        folder,
        classes=schema.classes,
        groups={
            name: schema.groups[name].names(schema.columns[g.column])
            for name, g in schema.groups.items()
        },
        limits=limits,
        size=schema.size,
        name=schema.name,
    )
    if (dataset.units is None) != (schema.unit is None):
        raise DataError(
            str(folder),
            "units.npy exactly when the schema declares a unit",
            "only one of the two",
            "Add the file, or declare its column as kind = 'unit'.",
        )
    _check_mapped(dataset.X, column, schema.norm, folder)
    return dataset.changed(norm=schema.norm, feature_names=column.feature_names("X"))


def _check_mapped(rows: object, column: Vector, norm: float | None, folder: Path) -> None:
    """Check rows on disk against their declared bounds, a window at a time."""
    assert isinstance(rows, MappedRows)
    if rows.shape[1:] != (column.size,):
        raise DataError(
            str(folder / "X.npy"),
            f"rows of {column.size} numbers",
            f"{rows.shape[1:]}",
            "Correct size.",
        )
    start = 0
    for window in rows.windows(65_536):
        wrong = (window < column.lower).any(axis=1) | (window > column.upper).any(axis=1)
        expected = f"numbers in [{column.lower:g}, {column.upper:g}]"
        if norm is not None and not wrong.any():
            wrong = np.linalg.norm(window.astype(np.float64), axis=1) > norm
            expected = f"rows of norm at most {norm:g}"
        if wrong.any():
            raise DataError(
                str(folder / "X.npy"),
                expected,
                f"another in record {start + int(np.argmax(wrong)) + 1}",
                "Correct the file or the schema.",
            )
        start += len(window)


def _check_worth(dataset: Dataset, path: Path) -> None:
    """Refuse records from which nothing can be learnt: none, or all of one class."""
    if not len(dataset):
        raise DataError(
            str(path), "at least one record", "none left", "Look at what is dropped as missing."
        )
    if (dataset.y == dataset.y[0]).all():
        raise DataError(
            str(path),
            "records of at least two classes",
            f"only {dataset.classes[dataset.y[0]]!r}",
            "Check the target column.",
        )
