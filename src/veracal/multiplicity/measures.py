r"""Disagreement between runs of the same training, per individual.

A run gives each individual a decision. With :math:`\hat p_c` the share of m runs that predict
class c, every measure here is a function of those shares (Kulynych et al. 2023,
https://arxiv.org/abs/2302.14517; equation numbers are those of the paper).

Confidence intervals: the number of runs that predict a class is binomial, with a probability of
its own for each individual. All individuals share the runs, so that simultaneous statements use
the union bound.

Planning: how many runs an audit needs, before the first run.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv, betaln, xlog1py, xlogy

from veracal import _checks
from veracal._types import Floats, Ints


def disagreement(positive: Ints, runs: int) -> Floats:
    r"""Disagreement about a binary decision, Eq. 8.

    .. math:: \hat\mu = 4\,\frac{m}{m-1}\,\hat p\,(1 - \hat p)

    Four times the variance of the decision, unbiased: its expectation over runs is
    :math:`\mu = 4p(1-p)`: 1 for a coin toss and 0 where all runs agree. It is also twice
    the share of pairs of runs that differ, so that the estimate may exceed 1, up to m/(m-1).

    Parameters
    ----------
    positive : array of ints
        Number of runs that predict the class, for each individual (and class).
    runs : int
        Two or more.

    Examples
    --------
    >>> disagreement(np.array([0, 25, 50]), 50).round(4)
    array([0.    , 1.0204, 0.    ])
    """
    return 4 * decision_variance(positive, runs)


def decision_variance(positive: Ints, runs: int) -> Floats:
    """Unbiased variance of a decision over runs: a quarter of the disagreement."""
    check_runs(runs)
    share = np.asarray(positive, dtype=np.float64) / runs
    return runs / (runs - 1) * share * (1 - share)


def class_averaged_disagreement(counts: Ints, runs: int) -> Floats:
    r"""Class-averaged one-vs-rest disagreement, at most :math:`4(K-1)/K^2`.

    .. math:: \frac{4}{K}\,\frac{m}{m-1}\,\Bigl(1 - \sum_c \hat p_c^2\Bigr)

    Parameters
    ----------
    counts : array of ints of shape (n, K)
    runs : int
    """
    result: Floats = disagreement(counts, runs).mean(axis=1)
    return result


def pooled_disagreement(counts: Ints, runs: int) -> Floats:
    """Disagreement of every pair of individual and class, of shape (n * K,).

    The quantity of the paper's Table 2 for ten classes. Its summaries are dominated by small
    values, because most classes are implausible for a given individual.
    """
    return disagreement(counts, runs).ravel()


def normalized_disagreement(counts: Ints, runs: int) -> Floats:
    r"""Disagreement over K classes, scaled to 1 where all classes are equally likely.

    .. math:: \frac{K}{K-1}\,\frac{m}{m-1}\,\Bigl(1 - \sum_c \hat p_c^2\Bigr)

    Unbiased; for two classes it equals :func:`disagreement`.

    Parameters
    ----------
    counts : array of ints of shape (n, K), K > 1
    runs : int

    Examples
    --------
    >>> normalized_disagreement(np.array([[10, 10, 10], [30, 0, 0]]), 30).round(4)
    array([1.0345, 0.    ])
    """
    check_runs(runs)
    shares = np.asarray(counts, dtype=np.float64) / runs
    classes = shares.shape[1]
    if classes < 2:
        raise ValueError(f"Expected counts of two or more classes, got {classes}.")
    spread = 1 - np.square(shares).sum(axis=1)
    # Rounding leaves a tiny negative number where all runs agree.
    result: Floats = np.maximum(classes / (classes - 1) * runs / (runs - 1) * spread, 0.0)
    return result


def expected_flip(counts: Ints, runs: int, deployed: Ints) -> Floats:
    """Share of runs that contradict a deployed model, for each individual.

    Parameters
    ----------
    counts : array of ints of shape (n, K)
    runs : int
    deployed : array of ints in [0, K), of shape (n,)
        Decisions of the deployed model.

    Notes
    -----
    If the deployed model is one of the runs, exclude it from the counts.
    """
    check_runs(runs, least=1)
    agreeing = np.asarray(counts)[np.arange(len(deployed)), deployed]
    result: Floats = 1 - agreeing / runs
    return result


def check_runs(runs: int, least: int = 2) -> None:
    """Reject a number of runs that is too small to estimate anything."""
    _checks.whole(runs=runs, least=least)


_BLOCK_COUNTS = 1 << 14  # counts evaluated at once
_BISECTIONS = 60  # each halves an interval within [0, 1]


def paper_error(runs: int, individuals: int = 1, level: float = 0.95) -> float:
    r"""Error bound of Eq. 8 as given in the paper (Eq. 9, 10).

    .. math:: \alpha = \frac{1}{m-1} + \frac{4m}{m-1}\,\eta\,(1+\eta), \qquad
        \eta = \sqrt{\frac{\ln(2k/\rho)}{2m}}

    With probability at least :math:`1-\rho`, the confidence level, none of the k disagreements
    is farther than :math:`\alpha` from its estimate. The factor :math:`1+\eta` is unnecessary, as
    :math:`|\hat p(1-\hat p) - p(1-p)| = |\hat p - p|\,|1 - p - \hat p| \le |\hat p - p|`.

    Examples
    --------
    >>> [round(paper_error(m), 4) for m in (50, 1000, 5000)]
    [0.9549, 0.1803, 0.0785]
    """
    check_runs(runs)
    eta = math.sqrt(_log_term(individuals, level) / (2 * runs))  # Hoeffding 1963
    return 1 / (runs - 1) + 4 * runs / (runs - 1) * eta * (1 + eta)


def paper_runs(error: float, individuals: int = 1, level: float = 0.95) -> float:
    """Runs for which :func:`paper_error` equals an error: Eq. 20, its exact inverse.

    Examples
    --------
    >>> [round(paper_runs(a), 1) for a in (0.05, 0.08, 0.1)]
    [12139.2, 4820.2, 3118.4]
    """
    if not error > 0:
        raise ValueError(f"Expected error > 0, got error={error!r}.")
    t = _log_term(individuals, level)
    # m a - a - 1 = 4 m eta + 4 m eta^2 with m eta^2 = t / 2 is quadratic in the root of m.
    half = math.sqrt(2 * t)
    root = (half + math.sqrt(half**2 + error * (1 + error + 2 * t))) / error
    return root**2


def binomial_interval(
    positive: Ints, runs: int, level: float = 0.95, individuals: int = 1
) -> tuple[Floats, Floats]:
    """Exact simultaneous intervals of shares (Clopper and Pearson 1934).

    Parameters
    ----------
    positive : array of ints
    runs : int
    level : float in (0, 1)
    individuals : int
        Number of shares whose intervals hold simultaneously.
    """
    check_runs(runs, least=1)
    _checks.whole(individuals=individuals)
    _checks.open_fraction(level=level)
    tail = (1 - level) / (2 * int(individuals))
    count = np.asarray(positive, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        low = np.where(count == 0, 0.0, betaincinv(count, runs - count + 1, tail))
        high = np.where(count == runs, 1.0, betainccinv(count + 1, runs - count, tail))
    return low, high


def anytime_interval(
    positive: Ints, runs: int, level: float = 0.95, individuals: int = 1
) -> tuple[Floats, Floats]:
    r"""Anytime-valid intervals of shares: they hold for *every* number of runs simultaneously.

    An audit that looks at the intervals while runs arrive, and stops when they are short
    enough, needs these: fixed-sample intervals hold only for a number of runs chosen in
    advance. For any p,

    .. math:: M_m(p) = \frac{B(s+\tfrac12, m-s+\tfrac12)}
        {B(\tfrac12, \tfrac12)\, p^s (1-p)^{m-s}}

    is a martingale of mean 1 under p (a mixture of likelihood ratios, Robbins 1970), so by
    Ville's inequality it ever reaches k/ρ with probability at most ρ/k. The interval is the set
    of p for which it has not.

    Parameters
    ----------
    positive, runs, level, individuals
        As for :func:`binomial_interval`.
    """
    check_runs(runs, least=1)
    count = np.asarray(positive, dtype=np.float64)
    _checks.whole(individuals=individuals)
    _checks.open_fraction(level=level)
    log_threshold = math.log(int(individuals) / (1 - level))
    mixed = betaln(count + 0.5, runs - count + 0.5) - betaln(0.5, 0.5)

    def outside(p: Floats) -> Floats:
        result: Floats = mixed - xlogy(count, p) - xlog1py(runs - count, -p) - log_threshold
        return result

    share = count / runs  # the minimum of `outside`
    low = _find_boundary(outside, share, np.zeros_like(share))
    high = _find_boundary(outside, share, np.ones_like(share))
    return np.where(count == 0, 0.0, low), np.where(count == runs, 1.0, high)


def disagreement_interval(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Interval of 4p(1-p), given an interval of p.

    Examples
    --------
    >>> disagreement_interval(np.array([0.25, 0.25]), np.array([0.375, 0.75]))
    (array([0.75, 0.75]), array([0.9375, 1.    ]))
    """
    ends = 4 * low * (1 - low), 4 * high * (1 - high)
    holds_half = (low <= 0.5) & (high >= 0.5)
    return np.minimum(*ends), np.where(holds_half, 1.0, np.maximum(*ends))


