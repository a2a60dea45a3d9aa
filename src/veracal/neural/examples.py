"""Examples of a network: records as tensors, synthetic examples of the same form, and scores.

Synthetic examples show what a network does before anything is charged: they have the shape and
type of the records, and none of their values. :class:`NetworkScores` computes the logits of a
trained network, each row independent of the others.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from veracal import _checks
from veracal._types import BYTES, Array, Bools, Floats, Ints, aligned
from veracal.data import MappedRows, Score, score_independently
from veracal.neural.precision import full_precision

BLOCK = 128  # default number of examples in a block
SCORING_BLOCK = 64  # rows that are scored together
_WINDOW = 4096  # rows of a file that are in memory at a time
_FILL = (1.0, 0.4, 0.8, 0.2, 0.6)  # filled share of rows; not sorted, so that sorting shows
Inputs = Tensor | Mapping[str, Tensor]
LossFunction = Callable[[Any, Tensor], Tensor]
Replacement = Callable[[int], tuple[list[int], ...]]


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class Block:
    """Examples, in the order in which the network receives them."""

    inputs: Inputs  # one row for each view of each example; views of an example are adjacent
    targets: Tensor  # of shape (n,)
    views: int = 1  # per example; their gradients are averaged before the clip
    real: Tensor | None = None  # marks examples; padding contributes nothing; None: all are

    def __len__(self) -> int:
        return len(self.targets)

    def part(self, start: int, end: int) -> "Block":
        """Return examples ``start`` to ``end`` as a block."""
        cut = slice(start * self.views, end * self.views)
        if isinstance(self.inputs, Mapping):
            some: Inputs = {name: one[cut] for name, one in self.inputs.items()}
        else:
            some = self.inputs[cut]
        real = None if self.real is None else self.real[start:end]
        return Block(some, self.targets[start:end], self.views, real)


def compute_logits(module: nn.Module, inputs: Inputs) -> Any:
    """Call a module and return its logits, also from a Hugging Face output."""
    outputs = module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    return getattr(outputs, "logits", outputs)


def count_rows(inputs: Inputs) -> int:
    """Return the number of rows of the inputs."""
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)


def example_losses(block: Block, outputs: Any, losses: LossFunction) -> Tensor:
    """Return losses of shape (n,): the mean over the views of each example."""
    if block.views == 1:
        return losses(outputs, block.targets)
    targets = block.targets.repeat_interleave(block.views)
    return losses(outputs, targets).view(len(block), block.views).mean(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each example.

    A single logit belongs to the second of two classes.
    """
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(
            outputs.reshape(len(targets)), targets.to(outputs.dtype), reduction="none"
        )
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


class Augment(Protocol):
    """Makes label-preserving views of examples, from public knowledge and fresh randomness.

    Guarantees
    ----------
    The views of an example depend on that example and the randomness alone.
    """

    @property
    def views(self) -> int:
        """Number of views of each example."""

    def __call__(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        """Return inputs of shape (n * views, ...), with all views of an example adjacent."""


@dataclass(frozen=True)
class ImageScaler:
    r"""Converts image bytes b to :math:`(b / 255 - \mu) / \sigma`, channels first.

    Attributes
    ----------
    mean, std : float or tuple of float
        Public values :math:`\mu` and :math:`\sigma`, for all channels or one for each.
    """

    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        for std in np.atleast_1d(self.std):
            _checks.positive(std=float(std))

    def __call__(self, rows: Array) -> Tensor:
        """Convert images of shape (n, h, w) or (n, h, w, c) to floats of shape (n, c, h, w)."""
        images = torch.from_numpy(np.ascontiguousarray(rows))
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
        mean, std = (torch.tensor(x, dtype=torch.float32) for x in (self.mean, self.std))
        scaled = images.to(torch.float32).mul_(1 / 255)
        return scaled.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1)).contiguous()


def as_tensor(rows: Array) -> Tensor:
    """Convert rows by their type: image bytes, integers (such as tokens), or floats."""
    if rows.dtype == np.uint8 and rows.ndim in (3, 4):
        return ImageScaler()(rows)
    whole = rows.dtype.kind in "iu" and rows.dtype != np.uint8
    return torch.from_numpy(np.ascontiguousarray(rows, np.int64 if whole else np.float32))


@dataclass(frozen=True, eq=False, repr=False)  # printed nowhere: it holds records
class IndexedRecords:
    """Inputs and targets that are read by index."""

    X: Any  # array of shape (n, ...), or mapping of names to such arrays
    codes: Ints  # of shape (n,)
    prepare: Any = as_tensor
    augment: Augment | None = None
    rng: np.random.Generator | None = None  # of the augmentation

    def __len__(self) -> int:
        return len(self.codes)

    def block(self, rows: Ints, real: Bools | None = None) -> Block:
        """Return records as a block, at addresses independent of other data in memory.

        ``real`` marks the examples, the others being padding; None: all are examples.
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
    """Prepare rows for a network, at addresses that are multiples of 64 bytes."""
    if isinstance(X, Mapping):
        return {
            name: _align(prepare(aligned(np.asarray(values[rows]))))
            for name, values in X.items()
        }
    return _align(prepare(aligned(np.asarray(X[rows]))))


def _align(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if its address is not a multiple of 64 bytes."""
    unaligned = isinstance(tensor, Tensor) and tensor.data_ptr() % BYTES
    return tensor.clone() if unaligned else tensor


