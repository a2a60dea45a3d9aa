r"""Queries for affine maps of logits: clipped gradients, estimating equations and curvature.

If :math:`P(y = c \mid z) = \mathrm{softmax}(Wz + b)_c`, then for *every* function f of the
logits the residuals :math:`r = \mathrm{softmax}(Wz + b) - e_y` have
:math:`E[r \, f(z)^\top] = 0`. With f = z these are the maximum-likelihood
equations, and the contribution of one record is unbounded. With a bounded f they have the same
solution, and the contribution is bounded *without* clipping residuals. Confident wrong
predictions, which are the most informative, then keep their full weight; clipped gradients
shrink exactly these and lead to overconfident maps.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from veracal import _checks
from veracal._types import Array, Floats, Frozen
from veracal.calibration.maps.base import check_width, digest
from veracal.calibration.maps.parametric import Form, Platt, finite_logits, multiply_rows
from veracal.calibration.queries.scalars import check_inverse
from veracal.data import Kind
from veracal.queries import BinnedSum, SettingValue, VectorSum, labeled_scores

_MAX_BITS = 24  # parameters and their products with small integers are then exact floats
_MAX_BOUND = 1_024  # of a weight or a bias


@dataclass(frozen=True)
class ParameterGrid:
    r"""Weights and biases :math:`k \cdot 2^{-bits}`, within public bounds.

    A query about a map on the grid carries a short list of small integers, from which each
    party computes exactly the same map.

    Parameters
    ----------
    bits : int from 0 to 24
    most_weight, most_bias : int
        Largest absolute weight and bias.

    Guarantees
    ----------
    The grid is declared before any record is read. Rounding to it is postprocessing of released
    values and costs nothing.

    Examples
    --------
    >>> grid = ParameterGrid(bits=4)
    >>> map_ = grid.nearest([0.33, 99.0], [0.01, -0.26])
    >>> grid.units(map_)
    (5, 256, 0, -4)
    >>> grid.map((5, 256, 0, -4), "vector", 2) == map_
    True
    """

    bits: int = 12
    most_weight: int = 16
    most_bias: int = 16

    def __post_init__(self) -> None:
        _checks.whole(bits=self.bits, least=0)
        _checks.whole(most_weight=self.most_weight, most_bias=self.most_bias)
        largest = max(self.most_weight, self.most_bias)
        if self.bits > _MAX_BITS or largest > _MAX_BOUND:
            raise ValueError(
                f"Expected at most {_MAX_BITS} bits and bounds up to {_MAX_BOUND}, got {self}."
            )
        for name in ("bits", "most_weight", "most_bias"):
            object.__setattr__(self, name, int(getattr(self, name)))

    @property
    def step(self) -> float:
        """Distance of neighboring grid points."""
        return math.ldexp(1.0, -self.bits)

    def nearest(self, weights: ArrayLike, bias: ArrayLike, reads: Kind | None = None) -> Platt:
        """The map on the grid that is nearest in every parameter."""

        def rounded(values: ArrayLike, most: int) -> Floats:
            clipped = np.clip(np.asarray(values, dtype=np.float64), -most, most)
            result: Floats = np.rint(clipped / self.step) * self.step + 0.0  # no -0.0
            return result

        return Platt(rounded(weights, self.most_weight), rounded(bias, self.most_bias), reads)

    def units(self, map_: Platt) -> tuple[int, ...]:
        """Weights (row by row) and biases as integers; rejects a map off the grid."""
        if not isinstance(map_, Platt):
            raise ValueError(f"Expected a Platt map, got {map_!r}.")
        if self.nearest(map_.weights, map_.bias, map_.reads) != map_:
            raise ValueError(
                f"Expected weights within {self.most_weight} and biases within "
                f"{self.most_bias}, all multiples of 2^-{self.bits}, got another map. Round "
                "it with ParameterGrid.nearest."
            )
        flat = np.concatenate([np.ravel(map_.weights), map_.bias])
        return tuple(int(unit) for unit in np.rint(flat / self.step))

    def map(
        self, units: Iterable[int], form: Form, classes: int, reads: Kind | None = None
    ) -> Platt:
        """The map of integers as :meth:`units` returns them."""
        shape = weight_shape(form, classes)
        flat = np.array([int(unit) for unit in units], dtype=np.float64) * self.step
        if len(flat) != math.prod(shape) + classes:
            raise ValueError(
                f"Expected {math.prod(shape) + classes} integers for a {form} of "
                f"{classes} classes, got {len(flat)}."
            )
        result = Platt(flat[:-classes].reshape(shape), flat[-classes:], reads)
        self.units(result)  # rejects parameters out of bounds
        return result


def weight_shape(form: Form, classes: int) -> tuple[int, ...]:
    """Shape of the weights."""
    _checks.one_of(("scalar", "vector", "matrix"), form=form)
    return (classes,) * ("scalar", "vector", "matrix").index(form)


class _PlattSum(VectorSum):
    """Sum of a vector with an entry for each weight and each bias of a Platt map."""

    map: Platt
    power = 2

    @property
    def entries(self) -> int:
        """Number of weights plus one bias per class."""
        return int(np.size(self.map.weights)) + len(self.map.bias)

    def residuals(self, records: Any) -> tuple[Floats, Floats]:
        r"""Logits, and residuals :math:`\mathrm{softmax}(Wz + b) - e_y`, of shape (n, k)."""
        scores = labeled_scores(records)
        self.map.check(scores)
        z, labels = finite_logits(scores), scores.known_labels
        with np.errstate(over="ignore", invalid="ignore"):
            residual: Floats = softmax(
                multiply_rows(z, self.map.weights) + self.map.bias, axis=1
            )
        residual[np.arange(len(labels)), labels] -= 1
        return z, residual

    def products(self, residual: Floats, features: Floats) -> Floats:
        """Products of residuals and features in the shape of the weights, then residuals."""
        form, n = self.map.form, len(residual)
        with np.errstate(over="ignore", invalid="ignore"):
            if form == "scalar":
                weights = (residual * features).sum(axis=1, keepdims=True)
            elif form == "vector":
                weights = residual * features
            else:
                weights = residual[:, :, None] * features[:, None, :]
                weights = weights.reshape(n, features.shape[1] ** 2)
            result: Floats = np.concatenate([weights, residual], axis=1)
        return result


@dataclass(frozen=True)
class PlattGradient(_PlattSum):
    r"""Sum of clipped gradients of the loss in the weights and the bias of a Platt map.

    With :math:`r = \mathrm{softmax}(Wz + b) - e_y` a record's gradient is
    :math:`(r \cdot z, r)`, :math:`(r \circ z, r)` or :math:`(r z^\top, r)` where W is a
    number, a diagonal or a matrix. Weights and bias are clipped together, in the L2 norm.

    Parameters
    ----------
    map : Platt
        Map at which the gradient is computed.
    clip : float
        L2 bound of the gradient of one record.
    step : int
        Index of the step, as in :class:`TemperatureGradient`.
    bits : int
        Resolution of the grid.
    """

    map: Platt
    clip: float = 10.0
    step: int = 0
    bits: int = 10

    name = "Platt gradient"

    def __post_init__(self) -> None:
        if not isinstance(self.map, Platt):
            raise ValueError(f"Expected a Platt map, got {self.map!r}.")
        _checks.whole(step=self.step, least=0)
        self.check_size()

    @property
    def bound(self) -> float:
        """The clip."""
        return self.clip

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Map, clip and step."""
        settings = {"map": digest(self.map), "form": self.map.form}
        return Frozen({**settings, "clip": float(self.clip), "step": int(self.step)})

    def per_record(self, records: Any) -> Array:
        """Each record's gradient, of shape (n, entries)."""
        z, residual = self.residuals(records)
        return self.products(residual, z)