def normalized_interval(low: Floats, high: Floats, share: Floats) -> tuple[Floats, Floats]:
    r"""Interval of :math:`\tfrac{K}{K-1}(1 - \sum_c p_c^2)`, given an interval of each share.

    For any a, :math:`\sum p_c^2 \ge \sum (2 a_c p_c - a_c^2)`, taken at the estimate; and
    :math:`\sum p_c^2 \le \sum h_c p_c` with the upper ends h. Both are linear in p, so that
    their extremes over the intervals and :math:`\sum p_c = 1` are found greedily.

    Parameters
    ----------
    low, high, share : array of shape (individuals, K)

    Examples
    --------
    >>> p = np.array([[0.5, 0.25, 0.25]])
    >>> [end.round(4).tolist() for end in normalized_interval(p, p, p)]
    [[0.9375], [0.9375]]
    """
    classes = share.shape[1]
    if classes == 2:
        return disagreement_interval(low[:, 1], high[:, 1])
    largest = _max_weighted_sum(low, high, high)
    smallest = 2 * -_max_weighted_sum(low, high, -share) - np.square(share).sum(axis=1)
    scale = classes / (classes - 1)
    ends = (
        scale * (1 - np.minimum(largest, 1.0)),
        scale * (1 - np.maximum(smallest, 1 / classes)),
    )
    return np.maximum(ends[0], 0.0), np.minimum(ends[1], 1.0)


