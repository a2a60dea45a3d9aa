"""The part of a network that predictions need."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from veracal._types import Array, Floats
from veracal.artifact.storage import Shapes, decode_arrays, encode_arrays
from veracal.data import MappedRows
from veracal.errors import DataError
from veracal.neural import ImageScaler, KnownNetwork, NetworkScores, PrivateNetwork, as_tensor

_TYPES = ("uint8", "int32", "int64", "float32", "float64", "bool")
_MAX_AXES, _MAX_ROW = 4, 1_000_000  # axes and numbers of a row
_MAX_PARAMETERS = 100_000_000
MAX_BYTES = 4 * _MAX_PARAMETERS + 2**20  # size of a file of weights, with its header
Prepare = Callable[[Array], torch.Tensor]
_OWN = "own"


@dataclass(frozen=True, eq=False)
class NetworkWeights:
    """A network with its trained weights, and how rows become its inputs.

    Attributes
    ----------
    module : torch.nn.Module
        In evaluation mode.
    known : KnownNetwork or None
        One of our networks; None for a custom module, whose code no artifact holds.
    prepare : callable or None
        Turns rows into a tensor; None for the default of PrivateNetwork.
    row : tuple of int
        Shape of a row.
    dtype : str
        Type of its numbers.
    """

    module: nn.Module
    known: KnownNetwork | None
    prepare: Prepare | None
    row: tuple[int, ...]
    dtype: str

    kind = "network"
    rows_independent = True  # see NetworkScores
    any_row_shape = True
    one_vs_rest = False

    @classmethod
    def of(cls, model: PrivateNetwork) -> "NetworkWeights":
        """Extract from a fitted network what predictions need."""
        rows = model._form
        return cls(
            model.module_,
            KnownNetwork.of(model.module),
            model.prepare,
            rows.shape[1:],
            str(rows.dtype),
        )

    @cached_property
    def _scores(self) -> NetworkScores:
        """The function that scores rows."""
        like = np.empty((0, *self.row), self.dtype)
        return NetworkScores(self.module, like, self.prepare or as_tensor)

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax gives the probabilities before the map."""
        return self._scores(X if isinstance(X, MappedRows) else np.asarray(X))

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""
        preparation: Any = _OWN
        if self.prepare is None:
            preparation = None
        elif isinstance(self.prepare, ImageScaler):
            preparation = {"pictures": asdict(self.prepare)}
        return {
            "kind": self.kind,
            "network": _OWN if self.known is None else self.known.to_json(),
            "row": list(self.row),
            "type": self.dtype,
            "prepare": preparation,
        }

    def to_bytes(self) -> bytes:
        """The numbers as safetensors: every parameter under its name, in single precision.

        Parameters that were not trained are left out if they are published elsewhere.
        """
        arrays = {}
        for name, tensor in _saved_tensors(self.module, self.known).items():
            if tensor.dtype != torch.float32:
                raise ValueError(
                    f"Expected a module of float32, got {name!r} of {tensor.dtype}: other types "
                    "cannot be saved."
                )
            arrays[name] = tensor.detach().numpy()
        return encode_arrays(arrays, "F32")

    @classmethod
    def read(
        cls,
        content: bytes,
        about: Any,
        classes: int,
        features: int,
        where: str,
        module: nn.Module | None = None,
        prepare: Prepare | None = None,
    ) -> "NetworkWeights":
        """Decode weights into a known network, or into a custom module.

        ``about`` is as :meth:`to_json` writes it. ``module`` is required if the artifact holds
        the weights of a custom module, ``prepare`` if it was saved with a custom function.
        """
        row, dtype = _parse_rows(about, features, where)
        known, fresh = _build_network(about["network"], classes, module, where)
        prepare_ = _parse_preparation(about["prepare"], prepare, where)
        state = _saved_tensors(fresh, known)
        shapes: Shapes = {name: tuple(one.shape) for name, one in state.items()}
        arrays = decode_arrays(content, shapes, where, "F32")
        with torch.no_grad():
            for name, one in state.items():
                one.copy_(torch.from_numpy(np.array(arrays[name])))
        weights = cls(fresh.eval(), known, prepare_, row, dtype)
        # One row shows the number of logits. That rows are scored independently is tested before
        # the first prediction, which takes many times as long.
        try:
            outputs: Any = weights._scores.try_synthetic(1).shape[1]
        except Exception as cause:
            outputs = f"an error ({type(cause).__name__})"
        if outputs != classes:
            raise DataError(
                where,
                f"a network that gives {classes} logits for rows of shape {row}",
                str(outputs),
                "Get the artifact again from its source; a custom module must be passed to "
                "load().",
            )
        return weights


