r"""A private temperature by golden-section search, with a confidence interval.

With :math:`r = (\sqrt 5 - 1)/2` the function is evaluated at two points of the
bracket [low, high],

.. math:: t_0 = high - r (high - low), \qquad t_1 = low + r (high - low),

and the part beyond the larger value is discarded. The remaining point is a golden point of
the new bracket, so each further reduction needs one new value (Kiefer 1953). K reductions need
K + 1 values: two at the start and one after every reduction *except the last*. The search as
printed by Luo et al. 2020 (https://arxiv.org/abs/2008.09643, App. C.1) pays for one value that
is never used, and computes the new point from the old bracket.

Ends, points and values may be arrays of any shape with one search per entry, because no branch
depends on a value. Simulations of many searches therefore run the code that queries sources.

**The interval.** A search evaluates sums at a few temperatures. Each sum differs from its
expectation by noise and by sampling. The bound on this error is its *half-width*, by one of
two rules:

- With ten sources or more, from the variation between sources: the half-width of a sum of d
  answers with standard deviation s is :math:`t_{d-1} \sqrt d\, s`. It covers noise, sampling
  and the selection of sources (if drop-out is independent of the records), and needs no number
  of records. For independent normal answers with *any* variances, and for their mixtures such
  as Laplace noise, a two-sided interval is never too short at levels from 0.95 on
  (Bakirov and Szekely 2006, https://doi.org/10.1007/s10958-006-0366-5; Ibragimov and Mueller
  2010, https://doi.org/10.1198/jbes.2009.08046): sources may have unequal sizes. Sums of the
  records of a source are normal only asymptotically.
- With fewer sources, from the distribution of the noise and, if ``size`` is declared, from
  Hoeffding's inequality (1963) for the sampling of at most ``size`` records. Without a size
  the interval covers the noise alone.

The interval then follows from monotonicity. The gap between correct predictions and sum of
confidences increases with T for *every record*. If the root T* is above a temperature t, the
sum at t is at most that at T*, a fixed temperature with zero expected gap. So a sum at t above
its half-width shows that T* is below t, however t was chosen. A unimodal function has its
minimum below the larger of two temperatures if its value there is larger by more than the
half-width of the difference, and vice versa. All half-widths hold together by a union bound.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from veracal import _checks
from veracal._types import Bools, Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import Temperature
from veracal.calibration.private.estimates import noise_half_width, noise_scales, single_answers
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.calibration.private.session import (
    PrivateFitter,
    QuerySession,
    divide_epsilon,
    micro_epsilon_of,
    unit_of,
)
from veracal.calibration.queries.binned import BinnedGap
from veracal.calibration.queries.scalars import Gap, LossAt
from veracal.data import Estimate
from veracal.queries import Query, QueryRequest, Release

RATIO = (math.sqrt(5) - 1) / 2

Objective = Callable[[Floats], ArrayLike]
ValueUpdate = Callable[[Floats], Sequence[ArrayLike]]


@dataclass(frozen=True, eq=False)
class Bracket:
    """Interval that contains the minimum.

    Examples
    --------
    >>> [float(point) for point in np.round(Bracket(0.5, 3.0).points(), 3)]
    [1.455, 2.045]
    """

    low: Floats
    high: Floats

    def points(self) -> tuple[Floats, Floats]:
        """The two golden points, the lower one first."""
        distance = RATIO * (self.high - self.low)
        return self.high - distance, self.low + distance

    def narrow(self, rises: Bools) -> "Bracket":
        """The new bracket: the lower part where ``rises``, else the upper part.

        Parameters
        ----------
        rises : array of bool
            Whether the function is larger at the upper of the points.
        """
        lower, upper = self.points()
        return Bracket(np.where(rises, self.low, lower), np.where(rises, upper, self.high))


@dataclass(frozen=True, eq=False)
class BracketSearch:
    """Result of a search with all its evaluations."""

    bracket: Bracket  # the last one
    points: Floats  # of shape (K + 1, ...): points of evaluation and values there, in order
    values: Floats

    @property
    def minimum(self) -> Floats:
        """Estimated minimum: the midpoint of the last bracket."""
        return (self.bracket.low + self.bracket.high) / 2


def n_evaluations(reductions: int) -> int:
    """Number of evaluations for a number of reductions.

    Examples
    --------
    >>> n_evaluations(5)
    6
    """
    _checks.whole(reductions=reductions)
    return int(reductions) + 1


def golden_section(
    objective: Objective, low: ArrayLike, high: ArrayLike, reductions: int = 5
) -> BracketSearch:
    r"""Narrow a bracket by :math:`r^K` with K + 1 evaluations of a function.

    If both values are equal, the upper part is kept.

    Parameters
    ----------
    objective : callable
        From points to values, arrays of the shape of low and high. It is called K + 1 times,
        each time with a new point.
    low, high : numbers or arrays of one shape
        Ends of the bracket, low < high.
    reductions : int
        The number K of reductions.

    Examples
    --------
    >>> result = golden_section(lambda t: (t - 2) ** 2, 0.5, 3.0, reductions=5)
    >>> len(result.points), round(float(result.bracket.high - result.bracket.low), 4)
    (6, 0.2254)
    """
    values: list[ArrayLike] = []

    def evaluate(point: Floats) -> list[ArrayLike]:
        values.append(objective(point))
        return values

    return narrow_bracket(evaluate, low, high, reductions)


def narrow_bracket(
    evaluate: ValueUpdate, low: ArrayLike, high: ArrayLike, reductions: int = 5
) -> BracketSearch:
    """Golden-section search in which a new value may change the earlier ones.

    If a source drops out, the values at the points still compared are recomputed without it.
    Earlier reductions are not revised.

    Parameters
    ----------
    evaluate : callable
        From a new point to the values at all points so far, in order.
    low, high, reductions
        As in :func:`golden_section`.
    """
    bottom, top = np.broadcast_arrays(
        np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    )
    if not (np.isfinite(bottom).all() and np.isfinite(top).all() and (bottom < top).all()):
        raise ValueError(f"Expected finite ends, low < high, got low={low!r}, high={high!r}.")
    total, bracket = n_evaluations(reductions), Bracket(bottom, top)
    points = list(bracket.points())
    for point in points:
        values = evaluate(point)
    lower, upper = (np.full(bottom.shape, i) for i in (0, 1))  # their indices in points
    while True:
        known = np.stack([np.asarray(value, dtype=np.float64) for value in values])
        left, right = (np.take_along_axis(known, i[None], axis=0)[0] for i in (lower, upper))
        rises = left < right
        bracket = bracket.narrow(rises)
        if len(points) == total:
            return BracketSearch(bracket, np.stack(points), known)
        # The new point is a golden point of the new bracket, not of the old one.
        points.append(np.where(rises, *bracket.points()))
        values, newest = evaluate(points[-1]), len(points) - 1
        lower, upper = np.where(rises, newest, upper), np.where(rises, lower, newest)


MIN_SOURCES = 10  # from here on half-widths use the variation between sources

Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class SourceSums:
    """Sums and the contribution of each source."""

    parts: Floats  # of shape (sources, entries): noisy contributions
    noises: tuple[float, ...]  # scales of all discrete Laplace noises, in grid steps
    step: float  # grid step

    @classmethod
    def of(cls, release: Release) -> "SourceSums":
        """Sums of a release."""
        parts = np.stack([one.values for one in single_answers(release)])
        return cls(parts, noise_scales(release.event), release.grid.step)

    @property
    def totals(self) -> Floats:
        """The sums, of shape (entries,)."""
        result: Floats = self.parts.sum(axis=0)
        return result


@dataclass(frozen=True)
class ErrorBound:
    r"""Error bound of a sum."""

    alpha: float  # probability that any of the sums exceeds its bound
    size: int | None  # declared bound on the number of records, times the rows of a unit
    width: float  # largest difference between the contributions of two records to a sum
    # Sums that adaptive queries could have evaluated: Hoeffding's inequality takes a union bound.
    n_candidates: int = 1

    def half_widths(self, sums: SourceSums, n_sums: int) -> Floats:
        """Half-widths of the sums of one answer, with a union bound over a number of sums."""
        alpha, sources = self.alpha / n_sums, len(sums.parts)
        if sources >= MIN_SOURCES:
            t = float(stats.t.isf(alpha / 2, sources - 1))
            spread: Floats = np.sqrt(sources * sums.parts.var(axis=0, ddof=1))
            return t * spread
        n_parts = 1 if self.size is None else 2  # noise and sampling share alpha
        half_width = noise_half_width(sums.noises, alpha / n_parts / 2) * sums.step
        if self.size is not None:
            logarithm = math.log(2 * n_parts * self.n_candidates / self.alpha)
            half_width += self.width * math.sqrt(self.size * logarithm / 2)
        return np.full(sums.parts.shape[1], half_width)


def root_interval(
    points: Floats, answers: Sequence[SourceSums], bound: ErrorBound, ends: Interval
) -> Interval:
    """Interval of the temperature at which an increasing expected sum is zero.

    Parameters
    ----------
    points : array of shape (m,)
        Temperatures.
    answers : sequence of m SourceSums
        The sum at each temperature.
    ends : pair of float
        Range of temperatures. A root outside counts as the nearest end.
    """
    totals = np.array([one.totals[0] for one in answers])
    half_widths = np.array([bound.half_widths(one, len(answers))[0] for one in answers])
    return _interval(points[totals < -half_widths], points[totals > half_widths], ends)


def loss_interval(
    points: Floats, answers: Sequence[SourceSums], bound: ErrorBound, ends: Interval
) -> Interval:
    """Interval of the temperature that minimizes a unimodal expected sum.

    Sums are compared source by source, so that the number of records of a source cancels.
    """
    m = len(answers)
    larger = np.zeros((m, m), dtype=np.bool_)
    for a, b in itertools.permutations(range(m), 2):
        one, other = answers[a], answers[b]
        noises = one.noises + other.noises
        difference = SourceSums(one.parts - other.parts, noises, one.step)
        half_widths = bound.half_widths(difference, m * (m - 1) // 2)
        larger[a, b] = difference.totals[0] > half_widths[0]
    return minimum_interval(points, larger, ends)


def absolute_sum_interval(
    points: Floats, answers: Sequence[SourceSums], bound: ErrorBound, ends: Interval
) -> Interval:
    """Interval of the minimum of a sum of absolute sums.

    If every sum lies in an interval, so does the sum of their absolute values. Two temperatures
    are compared by these intervals.
    """
    low, high = np.zeros(len(answers)), np.zeros(len(answers))
    for i, one in enumerate(answers):
        sums = np.abs(one.totals)
        half_widths = bound.half_widths(one, len(answers) * len(sums))
        low[i], high[i] = np.maximum(sums - half_widths, 0).sum(), (sums + half_widths).sum()
    return minimum_interval(points, low[:, None] > high, ends)


def minimum_interval(points: Floats, larger: Bools, ends: Interval) -> Interval:
    """Interval of the minimum of a unimodal function.

    Parameters
    ----------
    points : array of shape (m,)
    larger : array of shape (m, m)
        Whether the function is significantly larger at one point than at another.
    ends : pair of float
        Range of temperatures.

    Examples
    --------
    >>> larger = np.array([[False, True, False], [False, False, False], [False, True, False]])
    >>> minimum_interval(np.array([1.0, 2.0, 3.0]), larger, (0.5, 6.0))
    (1.0, 3.0)
    """
    above = points[None, :] > points[:, None]
    falls = (larger & above).any(axis=1)
    rises = (larger & above.T).any(axis=1)
    return _interval(points[falls], points[rises], ends)


def _interval(under: Floats, over: Floats, ends: Interval) -> Interval:
    """Interval between the largest lower bound and the smallest upper bound, in order."""
    low = float(under.max(initial=ends[0]))
    high = float(over.min(initial=ends[1]))
    return min(low, high), max(low, high)


GoldenObjective = Literal["accuracy", "likelihood", "calibration error"]
OBJECTIVES = "accuracy", "likelihood", "calibration error"


@dataclass(frozen=True)
class GoldenEvaluation:
    """One evaluation of the objective."""

    temperature: float
    value: float  # noisy objective, summed over all records
    noise_std: float  # standard deviation of the noise of each sum in it


@dataclass(eq=False, repr=False)
class GoldenTemperature(PrivateFitter):
    r"""A temperature by golden-section search on noisy answers (Luo et al. 2020, corrected).

    The objective (https://arxiv.org/abs/2008.09643) is for

    - ``"accuracy"`` (Acc-T) :math:`|\sum_i 1[\hat y_i = y_i] - \hat p_T(x_i)|`, the gap
      between correct predictions and sum of confidences;
    - ``"likelihood"`` (NLL-T) the sum of the losses, each clamped to [0, 10];
    - ``"calibration error"`` (ECE-T) the sum of the absolute gaps of 15 bins.

    As printed, the search evaluates K + 1 values at :math:`\varepsilon / K` each, and so spends
    1.2 times its epsilon for K = 5. Here each of the K + 1 values costs
    :math:`\varepsilon / (K + 1)` (:mod:`~veracal.calibration.private.golden_section`).
    :class:`PrivateTemperature` is more accurate at the same epsilon; this fitter is for
    comparison with the paper. The paper's "one source" is this fitter on ``Public`` records.

    Parameters
    ----------
    objective : {"accuracy", "likelihood", "calibration error"}
    epsilon, micro_epsilon : float or int
        Cost of the fit for each privacy unit; one of the two.
    temperatures : pair of float
        Public range. The paper uses (0.5, 3), which is too small under a strong shift.
    reductions : int
        The number K of reductions.
    bins : int
        Number of bins, for the calibration error.
    clamp : float
        For the likelihood: largest loss of one record.
    centered : bool
        For the likelihood: whether half the clamp is subtracted from each loss, which halves
        the add-remove sensitivity and changes no comparison. False is the paper's form.
    classes : int, optional
        For the accuracy: public number of classes, which slightly reduces the noise under
        replace-one.
    size : int, optional
        *Declared* bound on the total number of records, for the interval with fewer than ten
        sources.
    level : float
        Confidence level of the interval.

    Attributes
    ----------
    map_ : Temperature
    temperature_ : Estimate
        The temperature with an interval for that of the population, clipped to the range: the
        temperature at which accuracy equals mean confidence, or at which the loss or
        calibration error is minimal, if that is unimodal. The ends of the interval are
        evaluated temperatures or the ends of the range
        (:mod:`~veracal.calibration.private.golden_section`). ``n`` is the declared size, or 0.
    interval_covers_ : {"noise and sampling", "noise"}
        Errors that the interval covers. With ten or more sources it covers sampling and
        drop-out; with a declared size it covers sampling; otherwise it is for these records.
    evaluations_ : tuple of GoldenEvaluation
        All evaluations, over the sources that answered every query.
    releases_, private_, statement_
        As in :class:`PrivateTemperature`.

    Guarantees
    ----------
    As in :class:`PrivateTemperature`: K + 1 queries of the same sensitivity through
    :meth:`Source.answer`, each for ``micro_epsilon // (K + 1)`` millionths of epsilon. The
    temperatures are on a public grid and depend only on earlier answers.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Public
    >>> overconfident = Scores.from_probabilities([0.9] * 4_000, [1, 1, 1, 0] * 1_000)
    >>> fitter = GoldenTemperature(epsilon=1.0).fit(Public(overconfident))
    >>> round(fitter.map_.value), len(fitter.evaluations_), fitter.private_
    (2, 6, False)
    """

    objective: GoldenObjective = "accuracy"
    _: KW_ONLY
    epsilon: float | None = None
    micro_epsilon: int | None = None
    temperatures: tuple[float, float] = (0.5, 6.0)
    reductions: int = 5
    bins: int = 15
    clamp: float = 10.0
    centered: bool = True
    classes: int | None = None
    size: int | None = None
    level: float = 0.95

    covers = "the temperature and all answers used to fit it"
    keeps_predictions = True

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Temperature:
        grid, inverses = TemperatureGrid(*self.temperatures), list[float]()

        def evaluate(point: Floats) -> list[float]:
            step = len(inverses)
            inverses.append(float(grid.inverses(point)))
            session.ask(
                replace(queries[step], query=self._query(inverses[-1])), f"value {step}"
            )
            return [self._value(release) for release in session.answers]

        result = narrow_bracket(evaluate, grid.low, grid.high, self.reductions)
        inverse = float(grid.inverses(result.minimum))
        self.evaluations_ = tuple(
            GoldenEvaluation(1 / at, self._value(release), release.noise_std)
            for at, release in zip(inverses, session.answers, strict=True)
        )
        points = np.array([evaluation.temperature for evaluation in self.evaluations_])
        sums = [SourceSums.of(release) for release in session.answers]
        low, high = self._interval(points, sums, unit_of(session.source).max_contributions)
        value, size = 1 / inverse, int(self.size or 0)
        self.temperature_ = Estimate(value, min(low, value), max(high, value), self.level, size)
        sampled = self.size is not None or len(sums[0].parts) >= MIN_SOURCES
        self.interval_covers_ = "noise and sampling" if sampled else "noise"
        return Temperature(inverse)

    def _interval(self, points: Floats, sums: Sequence[SourceSums], rows: int) -> Interval:
        """Confidence interval of the temperature."""
        alpha, ends = 1 - self.level, (float(self.temperatures[0]), float(self.temperatures[1]))
        size = None if self.size is None else int(self.size) * rows
        # A search with K reductions evaluates some of 2^K temperatures fixed beforehand.
        n_candidates = 2 ** int(self.reductions)
        if self.objective == "accuracy":
            return root_interval(points, sums, ErrorBound(alpha, size, 2.0), ends)
        if self.objective == "likelihood":
            bound = ErrorBound(alpha, size, 2 * self.clamp, n_candidates**2)
            return loss_interval(points, sums, bound, ends)
        bound = ErrorBound(alpha, size, 2.0, n_candidates * int(self.bins))
        return absolute_sum_interval(points, sums, bound, ends)

    def _queries(self) -> list[QueryRequest]:
        _checks.one_of(OBJECTIVES, objective=self.objective)
        TemperatureGrid.between(self.temperatures)
        if self.size is not None:
            _checks.whole(size=self.size)
        _checks.open_fraction(level=self.level)
        total = micro_epsilon_of(self.epsilon, self.micro_epsilon)
        parts = divide_epsilon(total, [1] * n_evaluations(self.reductions))
        return [QueryRequest(self._query(1.0), part) for part in parts]

    def _query(self, inverse: float) -> Query:
        """The query at an inverse temperature."""
        if self.objective == "accuracy":
            return Gap(inverse, self.classes)
        if self.objective == "likelihood":
            return LossAt(inverse, self.clamp, self.centered)
        return BinnedGap(Bins(self.bins), inverse)

    def _value(self, release: Release) -> float:
        """The objective from an answer."""
        if self.objective == "likelihood":
            return release.value
        return float(np.abs(release.values).sum())
