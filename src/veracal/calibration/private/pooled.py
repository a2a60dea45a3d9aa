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

One temperature from the answers of many sources, and doubt where none is enough.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import stats

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.calibration.bins import Bins
from veracal.calibration.maps.base import CalibrationMap
from veracal.calibration.maps.parametric import (
    DOUBT_BITS,
    MOST_DOUBT,
    Temperature,
    UniformMixing,
)
from veracal.calibration.private.estimates import between, scales
from veracal.calibration.private.session import (
    PricedQuery,
    PrivateFitter,
    QuerySession,
    price,
    split,
)
from veracal.calibration.private.temperature_grid import TemperatureGrid
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.scalars import Gap
from veracal.data import Estimate
from veracal.queries import Release, Source

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
class NoisyCounts:
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

    def rows(self, shape: tuple[int, ...], rows: Ints) -> "NoisyCounts":
        """Some of the searches, in one axis."""
        parts = (self.correct, self.wrong, self.std, self.sources)
        return NoisyCounts(*(np.broadcast_to(part, shape).ravel()[rows] for part in parts))

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
class NoisyGap:
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

    def rows(self, shape: tuple[int, ...], rows: Ints) -> "NoisyGap":
        """Some of the searches, in one axis."""
        parts = (self.place, self.gap, self.std)
        return NoisyGap(*(np.broadcast_to(part, shape).ravel()[rows] for part in parts))


@dataclass(frozen=True, eq=False)
class RootPosterior:
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
    counted: NoisyCounts,
    gaps: Sequence[NoisyGap],
    ends: tuple[float, float],
    *,
    single: bool = False,
    spread: float = SPREAD,
) -> RootPosterior:
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
    return RootPosterior(
        points.reshape(*shape, -1), weights.reshape(*shape, *weights.shape[1:])
    )


def _on(
    points: Floats, counted: NoisyCounts, gaps: Sequence[NoisyGap], single: bool, spread: float
) -> RootPosterior:
    """Posterior on some points."""
    logs = -0.5 * ((points - CENTER) / spread) ** 2
    logs = logs[..., None, None] + _of_counts(counted)[..., None, :, None]
    for seen in gaps:
        logs = logs + _of_gap(seen, points, counted, single)
    logs -= logs.max(axis=(-1, -2, -3), keepdims=True)
    weights = np.exp(logs, out=logs)
    weights /= weights.sum(axis=(-1, -2, -3), keepdims=True)
    return RootPosterior(points, weights)


def _of_counts(counted: NoisyCounts) -> Floats:
    """Log likelihood of each accuracy: right ones are that share of all, up to noise."""
    a = _ACCURACIES
    correct, wrong = (np.asarray(x)[..., None] for x in (counted.correct, counted.wrong))
    # Between two nodes the nearer one is right: half of their distance counts as noise.
    node = (a[1] - a[0]) / 2 * np.asarray(counted.n)[..., None]
    std = np.hypot(np.asarray(counted.std)[..., None] * np.hypot(a, 1 - a), node)
    result: Floats = -0.5 * ((correct * (1 - a) - wrong * a) / std) ** 2 - np.log(std)
    return result


def _of_gap(seen: NoisyGap, points: Floats, counted: NoisyCounts, single: bool) -> Floats:
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


SHARES = (10, 30, 60)  # of epsilon: the counts, then two gaps
FEW = (10, 90)  # the counts and one gap, where the first of two could not say where to go
COVERS = "the temperature, the doubt, and every answer that led to them"
WIDE = 3.0  # spread of the prior that intervals are made with: next to nothing is assumed
_LEAST_SLOPE = 0.02  # of the mean confidence: none of a classifier in use is flatter


