"""The logits of a record have the same bits among any others; no error depends on it."""

from typing import Any
from unittest import mock

import numpy as np

from assurance.recalibrations import Subject
from veracal.data import scoring
from veracal.data.scoring import compute_logits

NAME = "recalibration_rows"


# ---------------------------------------------------------------- mutants


def all_at_once(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Score all rows in one product."""
    if not len(X):
        return np.empty((0, classes))
    values = np.asarray(model.logits(X[:]), dtype=np.float64)
    return np.nan_to_num(values) if without_errors else values


def padded_only(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Score blocks of one shape, with a row at any position."""
    with mock.patch.object(scoring, "equivalent_positions", return_value=np.arange(256)):
        return compute_logits(model, X, classes, without_errors=without_errors)


def pass_errors(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Let errors of the model through."""
    return compute_logits(model, X, classes)


def normalized(model: Any, X: Any, classes: int, *, without_errors: bool = False) -> Any:
    """Take the mean of all rows off each."""
    found = compute_logits(model, X, classes, without_errors=without_errors)
    return found - found.mean(axis=0, keepdims=True) if len(found) else found


CORRECT = Subject()
MUTANTS = {
    "logits of all rows in one product": Subject(logits_of=all_at_once),
    "logits by place in a block": Subject(logits_of=padded_only),
    "errors tell of a record": Subject(logits_of=pass_errors),
    "logits less their mean": Subject(logits_of=normalized),
}


def run(subject: Subject, *, long: bool) -> str:
    """Score some rows among all kinds of others."""
    trials = 60 if long else 6
    compare_bits(subject, np.random.default_rng(0), trials)
    compare_errors(subject, np.random.default_rng(1))
    return f"{trials} choices of others change no bit"


# ---------------------------------------------------------------- promises


class Product:
    """One product of single precision."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.weights = rng.normal(size=(300, 10)).astype(np.float32)

    def logits(self, X: Any) -> Any:
        sums = np.asarray(X, dtype=np.float32) @ self.weights
        # As on some processors, the last rows of a block are rounded differently.
        sums[252:256] = np.nextafter(sums[252:256], np.float32(np.inf))
        return sums


class Fails:
    """A model to which some records are an error."""

    def logits(self, X: Any) -> Any:
        if (X > 5).any():
            raise FloatingPointError("a record told of itself")
        return np.stack([X[:, 0], X[:, 1]], axis=1)


def compare_bits(subject: Subject, rng: np.random.Generator, trials: int) -> None:
    """The logits of a record have the same bits among any others."""
    model, rows = Product(rng), rng.normal(size=(400, 300)).astype(np.float32)
    whole = subject.logits_of(model, rows, 10, without_errors=True)
    for n in np.resize([1, 2, 5, 130, 257, 399], trials):
        some = rng.permutation(400)[:n]
        alone = subject.logits_of(model, rows[some], 10, without_errors=True)
        assert alone.tobytes() == whole[some].tobytes(), f"{n} rows have other bits alone"


def compare_errors(subject: Subject, rng: np.random.Generator) -> None:
    """A record for which the model fails causes no error, and changes nothing."""
    odd = rng.uniform(size=(9, 2))
    odd[4] = 9.0
    try:
        found = subject.logits_of(Fails(), odd, 2, without_errors=True)
    except FloatingPointError:
        raise AssertionError("an error tells of a record") from None
    rest = np.delete(np.arange(9), 4)
    assert (found[rest] == odd[rest]).all(), "a record with an error changes others' logits"
