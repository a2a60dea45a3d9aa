"""Maps of every kind, and scores with extreme values."""

from collections.abc import Iterator

import numpy as np

from veracal.calibration import (
    Beta,
    Binned,
    Bins,
    CalibrationMap,
    Identity,
    Isotonic,
    Platt,
    Temperature,
    TwoTemperatures,
    UniformMixing,
)
from veracal.data import Scores

LARGE = np.finfo(np.float64).max
TINY = 5e-324


def maps(k: int) -> list[CalibrationMap]:
    """Maps of every kind and form for k classes, with strong effects."""
    line = np.linspace(-2.0, 2.0, k)
    many = 1 if k == 2 else k
    curves = [[0.0, 0.2, 0.9]] * many, [[0.0, 0.0, 1.0]] * many
    vast = [] if k > 100 else [Platt(np.outer(line, line) + np.eye(k), line)]
    return [
        Identity(),
        Temperature(1e-6),
        Temperature(0.3),
        Temperature(1e6),
        TwoTemperatures(0.5, 2.0, 0.7),
        TwoTemperatures(1e6, 2e4, 1e6),
        TwoTemperatures(1e-6, 5e-5, 1e6),
        UniformMixing(1e6, 0.0),
        UniformMixing(1e-6, 0.99),
        UniformMixing(0.2, 0.4),
        Platt(-1e9, line),
        Platt(0.0, np.zeros(k)),
        Platt(line, line * 5e8),
        *vast,
        Binned(Bins(1), [0.0]),
        Binned(Bins(4), [0.0, 1.0, 0.3, 0.6]),
        Isotonic(*curves, "one-vs-rest"),
        Isotonic([[0.5]], [[0.25]], "top-label"),
        Beta(np.full(many, 0.5), np.full(many, 2.0), np.full(many, -1.0)),
        Beta(np.zeros(many), np.full(many, 1e9), np.full(many, -1e9)),
    ]


def extreme_scores(k: int) -> Iterator[tuple[str, Scores]]:
    """Extreme scores for k classes, each with a name."""
    zero = np.zeros((3, k))
    label = [0, k - 1, 0]
    first, last = zero.copy(), zero.copy()
    first[:, 0] = last[:, -1] = 1
    yield "none", Scores.from_logits(zero[:0], [])
    yield "one", Scores.from_logits(zero[:1], [k - 1])
    yield "two", Scores.from_logits(first[:2], [0, 0])
    yield "all ties", Scores.from_logits(zero, label)
    yield "minus zero", Scores.from_logits(-zero, label)
    yield "subnormal", Scores.from_logits(first * TINY, label)
    yield "largest", Scores.from_logits(first * LARGE - last * LARGE, label)
    yield "all largest", Scores.from_logits(zero + LARGE, label)
    yield "all lowest", Scores.from_logits(zero - LARGE, label)
    yield "single largest", Scores.from_logits((last * 3.4e38).astype(np.float32), label)
    yield "half", Scores.from_logits(first.astype(np.float16), label)
    yield "big-endian", Scores.from_logits(first.astype(">f8"), label)
    yield "Fortran", Scores.from_logits(np.asfortranarray(first), label)
    yield "sure", Scores.from_probabilities(first, label)
    yield "sure of the last", Scores.from_probabilities(last.astype(np.float32), label)
    yield "uniform", Scores.from_probabilities(zero + 1 / k, label)
    nearly = first.copy()
    nearly[:, -1] = TINY
    yield "sure but for the least number", Scores.from_probabilities(nearly, label)
    yield "minus zero probability", Scores.from_probabilities(np.where(first, 1, -0.0), label)


def max_difference(a: Scores, b: Scores) -> float:
    """Largest difference between the probabilities of two scores."""
    return float(np.abs(a.probabilities - b.probabilities).max(initial=0.0))
