"""The trainable parameters of a network as one vector, and back."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from veracal._aligned import aligned_empty
from veracal._types import Floats


@dataclass(frozen=True)
class Place:
    """Where a parameter stands in the vector.

    Attributes
    ----------
    name : str
        As the module names it; of a parameter with several names, the first.
    shape : tuple of int
    start, end : int
    """

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


class Layout:
    """Places of all trainable parameters of a module, each once however often it is tied.

    Parameters
    ----------
    module : torch.nn.Module

    Attributes
    ----------
    places : tuple of Place
    size : int
        Numbers in all.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.places = tuple(_places(module))
        self.size = self.places[-1].end if self.places else 0
        self._of = {
            id(parameter): place
            for place, (_, parameter) in zip(self.places, _trainable(module), strict=True)
        }

    def place(self, parameter: torch.Tensor) -> Place:
        """Where a parameter stands."""
        return self._of[id(parameter)]

    def read(self, module: torch.nn.Module) -> Floats:
        """The parameters as one vector of float32, a copy."""
        vector: Floats = aligned_empty((self.size,), np.dtype(np.float32))
        for place, (_, parameter) in zip(self.places, _trainable(module), strict=True):
            flat = parameter.detach().to(torch.float32).reshape(-1)
            vector[place.start : place.end] = flat.numpy()
        return vector

    def share(self, vector: Floats, module: torch.nn.Module) -> None:
        """Make the parameters views of the vector, so that they are in memory once.

        Whatever is written on one is then on the other.
        """
        self._check(vector)
        whole = torch.from_numpy(vector)
        for place, (_, parameter) in zip(self.places, _trainable(module), strict=True):
            if parameter.data_ptr() == whole.data_ptr() + place.start * whole.element_size():
                continue
            # By numpy, each is a storage of its own: files of weights have no shared ones.
            part = torch.from_numpy(vector[place.start : place.end])
            parameter.data = part.view(place.shape)

    def marks(self, vector: Floats) -> tuple[bytes, ...]:
        """A digest of each parameter, to tell later whether it has moved."""
        self._check(vector)
        return tuple(
            hashlib.blake2b(vector[one.start : one.end].data, digest_size=16).digest()
            for one in self.places
        )

    def unmoved(self, before: tuple[bytes, ...], vector: Floats) -> tuple[str, ...]:
        """Names of the parameters whose digests are what they were."""
        pairs = zip(self.places, before, self.marks(vector), strict=True)
        return tuple(place.name for place, old, new in pairs if old == new)

    def _check(self, vector: Floats) -> None:
        """Refuse a vector of another length."""
        if vector.shape != (self.size,):
            raise ValueError(f"Expected a vector of {self.size} weights, got {vector.shape}.")

    def write(self, vector: Floats, module: torch.nn.Module) -> None:
        """Set the parameters."""
        self._check(vector)
        with torch.no_grad():
            for place, (_, parameter) in zip(self.places, _trainable(module), strict=True):
                part = torch.from_numpy(vector[place.start : place.end])
                parameter.copy_(part.view(place.shape))

    def split(self, vector: Any) -> dict[str, Any]:
        """Views of a vector, by the names of the parameters."""
        return {
            place.name: vector[place.start : place.end].reshape(place.shape)
            for place in self.places
        }


def _trainable(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Parameters that are trained, each once."""
    return ((name, one) for name, one in module.named_parameters() if one.requires_grad)


def _places(module: torch.nn.Module) -> Iterator[Place]:
    """One place after the other."""
    start = 0
    for name, parameter in _trainable(module):
        end = start + math.prod(parameter.shape)
        yield Place(name, tuple(parameter.shape), start, end)
        start = end
