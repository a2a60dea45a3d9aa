r"""Two private temperatures, for low and for high confidence.

The gaps are weighted by one minus the confidence and by the confidence. Near the root
:math:`\theta^*`, where both are zero, they are linear in the two logarithms :math:`\theta` of
inverse temperatures,

.. math:: G(\theta) = -J (\theta - \theta^*),

with queried slopes J. Noisy gaps and a prior give a normal posterior of the root. The prior
keeps the two temperatures close to each other: with much noise they are nearly equal, as in a
search for one. The posterior is postprocessing of noisy answers and public numbers, at no
privacy cost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import logit

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import MOST_INVERSE, STEEPEST, TwoTemperatures
from veracal.calibration.private.root_posterior import FINEST
from veracal.calibration.private.session import (
    PrivateFitter,
    QuerySession,
    check_level,
    divide_epsilon,
    micro_epsilon_of,
)
from veracal.calibration.private.temperature import (
    check_range,
    root_from_answers,
    search_root,
)
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.scalars import (
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    Gap,
)
from veracal.data import Estimate
from veracal.queries import Query, QueryRequest

_DIFFERENCE = 0.5  # prior standard deviation of the difference of both logarithms
_MEAN = 0.9  # prior standard deviation of their mean, as of the root of a search
_MISFIT = 0.1  # of the linear model, relative to the gap
_MIN_LOG_ODDS = 0.5  # for accuracies near one half
# Shares of the counts, two gaps, the slopes, then both weighted gaps twice. Shares of the same
# query differ: at the same temperature an equal query would get the same noise.
SHARES = (10, 9, 11, 10, 20, 40)
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

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        Cost of the fit for each privacy unit; one of the two.
    classes : int, optional
        Public number of classes, which slightly reduces the noise under replace-one.
    inverses : pair of float
        Public range of inverse temperatures for the root search.
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

    covers = "both temperatures and all answers used to fit them"
    keeps_predictions = True

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        classes: int | None = None,
        inverses: tuple[float, float] = (0.05, 20.0),
        level: float = 0.95,
    ) -> None:
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.classes = classes
        self.inverses = inverses
        self.level = level

    def _fit(self, session: QuerySession, queries: Sequence[QueryRequest]) -> TwoTemperatures:
        inverses = check_range(self.inverses)
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
        check_range(self.inverses)
        check_level(self.level)
        one, gap = TwoTemperatures(1.0, 1.0), Gap(classes=self.classes)
        slopes, both = ConfidenceWeightedSlopes(one), ConfidenceWeightedGaps(one)
        queries: list[Query] = [CorrectWrong(Bins(1)), gap, gap, slopes, both, both]
        costs = divide_epsilon(micro_epsilon_of(self.epsilon, self.micro_epsilon), SHARES)
        return [QueryRequest(query, cost) for query, cost in zip(queries, costs, strict=True)]


def map_at(at: float, offsets: Floats) -> TwoTemperatures:
    """The map with log inverse temperatures at these offsets, on a public grid."""
    bound = 0.99 * STEEPEST / 2  # of each offset: answers at one temperature stay valid
    moved = at * np.exp(np.clip(offsets, -bound, bound))
    steps = np.maximum(np.rint(np.minimum(moved, MOST_INVERSE) / FINEST), 1)
    unsure, sure = (steps * FINEST).tolist()
    return TwoTemperatures(unsure, sure, at)
