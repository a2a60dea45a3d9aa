"""Numbers summed over records: gap, loss, slope, gain."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Frozen
from veracal.calibration.maps import Map
from veracal.calibration.maps.base import digest
from veracal.calibration.queries.records import (
    check_inverse,
    confidence_at,
    gap_at,
    labeled,
    loss_at,
    slope_at,
)
from veracal.data import Scores
from veracal.privacy.answers.grid import Bounds
from veracal.privacy.answers.queries import Setting
from veracal.privacy.answers.sums import ScalarSum


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
    def settings(self) -> Mapping[str, Setting]:
        """Temperature and number of classes."""
        return Frozen({"inverse": self.inverse, "classes": self.classes or 0})

    def per_record(self, records: Any) -> Array:
        """Each record's gap."""
        return gap_at(records, self.inverse)


@dataclass(frozen=True)
class LossAt(ScalarSum):
    r"""Sum of the clamped negative log likelihood at an inverse temperature.

    :class:`~veracal.privacy.NegativeLogLikelihood` is the same at a temperature of 1.

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
    def settings(self) -> Mapping[str, Setting]:
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
    def settings(self) -> Mapping[str, Setting]:
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

    map: Map
    bits: int = 20

    name = "gain of a map"

    def __post_init__(self) -> None:
        if not isinstance(self.map, Map):
            raise ValueError(f"Expected a map of calibration, got {self.map!r}.")
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From all of the score lost to all of it taken off."""
        return Bounds.of(-1, 1, self.grid)

    @property
    def settings(self) -> Mapping[str, Setting]:
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
