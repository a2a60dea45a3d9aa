"""What the catalog says about a data set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from veracal._types import Progress
from veracal.data.dataset import Dataset, Group
from veracal.data.files import DEFAULT_LIMITS, Limits
from veracal.data.labels import TEXT, Label
from veracal.data.row_digests import DIGEST, digests_of_records
from veracal.data.schema import Schema
from veracal.data.sets.sources import Source
from veracal.errors import DataError

Kind = Literal["table", "images", "text", "model"]


@dataclass(frozen=True)
class DatasetRequest:
    """What is wanted of a named set.

    Attributes
    ----------
    folder : Path, optional
        Where the user keeps copies of public data; by default ``$VERACAL_DATA``.
    part, variant : str, optional
        Which part and which published version; by default the first of each.
    limits : Limits
        What is refused as too large before it is parsed.
    rng : Generator, optional
        For sets that are drawn at random.
    row_digests : bool
        Whether each record's identity is to be computed.
    progress : callable, optional
        Called with how much is done and how much there is.
    """

    folder: Path | None = None
    part: str | None = None
    variant: str | None = None
    limits: Limits = DEFAULT_LIMITS
    rng: np.random.Generator | None = None
    row_digests: bool = False
    progress: Progress | None = None


@dataclass(frozen=True)
class CatalogEntry:
    """A data set that is known by name.

    Attributes
    ----------
    name, title : str
        What to call it, and what it is.
    kind : 'table', 'images', 'text' or 'model'
    shape : str
        Records × features × classes, in words.
    task : str
        What is to be predicted.
    licence : str
        Terms of the data, as their publisher states them.
    sources : tuple of sources
        Where it can be had: first a folder the user has, then a package.
    loader : callable, optional
        From the entry and a request whose part and variant are set, to a data set.
    declaration : callable, optional
        From the same to what is published about the records, as a data set without any.
        Every entry with a loader has one.
    parts, variants : tuple of str
        What can be asked for, the default first.
    note : str
        What a careful user should know.
    schema : callable, optional
        Gives the declared schema, for tables.
    """

    name: str
    title: str
    kind: Kind
    shape: str
    task: str
    licence: str
    sources: tuple[Source, ...]
    loader: "Callable[[CatalogEntry, DatasetRequest], Dataset] | None" = None
    declaration: "Callable[[CatalogEntry, DatasetRequest], Dataset] | None" = None
    parts: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    note: str = ""
    schema: Callable[[], Schema] | None = None

    def load(self, request: DatasetRequest) -> Dataset:
        """Load the set, fetching it first if need be."""
        request = self._completed(request)
        assert self.loader is not None
        found = self.loader(self, request)
        if request.row_digests and found.row_digests is None:
            # Such a set is published as arrays, which are its content.
            assert not found.encoded
            return found._changed(row_digests=digests_of_records(found.X, found.y))
        return found

    def declare(self, request: DatasetRequest) -> Dataset:
        """What is published about the records: their form, classes and number, and no record.

        Everything is a constant of this catalog. Nothing is fetched, and no file is opened.
        """
        request = self._completed(request)
        assert self.declaration is not None
        return self.declaration(self, request)

    def find(self, request: DatasetRequest) -> Path:
        """Folder with the set's files, fetched if need be."""
        from veracal.data.sets.fetch import obtain  # only sets with files need it

        return obtain(self.name, self.sources, folder=request.folder, progress=request.progress)

    def _completed(self, request: DatasetRequest) -> DatasetRequest:
        """The request with part and variant, for an entry that has records."""
        if self.loader is None:
            raise DataError(
                self.name,
                "a set of records",
                f"{self.title}, which is none",
                f"Use its files: `veracal data path {self.name}` says where they are.",
            )
        part = self._chosen("part", request.part, self.parts)
        variant = self._chosen("variant", request.variant, self.variants)
        return replace(request, part=part, variant=variant)

    def _chosen(self, what: str, asked: str | None, known: tuple[str, ...]) -> str | None:
        """Return what was asked for, or the default."""
        if asked is None:
            return known[0] if known else None
        if asked not in known:
            raise DataError(
                f"{self.name}: {what}",
                "one of " + ", ".join(map(repr, known)) if known else f"no {what}",
                repr(asked),
                f"Leave it out to have {known[0]!r}." if known else "Leave it out.",
            )
        return asked


def no_records(
    row: tuple[int, ...],
    dtype: Any,
    classes: Sequence[Label],
    *,
    groups: Mapping[str, Sequence[Label]] | None = None,
    units: bool = False,
    **declared: Any,
) -> Dataset:
    """A data set without a record, of which everything is declared.

    Parameters
    ----------
    row : tuple of int
        Shape of one record.
    dtype : dtype
        Of what records hold.
    classes : sequence of str or int
    groups : mapping of str to sequence of values, optional
    units : bool
        Whether records say whom they belong to.
    **declared
        As of :class:`~veracal.data.Dataset`.
    """
    none = np.empty(0, np.int64)
    return Dataset(
        np.empty((0, *row), dtype),
        none,
        tuple(classes),
        groups={g: Group(none, tuple(map(str, names))) for g, names in (groups or {}).items()},
        units=np.empty(0, TEXT) if units else None,
        row_digests=np.empty(0, DIGEST),
        **declared,
    )
