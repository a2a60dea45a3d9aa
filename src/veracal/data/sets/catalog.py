"""Data sets by name: what they are, where they come from, how they load."""

import difflib
from collections.abc import Mapping

from veracal._types import Frozen
from veracal.data.sets import images, models, tables, text
from veracal.data.sets.entries import CatalogEntry
from veracal.errors import DataError

CATALOG: Mapping[str, CatalogEntry] = Frozen(
    {known.name: known for module in (tables, images, text, models) for known in module.ENTRIES}
)


def entry(name: str) -> CatalogEntry:
    """Look a data set up.

    Raises
    ------
    DataError
        If there is none of that name, with the names that come close.

    Examples
    --------
    >>> entry("breast-cancer").task
    'malignant or benign'
    """
    if name not in CATALOG:
        near = difflib.get_close_matches(name, CATALOG, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise DataError(
            "data set",
            "a name in the catalog, or the path of a file",
            repr(name),
            f"{hint}`veracal data list` shows all names.",
        )
    return CATALOG[name]
