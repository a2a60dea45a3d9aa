r"""Where both gaps vanish, from a few noisy answers.

Near the root :math:`\theta^*` the gaps of unsure and sure predictions are linear in the two
logarithms :math:`\theta` of inverse temperatures,

.. math:: G(\theta) = -J (\theta - \theta^*),

with slopes J that were asked for. Noisy gaps and a prior then give a posterior of the root,
taken to be normal. The prior says that the two temperatures are near each other: with much
noise they stay together, and what remains is a search for one.

All of this is a function of noisy answers and of public numbers, and costs no privacy.

Two private temperatures.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import logit

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import MOST_INVERSE, STEEPEST, TwoTemperatures
from veracal.calibration.private.root_search import (
    GapContext,
    Probed,
    check_range,
    probed,
    probed_at,
)
from veracal.calibration.private.session import (
    PricedQuery,
    PrivateFitter,
    QuerySession,
    price,
    split,
)
from veracal.calibration.queries.binned import CorrectWrong
from veracal.calibration.queries.scalars import (
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    Gap,
)
from veracal.data import Estimate
from veracal.queries import Query, Release, Source

_BEND = 0.5  # prior of the difference of both logarithms
_COMMON = 0.9  # prior of their mean, as of the root of a search
_MISFIT = 0.1  # of the line, as a share of the gap
_LEAST_ODDS = 0.5  # logarithm of the odds of an accuracy near one half


@dataclass(frozen=True, eq=False)
class Seen:
    """Noisy gaps at a place.

    Attributes
    ----------
    moves : array of shape (2,)
        The place: both logarithms, from where the slopes were taken.
    gaps : array of shape (2,), or of shape (1,) for their sum alone
        Right predictions minus confidences.
    std : float
        Standard deviation of the noise of each.
    """

    moves: Floats
    gaps: Floats
    std: float

    @property
    def design(self) -> Floats:
        """What the gaps are of both gaps: themselves, or their sum."""
        return np.eye(2) if len(self.gaps) == 2 else np.ones((1, 2))

    @property
    def weight(self) -> float:
        """How much they count."""
        return 1 / (self.std**2 + (_MISFIT * float(np.abs(self.gaps).max())) ** 2 + 1e-9)


@dataclass(frozen=True, eq=False)
class Bend:
    """Posterior of the root.

    Attributes
    ----------
    moves : array of shape (2,)
        Its mean.
    stds : array of shape (2,)
        Standard deviations, for noise and for which records there are.
    """

    moves: Floats
    stds: Floats


def as_slopes(values: ArrayLike) -> Floats:
    """Noisy sums of squares and products as a matrix that slopes can be.

    Without noise it has no negative eigenvalue, so those that noise made negative are zero.
    """
    low, both, high = np.asarray(values, dtype=np.float64)
    roots, vectors = np.linalg.eigh(np.array([[low, both], [both, high]]))
    result: Floats = (vectors * np.maximum(roots, 0)) @ vectors.T
    return result


def bend(slopes: Floats, seen: Sequence[Seen], setting: GapContext) -> Bend:
    """Where the root is, given answers so far.

    Parameters
    ----------
    slopes : array of shape (2, 2)
        As of :func:`as_slopes`.
    seen : sequence of Seen
    setting : Setting
    """
    apart, together = np.array([[1, -1], [-1, 1]]), np.full((2, 2), 0.25)
    precision = apart / _BEND**2 + together / _COMMON**2
    pull, gain = np.zeros(2), np.zeros((2, 2))
    for one in seen:
        line = one.design @ slopes
        precision = precision + one.weight * line.T @ line
        pull = pull + one.weight * line.T @ (one.gaps + line @ one.moves)
        gain = gain + one.weight * line.T @ one.design
    noise = np.linalg.inv(precision)
    chance = noise @ gain @ _chance(slopes, setting) @ gain.T @ noise
    return Bend(noise @ pull, np.sqrt(np.diag(noise + chance)))


def _chance(slopes: Floats, setting: GapContext) -> Floats:
    """Covariance of the gaps over which records there are.

    A record's gap varies by p (1 - p), and for two classes its slope is that times the
    logarithm of the odds, so the slopes tell it, at the odds of the accuracy.
    """
    odds = max(abs(float(logit(setting.accuracy))), _LEAST_ODDS)
    result: Floats = slopes / odds
    return result


# The counts, two gaps, slopes, then both gaps twice. No two shares of one question are equal:
# asked again at the same temperature it would be the same question, with the same noise.
SHARES = (10, 9, 11, 10, 20, 40)
COVERS = "both temperatures, and every answer that led to them"
ENOUGH = 1_500  # records times epsilon from which on two do better than one
_FINEST = 2.0**-16  # inverse temperatures are multiples of it


class PrivateTwoTemperatures(PrivateFitter):
    r"""Two temperatures, for unsure and for sure predictions, by noisy answers.

    First one temperature is searched for, as :class:`PrivateTemperature` does, with few
    questions. There the *gaps* of unsure and of sure predictions are asked for, sums of
    :math:`(1-s) g` and :math:`s g` with the confidence s of a record and its gap
    :math:`g = 1[\hat y = y] - \hat p`, and how fast they move. Both temperatures go where both
    gaps are zero; there they are asked for again.
    Since :math:`(1-s)|g| + s|g| = |g| \le 1`, both gaps together cost what one gap does. Each
    temperature stays within a factor of about 7 of the first.

    It costs pure epsilon, split :math:`10 : 9 : 11 : 10 : 20 : 40` over the six questions. One
    temperature is better where records times epsilon are below about 1,500.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for the fit; one of the two.
    classes : int, optional
        Public number of classes, which makes a little less noise do under replace-one.
    inverses : pair of float
        Public range in which the one temperature is searched for.
    level : float
        Of the intervals.

    Attributes
    ----------
    map_ : TwoTemperatures
    unsure_, sure_ : Estimate
        Temperatures at a confidence of 0 and of 1, with intervals that count the noise and the
        chance of which records there are, as far as the model of the search holds. Their ``n``
        is the noisy number of records.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    As of :class:`PrivateTemperature` by search. No prediction changes.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Public
    >>> rng = np.random.default_rng(0)
    >>> z = 2 * rng.normal(size=(20_000, 2))
    >>> p = TwoTemperatures(1.5, 0.6).transform(Scores.from_logits(z)).probabilities
    >>> labels = (rng.uniform(size=len(z)) < p[:, 1]).astype(int)
    >>> found = PrivateTwoTemperatures(epsilon=1.0).fit(Public(Scores.from_logits(z, labels)))
    >>> found.map_.unsure > 1.2 > 0.8 > found.map_.sure
    True
    """

    keeps = True

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

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source until both temperatures are known.

        Parameters
        ----------
        source : Source
        request : str, optional
            As of :meth:`PrivateTemperature.fit`.
        """
        asks, inverses = self._asks(), check_range(self.inverses)
        inquiry = QuerySession(source, request)
        inquiry.afford(self.items)
        first = probed(inquiry, asks[:3], inverses)
        places, at = [probe.inverse for probe in first.probes], first.inverse
        moves: Floats = np.zeros(2)
        inquiry.ask(
            PricedQuery(ConfidenceWeightedSlopes(mapped(at, moves)), asks[3].micro_epsilon),
            "slopes",
        )
        maps = list[TwoTemperatures]()
        for i, ask in enumerate(asks[4:]):
            maps.append(mapped(at, moves))
            inquiry.ask(
                PricedQuery(ConfidenceWeightedGaps(maps[-1]), ask.micro_epsilon), f"gaps {i}"
            )
            answers = inquiry.answers  # all of them of the same sources
            first = probed_at(answers, places, inverses)
            slopes, *gaps = answers[1 + len(places) :]
            seen = [*sums_seen(first, at), *gaps_seen(gaps, maps, at)]
            found = bend(as_slopes(slopes.values), seen, first.setting)
            moves = found.moves
        self.unsure_, self.sure_ = self._estimates(mapped(at, moves), found, first.n)
        return self._keep(mapped(at, moves), inquiry.answers, source, covers=COVERS)

    def _estimates(self, map_: TwoTemperatures, found: Bend, n: int) -> list[Estimate]:
        """Temperatures with intervals."""
        reach = float(stats.norm.ppf((1 + self.level) / 2)) * found.stds
        values = np.array([1 / map_.unsure, 1 / map_.sure])
        ends = zip(values, values * np.exp(-reach), values * np.exp(reach), strict=True)
        return [Estimate(float(v), float(a), float(b), self.level, n) for v, a, b in ends]

    def _asks(self) -> list[PricedQuery]:
        """The questions, with places for temperatures that are not known yet."""
        check_range(self.inverses)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        one, gap = TwoTemperatures(1.0, 1.0), Gap(classes=self.classes)
        both = ConfidenceWeightedGaps(one)
        queries: list[Query] = [
            CorrectWrong(Bins(1)),
            gap,
            gap,
            ConfidenceWeightedSlopes(one),
            both,
            both,
        ]
        parts = split(price(self.epsilon, self.micro_epsilon), SHARES)
        return [PricedQuery(query, part) for query, part in zip(queries, parts, strict=True)]


def mapped(at: float, moves: Floats) -> TwoTemperatures:
    """The map whose logarithms are so far from one temperature, on a public grid."""
    reach = 0.99 * STEEPEST / 2  # of each: as far as answers around one temperature tell
    moved = at * np.exp(np.clip(moves, -reach, reach))
    steps = np.maximum(np.rint(np.minimum(moved, MOST_INVERSE) / _FINEST), 1)
    unsure, sure = (steps * _FINEST).tolist()
    return TwoTemperatures(unsure, sure, at)


def sums_seen(first: Probed, at: float) -> list[Seen]:
    """What the search for one temperature says of both: the sum of their gaps."""
    return [
        Seen(np.full(2, math.log(probe.inverse / at)), np.array([probe.gap]), probe.std)
        for probe in first.probes
    ]


def gaps_seen(
    gaps: Sequence[Release], maps: Sequence[TwoTemperatures], at: float
) -> list[Seen]:
    """What gaps at two temperatures say, by how far from one temperature they were asked."""
    return [
        Seen(np.log([here.unsure / at, here.sure / at]), np.array(gap.values), gap.noise_std)
        for gap, here in zip(gaps, maps, strict=True)
    ]
