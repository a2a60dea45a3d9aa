"""One query, evaluated of many sources at once."""

from typing import Any

import numpy as np

from veracal._types import Ints
from veracal.privacy.answers.grid import contributions, dense_contributions
from veracal.privacy.answers.queries import Query, Records
from veracal.privacy.answers.sums import (
    BinnedSum,
    DenseSum,
    ScalarSum,
    Wide,
    blocks,
    numbers_of,
)


def sums_by_source(query: Query, records: Records, place: Ints, sources: int) -> Ints:
    """What a query says of the records of each source.

    Parameters
    ----------
    query : Query
    records : Scores or Dataset
        Of all sources.
    place : array of ints in [0, sources), of shape (n,)
        Where each record is.
    sources : int

    Returns
    -------
    array of int64 of shape (sources, entries)

    Guarantees
    ----------
    Row i is ``query.evaluate`` of the records of source i, to the last bit: numbers of a record
    are made in blocks of one shape, whoever else is in them.
    """
    kind: Any = getattr(query, "sums", query)
    if isinstance(kind, ScalarSum):
        return _scalar(kind, records, place, sources)
    if type(kind) is BinnedSum:
        return _binned(kind, records, place, sources)
    if type(kind) is DenseSum:
        return _dense(kind, records, place, sources)
    rows = [query.evaluate(records.take(np.flatnonzero(place == i))) for i in range(sources)]
    return np.array(rows, dtype=np.int64).reshape(sources, query.entries)


def _scalar(query: ScalarSum, records: Records, place: Ints, sources: int) -> Ints:
    """Sums of one number for each record."""

    def block(part: Any, real: int) -> Ints:
        numbers = numbers_of(query.per_record, part)
        return contributions(numbers, query.bounds, query.grid)[:real]

    return _collected(np.concatenate(list(blocks(records, block))), place, (sources, 1))


def _binned(query: BinnedSum, records: Records, place: Ints, sources: int) -> Ints:
    """Sums by bin: every record is in one cell of sources and bins."""

    def block(part: Any, real: int) -> Ints:
        units = contributions(numbers_of(query.values, part), query.bounds, query.grid)
        bins = np.asarray(numbers_of(query.bins, part))
        inside = (bins >= 0) & (bins < query.n_bins) & (bins == np.floor(bins))
        cells = np.where(inside, bins, -1).astype(np.int64)
        return np.stack([units, cells])[:, :real]

    units, cells = np.concatenate(list(blocks(records, block)), axis=1)
    inside = cells >= 0
    at = place[inside] * query.entries + cells[inside]
    flat = _collected(units[inside], at, (sources * query.entries, 1))
    return flat.reshape(sources, query.entries)


def _dense(query: DenseSum, records: Records, place: Ints, sources: int) -> Ints:
    """Sums of a vector for each record."""

    def block(part: Any, real: int) -> Ints:
        rows = numbers_of(query.values, part, query.width)
        return dense_contributions(rows, query.most, query.grid, power=query.power)[:real]

    units = np.concatenate(list(blocks(records, Wide(block, query.width))))
    return _collected(units, place, (sources, query.width))


def _collected(units: Ints, place: Ints, shape: tuple[int, int]) -> Ints:
    """Integers added where they belong. So many of at most 2^40 do not leave 64 bits."""
    if len(units) > 2**22:
        raise ValueError(f"Expected at most {2**22} records at once, got {len(units)}.")
    sums = np.zeros(shape, dtype=np.int64)
    np.add.at(sums, place, units.reshape(-1, shape[1]))
    return sums
