r"""Where accuracy and confidence meet, from counts and a few noisy gaps, for pools.

Let u be the logarithm of the inverse temperature. Mean confidence rises with u; near the root
u*, where it is the accuracy a, it is taken for a logistic curve of steepness s,

.. math:: c(u) = \sigma(\mathrm{logit}\, a + s (u - u^*)).

The noisy numbers of right and wrong predictions say how many records there are and about how
many are right; a noisy gap at u says :math:`n (a - c(u))`. Neither a nor s has to be known
well: both are summed out over public nodes. What is left is a posterior of the root.

The prior says that networks are over-confident more often than the reverse: its median is a
temperature of 2.2, and its spread a factor of about 2. It reaches beyond the public range,
because under strong shift the root does: then the temperature stays at the end of the range.

Numbers may be arrays of any shape, one search in each entry, so that a benchmark runs
thousands of simulated searches by the code that asks real sources. All of this is a function of
noisy answers and of public numbers, and costs no privacy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from veracal._types import Bools, Floats, Ints

CENTER, SPREAD = -math.log(2.2), 0.75  # of the root, before anything is known
_BEYOND = 2.0  # how far beyond the range a root may lie, as a logarithm
_ACCURACIES = 0.08 + 0.9 * (np.arange(6) + 0.5) / 6
_STEEPNESS = np.exp(math.log(0.9) + 0.4 * stats.norm.ppf((np.arange(4) + 0.5) / 4))
_MISFIT = 0.1  # of the curve, as a share of how far from the root a gap is
_EXACT = 1e-9  # variance of a gap's share that even an exact answer is given
_POINTS = 33
_TAIL = 1e-3  # of the posterior that a closer look may leave out, on either side
_FINE = (
    5  # points that the middle half of the posterior has to cover, or a closer look is taken
)
_LOOKS = 5


@dataclass(frozen=True, eq=False)
class Counted:
    """Noisy numbers of right and of wrong predictions.

    Attributes
    ----------
    correct, wrong : float or array
    std : float or array
        Standard deviation of the noise of each.
    sources : int or array
        How many sources answered: there is a record at each of them, or nearly.
    """

    correct: Floats
    wrong: Floats
    std: Floats
    sources: Floats

    def rows(self, shape: tuple[int, ...], rows: Ints) -> "Counted":
        """Some of the searches, in one axis."""
        parts = (self.correct, self.wrong, self.std, self.sources)
        return Counted(*(np.broadcast_to(part, shape).ravel()[rows] for part in parts))

    @property
    def n(self) -> Floats:
        """Number of records; where noise leaves none, as many as it might have hidden."""
        floor = np.maximum(self.sources, self.std / math.sqrt(2))
        result: Floats = np.maximum(self.correct + self.wrong, np.maximum(floor, 1.0))
        return result

    @property
    def error(self) -> Floats:
        """Relative error of the number of records, at most 1."""
        result: Floats = np.minimum(math.sqrt(2) * self.std / self.n, 1.0)
        return result


@dataclass(frozen=True, eq=False)
class Gapped:
    """A noisy gap.

    Attributes
    ----------
    place : float or array
        Logarithm of the inverse temperature.
    gap : float or array
        Right predictions minus sum of confidences.
    std : float or array
        Standard deviation of the noise.
    """

    place: Floats
    gap: Floats
    std: Floats

    def rows(self, shape: tuple[int, ...], rows: Ints) -> "Gapped":
        """Some of the searches, in one axis."""
        parts = (self.place, self.gap, self.std)
        return Gapped(*(np.broadcast_to(part, shape).ravel()[rows] for part in parts))


@dataclass(frozen=True, eq=False)
class Meeting:
    """What is known of the root.

    Attributes
    ----------
    points : array of shape (..., m)
        Possible roots.
    weights : array of shape (..., m, a, s)
        Of each with an accuracy and a steepness; they sum to one.
    """

    points: Floats
    weights: Floats

    def quantile(self, share: float) -> Floats:
        """Root below which a share of the weight lies."""
        return _quantile(self.points, self.weights.sum(axis=(-1, -2)), share)

    @property
    def best(self) -> Floats:
        """Where confidence is expected to be nearest to the accuracy.

        A root that is missed by d leaves a gap of about :math:`s a (1 - a) d`, so the median
        counts every possible root with that slope.
        """
        slopes = _slopes()
        return _quantile(self.points, (self.weights * slopes).sum(axis=(-1, -2)), 0.5)

    @property
    def slope(self) -> Floats:
        """Expected slope of the mean confidence at the root."""
        result: Floats = (self.weights * _slopes()).sum(axis=(-1, -2, -3))
        return result

    @property
    def accuracy(self) -> Floats:
        """Expected accuracy."""
        result: Floats = (self.weights * _ACCURACIES[:, None]).sum(axis=(-1, -2, -3))
        return result

    def improved(self, place: Floats, doubt: float = 0.0, chance: float = 0.0) -> Floats:
        r"""Probability that confidence is nearer to the accuracy than without any map.

        Parameters
        ----------
        place : float or array
            Logarithm of the map's inverse temperature.
        doubt, chance : float
            A confidence c at that place becomes :math:`c - doubt (c - chance)`.
        """
        accuracies = _ACCURACIES[:, None]
        mapped = accuracies - _gaps(place, self.points)
        mapped = mapped - doubt * (mapped - chance)
        nearer = np.abs(accuracies - mapped) < np.abs(_gaps(np.array(0.0), self.points))
        result: Floats = (self.weights * nearer).sum(axis=(-1, -2, -3))
        return result

    def gap(self, place: Floats) -> Floats:
        """Expected gap of a record at a place."""
        result: Floats = (self.weights * _gaps(place, self.points)).sum(axis=(-1, -2, -3))
        return result


def meeting(
    counted: Counted,
    gaps: Sequence[Gapped],
    ends: tuple[float, float],
    *,
    single: bool = False,
    spread: float = SPREAD,
) -> Meeting:
    """Where the root is, given answers so far: first on the whole range, then closer.

    Parameters
    ----------
    counted : Counted
    gaps : sequence of Gapped
    ends : pair of float
        Public range of the logarithm of the inverse temperature.
    single : bool
        Whether the noise of an answer is that of one source, whose law is Laplace's; sums of
        several are nearly normal.
    spread : float
        Of the prior.
    """
    shape = np.broadcast_shapes(*(np.shape(g.gap) for g in gaps), np.shape(counted.n))
    low = np.full(shape, ends[0] - _BEYOND).ravel()
    high = np.full(shape, ends[1] + _BEYOND).ravel()
    points = np.empty((low.size, _POINTS))
    weights = np.empty((low.size, _POINTS, len(_ACCURACIES), len(_STEEPNESS)))
    rows = np.arange(low.size)  # searches that need a closer look
    for _ in range(_LOOKS):
        some = counted.rows(shape, rows), [gap.rows(shape, rows) for gap in gaps]
        found = _on(_between(low[rows], high[rows]), *some, single, spread)
        points[rows], weights[rows] = found.points, found.weights
        step = (high - low)[rows] / (_POINTS - 1)
        coarse = found.quantile(0.75) - found.quantile(0.25) < _FINE * step
        low[rows] = np.maximum(found.quantile(_TAIL) - step, low[rows])
        high[rows] = np.minimum(found.quantile(1 - _TAIL) + step, high[rows])
        rows = rows[coarse]
        if not len(rows):
            break
    return Meeting(points.reshape(*shape, -1), weights.reshape(*shape, *weights.shape[1:]))


def _on(
    points: Floats, counted: Counted, gaps: Sequence[Gapped], single: bool, spread: float
) -> Meeting:
    """Posterior on some points."""
    logs = -0.5 * ((points - CENTER) / spread) ** 2
    logs = logs[..., None, None] + _of_counts(counted)[..., None, :, None]
    for seen in gaps:
        logs = logs + _of_gap(seen, points, counted, single)
    logs -= logs.max(axis=(-1, -2, -3), keepdims=True)
    weights = np.exp(logs, out=logs)
    weights /= weights.sum(axis=(-1, -2, -3), keepdims=True)
    return Meeting(points, weights)


def _of_counts(counted: Counted) -> Floats:
    """Log likelihood of each accuracy: right ones are that share of all, up to noise."""
    a = _ACCURACIES
    correct, wrong = (np.asarray(x)[..., None] for x in (counted.correct, counted.wrong))
    # Between two nodes the nearer one is right: half of their distance counts as noise.
    node = (a[1] - a[0]) / 2 * np.asarray(counted.n)[..., None]
    std = np.hypot(np.asarray(counted.std)[..., None] * np.hypot(a, 1 - a), node)
    result: Floats = -0.5 * ((correct * (1 - a) - wrong * a) / std) ** 2 - np.log(std)
    return result


def _of_gap(seen: Gapped, points: Floats, counted: Counted, single: bool) -> Floats:
    """Log likelihood of a gap, of shape (..., m, a, s)."""
    n = np.asarray(counted.n)[..., None, None, None]
    expected = _gaps(seen.place, points)
    noise = np.asarray(seen.std)[..., None, None, None] / n
    wrong = np.hypot(_MISFIT, counted.error)[..., None, None, None] * expected
    # A point stands for its neighborhood: what the gap moves by within it counts as noise, or
    # a coarse look would find no point that fits an exact answer, and go astray.
    confidence = _ACCURACIES[:, None] - expected
    step = (points[..., 1] - points[..., 0])[..., None, None, None] / 2
    within = _STEEPNESS * confidence * (1 - confidence) * step
    variance = noise**2 + wrong**2 + within**2 + _EXACT
    off = np.asarray(seen.gap)[..., None, None, None] / n - expected
    if single:
        result: Floats = -np.abs(off) * np.sqrt(2 / variance) - 0.5 * np.log(variance)
    else:
        result = -0.5 * (off**2 / variance + np.log(variance))
    return result


def _gaps(place: Floats, points: Floats) -> Floats:
    """Gap of a record at a place for each root, accuracy and steepness."""
    distance = np.asarray(place)[..., None, None] - points[..., None]
    odds = np.exp(-_STEEPNESS * distance)[..., None, :]  # (..., m, 1, s): the costly part
    against = ((1 - _ACCURACIES) / _ACCURACIES)[:, None]
    result: Floats = _ACCURACIES[:, None] - 1 / (1 + against * odds)
    return result


def _slopes() -> Floats:
    """Slope of the mean confidence at the root, for each accuracy and steepness."""
    result: Floats = (_ACCURACIES * (1 - _ACCURACIES))[:, None] * _STEEPNESS
    return result


def _between(low: Floats, high: Floats) -> Floats:
    """Equally spaced points, in a last axis."""
    shares = np.linspace(0.0, 1.0, _POINTS)
    result: Floats = low[..., None] + (high - low)[..., None] * shares
    return result


def _quantile(points: Floats, weights: Floats, share: float) -> Floats:
    """Where the running sum of weights passes a share, between points on a line."""
    total = np.cumsum(weights, axis=-1) - weights / 2
    total /= weights.sum(axis=-1, keepdims=True)
    after = np.clip((total < share).sum(axis=-1), 1, points.shape[-1] - 1)[..., None]
    left, right = (np.take_along_axis(total, after - i, axis=-1)[..., 0] for i in (1, 0))
    start, end = (np.take_along_axis(points, after - i, axis=-1)[..., 0] for i in (1, 0))
    known: Bools = right > left
    part = np.clip((share - left) / np.where(known, right - left, 1.0), 0.0, 1.0)
    result: Floats = start + np.where(known, part, 0.5) * (end - start)
    return result
