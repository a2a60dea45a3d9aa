r"""The posterior of the temperature at which mean confidence equals accuracy, and its grid.

Let u be the logarithm of the inverse temperature. Mean confidence increases with u. Near the
root :math:`u^*`, where it equals the accuracy a, it is modeled as a logistic curve of steepness
s,

.. math:: c(u) = \sigma(\mathrm{logit}\, a + s (u - u^*)),

so that n records have a gap of :math:`n (a - c(u))` between correct predictions and sum of
confidences. (A curve that starts at 1/k was no better in trials.) Noisy counts and noisy gaps
at a few temperatures turn broad public priors of root and steepness into a posterior on a grid,
which is refined where the weight is. With much noise the posterior stays near the prior.

Two models of the observations share this code:

- :func:`search_posterior` for a single source: the accuracy is that of the noisy counts, the prior
  is centered at a temperature of 1, and the error of a gap is Laplace noise plus a misfit of
  the curve.
- :func:`pooled_posterior` for few gaps from many sources: the accuracy is integrated out, and the
  prior is centered at a temperature of 2.2 with a spread of about a factor of 2, because
  networks are more often overconfident. It extends beyond the public range, because under
  strong shift the root does; the temperature is then clipped to the range. All numbers may be
  arrays with one search per entry, so that simulations run the code that queries sources.

All temperatures in queries lie on a public grid, so that queries carry short exact numbers. The
posterior is postprocessing of noisy answers and public numbers, at no privacy cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.calibration.maps.parametric import LEAST_INVERSE, MOST_INVERSE

FINEST = 2.0**-16  # inverse temperatures in queries are multiples of it
_MAX_BITS = 30  # a double then holds 20 bits of the integer part exactly
CENTER, SPREAD = -math.log(2.2), 0.75  # prior of the root in the pooled model
_SEARCH_SPREAD = 0.9  # of the prior of the root in the search model, centered at 0
_BEYOND = 2.0  # by how much the root may lie beyond the range in the pooled model
_MISFIT = 0.1  # of the curve, relative to the gap
_EXACT = 1e-9  # variance of an exact gap per record
_EDGE = 0.02  # smallest distance of an accuracy from 0 and 1

ACCURACIES = 0.08 + 0.9 * (np.arange(6) + 0.5) / 6
STEEPNESS = np.exp(math.log(0.9) + 0.4 * stats.norm.ppf((np.arange(4) + 0.5) / 4))
_SEARCH_STEEPNESS = np.exp(np.linspace(math.log(0.15), math.log(3.0), 25))
_SEARCH_STEEPNESS_PRIOR = -0.5 * ((np.log(_SEARCH_STEEPNESS) - math.log(0.9)) / 0.5) ** 2


@dataclass(frozen=True)
class TemperatureGrid:
    r"""Temperatures in a public range whose inverse is a multiple of :math:`2^{-bits}`.

    Parameters
    ----------
    low, high : float
        The range of temperatures.
    bits : int
        16 by default: at T = 6 a step is 0.0005.

    Guarantees
    ----------
    Every inverse temperature is an exact binary number whose temperature lies in the range. It
    depends only on the temperature that is rounded.

    Examples
    --------
    >>> TemperatureGrid(0.5, 6.0, bits=3).inverses([0.1, 0.9, 3.0, 9.0]).tolist()
    [2.0, 1.125, 0.375, 0.25]
    """

    low: float
    high: float
    bits: int = 16

    def __post_init__(self) -> None:
        _checks.positive(least_temperature=self.low, most_temperature=self.high)
        _checks.whole(bits=self.bits, least=0)
        limits = 1 / MOST_INVERSE, 1 / LEAST_INVERSE
        if not limits[0] <= self.low < self.high <= limits[1]:
            raise ValueError(
                f"Expected a range of temperatures (low, high) from {limits[0]:g} to "
                f"{limits[1]:g}, low < high, got {(self.low, self.high)!r}."
            )
        first, last = self.inverse_ends
        if self.bits > _MAX_BITS or first >= last:
            raise ValueError(
                f"Expected at least two temperatures on the grid between {self.low!r} and "
                f"{self.high!r}, and at most {_MAX_BITS} bits, got bits={self.bits!r}."
            )

    @classmethod
    def between(cls, temperatures: object) -> Self:
        """The grid of a range, after checking that it is a pair of numbers."""
        is_pair = isinstance(temperatures, Sequence | np.ndarray) and len(temperatures) == 2
        if isinstance(temperatures, str) or not is_pair:
            raise ValueError(
                "Expected temperatures to be a pair of numbers, as in (0.5, 6.0), got "
                f"temperatures={temperatures!r}."
            )
        low, high = cast(tuple[float, float], temperatures)
        return cls(low, high)

    def inverses(self, temperatures: ArrayLike) -> Floats:
        """Nearest inverse temperatures on the grid, of the same shape."""
        units = np.rint(2.0**self.bits / np.asarray(temperatures, dtype=np.float64))
        result: Floats = np.clip(units / 2.0**self.bits, *self.inverse_ends)
        return result

    @property
    def inverse_ends(self) -> tuple[float, float]:
        """Smallest and largest inverse temperature on the grid."""
        steps = 2.0**self.bits
        return float(np.ceil(steps / self.high) / steps), float(
            np.floor(steps / self.low) / steps
        )


@dataclass(frozen=True, eq=False)
class NoisyCounts:
    """Noisy numbers of correct and wrong predictions."""

    correct: Floats
    wrong: Floats
    std: Floats  # standard deviation of the noise of each
    sources: Floats  # number of sources that answered, a lower bound on the number of records

    @property
    def n(self) -> Floats:
        """Number of records, at least as many as the noise could hide."""
        floor = np.maximum(self.sources, self.std / math.sqrt(2))
        result: Floats = np.maximum(self.correct + self.wrong, np.maximum(floor, 1.0))
        return result

    @property
    def error(self) -> Floats:
        """Relative error of the number of records, at most 1."""
        result: Floats = np.minimum(math.sqrt(2) * self.std / self.n, 1.0)
        return result


@dataclass(frozen=True, eq=False)
class NoisyGap:
    """A noisy gap at a temperature."""

    position: Floats  # logarithm of the inverse temperature
    gap: Floats  # correct predictions minus sum of confidences
    std: Floats  # standard deviation of the noise


@dataclass(frozen=True)
class SearchCounts:
    """Number of records and accuracy of a single source, from noisy counts."""

    n: float  # noisy number of records, at least 1
    n_std: float  # standard deviation of its noise
    accuracy: float  # noisy accuracy, clipped away from 0 and 1

    @classmethod
    def of(cls, correct: float, wrong: float, std: float) -> "SearchCounts":
        """From noisy counts, which may be negative."""
        n = max(correct + wrong, 1.0)
        return cls(n, math.sqrt(2) * std, min(max(correct / n, _EDGE), 1 - _EDGE))


@dataclass(frozen=True, eq=False)
class RootPosterior:
    """Posterior weights of the root, the accuracy and the steepness."""

    points: Floats  # of shape (..., m): possible roots
    weights: Floats  # of shape (..., m, a, s): of each with an accuracy and a steepness; sum 1
    accuracies: Floats  # of shape (a,)
    steepness: Floats  # of shape (s,)

    def quantile(self, share: float) -> Floats:
        """Quantile of the root."""
        return _quantile(self.points, self.weights.sum(axis=(-1, -2)), share)

    def inverse(self, share: float = 0.5) -> float:
        """Quantile of the inverse temperature, rounded to the public grid."""
        exact = math.exp(float(self.quantile(share)))
        return max(round(exact / FINEST), 1) * FINEST

    @property
    def best(self) -> Floats:
        """Root that minimizes the expected gap between confidence and accuracy.

        An error d of the root causes a gap of about :math:`s a (1 - a) d`, so this is the
        median weighted by that slope.
        """
        return _quantile(self.points, (self.weights * self._slopes).sum(axis=(-1, -2)), 0.5)

    @property
    def slope(self) -> Floats:
        """Expected slope of the mean confidence at the root."""
        result: Floats = (self.weights * self._slopes).sum(axis=(-1, -2, -3))
        return result

    @property
    def accuracy(self) -> Floats:
        """Expected accuracy."""
        result: Floats = (self.weights * self.accuracies[:, None]).sum(axis=(-1, -2, -3))
        return result

    def improved(
        self, position: Floats, uniform_weight: float | Floats = 0.0, chance: float = 0.0
    ) -> Floats:
        r"""Probability that mean confidence is closer to accuracy with a map than without.

        Parameters
        ----------
        position : float or array
            Log inverse temperature of the map.
        uniform_weight, chance : float
            Uniform mixing with weight :math:`\lambda` maps a confidence c to
            :math:`c - \lambda (c - \mathrm{chance})`.
        """
        accuracies = self.accuracies[:, None]
        mapped = accuracies - self._expected_gaps(position)
        mapped = mapped - uniform_weight * (mapped - chance)
        unmapped = np.abs(self._expected_gaps(np.array(0.0)))
        result: Floats = (self.weights * (np.abs(accuracies - mapped) < unmapped)).sum(
            axis=(-1, -2, -3)
        )
        return result

    def gap(self, position: Floats) -> Floats:
        """Expected gap per record at a log inverse temperature."""
        result: Floats = (self.weights * self._expected_gaps(position)).sum(axis=(-1, -2, -3))
        return result

    def _expected_gaps(self, position: Floats) -> Floats:
        """Gap per record for each root, accuracy and steepness."""
        return _expected_gaps(position, self.points, self.accuracies, self.steepness)

    @property
    def _slopes(self) -> Floats:
        """Slope of the mean confidence at the root, for each accuracy and steepness."""
        result: Floats = (self.accuracies * (1 - self.accuracies))[:, None] * self.steepness
        return result


def search_posterior(
    gaps: Sequence[NoisyGap],
    counts: SearchCounts,
    inverses: tuple[float, float],
    *,
    sampled: bool = False,
) -> RootPosterior:
    """Posterior of the root from the gaps of a single source.

    Parameters
    ----------
    inverses : pair of float
        Public range of inverse temperatures.
    sampled : bool
        Whether the root of the population is estimated, so that sampling counts.
    """
    n, accuracy = counts.n, counts.accuracy
    # The sampling error is common to all answers, so more answers do not average it out.
    sampling = len(gaps) * n * accuracy * (1 - accuracy) if sampled else 0.0
    misfit = math.hypot(_MISFIT, min(counts.n_std / n, 1.0))
    accuracies = np.array([accuracy])

    def log_likelihood(points: Floats, rows: Ints) -> Floats:
        logs: Floats = np.broadcast_to(
            _SEARCH_STEEPNESS_PRIOR, (*points.shape, 1, len(_SEARCH_STEEPNESS))
        )
        for seen in gaps:
            expected = n * _expected_gaps(seen.position, points, accuracies, _SEARCH_STEEPNESS)
            noise = math.sqrt(float(seen.std) ** 2 + sampling)
            std = noise + misfit * abs(float(seen.gap)) + 1e-9 * n
            logs = logs - math.sqrt(2) * np.abs(seen.gap - expected) / std
        return logs

    low, high = (np.array([math.log(inverse)]) for inverse in inverses)
    points, weights = _refine(
        log_likelihood,
        low,
        high,
        prior=(0.0, _SEARCH_SPREAD),
        n_points=241,
        tail=1e-4,
        max_looks=3,
        fine=math.inf,
    )
    return RootPosterior(points[0], weights[0], accuracies, _SEARCH_STEEPNESS)


def pooled_posterior(
    counts: NoisyCounts,
    gaps: Sequence[NoisyGap],
    ends: tuple[float, float],
    *,
    single: bool = False,
    spread: float = SPREAD,
) -> RootPosterior:
    """Posterior of the root from counts and few gaps of many sources.

    Parameters
    ----------
    ends : pair of float
        Public range of the log inverse temperature.
    single : bool
        Whether the noise of an answer is that of one source, with a Laplace distribution; sums
        of several are nearly normal.
    spread : float
        Standard deviation of the prior.
    """
    shape = np.broadcast_shapes(*(np.shape(g.gap) for g in gaps), np.shape(counts.n))

    def log_likelihood(points: Floats, rows: Ints) -> Floats:
        def select(record: Any) -> list[Floats]:
            fields = (np.broadcast_to(field, shape) for field in vars(record).values())
            return [field.ravel()[rows] for field in fields]

        some = NoisyCounts(*select(counts))
        logs = _count_log_likelihood(some)[..., None, :, None]
        for gap in gaps:
            seen = NoisyGap(*select(gap))
            logs = logs + _gap_log_likelihood(seen, points, some, single)
        return logs

    low = np.full(shape, ends[0] - _BEYOND).ravel()
    high = np.full(shape, ends[1] + _BEYOND).ravel()
    points, weights = _refine(
        log_likelihood,
        low,
        high,
        prior=(CENTER, spread),
        n_points=33,
        tail=1e-3,
        max_looks=5,
        fine=5,
    )
    return RootPosterior(
        points.reshape(*shape, -1),
        weights.reshape(*shape, *weights.shape[1:]),
        ACCURACIES,
        STEEPNESS,
    )


def _refine(
    log_likelihood: Callable[[Floats, Ints], Floats],
    low: Floats,
    high: Floats,
    *,
    prior: tuple[float, float],
    n_points: int,
    tail: float,
    max_looks: int,
    fine: float,
) -> tuple[Floats, Floats]:
    """Points and weights of several posteriors, first on the whole range, then refined.

    Parameters
    ----------
    log_likelihood : callable
        From points of shape (r, m) and the indices of r searches to an array of shape
        (r, m, a, s).
    low, high : arrays of shape (n,)
        Ranges of the root.
    prior : pair of float
        Center and spread of the normal prior of the root.
    n_points : int
        The number m of points.
    tail : float
        Weight that a refinement may leave out on either side.
    fine : float
        Refine until the middle half of the weight covers this number of points.
    """
    center, spread = prior
    points = np.empty((len(low), n_points))
    weights: Floats | None = None
    shares = np.linspace(0.0, 1.0, n_points)
    rows = np.arange(len(low))  # searches that need a refinement
    for _ in range(max_looks):
        now = low[rows, None] + (high - low)[rows, None] * shares
        logs = (-0.5 * ((now - center) / spread) ** 2)[..., None, None]
        logs = logs + log_likelihood(now, rows)
        logs -= logs.max(axis=(-1, -2, -3), keepdims=True)
        density = np.exp(logs, out=logs)
        density /= density.sum(axis=(-1, -2, -3), keepdims=True)
        if weights is None:
            weights = np.empty(density.shape)
        points[rows], weights[rows] = now, density
        margin = density.sum(axis=(-1, -2))
        first, lower, upper, last = (
            _quantile(now, margin, share) for share in (tail, 0.25, 0.75, 1 - tail)
        )
        step = (high - low)[rows] / (n_points - 1)
        coarse = upper - lower < fine * step
        low[rows] = np.maximum(first - step, low[rows])
        high[rows] = np.minimum(last + step, high[rows])
        rows = rows[coarse]
        if not len(rows):
            break
    assert weights is not None
    return points, weights


def _count_log_likelihood(counts: NoisyCounts) -> Floats:
    """Log likelihood of each accuracy, of shape (..., a)."""
    a = ACCURACIES
    correct, wrong = (np.asarray(x)[..., None] for x in (counts.correct, counts.wrong))
    # The true accuracy lies between two nodes: half of their distance counts as noise.
    node = (a[1] - a[0]) / 2 * np.asarray(counts.n)[..., None]
    std = np.hypot(np.asarray(counts.std)[..., None] * np.hypot(a, 1 - a), node)
    result: Floats = -0.5 * ((correct * (1 - a) - wrong * a) / std) ** 2 - np.log(std)
    return result


def _gap_log_likelihood(
    seen: NoisyGap, points: Floats, counts: NoisyCounts, single: bool
) -> Floats:
    """Log likelihood of a gap, of shape (..., m, a, s)."""
    n = np.asarray(counts.n)[..., None, None, None]
    expected = _expected_gaps(seen.position, points, ACCURACIES, STEEPNESS)
    noise = np.asarray(seen.std)[..., None, None, None] / n
    misfit = np.hypot(_MISFIT, counts.error)[..., None, None, None] * expected
    # A point represents its neighborhood: the change of the gap within it counts as noise.
    # Otherwise no point of a coarse grid might fit an exact answer.
    confidence = ACCURACIES[:, None] - expected
    step = (points[..., 1] - points[..., 0])[..., None, None, None] / 2
    within = STEEPNESS * confidence * (1 - confidence) * step
    variance = noise**2 + misfit**2 + within**2 + _EXACT
    error = np.asarray(seen.gap)[..., None, None, None] / n - expected
    if single:
        result: Floats = -np.abs(error) * np.sqrt(2 / variance) - 0.5 * np.log(variance)
    else:
        result = -0.5 * (error**2 / variance + np.log(variance))
    return result


def _expected_gaps(
    position: Floats, points: Floats, accuracies: Floats, steepness: Floats
) -> Floats:
    """Gap per record of the curve at a position, for each root, accuracy and steepness."""
    distance = np.asarray(position)[..., None, None] - points[..., None]
    odds = np.exp(-steepness * distance)[..., None, :]  # (..., m, 1, s): the expensive part
    against = ((1 - accuracies) / accuracies)[:, None]
    result: Floats = accuracies[:, None] - 1 / (1 + against * odds)
    return result


def _quantile(points: Floats, weights: Floats, share: float) -> Floats:
    """Quantile by linear interpolation of the cumulative weights."""
    total = np.cumsum(weights, axis=-1) - weights / 2
    total /= weights.sum(axis=-1, keepdims=True)
    after = np.clip((total < share).sum(axis=-1), 1, points.shape[-1] - 1)[..., None]
    left, right = (np.take_along_axis(total, after - i, axis=-1)[..., 0] for i in (1, 0))
    start, end = (np.take_along_axis(points, after - i, axis=-1)[..., 0] for i in (1, 0))
    increasing: Bools = right > left
    part = np.clip((share - left) / np.where(increasing, right - left, 1.0), 0.0, 1.0)
    result: Floats = start + np.where(increasing, part, 0.5) * (end - start)
    return result
