"""The record of a published data set in the catalog."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.datasets.sources import Source
from veracal._types import Progress
from veracal.data import (
    DEFAULT_LIMITS,
    TEXT,
    Dataset,
    Group,
    Label,
    Limits,
    Schema,
    digests_of_records,
)
from veracal.errors import DataError

Kind = Literal["table", "images", "text", "model"]


@dataclass(frozen=True)
class DatasetRequest:
    """Which part and version of a published set to load, and how.

    Attributes
    ----------
    folder : Path, optional
        Where the user keeps copies of public data; by default ``$VERACAL_DATA``.
    part, variant : str, optional
        Partition and published version; by default the first of each.
    limits : Limits
        Bounds that are checked before a file is parsed.
    row_digests : bool
        Whether to compute each record's digest.
    progress : callable, optional
        Called with the amount done and the total.
    """

    folder: Path | None = None
    part: str | None = None
    variant: str | None = None
    limits: Limits = DEFAULT_LIMITS
    row_digests: bool = False
    progress: Progress | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """A published data set.

    Attributes
    ----------
    name, title : str
        Name to load it by, and a short description.
    kind : 'table', 'images', 'text' or 'model'
    shape : str
        Records × features × classes, as text.
    task : str
        What is to be predicted.
    license : str
        Terms of the data, as their publisher states them.
    sources : tuple of sources
        Where the files come from: a folder of the user first, then a package.
    loader : callable, optional
        Maps the entry and a request with part and variant to a data set.
    declaration : callable, optional
        Maps the same to the published facts, as a data set without records. Every entry with
        a loader has one.
    parts, variants : tuple of str
        Partitions and versions that can be requested, the default first.
    note : str
        What a careful user should know.
    schema : callable, optional
        Returns the declared schema of a table.
    """

    name: str
    title: str
    kind: Kind
    shape: str
    task: str
    license: str
    sources: tuple[Source, ...]
    loader: "Callable[[CatalogEntry, DatasetRequest], Dataset] | None" = None
    declaration: "Callable[[CatalogEntry, DatasetRequest], Dataset] | None" = None
    parts: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    note: str = ""
    schema: Callable[[], Schema] | None = None

    def load(self, request: DatasetRequest) -> Dataset:
        """Load the set, fetching it first if necessary."""
        request = self._complete(request)
        assert self.loader is not None
        dataset = self.loader(self, request)
        if request.row_digests and dataset.row_digests is None:
            # Sets without digests are published as arrays, which are their content.
            assert not dataset.encoded
            return dataset._changed(row_digests=digests_of_records(dataset.X, dataset.y))
        return dataset

    def declare(self, request: DatasetRequest) -> Dataset:
        """Return the published form, classes and size as a data set without records.

        Everything is a constant of this catalog. Nothing is fetched, and no file is opened.
        """
        request = self._complete(request)
        assert self.declaration is not None
        return self.declaration(self, request)

    def find(self, request: DatasetRequest) -> Path:
        """Return the folder with the set's files, fetching them if necessary."""
        from benchmarks.datasets.downloads import obtain  # only sets with files need it

        return obtain(self.name, self.sources, folder=request.folder, progress=request.progress)

    def _complete(self, request: DatasetRequest) -> DatasetRequest:
        """Fill in the default part and variant; raise for an entry without records."""
        if self.loader is None:
            raise DataError(
                self.name,
                "a set of records",
                f"{self.title}, which has no records",
                f"Use its files: `python -m benchmarks.datasets fetch {self.name}`.",
            )
        part = self._choose("part", request.part, self.parts)
        variant = self._choose("variant", request.variant, self.variants)
        return replace(request, part=part, variant=variant)

    def _choose(self, kind: str, value: str | None, known: tuple[str, ...]) -> str | None:
        """Return the requested part or variant, or the default."""
        if value is None:
            return known[0] if known else None
        if value not in known:
            raise DataError(
                f"{self.name}: {kind}",
                "one of " + ", ".join(map(repr, known)) if known else f"no {kind}",
                repr(value),
                f"Leave it out to get {known[0]!r}." if known else "Leave it out.",
            )
        return value


def empty_dataset(
    row: tuple[int, ...],
    dtype: Any,
    classes: Sequence[Label],
    *,
    groups: Mapping[str, Sequence[Label]] | None = None,
    units: bool = False,
    **declared: Any,
) -> Dataset:
    """Return a data set without records that carries declared facts.

    Parameters
    ----------
    row : tuple of int
        Shape of one record.
    dtype : dtype
        Type of the entries of a record.
    classes : sequence of str or int
    groups : mapping of str to sequence of values, optional
    units : bool
        Whether records carry unit ids.
    **declared
        Further fields of :class:`~veracal.data.Dataset`.
    """
    none = np.empty(0, np.int64)
    return Dataset(
        np.empty((0, *row), dtype),
        none,
        tuple(classes),
        groups={g: Group(none, tuple(map(str, names))) for g, names in (groups or {}).items()},
        units=np.empty(0, TEXT) if units else None,
        row_digests=np.empty(0, "V16"),
        **declared,
    )
