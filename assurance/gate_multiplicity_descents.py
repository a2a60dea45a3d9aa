"""Runs side by side are fits, each with its own noise, and with batches as they were asked for.

Whatever the engine draws is noted on its way to the steps. Every run is then made again by the
real classifier, one fit that is handed the batches and the noise of that run. What was noted is
put to the test as well: noise is standard, unrelated between runs, and new in every call;
batches are the same for all where noise alone is varied, else Poisson and unrelated.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from assurance.linear import Patches, patched
from veracal.data import Dataset
from veracal.mechanisms import Adam, Automatic, GlobalV1, Langevin
from veracal.multiplicity.engines import linear as descents
from veracal.multiplicity.engines.base import VARIED, Seed
from veracal.multiplicity.engines.linear import DescentEngine
from veracal.training import PrivateLogisticRegression
from veracal.training import batched as many_batches
from veracal.training import batched as many_descents

NAME = "multiplicity_descents"
ENGINE, STEPS, BATCHES = (
    "veracal.multiplicity.engines.linear.",
    "veracal.training.batched.",
    "veracal.training.batched.",
)
N, D, RUNS = 60, 5, 6
ALPHA = 1e-6
CLOSE = {"float32": 5e-6, "float64": 1e-9}
usual: dict[str, Any] = {"epsilon": None, "delta": 1e-4, "steps": 40, "sampling_rate": 0.3}
SETTINGS: tuple[tuple[int, dict[str, Any]], ...] = (
    (2, {"noise_multiplier": 1.5, "weight_decay": 0.1}),
    (3, {"noise_multiplier": 1.0, "dtype": "float32"}),
    (3, {"update": Langevin(0.5, 0.002), "clip": Automatic(0.8)}),
    (2, {"noise_multiplier": 1.0, "sampling_rate": 0.8, "update": Adam(0.1), "average": 0.0}),
    (3, {"noise_multiplier": 1.0, "clip": GlobalV1(0.8, 2.0), "fit_intercept": False}),
)
descend, normals, shared = descents.descend, many_batches.normals, many_batches.shared_batches
poisson_rows, clipped_sums = many_batches.poisson_rows, many_descents.clipped_sums
gradient, fits_of, run_part = many_descents._gradient, descents.fits_of, descents._run


# ---------------------------------------------------------------- mutants


def one_noise(fits: Any, models: int, *, rng: np.random.Generator) -> Iterator[Any]:
    """The noise of the first model, for all of them."""
    for noise in normals(fits, 1, rng=rng):
        yield np.repeat(noise, models, axis=0)


def quiet(fits: Any, models: int, *, rng: np.random.Generator) -> Iterator[Any]:
    """A tenth less noise."""
    for noise in normals(fits, models, rng=rng):
        noise *= 0.9
        yield noise


def same_noise_again(fits: Any, own: bool, models: int, coins: Any, noise: Any) -> Any:
    """The same noise in every part."""
    return run_part(fits, own, models, coins, np.random.default_rng(0))


def one_batch(fits: Any, models: int, *, rng: np.random.Generator) -> Any:
    """A batch that all models share, whatever was asked for."""
    return shared(fits, rng=rng)


def unclipped(residual: Any, lengths: Any, scales: Any, fits: Any) -> Any:
    """Leave gradients as long as they are."""
    return 1 / scales


def real_batch(fits: Any, weights: Any, batch: Any) -> Any:
    """Divide by the number of rows that were really drawn."""
    counts = [max(1, len(rows_of(batch, model))) for model in range(len(weights))]
    scale = fits.descent.expected_batch / np.array(counts)
    return clipped_sums(fits, weights, batch) * scale[:, None, None].astype(fits.rows.dtype)


def no_decay(noisy: Any, weights: Any, descent: Any) -> Any:
    """Forget the weight decay."""
    return gradient(noisy, weights, replace(descent, weight_decay=0.0))


def last_row_again(n: int, rate: float, models: int, *, rng: np.random.Generator) -> Any:
    """Fill batches up with a record."""
    return np.minimum(poisson_rows(n, rate, models, rng=rng), n - 1)


def rarer(n: int, rate: float, models: int, *, rng: np.random.Generator) -> Any:
    """A tenth lower a rate."""
    return poisson_rows(n, 0.9 * rate, models, rng=rng)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "noise shared between models": {ENGINE + "normals": one_noise},
    "noise shared between parts": {ENGINE + "_run": same_noise_again},
    "a tenth less noise": {ENGINE + "normals": quiet},
    "batches shared where own are asked for": {ENGINE + "own_batches": one_batch},
    "own batches where shared are asked for": {
        ENGINE + "copy": SimpleNamespace(deepcopy=lambda rng: rng.spawn(1)[0])
    },
    "clip forgotten": {STEPS + "_clip_factors": unclipped},
    "divided by the real batch": {STEPS + "clipped_sums": real_batch},
    "average forgotten": {
        STEPS + "BatchedFits.averaged_from": property(lambda fits: fits.descent.steps)
    },
    "weight decay forgotten": {STEPS + "_gradient": no_decay},
    "slack for rounding forgotten": {
        ENGINE + "fits_of": lambda *given: replace(fits_of(*given), slack=0.0)
    },
    "batches filled up with a record": {BATCHES + "poisson_rows": last_row_again},
    "a tenth smaller batches": {BATCHES + "poisson_rows": rarer},
}


# ---------------------------------------------------------------- the gate


@dataclass(eq=False)
class Noted:
    """What some runs drew, and the weights they ended with."""

    batches: list[list[Any]] = field(default_factory=list)  # of each run, rows of each step
    noise: list[Any] = field(default_factory=list)
    weights: Any = None


def run(subject: Patches, *, long: bool) -> str:
    """Make runs, and make them again one by one."""
    worst, runs = 0.0, 4 * RUNS if long else RUNS
    with patched(subject):
        for place, (k, settings) in enumerate(SETTINGS):
            model = PrivateLogisticRegression(**usual | settings)
            engine = DescentEngine(model, records(k), np.eye(D), threads=1)
            for varied in VARIED if long or place < 2 else VARIED[:2]:
                seed = Seed.of(place, varied)
                calls = [noted(engine, runs, seed.streams(first)) for first in (0, runs)]
                check_noise(np.array(calls[0].noise + calls[1].noise))
                check_batches(calls, varied, model.sampling_rate)
                worst = max(worst, check_fits(calls[0], model, k))
    return f"{len(SETTINGS)} settings, runs off their fits by {worst:.0e} at most"


def records(k: int) -> Dataset:
    """Some records, fewer than declared."""
    rng = np.random.default_rng(k)
    return Dataset(2 * rng.normal(size=(N, D)), np.arange(N) % k, tuple(range(k)), size=70)


def noted(engine: DescentEngine, runs: int, streams: Any) -> Noted:
    """Make some runs."""
    notes = Noted()

    def spied(fits: Any, models: int, batches: Any, noise: Any) -> Any:
        held = list(batches)
        drawn = [np.array(one) for one in noise]
        notes.batches += [[rows_of(batch, one) for batch in held] for one in range(models)]
        notes.noise += list(np.array(drawn).swapaxes(0, 1))
        return descend(fits, models, held, (one.copy() for one in drawn))  # written on

    with mock.patch(ENGINE + "descend", spied):
        notes.weights = engine.weights(runs, streams)
    assert len(notes.weights) == len(notes.noise) == runs, "runs were lost"
    return notes


def rows_of(batch: Any, model: int) -> Any:
    """The rows that one model takes."""
    if batch.members is not None:
        return np.flatnonzero(batch.members[model])
    rows = np.arange(N)[batch.rows] if isinstance(batch.rows, slice) else batch.rows
    rows = rows[model] if rows.ndim == 2 else rows
    return rows[rows < N]


def check_noise(noise: Any) -> None:
    """Noise of all runs, of shape (runs, steps, ...)."""
    flat = noise.reshape(len(noise), -1).astype(np.float64)
    pvalue = stats.kstest(flat.ravel(), "norm").pvalue
    spread = stats.chi2(flat.size).cdf((flat**2).sum())
    assert pvalue > ALPHA and ALPHA < spread < 1 - ALPHA, f"noise is not standard: {pvalue:.0e}"
    related = np.abs(np.corrcoef(flat) - np.eye(len(flat))).max()
    assert related < 6 / np.sqrt(flat.shape[1]), f"noise of two runs: correlation {related:.2f}"


def check_batches(calls: list[Noted], varied: str, rate: float) -> None:
    """Batches of two calls."""
    runs = calls[0].batches + calls[1].batches
    members = np.zeros((len(runs), len(runs[0]), N))
    for one, steps in zip(members, runs, strict=True):
        for step, rows in zip(one, steps, strict=True):
            np.add.at(step, rows, 1)
    assert members.max() <= 1, "a record is in a batch twice"
    if varied == "noise":
        assert (members == members[0]).all(), "batches differ"
        members = members[:1]
    pvalue = stats.binomtest(int(members.sum()), members.size, rate).pvalue
    assert pvalue > ALPHA, f"batches at a rate of {members.mean():.3f} instead of {rate}"
    if len(members) > 1:
        related = np.abs(np.corrcoef(members.reshape(len(runs), -1)) - np.eye(len(runs))).max()
        limit = 6 / np.sqrt(members[0].size)
        assert related < limit, f"batches of two runs: correlation {related:.2f}"


def check_fits(notes: Noted, model: PrivateLogisticRegression, k: int) -> float:
    """Every run is the fit with its batches and noise; how far it is off at most."""
    worst = 0.0
    for found, batches, noise in zip(notes.weights, notes.batches, notes.noise, strict=True):
        with given(batches, noise):
            fitted = model.fit_records(records(k))
        both = np.hstack([fitted.coef_, fitted.intercept_[:, None]])
        single = both if model.fit_intercept else fitted.coef_
        off = float(np.abs(found - single).max() / max(1, np.abs(single).max()))
        assert off < CLOSE[single.dtype.name], f"a run is off its fit by {off:.0e}"
        worst = max(worst, off)
    return worst


@contextmanager
def given(batches: list[Any], noise: Any) -> Iterator[None]:
    """Hand a fit what it would draw."""
    rows, normal = iter(batches), iter(noise)

    def batch(self: Any, n: int, rng: Any) -> Any:
        return next(rows)

    def noisy(self: Any, total: Any, std: float) -> Any:
        return total + std * next(normal).astype(np.float64)

    with (
        mock.patch("veracal.mechanisms.sampling.Poisson.batch", batch),
        mock.patch("veracal.mechanisms.dp_sgd.PrefetchedNoise.onto", noisy),
    ):
        yield
