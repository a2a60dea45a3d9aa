"""No record moves a statistic beyond its sensitivity, or any other visible result.

Every query is evaluated on adversarial neighbors under both relations. Then whole answers are
replayed on neighbors and every draw of noise is noted: the errors, the number of draws, their
form and their size must be the same, whatever the record.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from assurance.ledgers import Patches, patched
from veracal.accounting.events import RELATIONS, Budget
from veracal.data import Dataset
from veracal.errors import VeracalError
from veracal.ledger.ledger import open_ledger
from veracal.mechanisms import discrete_noise as noise
from veracal.mechanisms.grid import Bounds
from veracal.queries.curator import Curator
from veracal.queries.query import BinnedSum, BoundedSum, DenseSum
from veracal.queries.score_queries import Brier, Correct, Count, NegativeLogLikelihood
from veracal.testing.queries import adversarial_scores, check_neighbors

NAME = "replay"
SECONDS = 5
VALUES = (0.0, 1.0, -1.0, 0.5, 1e300, -1e300, 5e-324, 0.49999999999999994, 2.5)
BROKEN = 12345.0  # represents a record whose value is NaN: data sets contain none


def adversarial_numbers(n: int, rng: np.random.Generator) -> Dataset:
    X = rng.choice((*VALUES, BROKEN, -BROKEN), size=(n, 2))
    return Dataset(X, rng.integers(2, size=n), ("a", "b"))


def number(data: Dataset) -> np.ndarray:
    x = data.X[:, 0]
    return np.select([x == BROKEN, x == -BROKEN], [np.nan, np.inf], x)


def vector(data: Dataset) -> np.ndarray:
    return np.where(data.X == BROKEN, np.nan, data.X)


def gap(scores: Any) -> np.ndarray:
    return scores.correct - scores.confidence.astype(np.float64)


def bins(scores: Any) -> np.ndarray:
    return np.clip(np.ceil(scores.confidence * 15) - 1, 0, 14)


QUERIES = [
    (Count(), adversarial_scores),
    (Correct(), adversarial_scores),
    (Brier(), adversarial_scores),
    (Brier(top_label=True), adversarial_scores),
    (NegativeLogLikelihood(), adversarial_scores),
    (NegativeLogLikelihood(centered=True), adversarial_scores),
    (BoundedSum("gap", gap, -1, 1), adversarial_scores),
    (BinnedSum("gaps", gap, bins, 15, -1, 1), adversarial_scores),
    (BoundedSum("number", number, -1, 2.3, bits=3), adversarial_numbers),
    (BoundedSum("above zero", number, 1.7, 2.3, bits=0), adversarial_numbers),
    (BinnedSum("numbers", number, lambda d: d.X[:, 1], 3, -1, 0.3), adversarial_numbers),
    (DenseSum("vector", vector, 2, 0.7, power=1), adversarial_numbers),
    (DenseSum("round vector", vector, 2, 0.7, power=2), adversarial_numbers),
]


# ---------------------------------------------------------------- mutants


def half(self: Bounds, relation: str) -> int:
    return max(SENSITIVITY(self, relation) // 2, 1)


def not_clipped(values: Any, bounds: Bounds, grid: Any) -> np.ndarray:
    numbers = np.nan_to_num(np.asarray(values, dtype=float), posinf=0, neginf=0)
    return np.rint(np.clip(numbers, -1e6, 1e6) * 2**grid.bits).astype(np.int64)


def clipped_then_raw(values: Any, bounds: Bounds, grid: Any) -> np.ndarray:
    raw = np.nan_to_num(np.asarray(values, dtype=float), posinf=0, neginf=0)
    clipped = np.clip(raw, bounds.low, bounds.high)
    kept = clipped == raw
    return np.rint(np.clip(np.where(kept, clipped, raw), -1e6, 1e6) * 2**grid.bits).astype(int)


def nan_passes(values: Any, bounds: Bounds, grid: Any) -> np.ndarray:
    numbers = np.asarray(values, dtype=float) * 2**grid.bits
    with np.errstate(invalid="ignore"):
        units = np.rint(np.minimum(np.maximum(numbers, bounds.low), bounds.high))
        return np.where(np.isnan(units), -(2.0**40), units).astype(np.int64)


def bound_from_records(values: Any, bounds: Bounds, grid: Any) -> np.ndarray:
    """Scale so that the largest record just reaches the bound."""
    numbers = np.nan_to_num(np.asarray(values, dtype=float), posinf=0, neginf=0)
    share = numbers / max(np.abs(numbers).max(initial=0), 1e-300)
    return np.rint(np.clip(share * bounds.reach, bounds.low, bounds.high)).astype(np.int64)


def bins_from_records(self: BinnedSum, records: Any) -> np.ndarray:
    """Number the bins that occur."""
    found = np.asarray(self.bins(records)) if len(records) else np.zeros(0)
    bins = np.unique(found, return_inverse=True)[1].reshape(-1)
    values = self.values(records)
    sums = np.zeros(self.n_bins, dtype=np.int64)
    kept = bins < self.n_bins
    values = np.clip(np.nan_to_num(values), self.low, self.high)
    units = np.clip(values * 2**self.bits, self.bounds.low, self.bounds.high)
    np.add.at(sums, bins[kept], np.rint(units[kept]).astype(np.int64))
    return sums


def sum_rounded(self: Any, records: Any) -> np.ndarray:
    """Add first, round then."""
    values = np.asarray(self.per_record(records), dtype=float) if len(records) else np.zeros(1)
    low, high = self.bounds.low * self.grid.step, self.bounds.high * self.grid.step
    kept = np.where(np.isfinite(values), np.clip(values, low, high), 0.0)
    return np.array([round(float(kept.sum()) * 2**self.grid.bits)])


def of_reals(self: BoundedSum, relation: str) -> int:
    """Take the sensitivity from the bounds before they met the grid."""
    reach = max(abs(self.low), abs(self.high))
    width = max(self.high, 0) - min(self.low, 0)
    return int((reach if relation == "add-remove" else width) * 2**self.bits)


def too_few(self: Any, records: Any) -> np.ndarray:
    """Refuse to answer about few records."""
    if 0 < len(records) < 10:
        raise ValueError("too few records")
    return COUNT(self, records)


def quiet_if_zero(units: np.ndarray, scale: float) -> np.ndarray:
    """Draw no noise where there is nothing to hide."""
    return noise.add_discrete_laplace(units, scale) if units.any() else units


def scale_from_records(units: np.ndarray, scale: float) -> np.ndarray:
    """Draw less noise where there is much."""
    return noise.add_discrete_laplace(units, scale / (1 + np.abs(units).max()))


SENSITIVITY, COUNT = Bounds.sensitivity, Count.evaluate
CLIP = "veracal.queries.query.clip_to_grid"
ADD = "veracal.queries.curator.add_discrete_laplace"
BOUNDS = "veracal.mechanisms.grid.Bounds"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M4 sensitivity halved": {"veracal.mechanisms.grid.Bounds.sensitivity": half},
    "M5 no clip": {CLIP: not_clipped},
    "M6 clip, then use raw": {CLIP: clipped_then_raw},
    "M8 NaN passes": {CLIP: nan_passes},
    "M9 bound from the records": {CLIP: bound_from_records},
    "M10 bins from the records": {
        "veracal.queries.query.BinnedSum.evaluate": bins_from_records
    },
    "sum rounded instead of records": {"veracal.queries.query.ScalarSum.evaluate": sum_rounded},
    "replace-one forgets who is left out": {
        "veracal.mechanisms.grid.Bounds.span": property(
            lambda self: max(self.high - self.low, 1)
        )
    },
    "replace-one moves one bin": {
        "veracal.mechanisms.grid.Bounds.one_bin_sensitivity": lambda self, relation: self.reach
    },
    "sensitivity from real bounds": {"veracal.queries.query.BoundedSum.sensitivity": of_reals},
    "too few records are refused": {"veracal.queries.score_queries.Count.evaluate": too_few},
    "no draw for nothing": {ADD: quiet_if_zero},
    "noise from the records": {ADD: scale_from_records},
    "vectors not shortened": {
        "veracal.queries.query.clip_vectors_to_grid": lambda rows, most, grid, power: np.rint(
            np.clip(np.nan_to_num(rows), -1, 1) * 2**grid.bits
        ).astype(np.int64)
    },
}


def run(subject: Patches, *, long: bool) -> str:
    """Evaluate on neighbors, then replay answers."""
    rng = np.random.default_rng(0)
    rounds = 50_000 if long else 300
    with patched(subject) as folder:
        replay_queries(rng, 20)
        pairs = replay_answers(folder, rng, 200 if long else 4)
        replay_queries(rng, rounds - 20)
    compared = rounds * len(QUERIES) * len(RELATIONS)
    return (
        f"{compared:,} neighbors of {len(QUERIES)} queries, none moved too far; "
        f"{pairs} answers replayed, none told apart"
    )


def replay_queries(rng: np.random.Generator, rounds: int) -> None:
    """Evaluate every query on neighbors under both relations."""
    for _ in range(rounds):
        for query, make in QUERIES:
            n = int(rng.integers(1, 24))
            check_neighbors(query, make(n + 1, rng), int(rng.integers(n)))


def replay_answers(folder: Path, rng: np.random.Generator, rounds: int) -> int:
    """Answer on neighbors, with every draw noted; returns how many pairs."""
    pairs = 0
    for i in range(rounds):
        for j, (query, make) in enumerate(QUERIES):
            relation = RELATIONS[(i + j) % 2]
            n = int(rng.integers(0, 15))
            pool = make(n + 2, rng)
            kept = np.arange(n + 1)
            other = kept[:-1] if relation == "add-remove" else np.where(kept == n, n + 1, kept)
            seen = [
                observed(query, pool.take(rows), relation, folder / f"{i}-{j}-{side}")
                for side, rows in enumerate((kept, other))
            ]
            assert all(len(one) > 2 for one in seen), f"{query.name}: no answer, but {seen}"
            assert seen[0] == seen[1], f"{query.name}: {seen[0]} on one, {seen[1]} on the other"
            pairs += 1
    return pairs


def observed(query: Any, records: Any, relation: str, place: Path) -> tuple[object, ...]:
    """Everything about an answer that is seen besides its value."""
    ledger = open_ledger(place, Budget(1.0, relation=relation))
    with recorded() as draws:
        try:
            release = Curator(records, ledger).answer(query, micro_epsilon=10_000)
        except VeracalError as error:
            return type(error).__name__, ledger.spent().epsilon
    about = release.query, len(release.units), release.grid, release.noise_std, release.event
    return *about, ledger.spent().epsilon, len(ledger.entries()), tuple(draws)


@contextmanager
def recorded() -> Iterator[list[tuple[str, int]]]:
    """Record the distribution of drawn noise, and its number of entries."""
    draws: list[tuple[str, int]] = []
    make = noise.make_laplace

    def noted(scale: float) -> Any:
        def measured(units: list[int]) -> list[int]:
            draws.append((f"laplace of {scale!r}", len(units)))
            return make(scale)(units)

        return measured

    with mock.patch.object(noise, "make_laplace", noted):
        yield draws
