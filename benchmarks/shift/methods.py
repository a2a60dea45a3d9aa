"""Every recalibration method, for all trials and settings at once.

Each one takes the sources' answers and gives the calibration error on the pictures that were
left for the test, of shape (trials, points). The mathematics is the library's own: golden
section, the posterior of the root, accuracies from noisy bins. What is left here is who is
asked for what, at which share of epsilon.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from benchmarks.shift.grid import BINS, CLASSES, PAPER_RANGE, RANGE, SOURCES
from benchmarks.shift.trials import (
    Sources,
    binned_error,
    doubted_error,
    error,
    plain_error,
)
from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import MAX_UNIFORM_WEIGHT
from veracal.calibration.private.binning import bin_accuracies
from veracal.calibration.private.golden_section import golden_section, n_evaluations
from veracal.calibration.private.pooled import SHARES
from veracal.calibration.private.root_posterior import (
    CENTER,
    NoisyCounts,
    NoisyGap,
    pooled_posterior,
)

Method = Callable[[Sources], Floats]
Range = tuple[float, float]

REDUCTIONS = 5  # of golden section, as in the paper
CLAMP = 10.0
TOGETHER = 200  # searches whose posteriors are in memory at once: they fit into the cache


def none(sources: Sources) -> Floats:
    """Scores as they are."""
    return plain_error(sources)


def one_source(sources: Sources) -> Floats:
    """The temperature of the first source by itself, which needs no privacy among its own."""
    return error(sources, _golden(lambda t: np.abs(sources.first_gap(t)), sources, RANGE))


def acc_t(sources: Sources, within: Range = RANGE) -> Floats:
    """Acc-T: the absolute sum of gaps."""
    return error(sources, _golden(lambda t: np.abs(sources.gap(t, _each())), sources, within))


def nll_t(sources: Sources, within: Range = RANGE, sensitivity: float = CLAMP) -> Floats:
    """NLL-T: the clamped negative log likelihood."""
    return error(
        sources, _golden(lambda t: sources.loss(t, _each(), sensitivity), sources, within)
    )


def ece_t(sources: Sources, within: Range = RANGE) -> Floats:
    """ECE-T: the sum over bins of absolute sums of gaps."""

    def absolute(t: Floats) -> Floats:
        return np.abs(sources.gaps(t, _each())).sum(axis=-1)

    return error(sources, _golden(absolute, sources, within))


def binning(sources: Sources, *, totals: bool = False) -> Floats:
    """Histogram binning: right and wrong ones, or right ones and all as in the paper."""
    noisy = sources.bins(1.0, totals=totals)
    right, other = noisy[..., 0], noisy[..., 1]
    std = sources.std(0.5 if totals else 1.0)[..., None]
    # The noisy number of all has the noise of one count in the paper's form, of two in ours.
    total, total_std = (other, std) if totals else (right + other, np.sqrt(2) * std)
    accuracies, _ = bin_accuracies(right, total, total_std, Bins(BINS))
    return binned_error(sources, accuracies)


def bisection(sources: Sources, questions: int = 4) -> Floats:
    """Halve the range of log T by the sign of a noisy gap."""
    low, high = (np.full(sources.shape, end) for end in np.log(RANGE))
    for _ in range(questions):
        middle = (low + high) / 2
        unsure = sources.gap(np.exp(middle), 1 / questions) > 0
        low, high = np.where(unsure, low, middle), np.where(unsure, middle, high)
    return error(sources, np.exp((low + high) / 2))


def interpolation(sources: Sources) -> Floats:
    """Two gaps at fixed temperatures, and the zero of the line through them in log T."""
    ends = np.log(RANGE)
    first, second = ends[0] + (ends[1] - ends[0]) * np.array([0.5, 0.85])
    one, other = (sources.gap(np.full(sources.shape, np.exp(u)), 0.5) for u in (first, second))
    rise = other - one
    # A line that does not rise says nothing but on which side the root is.
    step = np.where(rise > 0, -one / np.where(rise > 0, rise, 1.0), np.sign(-one) * np.inf)
    found = np.clip(first + (second - first) * step, *ends)
    return error(sources, np.exp(found))


def pooled(sources: Sources, *, doubt: bool = True, shares: tuple[int, ...] = SHARES) -> Floats:
    """Ours: counts and two gaps, the second where the answers point; then doubt."""
    temperature, share = pooled_fit(sources, shares)
    return doubted_error(sources, temperature, share) if doubt else error(sources, temperature)


@lru_cache(maxsize=1)  # with and without doubt, of the same answers
def pooled_fit(sources: Sources, shares: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Temperatures and doubts, of shape (trials, points)."""
    parts = np.array(shares) / sum(shares)
    ends = -np.log(RANGE[1]), -np.log(RANGE[0])
    right, wrong = np.moveaxis(sources.counts(parts[0]), -1, 0)
    about = right, wrong, sources.std(parts[0]), np.broadcast_to(SOURCES, sources.shape)
    place, gaps = np.full(sources.shape, CENTER), []
    for share in parts[1:]:
        gap = sources.gap(np.exp(-place), share)
        gaps.append((place, gap, sources.std(share)))
        best, end_gap, accuracy = _posterior(about, gaps, ends)
        place = np.clip(best, *ends)
    room = accuracy - end_gap - 1 / CLASSES
    wanted = np.clip(-end_gap / np.where(room > 0, room, np.inf), 0.0, MAX_UNIFORM_WEIGHT)
    return np.exp(-place), np.where(best < ends[0], wanted, 0.0)


