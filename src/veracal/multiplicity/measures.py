r"""How far runs of the same training disagree about a person.

A run gives each person a decision. With :math:`\hat p_c` the share of m runs that decide for
class c, everything here is a function of those shares (Kulynych et al. 2023,
https://arxiv.org/abs/2302.14517; the paper's formulas by their numbers).

What m runs can tell of a disagreement, and what they cannot.

The number of runs that decide for a class is binomial, with each person's own share p; people
share the runs, so that statements about all of them at once are by the union bound.

How many runs an audit takes, before the first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv, betaln, xlog1py, xlogy

from veracal import _checks
from veracal._types import Floats, Ints


def disagreement(positive: Ints, runs: int) -> Floats:
    r"""Disagreement about one of two decisions, Eq. 8.

    .. math:: \hat\mu = 4\,\frac{m}{m-1}\,\hat p\,(1 - \hat p)

    Four times the variance of the decision, without bias: the mean over the choice of runs is
    :math:`\mu = 4p(1-p)`, 1 for a coin and 0 where all runs would agree. It is also twice the
    share of pairs of runs that differ, so that it may exceed 1, up to m/(m-1).

    Parameters
    ----------
    positive : array of ints
        How many of the runs decided for the class, for each person (and class).
    runs : int
        Two or more.

    Examples
    --------
    >>> disagreement(np.array([0, 25, 50]), 50).round(4)
    array([0.    , 1.0204, 0.    ])
    """
    return 4 * decision_variance(positive, runs)


def decision_variance(positive: Ints, runs: int) -> Floats:
    r"""Variance of a decision over runs, without bias: a quarter of the disagreement."""
    check_runs(runs)
    share = np.asarray(positive, dtype=np.float64) / runs
    return runs / (runs - 1) * share * (1 - share)


def class_average(counts: Ints, runs: int) -> Floats:
    r"""Disagreement of each "class or not", mean over classes: at most :math:`4(K-1)/K^2`.

    .. math:: \frac{4}{K}\,\frac{m}{m-1}\,\Bigl(1 - \sum_c \hat p_c^2\Bigr)

    Parameters
    ----------
    counts : array of ints of shape (n, K)
    runs : int
    """
    found: Floats = disagreement(counts, runs).mean(axis=1)
    return found


def pooled_pairs(counts: Ints, runs: int) -> Floats:
    """Disagreement of every person and class as values of their own, of shape (n * K,).

    What the paper's Table 2 tells of ten classes, in whose summaries most values are small
    because most classes are out of the question for a person.
    """
    return disagreement(counts, runs).ravel()


def normalized(counts: Ints, runs: int) -> Floats:
    r"""Disagreement over K classes that is 1 where all of them are equally likely.

    .. math:: \frac{K}{K-1}\,\frac{m}{m-1}\,\Bigl(1 - \sum_c \hat p_c^2\Bigr)

    Without bias; for two classes it is :func:`disagreement`.

    Parameters
    ----------
    counts : array of ints of shape (n, K), K > 1
    runs : int

    Examples
    --------
    >>> normalized(np.array([[10, 10, 10], [30, 0, 0]]), 30).round(4)
    array([1.0345, 0.    ])
    """
    check_runs(runs)
    shares = np.asarray(counts, dtype=np.float64) / runs
    classes = shares.shape[1]
    if classes < 2:
        raise ValueError(f"Expected counts of two or more classes, got {classes}.")
    spread = 1 - np.square(shares).sum(axis=1)
    # Rounding leaves a hair below zero where all runs agree.
    found: Floats = np.maximum(classes / (classes - 1) * runs / (runs - 1) * spread, 0.0)
    return found


def expected_flip(counts: Ints, runs: int, deployed: Ints) -> Floats:
    """Share of runs that contradict a deployed model, for each person.

    Parameters
    ----------
    counts : array of ints of shape (n, K)
    runs : int
    deployed : array of ints in [0, K), of shape (n,)
        Its decisions.

    Notes
    -----
    If the deployed model is one of the runs, leave it out of the counts.
    """
    check_runs(runs, least=1)
    agreeing = np.asarray(counts)[np.arange(len(deployed)), deployed]
    found: Floats = 1 - agreeing / runs
    return found


def check_runs(runs: int, least: int = 2) -> None:
    """Refuse too few runs to tell anything from."""
    _checks.whole(runs=runs, least=least)


_COUNTS = 1 << 14  # that are looked at together
_ROUNDS = 60  # of bisection, each halving an interval within [0, 1]


def paper_error(runs: int, people: int = 1, level: float = 0.95) -> float:
    r"""Bound on the error of the estimate of Eq. 8 that the paper gives (Eq. 9, 10).

    .. math:: \alpha = \frac{1}{m-1} + \frac{4m}{m-1}\,\eta\,(1+\eta), \qquad
        \eta = \sqrt{\frac{\ln(2k/\rho)}{2m}}

    With probability at least :math:`1-\rho`, the level, no disagreement of k people is farther
    from its estimate.

    Examples
    --------
    >>> [round(paper_error(m), 4) for m in (50, 1000, 5000)]
    [0.9549, 0.1803, 0.0785]
    """
    eta = _eta(runs, people, level)
    return 1 / (runs - 1) + 4 * runs / (runs - 1) * eta * (1 + eta)


def simple_error(runs: int, people: int = 1, level: float = 0.95) -> float:
    r"""The same without a factor that is not needed.

    As :math:`|\hat p(1-\hat p) - p(1-p)| = |\hat p - p|\,|1 - p - \hat p| \le |\hat p - p|`,
    the factor :math:`1+\eta` of Eq. 9 can be dropped.

    Examples
    --------
    >>> [round(simple_error(m), 4) for m in (50, 1000, 5000)]
    [0.8043, 0.173, 0.077]
    """
    eta = _eta(runs, people, level)
    return 1 / (runs - 1) + 4 * runs / (runs - 1) * eta


def paper_runs(error: float, people: int = 1, level: float = 0.95) -> float:
    r"""Runs after which :func:`paper_error` is that small: Eq. 20, the exact inverse.

    Examples
    --------
    >>> [round(paper_runs(a), 1) for a in (0.05, 0.08, 0.1)]
    [12139.2, 4820.2, 3118.4]
    """
    _check_error(error)
    t = _exponent(people, level)
    # m a - a - 1 = 4 m eta + 4 m eta^2 with m eta^2 = t / 2 is quadratic in the root of m.
    half = math.sqrt(2 * t)
    root = (half + math.sqrt(half**2 + error * (1 + error + 2 * t))) / error
    return root**2


def binomial_interval(
    positive: Ints, runs: int, level: float = 0.95, people: int = 1
) -> tuple[Floats, Floats]:
    """Exact interval of shares (Clopper and Pearson 1934), for some people at once.

    Parameters
    ----------
    positive : array of ints
    runs : int
    level : float in (0, 1)
    people : int
        Number of shares of which all intervals are to hold together.
    """
    check_runs(runs, least=1)
    tail = (1 - _level(level)) / (2 * _people(people))
    count = np.asarray(positive, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        low = np.where(count == 0, 0.0, betaincinv(count, runs - count + 1, tail))
        high = np.where(count == runs, 1.0, betainccinv(count + 1, runs - count, tail))
    return low, high


def lasting_interval(
    positive: Ints, runs: int, level: float = 0.95, people: int = 1
) -> tuple[Floats, Floats]:
    r"""Intervals of shares that hold after *every* number of runs at once.

    Whoever looks at intervals while runs come in, and stops when they are short enough, needs
    these: the others hold for one number of runs that is fixed beforehand. For any p,

    .. math:: M_m(p) = \frac{B(s+\tfrac12, m-s+\tfrac12)}
        {B(\tfrac12, \tfrac12)\, p^s (1-p)^{m-s}}

    is a martingale of mean 1 under p (a mixture of likelihood ratios, Robbins 1970), so by
    Ville's inequality it ever reaches k/ρ with probability at most ρ/k. The interval is where
    it has not.

    Parameters
    ----------
    positive, runs, level, people
        As of :func:`binomial_interval`.
    """
    check_runs(runs, least=1)
    count = np.asarray(positive, dtype=np.float64)
    most = math.log(_people(people) / (1 - _level(level)))
    mixed = betaln(count + 0.5, runs - count + 0.5) - betaln(0.5, 0.5)

    def outside(p: Floats) -> Floats:
        found: Floats = mixed - xlogy(count, p) - xlog1py(runs - count, -p) - most
        return found

    share = count / runs  # where it is least
    low = _boundary(outside, share, np.zeros_like(share))
    high = _boundary(outside, share, np.ones_like(share))
    return np.where(count == 0, 0.0, low), np.where(count == runs, 1.0, high)


def disagreement_interval(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Interval of 4p(1-p) where p is in an interval.

    Examples
    --------
    >>> disagreement_interval(np.array([0.25, 0.25]), np.array([0.375, 0.75]))
    (array([0.75, 0.75]), array([0.9375, 1.    ]))
    """
    ends = 4 * low * (1 - low), 4 * high * (1 - high)
    holds_half = (low <= 0.5) & (high >= 0.5)
    return np.minimum(*ends), np.where(holds_half, 1.0, np.maximum(*ends))


