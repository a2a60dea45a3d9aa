"""Made-up examples in the form of the records, to try a network on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from veracal.training.deep.gradients.blocks import Block
from veracal.training.deep.records import inputs_of

_FULL = (1.0, 0.4, 0.8, 0.2, 0.6)  # how full rows are, in an order that no sorting leaves


def made_up_rows(X: Any, module: nn.Module, n: int) -> Any:
    """Random rows of the shape and type of X, of which no value is read.

    Whole numbers are taken for places in the smallest table of embeddings that the module
    has, so that every table has a row for each.
    """
    if isinstance(X, Mapping):
        return {name: made_up_rows(one, module, n) for name, one in X.items()}
    rng = np.random.default_rng(0)
    shape = (n, *X.shape[1:])
    full = np.resize(_FULL, n).reshape(n, *[1] * (len(shape) - 1))
    if X.dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    if X.dtype.kind in "iu":
        tables = [
            one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)
        ]
        found = rng.integers(0, min(tables, default=2), shape)
        if len(shape) > 1:  # texts of different lengths
            ended = np.arange(shape[-1]) >= full * shape[-1]
            found[np.broadcast_to(ended, shape)] = _padding(module)
        return found.astype(X.dtype)
    if X.dtype.kind == "b":
        return rng.random(shape) < 0.5
    rows = rng.standard_normal(shape)
    # Some have zeros, in different numbers, which a module may take for something missing.
    rows[rng.random(shape) < 0.5 * (1 - full)] = 0.0
    return rows.astype(X.dtype)


def made_up_block(X: Any, module: nn.Module, n: int, classes: int, prepare: Any) -> Block:
    """Made-up examples of several classes."""
    return _block(made_up_rows(X, module, n), n, classes, prepare)


def made_up_blocks(
    X: Any, module: nn.Module, n: int, classes: int, prepare: Any
) -> tuple[Block, ...]:
    """A block of n examples; then the same with the first one replaced, with the second, ..."""
    rows = made_up_rows(X, module, 2 * n)

    def chosen(places: Any) -> Any:
        if isinstance(rows, Mapping):
            return {name: each[places] for name, each in rows.items()}
        return rows[places]

    return tuple(_block(chosen(one), n, classes, prepare) for one in one_replaced(n))


def one_replaced(n: int) -> tuple[list[int], ...]:
    """Numbers of n examples; then with the first one replaced by a new one, and so on.

    Examples
    --------
    >>> one_replaced(2)
    ([0, 1], [2, 1], [0, 3])
    """
    others = ([n + i if i == place else i for i in range(n)] for place in range(n))
    return (list(range(n)), *others)


def _block(rows: Any, n: int, classes: int, prepare: Any) -> Block:
    """Made-up rows with targets, not as many of each: a loss may go by their numbers."""
    return Block(inputs_of(rows, slice(None), prepare), torch.arange(n) // 3 % classes)


def _padding(module: nn.Module) -> int:
    """The token that stands where a text has ended."""
    tables = (one.padding_idx for one in module.modules() if isinstance(one, nn.Embedding))
    return next((one for one in tables if one is not None), 0)