def _max_weighted_sum(low: Floats, high: Floats, weights: Floats) -> Floats:
    """Maximum of the weighted sum of shares that lie in intervals and sum to one."""
    order = np.argsort(-weights, axis=1)
    ends = (np.take_along_axis(each, order, axis=1) for each in (low, high, weights))
    lower, upper, value = ends
    remaining = 1 - lower.sum(axis=1)
    result: Floats = (value * lower).sum(axis=1)
    for column in range(weights.shape[1]):
        extra = np.clip(upper[:, column] - lower[:, column], 0.0, np.maximum(remaining, 0.0))
        result += value[:, column] * extra
        remaining = remaining - extra
    return result


def exact_error(runs: int, individuals: int = 1, level: float = 0.95) -> float:
    """Largest distance from the estimate to an end of the exact interval, over all outcomes.

    With probability at least the confidence level, none of the k disagreements is farther from
    its estimate; this is less than :func:`paper_error`.
    """
    check_runs(runs)

    def half_width(counts: Ints) -> Floats:
        estimate = 4 * runs / (runs - 1) * (counts / runs) * (1 - counts / runs)
        low, high = disagreement_interval(*binomial_interval(counts, runs, level, individuals))
        return np.maximum(estimate - low, high - estimate)

    first, last = 0, runs // 2  # the error is symmetric
    # The error varies smoothly, so that a coarse grid brackets its maximum.
    while last - first >= _BLOCK_COUNTS:
        some = np.linspace(first, last, _BLOCK_COUNTS).astype(np.int64)
        best = int(half_width(some).argmax())
        first, last = int(some[max(best - 1, 0)]), int(some[min(best + 1, _BLOCK_COUNTS - 1)])
    return float(half_width(np.arange(first, last + 1)).max())