def normalized_interval(low: Floats, high: Floats, share: Floats) -> tuple[Floats, Floats]:
    r"""Interval of :math:`\tfrac{K}{K-1}(1 - \sum_c p_c^2)` where each share is in an interval.

    For any a, :math:`\sum p_c^2 \ge \sum (2 a_c p_c - a_c^2)`, taken at the estimate; and
    :math:`\sum p_c^2 \le \sum h_c p_c` with the upper ends h. Both are linear in p, so that
    their extremes over the intervals and :math:`\sum p_c = 1` are found by filling up.

    Parameters
    ----------
    low, high, share : array of shape (people, K)

    Examples
    --------
    >>> p = np.array([[0.5, 0.25, 0.25]])
    >>> [end.round(4).tolist() for end in normalized_interval(p, p, p)]
    [[0.9375], [0.9375]]
    """
    classes = share.shape[1]
    if classes == 2:
        return disagreement_interval(low[:, 1], high[:, 1])
    most = _filled(low, high, high)
    least = 2 * -_filled(low, high, -share) - np.square(share).sum(axis=1)
    scale = classes / (classes - 1)
    ends = (scale * (1 - np.minimum(most, 1.0)), scale * (1 - np.maximum(least, 1 / classes)))
    return np.maximum(ends[0], 0.0), np.minimum(ends[1], 1.0)


