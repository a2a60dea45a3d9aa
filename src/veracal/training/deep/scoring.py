"""Logits of a trained network, each row by itself."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from veracal._types import Array, Floats
from veracal.data.fixed_shape import Score, each_by_itself
from veracal.training.deep.gradients.blocks import called
from veracal.training.deep.made_up import made_up_rows
from veracal.training.deep.records import inputs_of

SCORED = 64  # rows that are scored together


class NetworkScores:
    """Scores rows of one shape and type through a network.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode.
    like : array of shape (n, ...)
        Of which only the shape of a row and the type are read.
    prepare : callable
        Turns rows into a tensor.

    Guarantees
    ----------
    Rows are scored in blocks of one shape, so that the logits of a row are its own
    (:func:`veracal.data.fixed_shape.each_by_itself`).
    """

    def __init__(
        self, module: nn.Module, like: Array, prepare: Callable[[Array], torch.Tensor]
    ) -> None:
        self._module, self._prepare = module, prepare
        self.made_up: Array = made_up_rows(like, module, SCORED)
        self._score: Score | None = None

    def __call__(self, rows: Array) -> Floats:
        """Logits of shape (n, k); of two classes, where the network gives one, both."""
        typed = self._typed(rows)
        if self._score is None:  # found at the first call, as it takes a few forward passes
            self._score = each_by_itself(self.forward, self.made_up)
        scores: Floats = self._score(typed) if len(typed) else self.forward(self.made_up)[:0]
        return np.hstack([np.zeros_like(scores), scores]) if scores.shape[1] == 1 else scores

    def forward(self, rows: Array) -> Floats:
        """What the network gives for one block of rows."""
        with torch.inference_mode():
            made = called(self._module, inputs_of(rows, slice(None), self._prepare))
        scores: Floats = made.double().reshape(len(rows), -1).numpy()
        return scores

    def _typed(self, rows: Array) -> Array:
        """Rows in the type of those it was trained on, refused where that loses something."""
        form = self.made_up
        if tuple(rows.shape[1:]) != tuple(form.shape[1:]):
            raise ValueError(f"Expected rows of shape {form.shape[1:]}, got {rows.shape[1:]}.")
        typed = rows.astype(form.dtype, copy=False)
        if typed.dtype.kind != "f" and not np.array_equal(typed, rows):
            raise ValueError(
                f"Expected rows of {typed.dtype}, as it was trained on, got {rows.dtype} with "
                "values that this does not have."
            )
        return typed
