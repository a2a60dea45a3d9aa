"""Records as a network takes them, some at a time.

Made-up examples in the form of the records, to try a network on.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._types import BYTES, Array, Bools, Ints, aligned
from veracal.neural.gradients.blocks import Block, Inputs


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
class IndexedRecords:
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
        inputs, views = select_inputs(self.X, rows, self.prepare), 1
        if self.augment is not None:
            assert self.rng is not None
            assert isinstance(inputs, Tensor)
            inputs, views = _align(self.augment(inputs, self.rng)), self.augment.views
        mask = None if real is None or real.all() else torch.from_numpy(real)
        return Block(inputs, targets, views, mask)


def select_inputs(X: Any, rows: Any, prepare: Any = as_tensor) -> Inputs:
    """Some rows, as a network takes them, at addresses that are multiples of 64 bytes."""

    def one(values: Any) -> Tensor:
        return _align(prepare(aligned(np.asarray(values[rows]))))

    if isinstance(X, Mapping):
        return {name: one(values) for name, values in X.items()}
    return one(X)


def _align(tensor: Tensor) -> Tensor:
    """A tensor at such an address, as torch's own are: itself, or a copy."""
    unaligned = isinstance(tensor, Tensor) and tensor.data_ptr() % BYTES
    return tensor.clone() if unaligned else tensor


BLOCK = 128  # examples of a block, where nothing else is said
Replacement = Callable[[int], tuple[list[int], ...]]
_FILL = (1.0, 0.4, 0.8, 0.2, 0.6)  # how full rows are, in an order that no sorting leaves


def synthetic_rows(X: Any, module: nn.Module, n: int) -> Any:
    """Random rows of the shape and type of X, of which no value is read.

    Whole numbers are taken for places in the smallest table of embeddings that the module
    has, so that every table has a row for each.
    """
    if isinstance(X, Mapping):
        return {name: synthetic_rows(one, module, n) for name, one in X.items()}
    rng = np.random.default_rng(0)
    shape = (n, *X.shape[1:])
    full = np.resize(_FILL, n).reshape(n, *[1] * (len(shape) - 1))
    if X.dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    if X.dtype.kind in "iu":
        tables = [
            one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)
        ]
        found = rng.integers(0, min(tables, default=2), shape)
        if len(shape) > 1:  # texts of different lengths
            ended = np.arange(shape[-1]) >= full * shape[-1]
            found[np.broadcast_to(ended, shape)] = _padding_token(module)
        return found.astype(X.dtype)
    if X.dtype.kind == "b":
        return rng.random(shape) < 0.5
    rows = rng.standard_normal(shape)
    # Some have zeros, in different numbers, which a module may take for something missing.
    rows[rng.random(shape) < 0.5 * (1 - full)] = 0.0
    return rows.astype(X.dtype)


def synthetic_block(X: Any, module: nn.Module, n: int, classes: int, prepare: Any) -> Block:
    """Made-up examples of several classes."""
    return _build_block(synthetic_rows(X, module, n), n, classes, prepare)


def synthetic_blocks(
    X: Any, module: nn.Module, classes: int, prepare: Any, n: int, replacing: Replacement
) -> tuple[Block, ...]:
    """A block of n examples; then the same with some of them replaced, others each time."""
    rows = synthetic_rows(X, module, 2 * n)

    def chosen(places: Any) -> Any:
        if isinstance(rows, Mapping):
            return {name: each[places] for name, each in rows.items()}
        return rows[places]

    return tuple(_build_block(chosen(one), n, classes, prepare) for one in replacing(n))


def full_block_size(declared: int, expected_batch: float) -> int:
    """Examples of a whole block; of a large one, as many as a batch will ever have."""
    most = expected_batch + 10 * math.sqrt(expected_batch) + 10
    return min(declared, max(BLOCK, math.ceil(most)))


def replace_each(n: int) -> tuple[list[int], ...]:
    """Numbers of n examples; then with the first one replaced by a new one, and so on.

    Examples
    --------
    >>> one_replaced(2)
    ([0, 1], [2, 1], [0, 3])
    """
    others = ([n + i if i == place else i for i in range(n)] for place in range(n))
    return (list(range(n)), *others)


def replace_halves(n: int) -> tuple[list[int], ...]:
    """Numbers of n examples; then with one half, by lot, replaced by new ones, then the other.

    Three blocks will do then, however many examples one has: nearly whatever mixes them goes
    from one half to the other somewhere.

    Examples
    --------
    >>> whole, one, other = half_replaced(8)
    >>> sum(number >= 8 for number in one)
    4
    >>> [min(pair) for pair in zip(one, other)] == whole
    True
    """
    lots = np.random.default_rng(0).permutation(n) % 2
    halves = ([i + n if lots[i] == half else i for i in range(n)] for half in (0, 1))
    return (list(range(n)), *halves)


def _build_block(rows: Any, n: int, classes: int, prepare: Any) -> Block:
    """Made-up rows with targets, not as many of each: a loss may go by their numbers."""
    return Block(select_inputs(rows, slice(None), prepare), torch.arange(n) // 3 % classes)


def _padding_token(module: nn.Module) -> int:
    """The token that stands where a text has ended."""
    tables = (one.padding_idx for one in module.modules() if isinstance(one, nn.Embedding))
    return next((one for one in tables if one is not None), 0)