LOG_ODDS_CLIP = 8.0  # bound on the log-odds in the curvature query


@dataclass(frozen=True)
class PlattEquations(_PlattSum):
    r"""Sum of residuals, and of residuals times bounded logits.

    A record contributes :math:`(r \cdot f, r)`, :math:`(r \circ f, r)` or :math:`(r f^\top, r)`
    where W is a number, a diagonal or a matrix, with :math:`f_c = \mathrm{clip}((z_c - m) / s,
    -1, 1)`. Since :math:`\lVert r \rVert_1 \le 2`, :math:`\lVert r \rVert_2^2 \le 2` and
    :math:`|f_c| \le 1`, its L2 norm is at most :math:`\sqrt 6`, 2 or :math:`\sqrt{2 (1 + k)}`.

    Parameters
    ----------
    map : Platt
        Map at which the residuals are computed. It must lie on the grid.
    center, spread : float
        The public numbers m and s.
    step : int
        Index of the step, as in :class:`TemperatureGradient`.
    parameters : ParameterGrid
        The enrolled grid.
    bits : int
        Resolution of the grid of the answer.

    Guarantees
    ----------
    The norm of a record's contribution is at most :attr:`bound`, and the sum enforces it again
    in integers. A map off the grid is rejected before a record is read.
    """

    map: Platt
    center: float = 0.0
    spread: float = 1.0
    step: int = 0
    parameters: ParameterGrid = field(default_factory=ParameterGrid)
    bits: int = 10

    name = "Platt equations"

    def __post_init__(self) -> None:
        _ = self.parameters.units(self.map)
        self.check_size()
        _checks.positive(spread=self.spread)
        _checks.whole(step=self.step, least=0)
        if not math.isfinite(self.center):
            raise ValueError(f"Expected a finite center, got center={self.center!r}.")

    @property
    def bound(self) -> float:
        """Largest L2 norm of a record's contribution."""
        return equation_bound(self.map.form, len(self.map.bias))

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """The map as integers, the grid, center, spread and step."""
        grid, units = self.parameters, self.parameters.units(self.map)
        settings: dict[str, SettingValue] = {
            "form": self.map.form,
            "reads": self.map.reads or "",
            "parameters": " ".join(map(str, units)),
            "parameter grid": f"{grid.bits} {grid.most_weight} {grid.most_bias}",
        }
        numbers = {"center": float(self.center), "spread": float(self.spread)}
        return Frozen({**settings, **numbers, "step": int(self.step)})

    def per_record(self, records: Any) -> Array:
        """Each record's residuals and products, of shape (n, entries)."""
        z, residual = self.residuals(records)
        return self.products(residual, np.clip((z - self.center) / self.spread, -1.0, 1.0))


