"""Every query and clip rule has a defined result for extreme numbers and records.

A cell of the matrix is a query on extreme scores, or a clip rule on extreme gradients. It gives
the value that the definition gives, computed here slowly and on its own, or an error of ours:
never NaN, never a warning. All are counted.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from assurance.ledgers import Patches, patched
from veracal.data import Scores
from veracal.errors import DataError
from veracal.mechanisms import clipping
from veracal.mechanisms.clipping import Automatic, Flat, GlobalAdapt, GlobalV1, GlobalV2
from veracal.queries import query as sums
from veracal.queries.query import BinnedSum, BoundedSum, DenseSum
from veracal.queries.score_queries import (
    Brier,
    Correct,
    Count,
    NegativeLogLikelihood,
    brier_scores,
)

NAME = "edges"
LARGE = (0.0, -0.0, 5e-324, -5e-324, 1e-300, 1.0, -1.0, 745.2, 3.4e38, -3.4e38, 1.7e308)
DTYPES = ("f2", "f4", "f8", ">f4", ">f8")


# ---------------------------------------------------------------- definitions, written slowly


def probabilities(row: list[float], kind: str) -> list[float]:
    if kind == "probabilities":
        return row
    top = max(row)
    weights = [math.exp(max(z - top, -1000.0)) for z in row]
    total = math.fsum(weights)
    return [w / total for w in weights]


def loss(row: list[float], label: int, kind: str) -> float:
    if kind == "probabilities":
        return -math.log(row[label]) if row[label] > 0 else math.inf
    top = max(row)
    return top - row[label] + math.log(math.fsum(math.exp(max(z - top, -1000.0)) for z in row))


def brier(row: list[float], label: int, kind: str) -> float:
    p = probabilities(row, kind)
    return math.fsum((q - (j == label)) ** 2 for j, q in enumerate(p))


def top_brier(row: list[float], label: int, kind: str) -> float:
    first = row.index(max(row))
    return (probabilities(row, kind)[first] - (first == label)) ** 2


def log_first(row: list[float], label: int, kind: str) -> float:
    """Logarithm of a probability: a custom query that is not always finite."""
    p = probabilities(row, kind)[0]
    return min(max(math.log(p), -20), 20) if p > 0 else 0.0  # not finite: contributes zero


def named_first(scores: Scores) -> np.ndarray:
    return np.log(scores.probabilities[:, 0].astype(np.float64))


Definition = Callable[[list[float], int, str], float]
SCALARS: list[tuple[Any, Definition]] = [
    (Count(), lambda row, label, kind: 1.0),
    (Correct(), lambda row, label, kind: float(row.index(max(row)) == label)),
    (Brier(bits=30), brier),
    (Brier(top_label=True, bits=30), top_brier),
    (NegativeLogLikelihood(bits=30), lambda *record: min(loss(*record), 10.0)),
    (NegativeLogLikelihood(7.5, True, 30), lambda *record: min(loss(*record), 7.5) - 3.75),
    (BoundedSum("log", named_first, -20, 20, bits=30), log_first),
]
VECTORS = [
    BinnedSum("by class", lambda s: np.ones(len(s)), lambda s: s.predictions - 1, 3, 0, 1),
    DenseSum("ends", lambda s: s.values[:, [0, -1]], 2, 1.0, power=1),
    DenseSum("round ends", lambda s: s.values[:, [0, -1]], 2, 1.0, power=2),
]
CLIPS = [Flat(0.7), Automatic(0.7), GlobalV1(0.7, 3.0), GlobalV2(0.7), GlobalAdapt(0.7)]


# ---------------------------------------------------------------- the matrix


def sound_scores(long: bool) -> Iterator[tuple[str, Scores]]:
    """Scores that must be answered."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 2):
        for k in (2, 3, 17):
            z, labels = rng.normal(size=(n, k)), rng.integers(k, size=n)
            yield f"{n} records of {k} classes", Scores.from_logits(z, labels)
    wide = rng.normal(size=(2, 100_000)).astype(np.float32)
    yield "100,000 classes", Scores.from_logits(wide, [0, 99_999])
    for first in LARGE:
        rows = [[first, second, 0.5] for second in LARGE]
        for label in range(3):
            yield f"logits with {first!r}", Scores.from_logits(rows, [label] * len(rows))
    yield "ties", Scores.from_logits(np.full((4, 5), 3.0), [0, 1, 2, 4])
    for p in (0.0, 5e-324, 0.5, 1.0):
        for label in (0, 1):
            scores = Scores.from_probabilities([p] * 3, [label] * 3)
            yield f"probability {p!r} of label {label}", scores
    size = 1_000_001 if long else 10_001
    rare = np.arange(size) == 17
    yield "one rare record", Scores.from_probabilities(np.where(rare, 0.9, 0.1), rare * 1)
    for dtype in DTYPES:
        z = rng.normal(size=(20, 11)).astype(dtype)
        yield f"{dtype} logits", Scores.from_logits(z, rng.integers(11, size=20))
        yield f"{dtype} columns", Scores.from_logits(np.asfortranarray(z), [0] * 20)
        z.flags.writeable = False
        yield f"{dtype} that cannot be written", Scores.from_logits(z, [1] * 20)
    named = Scores.from_logits([[1.0, 2.0]] * 2, ["no", "yes"], classes=["no", "yes"])
    yield "named classes", named
    yield "numbers with gaps", Scores.from_logits([[1.0, 2.0]], [40], classes=[-7, 40])


