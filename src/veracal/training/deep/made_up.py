"""Made-up examples in the form of the records, to try a network on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from veracal.training.deep.gradients.blocks import Block
from veracal.training.deep.records import inputs_of


def made_up_rows(X: Any, module: nn.Module, n: int) -> Any:
    """Random rows of the shape and type of X, of which no value is read.

    Whole numbers are taken for places in the smallest table of embeddings that the module
    has, so that every table has a row for each.
    """
    if isinstance(X, Mapping):
        return {name: made_up_rows(one, module, n) for name, one in X.items()}
    rng = np.random.default_rng(0)
    shape = (n, *X.shape[1:])
    if X.dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    if X.dtype.kind in "iu":
        tables = [
            one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)
        ]
        return rng.integers(0, min(tables, default=2), shape).astype(X.dtype)
    if X.dtype.kind == "b":
        return rng.random(shape) < 0.5
    rows = rng.standard_normal(shape)
    # Some have zeros, in different numbers, which a module may take for something missing.
    rows[rng.random(shape) < 0.5 * rng.random((n, *[1] * (len(shape) - 1)))] = 0.0
    return rows.astype(X.dtype)


def made_up_block(X: Any, module: nn.Module, n: int, classes: int, prepare: Any) -> Block:
    """Made-up examples of all classes in turn."""
    return _block(made_up_rows(X, module, n), n, classes, prepare)


def made_up_pair(
    X: Any, module: nn.Module, n: int, classes: int, prepare: Any
) -> tuple[Block, Block]:
    """Two blocks with the same first and last example, and others between them."""
    rows = made_up_rows(X, module, 2 * n)
    one, other = np.arange(n), np.arange(n, 2 * n)
    other[[0, -1]] = 0, n - 1

    def chosen(places: Any) -> Any:
        if isinstance(rows, Mapping):
            return {name: each[places] for name, each in rows.items()}
        return rows[places]

    return (
        _block(chosen(one), n, classes, prepare),
        _block(chosen(other), n, classes, prepare),
    )


def _block(rows: Any, n: int, classes: int, prepare: Any) -> Block:
    """Made-up rows with targets."""
    return Block(inputs_of(rows, slice(None), prepare), torch.arange(n) % classes)
