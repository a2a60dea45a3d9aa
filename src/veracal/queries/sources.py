"""Sources, which answer queries; requests to them, and the releases that they return.

Private recalibration and measurement only use :class:`Source`. They work in the same way for
records in this process, records elsewhere and records distributed over many sources.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.accounting import (
    MICRO,
    RELATIONS,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Parallel,
    Relation,
    Unit,
)
from veracal.ledger import Item
from veracal.mechanisms import (
    Grid,
    discrete_gaussian_bound,
    discrete_gaussian_std,
    discrete_laplace_bound,
    discrete_laplace_std,
)
from veracal.queries.query import Query, Records, gaussian_event, laplace_event


@dataclass(frozen=True)
class Release:
    r"""The answer to a query.

    Attributes
    ----------
    query : str
        Name of the query.
    units : tuple of int
        The answer in units of the grid.
    grid : Grid
    noise_std : float
        Standard deviation of the noise on each entry, in the units of the query's values.
    micro_epsilon : int or None
        Cost per unit, in millionths of epsilon; None if the event has no pure cost, as with
        Gaussian noise.
    event : Event or None
        The event that was charged; None if the answer is not protected.
    private : bool
        Whether the answer is protected by the event.
    head : str or None
        Hash of the ledger entry of this answer, which was the head of the chain at that time.
        It allows a later check that the ledger was not replaced by an older copy. A repeated
        answer has the same hash. It is not part of the answer.

    Guarantees
    ----------
    Every value is a multiple of the grid's step, exactly.

    Examples
    --------
    >>> Release("count", (41,), Grid(0), 1.0, 500_000, None, private=False).value
    41.0
    """

    query: str
    units: tuple[int, ...]
    grid: Grid
    noise_std: float
    micro_epsilon: int | None
    event: Event | None
    private: bool
    head: str | None = field(default=None, compare=False)

    @property
    def values(self) -> Floats:
        """The answer, of shape (entries,)."""
        return self.grid.values(self.units)

    @property
    def value(self) -> float:
        """The answer to a query with one entry."""
        if len(self.units) != 1:
            raise ValueError(
                f"Expected one entry, but {self.query!r} has {len(self.units)}. Use .values."
            )
        return float(self.values[0])

    def intervals(self, level: float = 0.95) -> Floats:
        """Intervals that contain the exact answers, each with probability ``level``.

        They account for the noise only, not for the sampling of records from a population.

        Returns
        -------
        array of shape (entries, 2)
        """
        noises = noise_events(self.event)
        each = 1 - (1 - level) / max(1, len(noises))  # Bonferroni correction over the sources
        half_width = 0
        for event in noises:
            if isinstance(event, DiscreteLaplace):
                half_width += discrete_laplace_bound(event.noise, each)
            elif isinstance(event, DiscreteGaussian):
                half_width += discrete_gaussian_bound(event.noise, each)
            else:
                raise ValueError(f"Expected discrete noise, got {type(event).__name__}.")
        ends = [(unit - half_width, unit + half_width) for unit in self.units]
        return np.array([self.grid.values(pair) for pair in ends])

    @property
    def epsilon(self) -> float | None:
        """Cost per unit, if it is pure."""
        return None if self.micro_epsilon is None else self.micro_epsilon / MICRO


def noise_events(event: Event | None) -> list[Event]:
    """The noise events of all sources of an answer."""
    if isinstance(event, Parallel):
        return [noise for part in event.events for noise in noise_events(part)]
    return [] if event is None else [event]


def noise_std(event: DiscreteLaplace | DiscreteGaussian) -> float:
    """Standard deviation of the noise, in units."""
    if isinstance(event, DiscreteLaplace):
        return discrete_laplace_std(event.noise)
    return discrete_gaussian_std(event.noise)


@runtime_checkable
class Source(Protocol):
    """Protocol of sources, which answer queries with noise.

    Test custom sources with :func:`veracal.testing.check_source`.

    Guarantees
    ----------
    Charge and answer are one transaction, and a query that exceeds the budget is rejected
    before a record is read. A repeated request gets the same answer at no cost; another query
    under the same request id raises :class:`~veracal.errors.ConflictError`.
    """

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Laplace noise at a cost of ``micro_epsilon``.

        Parameters
        ----------
        micro_epsilon : int
            Cost per unit, in millionths of epsilon.
        request : str, optional
            Request id, for safe retries. By default it is derived from the query, so repeating
            a query returns the same answer.
        """


