"""Increasing curves through probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps.base import (
    Map,
    check_width,
    from_probabilities,
    parameters,
)
from veracal.calibration.maps.binned import with_confidence
from veracal.data.checked import frozen
from veracal.data.scores import Scores

IsotonicForm = Literal["top-label", "one-vs-rest"]


@dataclass(frozen=True, eq=False)
class Isotonic(Map):
    r"""Probabilities read off increasing curves: straight between points, level beyond them.

    Zadrozny & Elkan 2002, "Transforming classifier scores into accurate multiclass probability
    estimates". It gives probabilities, whatever it is given. The prediction may change (with
    *top-label* only where :class:`Binned` would have to), and records that were told apart may
    tie.

    Parameters
    ----------
    inputs, outputs : sequences of arrays
        Points of each curve: inputs in [0, 1] that rise, outputs in [0, 1] that do not fall.
    form : 'top-label' or 'one-vs-rest'
        *top-label*: one curve, from the probability of the predicted class to its new one;
        the others share the rest as in :class:`Binned`. *one-vs-rest*: a curve for each
        class, after which rows are scaled to sum to one, or made uniform where every curve
        gives 0; of two classes only the second has a curve, and the first gets the rest.

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
        inputs, outputs = _arrays(self.inputs, "inputs"), _arrays(self.outputs, "outputs")
        if [len(x) for x in inputs] != [len(y) for y in outputs]:
            raise ValueError("Expected as many outputs as inputs of each curve.")
        n_curves = len(inputs)
        if n_curves > 1 if self.form == "top-label" else n_curves == 2:
            raise ValueError(
                "Expected one curve (top-label, or two classes), or one for each of three "
                f"classes or more, got {n_curves} for form={self.form!r}."
            )
        if (_rises(inputs) <= 0).any():
            raise ValueError("Expected inputs that rise.")
        if (_rises(outputs) < 0).any():
            raise ValueError("Expected outputs that do not fall.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)

    def to_json(self) -> dict[str, Any]:
        """Kind, version and parameters, for :func:`veracal.calibration.maps.from_json`."""
        curves = {"inputs": self.inputs, "outputs": self.outputs}
        return {**super().to_json(), **{k: [c.tolist() for c in v] for k, v in curves.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        curves = {k: tuple(map(frozen, v)) for k, v in state.items() if k != "form"}
        super().__setstate__({**state, **curves})

    def _mapped(self, scores: Scores) -> Scores:
        """Probabilities."""
        if self.form == "top-label":
            confidence = np.interp(scores.confidence, self.inputs[0], self.outputs[0])
            return from_probabilities(scores, with_confidence(scores, confidence))
        check_width(scores, max(2, len(self.inputs)), self.kind)
        columns = scores.probabilities.T[-len(self.inputs) :]
        curves = zip(columns, self.inputs, self.outputs, strict=True)
        mapped = np.stack([np.interp(p, x, y) for p, x, y in curves], axis=1)
        return from_probabilities(scores, shared(mapped))


def shared(values: Floats) -> Floats:
    """Rows of probabilities from one value a class, or from the second of two classes.

    Rows are divided by their sum; a row of zeros becomes uniform.
    """
    if values.shape[1] == 1:
        return np.hstack([1 - values, values])
    # First by the largest: a sum of subnormal numbers has too few digits to divide by.
    largest = values.max(axis=1, keepdims=True)
    scaled = np.divide(values, largest, out=np.ones_like(values), where=largest > 0)
    result: Floats = scaled / scaled.sum(axis=1, keepdims=True)
    return result


def _arrays(curves: Sequence[ArrayLike], name: str) -> tuple[Floats, ...]:
    """Return curves, one or more, as arrays of numbers in [0, 1]."""
    if isinstance(curves, str | bytes) or not isinstance(curves, Sequence) or not len(curves):
        raise ValueError(f"Expected {name} to be a list of arrays, got {curves!r:.60}.")
    arrays = [np.asarray(curve) for curve in curves]
    if any(array.ndim != 1 or not len(array) for array in arrays):
        raise ValueError(f"Expected {name} to be arrays of one dimension, none of them empty.")
    # All at once: there may be a hundred thousand classes.
    numbers = parameters(np.concatenate(arrays), 1, name=name, low=0.0, high=1.0)
    return tuple(np.split(numbers, np.cumsum([len(array) for array in arrays])[:-1]))


def _rises(curves: tuple[Floats, ...]) -> Floats:
    """Differences from each point to the next of its curve."""
    starts = np.cumsum([len(curve) for curve in curves])[:-1]
    result: Floats = np.delete(np.diff(np.concatenate(curves)), starts - 1)
    return result