def synthetic_rows(X: Any, module: nn.Module, n: int) -> Array:
    """Random rows of the shape and type of X; no value of X is read.

    Integers are drawn as indices of the smallest embedding table of the module, so that every
    table has a row for each.
    """
    rng = np.random.default_rng(0)
    shape = (n, *X.shape[1:])
    fill = np.resize(_FILL, n).reshape(n, *[1] * (len(shape) - 1))
    if X.dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    if X.dtype.kind in "iu":
        tables = [one for one in module.modules() if isinstance(one, nn.Embedding)]
        tokens = rng.integers(0, min((one.num_embeddings for one in tables), default=2), shape)
        if len(shape) > 1:  # texts of different lengths
            beyond = np.arange(shape[-1]) >= fill * shape[-1]
            paddings = (one.padding_idx for one in tables if one.padding_idx is not None)
            tokens[np.broadcast_to(beyond, shape)] = next(paddings, 0)
        return tokens.astype(X.dtype)
    if X.dtype.kind == "b":
        return rng.random(shape) < 0.5
    rows = rng.standard_normal(shape)
    # Different numbers of zeros, which a module may treat as missing values.
    rows[rng.random(shape) < 0.5 * (1 - fill)] = 0.0
    return rows.astype(X.dtype)


def synthetic_block(rows: Array, classes: int, prepare: Any) -> Block:
    """Synthetic rows with targets whose counts differ, since a loss may depend on these."""
    targets = torch.arange(len(rows)) // 3 % classes
    return Block(select_inputs(rows, slice(None), prepare), targets)


def replace_each(n: int) -> tuple[list[int], ...]:
    """Indices of n examples; then with each example in turn replaced by a new one.

    Examples
    --------
    >>> replace_each(2)
    ([0, 1], [2, 1], [0, 3])
    """
    others = ([n + i if i == replaced else i for i in range(n)] for replaced in range(n))
    return (list(range(n)), *others)


def replace_halves(n: int) -> tuple[list[int], ...]:
    """Indices of n examples; then with a random half replaced by new ones; then the other half.

    Three blocks are enough for any number of examples: almost every operation that mixes
    examples also mixes the two halves.

    Examples
    --------
    >>> whole, one, other = replace_halves(8)
    >>> sum(number >= 8 for number in one)
    4
    >>> [min(pair) for pair in zip(one, other)] == whole
    True
    """
    assignment = np.random.default_rng(0).permutation(n) % 2
    halves = ([i + n if assignment[i] == half else i for i in range(n)] for half in (0, 1))
    return (list(range(n)), *halves)


class NetworkScores:
    """Scores rows of one shape and type through a network.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    like : array of shape (n, ...)
        Only its type and the shape of a row are read.
    prepare : callable
        Turns rows into a tensor.

    Guarantees
    ----------
    Rows are scored in blocks of one shape, so that the logits of a row depend on that row only
    (:func:`veracal.data.score_independently`). Whether all positions of a block give the same
    result is tested with the weights and with random ones, for each number of threads.
    """

    def __init__(
        self, module: nn.Module, like: Array, prepare: Callable[[Array], torch.Tensor]
    ) -> None:
        self._module, self._prepare = module, prepare
        self._synthetic = synthetic_rows(like, module, SCORING_BLOCK)
        self._scorers: dict[int, Score] = {}  # by the number of threads

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached scorers, which the next call finds again."""
        return {**self.__dict__, "_scorers": {}}

    def __call__(self, rows: Array | MappedRows) -> Floats:
        """Logits of shape (n, k); a single logit for two classes becomes two."""
        if isinstance(rows, MappedRows):
            parts = (self(part) for part in rows.windows(_WINDOW))
            return np.concatenate([self(rows[:0]), *parts])
        form = self._synthetic
        if tuple(rows.shape[1:]) != tuple(form.shape[1:]):
            raise ValueError(f"Expected rows of shape {form.shape[1:]}, got {rows.shape[1:]}.")
        typed = rows.astype(form.dtype, copy=False)
        if typed.dtype.kind != "f" and not np.array_equal(typed, rows):
            raise ValueError(
                f"Expected rows of {typed.dtype}, the training type, got {rows.dtype} with "
                "values that it cannot represent."
            )
        if not len(typed):
            return self.try_synthetic(1)[:0]
        threads = torch.get_num_threads()  # which divide a block between them
        if threads not in self._scorers:
            self._scorers[threads] = self._test_positions()
        return _two_logits(self._scorers[threads](typed))

    def try_synthetic(self, n: int = SCORING_BLOCK) -> Floats:
        """Logits of a few synthetic rows, from one pass without a test of the positions."""
        return _two_logits(self._forward(self._synthetic[:n]))

    def _forward(self, rows: Array, module: nn.Module | None = None) -> Floats:
        """Raw outputs for one block of rows, by the network or by another one."""
        inputs = select_inputs(rows, slice(None), self._prepare)
        with full_precision(), torch.inference_mode():
            outputs = compute_logits(self._module if module is None else module, inputs)
        scores: Floats = outputs.double().reshape(len(rows), -1).numpy()
        return scores

    def _test_positions(self) -> Score:
        """Test the network, and one with random weights; return the scores of rows."""
        # With the trained weights, units may be zero for all synthetic rows, which would hide
        # differences in the order of summation.
        randomized = copy.deepcopy(self._module)
        rng = torch.Generator().manual_seed(0)  # public: the test is about the machine
        with torch.no_grad():
            for one in randomized.parameters():
                if one.is_floating_point():
                    width = one[0].numel() if one.ndim > 1 else 1
                    one.copy_(torch.randn(one.shape, generator=rng) * width**-0.5)
        forward = partial(self._forward, module=randomized)
        return score_independently(self._forward, self._synthetic, forward)


def _two_logits(scores: Floats) -> Floats:
    """Logits of two classes from a single one; more stay as they are."""
    return np.hstack([np.zeros_like(scores), scores]) if scores.shape[1] == 1 else scores
