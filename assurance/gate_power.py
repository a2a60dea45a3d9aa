"""The attack on released numbers is valid, and detects a few per cent of missing noise.

The subject is the attack itself. Valid: on noise that costs what is claimed it exceeds the claim
no more often than its level says, at levels where that can be counted. Sharp: it notices 6 % of
noise missing (2 % in the long setting), in either tail, whichever neighbor comes first.
"""

from collections.abc import Callable

import numpy as np
from scipy import stats

from assurance import audits
from assurance.audits import pure_bound, pure_lower_bound, two_sided_geometric

NAME = "power"
SECONDS = 20
Audit = Callable[..., float]
EPSILON = 2.0
REACH = 1_000  # units that one record moves: a fine grid


def same_draws(
    first: np.ndarray, second: np.ndarray, *, alpha: float, choosing: float
) -> float:
    """Certify with the draws that chose the event."""
    event = audits.best_event(first, second, score=pure_bound, alpha=alpha)
    return float(pure_bound(*event.counts(first, second), len(first), len(second), alpha))


def point_estimate(first, second, *, alpha, choosing):
    """Take frequencies for probabilities."""
    (choose, certify) = audits.halves(first, second, choosing)
    event = audits.best_event(*choose, score=pure_bound, alpha=alpha)
    hits, others = event.counts(*certify)
    return float(
        np.log(max(hits, 1) / len(certify[0])) - np.log(max(others, 1) / len(certify[1]))
    )


def loose_level(first, second, *, alpha, choosing):
    """A confidence level ten times too loose."""
    return pure_lower_bound(first, second, alpha=min(10 * alpha, 0.9), choosing=choosing)


def one_bound_too_few(first, second, *, alpha, choosing):
    """A bound for the likelier side, an estimate for the other."""
    choose, certify = audits.halves(first, second, choosing)
    event = audits.best_event(*choose, score=pure_bound, alpha=alpha)
    hits, others = event.counts(*certify)
    least, _ = audits.least_and_most(hits, others, *map(len, certify), alpha)
    return float(np.log(least) - np.log(max(others, 1) / len(certify[1])))


def restricted(keep: Callable[[bool, bool], bool]) -> Audit:
    """An attack that uses some events only."""

    def audit(first, second, *, alpha, choosing):
        choose, certify = audits.halves(first, second, choosing)
        event = audits.best_event(*choose, score=pure_bound, alpha=alpha, keep=keep)
        return float(pure_bound(*event.counts(*certify), *map(len, certify), alpha))

    return audit


def at_the_median(first, second, *, alpha, choosing):
    """One threshold, far into the tail, whatever the draws."""
    _, certify = audits.halves(first, second, choosing)
    event = audits.TailEvent(float(np.quantile(first, 0.999)), upper=True, swapped=False)
    return float(pure_bound(*event.counts(*certify), *map(len, certify), alpha))


def few_draws(first, second, *, alpha, choosing):
    """Nearly all draws choose, few certify."""
    return pure_lower_bound(first, second, alpha=alpha, choosing=0.9)


CORRECT: Audit = pure_lower_bound
MUTANTS: dict[str, Audit] = {
    "certifies with the draws that chose": same_draws,
    "frequencies for probabilities": point_estimate,
    "level ten times too loose": loose_level,
    "one confidence bound instead of two": one_bound_too_few,
    "upper tails only": restricted(lambda upper, swapped: upper),
    "one neighbor only": restricted(lambda upper, swapped: not swapped),
    "one fixed event": at_the_median,
    "few draws certify": few_draws,
}


def run(subject: Audit, *, long: bool) -> str:
    """Count false alarms of sound noise, then look for noise that is missing."""
    rng = np.random.default_rng(0)
    alarms = check_sound(subject, rng, trials=10_000 if long else 1_500)
    factor, n = (0.98, 1_100_000) if long else (0.94, 110_000)
    weakest = min(excess(subject, factor, n, rng) for _ in range(5 if long else 3))
    assert weakest > 0, f"noise times {factor} went unnoticed"
    calm = max(excess(subject, 1.0, n, rng) for _ in range(5 if long else 3))
    assert calm <= 0, f"sound noise was taken for too little, by {calm:.4f}"
    return (
        f"{alarms}; noise times {factor} exceeds the claim by {weakest:.3f} at least "
        f"(n = {n:,} a side)"
    )


def check_sound(subject: Audit, rng: np.random.Generator, *, trials: int) -> str:
    """At a level of 5 %, sound noise exceeds its claim in 5 % of the trials at most."""
    level, n = 0.05, 600
    scale = REACH / EPSILON
    first = REACH + two_sided_geometric(trials * n, scale, rng).reshape(trials, n)
    second = two_sided_geometric(trials * n, scale, rng).reshape(trials, n)
    alarms = sum(
        subject(one, other, alpha=level, choosing=0.5) > EPSILON
        for one, other in zip(first, second, strict=True)
    )
    # One-sided exact test of "at most the level", itself at one in a million.
    pvalue = stats.binom.sf(alarms - 1, trials, level)
    assert pvalue > 1e-6, f"{alarms} of {trials} sound releases were called too cheap"
    return f"{alarms} of {trials:,} false alarms at level {level}"


def excess(subject: Audit, factor: float, n: int, rng: np.random.Generator) -> float:
    """By how much the audit exceeds the claim at least, over ways to hide the shortfall."""
    short = factor * REACH / EPSILON

    pairs = [
        (REACH + two_sided_geometric(n, short, rng), two_sided_geometric(n, short, rng)),
        (two_sided_geometric(n, short, rng), REACH + two_sided_geometric(n, short, rng)),
    ]
    if factor < 1:
        pairs += [(one_sided(0, +1, n, rng), one_sided(REACH, +1, n, rng))]
        pairs += [(one_sided(0, -1, n, rng), one_sided(REACH, -1, n, rng))]
        pairs += [(one_sided(REACH, +1, n, rng), one_sided(0, +1, n, rng))]
        pairs += [(one_sided(REACH, -1, n, rng), one_sided(0, -1, n, rng))]
    found = [
        subject(one.astype(float), other.astype(float), alpha=1e-6, choosing=1 / 11) - EPSILON
        for one, other in pairs
    ]
    return min(found) if factor < 1 else max(found)


def one_sided(center: int, side: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Noise that leaves one side of the true value empty: seen in one tail only."""
    return center + side * np.abs(two_sided_geometric(n, REACH / EPSILON, rng))
