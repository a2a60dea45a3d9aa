"""Logits of a trained network, each row independent of the others."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import log_softmax
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from veracal._types import Array, Floats
from veracal.data import MappedRows, Score, score_independently
from veracal.neural.gradients.blocks import compute_logits
from veracal.neural.precision import full_precision
from veracal.neural.synthetic_inputs import select_inputs, synthetic_rows

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
    (:func:`veracal.data.rows.score_independently`). Whether all positions of a block give the same
    result is tested with the weights and with random ones, for each number of threads.
    """

    def __init__(
        self, module: nn.Module, like: Array, prepare: Callable[[Array], torch.Tensor]
    ) -> None:
        self._module, self._prepare = module, prepare
        self.synthetic: Array = synthetic_rows(like, module, SCORING_BLOCK)
        self._scorers: dict[int, Score] = {}  # by the number of threads

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached scorers, which the next call finds again."""
        return {**self.__dict__, "_scorers": {}}

    def __call__(self, rows: Array | MappedRows) -> Floats:
        """Logits of shape (n, k); a single logit for two classes becomes two."""
        if isinstance(rows, MappedRows):
            parts = (self(part) for part in rows.windows(_WINDOW))
            return np.concatenate([self(rows[:0]), *parts])
        typed = self._convert(rows)
        scores: Floats = (
            self._score_rows(typed) if len(typed) else self.forward(self.synthetic)[:0]
        )
        return np.hstack([np.zeros_like(scores), scores]) if scores.shape[1] == 1 else scores

    def forward(self, rows: Array) -> Floats:
        """Raw outputs for one block of rows."""
        return self._run_module(self._module, rows)

    def _run_module(self, module: nn.Module, rows: Array) -> Floats:
        with full_precision(), torch.inference_mode():
            outputs = compute_logits(module, select_inputs(rows, slice(None), self._prepare))
        scores: Floats = outputs.double().reshape(len(rows), -1).numpy()
        return scores

    def _score_rows(self, rows: Array) -> Floats:
        """Score each row independently; the first call also tests the network."""
        threads = torch.get_num_threads()  # which divide a block between them
        if threads not in self._scorers:
            other = _randomize_weights(self._module)
            self._scorers[threads] = score_independently(
                self.forward, self.synthetic, lambda some: self._run_module(other, some)
            )
        return self._scorers[threads](rows)

    def _convert(self, rows: Array) -> Array:
        """Convert rows to the training type; reject a conversion that loses information."""
        form = self.synthetic
        if tuple(rows.shape[1:]) != tuple(form.shape[1:]):
            raise ValueError(f"Expected rows of shape {form.shape[1:]}, got {rows.shape[1:]}.")
        typed = rows.astype(form.dtype, copy=False)
        if typed.dtype.kind != "f" and not np.array_equal(typed, rows):
            raise ValueError(
                f"Expected rows of {typed.dtype}, the training type, got {rows.dtype} with "
                "values that it cannot represent."
            )
        return typed


def _randomize_weights(module: nn.Module) -> nn.Module:
    """Copy of a network with random weights, for a test of its order of summation.

    With the trained weights, units may be zero for all synthetic rows, which would hide
    differences in that order.
    """
    randomized = copy.deepcopy(module)
    rng = torch.Generator().manual_seed(0)  # public: the test is about the machine
    with torch.no_grad():
        for one in randomized.parameters():
            if one.is_floating_point():
                width = one[0].numel() if one.ndim > 1 else 1
                one.copy_(torch.randn(one.shape, generator=rng) * width**-0.5)
    return randomized


class NetworkPredictions:
    """Predictions of a fitted network, with scikit-learn's interface.

    Attributes
    ----------
    classes_ : array of shape (k,)
    """

    classes_: Array
    _scores: NetworkScores

    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`.

        Rows are scored in blocks of one shape, so that the logits of a row depend on that row
        only (:func:`veracal.data.rows.score_independently`).
        """
        check_is_fitted(self)
        if isinstance(X, MappedRows):  # finite already
            return self._scores(X)
        return self._scores(validate_data(self, X, allow_nd=True, dtype=None, reset=False))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Logits of the second class, of shape (n,), for two classes; else of shape (n, k)."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: ArrayLike) -> Array:
        """Most likely class of each row."""
        labels: Array = self.classes_[self.logits(X).argmax(axis=1)]
        return labels

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the class probabilities, of shape (n, k)."""
        result: Floats = log_softmax(self.logits(X), axis=1)
        return result

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Class probabilities, of shape (n, k)."""
        return np.exp(self.predict_log_proba(X))
