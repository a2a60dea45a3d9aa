"""One private temperature: an adaptive root search, or noisy gradient descent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import LEAST_INVERSE, MOST_INVERSE, Temperature
from veracal.calibration.private.root_posterior import (
    FINEST,
    NoisyGap,
    RootPosterior,
    SearchCounts,
    search_posterior,
)
from veracal.calibration.private.session import (
    DescentFitter,
    QuerySession,
    check_level,
    divide_epsilon,
    micro_epsilon_of,
)
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.scalars import Gap, TemperatureGradient, softplus
from veracal.data import Estimate
from veracal.queries import Query, QueryRequest, Release

Method = Literal["search", "descent"]
SHARES = (15, 12, 24, 49)  # of the epsilon of a search: the counts, then three gaps
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
        Public range.
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
        Public range.
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
    first, last = math.ceil(low / FINEST) * FINEST, math.floor(high / FINEST) * FINEST
    return (first, last) if first <= last else (low, high)


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


def check_range(inverses: tuple[float, float]) -> tuple[float, float]:
    """Return a valid public range of inverse temperatures."""
    low, high = inverses
    _checks.positive(least_inverse=low, most_inverse=high)
    if not LEAST_INVERSE <= low < high <= MOST_INVERSE:
        raise ValueError(
            f"Expected a range of inverses between {LEAST_INVERSE:g} and {MOST_INVERSE:g}, got "
            f"inverses={inverses!r}."
        )
    return float(low), float(high)


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
    inverses : pair of float
        Public range of inverse temperatures.
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
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> overconfident = Scores.from_logits(3 * np.log(p / (1 - p)), labels)
    >>> fitter = PrivateTemperature(epsilon=1.0).fit(Public(overconfident))
    >>> round(fitter.map_.value), fitter.private_
    (3, False)
    """

    covers = "the temperature and all answers used to fit it"
    keeps_predictions = True

    def __init__(
        self,
        method: Method = "search",
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        delta: float | None = None,
        classes: int | None = None,
        inverses: tuple[float, float] = (0.05, 20.0),
        size: int | None = None,
        clip: float = 10.0,
        steps: int = 100,
        learning_rate: float = 0.1,
        level: float = 0.95,
    ) -> None:
        self.method = method
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.delta = delta
        self.classes = classes
        self.inverses = inverses
        self.size = size
        self.clip = clip
        self.steps = steps
        self.learning_rate = learning_rate
        self.level = level

    def _start(self) -> Floats:
        return np.array([START])

    def _gradient(self, parameters: Floats, step: int) -> Query:
        return TemperatureGradient(float(parameters[0]), self.clip, step)

    def _check_settings(self) -> None:
        _checks.one_of(("search", "descent"), method=self.method)
        check_range(self.inverses)
        check_level(self.level)

    def _queries(self) -> list[QueryRequest]:
        total = micro_epsilon_of(self.epsilon, self.micro_epsilon)
        return search_queries(total, SHARES, self.classes)

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Temperature:
        if self.method == "search":
            return self._search(session, queries)
        parameters, std = self._descend(session, queries)
        half_width = float(stats.norm.ppf((1 + self.level) / 2)) * std
        low_inverse, high_inverse = check_range(self.inverses)
        inverse, low, high = (
            min(max(softplus(float(parameters[0]) + d), low_inverse), high_inverse)
            for d in (0.0, half_width, -half_width)
        )
        assert self.size is not None
        self.temperature_ = Estimate(1 / inverse, 1 / low, 1 / high, self.level, int(self.size))
        return Temperature(inverse)

    def _search(self, session: QuerySession, queries: Sequence[QueryRequest]) -> Temperature:
        """Fit by an adaptive root search."""
        inverses = check_range(self.inverses)
        result = search_root(session, queries, inverses)
        sampled = search_posterior(result.gaps, result.counts, inverses, sampled=True)
        low, high = (1 / sampled.inverse((1 + sign * self.level) / 2) for sign in (1, -1))
        value = 1 / result.inverse
        self.temperature_ = Estimate(
            value, min(low, value), max(high, value), self.level, result.n
        )
        return Temperature(result.inverse)
