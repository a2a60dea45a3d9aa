r"""Golden section: the least of a function with one valley, from few of its values.

With :math:`r = (\sqrt 5 - 1)/2` the bracket [low, high] is asked at two points,

.. math:: t_0 = high - r (high - low), \qquad t_1 = low + r (high - low),

and the part beyond the worse of them is cut off. The point that is left stands at a golden
point of what remains, so that every further cut takes one new value (Kiefer 1953). K cuts take
K + 1 values: two at the start and one after every cut *but the last*, whose value nobody would
look at. Luo et al. 2020 (https://arxiv.org/abs/2008.09643, App. C.1) print it so that a value
is paid for in vain; and where the new point is made of the old bracket, later cuts go astray.

Ends, points and values may be arrays of any shape, each entry a search of its own: no branch
is taken by a value. So many simulated searches run at once, by the code that asks real sources.

Between which temperatures the right one lies, by the answers of a search alone.

A search has asked for sums at a few temperatures. Each sum is off from what the population
leads one to expect by noise and by the chance of which records there were; how far it may be
off is its *reach*, by one of two rules:

- From ten sources on, by what they differ: the reach of a sum of d answers with standard
  deviation s is :math:`t_{d-1} \sqrt d\, s`. This counts noise, sampling, and that other
  sources might have answered (drop-outs that have nothing to do with the records), and needs
  no number of records. For independent normal answers of *any* variances, and mixtures of such
  as Laplace noise is one, a two-sided interval is never too short at levels from 0.95 on
  (Bakirov and Szekely 2006, https://doi.org/10.1007/s10958-006-0366-5; Ibragimov and Mueller
  2010, https://doi.org/10.1198/jbes.2009.08046): sources of unequal size do no harm. Sums of
  a source's records are normal only in the limit.
- From fewer, by the law of the noise, and by Hoeffding's inequality (1963) for the sampling of
  at most ``size`` records if that is declared. Without a size the noise alone is counted.

Which temperatures are left is then a matter of form. The gap between right predictions and sum
of confidences rises with T for *every record*. So if the root T* is above a temperature t, the
sum at t is at most that at T*, a fixed temperature where the population has no gap: a sum at t
that is positive beyond its reach puts T* below t, wherever the answers before led to ask. A
function with one valley has its least below the upper one of two temperatures where it is
larger at the upper, beyond the reach of the difference, and above the lower one the other way
round. All reaches hold at once, by a union bound.

A private temperature by golden section.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from veracal import _checks
from veracal._types import Bools, Floats, Ints
from veracal.calibration.bins import Bins
from veracal.calibration.maps.parametric import Temperature
from veracal.calibration.private.estimates import noise_reach, scales, single_answers
from veracal.calibration.private.session import (
    PricedQuery,
    PrivateFitter,
    QuerySession,
    price,
    split,
    unit_of,
)
from veracal.calibration.private.temperature_grid import TemperatureGrid
from veracal.calibration.queries.binned import BinnedGap
from veracal.calibration.queries.scalars import Gap, LossAt
from veracal.data import Estimate
from veracal.queries import Query, Release, Source

RATIO = (math.sqrt(5) - 1) / 2

Objective = Callable[[Floats], ArrayLike]
Asking = Callable[[Floats], Sequence[ArrayLike]]


@dataclass(frozen=True, eq=False)
class Bracket:
    """Ends between which the least is looked for.

    Attributes
    ----------
    low, high : arrays of one shape

    Examples
    --------
    >>> [float(point) for point in np.round(Bracket(0.5, 3.0).points(), 3)]
    [1.455, 2.045]
    """

    low: Floats
    high: Floats

    def points(self) -> tuple[Floats, Floats]:
        """The two golden points, the lower first."""
        reach = RATIO * (self.high - self.low)
        return self.high - reach, self.low + reach

    def narrowed(self, rises: Bools) -> "Bracket":
        """What is left: where ``rises`` the lower part up to the upper point, else the upper.

        Parameters
        ----------
        rises : array of bool
            Whether the function is larger at the upper of the points.
        """
        lower, upper = self.points()
        return Bracket(np.where(rises, self.low, lower), np.where(rises, upper, self.high))

    @property
    def middle(self) -> Floats:
        """Half way between the ends."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, eq=False)
