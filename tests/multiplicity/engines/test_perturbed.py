"""The perturbation engines have the distribution of single fits."""

from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from unittest import mock

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from tests.multiplicity.engines.contract import LEVEL, check_engine, same_distribution
from veracal.accounting import Unit
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.multiplicity.engines import linear as perturbed
from veracal.multiplicity.engines.base import Seed, Streams
from veracal.multiplicity.engines.linear import ObjectiveEngine, OutputEngine
from veracal.training import ObjectivePerturbation, OutputPerturbation, gaussian_disagreement
from veracal.training.output_perturbation import spherical_gamma
from veracal.training.perturbation import clip_rows

SEED = Seed.from_random_state(0)
MODELS = [
    ObjectivePerturbation(1.5),
    ObjectivePerturbation(1.5, rule="cms11"),
    ObjectivePerturbation(1.5, rule="diffprivlib-0.6.2"),
    ObjectivePerturbation(4.0, C=5.0, fit_intercept=False, relation="replace-one"),
    OutputPerturbation(1.5),
    OutputPerturbation(1.5, 1e-3, C=0.1, fit_intercept=False),
]


def table(k=2, n=60, d=3, seed=0):
    """Records, some of which are longer than the declared norm of the models."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.clip(np.floor(X[:, 0] + rng.normal(size=n) + k / 2), 0, k - 1).astype(int)
    return Dataset(X, y, tuple(f"class {c}" for c in range(k)), norm=9.0, size=n)


def individuals(d=3, count=12):
    return np.random.default_rng(9).normal(size=(count, d)) * 1.5


def engine_of(model, data, X):
    made = ObjectiveEngine if isinstance(model, ObjectivePerturbation) else OutputEngine
    return made(model, data, X)


def changed(model, **parameters):
    return type(model)(**{**model.get_params(), **parameters})


def streams_of(rng):
    return Streams(rng, rng, rng, "noise")


def of_persons(data):
    """The same records, two of each individual."""
    return replace(data, units=np.arange(len(data)) // 2, max_contributions=2)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_contract(model, k):
    data, X = table(k), individuals()
    engine = engine_of(model, data, X)
    check_engine(engine, other=engine_of(model, table(k, seed=1), X))
    for other in (
        engine_of(model, data, X[1:]),
        engine_of(changed(model, epsilon=0.7), data, X),
        engine_of(changed(model, norm=1.0), data, X),
        engine_of(changed(model, unit=Unit("individual", 2)), of_persons(data), X),
    ):
        assert other.settings() != engine.settings()
    assert engine_of(changed(model, random_state=3), data, X).settings() == engine.settings()


@contextmanager
def noise_of_runs(models):
    """Let a fit draw its noise as a run does: in floating point, of all models together."""
    kept = []

    class Drawn:
        def __init__(self, scale, d, *, rng):
            if not kept:
                kept.extend(spherical_gamma(d, scale, rng=rng, size=models))
            self._vector = kept.pop(0)

        def intervals(self):
            return [(Decimal(float(one)),) * 2 for one in self._vector]

    def release(self, exact, *, rng):
        return self.simulate(exact, 1, rng=rng)[0]

    with (
        mock.patch("veracal.training.objective_perturbation.SphericalNoise", Drawn),
        mock.patch("veracal.training.output_perturbation.OutputNoise.release", release),
    ):
        yield


def off_by_rounding(fitted, X):
    """The most that rounding released weights moves a score."""
    return fitted.grid_step_ * (np.abs(X).sum(axis=1).max() + 1)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("norm", [9.0, 1.2])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_run_equals_a_fit(model, norm, k):
    """With the noise of a fit, a run is that fit."""
    data, X, model = table(k), individuals(), changed(model, norm=norm)
    engine = engine_of(model, data, X)
    for run in range(3):
        fitted = changed(model, random_state=np.random.default_rng(run))
        with noise_of_runs(1 if k == 2 else k):
            fitted.fit_records(data)
        result = engine.scores(1, streams_of(np.random.default_rng(run)))[0]
        expected = fitted.logits(X)
        expected, close = expected[:, 1] if k == 2 else expected, off_by_rounding(fitted, X)
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=close)


@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_runs_of_output_perturbation_have_the_distribution_of_real_fits(delta):
    data, X = table(), individuals()
    model = OutputPerturbation(1.5, delta, norm=9.0, C=0.1)
    # Fresh secret noise of 400 fits against 4000 runs; a false alarm once in a million.
    fits = np.array([model.fit_records(data).decision_function(X) for _ in range(400)])
    runs = batch(engine_of(model, data, X), 4_000)
    center = engine_of(model, data, X)._scores(engine_of(model, data, X)._exact[None])[0]
    for one, many in zip(fits.T, runs.T, strict=True):
        assert stats.ks_2samp(one, many).pvalue > 1e-6 / len(center)
    spread = [np.mean((some - center) ** 2) ** 0.5 for some in (fits, runs)]
    assert 0.8 < spread[0] / spread[1] < 1.25


def test_classes_are_in_the_declared_order():
    data = replace(table(3), classes=("c", "a", "b"))
    engine = ObjectiveEngine(ObjectivePerturbation(2.0), data, individuals())
    assert engine.classes == ("c", "a", "b")
    fitted = ObjectivePerturbation(2.0, random_state=np.random.default_rng(4))
    with noise_of_runs(3):
        expected = fitted.fit_records(data).logits(individuals())
    result = engine.scores(1, streams_of(np.random.default_rng(4)))[0]
    close = off_by_rounding(fitted, individuals())
    np.testing.assert_allclose(result, expected[:, [2, 0, 1]], rtol=1e-6, atol=close)


def batch(engine, count, seed=SEED):
    """Scores of many runs, some at a time."""
    chunks = (range(at, min(at + 500, count)) for at in range(0, count, 500))
    return np.concatenate([result for _, result in engine.stream(chunks, seed)])


def recovered(model, data, engine, X, penalty):
    """The noise under which each run is the exact minimizer, from its scores alone."""
    weights = np.linalg.solve(np.c_[X, np.ones(len(X))], batch(engine, 3_000).T).T
    rows = clip_rows(data.X, 9.0, fit_intercept=True) * np.where(data.y == 1, 1, -1)[:, None]
    return expit(-(weights @ rows.T)) @ rows - penalty * weights


@pytest.mark.parametrize("rule", ["one-log", "diffprivlib-0.6.2"])
def test_the_noise_of_batched_runs_has_its_distribution(rule):
    data, d = table(d=9), 10
    model = ObjectivePerturbation(1.0, rule=rule)
    X = individuals(9, 10)
    engine = ObjectiveEngine(model, data, X)
    used = model.perturbation(9.0)
    penalty = model.penalties(used, d)
    noise = recovered(model, data, engine, X, penalty)

    def fits(vectors, scale):
        lengths = np.linalg.norm(vectors, axis=1)
        return stats.kstest(lengths, stats.gamma(d, scale=scale).cdf).pvalue

    assert fits(noise, used.noise_scale) > LEVEL
    assert fits(noise, 0.9 * used.noise_scale) < LEVEL
    free = np.where(np.arange(d) < d - 1, penalty, 0.0)
    assert fits(recovered(model, data, engine, X, free), used.noise_scale) < LEVEL
    # A direction is uniform if one coordinate, squared, is a beta variable.
    shares = noise[:, 0] ** 2 / np.sum(noise**2, axis=1)
    assert stats.kstest(shares, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > LEVEL
    order = stats.spearmanr(
        np.linalg.norm(noise[1:], axis=1), np.linalg.norm(noise[:-1], axis=1)
    )
    assert order.pvalue > LEVEL  # runs are searched for in another order, and put back


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("model", [MODELS[2], MODELS[4]], ids=repr)
def test_batched_runs_have_the_distribution_of_fits(model, k):
    data, X = table(k, d=20), individuals(20)
    engine = engine_of(model, data, X)
    fits = [engine.scores(1, SEED.streams(run))[0] for run in range(150)]
    alone = np.array(fits).reshape(150, -1)  # a run is a fit, see above
    runs_per_call = batch(engine, 1_500, Seed.from_random_state(1)).reshape(1_500, -1)
    assert same_distribution(alone, runs_per_call) > LEVEL
    assert same_distribution(0.8 * alone, runs_per_call) < LEVEL


def test_output_perturbation_matches_the_closed_form():
    data, X, runs = table(n=200), individuals(count=40), 8_000
    model = OutputPerturbation(3.0, 1e-3, C=0.05)
    engine = OutputEngine(model, data, X)
    decided = np.mean(batch(engine, runs) > 0, axis=0)
    result = 4 * runs / (runs - 1) * decided * (1 - decided)
    task = model.binary(data)
    exact = model.exact(task.rows, task.signs, task.norm)[0]
    std = model.noise(9.0).noise_std

    def worst(noise_std):
        mu = gaussian_disagreement(exact, np.c_[X, np.ones(len(X))], noise_std)
        # The variance of p(1-p) is (1-2p)^2 p(1-p)/m, and twice p^2(1-p)^2/m^2 more.
        p = mu / 4
        spread = 4 * np.sqrt((1 - 4 * p) * p / runs + 2 * p**2 / runs**2)
        return np.max(np.abs(result - mu) / spread)

    assert worst(std) < 4.5
    assert worst(0.9 * std) > 4.5


def test_large_problems_are_solved_one_by_one(monkeypatch):
    data, X = table(3), individuals()
    engine = ObjectiveEngine(MODELS[0], data, X)
    expected = engine.scores(5, SEED.streams(0))
    monkeypatch.setattr(perturbed.BatchedProblem, "fits", staticmethod(lambda _: False))
    slowly = ObjectiveEngine(MODELS[0], data, X)
    np.testing.assert_allclose(slowly.scores(5, SEED.streams(0)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "X", [np.zeros((3, 2)), np.zeros(3), np.zeros((0, 3)), [[np.nan, 1.0, 2.0]]]
)
def test_rows_that_cannot_be_scored_are_rejected(X):
    with pytest.raises(DataError, match="individuals"):
        OutputEngine(MODELS[4], table(), X)


def test_records_that_cannot_be_fitted_are_rejected():
    with pytest.raises(DataError, match="norm"):
        ObjectiveEngine(MODELS[0], replace(table(), norm=None), individuals())
    with pytest.raises(ValueError, match="epsilon"):
        ObjectiveEngine(ObjectivePerturbation(-1.0), table(), individuals())


def test_the_scores_of_runs_belong_to_the_caller():
    X = individuals()
    engine = OutputEngine(MODELS[4], table(), X)
    expected = engine.scores(2, SEED.streams(0))
    X[:] = 0
    assert np.array_equal(engine.scores(2, SEED.streams(0)), expected)
