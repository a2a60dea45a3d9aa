"""Every released number lies on the public grid, and may occur under either neighbor.

Floating-point noise fails twice: its values tell the exact statistic by their last bits, and
some can occur under one neighbor only.
"""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from assurance.audits import Copies, two_sided_geometric
from assurance.ledgers import Patches, patched
from veracal.accounting.events import Budget
from veracal.data import Scores
from veracal.ledger.ledger import open_ledger
from veracal.mechanisms.grid import Grid
from veracal.queries.curator import Curator
from veracal.queries.score_queries import Brier, Correct, Count, NegativeLogLikelihood
from veracal.queries.sources import Release

NAME = "grid"
ONE = Scores.from_logits([[0.3, 0.1]], [1])
NONE = ONE.take(np.arange(0))
QUERIES = [Count(), Correct(), Brier(), NegativeLogLikelihood(), Brier(bits=39)]
ADD = "veracal.queries.curator.add_discrete_laplace"
VALUES = "veracal.mechanisms.grid.Grid.values"


def float_laplace(units: np.ndarray, scale: float) -> np.ndarray:
    return units + np.random.default_rng().laplace(scale=scale, size=len(units))


def finer_after_noise(units: np.ndarray, scale: float) -> np.ndarray:
    """Round to a finer grid than the public one."""
    return np.rint(float_laplace(units, scale) * 8) / 8


def coarser_noise(units: np.ndarray, scale: float) -> np.ndarray:
    """Even noise: odd answers reveal an odd statistic, although all lie on the grid."""
    draws = two_sided_geometric(len(units), scale / 2, np.random.default_rng())
    return units + 2 * draws


def cut_noise(units: np.ndarray, scale: float) -> np.ndarray:
    """Noise cut off at a few scales: the ends are reached from one neighbor only."""
    draws = two_sided_geometric(len(units), scale, np.random.default_rng())
    most = math.ceil(2 * scale)
    return units + np.clip(draws, -most, most)


def never_negative(units: np.ndarray, scale: float) -> np.ndarray:
    """Redraw what falls below the statistic's own least value."""
    draws = two_sided_geometric(len(units), scale, np.random.default_rng())
    return units + np.where(units + draws < units.min() - 1, 0, draws)


def about_on_the_grid(self: Grid, units: Any) -> np.ndarray:
    """A step that is not quite a power of two."""
    return np.array([k * (10.0 ** -round(self.bits * 0.30103)) for k in units])


def single_precision(self: Grid, units: Any) -> np.ndarray:
    """Values in single precision, where fine units are lost."""
    return np.array([np.float32(k / 2**self.bits) for k in units])


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M20 float Laplace": {ADD: float_laplace},
    "rounded after the noise, to a finer grid": {ADD: finer_after_noise},
    "noise on a coarser grid": {ADD: coarser_noise},
    "noise cut off": {ADD: cut_noise},
    "answers kept above the statistic": {ADD: never_negative},
    "a step that is no power of two": {VALUES: about_on_the_grid},
    "values in single precision": {VALUES: single_precision},
}


def run(subject: Patches, *, long: bool) -> str:
    """Release many numbers, look where they lie, and which occur under which neighbor."""
    n = 1_000_000 if long else 100_000
    with patched(subject) as folder:
        for query in QUERIES:
            assert_on_grid(released(query, ONE, n // 40, folder))
        support = assert_same_support(n // 4, folder)
        counts = released(Count(), ONE, n - 2 * (n // 4), folder)
        assert_on_grid(counts)
    total = len(QUERIES) * (n // 40) + 2 * (n // 4) + n - 2 * (n // 4)
    return f"0 of {total:,} numbers off the grid; {support} values occur under both neighbors"


def assert_on_grid(release: Release) -> None:
    """Units are whole, and values are exactly that many steps."""
    off = [k for k in release.units if type(k) is not int]
    assert not off, f"{release.query}: {len(off)} answers are not whole units, such as {off[0]}"
    steps = release.values * 2.0**release.grid.bits  # a power of two: exact
    wrong = np.flatnonzero(steps != np.array(release.units, dtype=float))
    assert not wrong.size, f"{release.query}: {wrong.size} values lie off the grid"
    for value in release.values[:50]:
        assert (Fraction(float(value)) * 2**release.grid.bits).denominator == 1


def assert_same_support(n: int, folder: Path) -> int:
    """Whatever should occur a hundred times or more must occur, under both neighbors."""
    releases = [released(Count(), records, n, folder) for records in (ONE, NONE)]
    seen = [dict(zip(*np.unique(r.units, return_counts=True), strict=True)) for r in releases]
    scale = releases[0].event.noise
    far = int(scale * math.log(n * math.tanh(1 / (2 * scale)) / 100))
    common = range(1 - far, far + 1)  # within reach of 0 and of 1
    for side, name in zip(seen, ("one record", "no record"), strict=True):
        missing = [k for k in common if k not in side]
        assert not missing, f"{missing[0]} never occurs with {name}"
        most = max(abs(k) for k in side)
        assert most > 4 * scale, f"with {name}, no answer lies beyond {most}"
    return len(common)


def released(query: Any, records: Scores, n: int, folder: Path) -> Release:
    """Answers with noise of a few units at most on the coarsest grid."""
    ledger = open_ledger(folder / f"{len(list(folder.iterdir()))}.ledger", Budget(1.0))
    return Curator(records, ledger).answer(Copies(query, n), micro_epsilon=400_000)
