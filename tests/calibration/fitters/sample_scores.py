"""Fitters of every kind and form, and scores of overconfident classifiers."""

import numpy as np
from scipy.special import softmax

from veracal.calibration import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MapFitter,
    PlattScaling,
    TemperatureScaling,
    TwoTemperatureScaling,
)
from veracal.data import Scores

LIKELIHOOD: list[MapFitter] = [  # whose negative log-likelihood never rises
    TemperatureScaling(),
    TwoTemperatureScaling(),
    PlattScaling("scalar"),
    PlattScaling("vector"),
    PlattScaling("matrix"),
    BetaCalibration(),
]
SQUARES: list[MapFitter] = [  # whose Brier score never rises
    HistogramBinning(),
    HistogramBinning(1),
    IsotonicCalibration("one-vs-rest"),
    IsotonicCalibration("top-label"),
]
FITTERS = LIKELIHOOD + SQUARES


def logits(n: int, k: int, *, inverse: float = 0.4, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Logits of shape (n, k), and labels that follow the softmax of a multiple of them."""
    rng = np.random.default_rng(seed)
    z = 3 * rng.normal(size=(n, k))
    p = softmax(inverse * z, axis=1)
    return z, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def both_kinds(z: np.ndarray, y: np.ndarray) -> tuple[Scores, Scores]:
    """The same scores as logits and as probabilities."""
    p = softmax(z, axis=1)
    return Scores.from_logits(z, y), Scores.from_probabilities(p, y)


def nll(scores: Scores) -> float:
    """Mean negative log-likelihood, from its definition."""
    p = scores.probabilities.astype(np.float64)
    assert scores.labels is not None
    return float(np.mean([-np.log(row[y]) for row, y in zip(p, scores.labels, strict=True)]))


def brier(scores: Scores) -> float:
    """Mean squared distance to the label, from its definition."""
    p = scores.probabilities.astype(np.float64)
    return float(((p - np.eye(p.shape[1])[scores.labels]) ** 2).sum(axis=1).mean())


def top_label_brier(mapped: Scores, given: Scores) -> float:
    """Mean squared gap between correctness and the probability of the former prediction."""
    rows = np.arange(len(given))
    said = mapped.probabilities[rows, given.predictions].astype(np.float64)
    return float(((said - (given.predictions == given.labels)) ** 2).mean())
