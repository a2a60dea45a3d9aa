"""The contribution of a record to an answer does not depend on its position.

One record that is added in front moves every other one by a place. The former code mapped
records by a matrix product of BLAS, whose kernels round differently at the ends of a thread's
share: with OpenBLAS for Haswell, 20 classes and three threads, 8 of 2,048 records of a block
changed bits with their place, and with that for Skylake-X, 257 classes and two threads, 218 of
256. A record whose mapped confidence lies on the edge of a bin then moves with them: one added
record moves many. Here every record must come out with the same bits at every place, for any
number of threads, and each sum must be that of its records taken one by one.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

from veracal.calibration import (
    BinnedGap,
    CorrectWrong,
    Platt,
    PlattEquations,
    PlattGradient,
    Temperature,
    TwoTemperatures,
)
from veracal.calibration.maps import parametric as platt_maps
from veracal.calibration.queries import platt as platt_gradients
from veracal.calibration.queries.platt import ParameterGrid
from veracal.calibration.queries.scalars import map_in_blocks, on_mapped_scores
from veracal.data import Scores
from veracal.queries.curator import evaluate_query

NAME = "calibration_places"
Product = Callable[[Any, Any], Any]
THREADS = (1, 2, 3, 5)
SHIFTS = (1, 2, 3, 7)


# ---------------------------------------------------------------- mutants


def another_kernel(z: Any, weights: Any) -> Any:
    """A product that adds up eight rows in another order, as at the end of a thread's share."""
    if np.ndim(weights) < 2:
        return z * weights
    result, rest = CORRECT(z, weights), slice(248, 256)
    result[rest] = CORRECT(z[rest, ::-1], np.asarray(weights)[:, ::-1])
    return result


def pairwise_at_even_positions(z: Any, weights: Any) -> Any:
    """A product that rounds otherwise at every other place."""
    if np.ndim(weights) < 2:
        return z * weights
    result = CORRECT(z, weights)
    result[::2] = (z[::2, None, :] * weights).sum(axis=2)
    return result


CORRECT: Product = platt_maps.multiply_rows
MUTANTS: dict[str, Product] = {
    "another kernel for a few rows": another_kernel,
    "another order at every other place": pairwise_at_even_positions,
}


# ---------------------------------------------------------------- the gate


def run(subject: Product, *, long: bool) -> str:
    """Shift records, and compare sums with those of single records."""
    with (
        mock.patch.object(platt_maps, "multiply_rows", subject),
        mock.patch.object(platt_gradients, "multiply_rows", subject),
    ):
        moved = sum(
            shifted(k, kind, threads)
            for k in (3, 20, 64)
            for kind in ("logits", "probabilities")
            for threads in THREADS
        )
        many = check_additive(20)
    assert not moved, f"{moved} records changed bits with their place"
    return f"0 records change bits with their place; {many} sums are those of their records"


def records(n: int, k: int, kind: str) -> Scores:
    """Scores with labels."""
    rng = np.random.default_rng([n, k])
    values, labels = rng.normal(0, 4, (n, k)), rng.integers(0, k, n)
    if kind == "logits":
        return Scores.from_logits(values, labels)
    powers = np.exp(values)
    return Scores.from_probabilities(powers / powers.sum(axis=1, keepdims=True), labels)


def maps(k: int) -> tuple[Any, ...]:
    """Maps of every form, whose products are not exact."""
    rng = np.random.default_rng(k)
    bias = rng.normal(size=k)
    return (
        Platt(rng.normal(size=(k, k)), bias),
        Platt(rng.normal(size=k), bias),
        Platt(0.7, bias),
        Temperature(0.7),
        TwoTemperatures(0.7, 1.3),
    )


def shifted(k: int, kind: str, threads: int) -> int:
    """Number of mapped records that change when others precede them."""
    some = records(700, k, kind)
    changed = 0
    with threadpool_limits(threads):
        for map_ in maps(k):
            straight = map_in_blocks(map_, some).values
            for shift in SHIFTS:
                more = some.take(np.concatenate([np.zeros(shift, int), np.arange(700)]))
                found = map_in_blocks(map_, more).values[shift:]
                changed += int((found != straight).any(axis=1).sum())
    return changed


def check_additive(k: int) -> int:
    """How many kinds of sums are the sums over their records; one that is not is an error."""
    some, grid = records(60, k, "logits"), ParameterGrid()
    matrix = grid.nearest(np.random.default_rng(k).normal(size=(k, k)), np.zeros(k))
    asked = (
        on_mapped_scores(BinnedGap(), matrix),
        on_mapped_scores(CorrectWrong(), matrix),
        PlattEquations(matrix),
        PlattGradient(matrix),
    )
    for query in asked:
        alone = sum(evaluate_query(query, some.take(np.array([i]))) for i in range(len(some)))
        moved = int(np.abs(evaluate_query(query, some) - alone).sum())
        assert not moved, f"{query.name}: the sum is {moved} units off that of its records"
    return len(asked)
