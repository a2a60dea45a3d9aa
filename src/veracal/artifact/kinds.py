"""The kinds of classifier that an artifact can hold."""

from typing import Any, Protocol

from numpy.typing import ArrayLike

from veracal._types import Floats
from veracal.artifact.linear import LinearWeights, most_bytes
from veracal.artifact.manifest import NAME, Manifest
from veracal.data.rows import MappedRows
from veracal.errors import DataError
from veracal.training.linear import LinearClassifier

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
        from veracal.artifact.network import NetworkWeights
        from veracal.training.deep import PrivateNetwork

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
    from veracal.artifact import network

    return network
