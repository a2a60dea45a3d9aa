"""The base class of calibration maps, the identity, and helpers that build mapped scores."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from veracal._types import Floats
from veracal.calibration.bins import Bins
from veracal.data import Scores, read_only, reject_masked
from veracal.errors import DataError

LEAST = 2.0**-52  # probabilities are clipped here before their logits are added or multiplied
LARGEST = 1e9  # largest absolute value of a parameter
MOST_NUMBERS = 4_000_000  # parameters of one map: a matrix for 2,000 classes
_LOGIT = 0.9 * np.finfo(np.float64).max  # the next float above it must be finite


@dataclass(frozen=True, eq=False)
class CalibrationMap(ABC):
    """Public parameters of a function from scores to recalibrated scores.

    A map does not store how it was fitted: private and other fitters return the same classes.
    Labels, groups, units and classes of the scores are unchanged. The name of mapped scores
    includes the map, so that a ledger can distinguish them from the original scores.

    Guarantees
    ----------
    Each record is mapped independently of the others. Maps with the same parameters are
    equal, and parameters are read-only.
    """

    kind: ClassVar[str]

    def transform(self, scores: Scores) -> Scores:
        """Scores of the same records, mapped."""
        mapped = self._map_scores(scores)
        return mapped if mapped is scores else mapped.renamed(f"{scores.name}, {self.mark}")

    @abstractmethod
    def _map_scores(self, scores: Scores) -> Scores:
        """Scores of the same records, mapped."""

    @cached_property
    def mark(self) -> str:
        """Kind and a short hash of the map."""
        return f"{self.kind} {digest(self)[:12]}"

    def to_json(self) -> dict[str, Any]:
        """Kind, version and parameters; see :func:`veracal.calibration.from_json`."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return [plain(each) for each in value]
            if isinstance(value, np.ndarray):
                return value.tolist()
            return value.count if isinstance(value, Bins) else value

        parameters = {known.name: plain(getattr(self, known.name)) for known in fields(self)}
        return {"kind": self.kind, "version": 1, **parameters}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CalibrationMap):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self.to_json()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: unpickled arrays are read-only again.
        return type(self), tuple(getattr(self, known.name) for known in fields(self))

    def _set_field(
        self, name: str, *dimensions: int, low: float = -LARGEST, high: float = LARGEST
    ) -> None:
        """Replace a field by a read-only array of checked numbers, or by a float."""
        array = check_numbers(getattr(self, name), *dimensions, name=name, low=low, high=high)
        object.__setattr__(self, name, float(array) if dimensions == (0,) else array)


@dataclass(frozen=True, eq=False)
class Identity(CalibrationMap):
    """The calibration map that changes nothing."""

    kind: ClassVar[str] = "identity"

    def _map_scores(self, scores: Scores) -> Scores:
        return scores


def check_numbers(
    values: ArrayLike, *dimensions: int, name: str, low: float, high: float
) -> Floats:
    """Return a read-only array of numbers within bounds and with an allowed dimension."""
    reject_masked(values, name)
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as cause:  # ragged lists
        raise ValueError(f"Expected {name} to be an array of real numbers: {cause}.") from None
    if array.dtype.kind not in "fiu" or array.ndim not in dimensions or not array.size:
        shapes = " or ".join(map(str, dimensions))
        raise ValueError(
            f"Expected {name} to be real numbers of {shapes} dimensions, "
            f"got {array.dtype} of shape {array.shape}."
        )
    if array.size > MOST_NUMBERS:
        raise ValueError(
            f"Expected at most {MOST_NUMBERS:,} numbers as {name}, got {array.size:,}."
        )
    with np.errstate(over="ignore"):  # values that overflow are rejected below
        array = np.array(array, dtype=np.float64)
    wrong = ~((array >= low) & (array <= high))
    if wrong.any():
        raise ValueError(
            f"Expected {name} between {low:g} and {high:g}, got {array[wrong].flat[0]:g}."
        )
    array += 0.0  # no -0.0: equal maps have the same JSON
    return read_only(array)


def digest(map_: CalibrationMap) -> str:
    """Hash of the kind and all parameters of a map."""
    written = json.dumps(map_.to_json(), sort_keys=True, allow_nan=False)
    return hashlib.sha256(written.encode()).hexdigest()


def check_width(scores: Scores, k: int, what: str) -> None:
    """Reject scores whose number of classes differs from that of the map."""
    if scores.n_classes != k:
        raise DataError(
            scores.name,
            f"{k} classes, as the {what} map has",
            str(scores.n_classes),
            "Apply the map to scores of the classifier that it was fitted for.",
        )


def from_logits(scores: Scores, logits: Floats) -> Scores:
    """Scores of the same kind with other logits; -inf is allowed for probabilities only."""
    if scores.kind == "logits":
        return replace(scores, values=read_only(np.clip(logits, -_LOGIT, _LOGIT)))
    return from_probabilities(scores, softmax(logits, axis=1))


def from_probabilities(scores: Scores, probabilities: Floats) -> Scores:
    """Scores with other probabilities, whatever kind they had."""
    return replace(scores, values=read_only(probabilities), kind="probabilities")
