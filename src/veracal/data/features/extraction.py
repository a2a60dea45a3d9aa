"""Records as vectors: what a frozen network makes of each picture or text."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from veracal._types import Array, Floats, Progress
from veracal.data.dataset import Dataset
from veracal.data.features.cache import Entry, records_key
from veracal.data.features.networks import EfficientNetLite0, MiniLM
from veracal.data.fixed_shape import Score
from veracal.data.limits import DEFAULT_LIMITS, Limits
from veracal.data.places import cache_folder, cache_secret, private_folder
from veracal.data.row_digests import digests_of_records
from veracal.data.rows import MappedRows
from veracal.errors import DataError

__all__ = ["EfficientNetLite0", "Extractor", "MiniLM", "extract"]


class Extractor(Protocol):
    """A frozen record of how features are made; its settings are its fields.

    Whoever writes one promises that ``scorer`` treats each row by itself, and that
    ``fingerprint`` leaves out nothing that could change a feature but the record.
    """

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def dimension(self) -> int:
        """Numbers in one feature."""

    @property
    def block(self) -> int:
        """Records handed over at a time."""

    @property
    def norm(self) -> float | None:
        """Bound on the Euclidean norm of a feature that its settings promise, if any."""

    def check(self, X: Array | MappedRows, where: str) -> None:
        """Raise a :class:`DataError` for records of another kind, before reading them."""

    def fingerprint(self) -> dict[str, str | int]:
        """Everything but the record that a feature depends on."""

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network, for records of one shape."""


def extract(
    dataset: Dataset,
    extractor: Extractor,
    *,
    cache: Path | str | Literal[False] | None = None,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Dataset:
    """Replace pictures or texts by the vectors a frozen network makes of them.

    Parameters
    ----------
    dataset : Dataset
        Pictures as bytes, in memory or mapped, or text.
    extractor : Extractor
        ``EfficientNetLite0()`` or ``MiniLM()``, or one of your own.
    cache : path, False or None
        Folder to keep the features in; None for :func:`cache_folder`. They say almost as
        much about people as the records do: False keeps nothing.
    progress : function of (done, total), optional
        Called before the first block of records and after each; once if all were kept.
    limits : Limits
        ``memory_bytes`` bounds the features, which are held in memory; of the records
        only a block is.

    Returns
    -------
    Dataset
        X of shape (n, extractor.dimension) in float32, ``norm`` as the extractor declares
        it, no feature names; everything else as it was. ``row_digests`` stay those of the
        records: on another machine features differ in their last bits, and a split by the
        features would send the same individuals to other partitions.

    Guarantees
    ----------
    With either extractor of this module, a record's feature is a function of the record,
    the extractor's settings and this machine's arithmetic (:meth:`Extractor.fingerprint`):
    adding, removing, changing or reordering other records leaves it as it was, bit for
    bit, on the terms of :func:`~veracal.data.fixed_shape.each_by_itself`. Neighboring data
    sets thus become neighboring data sets, and extraction costs no privacy. The cache
    keeps that: it holds a whole data set under the hash of all that its features depend
    on, so what it returns is what would be computed. Entries for single records would not
    do better and would leave one file for each person.
    """
    where, n = f"{dataset.name}: features", len(dataset)
    extractor.check(dataset.X, where)
    limits.check("memory_bytes", 4 * n * extractor.dimension, where)
    tell = progress or _say_nothing
    if cache is False:
        X = _scored(dataset, extractor, tell)
    else:
        X = _remembered(dataset, extractor, cache_folder(cache), tell)
    identity = dataset.row_digests
    if identity is None and not dataset.encoded:
        identity = digests_of_records(dataset.X, dataset.y)
    return replace(
        dataset,
        X=X,
        feature_names=(),
        norm=extractor.norm,
        row_digests=identity,
        encoded=True,
    )


def _scored(dataset: Dataset, extractor: Extractor, tell: Progress) -> Floats:
    """Features of all records, a block at a time."""
    score, n, done = extractor.scorer(dataset.X.shape[1:]), len(dataset), 0
    features = np.empty((n, extractor.dimension), np.float32)
    tell(0, n)
    for part in dataset.batches(extractor.block):
        features[done : done + len(part)] = score(part.X[:])
        done += len(part)
        tell(done, n)
    return features


def _remembered(dataset: Dataset, extractor: Extractor, folder: Path, tell: Progress) -> Floats:
    """Features from the folder, or made now and kept there."""
    made_by, secret = extractor.fingerprint(), cache_secret(folder)
    key, n = records_key(dataset, made_by, secret), len(dataset)
    entry = Entry(private_folder(folder / "features"), key, (n, extractor.dimension))
    kept = entry.read()
    if kept is not None:
        tell(n, n)
        return kept
    features = _scored(dataset, extractor, tell)
    if records_key(dataset, made_by, secret) != key:
        raise DataError(
            f"{dataset.name}: features",
            "records that stay as they are",
            "others at the end than at the start",
            "Something else writes to them; wait for it and start again.",
        )
    try:
        entry.write(features)
    except DataError as cause:  # a full disk is no reason to throw the work away
        warnings.warn(f"Features were made but not kept. {cause}", stacklevel=3)
    return features


def _say_nothing(done: int, total: int | None) -> None:
    """Progress for those who did not ask."""
