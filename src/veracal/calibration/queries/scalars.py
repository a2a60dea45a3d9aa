"""Numbers summed over records: gap, loss, slope, gain.

Gaps of unsure and of sure predictions, and how fast two temperatures move them.

Questions about scores that are mapped first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Frozen, Ints
from veracal.accounting import Relation
from veracal.calibration.maps.base import CalibrationMap, Identity, digest
from veracal.calibration.maps.parametric import TwoTemperatures, sureness
from veracal.calibration.queries.records import (
    VectorSum,
    below_largest,
    check_inverse,
    confidence_at,
    gap_at,
    labeled,
    loss_at,
    slope_at,
)
from veracal.data import Scores, frozen
from veracal.mechanisms import Bounds, Grid
from veracal.queries import NonAdditive, Query, ScalarSum, SettingValue, apply_in_blocks


@dataclass(frozen=True)
class Gap(ScalarSum):
    r"""Sum of :math:`1[\hat y = y] - \hat p_\beta`: how many more were right than expected.

    Luo et al. 2020 (https://arxiv.org/abs/2008.09643), Acc-T. It falls with the inverse
    temperature, and where it is zero the mean confidence is the accuracy.

    Parameters
    ----------
    inverse : float
        The inverse temperature :math:`\beta`.
    classes : int, optional
        Public number k of classes. A record then adds at most :math:`1 - 1/k`, which makes the
        replace-one sensitivity :math:`2 - 1/k` instead of 2.
    bits : int
        Of the grid.

    Examples
    --------
    >>> Gap(classes=4, bits=4).sensitivity("replace-one")  # 2 - 1/4, in sixteenths
    28
    """

    inverse: float = 1.0
    classes: int | None = None
    bits: int = 20

    name = "gap"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", check_inverse(self.inverse))
        if self.classes is not None:
            _checks.whole(classes=self.classes, least=2)
            object.__setattr__(self, "classes", int(self.classes))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From sure and wrong to as unsure as can be, and right."""
        if self.classes is None:
            return Bounds.of(-1, 1, self.grid)
        one = 1 << self.grid.bits
        return Bounds(-one, one - one // self.classes)  # rounded outward, in integers

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Temperature and number of classes."""
        return Frozen({"inverse": self.inverse, "classes": self.classes or 0})

    def per_record(self, records: Any) -> Array:
        """Each record's gap."""
        return gap_at(records, self.inverse)


@dataclass(frozen=True)
class LossAt(ScalarSum):
    r"""Sum of the clamped negative log likelihood at an inverse temperature.

    :class:`~veracal.queries.NegativeLogLikelihood` is the same at a temperature of 1.

    Parameters
    ----------
    inverse : float
    clamp : float
        The largest loss c of one record; without it one record could add anything.
    centered : bool
        Whether c/2 is taken off each loss. That halves the add-remove sensitivity, and the
        answers at all temperatures are short by the same.
    bits : int
        Of the grid.
    """

    inverse: float = 1.0
    clamp: float = 10.0
    centered: bool = True
    bits: int = 20

    name = "negative log likelihood at a temperature"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", check_inverse(self.inverse))
        _checks.positive(clamp=self.clamp)
        object.__setattr__(self, "clamp", float(self.clamp))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From zero to the clamp, or half of it to either side."""
        return Bounds.of(-self._taken_off, self.clamp - self._taken_off, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Temperature and clamp."""
        told = {"inverse": self.inverse, "clamp": self.clamp}
        return Frozen({**told, "centered": bool(self.centered)})

    def per_record(self, records: Any) -> Array:
        """Each record's loss, clamped before it meets the grid: infinity is a loss too."""
        return np.clip(loss_at(records, self.inverse), 0, self.clamp) - self._taken_off

    @property
    def _taken_off(self) -> float:
        """What is taken off each loss."""
        return self.clamp / 2 if self.centered else 0.0


@dataclass(frozen=True)
class TemperatureGradient(ScalarSum):
    r"""Sum of clipped slopes of the loss in p, where the inverse temperature is softplus(p).

    Zhang et al. 2022 (https://arxiv.org/abs/2210.08248), DP-TS.

    Parameters
    ----------
    parameter : float
        Where the slope is taken.
    clip : float
        Slopes are clipped to plus or minus this.
    step : int
        Number of the step. It is part of the question: at two steps the same question would
        get the same noise.
    bits : int
        Of the grid. It is coarse beside the noise, and fine enough beside the clip, so that
        the discrete noise on it is still accounted for exactly.
    """

    parameter: float
    clip: float = 10.0
    step: int = 0
    bits: int = 6

    name = "temperature gradient"

    def __post_init__(self) -> None:
        if not math.isfinite(self.parameter):
            raise ValueError(f"Expected a finite parameter, got parameter={self.parameter!r}.")
        _checks.positive(clip=self.clip)
        _checks.whole(step=self.step, least=0)
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """The clip, up and down."""
        return Bounds.of(-self.clip, self.clip, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Parameter, clip and step."""
        told = {"parameter": float(self.parameter), "clip": float(self.clip)}
        return Frozen({**told, "step": int(self.step)})

    def per_record(self, records: Any) -> Array:
        """Each record's slope; an infinite one is clipped like any other."""
        return np.clip(slope_at(records, self.parameter), -self.clip, self.clip)


@dataclass(frozen=True)
class BrierGain(ScalarSum):
    r"""Sum of what a map takes off the top-label Brier score: positive where it helps.

    A record adds :math:`(\hat p - 1[\hat y = y])^2 - (\hat q - 1[\hat z = y])^2 \in [-1, 1]`,
    with prediction :math:`\hat y` of confidence :math:`\hat p` before the map and
    :math:`\hat z`, :math:`\hat q` after it. The difference of each record is taken before the
    noise: asking for both scores would cost twice as much, and noise.

    Parameters
    ----------
    map : Map
        With public parameters.
    bits : int
        Of the grid.
    """

    map: CalibrationMap
    bits: int = 20

    name = "gain of a map"

    def __post_init__(self) -> None:
        if not isinstance(self.map, CalibrationMap):
            raise ValueError(f"Expected a map of calibration, got {self.map!r}.")
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From all of the score lost to all of it taken off."""
        return Bounds.of(-1, 1, self.grid)

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The map, by all of its parameters."""
        return Frozen({"map": self.map.kind, "parameters": digest(self.map)})

    def per_record(self, records: Any) -> Array:
        """Each record's gain."""
        scores = labeled(records)
        return top_label_brier(scores) - top_label_brier(self.map.transform(scores))


def top_label_brier(scores: Scores) -> Array:
    """Squared distance of each confidence from being right."""
    result: Array = (confidence_at(scores, 1.0) - scores.correct) ** 2
    return result


@dataclass(frozen=True)
class ConfidenceWeightedGaps(VectorSum):
    r"""Sums of :math:`(1 - s) g` and of :math:`s g`, the gaps of the unsure and of the sure.

    A record's gap :math:`g = 1[\hat y = y] - \hat p` is that of
    :class:`~veracal.calibration.Gap`, at the record's own inverse temperature
    :math:`\beta(s)`. Both sums are zero where confidences are right, low and high ones apart.
    One record adds :math:`(1 - s)|g| + s|g| = |g| \le 1` in the L1 norm, so that both sums
    together cost what the one of ``Gap`` does (under replace-one 2, whatever the classes).

    Parameters
    ----------
    map : TwoTemperatures
        With public parameters.
    bits : int
        Of the grid.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.75, 0.25]], [0])
    >>> query = ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0), bits=8)
    >>> query.evaluate(scores)  # 1/16 and 3/16
    array([16, 48])
    """

    map: TwoTemperatures
    bits: int = 20

    name = "gaps of the unsure and the sure"
    power = 1
    entries = 2
    bound = 1.0

    def __post_init__(self) -> None:
        _check_map(self.map)
        _ = self.sums

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The map."""
        return Frozen({"parameters": digest(self.map)})

    def per_record(self, records: Any) -> Array:
        """Each record's gap, shared out."""
        scores = labeled(records)
        sure = sureness(scores.logits.astype(np.float64), self.map.at)
        powers = _powers(scores, self.map.inverses(sure))
        gaps = scores.correct - 1 / powers.sum(axis=1)
        return np.stack([(1 - sure) * gaps, sure * gaps], axis=1)


@dataclass(frozen=True)
class ConfidenceWeightedSlopes(VectorSum):
    r"""Sums of :math:`(1-s)^2 \kappa`, :math:`(1-s) s \kappa` and :math:`s^2 \kappa`.

    With :math:`\kappa = \partial \hat p / \partial \log \beta = \hat p \sum_j p_j \beta
    (z_{\max} - z_j)`, these are the derivatives of the sums of :class:`ConfidenceWeightedGaps`
    in the two logarithms, but for the sign. One record adds
    :math:`\kappa (1 - s(1-s)) \le \kappa`, which is at most 0.23 for two classes and 1.03 for
    fifty; more is cut.

    Parameters
    ----------
    map : TwoTemperatures
    most : float
        Where a record is cut.
    bits : int
        Of the grid.
    """

    map: TwoTemperatures
    most: float = 1.0
    bits: int = 20

    name = "slopes of the unsure and the sure"
    power = 1
    entries = 3

    def __post_init__(self) -> None:
        _check_map(self.map)
        _checks.positive(most=self.most)
        _ = self.sums

    @property
    def bound(self) -> float:
        """Where a record is cut."""
        return self.most

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The map, and where a record is cut."""
        return Frozen({"parameters": digest(self.map), "most": float(self.most)})

    def per_record(self, records: Any) -> Array:
        """Each record's slope, shared out."""
        scores = labeled(records)
        sure = sureness(scores.logits.astype(np.float64), self.map.at)
        inverses = self.map.inverses(sure)
        powers = _powers(scores, inverses)
        total = powers.sum(axis=1)
        with np.errstate(invalid="ignore"):  # zero times minus infinity
            distances = np.where(powers > 0, powers * below_largest(scores), 0.0)
        slopes = -inverses * distances.sum(axis=1) / total**2
        parts = (1 - sure) ** 2, (1 - sure) * sure, sure**2
        return np.stack([part * slopes for part in parts], axis=1)


def _powers(scores: Scores, inverses: Floats) -> Floats:
    """Exponentials of the logits at a record's inverse temperature, the largest of them 1."""
    with np.errstate(over="ignore"):
        result: Floats = np.exp(inverses[:, None] * below_largest(scores))
    return result


def _check_map(map_: object) -> None:
    """Refuse another kind of map."""
    if not isinstance(map_, TwoTemperatures):
        raise ValueError(f"Expected a map of two temperatures, got {map_!r}.")


@dataclass(frozen=True)
class MappedQuery:
    r"""A question about the scores that a public map makes of those that are there.

    Whoever holds the records maps them and answers: sources far away need not be told which
    kind of map it is. A map reads one record at a time, so a record that is added, removed or
    replaced is one mapped record that is, and the answer moves no further than the question
    says of any scores.

    Parameters
    ----------
    query : Query
        A sum over records.
    map : Map
        With public parameters.

    Guarantees
    ----------
    Sensitivities are those of the query, which hold for all scores of the right form, mapped
    ones included. Records are mapped in blocks of one shape (:func:`mapped_rows`), so that
    other records do not move a bit of one that stays.

    Examples
    --------
    >>> from veracal.calibration.bins import Bins
    >>> from veracal.calibration.maps import Temperature
    >>> from veracal.calibration.queries import BinnedGap
    >>> from veracal.data import Scores
    >>> scores = Scores.from_logits([[4.0, 0.0]], [0])
    >>> asked = MappedQuery(BinnedGap(Bins(1)), Temperature(0.5))
    >>> asked.evaluate(scores) == BinnedGap(Bins(1), 0.5).evaluate(scores)
    array([ True])
    """

    query: Query
    map: CalibrationMap

    def __post_init__(self) -> None:
        if not isinstance(self.map, CalibrationMap):
            raise ValueError(f"Expected a map of calibration, got {self.map!r}.")
        if isinstance(self.query, NonAdditive) != isinstance(self, NonAdditive):
            raise ValueError(f"Expected of_mapped to be used for {self.query!r}.")

    @property
    def name(self) -> str:
        """What is asked."""
        return f"{self.query.name}, mapped"

    @property
    def grid(self) -> Grid:
        """The grid of the answer."""
        return self.query.grid

    @property
    def entries(self) -> int:
        """Length of the answer."""
        return self.query.entries

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Those of the question, and the map by all of its parameters.

        The question may be about a map itself: its settings get a prefix, so that none of them
        is written over, and no two questions look like one.
        """
        asked = {f"of {name}": value for name, value in self.query.settings.items()}
        told = {"map": self.map.kind, "parameters": digest(self.map)}
        return Frozen({**asked, "of": type(self.query).__name__, **told})

    def sensitivity(self, relation: Relation) -> int:
        """Most that the answer moves in the L1 norm, in units."""
        return self.query.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Most that it moves in the L2 norm, in units."""
        return self.query.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """Map, then evaluate."""
        return self.query.evaluate(mapped_rows(self.map, labeled(records)))


@dataclass(frozen=True)
class StatisticOfMapped(MappedQuery, NonAdditive):
    """The same of a question whose answers do not add up, which one source alone is asked."""


def mapped_rows(map_: CalibrationMap, scores: Scores) -> Scores:
    """Scores, mapped so that what becomes of a row does not depend on others that there are.

    Across the edge of a bin, a row that differs in its last bits is a whole record.
    """
    if not isinstance(map_, Identity):
        parts = list(apply_in_blocks(scores, lambda part, real: (map_.transform(part), real)))
        values = np.concatenate([part.values[:real] for part, real in parts])
        first = parts[0][0]
        scores = replace(scores, values=frozen(values), kind=first.kind, name=first.name)
    return scores


def of_mapped(query: Query, map_: CalibrationMap) -> MappedQuery:
    """Ask about mapped scores; what does not add up still does not."""
    return (StatisticOfMapped if isinstance(query, NonAdditive) else MappedQuery)(query, map_)
