"""Bounded statistics of records, with what one record can do to them.

A query is asked of records it has never seen, so all it says of itself is public: its name, its
grid, its bounds, the number of its entries, and from these its sensitivity under each relation.

Sums over records as queries: of a number, of a number by bins, of a vector.

One query, evaluated of many sources at once.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from veracal import _checks
from veracal._types import Array, Frozen, Ints
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Relation, Unit
from veracal.data import Dataset, Scores
from veracal.mechanisms import (
    MOST_UNITS,
    Bounds,
    Grid,
    contributions,
    dense_contributions,
    exact_total,
    gaussian_noise,
    laplace_noise,
)

Records = Scores | Dataset
SettingValue = str | int | float | bool


@runtime_checkable
class Query(Protocol):
    """A statistic of records, in whole units of a public grid.

    Whoever writes one runs :func:`veracal.testing.check_query` on it.

    Attributes
    ----------
    name : str
        What is asked, for the ledger and for reports.
    grid : Grid
    entries : int
        Length of the answer.
    settings : mapping of str to number or text
        Everything else that tells this question from another of the same name.

    Guarantees
    ----------
    Nothing but :meth:`evaluate` depends on the records. Between neighbors its result moves by
    at most :meth:`sensitivity` in the L1 and :meth:`sensitivity_l2` in the L2 norm. It is a
    sum of integers, one vector for each record, so that the order of rows changes no bit, and
    it works on every set of records of the right form, the empty one included.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def grid(self) -> Grid: ...  # noqa: D102
    @property
    def entries(self) -> int: ...  # noqa: D102
    @property
    def settings(self) -> Mapping[str, SettingValue]: ...  # noqa: D102

    def sensitivity(self, relation: Relation) -> int:
        """Most that the result moves in the L1 norm, in units of the grid."""

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that the result moves in the L2 norm, in units of the grid."""

    def evaluate(self, records: Any) -> Ints:
        """The exact answer, int64 of shape (entries,), in units of the grid."""


class NonAdditive:
    """Mark of a query that is no sum over records: answers of several sources do not add up.

    Its sensitivities are as of any :class:`Query`, and a single source answers it like any
    other. Whoever writes one runs :func:`veracal.testing.check_statistic` on it.
    """


def laplace_event(
    query: Query, micro_epsilon: int, relation: Relation, unit: Unit | None = None
) -> DiscreteLaplace:
    """What an answer with discrete Laplace noise costs, before a record is read.

    The event states how far one *row* moves the answer; accounting multiplies that by the
    rows of a unit. The noise is therefore made for all of them: ``micro_epsilon`` is what the
    unit pays.

    Examples
    --------
    >>> from veracal.queries.score_queries import Correct
    >>> laplace_event(Correct(), 500_000, "add-remove", Unit("patient", at_most=3))
    DiscreteLaplace(noise=6.0, sensitivity=1, relation='add-remove')
    """
    row = query.sensitivity(relation)
    together = row * (unit or Unit()).at_most
    return DiscreteLaplace(laplace_noise(together, micro_epsilon), row, relation)


def gaussian_event(
    query: Query, noise_multiplier: float, relation: Relation, unit: Unit | None = None
) -> DiscreteGaussian:
    """The same with discrete Gaussian noise.

    The noise is ``noise_multiplier`` times as large as the most that one unit moves the answer
    in the L2 norm.
    """
    row = query.sensitivity_l2(relation)
    noise = gaussian_noise(row * (unit or Unit()).at_most, noise_multiplier)
    return DiscreteGaussian(noise, row, relation, query.entries)


_ROWS = 256  # worked on at once, and a multiple of it where rows are short
_MOST_ROWS = 2_048  # beyond which a block gains nothing, and few records wait for many copies
_SOME_CELLS = 2**18  # numbers in a block of more than so many rows
_MOST_CELLS = 2**22  # numbers in a block of fewer
Made = TypeVar("Made")


class ScalarSum(ABC):
    """Sum of one bounded number for each record; which number is left to say."""

    bits: int
    entries = 1

    @property
    @abstractmethod
    def bounds(self) -> Bounds:
        """What a record contributes, in units."""

    @abstractmethod
    def per_record(self, records: Any) -> Array:
        """A number for each record, of shape (n,), computed from that record alone."""

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return Grid(self.bits)

    def sensitivity(self, relation: Relation) -> int:
        """Most that the sum moves, in units."""
        return self.bounds.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """The same: there is one entry."""
        return float(self.sensitivity(relation))

    def evaluate(self, records: Any) -> Ints:
        """The sum, in units."""
        bounds = self.bounds

        def block(part: Any, real: int) -> Ints:
            units = contributions(numbers_of(self.per_record, part), bounds, self.grid)
            result: Ints = units[:real].sum(keepdims=True)
            return result

        return exact_total(apply_in_blocks(records, block), 1)


@dataclass(frozen=True)
class BoundedSum(ScalarSum):
    r"""Sum of one bounded number for each record.

    Parameters
    ----------
    name : str
    values : callable
        From records to an array of shape (n,), a number for each of them, computed from that
        record alone. Numbers outside the bounds are clipped; what is not finite counts zero.
    low, high : float
        Public bounds of a number, rounded outward to the grid.
    bits : int
        Of the grid: the number is rounded to a multiple of :math:`2^{-bits}`.
    settings : mapping, optional
        What else belongs to the question, such as a temperature.

    Examples
    --------
    >>> scores = Scores.from_logits([[0.0, 2.0], [3.0, 0.0]], [1, 1])
    >>> sure = BoundedSum("confidence", lambda s: s.confidence, 0, 1, bits=10)
    >>> sure.evaluate(scores), sure.sensitivity("replace-one")
    (array([1877]), 1024)
    """

    name: str
    values: Callable[[Any], Array]
    low: float
    high: float
    bits: int = 20
    settings: Mapping[str, SettingValue] = field(default_factory=Frozen)

    def __post_init__(self) -> None:
        _named(self.name)
        object.__setattr__(self, "settings", _settings(self.settings, self.values))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """What a record contributes, in units."""
        return Bounds.of(self.low, self.high, self.grid)

    def per_record(self, records: Any) -> Array:
        """The numbers of some records."""
        return self.values(records)


@dataclass(frozen=True)
class BinnedSum:
    r"""Sums of one bounded number for each record, by public bins.

    Each record falls into one bin, so it moves one entry only, and the replaced and the
    replacing record two.

    Parameters
    ----------
    name : str
    values : callable
        As of :class:`BoundedSum`.
    bins : callable
        From records to an array of shape (n,): the number of each record's bin, from that
        record alone. A record outside of all bins counts nowhere.
    n_bins : int
        Public number of bins.
    low, high, bits, settings
        As of :class:`BoundedSum`.
    """

    name: str
    values: Callable[[Any], Array]
    bins: Callable[[Any], Array]
    n_bins: int
    low: float
    high: float
    bits: int = 20
    settings: Mapping[str, SettingValue] = field(default_factory=Frozen)

    def __post_init__(self) -> None:
        _named(self.name)
        _checks.whole(n_bins=self.n_bins)
        object.__setattr__(self, "settings", _settings(self.settings, self.values, self.bins))
        _ = self.bounds

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return Grid(self.bits)

    @property
    def entries(self) -> int:
        """Number of bins."""
        return int(self.n_bins)

    @property
    def bounds(self) -> Bounds:
        """What a record contributes to its bin, in units."""
        return Bounds.of(self.low, self.high, self.grid)

    def sensitivity(self, relation: Relation) -> int:
        """Most that the sums move in the L1 norm, in units."""
        return self.bounds.one_bin_sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that they move in the L2 norm: two entries by ``reach`` each, or one by all.

        A record that is replaced by one of the same bin may move it from end to end.
        """
        if relation == "add-remove":
            return float(self.sensitivity(relation))
        return max(_root_up(2 * self.bounds.reach**2), float(self.bounds.span))

    def evaluate(self, records: Any) -> Ints:
        """The sums, in units."""
        bounds = self.bounds

        def block(part: Any, real: int) -> Ints:
            units = contributions(numbers_of(self.values, part), bounds, self.grid)[:real]
            bins = np.asarray(numbers_of(self.bins, part))[:real]
            inside = (bins >= 0) & (bins < self.n_bins) & (bins == np.floor(bins))
            sums = np.zeros(self.n_bins, dtype=np.int64)
            np.add.at(sums, bins[inside].astype(np.int64), units[inside])
            return sums

        return exact_total(apply_in_blocks(records, block), self.entries)