class BracketSearch:
    """What a search found, and what it saw.

    Attributes
    ----------
    bracket : Bracket
        The last one.
    points, values : arrays of shape (K + 1, ...)
        Where the function was asked, and what it was there, in that order.
    """

    bracket: Bracket
    points: Floats
    values: Floats

    @property
    def least(self) -> Floats:
        """Where the least is taken to be: the middle of the last bracket."""
        return self.bracket.middle


def evaluations(reductions: int) -> int:
    """How many values some reductions take.

    Examples
    --------
    >>> evaluations(5)
    6
    """
    _checks.whole(reductions=reductions)
    return int(reductions) + 1


def golden_section(
    objective: Objective, low: ArrayLike, high: ArrayLike, reductions: int = 5
) -> BracketSearch:
    r"""Narrow a bracket by :math:`r^K`, with K + 1 values of a function.

    Where both values are equal the upper part is kept.

    Parameters
    ----------
    objective : callable
        From points to values, arrays of the shape of low and high. It is called K + 1 times,
        and never again with a point for which it was called.
    low, high : numbers or arrays of one shape
        Every low below its high.
    reductions : int
        The number K of cuts.

    Examples
    --------
    >>> found = golden_section(lambda t: (t - 2) ** 2, 0.5, 3.0, reductions=5)
    >>> len(found.points), round(float(found.bracket.high - found.bracket.low), 4)
    (6, 0.2254)
    """
    seen: list[ArrayLike] = []

    def ask(point: Floats) -> list[ArrayLike]:
        seen.append(objective(point))
        return seen

    return narrowed(ask, low, high, reductions)


def narrowed(
    ask: Asking, low: ArrayLike, high: ArrayLike, reductions: int = 5
) -> BracketSearch:
    """The same where a new value may change the ones before it.

    So it is if a source falls silent: values are then made anew, without it, for the points
    that are still compared. Cuts that were made stay.

    Parameters
    ----------
    ask : callable
        From a new point to the values of all points so far, in the order they were asked.
    low, high, reductions
        As of :func:`golden_section`.
    """
    total, bracket = evaluations(reductions), Bracket(*_ends(low, high))
    asked = list(bracket.points())
    for point in asked:
        values = ask(point)
    lower, upper = (np.full(bracket.low.shape, i) for i in (0, 1))  # their places in asked
    while True:
        seen = np.stack([np.asarray(value, dtype=np.float64) for value in values])
        rises = _at(seen, lower) < _at(seen, upper)
        bracket = bracket.narrowed(rises)
        if len(asked) == total:
            return BracketSearch(bracket, np.stack(asked), seen)
        # The new point is of the new bracket, never of the old one.
        asked.append(np.where(rises, *bracket.points()))
        values, fresh = ask(asked[-1]), len(asked) - 1
        lower, upper = np.where(rises, fresh, upper), np.where(rises, lower, fresh)


def _at(seen: Floats, place: Ints) -> Floats:
    """What was seen at a place, which may be another one in each search."""
    result: Floats = np.take_along_axis(seen, place[None], axis=0)[0]
    return result


def _ends(low: ArrayLike, high: ArrayLike) -> tuple[Floats, Floats]:
    """Ends of a bracket as floats of one shape."""
    ends = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    bottom, top = np.broadcast_arrays(*ends)
    if not (np.isfinite(bottom).all() and np.isfinite(top).all() and (bottom < top).all()):
        raise ValueError(f"Expected finite ends, low < high, got low={low!r}, high={high!r}.")
    return bottom, top


ENOUGH = 10  # sources, from which on they tell by how much they differ

Ends = tuple[float, float]


@dataclass(frozen=True, eq=False)
class SourceSums:
    """Sums, and what each source adds to them.

    Attributes
    ----------
    parts : array of shape (sources, entries)
        With noise.
    noises : tuple of float
        Scale of every discrete Laplace noise on each of the sums, in steps.
    step : float
        Of the grid.
    """

    parts: Floats
    noises: tuple[float, ...]
    step: float

    @classmethod
    def of(cls, release: Release) -> "SourceSums":
        """From an answer."""
        parts = np.stack([one.values for one in single_answers(release)])
        return cls(parts, scales(release.event), release.grid.step)

    @property
    def totals(self) -> Floats:
        """The sums, of shape (entries,)."""
        result: Floats = self.parts.sum(axis=0)
        return result

    def minus(self, other: "SourceSums") -> "SourceSums":
        """Differences of the sums of two answers by the same sources."""
        return SourceSums(self.parts - other.parts, self.noises + other.noises, self.step)


