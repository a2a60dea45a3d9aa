"""Made-up examples in the form of the records, to try a network on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from veracal._types import Array
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
        return np.ones(shape, X.dtype)
    return rng.standard_normal(shape).astype(X.dtype)


def made_up_block(X: Any, module: nn.Module, n: int, classes: int, prepare: Any) -> Block:
    """Made-up examples of random classes."""
    rows = made_up_rows(X, module, n)
    targets = torch.arange(n) % classes
    return Block(inputs_of(rows, slice(None), prepare), targets)


def form_of(X: Any) -> Any:
    """What is public about the form of records: shapes of one, and types."""
    if isinstance(X, Mapping):
        return {name: form_of(one) for name, one in X.items()}
    array: Array = X
    return tuple(array.shape[1:]), str(array.dtype)
