"""Published data sets by name."""

import difflib
from collections.abc import Mapping
from pathlib import Path

import veracal.data
from benchmarks.datasets import images, models, packaged_tables, tables, text
from benchmarks.datasets.entries import CatalogEntry, DatasetRequest
from veracal._types import Frozen, Progress
from veracal.data import DEFAULT_LIMITS, Dataset, Limits
from veracal.errors import DataError

CATALOG: Mapping[str, CatalogEntry] = Frozen(
    {
        known.name: known
        for module in (tables, packaged_tables, images, text, models)
        for known in module.ENTRIES
    }
)


def entry(name: str) -> CatalogEntry:
    """Look up a published data set.

    Raises
    ------
    DataError
        If there is no set of that name; the message lists similar names.
    """
    if name not in CATALOG:
        similar = difflib.get_close_matches(name, CATALOG, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
        raise DataError(
            "data set",
            "a name in the catalog",
            repr(name),
            f"{hint}`python -m benchmarks.datasets list` shows all names.",
        )
    return CATALOG[name]


def load(
    name: str,
    *,
    part: str | None = None,
    variant: str | None = None,
    folder: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    row_digests: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Load a published set, or one that is built into Veracal, by its name.

    Parameters
    ----------
    name : str
    part, variant : str, optional
        Partition ('train', 'test', …) and published version; by default the first of each.
    folder : path, optional
        Where the user keeps copies of public data; by default ``$VERACAL_DATA``.
    limits : Limits
    row_digests : bool
    progress : callable, optional
        As of :func:`veracal.data.load`.
    """
    if name in veracal.data.CATALOG:
        return veracal.data.load(name, part=part, variant=variant, row_digests=row_digests)
    place = None if folder is None else Path(folder)
    request = DatasetRequest(place, part, variant, limits, row_digests, progress)
    return entry(name).load(request)
