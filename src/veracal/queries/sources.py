"""Who answers queries, and what an answer says of itself.

Whatever recalibrates or measures privately is written against :class:`Source` and never learns
whether the records lie here, lie elsewhere or are spread over many places.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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
from veracal.mechanisms import Grid, discrete_gaussian_reach, discrete_laplace_reach
from veracal.queries.query import Query, Records


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
        Standard deviation of the noise on each entry, in the query's own measure.
    micro_epsilon : int or None
        What one unit of the records paid, in millionths of epsilon; None where the event has no
        pure cost, as with Gaussian noise.
    event : Event or None
        What was charged; None if nothing protects the answer.
    private : bool
        Whether the answer is protected by the event.
    head : str or None
        Hash of the entry of this very answer in the ledger's chain, which was its head then,
        for whoever wants to check later that the ledger was not set back. The same answer has
        the same one, whenever it is repeated. It is not part of the answer.

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
        """Where the exact answers lie, each with probability ``level`` over the noise.

        Only the noise is counted: what a sample of records says about others it does not say.

        Returns
        -------
        array of shape (entries, 2)
        """
        noises = _noises(self.event)
        each = 1 - (1 - level) / max(1, len(noises))  # all of them at once (Bonferroni)
        reach = sum(_reach(noise, each) for noise in noises)
        ends = [(unit - reach, unit + reach) for unit in self.units]
        return np.array([self.grid.values(pair) for pair in ends])

    @property
    def epsilon(self) -> float | None:
        """What one unit of the records paid, where that is a pure cost."""
        return None if self.micro_epsilon is None else self.micro_epsilon / MICRO


def _noises(event: Event | None) -> list[Event]:
    """The noise of every source that an answer adds up."""
    if isinstance(event, Parallel):
        return [noise for part in event.events for noise in _noises(part)]
    return [] if event is None else [event]


def _reach(event: Event, level: float) -> int:
    """How far one source's noise reaches, in units."""
    if isinstance(event, DiscreteLaplace):
        return discrete_laplace_reach(event.noise, level)
    if isinstance(event, DiscreteGaussian):
        return discrete_gaussian_reach(event.noise, level)
    raise ValueError(f"Expected discrete noise, got {type(event).__name__}.")


@runtime_checkable
class Source(Protocol):
    """Somebody who answers queries.

    Whoever writes one runs :func:`veracal.testing.check_source` on it.

    Guarantees
    ----------
    The cost is charged in one step with the answer, and what cannot be paid is refused before
    a record is read. A repeated request gets the same answer at no cost; another question
    under the same request raises :class:`~veracal.errors.ConflictError`.
    """

    def answer(
        self, query: Query, *, micro_epsilon: int, request: str | None = None
    ) -> Release:
        """Answer a query with the noise that ``micro_epsilon`` millionths of epsilon buy.

        Parameters
        ----------
        query : Query
        micro_epsilon : int
        request : str, optional
            Id of the request, for safe retries. Without one the question itself is the id:
            asked again, it gets the same answer.
        """


@runtime_checkable
class GaussianSource(Source, Protocol):
    """A source that also answers with Gaussian noise, for budgets with a delta.

    Guarantees
    ----------
    As of :class:`Source`.
    """

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer a query with discrete Gaussian noise.

        Parameters
        ----------
        query : Query
        noise_multiplier : float
            Noise divided by the most that one unit moves the answer in the L2 norm.
        request : str, optional
            As for :meth:`answer`.
        """


@runtime_checkable
class DeclaredSource(Protocol):
    """Whoever says publicly whom it protects; :func:`declares` tells.

    Attributes
    ----------
    relation : {"add-remove", "replace-one"}
    unit : Unit
    """

    @property
    def relation(self) -> Relation:
        """Under which relation it answers."""

    @property
    def unit(self) -> Unit:
        """Whom it protects."""


def is_declared(source: object) -> TypeGuard[DeclaredSource]:
    """Whether a source says whom it protects, and in terms that mean something.

    ``isinstance`` would see the names alone, and take fifty times as long, which is much where
    there are thousands of sources.
    """
    relation = getattr(source, "relation", None)
    known = isinstance(relation, str) and relation in RELATIONS
    return known and isinstance(getattr(source, "unit", None), Unit)


@runtime_checkable
class PayingSource(DeclaredSource, Protocol):
    """Whoever can say beforehand whether it is able to pay.

    Attributes
    ----------
    part : str or None
        Part of its ledger that it pays from.
    """

    @property
    def part(self) -> str | None:
        """Part of its ledger that it pays from."""

    def unpaid(self, items: Iterable[Item], *, request: str | None = None) -> list[Item]:
        """What is left to pay of items, of which some may have been charged before."""

    def require(self, items: Sequence[Item]) -> None:
        """Raise a ``BudgetError`` unless all items can be paid for; charge nothing."""


@dataclass(frozen=True, eq=False, repr=False)
class Public:
    """A source of *public* records: its answers are exact, cost nothing and protect nobody.

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
        """Answer exactly; the release says that it is not private."""
        _checks.whole(micro_epsilon=micro_epsilon)
        return self._exact(query)

    def answer_gaussian(
        self, query: Query, *, noise_multiplier: float, request: str | None = None
    ) -> Release:
        """Answer exactly, as :meth:`answer` does."""
        _checks.positive(noise_multiplier=noise_multiplier)
        return self._exact(query)

    def _exact(self, query: Query) -> Release:
        """The answer without noise."""
        units = tuple(int(k) for k in query.evaluate(self.records))
        return Release(query.name, units, query.grid, 0.0, 0, None, private=False)
