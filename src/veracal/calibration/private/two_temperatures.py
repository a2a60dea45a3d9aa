"""Two private temperatures."""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from scipy import stats

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps import TwoTemperatures
from veracal.calibration.maps.temperature import MOST_INVERSE
from veracal.calibration.maps.two_temperatures import STEEPEST
from veracal.calibration.private.asking import Ask, price, split
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.bending import Bend, Seen, as_slopes, bend
from veracal.calibration.private.inquiry import Inquiry
from veracal.calibration.private.probing import Probed, check_range, probed, probed_at
from veracal.calibration.queries import CorrectWrong, Gap, SureGaps, SureSlopes
from veracal.data import Estimate
from veracal.privacy import Query, Release, Source

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
    gaps are zero (:mod:`veracal.calibration.private.bending`); there they are asked for again.
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
    >>> from veracal.privacy import Public
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
        inquiry = Inquiry(source, request)
        inquiry.afford(self.items)
        first = probed(inquiry, asks[:3], inverses)
        places, at = [probe.inverse for probe in first.probes], first.inverse
        moves: Floats = np.zeros(2)
        inquiry.ask(Ask(SureSlopes(mapped(at, moves)), asks[3].micro_epsilon), "slopes")
        maps = list[TwoTemperatures]()
        for i, ask in enumerate(asks[4:]):
            maps.append(mapped(at, moves))
            inquiry.ask(Ask(SureGaps(maps[-1]), ask.micro_epsilon), f"gaps {i}")
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

    def _asks(self) -> list[Ask]:
        """The questions, with places for temperatures that are not known yet."""
        check_range(self.inverses)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        one, gap = TwoTemperatures(1.0, 1.0), Gap(classes=self.classes)
        both = SureGaps(one)
        queries: list[Query] = [CorrectWrong(Bins(1)), gap, gap, SureSlopes(one), both, both]
        parts = split(price(self.epsilon, self.micro_epsilon), SHARES)
        return [Ask(query, part) for query, part in zip(queries, parts, strict=True)]


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
