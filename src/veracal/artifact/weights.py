"""The part of a classifier that predictions need, for each kind that an artifact can hold."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Floats
from veracal.artifact.storage import MANIFEST, Manifest, Shapes, decode_arrays, encode_arrays
from veracal.data import MappedRows
from veracal.errors import DataError
from veracal.training import LinearClassifier, margins, one_vs_rest_logits

_MAX_NUMBERS = 20_000_000  # weights: 200,000 features of a hundred classes
_HEADER = 4096  # bytes of the header


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """Weights and intercepts, and how margins become logits.

    Attributes
    ----------
    coef : array of shape (1, d) for two classes, else (k, d)
    intercept : array of shape (1,) or (k,)
    one_vs_rest : bool
        Whether the rows of weights were trained independently.
    """

    coef: Floats
    intercept: Floats
    one_vs_rest: bool = False

    kind = "linear"
    rows_independent = True  # as LinearClassifier
    any_row_shape = False  # rows of numbers

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row."""
        return (self.coef.shape[1],)

    @classmethod
    def of(cls, model: LinearClassifier) -> "LinearWeights":
        """Extract the weights of a fitted classifier."""
        coef = np.array(model.coef_, dtype=np.float64)
        intercept = np.array(model.intercept_, dtype=np.float64)
        return cls(coef, intercept, bool(model._one_vs_rest))

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax gives the probabilities before the map."""
        rows = X if isinstance(X, MappedRows) else np.asarray(X)
        sums = margins(rows, self.coef, self.intercept)
        if sums.shape[1] == 1:
            return np.hstack([np.zeros_like(sums), sums])
        return one_vs_rest_logits(sums) if self.one_vs_rest else sums

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""
        return {"kind": self.kind, "one_vs_rest": self.one_vs_rest}

    def to_bytes(self) -> bytes:
        """The numbers as safetensors."""
        return encode_arrays({"coef": self.coef, "intercept": self.intercept})

    @classmethod
    def read(
        cls, content: bytes, about: Any, classes: int, features: int, where: str
    ) -> "LinearWeights":
        """Decode weights for a number of classes and features.

        ``about`` may also describe their noise and encoder, for
        :class:`~.noise_model.NoiseModel` and :class:`~.classifier.FrozenEncoder`.
        """
        bare = set(about) - {"noise", "encoder"}
        if bare != {"kind", "one_vs_rest"} or about["kind"] != cls.kind:
            raise DataError(
                where, f"a {cls.kind} classifier", repr(about)[:80], "Update Veracal."
            )
        if type(about["one_vs_rest"]) is not bool:
            raise DataError(where, "weights for every feature", repr(about)[:80], "Correct it.")
        rows = row_count(classes)
        shapes: Shapes = {"coef": (rows, features), "intercept": (rows,)}
        arrays = decode_arrays(content, shapes, where)
        return cls(arrays["coef"], arrays["intercept"], about["one_vs_rest"])


def row_count(classes: int) -> int:
    """Rows of weights for a number of classes."""
    return 1 if classes == 2 else classes


def max_bytes(classes: int, features: int, where: str) -> int:
    """Largest size of a file of weights; rejects implausible numbers of weights."""
    numbers = row_count(classes) * (features + 1)
    if not row_count(classes) < numbers <= _MAX_NUMBERS:
        raise DataError(
            where,
            f"weights for every feature, {_MAX_NUMBERS:,} numbers at most",
            f"{features} features of {classes} classes",
            "Do not trust it.",
        )
    return 8 * numbers + _HEADER


WEIGHTS = "model.safetensors"
_NETWORK = "network"


class Weights(Protocol):
    """The part of a classifier that predictions need."""

    rows_independent: bool
    any_row_shape: bool

    @property
    def row(self) -> tuple[int, ...]:
        """Shape of a row."""

    @property
    def one_vs_rest(self) -> bool:
        """Whether the classes were trained independently."""

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax gives the probabilities before the map."""

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""

    def to_bytes(self) -> bytes:
        """The numbers as safetensors."""


def extract_weights(model: Any) -> Weights:
    """Extract from a fitted classifier what predictions need."""
    if isinstance(model, LinearClassifier):
        return LinearWeights.of(model)
    if hasattr(model, "module_"):  # torch is already imported then
        from veracal.artifact.network_weights import NetworkWeights
        from veracal.neural import PrivateNetwork

        if isinstance(model, PrivateNetwork):
            return NetworkWeights.of(model)
    raise ValueError(
        f"Expected a linear classifier or a network, calibrated or not, got {model!r}. Only "
        "those can be saved."
    )


def weights_size(manifest: Manifest, where: str) -> int:
    """Largest size of the file of weights."""
    if manifest.model.get("kind") == _NETWORK:
        return _network_module().MAX_BYTES  # type: ignore[no-any-return]
    return max_bytes(len(manifest.classes), manifest.features, f"{where}/{MANIFEST}")


def read_weights(
    manifest: Manifest, content: bytes, where: str, *, module: Any = None, prepare: Any = None
) -> Weights:
    """Decode the weights that a manifest describes."""
    parts = (content, manifest.model, len(manifest.classes), manifest.features)
    place = f"{where}/{WEIGHTS}"
    if manifest.model.get("kind") == _NETWORK:
        own = {"module": module, "prepare": prepare}
        return _network_module().NetworkWeights.read(*parts, place, **own)  # type: ignore[no-any-return]
    if module is not None:
        raise DataError(
            where, "a network, since a module is given", "another kind", "Omit the module."
        )
    return LinearWeights.read(*parts, place)


def _network_module() -> Any:
    """The module for networks, which needs torch."""
    from veracal._checks import extra

    extra("torch", "torch")
    from veracal.artifact import network_weights as network

    return network