def refused_scores() -> Iterator[tuple[str, Callable[[], Scores]]]:
    """Constructions that must be rejected by an error of ours."""
    z = [[0.0, 1.0]]
    for bad in (np.nan, np.inf, -np.inf):
        yield f"logit {bad}", lambda bad=bad: Scores.from_logits([[bad, 1.0]], [0])
        yield f"probability {bad}", lambda bad=bad: Scores.from_probabilities([[bad, 1.0]], [0])
    for label in (-1, 2, "a", 0.5, None, True):
        yield f"label {label!r}", lambda label=label: Scores.from_logits(z, [label])
    yield "probabilities below zero", lambda: Scores.from_probabilities([[-0.1, 1.1]], [0])
    yield "a sum other than one", lambda: Scores.from_probabilities([[0.1, 0.1]], [0])
    yield "too few labels", lambda: Scores.from_logits(z, [])
    yield "one class", lambda: Scores.from_logits(np.zeros((1, 1)), [0])
    yield "no classes", lambda: Scores.from_logits(np.zeros((2, 0)), [0, 0])


def gradients() -> Iterator[tuple[str, np.ndarray, bool]]:
    """Gradients of one example, and whether it is broken; then forms of many."""
    for value in (*LARGE, 1e308, np.inf, -np.inf, np.nan):
        for other in (0.0, value):
            row = np.array([[value, other, 0.0]])
            with np.errstate(over="ignore"):
                broken = not np.isfinite(row).all()
            yield f"{value!r}", row, broken
    for dtype in ("f2", "f4", "f8"):
        rows = np.array([[3.0, 4.0], [0.0, 0.0], [6e-5, 0.0]], dtype=dtype)
        yield f"{dtype} rows", rows, False
        yield f"{dtype} columns", np.asfortranarray(rows), False
        rows = rows.copy()
        rows.flags.writeable = False
        yield f"{dtype} that cannot be written", rows, False
    yield "no example", np.zeros((0, 4)), False


# ---------------------------------------------------------------- mutants


def not_clamped(self: NegativeLogLikelihood, records: Scores) -> np.ndarray:
    """Leave the clamp to the grid, which takes infinity for a broken record."""
    rows = np.arange(len(records))
    return -records.log_probabilities[rows, records.known_labels] + self._low


def ties_are_right(self: Correct, records: Scores) -> np.ndarray:
    own = records.values[np.arange(len(records)), records.known_labels]
    return own == records.values.max(axis=1)


def own_precision(records: Scores, *, top_label: bool) -> np.ndarray:
    """Compute in whatever precision the numbers have."""
    if top_label:
        return BRIER(records, top_label=True)
    gaps = np.exp(records.values - records.values.max(axis=1, keepdims=True))
    gaps = (gaps / gaps.sum(axis=1, keepdims=True)).astype(np.float32)
    gaps[np.arange(len(gaps)), records.known_labels] -= 1
    return (gaps**2).sum(axis=1)


def with_warnings(function: Any, part: Any, width: int | None = None) -> np.ndarray:
    return np.asarray(function(part))


def nothing_is_an_error(records: Any, block: Any, **settings: Any) -> Iterator[np.ndarray]:
    if not len(records):
        raise ValueError("no records")
    return BLOCKS(records, block, **settings)


def nan_passes(values: Any, bounds: Any, grid: Any) -> np.ndarray:
    with np.errstate(all="ignore"):
        units = np.rint(np.asarray(values, dtype=float) * 2**grid.bits)
        return np.clip(units, bounds.low, bounds.high).astype(np.int64)


def around_the_corner(self: BinnedSum, records: Any) -> np.ndarray:
    """A bin of -1 is the last one, to numpy."""
    sums = np.zeros(self.n_bins, dtype=np.int64)
    kept = np.asarray(self.bins(records)) < self.n_bins
    np.add.at(sums, np.asarray(self.bins(records))[kept], 2**self.bits)
    return sums


def divides(self: Flat, norms: np.ndarray) -> np.ndarray:
    return np.minimum(1.0, self.bound / norms)


