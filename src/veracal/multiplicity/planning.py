"""How many runs an audit takes, before the first."""

import math
from dataclasses import dataclass

from veracal.multiplicity.intervals import exact_error, paper_error, paper_runs

_MOST = 2**22  # runs


@dataclass(frozen=True)
class AuditPlan:
    """Runs for an error, by the exact intervals and by the paper's bound.

    Attributes
    ----------
    people : int
        Of whom all estimates are to hold together.
    error : float
        Farthest that any disagreement may be from its estimate.
    level : float
        Probability that none is.
    runs : int
        That are enough, by exact intervals.
    paper_runs : int
        That the paper's bound asks for (Kulynych et al. 2023, Eq. 20).
    """

    people: int
    error: float
    level: float
    runs: int
    paper_runs: int


def plan_audit(people: int = 1, error: float = 0.1, level: float = 0.95) -> AuditPlan:
    """Find how many runs are enough for an error.

    Examples
    --------
    >>> plan = plan_audit(people=369, error=0.08)
    >>> plan.paper_runs
    12502
    >>> plan.runs < plan.paper_runs / 4
    True
    """
    by_paper = math.ceil(paper_runs(error, people, level))
    if by_paper > 16 * _MOST:  # exact intervals are about three times shorter
        raise _too_small(error)
    return AuditPlan(people, error, level, _fewest(people, error, level), by_paper)


def _fewest(people: int, error: float, level: float) -> int:
    """Fewest runs whose exact error is small enough, up to the ripple of whole numbers."""
    low, high = 2, 4
    while exact_error(high, people, level) > error:
        low, high = high, 2 * high
        if high > 16 * _MOST:
            raise _too_small(error)
    while high - low > 1:
        middle = (low + high) // 2
        if exact_error(middle, people, level) > error:
            low = middle
        else:
            high = middle
    return high


def reached(runs: int, people: int = 1, level: float = 0.95) -> dict[str, float]:
    """The reverse: what error a number of runs reaches, by both."""
    return {
        "exact": exact_error(runs, people, level),
        "paper": paper_error(runs, people, level),
    }


def _too_small(error: float) -> ValueError:
    """What is said of an error that no number of runs within reason brings about."""
    return ValueError(
        f"Expected an error that some {_MOST:,} runs can reach, got error={error!r}."
    )
