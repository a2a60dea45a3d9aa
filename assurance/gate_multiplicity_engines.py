"""Every run of an audit is an independent training: the exact minimizer for fresh noise.

Individuals at zero and at a distance of one along each axis determine the weights of
a run, and the weights determine the noise for which they are the minimizer. That noise must be
the stream of the run, vector by vector, and have the length that the formulas require.
Weights after output perturbation, minus the minimizer computed here by another method, are their
noise, too.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats
from scipy.special import expit

from assurance import engines as mutants
from assurance.gate_perturbation import expected_scale
from veracal._types import Floats
from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.multiplicity.engines.base import Seed
from veracal.multiplicity.engines.linear import ObjectiveEngine, OutputEngine
from veracal.training import ObjectivePerturbation, OutputPerturbation
from veracal.training.output_perturbation import gaussian_noise_multiplier, spherical_gamma

NAME = "multiplicity_engines"
NORM, SEED = 3.0, Seed.from_random_state(7, "noise")
EXACT = 2e-8  # relative to what a gradient adds up
ALPHA = 1e-4


@dataclass(frozen=True)
class Subject:
    """The two engines."""

    objective: type[ObjectiveEngine] = ObjectiveEngine
    output: type[OutputEngine] = OutputEngine


CORRECT = Subject()
MUTANTS = {
    "noise reused between runs": Subject(mutants.Reused),
    "a run takes its neighbor's noise": Subject(mutants.Neighbors),
    "the same noise for all classes": Subject(mutants.OneForAll),
    "noise too small by a tenth": Subject(mutants.Quieter),
    "noise from the stream of batches": Subject(mutants.FromBatches),
    "penalty of the intercept forgotten": Subject(mutants.FreeIntercept),
    "single precision without correction": Subject(mutants.NotCorrected),
    "models put back in the wrong order": Subject(mutants.NotPutBack),
    "runs and people exchanged": Subject(mutants.Transposed),
    "people clipped like records": Subject(mutants.ClippedIndividuals),
    "output: the same noise every time": Subject(output=mutants.OutputOnce),
    "output: noise too small by a tenth": Subject(output=mutants.OutputQuieter),
    "output: noise of one run for all": Subject(output=mutants.OutputReused),
    "output: Gaussian noise not spread over classes": Subject(output=mutants.OutputNotSpread),
}


def run(subject: Subject, *, long: bool) -> str:
    """Recover the noise of runs, and compare it with its stream and its distribution."""
    runs = 3_000 if long else 300
    # Few features are searched for in another way than many.
    settings = ((2, 3, "cms11"), (3, 3, "one-log"), (2, 20, "one-log"), (3, 20, "cms11"))
    worst = max(objective(subject, k, d, rule, runs) for k, d, rule in settings)
    for k in (2, 3):
        for delta in (0.0, 1e-3):
            output(subject, k, delta, 2 * runs)
    return f"{runs} runs each: gradients up to {worst:.1e} of what they add up"


def objective(subject: Subject, k: int, d: int, rule: str, runs: int) -> float:
    """The largest relative gradient of runs at the noise of their stream."""
    data, model = table(k, d), ObjectivePerturbation(2.0, C=3.0, rule=rule, norm=NORM)
    engine = subject.objective(model, data, individuals(d))
    penalty, scale = expected(2.0 / (k if k > 2 else 1), rule)
    worst = 0.0
    for start in (0, runs):
        weights = weights_of(engine, start, runs)
        parts = [noise_of(weights[:, i], data, c, penalty) for i, c in enumerate(classes(k))]
        result = np.stack(parts, axis=1)
        rng = SEED.streams(start).noise
        drawn = spherical_gamma(d + 1, scale, rng=rng, size=runs * len(classes(k)))
        gaps = np.linalg.norm(result - drawn.reshape(result.shape), axis=2)
        size = np.linalg.norm(result, axis=2) + penalty * np.linalg.norm(weights, axis=2)
        worst = max(worst, float((gaps / size).max()))
        check_distribution(
            np.linalg.norm(result, axis=2).ravel() / scale, stats.gamma(d + 1), rule
        )
    assert worst <= EXACT, f"{k} classes, {rule}: a run misses its minimizer by {worst:.1e}"
    return worst


def expected(epsilon: float, rule: str) -> tuple[float, float]:
    """Penalty and scale of the noise, by the formulas of the rules."""
    bend = (NORM**2 + 1) / 4
    if rule == "one-log":
        penalty = max(1 / 3.0, bend / math.expm1(epsilon / 2))
        return penalty, expected_scale(epsilon, 3.0, math.hypot(NORM, 1), "add-remove")
    left = epsilon - 2 * math.log1p(3.0 * bend)
    if left > 0:
        return 1 / 3.0, math.hypot(NORM, 1) / left
    return bend / math.expm1(epsilon / 4), math.hypot(NORM, 1) / (epsilon / 2)


def output(subject: Subject, k: int, delta: float, runs: int) -> None:
    """Output perturbation has its noise distribution, independent over runs and classes."""
    data, model = table(k, 3), OutputPerturbation(2.0, delta, C=0.5, norm=NORM)
    engine = subject.output(model, data, individuals(3))
    exact = np.array([minimizer(data, c, 2.0) for c in classes(k)])
    chunks = [weights_of(engine, start, runs) - exact for start in (0, runs)]
    noise = np.concatenate(chunks).reshape(-1, 4)
    assert len(np.unique(noise.round(9), axis=0)) == len(noise), "noise comes twice"
    moved, models = math.hypot(NORM, 1) * 0.5, len(classes(k))
    if delta == 0:
        lengths, law = (
            np.linalg.norm(noise, axis=1) * 2.0 / (models * moved),
            stats.gamma(4),
        )
    else:
        std = gaussian_noise_multiplier(Budget(2.0, delta)) * math.sqrt(models) * moved
        lengths, law = np.linalg.norm(noise, axis=1) / std, stats.chi(4)
    check_distribution(lengths, law, f"output perturbation, {k} classes, delta={delta}")


def check_distribution(lengths: Floats, law: Any, what: str) -> None:
    """Lengths of noise have the required distribution."""
    result = stats.kstest(lengths, law.cdf).pvalue
    assert result > ALPHA, f"{what}: the noise has another length, p = {result:.1e}"


def table(k: int, d: int) -> Dataset:
    """A few records, some of them longer than the clip norm."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((40, d)) * 10.0 ** rng.uniform(-1, 1, (40, 1))
    return Dataset(X, rng.integers(0, k, 40), tuple("abc"[:k]), size=40)