@dataclass(frozen=True)
class DenseSum:
    r"""Sum of a vector of bounded norm for each record.

    Parameters
    ----------
    name : str
    values : callable
        From records to an array of shape (n, width), a vector for each of them, from that
        record alone. One that is too long is scaled down; one with an entry that is not
        finite counts zero.
    width : int
    norm_bound : float
        Longest norm of a vector.
    power : 1 or 2
        Whether the bound is on the L1 or on the L2 norm.
    bits, settings
        As of :class:`BoundedSum`. Entries are truncated toward zero, which lengthens nothing.
    """

    name: str
    values: Callable[[Any], Array]
    width: int
    norm_bound: float
    power: Literal[1, 2] = 1
    bits: int = 16
    settings: Mapping[str, SettingValue] = field(default_factory=Frozen)

    def __post_init__(self) -> None:
        _named(self.name)
        _checks.whole(width=self.width)
        _checks.positive(norm_bound=self.norm_bound)
        if self.power not in (1, 2):
            raise ValueError(f"Expected power 1 or 2, got power={self.power!r}.")
        object.__setattr__(self, "settings", _settings(self.settings, self.values))
        if self.most > MOST_UNITS or self.width * self.most**self.power > 2**62:
            raise ValueError(
                f"A bound of {self.most} units on {self.width} entries leaves 64 bits. "
                "Use fewer bits or a smaller norm bound."
            )

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return Grid(self.bits)

    @property
    def entries(self) -> int:
        """Length of the vectors."""
        return int(self.width)

    @property
    def most(self) -> int:
        """Longest norm of a record's vector, in units."""
        return self.grid.round_up(self.norm_bound)

    def sensitivity(self, relation: Relation) -> int:
        r"""In the L1 norm; a bound on the L2 norm grows by at most :math:`\sqrt{width}`."""
        if self.power == 1:
            return Bounds(-self.most, self.most).sensitivity(relation)
        longest = math.isqrt(self.width * self.most**2)  # the L1 norm is whole: round down
        return longest * Bounds(-1, 1).sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """In the L2 norm, which is never above the L1 norm."""
        return float(Bounds(-self.most, self.most).sensitivity(relation))

    def evaluate(self, records: Any) -> Ints:
        """The sum, in units."""

        def block(part: Any, real: int) -> Ints:
            rows = numbers_of(self.values, part, self.width)
            units = dense_contributions(rows, self.most, self.grid, power=self.power)
            result: Ints = units[:real].sum(axis=0)
            return result

        return exact_total(apply_in_blocks(records, Wide(block, self.width)), self.entries)


