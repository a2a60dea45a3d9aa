"""No unit contributes more rows than declared, and their choice depends on no other unit."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from veracal.data import Dataset, limit_contributions

NAME = "contributions"
Limiter = Callable[..., Dataset]


def one_too_many(data: Dataset, *, max_contributions: int) -> Dataset:
    """Keep one row more than declared."""
    return limit_contributions(data, max_contributions=max_contributions + 1)._changed(
        max_contributions=max_contributions
    )


def the_first_rows(data: Dataset, *, max_contributions: int) -> Dataset:
    """Keep the first rows of each unit: the order of the file decides."""
    assert data.units is not None
    seen: dict[object, int] = {}
    kept = []
    for i, unit in enumerate(data.units):
        seen[unit] = seen.get(unit, 0) + 1
        if seen[unit] <= max_contributions:
            kept.append(i)
    return data.take(np.array(kept, dtype=int))._changed(max_contributions=max_contributions)


def by_batch(data: Dataset, *, max_contributions: int) -> Dataset:
    """Limit each batch of a stream separately."""
    assert data.units is not None
    rows = [
        np.flatnonzero(
            np.isin(
                data.X[:, 0],
                limit_contributions(part, max_contributions=max_contributions).X[:, 0],
            )
        )
        for part in data.batches(16)
    ]
    return data.take(np.unique(np.concatenate(rows)))._changed(
        max_contributions=max_contributions
    )


def promised_only(data: Dataset, *, max_contributions: int) -> Dataset:
    """Write the bound down and keep everything."""
    return data._changed(max_contributions=max_contributions)


def fixed_seed(data: Dataset, *, max_contributions: int) -> Dataset:
    """Choose with a public seed."""
    return limit_contributions(
        data, max_contributions=max_contributions, rng=np.random.default_rng(0)
    )


CORRECT: Limiter = limit_contributions
MUTANTS: dict[str, Limiter] = {
    "one row too many": one_too_many,
    "first rows instead of random ones": the_first_rows,
    "limit per batch": by_batch,
    "bound promised, not kept": promised_only,
    "choice by a published seed": fixed_seed,
}


def run(subject: Limiter, *, long: bool) -> str:
    """Check the bound on many data sets, and the distribution of the choice on one."""
    rng = np.random.default_rng(0)
    sets = 2_000 if long else 300
    for _ in range(sets):
        n, max_contributions = int(rng.integers(1, 60)), int(rng.integers(1, 6))
        units = rng.integers(8, size=n)
        kept = subject(rows(units), max_contributions=max_contributions)
        assert kept.max_contributions == max_contributions and kept.units is not None
        counts = np.bincount(kept.units, minlength=8)
        expected = np.minimum(np.bincount(units, minlength=8), max_contributions)
        assert (counts == expected).all(), f"kept {counts}, expected {expected}"
    pvalue = choice_pvalue(subject, long)
    return f"{sets:,} data sets within bounds, choice uniform at p = {pvalue:.3f}"


def choice_pvalue(subject: Limiter, long: bool) -> float:
    """Test that each row of a unit is kept equally often (chi-squared, alpha = 1e-6)."""
    data, draws = rows(np.repeat([0, 1], [10, 3])), 40_000 if long else 4_000
    counts = np.zeros(10)
    for _ in range(draws):
        kept = subject(data, max_contributions=4).X[:, 0].astype(int)
        counts[kept[kept < 10]] += 1
    # Rows are drawn without replacement, which makes counts less variable than multinomial
    # ones by the factor (1 - 4/10) / (1 - 1/10).
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum() / ((1 - 0.4) / (1 - 0.1))
    pvalue = float(stats.chi2(9).sf(statistic))
    assert pvalue > 1e-6, f"rows are kept {counts} times"
    return pvalue


def rows(units: np.ndarray) -> Dataset:
    """Rows that carry their own number."""
    n = len(units)
    return Dataset(
        np.arange(n, dtype=float)[:, None], np.arange(n) % 2, ("a", "b"), units=units
    )