def _find_boundary(outside: Callable[[Floats], Floats], inside: Floats, end: Floats) -> Floats:
    """Bisect for the end of an interval between its middle and 0 or 1, rounded outward."""
    inner, outer = inside, end
    for _ in range(_BISECTIONS):
        middle = (inner + outer) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = outside(middle) > 0
        inner, outer = np.where(beyond, inner, middle), np.where(beyond, middle, outer)
    return outer


def _log_term(individuals: int, level: float) -> float:
    """The exponent ln(2k/rho)."""
    _checks.whole(individuals=individuals)
    _checks.open_fraction(level=level)
    return math.log(2 * int(individuals) / (1 - level))


_MAX_RUNS = 2**22  # runs


@dataclass(frozen=True)
class AuditPlan:
    """Runs that an error requires, by the exact intervals and by the paper's bound.

    Attributes
    ----------
    individuals : int
        Number of individuals for whom the estimates hold simultaneously.
    error : float
        Largest distance of a disagreement from its estimate.
    level : float
        Probability that no individual exceeds it.
    runs : int
        Number of runs that suffices by exact intervals.
    paper_runs : int
        Number of runs that the paper's bound requires (Kulynych et al. 2023, Eq. 20).
    """

    individuals: int
    error: float
    level: float
    runs: int
    paper_runs: int


def plan_audit(individuals: int = 1, error: float = 0.1, level: float = 0.95) -> AuditPlan:
    """Find how many runs an error requires.

    Examples
    --------
    >>> plan = plan_audit(individuals=369, error=0.08)
    >>> plan.paper_runs
    12502
    >>> plan.runs < plan.paper_runs / 4
    True
    """
    by_paper = math.ceil(paper_runs(error, individuals, level))
    if by_paper > 16 * _MAX_RUNS:  # exact intervals need about a third of the runs
        raise _unreachable_error(error)
    # Bisection for the smallest number with a small enough error, up to integer effects.
    low, high = 2, 4
    while exact_error(high, individuals, level) > error:
        low, high = high, 2 * high
        if high > 16 * _MAX_RUNS:
            raise _unreachable_error(error)
    while high - low > 1:
        middle = (low + high) // 2
        if exact_error(middle, individuals, level) > error:
            low = middle
        else:
            high = middle
    return AuditPlan(individuals, error, level, high, by_paper)


def achieved_errors(runs: int, individuals: int = 1, level: float = 0.95) -> dict[str, float]:
    """The inverse of :func:`plan_audit`: the errors that a number of runs achieves."""
    return {
        "exact": exact_error(runs, individuals, level),
        "paper": paper_error(runs, individuals, level),
    }


def _unreachable_error(error: float) -> ValueError:
    """The error for a target that no practical number of runs reaches."""
    return ValueError(
        f"Expected an error that about {_MAX_RUNS:,} runs can reach, got error={error!r}."
    )