@dataclass(frozen=True)
class Rule:
    r"""How far a sum may be off.

    Attributes
    ----------
    alpha : float
        With which probability one of all the sums may be further off.
    size : int or None
        Declared number of records, at most, times the rows of a unit.
    width : float
        Most that what one record adds to a sum differs from what another does.
    places : int
        How many sums the answers before might have led to ask for, of which Hoeffding's
        inequality has to hold for all.
    """

    alpha: float
    size: int | None
    width: float
    places: int = 1

    def reaches(self, told: SourceSums, asked: int) -> Floats:
        """Of each of the sums of one answer, where so many sums are looked at."""
        alpha, sources = self.alpha / asked, len(told.parts)
        if sources >= ENOUGH:
            t = float(stats.t.isf(alpha / 2, sources - 1))
            spread: Floats = np.sqrt(sources * told.parts.var(axis=0, ddof=1))
            return t * spread
        share = 1 if self.size is None else 2  # of noise and sampling each has its part
        reach = noise_reach(told.noises, alpha / share / 2) * told.step
        if self.size is not None:
            logarithm = math.log(2 * share * self.places / self.alpha)
            reach += self.width * math.sqrt(self.size * logarithm / 2)
        return np.full(told.parts.shape[1], reach)


def counts_sampling(told: SourceSums, size: int | None) -> bool:
    """Whether the reach of a sum includes which records there were."""
    return size is not None or len(told.parts) >= ENOUGH


def root_ends(points: Floats, told: Sequence[SourceSums], rule: Rule, ends: Ends) -> Ends:
    """Between which temperatures a rising sum of the population is zero.

    Parameters
    ----------
    points : array of shape (m,)
        Temperatures.
    told : sequence of m Told
        The sum at each of them.
    rule : Rule
    ends : pair of float
        Range of temperatures. A root beyond it counts as the end that is nearest.
    """
    sums = np.array([one.totals[0] for one in told])
    reaches = np.array([rule.reaches(one, len(told))[0] for one in told])
    return _between(points[sums < -reaches], points[sums > reaches], ends)


def loss_ends(points: Floats, told: Sequence[SourceSums], rule: Rule, ends: Ends) -> Ends:
    """Between which temperatures a sum of the population is least, if it has one valley.

    Sums are compared source by source, so that how many records a source has cancels out.
    """
    m = len(told)
    pairs = m * (m - 1) // 2

    def surely_larger(a: int, b: int) -> bool:
        difference = told[a].minus(told[b])
        return bool(difference.totals[0] > rule.reaches(difference, pairs)[0])

    larger = [[a != b and surely_larger(a, b) for b in range(m)] for a in range(m)]
    return valley_ends(points, np.array(larger), ends)


def absolute_ends(points: Floats, told: Sequence[SourceSums], rule: Rule, ends: Ends) -> Ends:
    """The same of a sum of absolute sums.

    Where every sum lies in an interval, the sum of their absolutes does, too: the intervals of
    two temperatures either meet or tell which is larger.
    """
    low, high = np.zeros(len(told)), np.zeros(len(told))
    for i, one in enumerate(told):
        sums, reaches = np.abs(one.totals), rule.reaches(one, len(told) * len(one.totals))
        low[i], high[i] = np.maximum(sums - reaches, 0).sum(), (sums + reaches).sum()
    return valley_ends(points, low[:, None] > high, ends)


def valley_ends(points: Floats, larger: Bools, ends: Ends) -> Ends:
    """Between which points a function with one valley has its least.

    Parameters
    ----------
    points : array of shape (m,)
    larger : array of shape (m, m)
        Whether the function is surely larger at one point than at another.
    ends : pair of float
        Of the range.

    Examples
    --------
    >>> larger = np.array([[False, True, False], [False, False, False], [False, True, False]])
    >>> valley_ends(np.array([1.0, 2.0, 3.0]), larger, (0.5, 6.0))
    (1.0, 3.0)
    """
    above = points[None, :] > points[:, None]
    falls = (larger & above).any(axis=1)
    rises = (larger & above.T).any(axis=1)
    return _between(points[falls], points[rises], ends)


