"""A private temperature by golden section."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps import Temperature
from veracal.calibration.private.asking import Ask, price, split, unit_of
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.calibration.private.golden_intervals import (
    Ends,
    Rule,
    Told,
    absolute_ends,
    counts_sampling,
    loss_ends,
    root_ends,
)
from veracal.calibration.private.golden_section import evaluations, narrowed
from veracal.calibration.private.inquiry import Inquiry
from veracal.calibration.queries import BinnedGap, Gap, LossAt
from veracal.data import Estimate
from veracal.privacy import Query, Release, Source

Objective = Literal["accuracy", "likelihood", "calibration error"]
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
        (:mod:`~veracal.calibration.private.golden_intervals`). Its ``n`` is the declared size,
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
    >>> from veracal.privacy import Public
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
        objective: Objective = "accuracy",
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
        inquiry = Inquiry(source, request)
        inquiry.afford(self.items)
        grid, inverses = TemperatureGrid(*self.temperatures), list[float]()

        def ask(point: Floats) -> list[float]:
            step = len(inverses)
            inverses.append(float(grid.inverses(point)))
            inquiry.ask(Ask(self._query(inverses[-1]), prices[step]), f"value {step}")
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
        told = [Told.of(release) for release in answers]
        low, high = self._ends(points, told, rows)
        value, size = 1 / inverse, int(self.size or 0)
        self.temperature_ = Estimate(value, min(low, value), max(high, value), self.level, size)
        sampled = counts_sampling(told[0], self.size)
        self.counted_ = "noise and sampling" if sampled else "noise"

    def _ends(self, points: Floats, told: Sequence[Told], rows: int) -> Ends:
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

    def _asks(self) -> list[Ask]:
        """The questions, with a place for temperatures that are not known yet."""
        _checks.one_of(OBJECTIVES, objective=self.objective)
        TemperatureGrid(*self._pair())
        if self.size is not None:
            _checks.whole(size=self.size)
        if not 0 < self.level < 1:
            raise ValueError(f"Expected level between 0 and 1, got level={self.level!r}.")
        total = price(self.epsilon, self.micro_epsilon)
        parts = split(total, [1] * evaluations(self.reductions))
        return [Ask(self._query(1.0), part) for part in parts]

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
