"""Records as a network takes them, some at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from veracal import _checks
from veracal._aligned import BYTES, aligned
from veracal._types import Array, Bools, Ints
from veracal.training.deep.gradients.blocks import Block, Inputs


class Augment(Protocol):
    """Makes views of examples that mean the same, from public knowledge and fresh randomness.

    Guarantees
    ----------
    The views of an example depend on that example and the randomness alone.
    """

    @property
    def views(self) -> int:
        """How many views of each example there are."""

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Inputs of shape (n * views, ...), the views of one example after the other."""


@dataclass(frozen=True)
class Pictures:
    r"""Bytes b of pictures as :math:`(b / 255 - \mu) / \sigma`, channels first.

    Attributes
    ----------
    mean, std : float or tuple of float
        Public figures :math:`\mu` and :math:`\sigma`, for all channels or for each.
    """

    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        for std in np.atleast_1d(self.std):
            _checks.positive(std=float(std))

    def __call__(self, rows: Array) -> Tensor:
        """Pictures of shape (n, h, w) or (n, h, w, c) as floats of shape (n, c, h, w)."""
        pictures = torch.from_numpy(np.ascontiguousarray(rows))
        pictures = pictures[:, None] if pictures.ndim == 3 else pictures.permute(0, 3, 1, 2)
        mean, std = (torch.tensor(x, dtype=torch.float32) for x in (self.mean, self.std))
        scaled = pictures.to(torch.float32).mul_(1 / 255)
        return scaled.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1)).contiguous()


def as_tensor(rows: Array) -> Tensor:
    """Rows by their form: bytes of pictures, whole numbers (of tokens, say), or floats."""
    if rows.dtype == np.uint8 and rows.ndim in (3, 4):
        return Pictures()(rows)
    if rows.dtype.kind in "iu" and rows.dtype != np.uint8:
        return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
    return torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Records:
    """Inputs and targets that are asked for by their numbers.

    Attributes
    ----------
    X : array of shape (n, ...), or mapping of names to such arrays
    codes : array of ints, of shape (n,)
    prepare : callable
        Turns rows into a tensor.
    augment : Augment, optional
    rng : Generator, optional
        Of the augmentation.
    """

    X: Any
    codes: Ints
    prepare: Any = as_tensor
    augment: Augment | None = None
    rng: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def block(self, rows: Ints, real: Bools | None = None) -> Block:
        """Some records, at addresses that do not depend on what else is in memory.

        Parameters
        ----------
        rows : array of ints
        real : array of bool, optional
            Which of them are examples; the others fill the block up. By default all are.
        """
        targets = torch.from_numpy(aligned(np.asarray(self.codes[rows], dtype=np.int64)))
        inputs, views = inputs_of(self.X, rows, self.prepare), 1
        if self.augment is not None:
            assert self.rng is not None
            assert isinstance(inputs, Tensor)
            inputs, views = _own(self.augment(inputs, self.rng)), self.augment.views
        mask = None if real is None or real.all() else torch.from_numpy(real)
        return Block(inputs, targets, views, mask)


def inputs_of(X: Any, rows: Any, prepare: Any = as_tensor) -> Inputs:
    """Some rows, as a network takes them, at addresses that are multiples of 64 bytes."""

    def one(values: Any) -> Tensor:
        return _own(prepare(aligned(np.asarray(values[rows]))))

    if isinstance(X, Mapping):
        return {name: one(values) for name, values in X.items()}
    return one(X)


def _own(tensor: Tensor) -> Tensor:
    """A tensor at such an address, as torch's own are: itself, or a copy."""
    unaligned = isinstance(tensor, Tensor) and tensor.data_ptr() % BYTES
    return tensor.clone() if unaligned else tensor
