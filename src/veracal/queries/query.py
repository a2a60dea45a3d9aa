"""Queries: bounded statistics of records, with their sensitivities.

All properties of a query are public and independent of the records: its name, grid, bounds and
number of entries, from which its sensitivity under each relation follows. The module contains
the query protocol, base classes for sums over records (of a number, of a number by bins, of a
vector), and the evaluation of one query on many sources at once.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import CodeType
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from veracal import _checks
from veracal._types import Array, Frozen, Ints
from veracal.accounting import DiscreteGaussian, DiscreteLaplace, Relation, Unit
from veracal.data import Dataset, Scores
from veracal.mechanisms import (
    MAX_UNITS,
    Bounds,
    Grid,
    clip_to_grid,
    clip_vectors_to_grid,
    exact_total,
    gaussian_noise,
    laplace_noise,
)

Records = Scores | Dataset
SettingValue = str | int | float | bool


@runtime_checkable
class Query(Protocol):
    """Protocol of queries: a statistic of records, in whole units of a public grid.

    Test custom queries with :func:`veracal.testing.check_query`.

    Attributes
    ----------
    name : str
        Name of the query in the ledger and in reports.
    grid : Grid
    entries : int
        Length of the answer.
    settings : mapping of str to number or text
        Everything else that distinguishes this query from another of the same name.

    Guarantees
    ----------
    Only :meth:`evaluate` depends on the records. Between neighbors its result changes by at
    most :meth:`sensitivity` in the L1 norm and :meth:`sensitivity_l2` in the L2 norm. It is a
    sum of integer vectors, one per record, so the order of rows changes no bit, and it works
    on every set of records of the right form, including the empty one.
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
        """L1 sensitivity, in units of the grid."""

    def sensitivity_l2(self, relation: Relation) -> float:
        """L2 sensitivity, in units of the grid."""

    def evaluate(self, records: Any) -> Ints:
        """The exact answer, int64 of shape (entries,), in units of the grid."""


class NonAdditive:
    """Marks a query that is not a sum over records, so answers of several sources do not add.

    Its sensitivities are those of any :class:`Query`, and a single source answers it like any
    other. Test custom ones with :func:`veracal.testing.check_statistic`.
    """


def laplace_event(
    query: Query, micro_epsilon: int, relation: Relation, unit: Unit | None = None
) -> DiscreteLaplace:
    """The event of an answer with discrete Laplace noise, before a record is read.

    The event contains the sensitivity to one *row*; accounting multiplies it by the rows of a
    unit. The noise is computed for all rows of a unit, so ``micro_epsilon`` is the cost per
    unit.

    Examples
    --------
    >>> from veracal.queries import Correct
    >>> laplace_event(Correct(), 500_000, "add-remove", Unit("patient", max_contributions=3))
    DiscreteLaplace(noise=6.0, sensitivity=1, relation='add-remove')
    """
    row = query.sensitivity(relation)
    sensitivity = row * (unit or Unit()).max_contributions
    return DiscreteLaplace(laplace_noise(sensitivity, micro_epsilon), row, relation)


def gaussian_event(
    query: Query, noise_multiplier: float, relation: Relation, unit: Unit | None = None
) -> DiscreteGaussian:
    """The event of an answer with discrete Gaussian noise.

    The noise is ``noise_multiplier`` times the L2 sensitivity to one unit.
    """
    row = query.sensitivity_l2(relation)
    noise = gaussian_noise(row * (unit or Unit()).max_contributions, noise_multiplier)
    return DiscreteGaussian(noise, row, relation, query.entries)


# ---------------------------------------------------------------- evaluation in blocks

_BLOCK_ROWS = 256  # rows of a block, or a multiple of it if rows are short
_MAX_BLOCK_ROWS = 2_048  # larger blocks are not faster, and need more padding
_BLOCK_CELLS = 2**18  # maximum number of values in a block of more than _BLOCK_ROWS rows
_MAX_BLOCK_CELLS = 2**22  # maximum number of values in a smaller block
Result = TypeVar("Result")


