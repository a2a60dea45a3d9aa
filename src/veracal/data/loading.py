"""From a name or a path to a data set."""

from pathlib import Path

import numpy as np

from veracal._types import Progress
from veracal.data.dataset import Dataset, concatenate
from veracal.data.encode import encode_nothing
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.readers.formats import stated_rows
from veracal.data.readers.images import ImageForm, load_images
from veracal.data.readers.mapped import array_folder, load_mapped
from veracal.data.readers.text import TextForm, load_text
from veracal.data.scanning import declared_schema, scan
from veracal.data.schema import Schema
from veracal.data.units import limit_contributions
from veracal.data.worth import check_worth
from veracal.errors import DataError


def load(
    what: str | Path,
    *,
    schema: Schema | ImageForm | TextForm | str | Path | None = None,
    part: str | None = None,
    variant: str | None = None,
    folder: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    rng: np.random.Generator | None = None,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load a known data set by its name, or a file of records through its schema.

    Parameters
    ----------
    what : str or Path
        A name that ``veracal data list`` shows, or the path of a CSV, TSV, Parquet, Arrow
        or npz file, of a folder with ``X.npy`` and ``y.npy``, which stays on disk, of a
        folder or zip of images, or of a file of sentences.
    schema : Schema or path of one, ImageForm or TextForm
        What is publicly known about the file. Named sets bring their own.
    part, variant : str, optional
        For named sets: which part ('train', 'test', …) and which published version. A
        part may also be asked of images whose form finds it in their path.
    folder : path, optional
        Where the user keeps copies of named sets; by default ``$VERACAL_DATA``.
    limits : Limits
        What is refused as too large before it is parsed.
    rng : Generator, optional
        For sets that are drawn at random, and for the choice of rows where a unit has more
        than the schema allows. By default from secret entropy.
    row_digests : bool
        Whether to compute the identity of each record, which splitting by a key or by a
        ledger's assignment needs where rows have no unit ids: a digest of the declared
        columns' cells as the file holds them, or of an image file's bytes.
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
        return _load_named(
            what, schema, part, variant, folder, limits, rng, row_digests, progress
        )
    path = Path(what)
    if variant is not None:
        raise ValueError(f"Expected no variant for a file, got variant={variant!r}.")
    if isinstance(schema, ImageForm):
        return load_images(
            path,
            schema,
            part=part,
            limits=limits,
            row_digests=row_digests,
            progress=progress,
        )
    if part is not None:
        raise ValueError(f"Expected no part for such a file, got part={part!r}.")
    if isinstance(schema, TextForm):
        return load_text(
            path, schema, limits=limits, row_digests=row_digests, progress=progress
        )
    declared = declared_schema(schema, path, limits)
    if (folder_of_arrays := array_folder(path)) is not None:
        whole = load_mapped(folder_of_arrays, declared, limits, row_digests=row_digests)
    else:
        whole = _gather(path, declared, limits, progress, row_digests)
    check_worth(whole, path)
    return limit_contributions(whole, at_most=declared.at_most, rng=rng)


def declare(what: str | Path, *, schema: Schema | None = None) -> Dataset:
    """What is declared about the records that :func:`load` would read, and none of them.

    Parameters
    ----------
    what : str or Path
        As of :func:`load`. The file itself is not opened, and nothing is fetched.
    schema : Schema, optional
        Of a file. Named sets bring what is published about them.

    Returns
    -------
    Dataset
        Without a row; its form, classes, groups, name and declared figures are those of the
        loaded records.

    Examples
    --------
    >>> declare("breast-cancer").X.shape
    (0, 30)
    """
    if isinstance(what, str) and _is_name(what):
        from veracal.data.sets.catalog import Request, entry

        _check_no_schema(what, schema)
        return entry(what).declare(Request())
    return encode_nothing(declared_schema(schema, Path(what), DEFAULT_LIMITS), where=str(what))


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
    row_digests: bool,
    progress: Progress | None,
) -> Dataset:
    """Load an entry of the catalog."""
    from veracal.data.sets.catalog import Request, entry  # it knows all loaders, this one too

    _check_no_schema(name, schema)
    where = None if folder is None else Path(folder)
    request = Request(
        folder=where,
        part=part,
        variant=variant,
        limits=limits,
        rng=rng,
        row_digests=row_digests,
        progress=progress,
    )
    return entry(name).load(request)


def _check_no_schema(name: str, schema: object) -> None:
    """Refuse a schema for a named set."""
    if schema is not None:
        raise ValueError(f"Expected no schema for {name!r}, which brings its own.")


def _gather(
    path: Path,
    schema: Schema,
    limits: Limits,
    progress: Progress | None,
    row_digests: bool,
) -> Dataset:
    """Collect a streamed file, within the limit on memory."""
    stated = stated_rows(path, limits)
    if stated is not None:  # a few bytes can state a billion rows
        limits.check("memory_bytes", 8 * stated * len(schema.feature_names), path)
    parts, taken = [], 0
    for batch in scan(path, schema, limits=limits, row_digests=row_digests, progress=progress):
        taken += _held_bytes(batch)
        limits.check("memory_bytes", taken, path)
        parts.append(batch)
    if not parts:
        raise DataError(str(path), "at least one record", "none", "Name a file with records.")
    return concatenate(parts)


def _held_bytes(batch: Dataset) -> int:
    """Bytes that a batch takes; an array of text says only those of its pointers."""
    texts = [a for a in (batch.X[:], batch.units) if a is not None and a.dtype.kind == "T"]
    return batch.X.nbytes + sum(int(np.strings.str_len(text).sum()) for text in texts)