@dataclass(frozen=True)
class PlattCurvature(VectorSum):
    r"""Sum of class variances at an inverse temperature, and of their log-odds.

    With :math:`p = \mathrm{softmax}(\beta z)` and :math:`q_c = p_c (1 - p_c)` a record
    contributes :math:`\sum_c q_c` and :math:`\sum_c q_c \, \mathrm{clip}(\beta z_c / 8, -1,
    1)`. The first is the total curvature of the bias equations; the ratio of the two is the
    average log-odds of uncertain classes. Labels are not read.

    Parameters
    ----------
    inverse : float
        The inverse temperature :math:`\beta`.
    classes : int
        Public number k of classes: a record contributes at most :math:`1 - 1/k` to each entry.
    bits : int
        Resolution of the grid.
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
        object.__setattr__(self, "classes", int(self.classes))
        self.check_size()

    @property
    def bound(self) -> float:
        """Largest L2 norm of a record's contribution."""
        return math.sqrt(2.0) * (1 - 1 / self.classes)

    def per_record(self, records: Any) -> Array:
        """The two sums of each record."""
        scores = labeled_scores(records)
        check_width(scores, self.classes, Platt.kind)
        odds = self.inverse * finite_logits(scores)
        p = softmax(odds, axis=1)
        variance = p * (1 - p)
        clipped = np.clip(odds / LOG_ODDS_CLIP, -1.0, 1.0)
        return np.stack([variance.sum(axis=1), (variance * clipped).sum(axis=1)], axis=1)


def platt_counts(classes: int, reads: Kind | None = None) -> BinnedSum:
    """Numbers of correct and wrong predictions on scores that a Platt map accepts.

    Like :class:`CorrectWrong` without bins, but scores with another number of classes or of
    another kind are rejected: as the first query, it fails before the fit is charged.
    """
    example = Platt(1.0, np.zeros(classes), reads)

    def wrong(records: Any) -> Array:
        scores = labeled_scores(records)
        example.check(scores)
        return ~np.asarray(scores.correct)

    def ones(records: Any) -> Array:
        return np.ones(len(records))

    settings: dict[str, SettingValue] = {"classes": int(classes), "reads": reads or ""}
    return BinnedSum(
        "correct and wrong predictions", ones, wrong, 2, 0, 1, bits=0, settings=settings
    )


def equation_bound(form: Form, classes: int) -> float:
    """Largest L2 norm of one record's contribution to the equations."""
    squares = {"scalar": 6.0, "vector": 4.0, "matrix": 2.0 * (1 + classes)}
    return math.sqrt(squares[form])
