"""Nonparametric calibration maps: histogram binning and isotonic curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.calibration.maps.base import (
    CalibrationMap,
    check_numbers,
    check_width,
    from_probabilities,
)
from veracal.data import Scores

_BELOW = 1e-12  # relative margin of the predicted class, larger than rounding


@dataclass(frozen=True, eq=False)
class Binned(CalibrationMap):
    r"""Histogram binning: the predicted class gets the accuracy of its confidence bin.

    Histogram binning of the top label (Zadrozny & Elkan 2001; Gupta & Ramdas 2022,
    https://arxiv.org/abs/2107.08353). With confidence :math:`\hat p` in bin b of accuracy
    :math:`a_b`, the predicted class gets :math:`a_b`, and every other class

    .. math:: (1 - a_b) \, p_j / \textstyle\sum_{i \ne \hat y} p_i ,

    or an equal share of :math:`1 - a_b` if the others all have probability 0. If one of them
    would exceed the predicted class although :math:`a_b > 1/k`, the others are mixed with
    equal shares until it does not. The result holds probabilities.

    The prediction can change only where :math:`a_b \le 1/k`: another class then has at least
    as much probability.

    Parameters
    ----------
    bins : Bins
    accuracies : array of shape (bins.count,)
        Numbers in [0, 1].

    Examples
    --------
    >>> scores = Scores.from_probabilities([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0]])
    >>> Binned(Bins(1), [0.2]).transform(scores).values
    array([[0.2, 0.6, 0.2],
           [0.2, 0.4, 0.4]])
    """

    bins: Bins
    accuracies: Floats

    kind: ClassVar[str] = "binned"

    def __post_init__(self) -> None:
        if not isinstance(self.bins, Bins):
            raise ValueError(f"Expected bins to be Bins, got bins={self.bins!r}.")
        self._set_field("accuracies", 1, low=0.0, high=1.0)
        if len(self.accuracies) != self.bins.count:
            raise ValueError(
                f"Expected {self.bins.count} accuracies, one a bin, got {len(self.accuracies)}."
            )

    def _map_scores(self, scores: Scores) -> Scores:
        accuracies = self.accuracies[self.bins.of(scores.confidence)]
        return from_probabilities(scores, set_confidence(scores, accuracies))


def set_confidence(scores: Scores, confidence: Floats) -> Floats:
    r"""Probabilities in which the predicted class has a given confidence.

    The others keep their proportions, or share equally if they are all 0. A predicted class
    with a confidence above 1/k stays the predicted class: with the largest m and an equal
    share u of the others below the bound c, the row :math:`(1 - t) v + t u` has the largest
    value c for :math:`t = (m - c) / (m - u)`.
    """
    values = np.array(scores.probabilities, dtype=np.float64)
    top = scores.predictions[:, None]
    np.put_along_axis(values, top, 0.0, axis=1)
    rest = values.sum(axis=1, keepdims=True)
    values[rest[:, 0] == 0] = 1.0
    np.put_along_axis(values, top, 0.0, axis=1)
    rest[rest == 0] = scores.n_classes - 1
    values /= rest  # before scaling: dividing by a tiny rest could overflow
    values *= (1 - confidence)[:, None]
    bound = confidence * (1 - _BELOW)
    share = (1 - confidence) / (values.shape[1] - 1)
    largest = values.max(axis=1)
    rows = np.flatnonzero((largest > bound) & (share < bound))
    part = ((largest - bound)[rows] / (largest - share)[rows])[:, None]
    values[rows] = (1 - part) * values[rows] + part * share[rows, None]
    np.put_along_axis(values, top, confidence[:, None], axis=1)
    result: Floats = np.minimum(values, 1.0)
    return result


IsotonicForm = Literal["top-label", "one-vs-rest"]


@dataclass(frozen=True, eq=False)
class Isotonic(CalibrationMap):
    r"""Isotonic calibration: increasing piecewise-linear curves, constant beyond their ends.

    Zadrozny & Elkan 2002, "Transforming classifier scores into accurate multiclass probability
    estimates". The result holds probabilities. The prediction may change (with
    *top-label* only where that of :class:`Binned` can), and different scores may become ties.

    Parameters
    ----------
    inputs, outputs : sequences of arrays
        Breakpoints of each curve: strictly increasing inputs and nondecreasing outputs, all in
        [0, 1].
    form : 'top-label' or 'one-vs-rest'
        *top-label*: one curve for the probability of the predicted class; the others share the
        rest as in :class:`Binned`. *one-vs-rest*: a curve for each class, after which rows are
        normalized, or uniform where every curve gives 0; for two classes only the second has
        a curve.

    Examples
    --------
    >>> map_ = Isotonic([[0.0, 1.0]], [[0.0, 0.5]], "one-vs-rest")
    >>> map_.transform(Scores.from_probabilities([[0.2, 0.8]])).values
    array([[0.6, 0.4]])
    """

    inputs: tuple[Floats, ...]
    outputs: tuple[Floats, ...]
    form: IsotonicForm

    kind: ClassVar[str] = "isotonic"

    def __post_init__(self) -> None:
        _checks.one_of(("top-label", "one-vs-rest"), form=self.form)
        inputs, input_steps = _check_curves(self.inputs, "inputs")
        outputs, output_steps = _check_curves(self.outputs, "outputs")
        if [len(x) for x in inputs] != [len(y) for y in outputs]:
            raise ValueError("Expected as many outputs as inputs in each curve.")
        n_curves = len(inputs)
        if n_curves > 1 if self.form == "top-label" else n_curves == 2:
            raise ValueError(
                "Expected one curve (top-label, or two classes), or one for each of three "
                f"classes or more, got {n_curves} for form={self.form!r}."
            )
        if (input_steps <= 0).any():
            raise ValueError("Expected strictly increasing inputs.")
        if (output_steps < 0).any():
            raise ValueError("Expected nondecreasing outputs.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)

    def _map_scores(self, scores: Scores) -> Scores:
        if self.form == "top-label":
            confidence = np.interp(scores.confidence, self.inputs[0], self.outputs[0])
            return from_probabilities(scores, set_confidence(scores, confidence))
        check_width(scores, max(2, len(self.inputs)), self.kind)
        columns = scores.probabilities.T[-len(self.inputs) :]
        curves = zip(columns, self.inputs, self.outputs, strict=True)
        mapped = np.stack([np.interp(p, x, y) for p, x, y in curves], axis=1)
        return from_probabilities(scores, normalize_rows(mapped))


def normalize_rows(values: Floats) -> Floats:
    """Normalized rows from one value a class, or from the second of two classes only.

    A row of zeros becomes uniform.
    """
    if values.shape[1] == 1:
        return np.hstack([1 - values, values])
    # Divide by the largest first: a sum of subnormal numbers is too imprecise.
    largest = values.max(axis=1, keepdims=True)
    scaled = np.divide(values, largest, out=np.ones_like(values), where=largest > 0)
    result: Floats = scaled / scaled.sum(axis=1, keepdims=True)
    return result


def _check_curves(curves: Sequence[ArrayLike], name: str) -> tuple[tuple[Floats, ...], Floats]:
    """Curves as read-only arrays of numbers in [0, 1], and the steps within all of them."""
    if isinstance(curves, str | bytes) or not isinstance(curves, Sequence) or not len(curves):
        raise ValueError(f"Expected {name} to be a list of arrays, got {curves!r:.60}.")
    arrays = [np.asarray(curve) for curve in curves]
    if any(array.ndim != 1 or not len(array) for array in arrays):
        raise ValueError(f"Expected {name} to be arrays of one dimension, none of them empty.")
    # Checked together, because there may be 100,000 classes.
    numbers = check_numbers(np.concatenate(arrays), 1, name=name, low=0.0, high=1.0)
    starts = np.cumsum([len(array) for array in arrays])[:-1]
    return tuple(np.split(numbers, starts)), np.delete(np.diff(numbers), starts - 1)
