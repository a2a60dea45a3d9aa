"""One temperature from few answers of many sources, with uniform mixing beyond its range."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from veracal import _checks
from veracal.calibration.maps.base import CalibrationMap
from veracal.calibration.maps.parametric import (
    MAX_UNIFORM_WEIGHT,
    UNIFORM_WEIGHT_BITS,
    Temperature,
    UniformMixing,
)
from veracal.calibration.private.estimates import between_source_variance, noise_scales
from veracal.calibration.private.root_posterior import (
    CENTER,
    NoisyCounts,
    NoisyGap,
    RootPosterior,
    TemperatureGrid,
    pooled_posterior,
)
from veracal.calibration.private.session import (
    PrivateFitter,
    QuerySession,
    micro_epsilon_of,
)
from veracal.calibration.private.temperature import search_queries
from veracal.calibration.queries.scalars import Gap
from veracal.data import Estimate
from veracal.queries import QueryRequest

SHARES = (10, 30, 60)  # of epsilon: the counts, then two gaps
FEW = (10, 90)  # the counts and one gap, if the first of two would not be informative
WIDE = 3.0  # spread of the nearly flat prior that intervals use
_MIN_SLOPE = 0.02  # smallest slope of the mean confidence


@dataclass(eq=False, repr=False, kw_only=True)
class PooledTemperature(PrivateFitter):
    r"""A temperature from two rounds of noisy gaps, for records at many sources.

    The sources answer the numbers of correct and wrong predictions, then the gap between
    correct predictions and sum of confidences (the query of Acc-T, Luo et al. 2020,
    https://arxiv.org/abs/2008.09643) at a temperature of 2.2, and once more at the estimated
    root (:mod:`veracal.calibration.private.root_posterior`). Epsilon is divided 10 : 30 : 60.
    Golden section compares noisy absolute values and has to divide epsilon by six; the sign and
    size of a gap determine direction and distance of the root, so that two are enough.

    If confidences are too high even at the largest temperature of the range, probabilities are
    also mixed with the uniform distribution (:class:`~veracal.calibration.UniformMixing`), with
    a weight computed from the same gap.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        Cost of the fit for each privacy unit; one of the two.
    temperatures : pair of float
        Public range.
    classes : int, optional
        Public number of classes. Without it there is no uniform mixing, and slightly more noise
        under replace-one.
    shares : tuple of int
        Shares of epsilon for the counts and each gap; :func:`plan_pooled` chooses them.
    level : float
        Confidence level of the interval.

    Attributes
    ----------
    map_ : Temperature or UniformMixing
    temperature_ : Estimate
        The temperature with an interval for noise, sampling and, if sources dropped out, the
        selection of sources, clipped to the range. ``n`` is the noisy number of records.
    uniform_weight_ : float
        Weight of uniform mixing, a multiple of :math:`2^{-16}`.
    improved_ : float
        Posterior probability that mean confidence is closer to accuracy with the map than
        without, with a nearly flat prior.
    n_answered_, n_sources_ : int
        Number of sources that answered every query, and of all sources.
    releases_, private_, statement_
        As in :class:`PrivateTemperature`.

    Guarantees
    ----------
    Everything learned from the records passes :meth:`Source.answer`, which charges before it
    reads; the rest is postprocessing. One record changes a count or a gap by at most 1 (if it
    is replaced by 2, or by 2 - 1/k for a gap). The cost is :meth:`event`, known beforehand,
    whatever the answers. Predictions do not change.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Pool, Public
    >>> half = Scores.from_probabilities([0.9] * 2_000, [1, 1, 1, 0] * 500)
    >>> fitter = PooledTemperature(epsilon=1.0).fit(Pool([Public(half), Public(half)]))
    >>> round(fitter.map_.value), fitter.n_answered_, fitter.private_
    (2, 2, False)
    """

    epsilon: float | None = None
    micro_epsilon: int | None = None
    temperatures: tuple[float, float] = (0.5, 6.0)
    classes: int | None = None
    shares: tuple[int, ...] = SHARES
    level: float = 0.95

    covers = "the temperature, the weight of uniform mixing, and all answers used to fit them"
    keeps_predictions = True
    infers_guard = True

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> CalibrationMap:
        grid = TemperatureGrid.between(self.temperatures)
        ends = -math.log(grid.high), -math.log(grid.low)
        session.ask(queries[0], "counts")
        position, positions = CENTER, list[float]()
        for i, gap in enumerate(queries[1:]):
            inverse = float(grid.inverses(math.exp(-position)))
            positions.append(math.log(inverse))
            session.ask(replace(gap, query=Gap(inverse, self.classes)), f"gap {i}")
            posterior = _session_posterior(session, positions, ends)
            position = float(np.clip(posterior.best, *ends))
        inverse = float(grid.inverses(math.exp(-position)))
        self.uniform_weight_ = 0.0
        if self.classes is not None and float(posterior.best) < ends[0]:
            self.uniform_weight_ = _uniform_weight(posterior, ends[0], self.classes)
        wide = _session_posterior(session, positions, ends, spread=WIDE)
        self.temperature_ = self._estimate(inverse, session, wide, ends)
        counts, self.improved_ = _counts(session), 0.0
        if float(counts.correct + counts.wrong) > 0:  # otherwise answers are not informative
            chance = 1 / self.classes if self.classes else 0.0
            improved = wide.improved(np.array(position), self.uniform_weight_, chance)
            self.improved_ = float(improved)
        self.n_answered_, self.n_sources_ = session.n_present, session.n_sources
        if self.uniform_weight_:
            return UniformMixing(inverse, self.uniform_weight_)
        return Temperature(inverse)

    def _estimate(
        self,
        inverse: float,
        session: QuerySession,
        wide: RootPosterior,
        ends: tuple[float, float],
    ) -> Estimate:
        """The temperature with an interval that contains it."""
        counts = _counts(session)
        tail = (1 - self.level) / 2
        best, low, high = math.log(inverse), wide.quantile(tail), wide.quantile(1 - tail)
        quantile = float(stats.norm.isf(tail))
        if 1 < session.n_present < session.n_sources:  # the variation of few is estimated
            quantile = float(stats.t.isf(tail, session.n_present - 1))
        sampling = quantile * _sampling_std(session, wide, counts)
        below = math.hypot(best - float(low), sampling)
        above = math.hypot(float(high) - best, sampling)
        first, last = (
            math.exp(-float(np.clip(x, *ends))) for x in (best + above, best - below)
        )
        value, n = 1 / inverse, max(round(float(counts.correct + counts.wrong)), 0)
        return Estimate(value, min(first, value), max(last, value), self.level, n)

    def _queries(self) -> list[QueryRequest]:
        _checks.open_fraction(level=self.level)
        if len(self.shares) < 2:
            raise ValueError(
                f"Expected shares for the counts and one gap or more, got {self.shares!r}."
            )
        for share in self.shares:
            _checks.whole(shares=share)
        TemperatureGrid.between(self.temperatures)
        total = micro_epsilon_of(self.epsilon, self.micro_epsilon)
        return search_queries(total, self.shares, self.classes)


def _uniform_weight(posterior: RootPosterior, end: float, classes: int) -> float:
    r"""Weight of uniform mixing at the largest temperature that closes the expected gap.

    A confidence c becomes :math:`c - \lambda (c - 1/k)`. The weight is rounded down to a public
    grid, so that a query about the map carries a short exact number.
    """
    gap = float(posterior.gap(np.array(end)))
    excess = float(posterior.accuracy) - gap - 1 / classes  # of the confidence over 1/k
    if excess <= 0:
        return 0.0
    weight = min(max(-gap / excess, 0.0), MAX_UNIFORM_WEIGHT)
    units = math.floor(math.ldexp(weight, UNIFORM_WEIGHT_BITS))
    return math.ldexp(units, -UNIFORM_WEIGHT_BITS)


def _session_posterior(
    session: QuerySession, positions: list[float], ends: tuple[float, float], **prior: float
) -> RootPosterior:
    """Posterior of the root from the answers of the cohort."""
    gaps = [
        NoisyGap(np.array(position), np.array(answer.value), np.array(answer.noise_std))
        for position, answer in zip(positions, session.answers[1:], strict=True)
    ]
    single = len(noise_scales(session.answers[0].event)) == 1
    return pooled_posterior(_counts(session), gaps, ends, single=single, **prior)


def _counts(session: QuerySession) -> NoisyCounts:
    """The counts of the cohort."""
    counts = session.answers[0]
    correct, wrong = (np.array(value) for value in counts.values)
    return NoisyCounts(correct, wrong, np.array(counts.noise_std), np.array(session.n_present))


def _sampling_std(
    session: QuerySession, posterior: RootPosterior, counts: NoisyCounts
) -> float:
    r"""Standard deviation of the root due to the sampling of records and sources.

    A record's gap has variance a(1 - a) at most if confidences are calibrated; the root moves
    by the change of the mean gap divided by the slope of the mean confidence.
    """
    accuracy = float(posterior.accuracy)
    n = float(counts.n)
    spread = between_source_variance(
        [session.answers[-1]],
        [[1.0]],
        sampling=n * accuracy * (1 - accuracy),
        n_sources=session.n_sources,
    )
    slope = max(float(posterior.slope), _MIN_SLOPE)
    return math.sqrt(spread.sampling + spread.between) / (n * slope)
