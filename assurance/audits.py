"""A lower bound on what a release really costs, from draws of it on two neighbors.

Some of the draws choose the event that best distinguishes the neighbors; the others certify how
much more likely it is under one of them (Clopper, Pearson 1934).
With probability 1 - alpha the bound is not above the true cost.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

ALPHA = 4e-8  # of one look: up to 25 of them raise a false alarm with 1e-6 at most


@dataclass(frozen=True)
class Copies:
    """A scalar query repeated in one vector: each entry is one draw."""

    query: Any
    entries: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    def evaluate(self, records: Any) -> np.ndarray:
        return np.repeat(self.query.evaluate(records), self.entries)


@dataclass(frozen=True)
class TailEvent:
    """An answer of at least (or at most) some number, likelier under one neighbor."""

    threshold: float
    upper: bool
    swapped: bool  # likelier under the second neighbor

    def counts(self, first: np.ndarray, second: np.ndarray) -> tuple[int, int]:
        """How often it happened under the likelier and under the other neighbor."""
        pair = (second, first) if self.swapped else (first, second)
        if self.upper:
            return tuple(int((draws >= self.threshold).sum()) for draws in pair)
        return tuple(int((draws <= self.threshold).sum()) for draws in pair)


def pure_lower_bound(
    first: np.ndarray, second: np.ndarray, *, alpha: float = ALPHA, choosing: float = 0.5
) -> float:
    """Epsilon that a pure release costs at least.

    ``choosing`` is the share of the draws that choose the event.
    """
    choose, certify = halves(first, second, choosing)
    event = best_event(*choose, score=pure_bound, alpha=alpha)
    return pure_bound(*event.counts(*certify), *map(len, certify), alpha)


def gaussian_lower_bound(
    first: np.ndarray, second: np.ndarray, *, alpha: float = ALPHA, choosing: float = 0.5
) -> float:
    """Smallest separation, in standard deviations, of two equally distinguishable Gaussians."""
    choose, certify = halves(first, second, choosing)
    event = best_event(*choose, score=gaussian_bound, alpha=alpha)
    return gaussian_bound(*event.counts(*certify), *map(len, certify), alpha)


def halves(first: np.ndarray, second: np.ndarray, choosing: float = 0.5):
    """Draws that choose, and draws that certify."""
    cut = int(len(first) * choosing), int(len(second) * choosing)
    return (first[: cut[0]], second[: cut[1]]), (first[cut[0] :], second[cut[1] :])


def best_event(first, second, *, score, alpha: float, keep=lambda upper, swapped: True):
    """The most informative tail event over many thresholds, both tails and both directions.

    ``score`` is one of the bounds below. To choose, it may be computed from Wilson's bounds,
    which take no time; to certify, only from exact ones.
    """
    both = np.concatenate([first, second])
    thresholds = np.unique(np.quantile(both, np.linspace(0, 1, min(401, 2 + len(both) // 4))))
    counted = [tails(np.sort(draws), thresholds) for draws in (first, second)]
    best, event = -math.inf, TailEvent(float(thresholds[0]), upper=True, swapped=False)
    for upper in (True, False):
        for swapped in (True, False):
            if not keep(upper, swapped):
                continue
            hits, others = (counted[i][int(upper)] for i in (int(swapped), 1 - int(swapped)))
            n, n_others = (len(second), len(first)) if swapped else (len(first), len(second))
            scores = score(hits, others, n, n_others, alpha, bounds=wilson)
            if np.max(scores) > best:
                best = float(np.max(scores))
                event = TailEvent(float(thresholds[np.argmax(scores)]), upper, swapped)
    return event


def tails(draws: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many sorted draws are at most, and at least, each threshold."""
    below = np.searchsorted(draws, thresholds, side="right")
    return below, len(draws) - np.searchsorted(draws, thresholds, side="left")


def pure_bound(hits, others, n, n_others, alpha: float, *, bounds=None):
    """Logarithm of the least ratio of probabilities that fits the counts."""
    least, most = (bounds or least_and_most)(hits, others, n, n_others, alpha)
    with np.errstate(divide="ignore"):
        return np.log(least) - np.log(most)


def gaussian_bound(hits, others, n, n_others, alpha: float, *, bounds=None):
    """Least distance of two Gaussians that fits the counts."""
    least, most = (bounds or least_and_most)(hits, others, n, n_others, alpha)
    return special.ndtri(least) - special.ndtri(most)


def least_and_most(hits, others, n: int, n_others: int, alpha: float):
    """Confidence bounds: of one probability from below, of the other from above."""
    hits, others = np.asarray(hits), np.asarray(others)
    least = np.where(
        hits > 0, special.betaincinv(np.maximum(hits, 1), n - hits + 1, alpha / 2), 0.0
    )
    left = np.maximum(n_others - others, 1)
    most = np.where(others < n_others, special.betainccinv(others + 1, left, alpha / 2), 1.0)
    return least, most


def wilson(hits, others, n: int, n_others: int, alpha: float):
    """About the same, by square roots (Wilson 1927)."""
    z = -special.ndtri(alpha / 2)
    ends = []
    for k, size, sign in ((hits, n, -1), (others, n_others, 1)):
        p = k / size
        half = z * np.sqrt(p * (1 - p) / size + z**2 / (4 * size**2))
        ends.append((p + z**2 / (2 * size) + sign * half) / (1 + z**2 / size))
    return np.clip(ends[0], 1e-300, 1), np.clip(ends[1], 1e-300, 1)


def two_sided_geometric(n: int, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Discrete Laplace noise for mutants and for judging audits: quick, and not secret."""
    p = -math.expm1(-1 / scale)
    return rng.geometric(p, size=n) - rng.geometric(p, size=n)
