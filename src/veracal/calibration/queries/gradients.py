"""Clipped gradients of an affine map of the logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from veracal import _checks
from veracal._types import Array, Floats, Frozen, Ints
from veracal.calibration.maps import Platt
from veracal.calibration.maps.base import digest
from veracal.calibration.maps.platt import Form, readable_logits, weighted
from veracal.calibration.queries.records import labeled
from veracal.calibration.queries.vectors import VectorSum
from veracal.privacy.answers.queries import Setting


@dataclass(frozen=True)
class PlattGradient(VectorSum):
    r"""Sum of clipped gradients of the loss in the weights and the bias of a Platt map.

    With :math:`r = \mathrm{softmax}(Wz + b) - e_y` a record's gradient is
    :math:`(r \cdot z, r)`, :math:`(r \circ z, r)` or :math:`(r z^\top, r)` where W is a
    number, a diagonal or a matrix. Weights and bias are clipped together, in the L2 norm.

    Parameters
    ----------
    map : Platt
        Where the gradient is taken.
    clip : float
        Longest gradient of one record.
    step : int
        Number of the step, as of :class:`TemperatureGradient`.
    bits : int
        Of the grid.
    """

    map: Platt
    clip: float = 10.0
    step: int = 0
    bits: int = 10

    name = "Platt gradient"
    power = 2

    def __post_init__(self) -> None:
        if not isinstance(self.map, Platt):
            raise ValueError(f"Expected a Platt map, got {self.map!r}.")
        _checks.whole(step=self.step, least=0)
        _ = self.sums

    @property
    def entries(self) -> int:
        """Number of weights, and one bias a class."""
        return int(np.size(self.map.weights)) + len(self.map.bias)

    @property
    def bound(self) -> float:
        """The clip."""
        return self.clip

    @property
    def settings(self) -> Mapping[str, Setting]:
        """Map, clip and step."""
        told = {"map": digest(self.map), "form": self.map.form}
        return Frozen({**told, "clip": float(self.clip), "step": int(self.step)})

    def per_record(self, records: Any) -> Array:
        """Each record's gradient, of shape (n, entries)."""
        scores = labeled(records)
        self.map.check(scores)
        return platt_gradients(self.map, readable_logits(scores), scores.known_labels)


def platt_gradients(map_: Platt, z: Floats, labels: Ints) -> Floats:
    """Gradient of each record's loss: weights first, row after row, then the bias.

    Parameters
    ----------
    map_ : Platt
    z : array of shape (n, k)
        Finite logits.
    labels : array of ints of shape (n,)

    Returns
    -------
    array of shape (n, weights + k)
    """
    residual = residuals(map_, z, labels)
    with np.errstate(over="ignore", invalid="ignore"):
        return products(map_.form, residual, z)


def products(form: Form, residual: Floats, z: Floats) -> Floats:
    """Residuals times logits or functions of them, as the weights lie; then residuals."""
    if form == "scalar":
        weights = (residual * z).sum(axis=1, keepdims=True)
    elif form == "vector":
        weights = residual * z
    else:
        weights = (residual[:, :, None] * z[:, None, :]).reshape(len(z), z.shape[1] ** 2)
    result: Floats = np.concatenate([weights, residual], axis=1)
    return result


def residuals(map_: Platt, z: Floats, labels: Ints) -> Floats:
    r"""What is left of the labels, :math:`\mathrm{softmax}(Wz + b) - e_y`, of shape (n, k)."""
    with np.errstate(over="ignore", invalid="ignore"):
        result: Floats = softmax(weighted(z, map_.weights) + map_.bias, axis=1)
    result[np.arange(len(labels)), labels] -= 1
    return result
