r"""Equations that a calibrated affine map solves, and how steep they are.

If :math:`P(y = c \mid z) = \mathrm{softmax}(Wz + b)_c`, then for *every* function f of the
logits the residuals :math:`r = \mathrm{softmax}(Wz + b) - e_y` have
:math:`E[r \, f(z)^\top] = 0`. With f = z these are the equations of maximum likelihood, and one
record may add anything to them. With a bounded f they have the same solution, a record adds a
bounded amount *without* a residual ever being clipped, and so the few records that are sure
and wrong, which tell most, are not shortened: clipped gradients lose exactly these, and lead to
maps that are too sure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import softmax

from veracal import _checks
from veracal._types import Array, Frozen
from veracal.calibration.maps import Platt
from veracal.calibration.maps.base import check_width
from veracal.calibration.maps.platt import Form, readable_logits
from veracal.calibration.queries.gradients import products, residuals
from veracal.calibration.queries.parameters import ParameterGrid
from veracal.calibration.queries.records import check_inverse, labeled
from veracal.calibration.queries.vectors import VectorSum
from veracal.data.score_values import Kind
from veracal.privacy.answers.queries import Setting
from veracal.privacy.answers.sums import BinnedSum

LEVEL = 8.0  # log-odds beyond which the level of an unsure class is clipped


@dataclass(frozen=True)
class PlattEquations(VectorSum):
    r"""Sum of residuals, and of residuals times bounded logits.

    A record adds :math:`(r \cdot f, r)`, :math:`(r \circ f, r)` or :math:`(r f^\top, r)` where
    W is a number, a diagonal or a matrix, with :math:`f_c = \mathrm{clip}((z_c - m) / s, -1,
    1)`. Since :math:`\lVert r \rVert_1 \le 2`, :math:`\lVert r \rVert_2^2 \le 2` and
    :math:`|f_c| \le 1`, its L2 norm is at most :math:`\sqrt 6`, 2 or
    :math:`\sqrt{2 (1 + k)}`.

    Parameters
    ----------
    map : Platt
        Where the residuals are taken. It must lie on the grid.
    center, spread : float
        The public numbers m and s.
    step : int
        Number of the step, as of :class:`TemperatureGradient`.
    parameters : ParameterGrid
        The enrolled grid.
    bits : int
        Of the grid of the answer.

    Guarantees
    ----------
    The norm of what a record adds is at most :attr:`bound`, whatever the record; the sum
    enforces it once more in integers. A map off the grid is refused before a record is read.
    """

    map: Platt
    center: float = 0.0
    spread: float = 1.0
    step: int = 0
    parameters: ParameterGrid = field(default_factory=ParameterGrid)
    bits: int = 10

    name = "Platt equations"
    power = 2

    def __post_init__(self) -> None:
        _ = self.parameters.units(self.map), self.sums
        _checks.positive(spread=self.spread)
        _checks.whole(step=self.step, least=0)
        if not math.isfinite(self.center):
            raise ValueError(f"Expected a finite center, got center={self.center!r}.")

    @property
    def entries(self) -> int:
        """Number of weights, and one bias a class."""
        return int(np.size(self.map.weights)) + len(self.map.bias)

    @property
    def bound(self) -> float:
        """Longest vector of a record."""
        return equation_bound(self.map.form, len(self.map.bias))

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The map as whole numbers, the grid, the center, the spread and the step."""
        grid, units = self.parameters, self.parameters.units(self.map)
        told: dict[str, Setting] = {
            "form": self.map.form,
            "reads": self.map.reads or "",
            "parameters": " ".join(map(str, units)),
            "parameter grid": f"{grid.bits} {grid.most_weight} {grid.most_bias}",
        }
        numbers = {"center": float(self.center), "spread": float(self.spread)}
        return Frozen({**told, **numbers, "step": int(self.step)})

    def per_record(self, records: Any) -> Array:
        """Each record's residuals and products, of shape (n, entries)."""
        scores = labeled(records)
        self.map.check(scores)
        z = readable_logits(scores)
        seen = np.clip((z - self.center) / self.spread, -1.0, 1.0)
        return products(self.map.form, residuals(self.map, z, scores.known_labels), seen)


@dataclass(frozen=True)
class PlattCurvature(VectorSum):
    r"""How unsure the classes are at an inverse temperature, and at which log-odds.

    With :math:`p = \mathrm{softmax}(\beta z)` and :math:`q_c = p_c (1 - p_c)` a record adds
    :math:`\sum_c q_c` and :math:`\sum_c q_c \, \mathrm{clip}(\beta z_c / 8, -1, 1)`. The first
    is how steep the equations of the biases are, all classes together; their ratio is where
    the logits of unsure classes lie. No label is read.

    Parameters
    ----------
    inverse : float
        The inverse temperature :math:`\beta`.
    classes : int
        Public number k of classes: a record adds at most :math:`1 - 1/k` to each entry.
    bits : int
        Of the grid.
    """

    inverse: float
    classes: int
    bits: int = 12

    name = "Platt curvature"
    power = 2
    entries = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "inverse", check_inverse(self.inverse))
        _checks.whole(classes=self.classes, least=2)
        _ = self.sums

    @property
    def bound(self) -> float:
        """Longest vector of a record."""
        return math.sqrt(2.0) * (1 - 1 / self.classes)

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Temperature and number of classes."""
        return Frozen({"inverse": self.inverse, "classes": int(self.classes)})

    def per_record(self, records: Any) -> Array:
        """Each record's two numbers."""
        scores = labeled(records)
        check_width(scores, int(self.classes), Platt.kind)
        odds = self.inverse * readable_logits(scores)
        p = softmax(odds, axis=1)
        unsure = p * (1 - p)
        level = np.clip(odds / LEVEL, -1.0, 1.0)
        return np.stack([unsure.sum(axis=1), (unsure * level).sum(axis=1)], axis=1)


def platt_counts(classes: int, reads: Kind | None = None) -> BinnedSum:
    """Numbers of right and of wrong predictions, of scores that a map is for.

    As :class:`CorrectWrong` without bins, but scores of other classes or of another kind are
    refused: asked first, it keeps a fit that must fail from being charged at all.
    """
    fits = Platt(1.0, np.zeros(classes), reads)

    def wrong(records: Any) -> Array:
        scores = labeled(records)
        fits.check(scores)
        return ~np.asarray(scores.correct)

    def ones(records: Any) -> Array:
        return np.ones(len(records))

    told: dict[str, Setting] = {"classes": int(classes), "reads": reads or ""}
    return BinnedSum("right and wrong", ones, wrong, 2, 0, 1, bits=0, settings=told)


def equation_bound(form: Form, classes: int) -> float:
    """Longest that one record's part of the equations can be, in the L2 norm."""
    squares = {"scalar": 6.0, "vector": 4.0, "matrix": 2.0 * (1 + classes)}
    return math.sqrt(squares[form])
