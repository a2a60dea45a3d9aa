"""Batched DP-SGD runs equal single fits, with independent noise and the requested batches.

The gate records everything that the engine draws. The real classifier then repeats every run as
a single fit with the recorded batches and noise. The recorded draws are tested too: noise is
standard normal, independent between runs, and fresh in every call; batches are shared if only
noise varies, else Poisson and independent.
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
from veracal.multiplicity.engines.linear import DPSGDEngine
from veracal.training import PrivateLogisticRegression
from veracal.training import batched as many_batches
from veracal.training import batched as many_descents

NAME = "multiplicity_dp_sgd"
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
    (3, {"optimizer": Langevin(0.5, 0.002), "clip": Automatic(0.8)}),
    (
        2,
        {"noise_multiplier": 1.0, "sampling_rate": 0.8, "optimizer": Adam(0.1), "average": 0.0},
    ),
    (3, {"noise_multiplier": 1.0, "clip": GlobalV1(0.8, 2.0), "fit_intercept": False}),
)
descend, normals, shared = (
    descents.train_batched,
    many_batches.standard_normals,
    many_batches.shared_batches,
)
poisson_rows, clipped_sums = many_batches.poisson_rows, many_descents.clipped_sums
gradient, fits_of, run_part = (
    many_descents._gradient,
    descents.prepare_fits,
    descents._train_models,
)


# ---------------------------------------------------------------- mutants


def one_noise(fits: Any, models: int, *, rng: np.random.Generator) -> Iterator[Any]:
    """The noise of the first model, used for all models."""
    for noise in normals(fits, 1, rng=rng):
        yield np.repeat(noise, models, axis=0)


def quiet(fits: Any, models: int, *, rng: np.random.Generator) -> Iterator[Any]:
    """A tenth less noise."""
    for noise in normals(fits, models, rng=rng):
        noise *= 0.9
        yield noise


def repeat_noise(
    fits: Any, separate_batches: bool, models: int, batch_rng: Any, noise: Any
) -> Any:
    """The same noise in every batch of models."""
    return run_part(fits, separate_batches, models, batch_rng, np.random.default_rng(0))


def one_batch(fits: Any, models: int, *, rng: np.random.Generator) -> Any:
    """A batch that all models share, whatever was requested."""
    return shared(fits, rng=rng)


def unclipped(residual: Any, lengths: Any, scales: Any, fits: Any) -> Any:
    """Do not clip gradients."""
    return 1 / scales


def real_batch(fits: Any, weights: Any, batch: Any) -> Any:
    """Divide by the actual batch size."""
    counts = [max(1, len(rows_of(batch, model))) for model in range(len(weights))]
    scale = fits.dp_sgd.expected_batch / np.array(counts)
    return clipped_sums(fits, weights, batch) * scale[:, None, None].astype(fits.rows.dtype)


def no_decay(noisy: Any, weights: Any, descent: Any) -> Any:
    """Forget the weight decay."""
    return gradient(noisy, weights, replace(descent, weight_decay=0.0))


def pad_with_last_row(n: int, rate: float, models: int, *, rng: np.random.Generator) -> Any:
    """Pad batches with the last record."""
    return np.minimum(poisson_rows(n, rate, models, rng=rng), n - 1)


def rarer(n: int, rate: float, models: int, *, rng: np.random.Generator) -> Any:
    """A sampling rate that is a tenth lower."""
    return poisson_rows(n, 0.9 * rate, models, rng=rng)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "noise shared between models": {ENGINE + "standard_normals": one_noise},
    "noise shared between parts": {ENGINE + "_train_models": repeat_noise},
    "a tenth less noise": {ENGINE + "standard_normals": quiet},
    "batches shared where own are asked for": {ENGINE + "independent_batches": one_batch},
    "own batches where shared are asked for": {
        ENGINE + "copy": SimpleNamespace(deepcopy=lambda rng: rng.spawn(1)[0])
    },
    "clip forgotten": {STEPS + "_clip_factors": unclipped},
    "divided by the real batch": {STEPS + "clipped_sums": real_batch},
    "average forgotten": {
        STEPS + "BatchedFits.averaged_from": property(lambda fits: fits.dp_sgd.steps)
    },
    "weight decay forgotten": {STEPS + "_gradient": no_decay},
    "slack for rounding forgotten": {
        ENGINE + "prepare_fits": lambda *given: replace(fits_of(*given), slack=0.0)
    },
    "batches filled up with a record": {BATCHES + "poisson_rows": pad_with_last_row},
    "a tenth smaller batches": {BATCHES + "poisson_rows": rarer},
}


# ---------------------------------------------------------------- the gate


@dataclass(eq=False)
class RecordedRun:
    """The draws of some runs, and their final weights."""

    batches: list[list[Any]] = field(default_factory=list)  # of each run, rows of each step
    noise: list[Any] = field(default_factory=list)
    weights: Any = None


def run(subject: Patches, *, long: bool) -> str:
    """Train batched runs, and repeat them one by one."""
    worst, runs = 0.0, 4 * RUNS if long else RUNS
    with patched(subject):
        for place, (k, settings) in enumerate(SETTINGS):
            model = PrivateLogisticRegression(**usual | settings)
            engine = DPSGDEngine(model, records(k), np.eye(D), threads=1)
            for varied in VARIED if long or place < 2 else VARIED[:2]:
                seed = Seed.from_random_state(place, varied)
                calls = [record_run(engine, runs, seed.streams(first)) for first in (0, runs)]
                check_noise(np.array(calls[0].noise + calls[1].noise))
                check_batches(calls, varied, model.sampling_rate)
                worst = max(worst, check_fits(calls[0], model, k))
    return f"{len(SETTINGS)} settings, runs off their fits by {worst:.0e} at most"


def records(k: int) -> Dataset:
    """Records, fewer than the declared size."""
    rng = np.random.default_rng(k)
    return Dataset(2 * rng.normal(size=(N, D)), np.arange(N) % k, tuple(range(k)), size=70)


def record_run(engine: DPSGDEngine, runs: int, streams: Any) -> RecordedRun:
    """Train some runs and record their draws."""
    record = RecordedRun()

    def recorded_descend(fits: Any, models: int, batches: Any, noise: Any) -> Any:
        held = list(batches)
        drawn = [np.array(item) for item in noise]
        record.batches += [[rows_of(batch, item) for batch in held] for item in range(models)]
        record.noise += list(np.array(drawn).swapaxes(0, 1))
        return descend(fits, models, held, (item.copy() for item in drawn))  # written on

    with mock.patch(ENGINE + "train_batched", recorded_descend):
        record.weights = engine.weights(runs, streams)
    assert len(record.weights) == len(record.noise) == runs, "runs were lost"
    return record


def rows_of(batch: Any, model: int) -> Any:
    """Rows in the batch of one model."""
    if batch.members is not None:
        return np.flatnonzero(batch.members[model])
    rows = np.arange(N)[batch.rows] if isinstance(batch.rows, slice) else batch.rows
    rows = rows[model] if rows.ndim == 2 else rows
    return rows[rows < N]


def check_noise(noise: Any) -> None:
    """Noise of shape (runs, steps, ...) is standard normal and independent between runs."""
    flat = noise.reshape(len(noise), -1).astype(np.float64)
    pvalue = stats.kstest(flat.ravel(), "norm").pvalue
    spread = stats.chi2(flat.size).cdf((flat**2).sum())
    assert pvalue > ALPHA and ALPHA < spread < 1 - ALPHA, f"noise is not standard: {pvalue:.0e}"
    related = np.abs(np.corrcoef(flat) - np.eye(len(flat))).max()
    assert related < 6 / np.sqrt(flat.shape[1]), f"noise of two runs: correlation {related:.2f}"


def check_batches(calls: list[RecordedRun], varied: str, rate: float) -> None:
    """Batches of two calls have the right rate and dependence."""
    runs = calls[0].batches + calls[1].batches
    members = np.zeros((len(runs), len(runs[0]), N))
    for item, steps in zip(members, runs, strict=True):
        for step, rows in zip(item, steps, strict=True):
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


def check_fits(record: RecordedRun, model: PrivateLogisticRegression, k: int) -> float:
    """Every run equals the fit with its batches and noise; return the largest deviation."""
    worst = 0.0
    for weights, batches, noise in zip(
        record.weights, record.batches, record.noise, strict=True
    ):
        with given(batches, noise):
            fitted = model.fit_records(records(k))
        both = np.hstack([fitted.coef_, fitted.intercept_[:, None]])
        single = both if model.fit_intercept else fitted.coef_
        off = float(np.abs(weights - single).max() / max(1, np.abs(single).max()))
        assert off < CLOSE[single.dtype.name], f"a run is off its fit by {off:.0e}"
        worst = max(worst, off)
    return worst


@contextmanager
def given(batches: list[Any], noise: Any) -> Iterator[None]:
    """Replace the random draws of a fit."""
    rows, normal = iter(batches), iter(noise)

    def batch(self: Any, n: int, rng: Any) -> Any:
        return next(rows)

    def noisy(self: Any, total: Any, std: float) -> Any:
        return total + std * next(normal).astype(np.float64)

    with (
        mock.patch("veracal.mechanisms.sampling.Poisson.batch", batch),
        mock.patch("veracal.mechanisms.dp_sgd.PrefetchedNoise.add_to", noisy),
    ):
        yield