def _posterior(
    about: tuple[Floats, ...], gaps: list[tuple[Floats, ...]], ends: Range
) -> tuple[Floats, Floats, Floats]:
    """Best root, gap at the largest temperature and accuracy, some searches at a time."""
    shape = about[0].shape
    flat = [x.ravel() for x in about]
    seen = [[x.ravel() for x in gap] for gap in gaps]
    found = np.empty((3, flat[0].size))
    for start in range(0, flat[0].size, TOGETHER):
        rows = slice(start, start + TOGETHER)
        met = pooled_posterior(
            NoisyCounts(*(x[rows] for x in flat)),
            [NoisyGap(*(x[rows] for x in gap)) for gap in seen],
            ends,
        )
        found[:, rows] = met.best, met.gap(np.array(ends[0])), met.accuracy
    best, gap, accuracy = found.reshape(3, *shape)
    return best, gap, accuracy


def _golden(objective: Callable[[Floats], Floats], sources: Sources, within: Range) -> Floats:
    """Temperatures by golden section."""
    low, high = (np.full(sources.shape, end) for end in within)
    return golden_section(objective, low, high, REDUCTIONS).minimum


def _each() -> float:
    """Share of epsilon of one value of golden section."""
    return 1 / n_evaluations(REDUCTIONS)


PRIVATE: dict[str, Method] = {
    "none": none,
    "one source": one_source,
    "binning, paper": lambda s: binning(s, totals=True),
    "binning": binning,
    "ECE-T [0.5, 3]": lambda s: ece_t(s, PAPER_RANGE),
    "NLL-T [0.5, 3]": lambda s: nll_t(s, PAPER_RANGE),
    "Acc-T [0.5, 3]": lambda s: acc_t(s, PAPER_RANGE),
    "ECE-T": ece_t,
    "NLL-T": nll_t,
    "NLL-T, centered": lambda s: nll_t(s, sensitivity=CLAMP / 2),
    "Acc-T": acc_t,
    "bisection": bisection,
    "interpolation": interpolation,
    "pooled, no doubt": lambda s: pooled(s, doubt=False),
    "pooled": pooled,
}
OPEN: dict[str, Method] = {
    name: PRIVATE[name]
    for name in (
        "binning",
        "ECE-T [0.5, 3]",
        "NLL-T [0.5, 3]",
        "Acc-T [0.5, 3]",
        "ECE-T",
        "NLL-T",
        "Acc-T",
        "pooled, no doubt",
        "pooled",
    )
}
