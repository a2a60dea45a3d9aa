"""Gaps of unsure and of sure predictions, and how fast two temperatures move them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Frozen
from veracal.calibration.maps import TwoTemperatures
from veracal.calibration.maps.base import digest
from veracal.calibration.maps.two_temperatures import sureness
from veracal.calibration.queries.records import below_largest, labeled
from veracal.calibration.queries.vectors import VectorSum
from veracal.data import Scores
from veracal.privacy.answers.queries import Setting


@dataclass(frozen=True)
class SureGaps(VectorSum):
    r"""Sums of :math:`(1 - s) g` and of :math:`s g`, the gaps of the unsure and of the sure.

    A record's gap :math:`g = 1[\hat y = y] - \hat p` is that of
    :class:`~veracal.calibration.queries.Gap`, at the record's own inverse temperature
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
    >>> SureGaps(TwoTemperatures(1.0, 1.0), bits=8).evaluate(scores)  # 1/16 and 3/16
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
    def settings(self) -> Mapping[str, Setting]:
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
class SureSlopes(VectorSum):
    r"""Sums of :math:`(1-s)^2 \kappa`, :math:`(1-s) s \kappa` and :math:`s^2 \kappa`.

    With :math:`\kappa = \partial \hat p / \partial \log \beta = \hat p \sum_j p_j \beta
    (z_{\max} - z_j)`, these are the derivatives of the sums of :class:`SureGaps` in the two
    logarithms, but for the sign. One record adds :math:`\kappa (1 - s(1-s)) \le \kappa`, which
    is at most 0.23 for two classes and 1.03 for fifty; more is cut.

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
    def settings(self) -> Mapping[str, Setting]:
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