def _between(under: Floats, over: Floats, ends: Ends) -> Ends:
    """From the highest point under to the lowest point over; in order, if they contradict."""
    low = float(under.max(initial=ends[0]))
    high = float(over.min(initial=ends[1]))
    return min(low, high), max(low, high)


GoldenObjective = Literal["accuracy", "likelihood", "calibration error"]
OBJECTIVES = "accuracy", "likelihood", "calibration error"
COVERS = "the temperature, and every answer that led to it"


@dataclass(frozen=True)
class GoldenProbe:
    """What was asked where.

    Attributes
    ----------
    temperature : float
    value : float
        What is made small, summed over all records, with noise.
    noise_std : float
        Of the noise on each sum that it is made of.
    """

    temperature: float
    value: float
    noise_std: float


class GoldenTemperature(PrivateFitter):
    r"""A temperature by golden section on noisy answers: Luo et al. 2020, corrected.

    What is made small (https://arxiv.org/abs/2008.09643) is for

    - ``"accuracy"`` (Acc-T) :math:`|\sum_i 1[\hat y_i = y_i] - \hat p_T(x_i)|`, the gap
      between right predictions and sum of confidences;
    - ``"likelihood"`` (NLL-T) the sum of the losses, each clamped to [0, 10];
    - ``"calibration error"`` (ECE-T) the sum of the absolute gaps of 15 bins.

    As printed, the search pays for K + 1 values out of :math:`\varepsilon / K` each, and so
    spends 1.2 times its epsilon for K = 5. Here each of K + 1 values costs
    :math:`\varepsilon / (K + 1)` (:mod:`~veracal.calibration.private.golden_section`).
    :class:`PrivateTemperature` finds a better temperature from the same epsilon; this one is
    there to compare. The "one source" of the paper is the same on ``Public`` records of one
    source.

    Parameters
    ----------
    objective : {"accuracy", "likelihood", "calibration error"}
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for the fit; one of the two.
    temperatures : pair of float
        Public range. The paper's is (0.5, 3); under a strong shift the right temperature lies
        beyond it.
    reductions : int
        The number K of cuts.
    bins : int
        For the calibration error.
    clamp : float
        For the likelihood: the largest loss of one record.
    centered : bool
        For the likelihood: whether half the clamp is taken off each loss, which halves the
        sensitivity under add-remove and changes no comparison. False is the paper's form.
    classes : int, optional
        For the accuracy: public number of classes, which makes a little less noise do under
        replace-one.
    size : int, optional
        *Declared* number of records in all, at most, for the interval where there are fewer
        than ten sources.
    level : float
        Of the interval.

    Attributes
    ----------
    map_ : Temperature
    temperature_ : Estimate
        The temperature with an interval for that of the population: where accuracy equals mean
        confidence, or where loss or calibration error is least, as far as that has one valley;
        if it lies beyond the range, for the end that is nearest. Its ends are temperatures
        that were asked for or the ends of the range, and with much noise it is all of that
        (:mod:`~veracal.calibration.private.golden_section`). Its ``n`` is the declared size,
        or 0.
    counted_ : {"noise and sampling", "noise"}
        What the interval counts. Sampling, and who did not answer, are counted if ten or more
        sources answered, and sampling if a size was declared; else the interval is for the
        records at hand.
    probes_ : tuple of GoldenProbe
        What was asked where, of the sources that answered everything.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    As of :class:`PrivateTemperature`: K + 1 questions of one sensitivity, which pass
    :meth:`Source.answer`, each of ``micro_epsilon // (K + 1)`` millionths. Which temperatures
    are asked for depends on earlier answers alone, and all are on a public grid.

    Examples
    --------
    >>> from veracal.data import Scores
    >>> from veracal.queries import Public
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> overconfident = Scores.from_logits(3 * np.log(p / (1 - p)), labels)
    >>> found = GoldenTemperature(epsilon=1.0).fit(Public(overconfident))
    >>> round(found.map_.value), len(found.probes_), found.private_
    (3, 6, False)
    """

    keeps = True

    def __init__(
        self,
        objective: GoldenObjective = "accuracy",
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        temperatures: tuple[float, float] = (0.5, 6.0),
        reductions: int = 5,
        bins: int = 15,
        clamp: float = 10.0,
        centered: bool = True,
        classes: int | None = None,
        size: int | None = None,
        level: float = 0.95,
    ) -> None:
        self.objective = objective
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.temperatures = temperatures
        self.reductions = reductions
        self.bins = bins
        self.clamp = clamp
        self.centered = centered
        self.classes = classes
        self.size = size
        self.level = level

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source until the temperature is known.

        Parameters
        ----------
        source : Source
        request : str, optional
            As of :meth:`PrivateTemperature.fit`.
        """
        prices = [ask.micro_epsilon for ask in self._asks()]
        inquiry = QuerySession(source, request)
        inquiry.afford(self.items)
        grid, inverses = TemperatureGrid(*self.temperatures), list[float]()

        def ask(point: Floats) -> list[float]:
            step = len(inverses)
            inverses.append(float(grid.inverses(point)))
            inquiry.ask(PricedQuery(self._query(inverses[-1]), prices[step]), f"value {step}")
            return [self._value(release) for release in inquiry.answers]

        found = narrowed(ask, grid.low, grid.high, self.reductions)
        inverse = float(grid.inverses(found.least))
        self.probes_ = tuple(
            GoldenProbe(1 / at, self._value(release), release.noise_std)
            for at, release in zip(inverses, inquiry.answers, strict=True)
        )
        self._estimate(inverse, inquiry.answers, unit_of(source).at_most)
        return self._keep(Temperature(inverse), inquiry.releases, source, covers=COVERS)

    def _estimate(self, inverse: float, answers: Sequence[Release], rows: int) -> None:
        """Keep the temperature with its interval, and what that counts."""
        points = np.array([probe.temperature for probe in self.probes_])
        told = [SourceSums.of(release) for release in answers]
        low, high = self._ends(points, told, rows)
        value, size = 1 / inverse, int(self.size or 0)
        self.temperature_ = Estimate(value, min(low, value), max(high, value), self.level, size)
        sampled = counts_sampling(told[0], self.size)
        self.counted_ = "noise and sampling" if sampled else "noise"

    def _ends(self, points: Floats, told: Sequence[SourceSums], rows: int) -> Ends:
        """The interval."""
        alpha, ends = 1 - self.level, (float(self.temperatures[0]), float(self.temperatures[1]))
        size = None if self.size is None else int(self.size) * rows
        # A search of K cuts asks at some of 2^K temperatures, which are known beforehand.
        places = 2 ** int(self.reductions)
        if self.objective == "accuracy":
            return root_ends(points, told, Rule(alpha, size, 2.0), ends)
        if self.objective == "likelihood":
            rule = Rule(alpha, size, 2 * self.clamp, places**2)
            return loss_ends(points, told, rule, ends)
        rule = Rule(alpha, size, 2.0, places * int(self.bins))
        return absolute_ends(points, told, rule, ends)

    def _asks(self) -> list[PricedQuery]:
        """The questions, with a place for temperatures that are not known yet."""
        _checks.one_of(OBJECTIVES, objective=self.objective)
        TemperatureGrid(*self._pair())
        if self.size is not None:
            _checks.whole(size=self.size)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        total = price(self.epsilon, self.micro_epsilon)
        parts = split(total, [1] * evaluations(self.reductions))
        return [PricedQuery(self._query(1.0), part) for part in parts]

    def _pair(self) -> tuple[float, float]:
        """The range of temperatures, if that is what it is."""
        if np.shape(self.temperatures) != (2,):
            raise ValueError(
                "Expected temperatures to be a pair of numbers, got "
                f"temperatures={self.temperatures!r}."
            )
        return self.temperatures

    def _query(self, inverse: float) -> Query:
        """What is asked at an inverse temperature."""
        if self.objective == "accuracy":
            return Gap(inverse, self.classes)
        if self.objective == "likelihood":
            return LossAt(inverse, self.clamp, self.centered)
        return BinnedGap(Bins(self.bins), inverse)

    def _value(self, release: Release) -> float:
        """What is made small, from an answer."""
        if self.objective == "likelihood":
            return release.value
        return float(np.abs(release.values).sum())
