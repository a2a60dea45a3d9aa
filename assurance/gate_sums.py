"""The order, blocks and layout of rows change no bit of a statistic.

Otherwise a record would move the rounding of others, and no declared sensitivity would hold.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assurance.ledgers import Patches, patched
from veracal.data import Scores
from veracal.queries.query import BinnedSum, BoundedSum, DenseSum
from veracal.queries.score_queries import Brier, Correct, NegativeLogLikelihood

NAME = "sums"
SECONDS = 4


def gap(scores: Scores) -> np.ndarray:
    return scores.correct - scores.confidence.astype(np.float64)


def bins(scores: Scores) -> np.ndarray:
    return np.clip(np.ceil(scores.confidence * 15) - 1, 0, 14)


QUERIES = [
    Correct(),
    Brier(bits=38),
    NegativeLogLikelihood(bits=36, centered=True),
    BoundedSum("gap", gap, -1, 1, bits=40),
    BinnedSum("gaps", gap, bins, 15, -1, 1, bits=40),
    DenseSum("probabilities", lambda s: s.probabilities, 11, 1.0, bits=30),
]


# ---------------------------------------------------------------- mutants


def as_float(self: Any, records: Any) -> np.ndarray:
    """Add units as floats, and round the sum."""
    if not len(records):
        return np.zeros(1, dtype=np.int64)
    values = np.clip(self.per_record(records), -10, 10)
    return np.array([round(float(np.sum(values)) * 2**self.bits)])


def records_then_floats(self: Any, records: Any) -> np.ndarray:
    """Round each record, then add in single precision."""
    if not len(records):
        return np.zeros(1, dtype=np.int64)
    units = np.rint(np.clip(self.per_record(records), -10, 10) * 2**self.bits)
    return np.array([int(np.sum(units.astype(np.float32), dtype=np.float32))])


def as_they_lie(
    records: Any, block: Callable[[Any, int], np.ndarray], **_: Any
) -> Iterator[np.ndarray]:
    """All rows at once, in whatever layout they came."""
    yield block(records, len(records))


def saturating(blocks: Any, entries: int) -> np.ndarray:
    """Cut the running total off at every step instead of once at the end."""
    total = np.zeros(entries, dtype=np.int64)
    for block in blocks:
        total = np.clip(total + block, -(2**28), 2**28)
    return total


def first_rows(
    records: Any, block: Callable[[Any, int], np.ndarray], **_: Any
) -> Iterator[np.ndarray]:
    """Drop the last chunk when it is not full."""
    for start in range(0, max(len(records), 1), 7):
        rows = np.arange(start, min(start + 7, len(records)))
        if len(rows) == 7 or not start:
            yield block(records.take(rows), len(rows))


def narrow(values: Any, bounds: Any, grid: Any) -> np.ndarray:
    """Units in 32 bits, which overflow."""
    units = np.rint(np.clip(values, -10, 10) * 2**grid.bits).astype(np.int64)
    return np.cumsum(units.astype(np.float32), dtype=np.float32).astype(np.int64)


EVALUATE, BLOCKS = (
    "veracal.queries.query.ScalarSum.evaluate",
    "veracal.queries.query.apply_in_blocks",
)
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "float sum": {EVALUATE: as_float},
    "single-precision sum of rounded records": {EVALUATE: records_then_floats},
    "T5 rows scored as they lie": {BLOCKS: as_they_lie},
    "running total cut off": {"veracal.queries.query.exact_total": saturating},
    "last chunk dropped": {BLOCKS: first_rows},
    "running float units": {"veracal.queries.query.clip_to_grid": narrow},
}


def run(subject: Patches, *, long: bool) -> str:
    """Permute, cut and lay out rows in every way, and compare bit by bit."""
    rng = np.random.default_rng(0)
    trials = 40_000 if long else 1_500
    with patched(subject):
        for i in range(trials):
            query = QUERIES[i % len(QUERIES)]
            scores, other_layout = records(rng)
            whole = query.evaluate(scores)
            for way, found in ways(query, scores, other_layout, rng):
                differ = int((whole != found).sum())
                assert not differ, f"{query.name}: {differ} entries changed by {way}"
    return f"{trials:,} sets of rows, permuted, cut and laid out anew: 0 bits changed"


def ways(
    query: Any, scores: Scores, other_layout: Scores, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray]]:
    """The same rows, otherwise."""
    n = len(scores)
    yield "the order", query.evaluate(scores.take(rng.permutation(n)))
    yield "the layout", query.evaluate(other_layout)
    cuts = np.sort(rng.integers(n + 1, size=int(rng.integers(1, 4))))
    chunks = np.split(np.arange(n), cuts)
    yield "the chunks", sum(query.evaluate(scores.take(rows)) for rows in chunks)


def records(rng: np.random.Generator) -> tuple[Scores, Scores]:
    """Logits for eleven classes, row after row and column after column."""
    n = int(rng.integers(1, 300 if rng.random() < 0.1 else 25))
    logits = rng.normal(scale=10.0 ** rng.integers(-2, 3), size=(n, 11))
    labels = rng.integers(11, size=n)
    if rng.random() < 0.5:
        logits = logits.astype(np.float32)
    return Scores.from_logits(logits, labels), Scores.from_logits(
        np.asfortranarray(logits), labels
    )
