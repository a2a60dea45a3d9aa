"""The DP-SGD engine has the distribution of single fits."""

from contextlib import nullcontext
from functools import partial
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from tests.multiplicity.engines.contract import (
    LEVEL,
    check_alone_and_together,
    check_engine,
    same_distribution,
)
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.mechanisms import SGD, Adam, GlobalAdapt, Langevin
from veracal.multiplicity.engines import linear as descents
from veracal.multiplicity.engines.base import VARIED, Seed
from veracal.multiplicity.engines.linear import DPSGDEngine
from veracal.training import ObjectivePerturbation, PrivateLogisticRegression

usual = {"epsilon": None, "delta": 1e-4, "noise_multiplier": 0.8, "steps": 10, "optimizer": 2.0}
Regression = partial(PrivateLogisticRegression, **usual)
MODELS = [
    Regression(),
    Regression(clip=0.5, weight_decay=0.1, average=0.0, dtype="float32"),
    Regression(sampling_rate=0.6, fit_intercept=False, optimizer=Adam(0.1)),
    Regression(sampling_rate=1.0, noise_multiplier=None, optimizer=Langevin(1.0, 1e-3)),
]
VARIED_BATCHES = VARIED[1:]


def table(k=2, n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.clip(np.floor(X[:, 0] + rng.normal(size=n) + k / 2), 0, k - 1).astype(int)
    return Dataset(X, y, tuple(f"class {c}" for c in range(k)), size=n)


def individuals(d=3, count=12):
    return np.random.default_rng(9).normal(size=(count, d)) * 1.5


@pytest.fixture(autouse=True)
def _no_search_for_libraries():
    """A fit looks for them on disk, for longer than it takes here."""
    with mock.patch(
        "veracal.training.gradient_sums.threadpool_limits", return_value=nullcontext()
    ):
        yield


def engine_of(model, data=None, **more):
    return DPSGDEngine(model, table() if data is None else data, individuals(), **more)


def run(engine, count, varied="all", seed=0):
    """Scores of many runs, a row for each."""
    chunks = (range(at, min(at + 200, count)) for at in range(0, count, 200))
    result = [
        scores for _, scores in engine.stream(chunks, Seed.from_random_state(seed, varied))
    ]
    return np.concatenate(result).reshape(count, -1)


# ---------------------------------------------------------------- contract


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_contract(model, k):
    engine = engine_of(model, table(k))
    check_engine(engine, other=engine_of(model, table(k, seed=1)))
    for other in (
        engine_of(model, table(k, n=59)),
        engine_of(PrivateLogisticRegression(**{**model.get_params(), "delta": 1e-5}), table(k)),
        DPSGDEngine(model, table(k), individuals()[1:]),
    ):
        assert other.settings() != engine.settings()


def test_settings_include_initial_weights_and_exclude_random_state():
    reported = engine_of(Regression()).settings()
    assert engine_of(Regression(random_state=3)).settings() == reported
    assert engine_of(Regression(initial=(np.ones((1, 3)), np.ones(1)))).settings() != reported


@pytest.mark.parametrize("varied", VARIED)
def test_single_runs_have_the_distribution_of_batched_runs(varied, monkeypatch):
    monkeypatch.setattr(
        "tests.multiplicity.engines.contract.SEED", Seed.from_random_state(5, varied)
    )
    check_alone_and_together(engine_of(Regression()), 150, count=50)


@pytest.mark.parametrize("varied", VARIED)
def test_neither_threads_nor_calls_change_a_bit(varied):
    model, seed = Regression(sampling_rate=0.3), Seed.from_random_state(1, varied)
    scores = [engine_of(model, threads=n).scores(30, seed.streams(0)) for n in (1, 2, 3)]
    assert np.array_equal(scores[0], scores[1]) and np.array_equal(scores[0], scores[2])


# ---------------------------------------------------------------- distribution


def fits(model, data, count):
    """Logits of one fit after another."""
    return np.array([scored(one, individuals()) for one in fitted_models(model, data, count)])


def scored(fitted, X):
    """Its logits, faster than it would itself."""
    return (X @ fitted.coef_.T + fitted.intercept_).ravel()


def fitted_models(model, data, count):
    """One fit after another."""
    for number in range(count):
        settings = {**model.get_params(), "random_state": number}
        yield PrivateLogisticRegression(**settings).fit_records(data)


@pytest.mark.parametrize(("model", "k"), [(MODELS[0], 2), (MODELS[1], 3), (MODELS[2], 3)])
def test_runs_have_the_distribution_of_fits(model, k):
    data = table(k)
    assert same_distribution(fits(model, data, 120), run(engine_of(model, data), 1_200)) > LEVEL


def test_a_tenth_less_noise_is_detected():
    data, model = table(d=30), Regression(noise_multiplier=3.0)
    X = np.random.default_rng(1).normal(size=(100, 30))

    def sizes(noise):
        engine = DPSGDEngine(Regression(noise_multiplier=noise), data, X)
        return np.log((run(engine, 1_000) ** 2).mean(axis=1))

    single = [scored(fitted, X) for fitted in fitted_models(model, data, 200)]
    single = np.log((np.array(single) ** 2).mean(axis=1))
    assert stats.ks_2samp(single, sizes(3.0)).pvalue > LEVEL
    assert stats.ks_2samp(single, sizes(2.7)).pvalue < LEVEL


def test_batches_are_shared_only_if_noise_alone_varies():
    data, model = table(), Regression(noise_multiplier=0.05)
    single, engine = fits(model, data, 150), engine_of(model, data)
    for varied in VARIED_BATCHES:
        assert same_distribution(single, run(engine, 1_000, varied)) > LEVEL
    assert same_distribution(single, run(engine, 1_000, "noise")) < LEVEL


def test_what_is_not_varied_is_the_same_in_all_calls():
    """With next to no noise, runs differ by their batches alone."""
    engine = engine_of(Regression(noise_multiplier=1e-9))
    assert np.ptp(run(engine, 300, "noise"), axis=0).max() < 1e-6
    for varied in VARIED_BATCHES:
        result = run(engine, 300, varied)
        assert len(np.unique(result.round(6), axis=0)) == 300


def test_initial_weights_are_not_random():
    """ "all" is "noise and batches", bit for bit."""
    engine = engine_of(Regression())
    assert np.array_equal(run(engine, 20, "all"), run(engine, 20, "noise and batches"))


@pytest.mark.parametrize("varied", VARIED)
def test_runs_do_not_share_noise(varied):
    """Without anything to learn, weights are noise, and those of two runs are unrelated."""
    data = Dataset(np.zeros((40, 25)), np.arange(40) % 2, (0, 1), size=40)
    model = Regression(noise_multiplier=5.0, average=0.0, steps=3)
    engine = DPSGDEngine(model, data, np.eye(25))
    scores = run(engine, 400, varied)
    relations = np.corrcoef(scores) - np.eye(400)
    assert np.abs(relations).max() < 0.95 < np.abs(np.corrcoef(scores[[0, 0]])).min() + 1e-9
    assert abs(relations.mean()) < 5 / 400 / np.sqrt(25)


# ---------------------------------------------------------------- edges


def test_scores_are_the_logits_of_an_estimator_with_these_weights():
    for k, dtype in ((2, "float32"), (3, "float64")):
        model = Regression(dtype=dtype)
        engine, streams = engine_of(model, table(k)), Seed.from_random_state(2).streams
        weights = engine.weights(4, streams(0))
        for scores, one in zip(engine.scores(4, streams(0)), weights, strict=True):
            fitted = model.fit_records(table(k))
            fitted.coef_, fitted.intercept_ = one[:, :-1].copy(), one[:, -1].copy()
            np.testing.assert_allclose(
                scores, fitted.decision_function(individuals()), atol=1e-5
            )


def test_batches_fit_the_cache_and_cover_all_models(monkeypatch):
    engine = engine_of(Regression(noise_multiplier=1e-9))
    whole = engine.scores(7, Seed.from_random_state(0, "noise").streams(0))
    monkeypatch.setattr(descents, "_CACHE_BYTES", 1)
    np.testing.assert_allclose(
        engine.scores(7, Seed.from_random_state(0, "noise").streams(0)), whole, atol=1e-6
    )


def test_more_individuals_mean_fewer_runs_per_call(monkeypatch):
    monkeypatch.setattr(descents, "_MAX_SCORES", 36 * 5)
    assert engine_of(Regression(), table(3)).runs_per_call == 5
    monkeypatch.setattr(descents, "_MAX_SCORES", 1)
    assert engine_of(Regression(), table(3)).runs_per_call == 1


def test_a_diverging_run_is_an_error():
    engine = engine_of(Regression(optimizer=SGD(1e3), weight_decay=1e5, steps=60))
    with pytest.raises(ValueError, match="lower learning rate"):
        engine.scores(3, Seed.from_random_state(0).streams(0))


@pytest.mark.filterwarnings("error")
def test_extreme_rows_have_finite_scores():
    far = np.array([[1e300, 0, 0], [1.7e308, -1.7e308, 1.7e308]])
    engine = DPSGDEngine(Regression(dtype="float32"), table(3), far)
    assert np.isfinite(engine.scores(3, Seed.from_random_state(0).streams(0))).all()


@pytest.mark.parametrize("threads", [0, 1.5, "two"])
def test_invalid_threads_are_rejected(threads):
    with pytest.raises(ValueError, match="threads"):
        engine_of(Regression(), threads=threads)


def test_unsupported_models_name_the_retraining_engine():
    for model in (ObjectivePerturbation(1.0), Regression(clip=GlobalAdapt(1.0))):
        with pytest.raises(ValueError, match="RetrainEngine"):
            engine_of(model)


@pytest.mark.parametrize("X", [np.ones(3), np.ones((2, 4)), np.ones((0, 3)), [[np.nan] * 3]])
def test_rows_of_another_form_are_rejected(X):
    with pytest.raises(DataError, match="individuals"):
        DPSGDEngine(Regression(), table(), X)


def test_an_undeclared_size_is_rejected_as_by_a_fit():
    data = table()
    with pytest.raises(DataError, match="size"):
        engine_of(Regression(), Dataset(data.X, data.y, data.classes))