def numbers_of(function: Callable[[Any], Array], part: Any, width: int | None = None) -> Array:
    """Call what a query computes for each record, and check its shape, which is public."""
    with np.errstate(all="ignore"):  # what is not finite is dropped, without a word
        result = np.asarray(function(part))
    expected = (len(part),) if width is None else (len(part), width)
    if result.shape != expected or result.dtype.kind not in "fiub":
        raise ValueError(
            f"Expected real numbers of shape {expected}, got {result.dtype} of shape "
            f"{result.shape}. Return one for each record."
        )
    return result.astype(np.int64) if result.dtype.kind == "b" else result


@dataclass(frozen=True)
class Wide:
    """What is done with a block of rows, where each row makes ``width`` numbers."""

    work: Callable[[Any, int], Ints]
    width: int

    def __call__(self, part: Any, real: int) -> Ints:
        """Do it."""
        return self.work(part, real)


def apply_in_blocks(records: Records, block: Callable[[Any, int], Made]) -> Iterator[Made]:
    """Apply a function to blocks of rows that all have one shape and one memory layout.

    A row of a float matrix is computed differently in its last bits when it stands alone, or
    column after column: then the number of *other* records would move units of this one. So
    the last block is filled up with copies of a row of its own, whose results are dropped.
    """
    n, rows = len(records), _rows(records, getattr(block, "width", 1))
    for start in range(0, max(n, 1), rows):
        real = min(rows, n - start)
        index = np.minimum(np.arange(start, start + rows), n - 1) if n else np.arange(0)
        yield block(records.take(index), real)