def _saved_tensors(module: nn.Module, known: KnownNetwork | None) -> dict[str, torch.Tensor]:
    """The tensors of a module that a file holds."""
    if known is None or not known.published:
        return dict(module.state_dict())
    return {name: one.data for name, one in module.named_parameters() if one.requires_grad}


def _parse_rows(about: Any, features: int, where: str) -> tuple[tuple[int, ...], str]:
    """Shape and type of a row."""
    has_fields = isinstance(about, Mapping) and set(about) - {"encoder"} == {
        "kind",
        "network",
        "row",
        "type",
        "prepare",
    }
    if not has_fields or about["kind"] != NetworkWeights.kind:
        raise DataError(where, "a network", repr(about)[:80], "Update Veracal.")
    row, dtype = about["row"], about["type"]
    is_shape = isinstance(row, list) and all(type(side) is int and side > 0 for side in row)
    if not is_shape or not 0 < len(row) <= _MAX_AXES or math.prod(row) != features:
        raise DataError(
            where, f"rows of {features} numbers", repr(row)[:80], "Do not trust it."
        )
    if features > _MAX_ROW or dtype not in _TYPES:
        actual = f"{features} numbers of {dtype!r}"[:80]
        raise DataError(where, f"rows of {', '.join(_TYPES)}", actual, "Do not trust it.")
    return tuple(row), dtype


def _build_network(
    written: Any, classes: int, module: nn.Module | None, where: str
) -> tuple[KnownNetwork | None, nn.Module]:
    """The network that receives the weights."""
    if written != _OWN:
        known = KnownNetwork.from_json(written, where)
        if known.settings.get("classes", classes) != classes:
            mismatch = f"one of {known.settings['classes']}"
            raise DataError(
                where, f"a network of {classes} classes", mismatch, "Do not trust it."
            )
        # The initial weights are random, and replaced below.
        with torch.random.fork_rng(devices=[]):
            return known, known()
    if module is None:
        raise DataError(
            where,
            "the module of its author, since an artifact holds no code",
            "none",
            "Load it in Python: PrivateClassifier.load(path, module=...).",
        )
    return None, copy.deepcopy(module)


def _parse_preparation(written: Any, given: Prepare | None, where: str) -> Prepare | None:
    """The function that turns rows into inputs."""
    if written is None:
        return None
    if written == _OWN:
        if given is None:
            raise DataError(
                where,
                "the function that prepares rows, since an artifact holds no code",
                "none",
                "Load it in Python: PrivateClassifier.load(path, module=..., prepare=...).",
            )
        return given
    try:
        settings = written["pictures"]
        if set(written) != {"pictures"} or set(settings) != {"mean", "std"}:
            raise ValueError
        scales: list[Any] = []
        for scale in (settings["mean"], settings["std"]):  # for all channels, or one for each
            numbers = scale if isinstance(scale, list) else [scale]
            if len(numbers) not in (1, 3):
                raise ValueError
            for one in numbers:
                if type(one) not in (int, float) or not math.isfinite(one):
                    raise ValueError
            several = tuple(map(float, numbers))
            scales.append(several if isinstance(scale, list) else several[0])
        return ImageScaler(*scales)
    except (ArithmeticError, KeyError, TypeError, ValueError) as cause:
        raise DataError(
            where, "a known preparation of rows", repr(written)[:80], "Update Veracal."
        ) from cause
