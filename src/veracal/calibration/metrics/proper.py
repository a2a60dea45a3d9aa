"""Proper scores: least, on average, for the true probabilities."""

from collections.abc import Iterator

import numpy as np

from veracal._types import Floats
from veracal.calibration.metrics.demands import need_records
from veracal.calibration.metrics.top_label import top_label_blocks
from veracal.data.scores import Scores

_CELLS = 2**18  # numbers worked on at a time


def brier(scores: Scores) -> float:
    r"""Multiclass Brier score :math:`\frac1n \sum_i \lVert p_i - e_{y_i} \rVert^2` in [0, 2].

    (Brier 1950.) For two classes it is twice the mean square of :math:`p_i - y_i`, which
    scikit-learn's ``brier_score_loss`` gives for binary targets.
    """
    return _mean(brier_blocks(need_records(scores)), len(scores))


def top_label_brier(scores: Scores) -> float:
    r"""Top-label Brier score :math:`\frac1n\sum_i (\hat p_i - 1[\hat y_i = y_i])^2` in [0, 1].

    The square error of the confidence as a probability that the prediction is right.
    """
    need_records(scores)
    return _mean(top_label_brier_blocks(scores), len(scores))


def nll(scores: Scores) -> float:
    r"""Mean negative log-likelihood :math:`-\frac1n \sum_i \log p_{i, y_i}`.

    In natural logarithms, from logits without going through probabilities. It is infinite
    when a record's own class was given probability exactly 0, or losses add up to more than a
    double holds: nothing is cut off.
    """
    return _mean(nll_blocks(need_records(scores)), len(scores))


def brier_blocks(scores: Scores) -> Iterator[Floats]:
    """Brier score of each record, some records at a time."""
    for part in _parts(scores):
        gaps = part.probabilities.astype(np.float64)
        gaps[np.arange(len(part)), part.known_labels] -= 1
        yield np.einsum("ij,ij->i", gaps, gaps)


def top_label_brier_blocks(scores: Scores) -> Iterator[Floats]:
    """Top-label Brier score of each record, some records at a time."""
    for part in top_label_blocks(scores):
        yield (part.probability.astype(np.float64) - part.happened) ** 2


def nll_blocks(scores: Scores) -> Iterator[Floats]:
    """Negative log-likelihood of each record, some records at a time."""
    for part in _parts(scores):
        rows = np.arange(len(part))
        if scores.kind == "logits":
            yield -part.log_probabilities[rows, part.known_labels]
        else:
            own = part.values[rows, part.known_labels].astype(np.float64)
            with np.errstate(divide="ignore"):
                yield -np.log(own)


def _parts(scores: Scores) -> Iterator[Scores]:
    """Some records at a time."""
    rows = max(1, _CELLS // scores.n_classes)
    if len(scores) <= rows:
        yield scores
        return
    for start in range(0, len(scores), rows):
        yield scores.take(np.arange(start, min(start + rows, len(scores))))


def total(blocks: Iterator[Floats]) -> float:
    """Sum over all blocks, infinite where it is too large for a double."""
    with np.errstate(over="ignore"):
        return float(sum(block.sum() for block in blocks))


def _mean(blocks: Iterator[Floats], n: int) -> float:
    """Mean over all blocks."""
    return max(0.0, total(blocks) / n)  # not -0
