"""Bounded statistics of records, with what one record can do to them.

A query is asked of records it has never seen, so all it says of itself is public: its name, its
grid, its bounds, the number of its entries, and from these its sensitivity under each relation.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from veracal._types import Ints
from veracal.data import Dataset, Scores
from veracal.privacy.answers.grid import Grid
from veracal.privacy.answers.noise import gaussian_noise, laplace_noise
from veracal.privacy.budget import Relation, Unit
from veracal.privacy.events import DiscreteGaussian, DiscreteLaplace

Records = Scores | Dataset
Setting = str | int | float | bool


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
    def settings(self) -> Mapping[str, Setting]: ...  # noqa: D102

    def sensitivity(self, relation: Relation) -> int:
        """Most that the result moves in the L1 norm, in units of the grid."""

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that the result moves in the L2 norm, in units of the grid."""

    def evaluate(self, records: Any) -> Ints:
        """The exact answer, int64 of shape (entries,), in units of the grid."""


class NotASum:
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
    >>> from veracal.privacy.answers.score_queries import Correct
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
