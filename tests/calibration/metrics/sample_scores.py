"""Scores to measure."""

import numpy as np
from scipy.special import softmax

from veracal.data import Group, Scores


def scores(n=300, k=4, *, stretch=1.7, kind="probabilities", rng=None, dtype=float) -> Scores:
    """Scores of an overconfident classifier: labels follow logits divided by ``stretch``."""
    rng = np.random.default_rng(0) if rng is None else rng
    logits = (rng.normal(size=(n, k)) * 2).astype(dtype)
    steps = softmax(logits.astype(float) / stretch, axis=1).cumsum(axis=1)
    labels = np.minimum((steps < rng.random((n, 1))).sum(axis=1), k - 1)
    groups = {"site": Group(rng.integers(2, size=n), ("a", "b", "nobody"))}
    if kind == "logits":
        return Scores.from_logits(logits, labels, groups=groups)
    p = np.minimum(softmax(logits.astype(float), axis=1), 1).astype(dtype)
    return Scores.from_probabilities(p, labels, groups=groups)


def tied(n=200, k=3, *, rng=None) -> Scores:
    """Probabilities with few values, many equal ones, on edges of bins, zeros and ones."""
    rng = np.random.default_rng(1) if rng is None else rng
    rows = np.array([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4], [0.6, 0.2, 0.2]])
    drawn = rows[rng.integers(len(rows), size=n)]
    return Scores.from_probabilities(drawn, rng.integers(k, size=n))
