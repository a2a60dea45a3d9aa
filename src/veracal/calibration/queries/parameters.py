"""Parameters of a map as whole numbers on a public grid."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps import Platt
from veracal.calibration.maps.platt import Form
from veracal.data.score_values import Kind

_MOST_BITS = 24  # a parameter is then a float exactly, and so is its product with a small one
_MOST = 1_024  # of a weight or a bias


@dataclass(frozen=True)
class ParameterGrid:
    r"""Weights and biases :math:`k \cdot 2^{-bits}`, within public bounds.

    Whoever is asked about a map on it gets a short list of small integers, and two parties who
    have the list have the same map to the last bit.

    Parameters
    ----------
    bits : int from 0 to 24
    most_weight, most_bias : int
        Largest weight and bias, up and down.

    Guarantees
    ----------
    The grid is declared before any record is read. Rounding to it is done with what was
    released already and costs nothing.

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
        if self.bits > _MOST_BITS or largest > _MOST:
            raise ValueError(
                f"Expected at most {_MOST_BITS} bits and bounds of at most {_MOST}, got {self}."
            )
        for name in ("bits", "most_weight", "most_bias"):
            object.__setattr__(self, name, int(getattr(self, name)))

    @property
    def step(self) -> float:
        """Distance of two neighbors on the grid."""
        return math.ldexp(1.0, -self.bits)

    def nearest(self, weights: ArrayLike, bias: ArrayLike, reads: Kind | None = None) -> Platt:
        """The map on the grid that is nearest in every parameter."""
        return Platt(self._rounded(weights, self.most_weight), self.rounded(bias), reads)

    def rounded(self, bias: ArrayLike) -> Floats:
        """Biases on the grid."""
        return self._rounded(bias, self.most_bias)

    def units(self, map_: Platt) -> tuple[int, ...]:
        """Weights, row after row, then biases, as whole numbers; refuses a map off the grid."""
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
        """The map of whole numbers, as :meth:`units` gives them."""
        shape = weight_shape(form, classes)
        flat = np.array([int(unit) for unit in units], dtype=np.float64) * self.step
        if len(flat) != math.prod(shape) + classes:
            raise ValueError(
                f"Expected {math.prod(shape) + classes} whole numbers for a {form} of "
                f"{classes} classes, got {len(flat)}."
            )
        found = Platt(flat[:-classes].reshape(shape), flat[-classes:], reads)
        self.units(found)  # refuses what is out of bounds
        return found

    def _rounded(self, values: ArrayLike, most: int) -> Floats:
        """Numbers on the grid, the nearest within the bound."""
        inside = np.clip(np.asarray(values, dtype=np.float64), -most, most)
        result: Floats = np.rint(inside / self.step) * self.step + 0.0  # and no minus zero
        return result


def weight_shape(form: Form, classes: int) -> tuple[int, ...]:
    """Shape of the weights."""
    _checks.one_of(("scalar", "vector", "matrix"), form=form)
    return (classes,) * ("scalar", "vector", "matrix").index(form)