def _rows(records: Records, width: int) -> int:
    """Rows of a block, by public facts alone: numbers of classes and of results for each row.

    Never by the number of records, which would then choose the bits of everybody's results.
    """
    if not isinstance(records, Scores):
        return _ROWS
    several = _SOME_CELLS // (_ROWS * max(records.n_classes, width)) * _ROWS
    if several >= _ROWS:
        return min(several, _MOST_ROWS)
    return max(1, min(_ROWS, _MOST_CELLS // records.n_classes))


def _settings(
    given: Mapping[str, SettingValue], *functions: Callable[[Any], Array]
) -> Frozen[str, SettingValue]:
    """The caller's settings, and what tells the functions of this question from others.

    Two functions of one name and one code that close over different things (an array, another
    function) look the same here: name what differs in the settings.
    """
    marks = {f"function {i}": fingerprint(f) for i, f in enumerate(functions)}
    return Frozen({**marks, **given})


def fingerprint(function: Callable[..., Any]) -> str:
    """Name and hash of a function: of its code, constants, and plain values it closes over."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', name)}"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    plain = [repr(cell) for cell in cells if isinstance(cell, str | int | float | bool)]
    return f"{name}:{hashlib.sha256(repr((_code(code), plain)).encode()).hexdigest()[:16]}"


def _code(code: CodeType) -> tuple[Any, ...]:
    """What a function does, without where it stands."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, code.co_names, tuple(constants)


def _named(name: str) -> None:
    """Refuse a query without a name."""
    if not (isinstance(name, str) and name.strip()):
        raise ValueError(f"Expected a name for the query, got name={name!r}.")


def _root_up(square: int) -> float:
    """Smallest float whose square is no less than an integer, up to the last bit."""
    root = math.sqrt(square)
    return root if int(root) ** 2 == square else math.nextafter(root, math.inf)


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

    return _collected(
        np.concatenate(list(apply_in_blocks(records, block))), place, (sources, 1)
    )


def _binned(query: BinnedSum, records: Records, place: Ints, sources: int) -> Ints:
    """Sums by bin: every record is in one cell of sources and bins."""

    def block(part: Any, real: int) -> Ints:
        units = contributions(numbers_of(query.values, part), query.bounds, query.grid)
        bins = np.asarray(numbers_of(query.bins, part))
        inside = (bins >= 0) & (bins < query.n_bins) & (bins == np.floor(bins))
        cells = np.where(inside, bins, -1).astype(np.int64)
        return np.stack([units, cells])[:, :real]

    units, cells = np.concatenate(list(apply_in_blocks(records, block)), axis=1)
    inside = cells >= 0
    at = place[inside] * query.entries + cells[inside]
    flat = _collected(units[inside], at, (sources * query.entries, 1))
    return flat.reshape(sources, query.entries)


def _dense(query: DenseSum, records: Records, place: Ints, sources: int) -> Ints:
    """Sums of a vector for each record."""

    def block(part: Any, real: int) -> Ints:
        rows = numbers_of(query.values, part, query.width)
        return dense_contributions(rows, query.most, query.grid, power=query.power)[:real]

    units = np.concatenate(list(apply_in_blocks(records, Wide(block, query.width))))
    return _collected(units, place, (sources, query.width))


def _collected(units: Ints, place: Ints, shape: tuple[int, int]) -> Ints:
    """Integers added where they belong. So many of at most 2^40 do not leave 64 bits."""
    if len(units) > 2**22:
        raise ValueError(f"Expected at most {2**22} records at once, got {len(units)}.")
    sums = np.zeros(shape, dtype=np.int64)
    np.add.at(sums, place, units.reshape(-1, shape[1]))
    return sums
