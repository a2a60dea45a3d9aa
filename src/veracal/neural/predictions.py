"""Logits of a trained network, each row by itself."""

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
from veracal.data import MappedRows, Score, each_by_itself
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
        Of which only the shape of a row and the type are read.
    prepare : callable
        Turns rows into a tensor.

    Guarantees
    ----------
    Rows are scored in blocks of one shape, so that the logits of a row are its own
    (:func:`veracal.data.rows.each_by_itself`). Whether places of a block are alike is
    tried with the weights and with random ones, for each number of threads.
    """

    def __init__(
        self, module: nn.Module, like: Array, prepare: Callable[[Array], torch.Tensor]
    ) -> None:
        self._module, self._prepare = module, prepare
        self.made_up: Array = synthetic_rows(like, module, SCORING_BLOCK)
        self._found: dict[int, Score] = {}  # by the number of threads

    def __getstate__(self) -> dict[str, Any]:
        """Without what the first call finds, which is found again."""
        return {**self.__dict__, "_found": {}}

    def __call__(self, rows: Array | MappedRows) -> Floats:
        """Logits of shape (n, k); of two classes, where the network gives one, both."""
        if isinstance(rows, MappedRows):
            parts = (self(part) for part in rows.windows(_WINDOW))
            return np.concatenate([self(rows[:0]), *parts])
        typed = self._typed(rows)
        scores: Floats = self._by_row(typed) if len(typed) else self.forward(self.made_up)[:0]
        return np.hstack([np.zeros_like(scores), scores]) if scores.shape[1] == 1 else scores

    def forward(self, rows: Array) -> Floats:
        """What the network gives for one block of rows."""
        return self._through(self._module, rows)

    def _through(self, module: nn.Module, rows: Array) -> Floats:
        with full_precision(), torch.inference_mode():
            made = compute_logits(module, select_inputs(rows, slice(None), self._prepare))
        scores: Floats = made.double().reshape(len(rows), -1).numpy()
        return scores

    def _by_row(self, rows: Array) -> Floats:
        """Scores of each row by itself; how is found at the first call, which takes a while."""
        threads = torch.get_num_threads()  # which divide a block between them
        if threads not in self._found:
            other = _randomize_weights(self._module)
            self._found[threads] = each_by_itself(
                self.forward, self.made_up, lambda some: self._through(other, some)
            )
        return self._found[threads](rows)

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


def _randomize_weights(module: nn.Module) -> nn.Module:
    """A copy of a network for a trial: its own weights may hide how it adds up.

    Where units are zero for all made-up rows, one order of additions looks like another.
    """
    other = copy.deepcopy(module)
    draws = torch.Generator().manual_seed(0)  # public: the trial is about the machine
    with torch.no_grad():
        for one in other.parameters():
            if one.is_floating_point():
                width = one[0].numel() if one.ndim > 1 else 1
                one.copy_(torch.randn(one.shape, generator=draws) * width**-0.5)
    return other


class NetworkPredictions:
    """Predictions of a fitted network, as scikit-learn's classifiers give them.

    Attributes
    ----------
    classes_ : array of shape (k,)
    """

    classes_: Array
    _scores: NetworkScores

    def logits(self, X: ArrayLike) -> Floats:
        """Scores of shape (n, k) whose softmax is :meth:`predict_proba`.

        Rows are scored in blocks of one shape, so that the logits of a row are its own
        (:func:`veracal.data.rows.each_by_itself`).
        """
        check_is_fitted(self)
        if isinstance(X, MappedRows):  # finite already
            return self._scores(X)
        return self._scores(validate_data(self, X, allow_nd=True, dtype=None, reset=False))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Logits: of shape (n,), of the second class, for two classes, (n, k) for more."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: ArrayLike) -> Array:
        """The likeliest class of each row."""
        labels: Array = self.classes_[self.logits(X).argmax(axis=1)]
        return labels

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Logarithms of the probabilities of the classes, of shape (n, k)."""
        result: Floats = log_softmax(self.logits(X), axis=1)
        return result

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Probabilities of the classes, of shape (n, k)."""
        return np.exp(self.predict_log_proba(X))
