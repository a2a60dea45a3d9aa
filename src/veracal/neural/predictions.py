"""Logits of a trained network, each row independent of the others."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from veracal._types import Array, Floats
from veracal.data import MappedRows, Score, score_independently
from veracal.neural.examples import compute_logits, select_inputs, synthetic_rows
from veracal.neural.precision import full_precision

SCORING_BLOCK = 64  # rows that are scored together
_WINDOW = 4096  # rows of a file that are in memory at a time


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
            return self.try_synthetic()[:0]
        threads = torch.get_num_threads()  # which divide a block between them
        if threads not in self._scorers:
            self._scorers[threads] = self._test_positions()
        return _two_logits(self._scorers[threads](typed))

    def try_synthetic(self) -> Floats:
        """Logits of synthetic rows, from one pass without a test of the positions."""
        return _two_logits(self._forward(self._synthetic))

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
