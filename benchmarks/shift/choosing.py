"""Selection of the pooled method: candidates on settings that are not in the table.

Networks, corruptions and severities are those of ``logits.choosing()``, and random orders are
other ones than the table's. Epsilon is also taken smaller than in the paper, where one gap
does better than two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.shift.grid import EPSILONS, RECORDS, SOURCES
from benchmarks.shift.logits import choosing, logits
from benchmarks.shift.methods import acc_t, bisection, interpolation, pooled
from benchmarks.shift.tables import tables
from benchmarks.shift.trials import Sources
from veracal._types import Floats

CANDIDATES: dict[str, tuple[int, ...]] = {
    "10 : 90": (10, 90),
    "5 : 25 : 70": (5, 25, 70),
    "10 : 30 : 60": (10, 30, 60),
    "10 : 40 : 50": (10, 40, 50),
    "20 : 30 : 50": (20, 30, 50),
    "8 : 12 : 25 : 55": (8, 12, 25, 55),
}
FIRST = 0.3  # share of the first of two gaps


@dataclass(frozen=True, eq=False)
class Choice:
    """Mean errors of a candidate, of shape (settings, points), at a factor of epsilon."""

    name: str
    factor: float
    errors: Floats


def choices(trials: int = 60, factors: tuple[float, ...] = (1.0, 0.1)) -> Iterator[Choice]:
    """Run every candidate."""
    made = {
        setting.place.stem: tables(
            *logits(setting.network, setting.corruption, setting.severity),
            f"choosing: {setting.place.stem}",
            trials,
        )
        for setting in choosing()
    }
    methods = {"Acc-T": acc_t, "bisection": bisection, "interpolation": interpolation}
    methods |= {
        name: lambda s, shares=shares: pooled(s, shares=shares)
        for name, shares in CANDIDATES.items()
    }
    for factor in factors:
        for name, method in methods.items():
            errors = [
                method(replace(Sources(table, np.random.default_rng(1)), factor=factor))
                for table in made.values()
            ]
            yield Choice(name, factor, np.array([e.mean(axis=0) for e in errors]))


def noise(factor: float = 1.0) -> Floats:
    """Noise of the first of two gaps, for each record, at every point."""
    return np.sqrt(2 * SOURCES) / (FIRST * factor * EPSILONS * RECORDS)


def show(trials: int) -> None:
    """Print mean errors, overall and by the noise of the first gap."""
    edges = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, np.inf)
    print(f"{'':18}{'factor':>7}{'mean':>8}  by noise of the first gap, up to {edges[1:]}")
    for found in choices(trials):
        bands = np.digitize(noise(found.factor), edges[1:-1])
        parts = [found.errors[:, bands == i] for i in range(len(edges) - 1)]
        told = "".join(f"{p.mean():>8.4f}" if p.size else f"{'-':>8}" for p in parts)
        print(f"{found.name:18}{found.factor:>7g}{found.errors.mean():>8.4f}{told}", flush=True)


if __name__ == "__main__":
    show(20)