@runtime_checkable
class GaussianSource(Source, Protocol):
    """A source that also answers with Gaussian noise, for budgets with delta > 0.

    Guarantees
    ----------
    As in :class:`Source`.
    """

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Gaussian noise.

        Parameters
        ----------
        noise_multiplier : float
            Noise divided by the L2 sensitivity to one unit.
        request : str, optional
            As for :meth:`answer`.
        """


@dataclass(frozen=True)
class QueryRequest:
    """A query with the requested noise, either Laplace or Gaussian.

    Attributes
    ----------
    query : Query
    micro_epsilon : int or None
        For discrete Laplace noise, as in :meth:`Source.answer`.
    noise_multiplier : float or None
        For discrete Gaussian noise, as in :meth:`GaussianSource.answer_gaussian`.
    """

    query: Query
    micro_epsilon: int | None = None
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if (self.micro_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("Expected exactly one of micro_epsilon and noise_multiplier.")
        if self.micro_epsilon is not None:
            _checks.whole(micro_epsilon=self.micro_epsilon)
            object.__setattr__(self, "micro_epsilon", int(self.micro_epsilon))
        if self.noise_multiplier is not None:
            _checks.positive(noise_multiplier=self.noise_multiplier)

    @cached_property
    def form(self) -> tuple[str, Grid, int]:
        """Name, grid and entries of the query; cached, since some queries compute them."""
        return self.query.name, self.query.grid, self.query.entries

    def ask(self, source: Source, request: str | None = None) -> Release:
        """Submit the query to a source, under an id for safe retries."""
        if self.micro_epsilon is not None:
            return source.answer(self.query, micro_epsilon=self.micro_epsilon, request=request)
        assert isinstance(source, GaussianSource)
        assert self.noise_multiplier is not None
        return source.answer_gaussian(
            self.query, noise_multiplier=self.noise_multiplier, request=request
        )

    def event(
        self, relation: Relation, unit: Unit | None = None
    ) -> DiscreteLaplace | DiscreteGaussian:
        """The event that is charged for the answer."""
        if self.micro_epsilon is not None:
            return laplace_event(self.query, self.micro_epsilon, relation, unit)
        assert self.noise_multiplier is not None
        return gaussian_event(self.query, self.noise_multiplier, relation, unit)

    def matches(self, event: Event) -> bool:
        """Whether an event has the requested noise, for units of any number of rows."""
        if event.relation not in RELATIONS:
            return False
        if self.micro_epsilon is not None:
            row = self.query.sensitivity(event.relation)
            noise_per_row = row * MICRO / self.micro_epsilon
        else:
            assert self.noise_multiplier is not None
            noise_per_row = self.query.sensitivity_l2(event.relation) * self.noise_multiplier
        ratio = getattr(event, "noise", 0.0) / noise_per_row
        rows = round(ratio) if 0 < ratio < 2**46 else 0
        return rows > 0 and event == self.event(event.relation, Unit("unit", rows))


@runtime_checkable
class DeclaredSource(Protocol):
    """A source with a public unit and relation; see :func:`is_declared`."""

    @property
    def relation(self) -> Relation:
        """The neighboring relation."""

    @property
    def unit(self) -> Unit:
        """The unit of privacy."""


def is_declared(source: object) -> TypeGuard[DeclaredSource]:
    """Whether a source has a valid public unit and relation.

    ``isinstance`` would only check that the attributes exist, and is 50 times slower, which
    matters for thousands of sources.
    """
    relation = getattr(source, "relation", None)
    known = isinstance(relation, str) and relation in RELATIONS
    return known and isinstance(getattr(source, "unit", None), Unit)


@runtime_checkable
class PayingSource(DeclaredSource, Protocol):
    """A source that can check beforehand whether its budget suffices."""

    @property
    def partition(self) -> str | None:
        """The partition of its ledger that is charged."""

    def unpaid(self, items: Iterable[Item], *, request: str | None = None) -> list[Item]:
        """The items, or remaining repetitions of items, that were not charged yet."""

    def require(self, items: Sequence[Item]) -> None:
        """Raise a ``BudgetError`` unless all items can be paid for; charge nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Public:
    """A source of *public* records, whose answers are exact, free and not private.

    Parameters
    ----------
    records : Scores or Dataset
    """

    records: Records

    def __repr__(self) -> str:
        return f"Public({self.records!r})"

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer exactly; the release is marked as not private."""
        _checks.whole(micro_epsilon=micro_epsilon)
        units = tuple(int(k) for k in query.evaluate(self.records))
        return Release(query.name, units, query.grid, 0.0, 0, None, private=False)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer exactly, like :meth:`answer`."""
        _checks.positive(noise_multiplier=noise_multiplier)
        return self.answer(query, micro_epsilon=1)