class PooledTemperature(PrivateFitter):
    r"""A temperature from two rounds of noisy gaps, for records at many places.

    Sources are asked for the numbers of right and wrong predictions, then for the gap between
    right predictions and sum of confidences (the question of Acc-T, Luo et al. 2020,
    https://arxiv.org/abs/2008.09643) at a temperature of 2.2, and once more where the answers
    put the root (:mod:`veracal.calibration.private.pooled`). Epsilon is split 10 : 30 : 60.
    Golden section compares noisy absolute values and has to split epsilon by six; a gap has a
    sign and a size, which say where the root is and how far, so that two are enough.

    Where even the largest temperature of the range leaves confidences too high, the rest of
    the way is doubt: probabilities are mixed with equal ones
    (:class:`~veracal.calibration.UniformMixing`), by the very gap that was asked for.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for the fit; one of the two.
    temperatures : pair of float
        Public range.
    classes : int, optional
        Public number of classes. Without it there is no doubt, and a little more noise under
        replace-one.
    shares : tuple of int
        Of epsilon for the counts and each gap; :func:`plan_pooled` chooses.
    level : float
        Of the intervals.

    Attributes
    ----------
    map_ : Temperature or Doubt
    temperature_ : Estimate
        With an interval for the noise, for which records there are and, where sources fell
        silent, for which sources answered; it is cut at the range. Its ``n`` is the noisy
        number of records.
    doubt_ : float
        A multiple of :math:`2^{-16}`.
    improved_ : float
        Probability that mean confidence is nearer to accuracy with the map than without, as
        far as the model of the search holds; next to nothing is assumed beforehand.
    answered_, asked_ : int
        Sources.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    Everything learnt from the records passes :meth:`Source.answer`, which charges before it
    reads; what is made of the answers costs nothing more. One record moves a count or a gap by
    1 at most (2, or 2 - 1/k for a gap, if it is replaced). The cost is :meth:`event`, known
    beforehand, whatever is answered. No prediction changes.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Pool, Public
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> logits = 3 * np.log(p / (1 - p))
    >>> halves = [Scores.from_logits(logits[i::2], labels[i::2]) for i in (0, 1)]
    >>> found = PooledTemperature(epsilon=1.0).fit(Pool([Public(half) for half in halves]))
    >>> round(found.map_.value), found.answered_, found.private_
    (3, 2, False)
    """

    keeps = True
    infers = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        temperatures: tuple[float, float] = (0.5, 6.0),
        classes: int | None = None,
        shares: tuple[int, ...] = SHARES,
        level: float = 0.95,
    ) -> None:
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.temperatures = temperatures
        self.classes = classes
        self.shares = shares
        self.level = level

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source, or a pool of some, until the temperature is known.

        Parameters
        ----------
        source : Source
        request : str, optional
            As of :meth:`PrivateTemperature.fit`.
        """
        asks, grid = self._asks(), TemperatureGrid.between(self.temperatures)
        inquiry = QuerySession(source, request)
        inquiry.afford(self.items)
        inquiry.ask(asks[0], "counts")
        ends = -math.log(grid.high), -math.log(grid.low)
        found, places = self._searched(inquiry, asks[1:], grid, ends)
        place = _nearest(float(found.best), ends)
        inverse = float(grid.inverses(math.exp(-place)))
        self.doubt_ = self._doubt(found, ends[0])
        wide = _met(inquiry, places, ends, spread=WIDE)
        self.temperature_ = self._estimate(inverse, inquiry, wide, ends)
        self.improved_ = self._improved(place, inquiry, wide)
        self.answered_, self.asked_ = inquiry.present, inquiry.asked
        map_: CalibrationMap = (
            UniformMixing(inverse, self.doubt_) if self.doubt_ else Temperature(inverse)
        )
        return self._keep(map_, inquiry.releases, source, covers=COVERS)

    def _searched(
        self,
        inquiry: QuerySession,
        asks: list[PricedQuery],
        grid: TemperatureGrid,
        ends: tuple[float, float],
    ) -> tuple[RootPosterior, list[float]]:
        """Where the root is, by gaps at the center and then where the answers put it."""
        place, places = CENTER, list[float]()
        for i, ask in enumerate(asks):
            inverse = float(grid.inverses(math.exp(-place)))
            places.append(math.log(inverse))
            inquiry.ask(PricedQuery(Gap(inverse, self.classes), ask.micro_epsilon), f"gap {i}")
            found = _met(inquiry, places, ends)
            place = _nearest(float(found.best), ends)
        return found, places

    def _improved(self, place: float, inquiry: QuerySession, wide: RootPosterior) -> float:
        """Probability that the map is better than none."""
        counted = _counted(inquiry)
        if float(counted.correct + counted.wrong) <= 0:
            return 0.0  # answers that count nobody say nothing of anybody's confidence
        chance = 1 / self.classes if self.classes else 0.0
        return float(wide.improved(np.array(place), self.doubt_, chance))

    def _doubt(self, found: RootPosterior, end: float) -> float:
        r"""Doubt that takes the expected confidence to the accuracy, from the largest T on.

        A confidence c becomes :math:`c - \lambda (c - 1/k)`. It is rounded down to a public
        grid: a question about the map is then a short exact number wherever it is sent.
        """
        if self.classes is None or float(found.best) >= end:
            return 0.0
        gap = float(found.gap(np.array(end)))
        room = float(found.accuracy) - gap - 1 / self.classes
        if room <= 0:
            return 0.0
        wanted = min(max(-gap / room, 0.0), MOST_DOUBT)
        return math.ldexp(math.floor(math.ldexp(wanted, DOUBT_BITS)), -DOUBT_BITS)

    def _estimate(
        self,
        inverse: float,
        inquiry: QuerySession,
        wide: RootPosterior,
        ends: tuple[float, float],
    ) -> Estimate:
        """The temperature and its interval, which holds it."""
        counted = _counted(inquiry)
        tail = (1 - self.level) / 2
        best, low, high = math.log(inverse), wide.quantile(tail), wide.quantile(1 - tail)
        chance = _reach(inquiry, tail) * _chance(inquiry, wide, counted)
        reach = math.hypot(best - float(low), chance), math.hypot(float(high) - best, chance)
        bounds = [_nearest(x, ends) for x in (best + reach[1], best - reach[0])]
        value, n = 1 / inverse, max(round(float(counted.correct + counted.wrong)), 0)
        first, last = (math.exp(-bound) for bound in bounds)
        return Estimate(value, min(first, value), max(last, value), self.level, n)

    def _asks(self) -> list[PricedQuery]:
        """The questions, with places for temperatures that are not known yet."""
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        if len(self.shares) < 2:
            raise ValueError(
                f"Expected shares for the counts and one gap or more, got {self.shares!r}."
            )
        for share in self.shares:
            _checks.whole(shares=share)
        TemperatureGrid.between(self.temperatures)
        parts = split(price(self.epsilon, self.micro_epsilon), self.shares)
        gap = Gap(classes=self.classes)
        return [
            PricedQuery(CorrectWrong(Bins(1)), parts[0]),
            *(PricedQuery(gap, part) for part in parts[1:]),
        ]


def _nearest(place: float, ends: tuple[float, float]) -> float:
    """The same place, or the end of the range that it is beyond."""
    return min(max(place, ends[0]), ends[1])


def _met(
    inquiry: QuerySession, places: list[float], ends: tuple[float, float], **prior: float
) -> RootPosterior:
    """Where the root is, given the answers of those who answered everything."""
    gaps = [
        NoisyGap(np.array(place), np.array(answer.value), np.array(answer.noise_std))
        for place, answer in zip(places, inquiry.answers[1:], strict=True)
    ]
    return meeting(_counted(inquiry), gaps, ends, single=_is_single(inquiry.answers), **prior)


def _counted(inquiry: QuerySession) -> NoisyCounts:
    """The counts."""
    counts = inquiry.answers[0]
    correct, wrong = (np.array(value) for value in counts.values)
    return NoisyCounts(correct, wrong, np.array(counts.noise_std), np.array(inquiry.present))


def _is_single(answers: tuple[Release, ...]) -> bool:
    """Whether one source's noise is on an answer."""
    return len(scales(answers[0].event)) == 1


def _reach(inquiry: QuerySession, tail: float) -> float:
    """Standard deviations that chance exceeds with a probability.

    Where sources fell silent, how much they differ is told by those few that answered: then by
    Student's law.
    """
    if 1 < inquiry.present < inquiry.asked:
        return float(stats.t.isf(tail, inquiry.present - 1))
    return float(stats.norm.isf(tail))


def _chance(inquiry: QuerySession, found: RootPosterior, counted: NoisyCounts) -> float:
    r"""Standard deviation of the root by which records there are, and which sources.

    A gap's record varies by a(1 - a) at most where confidences are right; the root moves by
    the gap's share divided by the slope of the mean confidence.
    """
    accuracy = float(found.accuracy)
    n = float(counted.n)
    spread = between(
        [inquiry.answers[-1]],
        [[1.0]],
        sampling=n * accuracy * (1 - accuracy),
        asked=inquiry.asked,
    )
    slope = max(float(found.slope), _LEAST_SLOPE)
    return math.sqrt(spread.sampling + spread.between) / (n * slope)