def _filled(low: Floats, high: Floats, worth: Floats) -> Floats:
    """Largest sum of worth times share, where shares are in intervals and add up to one."""
    order = np.argsort(-worth, axis=1)
    ends = (np.take_along_axis(each, order, axis=1) for each in (low, high, worth))
    least, most, value = ends
    left = 1 - least.sum(axis=1)
    found: Floats = (value * least).sum(axis=1)
    for place in range(worth.shape[1]):
        more = np.clip(most[:, place] - least[:, place], 0.0, np.maximum(left, 0.0))
        found += value[:, place] * more
        left = left - more
    return found


def exact_error(runs: int, people: int = 1, level: float = 0.95) -> float:
    """Most that the exact interval reaches from the estimate, whatever the runs decide.

    With probability at least the level, no disagreement of k people is farther from its
    estimate; it is less than :func:`simple_error`.
    """
    check_runs(runs)

    def reach(counts: Ints) -> Floats:
        estimate = 4 * runs / (runs - 1) * (counts / runs) * (1 - counts / runs)
        low, high = disagreement_interval(*binomial_interval(counts, runs, level, people))
        return np.maximum(estimate - low, high - estimate)

    first, last = 0, runs // 2  # the other half mirrors this one
    # It varies smoothly: of too many counts some tell between which the largest is.
    while last - first >= _COUNTS:
        some = np.linspace(first, last, _COUNTS).astype(np.int64)
        best = int(reach(some).argmax())
        first, last = int(some[max(best - 1, 0)]), int(some[min(best + 1, _COUNTS - 1)])
    return float(reach(np.arange(first, last + 1)).max())


def _boundary(outside: Callable[[Floats], Floats], inside: Floats, end: Floats) -> Floats:
    """Where an interval ends between its middle and 0 or 1, on the safe side."""
    near, far = inside, end
    for _ in range(_ROUNDS):
        middle = (near + far) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = outside(middle) > 0
        near, far = np.where(beyond, near, middle), np.where(beyond, middle, far)
    return far


def _eta(runs: int, people: int, level: float) -> float:
    """How far a share is from its estimate at most (Hoeffding 1963)."""
    check_runs(runs)
    return math.sqrt(_exponent(people, level) / (2 * runs))


def _exponent(people: int, level: float) -> float:
    """ln(2k/rho)."""
    return math.log(2 * _people(people) / (1 - _level(level)))


def _people(people: int) -> int:
    _checks.whole(people=people)
    return int(people)


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"Expected level between 0 and 1, got level={level!r}.")
    return level


def _check_error(error: float) -> None:
    if not error > 0:
        raise ValueError(f"Expected error > 0, got error={error!r}.")


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
