"""Networks that have a name, so that a file can say which one it holds the weights of."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from veracal._types import Frozen
from veracal.errors import DataError
from veracal.training.deep import models
from veracal.training.deep.texts import minilm_texts

_MAKERS: Mapping[str, Callable[..., nn.Module]] = {
    maker.__name__: maker
    for maker in (
        models.mnist_cnn,
        models.five_layer_cnn,
        models.cifar_cnn,
        models.scatter_cnn,
        models.mlp,
        models.dense_head,
        minilm_texts,
    )
}
_PUBLISHED = ("minilm_texts",)  # whose frozen weights come with a package
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "ELU": nn.ELU,
    "GELU": nn.GELU,
    "ReLU": nn.ReLU,
    "SELU": nn.SELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
}
_MOST, _LONGEST = 1_000_000, 64  # of a setting, and of a list of them
_MOST_PARAMETERS = 100_000_000


@dataclass(frozen=True)
class KnownNetwork:
    """A network of :mod:`veracal.training.deep.models`, by its name and its settings.

    Called, it makes the network with fresh weights: so it may stand in place of the function,
    as in ``PrivateNetwork(KnownNetwork("mlp", {"features": 20, "classes": 3}))``.

    Attributes
    ----------
    name : str
    settings : mapping
        Numbers, yes or no, lists of numbers and names of activations.
    """

    name: str
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, maker: object) -> "KnownNetwork | None":
        """The name of a function of ours with settings, if it is one.

        Parameters
        ----------
        maker : object
            One of the functions, a ``functools.partial`` of one, or a known network.
        """
        if isinstance(maker, KnownNetwork):
            return maker
        bare, args, more = maker, (), {}
        if isinstance(maker, partial):
            bare, args, more = maker.func, maker.args, maker.keywords
        name = next((name for name, one in _MAKERS.items() if one is bare), None)
        if name is None:
            return None
        given = inspect.signature(_MAKERS[name]).bind(*args, **more).arguments
        named = {value: word for word, value in _ACTIVATIONS.items()}
        written = {
            key: named.get(value, value) if isinstance(value, type) else _plain(value)
            for key, value in given.items()
        }
        found = cls(name, Frozen(written))
        return None if found._problem() else found

    def __call__(self) -> nn.Module:
        """Make the network."""
        if problem := self._problem():
            raise ValueError(f"Expected a known network, got {problem}.")
        return self._made()

    @property
    def published(self) -> bool:
        """Whether its frozen weights are published, so that nobody needs to keep them."""
        return self.name in _PUBLISHED

    def to_json(self) -> dict[str, Any]:
        """Name and settings, as what JSON can hold."""
        return {"name": self.name, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, written: Any, where: str) -> "KnownNetwork":
        """Read what a stranger may have written; nothing large is made before it is checked.

        Raises
        ------
        DataError
            For a name or a setting that is not known, and for a network that is too large.
        """
        right = isinstance(written, Mapping) and set(written) == {"name", "settings"}
        if not right or not isinstance(written["settings"], Mapping):
            raise _refused(where, repr(written))
        found = cls(written["name"], Frozen(written["settings"]))
        if problem := found._problem():
            raise _refused(where, problem)
        return found

    def _problem(self) -> str:
        """What is wrong with it, if anything."""
        if not isinstance(self.name, str) or self.name not in _MAKERS:
            return f"the name {self.name!r}"
        for key, value in self.settings.items():
            if key == "activation" and isinstance(value, str) and value in _ACTIVATIONS:
                continue
            if not isinstance(key, str) or not _usual(value):
                return f"{key}={value!r}"
        if self.published:  # of a size that settings hardly change
            return _unfit(self.name, self.settings)
        try:
            # Without memory for the weights, whatever numbers a stranger has written.
            with torch.device("meta"):
                made = self._made()
        except (ArithmeticError, TypeError, ValueError, RuntimeError) as cause:
            return f"{self.name} with {dict(self.settings)!r}: {cause}"
        size = sum(one.numel() for one in made.parameters())
        return f"{size:,} parameters" if size > _MOST_PARAMETERS else ""

    def _made(self) -> nn.Module:
        """Make the network of settings that are known to be usual."""
        settings = {
            key: _ACTIVATIONS[value] if key == "activation" else value
            for key, value in self.settings.items()
        }
        return _MAKERS[self.name](**settings)


def _plain(value: Any) -> Any:
    """A setting as what JSON can hold: tuples are lists there."""
    return list(value) if isinstance(value, tuple) else value


def _usual(value: Any) -> bool:
    """Whether it is a setting that one of the networks could have."""
    if isinstance(value, list):
        return len(value) <= _LONGEST and all(type(one) is int and _usual(one) for one in value)
    return type(value) is bool or (type(value) is int and 0 <= value <= _MOST)


def _unfit(name: str, settings: Mapping[str, Any]) -> str:
    """What is wrong with settings, by their names and range."""
    try:
        inspect.signature(_MAKERS[name]).bind(**settings)
    except TypeError as cause:
        return f"{name}: {cause}"
    layers, classes = settings.get("layers", 1), settings["classes"]
    if type(layers) is not int or layers > 6:
        return f"layers={layers!r}"
    most = _MOST_PARAMETERS // 1000  # of a head, with some hundreds of features
    return "" if type(classes) is int and 2 <= classes <= most else f"classes={classes!r}"


def _refused(where: str, found: str) -> DataError:
    """Error for a network that is not known."""
    names = ", ".join(_MAKERS)
    return DataError(
        where, f"one of the networks {names}, with its settings", found[:200], "Update Veracal."
    )
