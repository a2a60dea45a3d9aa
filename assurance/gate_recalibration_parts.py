"""The partitions of a split are disjoint, drawn in secret, and have declared sizes.

The draws depend on neither rows nor classes: over many fits, the numbers held out vary as sums
of independent draws do, neither more nor less.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import stats

from assurance.recalibrations import ASKED, FITS, MAP, Subject, fitted, records, using
from veracal.calibration import PrivateBinning
from veracal.calibration.private_classifier import split_records
from veracal.data import Dataset, split

NAME = "recalibration_parts"
ALPHA = 1e-6


# ---------------------------------------------------------------- mutants


def first_rows(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Hold the last rows back."""
    ends = np.cumsum(np.array(shares) * len(dataset)).astype(int)
    pieces = np.split(np.arange(len(dataset)), ends[:2])
    parts = [dataset.take(rows) for rows in pieces]
    sizes = [max(1, round((dataset.size or 0) * share)) for share in shares]
    made = [replace(part, size=size) for part, size in zip(parts, sizes, strict=True)]
    return made[0], made[1], made[2] if shares[2] else made[1]


def exact_shares(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Hold back exact shares, so that one record more moves another."""
    made = split(dataset, shares, relation="replace-one", fixed_size=True, rng=rng)
    assert made.calibration is not None
    return made.train, made.calibration, made.test or made.calibration


def published(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Split by a public seed."""
    return split_records(dataset, shares, relation, rng=np.random.default_rng(2026))


def balanced(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Hold back as many of each class."""
    order = np.argsort(dataset.y + 0.5 * rng.random(len(dataset)))
    coins = np.empty(len(dataset))
    coins[order] = ((np.arange(len(order)) * 7) % 10 + rng.random(len(order))) / 10
    place = np.searchsorted(np.cumsum(shares)[:2], coins, side="right")
    sizes = [max(1, round((dataset.size or 0) * share)) for share in shares]
    made = [replace(dataset.take(place == i), size=size) for i, size in enumerate(sizes)]
    return made[0], made[1], made[2] if shares[2] else made[1]


def counted(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Give parts the sizes that they have."""
    parts = split_records(dataset, shares, relation, rng=rng)
    return tuple(replace(part, size=max(1, len(part))) for part in parts)


def map_on_training(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Fit the map to training records, and charge as if they were disjoint."""
    train, _, last = split_records(dataset, shares, relation, rng=rng)
    return train, train, last


def guard_on_map(dataset: Dataset, shares: Any, relation: Any, *, rng: Any) -> Any:
    """Query the guard on the map's records, and charge as if they were disjoint."""
    train, held, _ = split_records(dataset, shares, relation, rng=rng)
    return train, held, held


CORRECT = Subject()
MUTANTS = {
    "split by row number": Subject(split_records=first_rows),
    "exact shares under add/remove": Subject(split_records=exact_shares),
    "split by a published seed": Subject(split_records=published),
    "split balanced by class": Subject(split_records=balanced),
    "sizes of parts are counted": Subject(split_records=counted),
    "split, and the map on training": Subject(split_records=map_on_training),
    "split, and the guard on the map's": Subject(split_records=guard_on_map),
}


def run(subject: Subject, *, long: bool) -> str:
    """Split many times."""
    rng, deals = np.random.default_rng(0), 200 if long else 30
    with using(subject):
        compare_sizes(subject, rng)
        found = compare_parts(subject, rng, deals)
    return f"{deals} deals, the oddest count at p = {found:.2f}"


# ---------------------------------------------------------------- promises


def compare_sizes(subject: Subject, rng: np.random.Generator) -> None:
    """Parts have their shares of the declared size, whatever there is of them."""
    for n in (50, 200):
        fitted(subject, records(rng, n, size=10_000), recalibrate="split", holdout=0.2)
        size = FITS[-1].size
        assert size == 8_000, f"training was told of {size} records, and 8000 are declared"


def compare_parts(subject: Subject, rng: np.random.Generator, deals: int) -> float:
    """Partitions are disjoint, and every record is drawn independently."""
    data, holdout, worst = records(rng, 200), 0.4, 1.0
    held = np.zeros((deals, 200), dtype=bool)
    quick = PrivateBinning(micro_epsilon=MAP, bins=1)
    for deal in range(deals):
        fitted(subject, data, recalibrate="split", holdout=holdout, method=quick)
        parts = [FITS[-1].X[:, 0], *(scores.values[:, 1] for scores in ASKED)]
        joined = np.concatenate(parts)
        assert len(np.unique(joined)) == len(joined), "a record is in two parts"
        assert len(joined) == 200, "a record is in no part"
        held[deal] = ~np.isin(data.X[:, 0], parts[0])
    for what, counts, trials in (
        ("some rows are held back more often", held.sum(axis=0), deals),
        ("the number held back is not a sum of coins", held.sum(axis=1), 200),
        ("classes are balanced", held[:, data.y == 1].sum(axis=1), int(data.y.sum())),
    ):
        found = spread(counts, trials, holdout)
        assert found > ALPHA, f"{what}: p = {found:.1e}"
        worst = min(worst, found)
    return worst


def spread(counts: np.ndarray, trials: int, chance: float) -> float:
    """Whether counts vary as sums of independent draws do: neither more nor less."""
    total = float(((counts - trials * chance) ** 2).sum() / (trials * chance * (1 - chance)))
    law = stats.chi2(len(counts))
    return 2 * min(float(law.cdf(total)), float(law.sf(total)))
