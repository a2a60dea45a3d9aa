"""Private temperatures: one for all predictions, or one each for low and high confidence.

One temperature is fitted by an adaptive root search or by noisy gradient descent. The search for
two begins with the search for one. Their posteriors are postprocessing of noisy answers and
public numbers, at no privacy cost.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import logit

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import (
    MOST_INVERSE,
    STEEPEST,
    Temperature,
    TwoTemperatures,
)
from veracal.calibration.private.root_posterior import (
    FINEST,
    NoisyGap,
    RootPosterior,
    SearchCounts,
    TemperatureGrid,
    search_posterior,
)
from veracal.calibration.private.session import (
    DescentFitter,
    PrivateFitter,
    QuerySession,
    divide_epsilon,
    micro_epsilon_of,
)
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.scalars import (
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    Gap,
    TemperatureGradient,
    softplus,
)
from veracal.data import Estimate
from veracal.queries import Query, QueryRequest, Release

Method = Literal["search", "descent"]
SEARCH_SHARES = (15, 12, 24, 49)  # of the epsilon of a search: the counts, then three gaps
START = math.log(math.e - 1)  # parameter of an inverse temperature of 1


@dataclass(frozen=True, eq=False)
class RootSearch:
    """Result of an adaptive search for the root."""

    inverse: float  # posterior median of the root, on the grid and within the range
    posterior: RootPosterior
    counts: SearchCounts
    positions: tuple[float, ...]  # inverse temperatures of the gaps
    gaps: tuple[NoisyGap, ...]
    n: int  # noisy number of records, at least zero


def search_root(
    session: QuerySession, queries: Sequence[QueryRequest], inverses: tuple[float, float]
) -> RootSearch:
    """Query counts, then gaps, each at the posterior median of the answers so far.

    Parameters
    ----------
    session : QuerySession
        Without earlier queries.
    queries : sequence of QueryRequest
        The counts, then gaps at placeholder temperatures.
    inverses : pair of float
        Public range of inverse temperatures.
    """
    low, high = _round_inward(inverses)
    session.ask(queries[0], "counts")
    positions, result = [min(max(1.0, low), high)], None
    for i, gap in enumerate(queries[1:]):
        assert isinstance(gap.query, Gap)
        session.ask(replace(gap, query=replace(gap.query, inverse=positions[-1])), f"gap {i}")
        result = root_from_answers(session.answers, positions, inverses)
        positions.append(result.inverse)
    assert result is not None
    return result


def root_from_answers(
    answers: Sequence[Release], positions: Sequence[float], inverses: tuple[float, float]
) -> RootSearch:
    """The root from answers of the same sources.

    Parameters
    ----------
    answers : sequence of Release
        The counts, then a gap for each position; further answers are ignored.
    positions : sequence of float
        Inverse temperatures of the gaps.
    inverses : pair of float
        Public range of inverse temperatures.
    """
    low, high = _round_inward(inverses)
    first, *others = answers[: 1 + len(positions)]
    counts = SearchCounts.of(first.values[0], first.values[1], first.noise_std)
    gaps = tuple(
        NoisyGap(*(np.array(x) for x in (math.log(at), gap.value, gap.noise_std)))
        for at, gap in zip(positions, others, strict=True)
    )
    posterior = search_posterior(gaps, counts, inverses)
    inverse = min(max(posterior.inverse(), low), high)
    n = max(round(sum(first.values)), 0)
    return RootSearch(inverse, posterior, counts, tuple(positions), gaps, n)


def _round_inward(inverses: tuple[float, float]) -> tuple[float, float]:
    """Ends of a range, rounded inward to the public grid of queries."""
    low, high = inverses
    return math.ceil(low / FINEST) * FINEST, math.floor(high / FINEST) * FINEST


def search_queries(
    micro_epsilon: int, shares: Sequence[int], classes: int | None
) -> list[QueryRequest]:
    """The counts and several gaps at placeholder temperatures, with their shares of epsilon."""
    costs = divide_epsilon(micro_epsilon, shares)
    gap = Gap(classes=classes)
    return [
        QueryRequest(CorrectWrong(Bins(1)), costs[0]),
        *(QueryRequest(gap, cost) for cost in costs[1:]),
    ]


def inverse_range(temperatures: tuple[float, float]) -> tuple[float, float]:
    """A public range of temperatures as inverse temperatures, after checking it."""
    grid = TemperatureGrid.between(temperatures)
    return 1 / grid.high, 1 / grid.low


@dataclass(eq=False, repr=False)
class PrivateTemperature(DescentFitter):
    r"""A temperature fitted to noisy answers of a source.

    ``"search"`` estimates where the mean confidence equals the accuracy. It queries the numbers
    of correct and wrong predictions, then three times the gap between correct predictions and
    sum of confidences (Luo et al. 2020, https://arxiv.org/abs/2008.09643), each time at the
    posterior median of the root (:mod:`veracal.calibration.private.root_posterior`). It costs
    pure epsilon, divided :math:`15 : 12 : 24 : 49` over the four queries.

    ``"descent"`` is noisy gradient descent on the log likelihood as in Zhang et al. 2022
    (https://arxiv.org/abs/2210.08248): inverse temperature :math:`\log(1 + e^p)`, 100
    full-batch steps, derivatives clipped at 10, a learning rate that decreases linearly from
    0.1 to 0. It needs a delta, a declared number of records, and a source that answers with
    Gaussian noise.

    Parameters
    ----------
    method : {"search", "descent"}
    epsilon, micro_epsilon : float or int
        Cost of the fit for each privacy unit; one of the two.
    delta : float, optional
        For descent.
    classes : int, optional
        Public number of classes, which slightly reduces the noise under replace-one.
    temperatures : pair of float
        Public range.
    size : int, optional
        For descent: *declared* number of records.
    clip, steps, learning_rate
        For descent.
    level : float
        Confidence level of the interval.

    Attributes
    ----------
    map_ : Temperature
    temperature_ : Estimate
        The temperature with an interval. For a search it covers noise and sampling under the
        model of the posterior; for descent the noise alone. ``n`` is the noisy or declared
        number of records.
    releases_ : tuple of Release
        All answers.
    private_ : bool
        Whether all answers are protected by noise.
    statement_ : Statement or None

    Guarantees
    ----------
    Everything learned from the records passes :meth:`Source.answer` (or ``answer_gaussian``),
    which charges before it reads; the rest is postprocessing. The cost is :meth:`event`, known
    beforehand. Queries depend only on earlier answers, so an interrupted fit repeats the same
    queries, which a source answers as before at no cost. Under add-remove nothing is divided by
    the actual number of records.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Public
    >>> overconfident = Scores.from_probabilities([0.9] * 4_000, [1, 1, 1, 0] * 1_000)
    >>> fitter = PrivateTemperature(epsilon=1.0).fit(Public(overconfident))
    >>> round(fitter.map_.value), fitter.private_
    (2, False)
    """

    method: Method = "search"
    _: KW_ONLY
    epsilon: float | None = None
    micro_epsilon: int | None = None
    delta: float | None = None
    classes: int | None = None
    temperatures: tuple[float, float] = (0.05, 20.0)
    size: int | None = None
    clip: float = 10.0
    steps: int = 100
    learning_rate: float = 0.1
    level: float = 0.95

    covers = "the temperature and all answers used to fit it"
    keeps_predictions = True

    def _start(self) -> Floats:
        return np.array([START])

    def _gradient(self, parameters: Floats, step: int) -> Query:
        return TemperatureGradient(float(parameters[0]), self.clip, step)

    def _check_settings(self) -> None:
        _checks.one_of(("search", "descent"), method=self.method)
        TemperatureGrid.between(self.temperatures)  # rejects an invalid range
        _checks.open_fraction(level=self.level)

    def _queries(self) -> list[QueryRequest]:
        total = micro_epsilon_of(self.epsilon, self.micro_epsilon)
        return search_queries(total, SEARCH_SHARES, self.classes)

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Temperature:
        if self.method == "search":
            return self._search(session, queries)
        parameters, std = self._descend(session, queries)
        half_width = float(stats.norm.ppf((1 + self.level) / 2)) * std
        low_inverse, high_inverse = inverse_range(self.temperatures)
        inverse, low, high = (
            min(max(softplus(float(parameters[0]) + d), low_inverse), high_inverse)
            for d in (0.0, half_width, -half_width)
        )
        assert self.size is not None
        self.temperature_ = Estimate(1 / inverse, 1 / low, 1 / high, self.level, int(self.size))
        return Temperature(inverse)

    def _search(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Temperature:
        """Fit by an adaptive root search."""
        inverses = inverse_range(self.temperatures)
        result = search_root(session, queries, inverses)
        sampled = search_posterior(result.gaps, result.counts, inverses, sampled=True)
        low, high = (1 / sampled.inverse((1 + sign * self.level) / 2) for sign in (1, -1))
        value = 1 / result.inverse
        self.temperature_ = Estimate(
            value, min(low, value), max(high, value), self.level, result.n
        )
        return Temperature(result.inverse)


_DIFFERENCE = 0.5  # prior standard deviation of the difference of both logarithms
_MEAN = 0.9  # prior standard deviation of their mean, as of the root of a search
_MISFIT = 0.1  # of the linear model, relative to the gap
_MIN_LOG_ODDS = 0.5  # for accuracies near one half
# Shares of the counts, two gaps, the slopes, then both weighted gaps twice. Shares of the same
# query differ: at the same temperature an equal query would get the same noise.
TWO_SHARES = (10, 9, 11, 10, 20, 40)
MIN_RECORDS_TIMES_EPSILON = 1_500  # from here on two temperatures are better than one


@dataclass(frozen=True, eq=False)
class GapObservation:
    """Noisy weighted gaps at two temperatures."""

    offsets: Floats  # of shape (2,): both logarithms, relative to the temperature of the slopes
    gaps: Floats  # correct predictions minus confidences; of shape (1,) for their sum alone
    std: float  # standard deviation of the noise of each

    @property
    def design(self) -> Floats:
        """Linear map from both gaps to the observed ones."""
        return np.eye(2) if len(self.gaps) == 2 else np.ones((1, 2))

    @property
    def weight(self) -> float:
        """Inverse variance of noise and misfit."""
        return 1 / (self.std**2 + (_MISFIT * float(np.abs(self.gaps).max())) ** 2 + 1e-9)


def slope_matrix(values: ArrayLike) -> Floats:
    """Noisy sums of squares and products as a positive semidefinite matrix.

    Without noise there are no negative eigenvalues, so those due to noise are set to zero.
    """
    low, both, high = np.asarray(values, dtype=np.float64)
    roots, vectors = np.linalg.eigh(np.array([[low, both], [both, high]]))
    result: Floats = (vectors * np.maximum(roots, 0)) @ vectors.T
    return result


def two_temperature_posterior(
    slopes: Floats, observations: Sequence[GapObservation], accuracy: float
) -> tuple[Floats, Floats]:
    """Normal posterior of the root by a linear Gaussian update.

    Parameters
    ----------
    slopes : array of shape (2, 2)
        As returned by :func:`slope_matrix`.
    accuracy : float
        Noisy accuracy, between 0 and 1.

    Returns
    -------
    pair of arrays of shape (2,)
        Its mean, as offsets, and its standard deviations, including sampling.
    """
    difference, mean = np.array([[1, -1], [-1, 1]]), np.full((2, 2), 0.25)
    precision = difference / _DIFFERENCE**2 + mean / _MEAN**2
    information, gain = np.zeros(2), np.zeros((2, 2))
    for seen in observations:
        line = seen.design @ slopes
        precision = precision + seen.weight * line.T @ line
        information = information + seen.weight * line.T @ (seen.gaps + line @ seen.offsets)
        gain = gain + seen.weight * line.T @ seen.design
    covariance = np.linalg.inv(precision)
    # Sampling: a record's gap has variance p (1 - p), and for two classes its slope is that
    # times the log-odds. So the slopes give the covariance of the gaps, at the odds of the
    # accuracy.
    sampling = slopes / max(abs(float(logit(accuracy))), _MIN_LOG_ODDS)
    sampled = covariance @ gain @ sampling @ gain.T @ covariance
    return covariance @ information, np.sqrt(np.diag(covariance + sampled))


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateTwoTemperatures(PrivateFitter):
    r"""Two temperatures, for low and high confidence, fitted to noisy answers of a source.

    First a root search for one temperature as in :class:`PrivateTemperature`, with few queries.
    At its result the weighted gaps are queried, sums of :math:`(1-s) g` and :math:`s g` with
    the confidence s of a record and its gap :math:`g = 1[\hat y = y] - \hat p`, and their
    slopes. Both temperatures move to the root of both gaps, where these are queried again.
    Since :math:`(1-s)|g| + s|g| = |g| \le 1`, both gaps together cost as much as one. Each
    temperature stays within a factor of about 7 of the first.

    It costs pure epsilon, divided :math:`10 : 9 : 11 : 10 : 20 : 40` over the six queries. One
    temperature is better if records times epsilon are below about 1,500.

    Near the root :math:`\theta^*`, where both gaps are zero, they are linear in the two
    logarithms :math:`\theta` of inverse temperatures, :math:`G(\theta) = -J (\theta -
    \theta^*)`, with queried slopes J. Noisy gaps and a prior give a normal posterior of the
    root. The prior keeps the two temperatures close to each other: with much noise they are
    nearly equal, as in a search for one.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        Cost of the fit for each privacy unit; one of the two.
    classes : int, optional
        Public number of classes, which slightly reduces the noise under replace-one.
    temperatures : pair of float
        Public range for the root search.
    level : float
        Confidence level of the intervals.

    Attributes
    ----------
    map_ : TwoTemperatures
    unsure_, sure_ : Estimate
        Temperatures at a confidence of 0 and of 1, with intervals that cover noise and sampling
        under the model of the posterior. ``n`` is the noisy number of records.
    releases_, private_, statement_
        As in :class:`PrivateTemperature`.

    Guarantees
    ----------
    As in :class:`PrivateTemperature` by search. Predictions do not change.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Public
    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(20_000, 2))
    >>> p = TwoTemperatures(1.5, 0.6).transform(Scores.from_logits(z)).probabilities
    >>> labels = (rng.uniform(size=len(z)) < p[:, 1]).astype(int)
    >>> fitter = PrivateTwoTemperatures(epsilon=1.0).fit(Public(Scores.from_logits(z, labels)))
    >>> fitter.map_.unsure > 1.2 > 0.8 > fitter.map_.sure
    True
    """

    epsilon: float | None = None
    micro_epsilon: int | None = None
    classes: int | None = None
    temperatures: tuple[float, float] = (0.05, 20.0)
    level: float = 0.95

    covers = "both temperatures and all answers used to fit them"
    keeps_predictions = True

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> TwoTemperatures:
        inverses = inverse_range(self.temperatures)
        search = search_root(session, queries[:3], inverses)
        positions, at = search.positions, search.inverse
        offsets: Floats = np.zeros(2)
        slope_query = ConfidenceWeightedSlopes(map_at(at, offsets))
        session.ask(replace(queries[3], query=slope_query), "slopes")
        maps = list[TwoTemperatures]()
        for i, query in enumerate(queries[4:]):
            maps.append(map_at(at, offsets))
            session.ask(replace(query, query=ConfidenceWeightedGaps(maps[-1])), f"gaps {i}")
            answers = session.answers  # all answers are from the same sources
            search = root_from_answers(answers, positions, inverses)
            slopes, *gaps = answers[1 + len(positions) :]
            observations = [  # the search for one temperature observes sums of both gaps
                GapObservation(
                    np.full(2, math.log(inverse / at)), seen.gap.reshape(1), float(seen.std)
                )
                for inverse, seen in zip(positions, search.gaps, strict=True)
            ]
            observations += [
                GapObservation(
                    np.log([map_.unsure / at, map_.sure / at]),
                    np.array(gap.values),
                    gap.noise_std,
                )
                for gap, map_ in zip(gaps, maps, strict=True)
            ]
            offsets, stds = two_temperature_posterior(
                slope_matrix(slopes.values), observations, search.counts.accuracy
            )
        map_ = map_at(at, offsets)
        half_widths = float(stats.norm.ppf((1 + self.level) / 2)) * stds
        values = np.array([1 / map_.unsure, 1 / map_.sure])
        lows, highs = values * np.exp(-half_widths), values * np.exp(half_widths)
        self.unsure_, self.sure_ = (
            Estimate(float(value), float(low), float(high), self.level, search.n)
            for value, low, high in zip(values, lows, highs, strict=True)
        )
        return map_

    def _queries(self) -> list[QueryRequest]:
        TemperatureGrid.between(self.temperatures)  # rejects an invalid range
        _checks.open_fraction(level=self.level)
        one, gap = TwoTemperatures(1.0, 1.0), Gap(classes=self.classes)
        slopes, both = ConfidenceWeightedSlopes(one), ConfidenceWeightedGaps(one)
        queries: list[Query] = [CorrectWrong(Bins(1)), gap, gap, slopes, both, both]
        costs = divide_epsilon(micro_epsilon_of(self.epsilon, self.micro_epsilon), TWO_SHARES)
        return [QueryRequest(query, cost) for query, cost in zip(queries, costs, strict=True)]


def map_at(at: float, offsets: Floats) -> TwoTemperatures:
    """The map with log inverse temperatures at these offsets, on a public grid."""
    bound = 0.99 * STEEPEST / 2  # of each offset: answers at one temperature stay valid
    moved = at * np.exp(np.clip(offsets, -bound, bound))
    steps = np.maximum(np.rint(np.minimum(moved, MOST_INVERSE) / FINEST), 1)
    unsure, sure = (steps * FINEST).tolist()
    return TwoTemperatures(unsure, sure, at)