def individuals(d: int) -> Floats:
    """Rows at zero and at four times the clip norm along each axis."""
    return np.vstack([np.zeros(d), 4 * NORM * np.eye(d)])


def classes(k: int) -> range:
    """Positive classes of the binary models."""
    return range(1, 2) if k == 2 else range(k)


def weights_of(engine: Any, start: int, runs: int) -> Floats:
    """Weights of runs from their scores, of shape (runs, models, d), intercept last."""
    scores = engine.scores(runs, SEED.streams(start))
    assert len(scores) == runs, f"{len(scores)} runs, and {runs} were asked for"
    # Of more than two classes, scores are logarithms of the chances of margins.
    sums = scores[:, :, None] if scores.ndim == 2 else scores - np.log(-np.expm1(scores))
    sums = np.moveaxis(sums, 2, 1)
    intercept = sums[:, :, :1]
    return np.concatenate([(sums[:, :, 1:] - intercept) / (4 * NORM), intercept], axis=2)


def signed(data: Dataset, c: int) -> Floats:
    """Clipped rows with a one, times the signs of one class against the rest."""
    X = np.asarray(data.X)
    longer = np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True) / NORM)
    rows = np.hstack([X / longer, np.ones((len(X), 1))])
    return rows * np.where(data.y == c, 1, -1)[:, None]


def noise_of(weights: Floats, data: Dataset, c: int, penalty: float) -> Floats:
    """The noise for which weights of shape (runs, d) are the exact minimizers."""
    rows = signed(data, c)
    noise: Floats = expit(-(weights @ rows.T)) @ rows - penalty * weights
    return noise


def minimizer(data: Dataset, c: int, penalty: float) -> Floats:
    """The minimizer without noise, as scipy finds it."""
    rows = signed(data, c)

    def objective(w: Floats) -> tuple[float, Floats]:
        z = rows @ w
        value = np.logaddexp(0, -z).sum() + penalty / 2 * w @ w
        return float(value), penalty * w - expit(-z) @ rows

    start = np.zeros(rows.shape[1])
    result: Floats = optimize.minimize(objective, start, jac=True, tol=1e-10).x
    return result
