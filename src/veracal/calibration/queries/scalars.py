"""Gaps, losses, slopes and gains of records, their sums, and queries on mapped scores."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit

from veracal import _checks
from veracal._types import Array, Floats, Frozen, Ints
from veracal.accounting import Relation
from veracal.calibration.maps.base import CalibrationMap, Identity, digest
from veracal.calibration.maps.parametric import TwoTemperatures, row_confidence
from veracal.data import Scores, read_only
from veracal.mechanisms import Bounds, Grid
from veracal.queries import (
    NonAdditive,
    Query,
    ScalarSum,
    SettingValue,
    VectorSum,
    apply_in_blocks,
    brier_scores,
    labeled_scores,
)


def check_inverse(inverse: float) -> float:
    """Return an inverse temperature as a float; it must be finite and above zero."""
    _checks.positive(inverse=inverse)
    return float(inverse)


def confidence_at(scores: Scores, inverse: float) -> Floats:
    r"""Confidence at an inverse temperature, :math:`1 / \sum_j e^{\beta (z_j - \max z)}`.

    The predicted class does not change, so this is the probability of the same class at
    every temperature. At 1 it is the confidence as the scores give it, to the last bit.

    Returns
    -------
    array of shape (n,)
    """
    if inverse == 1:
        return scores.confidence.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = 1 / np.exp(inverse * below_largest(scores)).sum(axis=1)
    return result


def below_largest(scores: Scores) -> Floats:
    """Logits minus the largest of their row; -inf for a probability of zero."""
    logits = scores.logits.astype(np.float64)
    with np.errstate(over="ignore"):
        result: Floats = logits - logits.max(axis=1, keepdims=True)
    return result


def gap_at(records: Any, inverse: float) -> Floats:
    r"""Correctness minus confidence, from -1 to :math:`1 - 1/k` for k classes."""
    scores = labeled_scores(records)
    return scores.correct - confidence_at(scores, inverse)


def loss_at(records: Any, inverse: float) -> Floats:
    r"""Loss :math:`\log \sum_j e^{\beta z_j} - \beta z_y`, which may be infinite."""
    scores = labeled_scores(records)
    shifted = inverse * below_largest(scores)
    own = np.take_along_axis(shifted, scores.known_labels[:, None], axis=1)[:, 0]
    result: Floats = np.log(np.exp(shifted).sum(axis=1)) - own
    return result


def slope_at(records: Any, parameter: float) -> Floats:
    r"""Derivative of the loss in p, where the inverse temperature is :math:`\log(1 + e^p)`.

    .. math:: \sigma(p) \sum_j z_j (\mathrm{softmax}(\beta z)_j - 1[j = y])

    (methods of Zhang et al. 2022, https://arxiv.org/abs/2210.08248). A class of probability
    zero contributes nothing, unless it is the label: then the derivative is infinite.
    """
    scores = labeled_scores(records)
    shifted = below_largest(scores)
    weights = np.exp(softplus(parameter) * shifted)
    weights /= weights.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # zero times minus infinity
        terms = np.where(weights > 0, weights * shifted, 0.0)
    own = np.take_along_axis(shifted, scores.known_labels[:, None], axis=1)[:, 0]
    result: Floats = expit(parameter) * (terms.sum(axis=1) - own)
    return result


def softplus(parameter: float) -> float:
    r"""Inverse temperature of a parameter, :math:`\log(1 + e^p)`."""
    return float(np.logaddexp(0.0, parameter))


@dataclass(frozen=True)
class Gap(ScalarSum):
    r"""Sum of :math:`1[\hat y = y] - \hat p_\beta`: correct predictions minus expected ones.

    Luo et al. 2020 (https://arxiv.org/abs/2008.09643), Acc-T. It decreases with the
    inverse temperature, and is zero where the mean confidence equals the accuracy.

    Parameters
    ----------
    inverse : float
        The inverse temperature :math:`\beta`.
    classes : int, optional
        Public number k of classes. A record then contributes at most :math:`1 - 1/k`, and the
        replace-one sensitivity is :math:`2 - 1/k` instead of 2.
    bits : int
        Resolution of the grid.

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
        """From a wrong prediction with confidence 1 to a correct one with confidence 1/k."""
        if self.classes is None:
            return Bounds.of(-1, 1, self.grid)
        one = 1 << self.grid.bits
        return Bounds(-one, one - one // self.classes)  # rounded outward

    def per_record(self, records: Any) -> Array:
        """Each record's gap."""
        return gap_at(records, self.inverse)


@dataclass(frozen=True)
class LossAt(ScalarSum):
    r"""Sum of the clamped negative log likelihood at an inverse temperature.

    :class:`~veracal.queries.NegativeLogLikelihood` is this query at a temperature of 1.

    Parameters
    ----------
    inverse : float
    clamp : float
        Largest loss c of one record, which bounds the sensitivity.
    centered : bool
        Whether c/2 is subtracted from each loss. That halves the add-remove sensitivity and
        shifts the answers at all temperatures equally.
    bits : int
        Resolution of the grid.
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
        object.__setattr__(self, "centered", bool(self.centered))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """From zero to the clamp, or half of it in both directions if centered."""
        return Bounds.of(-self._offset, self.clamp - self._offset, self.grid)

    def per_record(self, records: Any) -> Array:
        """Clamped loss of each record; an infinite loss is clamped like any other."""
        return np.clip(loss_at(records, self.inverse), 0, self.clamp) - self._offset

    @property
    def _offset(self) -> float:
        """Number subtracted from each loss."""
        return self.clamp / 2 if self.centered else 0.0


@dataclass(frozen=True)
class TemperatureGradient(ScalarSum):
    r"""Sum of clipped derivatives of the loss in p, with inverse temperature softplus(p).

    Zhang et al. 2022 (https://arxiv.org/abs/2210.08248), DP-TS.

    Parameters
    ----------
    parameter : float
        Point p of the derivative.
    clip : float
        Derivatives are clipped to plus or minus this.
    step : int
        Index of the step. It makes the queries of two steps different, because the same query
        would get the same noise.
    bits : int
        Resolution of the grid: coarse relative to the noise and fine relative to the clip, so that
        the discrete noise is still accounted for exactly.
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
        for name, kind in (("parameter", float), ("clip", float), ("step", int)):
            object.__setattr__(self, name, kind(getattr(self, name)))
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """Plus and minus the clip."""
        return Bounds.of(-self.clip, self.clip, self.grid)

    def per_record(self, records: Any) -> Array:
        """Clipped derivative of each record; an infinite one is clipped like any other."""
        return np.clip(slope_at(records, self.parameter), -self.clip, self.clip)


@dataclass(frozen=True)
class BrierGain(ScalarSum):
    r"""Sum of the improvements of the top-label Brier score by a calibration map.

    A record contributes :math:`(\hat p - 1[\hat y = y])^2 - (\hat q - 1[\hat z = y])^2 \in [-1,
    1]`, with prediction :math:`\hat y` of confidence :math:`\hat p` before the map and
    :math:`\hat z`, :math:`\hat q` after it. One query for the difference costs half as much as
    two queries for both scores, with less noise.

    Parameters
    ----------
    map : CalibrationMap
        Map with public parameters.
    bits : int
        Resolution of the grid.
    """

    map: CalibrationMap
    bits: int = 20

    name = "Brier gain of a map"
    low, high = -1, 1

    def __post_init__(self) -> None:
        if not isinstance(self.map, CalibrationMap):
            raise ValueError(f"Expected a calibration map, got {self.map!r}.")
        _ = self.bounds

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Kind and hash of the map."""
        return Frozen({"map": self.map.kind, "parameters": digest(self.map)})

    def per_record(self, records: Any) -> Array:
        """Improvement of each record."""
        scores = labeled_scores(records)
        mapped = self.map.transform(scores)
        return brier_scores(scores, top_label=True) - brier_scores(mapped, top_label=True)


class _ConfidenceWeighted(VectorSum):
    """Sum of a vector per record, at the record's own inverse temperature."""

    map: TwoTemperatures
    power = 1

    def __post_init__(self) -> None:
        if not isinstance(self.map, TwoTemperatures):
            raise ValueError(f"Expected a TwoTemperatures map, got {self.map!r}.")
        self.check_size()

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Hash of the map."""
        return Frozen({"parameters": digest(self.map)})

    def powers(self, scores: Scores) -> tuple[Floats, Floats, Floats]:
        """Confidences, inverse temperatures, and exponentials of logits with maximum 1."""
        confidence = row_confidence(scores.logits.astype(np.float64), self.map.at)
        inverses = self.map.inverses(confidence)
        with np.errstate(over="ignore"):
            powers: Floats = np.exp(inverses[:, None] * below_largest(scores))
        return confidence, inverses, powers


@dataclass(frozen=True)
class ConfidenceWeightedGaps(_ConfidenceWeighted):
    r"""Sums of :math:`(1 - s) g` and :math:`s g`: gaps weighted by confidence.

    A record's gap :math:`g = 1[\hat y = y] - \hat p` is that of
    :class:`~veracal.calibration.Gap`, at the record's own inverse temperature
    :math:`\beta(s)`. Both sums are zero if low and high confidences are both calibrated. One
    record contributes :math:`(1 - s)|g| + s|g| = |g| \le 1` in the L1 norm, so both sums
    together cost as much as ``Gap`` alone (under replace-one 2, for any number of classes).

    Parameters
    ----------
    map : TwoTemperatures
        Map with public parameters.
    bits : int
        Resolution of the grid.

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.75, 0.25]], [0])
    >>> query = ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0), bits=8)
    >>> query.evaluate(scores)  # 1/16 and 3/16
    array([16, 48])
    """

    map: TwoTemperatures
    bits: int = 20

    name = "confidence-weighted gaps"
    entries = 2
    bound = 1.0

    def per_record(self, records: Any) -> Array:
        """The two weighted gaps of each record."""
        scores = labeled_scores(records)
        confidence, _, powers = self.powers(scores)
        gaps = scores.correct - 1 / powers.sum(axis=1)
        return np.stack([(1 - confidence) * gaps, confidence * gaps], axis=1)


@dataclass(frozen=True)
class ConfidenceWeightedSlopes(_ConfidenceWeighted):
    r"""Sums of :math:`(1-s)^2 \kappa`, :math:`(1-s) s \kappa` and :math:`s^2 \kappa`.

    With :math:`\kappa = \partial \hat p / \partial \log \beta = \hat p \sum_j p_j \beta
    (z_{\max} - z_j)`, these are the derivatives of the sums of :class:`ConfidenceWeightedGaps`
    in the two logarithms with the opposite sign. One record contributes
    :math:`\kappa (1 - s(1-s)) \le \kappa`, which is at most 0.23 for two classes and 1.03 for
    fifty; larger contributions are clipped.

    Parameters
    ----------
    map : TwoTemperatures
    most : float
        Clip bound of one record.
    bits : int
        Resolution of the grid.
    """

    map: TwoTemperatures
    most: float = 1.0
    bits: int = 20

    name = "confidence-weighted slopes"
    entries = 3

    @property
    def bound(self) -> float:
        """Clip bound of one record."""
        return self.most

    @property
    def settings(self) -> Mapping[str, SettingValue]:
        """Hash of the map, and clip bound."""
        return Frozen({"parameters": digest(self.map), "most": float(self.most)})

    def per_record(self, records: Any) -> Array:
        """The three weighted slopes of each record."""
        scores = labeled_scores(records)
        confidence, inverses, powers = self.powers(scores)
        with np.errstate(invalid="ignore"):  # zero times minus infinity
            distances = np.where(powers > 0, powers * below_largest(scores), 0.0)
        slopes = -inverses * distances.sum(axis=1) / powers.sum(axis=1) ** 2
        parts = (1 - confidence) ** 2, (1 - confidence) * confidence, confidence**2
        return np.stack([part * slopes for part in parts], axis=1)


@dataclass(frozen=True)
class MappedQuery:
    r"""A query on the scores that a public calibration map produces.

    The source maps its records and evaluates the query on the result. A map works record by
    record, so adding, removing or replacing a record does the same to one mapped record, and
    the sensitivity of the query holds unchanged.

    Parameters
    ----------
    query : Query
        Query to evaluate on the mapped scores.
    map : CalibrationMap
        Map with public parameters.

    Guarantees
    ----------
    The sensitivities are those of the query, which hold for all valid scores. Records are
    mapped in blocks of one shape (:func:`map_in_blocks`), so that the mapped values of a
    record do not depend on other records, bit for bit.

    Examples
    --------
    >>> from veracal.calibration.bins import Bins
    >>> from veracal.calibration import Temperature
    >>> from veracal.calibration import BinnedGap
    >>> from veracal.data import Scores
    >>> scores = Scores.from_logits([[4.0, 0.0]], [0])
    >>> query = MappedQuery(BinnedGap(Bins(1)), Temperature(0.5))
    >>> query.evaluate(scores) == BinnedGap(Bins(1), 0.5).evaluate(scores)
    array([ True])
    """

    query: Query
    map: CalibrationMap

    def __post_init__(self) -> None:
        if not isinstance(self.map, CalibrationMap):
            raise ValueError(f"Expected a calibration map, got {self.map!r}.")
        if isinstance(self.query, NonAdditive) != isinstance(self, NonAdditive):
            raise ValueError(f"Expected on_mapped_scores to be used for {self.query!r}.")

    @property
    def name(self) -> str:
        """Name of the query, with a suffix."""
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
        """Settings of the query with a prefix, its type, and kind and hash of the map.

        The prefix keeps settings of a query that has a map itself distinct, so that no two
        queries have equal settings.
        """
        prefixed = {f"of {name}": value for name, value in self.query.settings.items()}
        own = {"map": self.map.kind, "parameters": digest(self.map)}
        return Frozen({**prefixed, "of": type(self.query).__name__, **own})

    def sensitivity(self, relation: Relation) -> int:
        """Sensitivity in the L1 norm, in grid units."""
        return self.query.sensitivity(relation)

    def sensitivity_l2(self, relation: Relation) -> float:
        """Sensitivity in the L2 norm, in grid units."""
        return self.query.sensitivity_l2(relation)

    def evaluate(self, records: Any) -> Ints:
        """Map the scores and evaluate the query."""
        return self.query.evaluate(map_in_blocks(self.map, labeled_scores(records)))


@dataclass(frozen=True)
class NonAdditiveMappedQuery(MappedQuery, NonAdditive):
    """A mapped query whose answers do not add up over sources, for a single source."""


def map_in_blocks(map_: CalibrationMap, scores: Scores) -> Scores:
    """Mapped scores in which each row is computed independently of the number of rows.

    Otherwise one more record could change the last bits of others and move them across bin
    edges.
    """
    if not isinstance(map_, Identity):
        parts = list(apply_in_blocks(scores, lambda part, real: (map_.transform(part), real)))
        values = np.concatenate([part.values[:real] for part, real in parts])
        first = parts[0][0]
        scores = replace(scores, values=read_only(values), kind=first.kind, name=first.name)
    return scores


def on_mapped_scores(query: Query, map_: CalibrationMap) -> MappedQuery:
    """The query on mapped scores; non-additive queries stay non-additive."""
    return (NonAdditiveMappedQuery if isinstance(query, NonAdditive) else MappedQuery)(
        query, map_
    )
