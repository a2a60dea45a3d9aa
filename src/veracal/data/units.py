"""Units of protection: individuals with one or several rows, their limits and their draws."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.data.dataset import Dataset
from veracal.data.labels import TEXT

_SCALE = 2.0**-53


def unit_numbers(units: Array | None, n: int) -> tuple[Ints, int]:
    """Number the units of n rows from 0, and count them.

    Without ids each row is its own unit.
    """
    if units is None:
        return np.arange(n), n
    ids, numbers = np.unique(units, return_inverse=True)
    return numbers.reshape(-1), len(ids)


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows of each unit side by side, for resampling whole units.

    Attributes
    ----------
    order : array of ints of shape (n,)
        Row numbers, unit after unit.
    starts, sizes : arrays of ints, one for each unit
        Start of its rows in ``order``, and their number.
    """

    order: Ints
    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, units: Array | None, n: int) -> "UnitRows":
        """Gather the rows of each unit; without ids each row is a unit."""
        numbers, n_units = unit_numbers(units, n)
        sizes = np.bincount(numbers, minlength=n_units)
        return cls(np.argsort(numbers, kind="stable"), np.cumsum(sizes) - sizes, sizes)

    def resample(self, rng: np.random.Generator) -> Ints:
        """Rows of units drawn with replacement, as many as there are units."""
        drawn = rng.integers(len(self.sizes), size=len(self.sizes))
        lengths = self.sizes[drawn]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows: Ints = self.order[np.repeat(self.starts[drawn], lengths) + within]
        return rows


def limit_contributions(
    dataset: Dataset,
    *,
    max_contributions: int | None,
    unit: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> Dataset:
    """Keep at most ``max_contributions`` rows of each unit, chosen at random.

    Parameters
    ----------
    dataset : Dataset
    max_contributions : int or None
        Bound on the rows of one unit; None keeps all rows and guarantees nothing.
    unit : array of ids, optional
        Unit id of each row, in place of the data set's own units.
    rng : Generator, optional
        By default from secret entropy.

    Returns
    -------
    Dataset
        With ``max_contributions`` set and rows in their original order.

    Guarantees
    ----------
    No unit has more than ``max_contributions`` rows. Which rows of a unit are kept depends only
    on the number of its rows and on fresh draws: adding or removing a whole unit leaves the
    distribution of the rows of all other units unchanged.
    """
    if unit is not None:
        dataset = replace(dataset, units=np.asarray(unit), max_contributions=None)
    if max_contributions is None:
        return dataset._changed(max_contributions=None)
    _checks.whole(max_contributions=max_contributions)
    if dataset.units is None:
        # Each row is a unit, and has one row.
        return dataset._changed(max_contributions=max_contributions)
    rng = _random.secret_generator() if rng is None else rng
    numbers, _ = unit_numbers(dataset.units, len(dataset))
    order = np.lexsort((rng.random(len(dataset)), numbers))
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    kept = np.sort(order[rank < max_contributions])
    return dataset.take(kept)._changed(max_contributions=max_contributions, may_drop=True)


def keyed_draws(ids: Array, key: bytes) -> Floats:
    r"""Uniform numbers in [0, 1), each a function of an id and a key only.

    Draw i is the first 53 bits of :math:`\mathrm{BLAKE2b}_{key}(id_i)`. The same id and key
    give the same draw, regardless of other records and of their order.
    """
    return draws_of_contents((text.encode() for text in ids.astype(TEXT).tolist()), key)


def draws_of_contents(contents: Iterable[bytes], key: bytes) -> Floats:
    """As :func:`keyed_draws`, for ids given as bytes."""
    keyed = hashlib.blake2b(key=key, digest_size=8)
    digests = bytearray()
    for content in contents:
        state = keyed.copy()  # the key is hashed only once
        state.update(content)
        digests += state.digest()
    bits = np.frombuffer(digests, dtype="<u8").astype(np.uint64) >> np.uint64(11)
    draws: Floats = bits.astype(np.float64) * _SCALE
    return draws
