"""How long does secret randomness take, compared with numpy's default generator?

The draws are 10 million normals, as for one step of a network of that size, and Poisson batches
of a thousand out of a million records, compared with one draw for each record.
"""

from collections.abc import Callable

import numpy as np
import pytest

from veracal._random import secret_generator
from veracal.mechanisms.sampling import Poisson

NORMALS, RECORDS, RATE = 10_000_000, 1_000_000, 1e-3


@pytest.mark.benchmark(group="10 million normals")
@pytest.mark.parametrize("make", [secret_generator, np.random.default_rng])
def test_normals(benchmark, make: Callable[[], np.random.Generator]):
    rng, out = make(), np.empty(NORMALS)
    benchmark.pedantic(rng.standard_normal, kwargs={"out": out}, rounds=5, warmup_rounds=1)
    assert abs(out.std() - 1) < 2e-3


def geometric(rng: np.random.Generator) -> np.ndarray:
    """Ours: distances between members."""
    return Poisson(RATE).batch(RECORDS, rng)


def coins(rng: np.random.Generator) -> np.ndarray:
    """One uniform draw for each record, the simple way."""
    return np.flatnonzero(rng.random(RECORDS) < RATE)


@pytest.mark.benchmark(group="a batch of 1,000 out of a million")
@pytest.mark.parametrize("draw", [geometric, coins])
def test_batches(benchmark, draw: Callable[[np.random.Generator], np.ndarray]):
    rng = secret_generator()
    rows = benchmark(draw, rng)
    assert 800 < len(rows) < 1200 and (np.diff(rows) > 0).all()
