"""The confidence of each prediction, and whether it is right."""

from collections.abc import Iterator

import numpy as np

from veracal._types import Floats, Ints
from veracal.calibration.metrics.draws import Draws
from veracal.calibration.metrics.outcomes import Outcomes
from veracal.data.scores import Scores

_BYTES = 960_000  # worked on at a time: they stay in the processor's cache
_WIDE = 64  # from so many classes on, numpy's own row-wise maximum is fast enough


def top_label(scores: Scores) -> Outcomes:
    """Confidence in doubles and correctness of every record, without a copy of the scores."""
    confidence, correct = np.empty(len(scores)), np.empty(len(scores), dtype=bool)
    start = 0
    for part in top_label_blocks(scores):
        stop = start + len(part.happened)
        confidence[start:stop], correct[start:stop] = part.probability, part.happened
        start = stop
    return Outcomes(confidence, correct)


def top_label_blocks(scores: Scores) -> Iterator[Outcomes]:
    """Confidence and correctness, some records at a time.

    The results are those of ``scores.confidence`` and ``scores.correct``, whatever the
    blocks: of equal scores the first is the prediction.
    """
    if isinstance(scores, Draws):
        yield Outcomes(scores.known(confidence_column)[:, 0], scores.correct)
        return
    labels, values, k = scores.known_labels, scores.values, scores.n_classes
    rows = max(1, min(_BYTES // (k * values.itemsize), len(scores)))
    room, starts = np.empty((3, rows * k), dtype=values.dtype), np.arange(rows) * k
    for start in range(0, len(scores), rows):
        part, right = values[start : start + rows], labels[start : start + rows]
        own, rival = _own_and_rival(part, starts[: len(right)] + right, room)
        correct, ties = own > rival, np.flatnonzero(own == rival)
        if len(ties):
            correct[ties] = part[ties].argmax(axis=1) == right[ties]
        top = np.maximum(own, rival)
        yield Outcomes(
            top if scores.kind == "probabilities" else _confidence(part, top), correct
        )


def confidence_column(scores: Scores) -> Floats:
    """Confidence of every record, of shape (n, 1)."""
    return top_label(scores).probability[:, None]


def _own_and_rival(values: Floats, place: Ints, room: Floats) -> tuple[Floats, Floats]:
    """Score of the right class of each record, and the largest of the others.

    To compare the two says whether the prediction is right, without its position, which
    takes longer to find than the maximum.
    """
    others = room[0, : values.size].reshape(values.shape)
    np.copyto(others, values)
    flat = others.reshape(-1)
    own = flat.take(place, mode="clip")
    flat[place] = -np.inf
    return own, _largest(others, room[1:])


def _largest(values: Floats, room: Floats) -> Floats:
    """Largest number of each row.

    Rows are short and many, so they are not reduced one by one: the maximum over windows of
    2, 4, 8, … numbers is taken over all rows end to end, and two windows cover a row.
    """
    k = values.shape[1]
    if k >= _WIDE:
        result: Floats = values.max(axis=1)
        return result
    flat, width = values.reshape(-1), 1
    while 2 * width <= k:
        out, room = room[0, : len(flat) - width], room[::-1]
        flat, width = np.maximum(flat[:-width], flat[width:], out=out), 2 * width
    return np.maximum(flat[::k], flat[k - width :: k])


def _confidence(logits: Floats, top: Floats) -> Floats:
    r"""Top probability :math:`1 / \sum_j e^{z_j - \max z}`."""
    with np.errstate(over="ignore"):  # a difference beyond all floats is as good as any
        gaps = logits - top[:, None].astype(np.float64)
        result: Floats = 1 / np.exp(gaps, out=gaps).sum(axis=1)
    return result