def multiplies(gradients: np.ndarray, clip: Any) -> clipping.ClippedSum:
    """Zero times NaN."""
    with np.errstate(all="ignore"):
        rows = np.asarray(gradients, dtype=float)
        norms = np.linalg.norm(rows, axis=1)
        factors = np.where(np.isfinite(norms), clip.factors(np.nan_to_num(norms)), 0.0)
        return clipping.ClippedSum((factors[:, None] * rows).sum(axis=0))


BLOCKS, BRIER = sums.apply_in_blocks, brier_scores
OWN = "veracal.queries.score_queries"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "a loss of infinity counts nothing": {
        "veracal.queries.score_queries.NegativeLogLikelihood.per_record": not_clamped
    },
    "ties count as right": {"veracal.queries.score_queries.Correct.per_record": ties_are_right},
    "single precision": {"veracal.queries.score_queries.brier_scores": own_precision},
    "warnings get out": {"veracal.queries.query.compute_values": with_warnings},
    "no records are an error": {"veracal.queries.query.apply_in_blocks": nothing_is_an_error},
    "M8 infinity becomes the bound": {"veracal.queries.query.clip_to_grid": nan_passes},
    "a bin below the first is the last": {
        "veracal.queries.query.BinnedSum.evaluate": around_the_corner
    },
    "clip divides by a norm of zero": {"veracal.mechanisms.clipping.Flat.factors": divides},
    "clip multiplies NaN by zero": {"veracal.mechanisms.clipping.clipped_sum": multiplies},
}


def run(subject: Patches, *, long: bool) -> str:
    """Fill every cell."""
    with patched(subject), warnings.catch_warnings():
        warnings.simplefilter("error")
        values = 0
        for name, scores in sound_scores(long):
            values += check_vectors(name, scores)
            values += sum(check_scalar(*asked, name, scores) for asked in SCALARS)
        errors = sum(check_refused(name, make) for name, make in refused_scores())
        clips = sum(
            check_clip_rule(clip, name, rows, broken)
            for clip in CLIPS
            for name, rows, broken in gradients()
        )
    return (
        f"{values + errors + clips:,} of {values + errors + clips:,} cells as stated: "
        f"{values:,} values of queries, {clips} of clip rules, {errors} refusals; 0 NaN"
    )


def check_scalar(query: Any, definition: Definition, name: str, scores: Scores) -> int:
    """The sum of the definition over the records, up to half a unit and a float each."""
    found = evaluated(query, name, scores)
    rows, labels = scores.values.astype(float).tolist(), scores.known_labels.tolist()
    records = zip(rows, labels, [scores.kind] * len(rows), strict=True)
    numbers = [definition(*record) for record in records]
    expected = math.fsum(numbers) * 2**query.grid.bits
    slack = len(rows) * (0.5 + 1e-13 * 2**query.grid.bits) if query.grid.bits else 0.0
    assert abs(int(found[0]) - expected) <= slack, (
        f"{query.name} on {name}: {found[0]} units, by definition {expected}"
    )
    return 1


def check_vectors(name: str, scores: Scores) -> int:
    """Counts by bins are exact, and vectors no longer than their bound for each record."""
    classes, *dense = VECTORS
    counts = np.bincount(scores.predictions, minlength=scores.n_classes + 3)[1:4]
    found = evaluated(classes, name, scores)
    assert (found == counts * 2**classes.bits).all(), f"by class on {name}: {found}"
    for query in dense:
        units = np.abs(evaluated(query, name, scores)).max(initial=0)
        assert units <= len(scores) * query.max_norm, f"{query.name} on {name}: {units}"
    return len(VECTORS)


def evaluated(query: Any, name: str, scores: Scores) -> np.ndarray:
    """The answer; an error or a warning is none."""
    try:
        found = query.evaluate(scores)
    except Exception as error:
        raise AssertionError(
            f"{query.name} on {name}: {type(error).__name__} {error}"
        ) from error
    assert found.dtype == np.int64 and found.shape == (query.entries,), f"{name}: {found!r}"
    return found


def check_refused(name: str, make: Callable[[], Scores]) -> int:
    """An error of ours, and no other."""
    try:
        made = make()
    except DataError:
        return 1
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__} instead of DataError") from error
    raise AssertionError(f"{name} was taken for {made!r}")


def check_clip_rule(clip: Any, name: str, rows: np.ndarray, broken: bool) -> int:
    """Finite, within the bound, along the gradient, and zero for a broken one."""
    try:
        total = clipping.clipped_sum(rows, clip).total
    except Exception as error:
        raise AssertionError(f"{clip!r} on {name}: {type(error).__name__} {error}") from error
    assert np.isfinite(total).all(), f"{clip!r} on {name}: {total}"
    assert np.linalg.norm(total) <= max(len(rows), 1) * clip.bound, f"{clip!r} on {name}"
    if broken:
        assert not total.any(), f"{clip!r} on {name}: a broken example contributed {total}"
    elif len(rows) == 1:
        assert (total * np.sign(rows[0]) >= 0).all(), f"{clip!r} on {name}: turned around"
    return 1