def apply_in_blocks(
    records: Records, block: Callable[[Any, int], Result], *, width: int = 1
) -> Iterator[Result]:
    """Apply a function to blocks of rows that all have one shape and one memory layout.

    The last bits of a row's result may differ if the row is computed alone, or in column-major
    order. Then the number of *other* records would change the units of this one. Therefore the
    last block is padded with copies of one of its rows, whose results are dropped. The number
    of rows per block follows from public facts for the same reason: from the number of classes,
    and from ``width``, the number of values that the function computes per row.
    """
    n, rows = len(records), _BLOCK_ROWS
    if isinstance(records, Scores):
        k = records.n_classes
        rows = min(_BLOCK_CELLS // (_BLOCK_ROWS * max(k, width)) * _BLOCK_ROWS, _MAX_BLOCK_ROWS)
        if rows < _BLOCK_ROWS:
            rows = max(1, min(_BLOCK_ROWS, _MAX_BLOCK_CELLS // k))
    for start in range(0, max(n, 1), rows):
        real = min(rows, n - start)
        index = np.minimum(np.arange(start, start + rows), n - 1) if n else np.arange(0)
        yield block(records.take(index), real)


def compute_values(
    function: Callable[[Any], Array], part: Any, width: int | None = None
) -> Array:
    """Compute the values of a query for each record, and check their shape, which is public."""
    with np.errstate(all="ignore"):  # nonfinite values are dropped without a warning
        result = np.asarray(function(part))
    expected = (len(part),) if width is None else (len(part), width)
    if result.shape != expected or result.dtype.kind not in "fiub":
        raise ValueError(
            f"Expected real numbers of shape {expected}, got {result.dtype} of shape "
            f"{result.shape}. Return one per record."
        )
    return result.astype(np.int64) if result.dtype.kind == "b" else result


class RecordSum(ABC):
    """Base class of sums over records, evaluated in integers and in blocks of one shape."""

    bits: int
    _width = 1  # values per row that are computed at once

    @property
    @abstractmethod
    def entries(self) -> int:
        """Length of the answer."""

    @abstractmethod
    def per_record(self, records: Any) -> Array:
        """The values of each record, computed from that record alone."""

    @abstractmethod
    def contributions(self, records: Any) -> tuple[Ints, Ints | None]:
        """Units of each record, and the entry they count in (-1: none); None: in all."""

    @cached_property
    def settings(self) -> Mapping[str, SettingValue]:
        """The fields of a query except ``bits``, as numbers and text; None as 0."""
        names = [field.name for field in fields(self) if field.name != "bits"]  # type: ignore[arg-type]
        values = {name: getattr(self, name) for name in names}
        return Frozen({name: 0 if v is None else v for name, v in values.items()})

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return Grid(self.bits)

    def evaluate(self, records: Any) -> Ints:
        """The sum, in units."""

        def block(part: Any, real: int) -> Ints:
            units, cells = self.contributions(part)
            if cells is None:
                total: Ints = units[:real].sum(axis=0)
                return total
            inside = np.flatnonzero(cells[:real] >= 0)
            sums = np.zeros(self.entries, dtype=np.int64)
            np.add.at(sums, cells[inside], units[inside, 0])
            return sums

        return exact_total(apply_in_blocks(records, block, width=self._width), self.entries)


# ---------------------------------------------------------------- sums over records


class _NumberSum(RecordSum):
    """Base class of sums of one number per record, between public bounds."""

    low: float
    high: float

    @property
    def bounds(self) -> Bounds:
        """Bounds on the contribution of a record, in units."""
        return Bounds.of(self.low, self.high, self.grid)


class ScalarSum(_NumberSum):
    """Base class: sum of one bounded number per record, ``per_record`` of shape (n,).

    Subclasses have numbers ``low`` and ``high``, or override :attr:`bounds`.
    """

    entries = 1

    def sensitivity(self, relation: Relation) -> int:
        """Sensitivity of the sum, in units."""
        return self.bounds.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """The same, since there is one entry."""
        return float(self.sensitivity(relation))

    def contributions(self, records: Any) -> tuple[Ints, None]:
        """The clipped and rounded number of each record."""
        values = compute_values(self.per_record, records)
        return clip_to_grid(values, self.bounds, self.grid)[:, None], None


class CellSum(_NumberSum):
    """Base class: sums of one bounded number per record, by cells.

    Each record is in one cell at most, so adding or removing it changes one entry, and
    replacing it changes two. Bounds are those of a :class:`ScalarSum`.
    """

    @abstractmethod
    def cells(self, records: Any) -> Array:
        """Index of each record's cell, computed from that record alone."""

    def sensitivity(self, relation: Relation) -> int:
        """L1 sensitivity of the sums, in units."""
        return self.bounds.one_bin_sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """L2 sensitivity: two entries change by ``reach`` each, or one by ``span``.

        A record that is replaced by one of the same cell may change the entry by the full span.
        """
        if relation == "add-remove":
            return float(self.sensitivity(relation))
        square = 2 * self.bounds.reach**2
        root = math.sqrt(square)
        if int(root) ** 2 != square:
            root = math.nextafter(root, math.inf)
        return max(root, float(self.bounds.span))

    def contributions(self, records: Any) -> tuple[Ints, Ints]:
        """The clipped and rounded number of each record, and its cell."""
        units = clip_to_grid(compute_values(self.per_record, records), self.bounds, self.grid)
        cells = np.asarray(compute_values(self.cells, records))
        inside = (cells >= 0) & (cells < self.entries) & (cells == np.floor(cells))
        return units[:, None], np.where(inside, cells, -1).astype(np.int64)


class VectorSum(RecordSum):
    """Base class: sum of a vector per record, ``per_record`` of shape (n, entries).

    Vectors beyond the norm bound are scaled down; those with a nonfinite entry count as zero.
    Entries are truncated toward zero, which increases no norm.
    """

    power: Literal[1, 2]

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest L1 or L2 norm of a vector, according to ``power``."""

    @property
    def _width(self) -> int:  # type: ignore[override]
        return self.entries

    @property
    def max_norm(self) -> int:
        """Norm bound of a record's vector, in units."""
        return self.grid.round_up(self.bound)

    def check_size(self) -> None:
        """Raise unless the norm bound is valid and totals fit into 64 bits."""
        _checks.whole(width=self.entries)
        _checks.positive(norm_bound=self.bound)
        if self.power not in (1, 2):
            raise ValueError(f"Expected power 1 or 2, got power={self.power!r}.")
        most = self.max_norm
        if most > MAX_UNITS or self.entries * most**self.power > 2**62:
            raise ValueError(
                f"A bound of {most} units on {self.entries} entries exceeds 64 bits. "
                "Use fewer bits or a smaller norm bound."
            )

    def sensitivity(self, relation: Relation) -> int:
        r"""L1 sensitivity; for an L2 norm bound it has a factor :math:`\sqrt{width}`."""
        most = self.max_norm
        if self.power == 1:
            return Bounds(-most, most).sensitivity(relation)
        longest = math.isqrt(self.entries * most**2)  # the L1 norm is an integer: round down
        return longest * Bounds(-1, 1).sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """L2 sensitivity; the L2 norm never exceeds the L1 norm."""
        return float(Bounds(-self.max_norm, self.max_norm).sensitivity(relation))

    def contributions(self, records: Any) -> tuple[Ints, None]:
        """The clipped and rounded vector of each record."""
        rows = compute_values(self.per_record, records, self.entries)
        return clip_vectors_to_grid(rows, self.max_norm, self.grid, power=self.power), None


@dataclass(frozen=True)
class BoundedSum(ScalarSum):
    r"""Sum of one bounded number per record.

    Parameters
    ----------
    name : str
    values : callable
        Maps records to an array of shape (n,) with a number per record, computed from that
        record alone. Numbers outside the bounds are clipped; nonfinite numbers count as zero.
    low, high : float
        Public bounds of a number, rounded outward to the grid.
    bits : int
        Binary digits of the grid: numbers are rounded to multiples of :math:`2^{-bits}`.
    settings : mapping, optional
        Further settings that identify the query, such as a temperature.

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
        _identify(self, self.values)
        _ = self.bounds

    def per_record(self, records: Any) -> Array:
        """The numbers of records."""
        return self.values(records)


@dataclass(frozen=True)
class BinnedSum(CellSum):
    r"""Sums of one bounded number per record, by public bins.

    Each record falls into one bin, so adding or removing it changes one entry, and replacing it
    changes two.

    Parameters
    ----------
    name : str
    values : callable
        As in :class:`BoundedSum`.
    bins : callable
        Maps records to an array of shape (n,) with the bin index of each record, computed from
        that record alone. A record outside all bins is not counted.
    n_bins : int
        Public number of bins.
    low, high, bits, settings
        As in :class:`BoundedSum`.
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
        _checks.whole(n_bins=self.n_bins)
        _identify(self, self.values, self.bins)
        _ = self.bounds

    @property
    def entries(self) -> int:
        """Number of bins."""
        return int(self.n_bins)

    def per_record(self, records: Any) -> Array:
        """The numbers of records."""
        return self.values(records)

    def cells(self, records: Any) -> Array:
        """The bins of records."""
        return self.bins(records)


@dataclass(frozen=True)
class DenseSum(VectorSum):
    r"""Sum of a vector of bounded norm per record.

    Parameters
    ----------
    name : str
    values : callable
        Maps records to an array of shape (n, width) with a vector per record, computed from
        that record alone. Vectors beyond the norm bound are scaled down; those with a nonfinite
        entry count as zero.
    width : int
    norm_bound : float
        Maximum norm of a vector.
    power : 1 or 2
        Whether the bound is on the L1 or on the L2 norm.
    bits, settings
        As in :class:`BoundedSum`. Entries are truncated toward zero, which increases no norm.
    """

    name: str
    values: Callable[[Any], Array]
    width: int
    norm_bound: float
    power: Literal[1, 2] = 1
    bits: int = 16
    settings: Mapping[str, SettingValue] = field(default_factory=Frozen)

    def __post_init__(self) -> None:
        _identify(self, self.values)
        self.check_size()

    @property
    def entries(self) -> int:
        """Length of the vectors."""
        return self.width

    @property
    def bound(self) -> float:
        """Maximum norm of a vector."""
        return self.norm_bound

    def per_record(self, records: Any) -> Array:
        """The vectors of records."""
        return self.values(records)


def _identify(
    query: BoundedSum | BinnedSum | DenseSum, *functions: Callable[[Any], Array]
) -> None:
    """Check the name of a query, and add fingerprints of its functions to its settings.

    Two functions with the same name and code that close over different objects (an array,
    another function) have the same fingerprint: the settings must distinguish them.
    """
    if not (isinstance(query.name, str) and query.name.strip()):
        raise ValueError(f"Expected a name for the query, got name={query.name!r}.")
    marks = {f"function {i}": fingerprint(f) for i, f in enumerate(functions)}
    object.__setattr__(query, "settings", Frozen({**marks, **query.settings}))


def fingerprint(function: Callable[..., Any]) -> str:
    """Name and hash of a function: its code, constants and plain closure variables."""

    def content(code: CodeType) -> tuple[Any, ...]:  # without the location in a file
        constants = [content(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
        return code.co_code, code.co_names, tuple(constants)

    name = getattr(function, "__qualname__", None) or type(function).__name__
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', name)}"
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    plain = [repr(cell) for cell in cells if isinstance(cell, str | int | float | bool)]
    mark = hashlib.sha256(repr((content(code), plain)).encode()).hexdigest()[:16]
    return f"{name}:{mark}"
