"""One temperature from the answers of many sources, and doubt where none is enough."""

import math
from typing import Self

import numpy as np
from scipy import stats

from veracal import _checks
from veracal.calibration.bins import Bins
from veracal.calibration.maps import Doubt, Map, Temperature
from veracal.calibration.maps.doubt import DOUBT_BITS, MOST_DOUBT
from veracal.calibration.private.asking import Ask, price, split
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.cohort import between
from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.calibration.private.inquiry import Inquiry
from veracal.calibration.private.meeting import (
    CENTER,
    Counted,
    Gapped,
    Meeting,
    meeting,
)
from veracal.calibration.private.noises import scales
from veracal.calibration.queries import CorrectWrong, Gap
from veracal.data import Estimate
from veracal.privacy import Release, Source

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
    put the root (:mod:`veracal.calibration.private.meeting`). Epsilon is split 10 : 30 : 60.
    Golden section compares noisy absolute values and has to split epsilon by six; a gap has a
    sign and a size, which say where the root is and how far, so that two are enough.

    Where even the largest temperature of the range leaves confidences too high, the rest of
    the way is doubt: probabilities are mixed with equal ones
    (:class:`~veracal.calibration.maps.Doubt`), by the very gap that was asked for.

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
    >>> from veracal.privacy import Pool, Public
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
        inquiry = Inquiry(source, request)
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
        map_: Map = Doubt(inverse, self.doubt_) if self.doubt_ else Temperature(inverse)
        return self._keep(map_, inquiry.releases, source, covers=COVERS)

    def _searched(
        self,
        inquiry: Inquiry,
        asks: list[Ask],
        grid: TemperatureGrid,
        ends: tuple[float, float],
    ) -> tuple[Meeting, list[float]]:
        """Where the root is, by gaps at the center and then where the answers put it."""
        place, places = CENTER, list[float]()
        for i, ask in enumerate(asks):
            inverse = float(grid.inverses(math.exp(-place)))
            places.append(math.log(inverse))
            inquiry.ask(Ask(Gap(inverse, self.classes), ask.micro_epsilon), f"gap {i}")
            found = _met(inquiry, places, ends)
            place = _nearest(float(found.best), ends)
        return found, places

    def _improved(self, place: float, inquiry: Inquiry, wide: Meeting) -> float:
        """Probability that the map is better than none."""
        counted = _counted(inquiry)
        if float(counted.correct + counted.wrong) <= 0:
            return 0.0  # answers that count nobody say nothing of anybody's confidence
        chance = 1 / self.classes if self.classes else 0.0
        return float(wide.improved(np.array(place), self.doubt_, chance))

    def _doubt(self, found: Meeting, end: float) -> float:
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
        self, inverse: float, inquiry: Inquiry, wide: Meeting, ends: tuple[float, float]
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

    def _asks(self) -> list[Ask]:
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
        return [Ask(CorrectWrong(Bins(1)), parts[0]), *(Ask(gap, part) for part in parts[1:])]


def _nearest(place: float, ends: tuple[float, float]) -> float:
    """The same place, or the end of the range that it is beyond."""
    return min(max(place, ends[0]), ends[1])


def _met(
    inquiry: Inquiry, places: list[float], ends: tuple[float, float], **prior: float
) -> Meeting:
    """Where the root is, given the answers of those who answered everything."""
    gaps = [
        Gapped(np.array(place), np.array(answer.value), np.array(answer.noise_std))
        for place, answer in zip(places, inquiry.answers[1:], strict=True)
    ]
    return meeting(_counted(inquiry), gaps, ends, single=_is_single(inquiry.answers), **prior)


def _counted(inquiry: Inquiry) -> Counted:
    """The counts."""
    counts = inquiry.answers[0]
    correct, wrong = (np.array(value) for value in counts.values)
    return Counted(correct, wrong, np.array(counts.noise_std), np.array(inquiry.present))


def _is_single(answers: tuple[Release, ...]) -> bool:
    """Whether one source's noise is on an answer."""
    return len(scales(answers[0].event)) == 1


def _reach(inquiry: Inquiry, tail: float) -> float:
    """Standard deviations that chance exceeds with a probability.

    Where sources fell silent, how much they differ is told by those few that answered: then by
    Student's law.
    """
    if 1 < inquiry.present < inquiry.asked:
        return float(stats.t.isf(tail, inquiry.present - 1))
    return float(stats.norm.isf(tail))


def _chance(inquiry: Inquiry, found: Meeting, counted: Counted) -> float:
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
