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
from veracal.artifact.storage import Shapes, from_bytes, to_bytes
from veracal.data import MappedRows
from veracal.errors import DataError
from veracal.neural import KnownNetwork, NetworkScores, Pictures, PrivateNetwork, as_tensor

_TYPES = ("uint8", "int32", "int64", "float32", "float64", "bool")
_MOST_AXES, _LARGEST_ROW = 4, 1_000_000  # numbers in a row; some tens are made up at a time
_MOST_PARAMETERS = 100_000_000
MOST_BYTES = 4 * _MOST_PARAMETERS + 2**20  # of a file of weights, with its header
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
        Which of our networks it is; None for a module of the user's own, whose code no
        artifact holds.
    prepare : callable or None
        Turns rows into a tensor; None, for what PrivateNetwork does by default.
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
    rows_apart = True  # see NetworkScores
    any_rows = True
    one_vs_rest = False

    @classmethod
    def of(cls, model: PrivateNetwork) -> "NetworkWeights":
        """What predictions of a fitted network need."""
        form = model._form
        return cls(
            model.module_,
            KnownNetwork.of(model.module),
            model.prepare,
            form.shape[1:],
            str(form.dtype),
        )

    @cached_property
    def _scores(self) -> NetworkScores:
        """Scores rows."""
        like = np.empty((0, *self.row), self.dtype)
        return NetworkScores(self.module, like, self.prepare or as_tensor)

    def logits(self, X: ArrayLike | MappedRows) -> Floats:
        """Scores of shape (n, k) whose softmax are the probabilities before the map."""
        return self._scores(X if isinstance(X, MappedRows) else np.asarray(X))

    def to_json(self) -> dict[str, Any]:
        """What is needed beside the numbers."""
        made: Any = _OWN
        if self.prepare is None:
            made = None
        elif isinstance(self.prepare, Pictures):
            made = {"pictures": asdict(self.prepare)}
        return {
            "kind": self.kind,
            "network": _OWN if self.known is None else self.known.to_json(),
            "row": list(self.row),
            "type": self.dtype,
            "prepare": made,
        }

    def to_bytes(self) -> bytes:
        """The numbers, as safetensors: every parameter under its name, in single precision.

        Without those that were not trained, where they are published elsewhere.
        """
        return to_bytes(_arrays(self.module, self.known), "F32")

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
        """Read weights into a network that is known by name, or into one of the user's own.

        Parameters
        ----------
        content : bytes
        about : mapping
            As :meth:`to_json` writes it.
        classes, features : int
            As the description says.
        where : str
        module : torch.nn.Module, optional
            Where the artifact says that the network was its maker's own.
        prepare : callable, optional
            Likewise.
        """
        row, dtype = _form(about, features, where)
        known, fresh = _network(about["network"], classes, module, where)
        ready = _preparation(about["prepare"], prepare, where)
        state = _state(fresh, known)
        shapes: Shapes = {name: tuple(one.shape) for name, one in state.items()}
        arrays = from_bytes(content, shapes, where, "F32")
        with torch.no_grad():
            for name, one in state.items():
                one.copy_(torch.from_numpy(np.array(arrays[name])))
        made = cls(fresh.eval(), known, ready, row, dtype)
        made._check_outputs(classes, where)
        return made

    def _check_outputs(self, classes: int, where: str) -> None:
        """Refuse a network that does not take such rows, or tells other classes apart."""
        try:
            found: Any = self._scores(self._scores.synthetic[:1]).shape[1]
        except Exception as cause:
            found = f"an error ({type(cause).__name__})"
        if found != classes:
            raise DataError(
                where,
                f"a network that gives {classes} logits for rows of shape {self.row}",
                str(found),
                "Get the artifact again from whoever made it; its own module must be given to "
                "load().",
            )


def _state(module: nn.Module, known: KnownNetwork | None) -> dict[str, torch.Tensor]:
    """What a file must hold of a module."""
    if known is None or not known.published:
        return dict(module.state_dict())
    return {name: one.data for name, one in module.named_parameters() if one.requires_grad}


def _arrays(module: nn.Module, known: KnownNetwork | None) -> dict[str, Floats]:
    """What a file must hold of a module, refused where that is not single precision."""
    found = {}
    for name, one in _state(module, known).items():
        if one.dtype != torch.float32:
            raise ValueError(
                f"Expected a module of float32, got {name!r} of {one.dtype}: only such can be "
                "saved so far."
            )
        found[name] = one.detach().numpy()
    return found


def _form(about: Any, features: int, where: str) -> tuple[tuple[int, ...], str]:
    """Shape and type of a row."""
    right = isinstance(about, Mapping) and set(about) - {"front"} == {
        "kind",
        "network",
        "row",
        "type",
        "prepare",
    }
    if not right or about["kind"] != NetworkWeights.kind:
        raise DataError(where, "a network", repr(about)[:80], "Update Veracal.")
    row, dtype = about["row"], about["type"]
    whole = isinstance(row, list) and all(type(side) is int and side > 0 for side in row)
    if not whole or not 0 < len(row) <= _MOST_AXES or math.prod(row) != features:
        raise DataError(
            where, f"rows of {features} numbers", repr(row)[:80], "Do not trust it."
        )
    if features > _LARGEST_ROW or dtype not in _TYPES:
        found = f"{features} numbers of {dtype!r}"[:80]
        raise DataError(where, f"rows of {', '.join(_TYPES)}", found, "Do not trust it.")
    return tuple(row), dtype


def _network(
    written: Any, classes: int, module: nn.Module | None, where: str
) -> tuple[KnownNetwork | None, nn.Module]:
    """The network to put weights into."""
    if written != _OWN:
        known = KnownNetwork.from_json(written, where)
        if known.settings.get("classes", classes) != classes:
            found = f"one of {known.settings['classes']}"
            raise DataError(where, f"a network of {classes} classes", found, "Do not trust it.")
        with torch.random.fork_rng(devices=[]):  # first weights are drawn, then replaced
            return known, known()
    if module is None:
        raise DataError(
            where,
            "the module of whoever made it, since an artifact holds no code",
            "none",
            "Load it in Python: PrivateClassifier.load(path, module=...).",
        )
    return None, copy.deepcopy(module)


def _preparation(written: Any, given: Prepare | None, where: str) -> Prepare | None:
    """How rows become inputs."""
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
        return Pictures(*(_figures(settings[name]) for name in ("mean", "std")))
    except (ArithmeticError, KeyError, TypeError, ValueError) as cause:
        raise DataError(
            where, "a way to prepare rows", repr(written)[:80], "Update Veracal."
        ) from cause


def _figures(written: Any) -> float | tuple[float, ...]:
    """A number for all channels, or one for each."""
    if isinstance(written, list):
        if len(written) not in (1, 3):
            raise ValueError
        return tuple(_number(one) for one in written)
    return _number(written)


def _number(written: Any) -> float:
    """A finite number."""
    if type(written) not in (int, float) or not math.isfinite(written):
        raise ValueError
    return float(written)
