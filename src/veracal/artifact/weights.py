"""The part of a linear classifier that predictions need.

The kinds of classifier that an artifact can hold.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Floats
from veracal.artifact.storage import NAME, Manifest, Shapes, from_bytes, to_bytes
from veracal.data import MappedRows
from veracal.errors import DataError
from veracal.training import LinearClassifier, apart_logits, margins

_MOST_NUMBERS = 20_000_000  # weights: 200,000 features of a hundred classes
_HEADER = 4096  # bytes, beside the numbers


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """Weights and intercepts, and how sums become logits.

    Attributes
    ----------
    coef : array of shape (1, d) for two classes, else (k, d)
    intercept : array of shape (1,) or (k,)
    one_vs_rest : bool
        Whether the rows of weights were learnt apart from each other.
    """

    coef: Floats
    intercept: Floats
    one_vs_rest: bool = False

    kind = "linear"
    rows_apart = True  # as LinearClassifier
    any_rows = False  # rows of numbers

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row."""
        return (self.coef.shape[1],)

    @classmethod
    def of(cls, model: LinearClassifier) -> "LinearWeights":
        """What predictions of a fitted classifier need."""
        coef = np.array(model.coef_, dtype=np.float64)
        intercept = np.array(model.intercept_, dtype=np.float64)
        return cls(coef, intercept, bool(model._one_vs_rest))

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax are the probabilities before the map."""
        rows = X if isinstance(X, MappedRows) else np.asarray(X)
        sums = margins(rows, self.coef, self.intercept)
        if sums.shape[1] == 1:
            return np.hstack([np.zeros_like(sums), sums])
        return apart_logits(sums) if self.one_vs_rest else sums

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""
        return {"kind": self.kind, "one_vs_rest": self.one_vs_rest}

    def to_bytes(self) -> bytes:
        """The numbers, as safetensors."""
        return to_bytes({"coef": self.coef, "intercept": self.intercept})

    @classmethod
    def read(
        cls, content: bytes, about: Any, classes: int, features: int, where: str
    ) -> "LinearWeights":
        """Read weights for a number of classes and of features.

        ``about`` may tell of their noise and of what stands before them, too, which is for
        :class:`~.noise.NoiseModel` and :class:`~.front.FrozenEncoder` to read.
        """
        bare = set(about) - {"noise", "front"}
        if bare != {"kind", "one_vs_rest"} or about["kind"] != cls.kind:
            raise DataError(
                where, f"a {cls.kind} classifier", repr(about)[:80], "Update Veracal."
            )
        if type(about["one_vs_rest"]) is not bool:
            raise DataError(where, "weights for every feature", repr(about)[:80], "Correct it.")
        rows = rows_of(classes)
        shapes: Shapes = {"coef": (rows, features), "intercept": (rows,)}
        arrays = from_bytes(content, shapes, where)
        return cls(arrays["coef"], arrays["intercept"], about["one_vs_rest"])


def rows_of(classes: int) -> int:
    """Rows of weights for a number of classes."""
    return 1 if classes == 2 else classes


def most_bytes(classes: int, features: int, where: str) -> int:
    """Size of a file of weights, at most; refused if no linear classifier has so many."""
    numbers = rows_of(classes) * (features + 1)
    if not rows_of(classes) < numbers <= _MOST_NUMBERS:
        raise DataError(
            where,
            f"weights for every feature, {_MOST_NUMBERS:,} numbers at most",
            f"{features} features of {classes} classes",
            "Do not trust it.",
        )
    return 8 * numbers + _HEADER


WEIGHTS = "model.safetensors"
_NETWORK = "network"


class Weights(Protocol):
    """What predictions need of a classifier."""

    rows_apart: bool
    any_rows: bool

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row."""

    @property
    def one_vs_rest(self) -> bool:
        """Whether classes were learnt apart from each other."""

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax are the probabilities before the map."""

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""

    def to_bytes(self) -> bytes:
        """The numbers, as safetensors."""


def weights_of(model: Any) -> Weights:
    """What predictions of a fitted classifier need."""
    if isinstance(model, LinearClassifier):
        return LinearWeights.of(model)
    if hasattr(model, "module_"):  # whoever has one has torch: it is not imported for others
        from veracal.artifact.network_weights import NetworkWeights
        from veracal.neural import PrivateNetwork

        if isinstance(model, PrivateNetwork):
            return NetworkWeights.of(model)
    raise ValueError(
        f"Expected a linear classifier or a network, calibrated or not, got {model!r}. Only "
        "those can be saved."
    )


def weights_size(manifest: Manifest, where: str) -> int:
    """Size of the file of weights, at most."""
    if manifest.model.get("kind") == _NETWORK:
        return _network().MOST_BYTES  # type: ignore[no-any-return]
    return most_bytes(len(manifest.classes), manifest.features, f"{where}/{NAME}")


def read_weights(
    manifest: Manifest, content: bytes, where: str, *, module: Any = None, prepare: Any = None
) -> Weights:
    """Read the weights that a description is of."""
    told = (content, manifest.model, len(manifest.classes), manifest.features)
    place = f"{where}/{WEIGHTS}"
    if manifest.model.get("kind") == _NETWORK:
        own = {"module": module, "prepare": prepare}
        return _network().NetworkWeights.read(*told, place, **own)  # type: ignore[no-any-return]
    if module is not None:
        raise DataError(
            where, "a network, whose module was given", "another kind", "Leave the module out."
        )
    return LinearWeights.read(*told, place)


def _network() -> Any:
    """The room of networks, which needs torch."""
    from veracal._checks import extra

    extra("torch", "torch")
    from veracal.artifact import network_weights as network

    return network
