"""What a map of calibration is, and how new scores are made from old ones."""

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from veracal._types import Array, Floats
from veracal.calibration.bins import Bins
from veracal.data import Scores, frozen, refuse_mask, restore
from veracal.errors import DataError

LEAST = 2.0**-52  # what a map that adds or subtracts logits reads a probability of 0 as
LARGEST = 1e9  # of any parameter: a larger one is a mistake
MOST_NUMBERS = 4_000_000  # parameters of one map: a matrix for 2,000 classes
_LOGIT = 0.9 * np.finfo(np.float64).max  # leaves room for the next float above it


@dataclass(frozen=True, eq=False)
class CalibrationMap(ABC):
    """Public parameters that turn the scores of a classifier into other scores.

    A map does not know how it was fitted: private and other fitters give the same records.
    Labels, groups, units and classes of the scores stay as they are. Their name tells the map,
    so that a ledger does not take mapped scores for those before.

    Guarantees
    ----------
    A record is mapped by its own row alone: the map of part of the rows is that part of the
    map of all. Two maps with the same parameters are equal, and parameters cannot be
    written to.
    """

    kind: ClassVar[str]

    def transform(self, scores: Scores) -> Scores:
        """Scores of the same records, mapped."""
        mapped = self._mapped(scores)
        return mapped if mapped is scores else mapped.renamed(f"{scores.name}, {self.mark}")

    @abstractmethod
    def _mapped(self, scores: Scores) -> Scores:
        """Scores of the same records, mapped."""

    @cached_property
    def mark(self) -> str:
        """Kind and hash of the map, in a few letters."""
        return f"{self.kind} {digest(self)[:12]}"

    def to_json(self) -> dict[str, Any]:
        """Kind, version and parameters, for :func:`veracal.calibration.from_json`."""
        state = {known.name: getattr(self, known.name) for known in fields(self)}
        return {"kind": self.kind, "version": 1, **{k: _plain(v) for k, v in state.items()}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CalibrationMap):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(repr(self.to_json()))

    def __getstate__(self) -> dict[str, Any]:
        return {known.name: getattr(self, known.name) for known in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore(self, state)


@dataclass(frozen=True, eq=False)
class Identity(CalibrationMap):
    """The map that changes nothing."""

    kind: ClassVar[str] = "identity"

    def _mapped(self, scores: Scores) -> Scores:
        """The same scores."""
        return scores


def parameters(
    values: ArrayLike,
    *dimensions: int,
    name: str,
    low: float = -LARGEST,
    high: float = LARGEST,
) -> Floats:
    """Return numbers in bounds, of one of some dimensions, that nobody can write to."""
    refuse_mask(values, name)
    array = _numbers(values, name)
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
    with np.errstate(over="ignore"):  # what is too large for a float is out of bounds
        array = np.array(array, dtype=np.float64)
    wrong = ~((array >= low) & (array <= high))
    if wrong.any():
        raise ValueError(
            f"Expected {name} between {low:g} and {high:g}, got {array[wrong].flat[0]:g}."
        )
    array += 0.0  # no -0.0: equal maps are written the same way
    return frozen(array)


def digest(map_: CalibrationMap) -> str:
    """Hash of everything that tells a map from another."""
    written = json.dumps(map_.to_json(), sort_keys=True, allow_nan=False)
    return hashlib.sha256(written.encode()).hexdigest()


def check_width(scores: Scores, k: int, what: str) -> None:
    """Refuse scores with another number of classes than the map has."""
    if scores.n_classes != k:
        raise DataError(
            scores.name,
            f"{k} classes, as the {what} map has",
            str(scores.n_classes),
            "Use the map on scores of the classifier it was fitted for.",
        )


def from_logits(scores: Scores, logits: Floats) -> Scores:
    """Scores of the same kind with other logits, which may be -inf for probabilities only."""
    if scores.kind == "logits":
        return replace(scores, values=frozen(np.clip(logits, -_LOGIT, _LOGIT)))
    return from_probabilities(scores, softmax(logits, axis=1))


def from_probabilities(scores: Scores, probabilities: Floats) -> Scores:
    """Probabilities in place of what the scores held."""
    return replace(scores, values=frozen(probabilities), kind="probabilities")


def _numbers(values: ArrayLike, name: str) -> Array:
    """Make an array, also of what is not one: lists of different lengths, words."""
    try:
        return np.asarray(values)
    except (ValueError, OverflowError) as cause:
        raise ValueError(f"Expected {name} to be an array of real numbers: {cause}.") from None


def _plain(value: Any) -> Any:
    """Turn a field into what JSON knows."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.count if isinstance(value, Bins) else value
