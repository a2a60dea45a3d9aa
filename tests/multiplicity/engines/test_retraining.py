"""Retraining: the scores are the model's own, and a run is known by its number."""

import json
from functools import partial

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import RidgeClassifier, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from tests.multiplicity.engines.contract import check_engine
from veracal.calibration import PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.errors import DataError, RunError
from veracal.multiplicity.engines.base import VARIED, Seed, describe
from veracal.multiplicity.engines.retraining import RetrainEngine, RunContext, validate_scores
from veracal.training import (
    BoundedScaler,
    ObjectivePerturbation,
    PrivateLogisticRegression,
    make_private_pipeline,
)

SEED = Seed.from_random_state(3)
TREE = DecisionTreeClassifier(splitter="random", max_features=1, min_samples_leaf=5)
SHORT = {"epsilon": None, "noise_multiplier": 1.0, "steps": 5}
DESCENT = PrivateLogisticRegression(**SHORT)


def make_dataset(k=2, n=60, seed=0, **declared):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3)) / 2
    y = rng.integers(k, size=n)
    X[:, 0] += y / k / 4
    names = ("z", "b", "m", "a")[:k]  # in no order of the alphabet
    return Dataset(X, y, names, **{"size": n, "norm": 2.0, **declared})


def engine(model, train=None, X=None, **settings):
    train = make_dataset() if train is None else train
    return RetrainEngine(model, train, train.X[:7] if X is None else X, jobs=1, **settings)


def one(result, run=0):
    """Scores of one run."""
    return result.scores(1, SEED.streams(run))[0]


# ---------------------------------------------------------------- the contract


def draw_noise(run):
    return run.streams.noise.random(len(run.individuals))


@pytest.mark.parametrize(
    ("model", "k"),
    [
        (TREE, 3),
        (SGDClassifier(max_iter=3, tol=None), 3),
        (make_pipeline(StandardScaler(), TREE), 2),
        (DESCENT, 2),
        (DESCENT, 3),
        (make_private_pipeline(BoundedScaler(bounds=(-1, 1)), DESCENT), 2),
        (PrivateCalibratedClassifier(DESCENT), 2),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else type(value).__name__,
)
def test_any_classifier_keeps_the_contract(model, k):
    check_engine(engine(model, make_dataset(k)), other=engine(model, make_dataset(k, seed=1)))


def test_a_function_keeps_the_contract():
    check_engine(engine(draw_noise), other=engine(draw_noise, version="2"))


def test_a_deterministic_model_scores_alike_in_every_run():
    steady = engine(RidgeClassifier())
    assert np.array_equal(one(steady, 0), one(steady, 1))


# ---------------------------------------------------------------- scores of a run


def test_a_run_fits_a_clone_with_its_own_seeds():
    train = make_dataset()
    rng = SEED.streams(4).noise
    model = PrivateCalibratedClassifier(DESCENT)
    slowly = clone(model)
    slowly.estimator.random_state = int(rng.integers(2**31))
    slowly.random_state = int(rng.integers(2**31))
    fitted = slowly.fit_records(train)
    place = fitted.classes_.tolist().index("b")  # the second one that was declared
    expected = fitted.predict_proba(train.X[:7])[:, place]

    assert np.array_equal(one(engine(model, train), 4), expected)
    assert not np.array_equal(one(engine(model, train), 5), expected)
    assert model.random_state is None and DESCENT.random_state is None


def test_declared_facts_reach_our_estimators():
    seen = []

    class Watched(PrivateLogisticRegression):
        def fit_records(self, dataset):
            seen.append(dataset)
            return super().fit_records(dataset)

    train = make_dataset(size=61)
    one(engine(Watched(**SHORT), train))
    assert seen == [train] and seen[0].size == 61 and seen[0].norm == 2.0


def test_our_logits_equal_the_decision_function():
    train = make_dataset()
    seed = int(SEED.streams(0).noise.integers(2**31))
    model = ObjectivePerturbation(epsilon=2.0)
    fitted = clone(model).set_params(random_state=seed).fit_records(train)
    result = engine(model, train)
    assert result.kind == "logit"
    assert fitted.classes_.tolist() == ["b", "z"]  # sorted: the data set has z first
    assert np.array_equal(one(result), -fitted.decision_function(train.X[:7]))
    ordered = Dataset(train.X, 1 - train.y, ("b", "z"), size=60, norm=2.0)
    assert np.array_equal(one(engine(model, ordered)), -one(result))
    assert not fitted.private_  # the seed determines the noise


def test_columns_follow_the_declared_order():
    train = make_dataset(4, n=400)
    forest = RandomForestClassifier(5, random_state=0)
    result = engine(forest, train)
    seed = int(SEED.streams(0).noise.integers(2**31))
    labels = np.array(train.classes)[train.y]
    fitted = clone(forest).set_params(random_state=seed).fit(train.X, labels)
    expected = np.stack(
        [
            fitted.predict_proba(train.X[:7])[:, list(fitted.classes_).index(name)]
            for name in ("z", "b", "m", "a")
        ],
        axis=1,
    )
    assert tuple(fitted.classes_) != train.classes
    np.testing.assert_allclose(one(result), expected, atol=1e-15)


@pytest.mark.parametrize("seen", [[0, 2], [0, 2, 3]])
@pytest.mark.parametrize("model", [TREE, RidgeClassifier()], ids=["probability", "logit"])
def test_an_absent_class_is_never_predicted(model, seen):
    whole = make_dataset(4, n=200)
    kept = np.isin(whole.y, seen)
    train = Dataset(whole.X[kept], whole.y[kept], whole.classes)
    result = engine(model, train, whole.X[:30])
    scores = one(result)
    labels = clone(model).fit(train.X, np.array(train.classes)[train.y]).predict(whole.X[:30])
    assert set(scores.argmax(axis=1)) <= set(seen)
    if result.kind == "logit":
        assert [train.classes[best] for best in scores.argmax(axis=1)] == labels.tolist()
    else:
        unseen = sorted({0, 1, 2, 3} - set(seen))
        assert np.array_equal(scores[:, unseen], np.zeros((30, len(unseen))))


class Decides(ClassifierMixin, BaseEstimator):
    """Nothing but decisions."""

    def fit(self, X, y):
        self.first_ = y[0]
        return self

    def predict(self, X):
        return np.array([self.first_, "m"])[(X[:, 0] > 0).astype(int)]


def test_decisions_alone_are_probabilities_of_0_and_1():
    train = make_dataset(3)
    result = engine(Decides(), train)
    expected = np.zeros((7, 3))
    for individual, row in enumerate(train.X[:7]):
        expected[individual, 2 if row[0] > 0 else train.y[0]] = 1
    assert result.kind == "probability" and np.array_equal(one(result), expected)


def test_pairwise_columns_are_not_classes():
    train = make_dataset(3)
    pairs = SVC(decision_function_shape="ovo")  # three pairs of three classes
    result = engine(pairs, train)
    labels = np.array(train.classes)[train.y]
    decided = clone(pairs).fit(train.X, labels).predict(train.X[:7])
    assert result.kind == "probability"
    assert [train.classes[best] for best in one(result).argmax(axis=1)] == decided.tolist()


def test_the_kind_can_be_chosen():
    logits, chances = engine(DESCENT), engine(DESCENT, kind="probability")
    np.testing.assert_allclose(one(chances), 1 / (1 + np.exp(-one(logits))), rtol=1e-12)


# ---------------------------------------------------------------- functions


def test_a_function_may_return_a_fitted_model():
    def fitted(run):
        seeded = clone(DESCENT).set_params(random_state=run.seed("noise"))
        return seeded.fit_records(run.records)

    train = make_dataset()
    seed = RunContext(0, SEED.streams(0), None, None).seed("noise")
    slowly = clone(DESCENT).set_params(random_state=seed).fit_records(train)
    expected = -slowly.decision_function(train.X[:7])  # of b, the first in the alphabet
    assert np.array_equal(one(engine(fitted, train, kind="logit")), expected)


@pytest.mark.parametrize("varied", VARIED)
def test_seeds_differ_between_runs_only_as_varied(varied):
    seed = Seed.from_random_state(3, varied)
    seeds = {
        purpose: {RunContext(n, seed.streams(n), None, None).seed(purpose) for n in range(5)}
        for purpose in ("initial", "batches", "noise")
    }
    reported = {purpose: len(result) for purpose, result in seeds.items()}
    expected = dict(zip(("noise", "noise and batches", "all"), (1, 2, 3), strict=True))[varied]
    assert sorted(reported.values()) == [1] * (3 - expected) + [5] * expected
    assert reported["noise"] == 5
    assert len(set.union(*seeds.values())) == sum(reported.values())


def test_a_seed_is_repeatable():
    run = RunContext(0, SEED.streams(0), None, None)
    first = run.seed("noise")
    run.streams.noise.random(3)
    run.streams.noise.spawn(2)
    assert run.seed("noise") == first
    with pytest.raises(ValueError, match="one of 'initial', 'batches', 'noise'"):
        run.seed("luck")


@pytest.mark.parametrize("varied", ["noise", "noise and batches"])
def test_a_classifier_only_supports_varying_all(varied):
    seed = Seed.from_random_state(3, varied)
    assert len(list(engine(draw_noise).stream([range(1)], seed))) == 1
    with pytest.raises(ValueError, match="Expected varied='all' for .*DecisionTree"):
        list(engine(TREE).stream([range(1)], seed))
    with pytest.raises(ValueError, match="Expected varied='all' for .*DecisionTree"):
        engine(TREE).scores(1, seed.streams(0))


# ---------------------------------------------------------------- a stream


def test_a_stream_yields_one_run_at_a_time():
    result = list(engine(TREE).stream(iter([range(2, 5), range(9, 10)]), SEED))
    assert [runs for runs, _ in result] == [range(n, n + 1) for n in (2, 3, 4, 9)]
    for runs, scores in result:
        assert np.array_equal(scores, engine(TREE).scores(1, SEED.streams(runs.start)))


# ---------------------------------------------------------------- settings


def test_settings_distinguish_models():
    base = engine(make_pipeline(StandardScaler(), SGDClassifier())).settings()
    same = engine(make_pipeline(StandardScaler(), SGDClassifier(random_state=5))).settings()
    assert base == same and json.loads(json.dumps(base, allow_nan=False)) == base
    train = make_dataset()
    for other in (
        engine(make_pipeline(StandardScaler(), SGDClassifier(alpha=0.1))),
        engine(make_pipeline(StandardScaler(with_std=False), SGDClassifier())),
        engine(SGDClassifier()),
        engine(make_pipeline(StandardScaler(), SGDClassifier()), make_dataset(size=61)),
        engine(make_pipeline(StandardScaler(), SGDClassifier()), X=train.X[1:8]),
        engine(make_pipeline(StandardScaler(), SGDClassifier()), version="2"),
    ):
        assert other.settings() != base


def test_settings_name_functions_and_survive_json():
    model = partial(draw_noise)
    told_of = engine(model).settings()["model"]
    assert told_of["function"].endswith("test_retraining.draw_noise")
    values = [np.float32(2), np.arange(3), {1: float("nan")}, {2, 1}, object(), len, 1e400]
    assert json.loads(json.dumps(describe(values), allow_nan=False)) == describe(values)
    assert describe(object()) == describe(object())  # no address of memory
    assert describe(np.arange(3)) != describe(np.arange(4))


# ---------------------------------------------------------------- bad input


class Fails(Decides):
    def fit(self, X, y):
        raise self.raised

    raised = ZeroDivisionError("division by zero")


class Exits(Fails):
    raised = SystemExit(3)


@pytest.mark.parametrize(
    ("model", "cause"),
    [(Fails(), "ZeroDivisionError: division by zero"), (Exits(), "SystemExit: 3")],
)
def test_a_run_that_fails_is_named_with_its_cause(model, cause):
    with pytest.raises(
        RunError, match=f"Run 4 could not be trained: {cause}. With keep"
    ) as caught:
        list(engine(model).stream([range(4, 5)], SEED))
    assert caught.value.run == 4 and caught.value.__cause__ is model.raised
    with pytest.raises(RunError, match="A run could not be trained"):
        one(engine(model))


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        (
            [0.1, 0.2, np.nan],
            "run 4: expected scores that are numbers, found NaN for individual 2",
        ),
        ([0.1, 0.2], r"run 4: expected shape \(3, 2\) or \(3,\), found shape \(2,\)"),
        ([0.1, 0.2, 1.1], "run 4: expected probabilities between 0 and 1"),
        ([[0.1, 0.2]] * 3, "run 4: expected probabilities .* sums from 0.3 to 0.3"),
        ("text", "run 4: expected an array of scores, found str"),
        (None, "run 4: expected "),
    ],
)
def test_invalid_scores_name_the_run(scores, complaint):
    train = make_dataset()
    with pytest.raises(DataError, match=complaint):
        list(engine(lambda run: scores, train, train.X[:3]).stream([range(4, 5)], SEED))


def test_scores_become_finite_and_sum_to_1():
    endless = np.array([[-np.inf, np.inf], [0.0, -np.inf], [1.0, 3.0]])
    result = validate_scores(endless, 3, 2, "logit", "a run")
    assert np.isfinite(result).all() and result[0] > 1e300 and result[1] < -1e300
    assert result[2] == 2.0
    rounded = np.full((3, 3), 1 / 3, dtype=np.float32)
    assert (
        np.abs(validate_scores(rounded, 3, 3, "probability", "a run").sum(axis=1) - 1).max()
        < 1e-15
    )


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"jobs": 0}, "integer jobs >= 1, got jobs=0"),
        ({"jobs": -1}, "integer jobs >= 1"),
        ({"threads": 0}, "integer threads >= 1"),
        ({"backend": "spark"}, "backend to be one of 'loky', 'ray', 'dask'"),
        ({"kind": "odds"}, "kind to be one of 'logit', 'probability'"),
        ({"address": "tcp://127.0.0.1:1"}, "backend='ray' or 'dask' with an address"),
    ],
)
def test_settings_are_checked(settings, complaint):
    train = make_dataset()
    with pytest.raises(ValueError, match=complaint):
        RetrainEngine(TREE, train, train.X, **settings)


@pytest.mark.parametrize(
    "model", [3, DecisionTreeClassifier, object()], ids=["number", "class", "object"]
)
def test_unsupported_models_are_rejected(model):
    with pytest.raises(ValueError, match="Expected a classifier with fit and get_params"):
        engine(model)


def test_a_regressor_is_rejected():
    with pytest.raises(ValueError, match="Expected a classifier with logits or predict_proba"):
        engine(StandardScaler())


def test_only_one_run_per_call():
    with pytest.raises(ValueError, match="one at a time, got count=2"):
        engine(TREE).scores(2, SEED.streams(0))


def test_records_of_one_class_are_rejected():
    whole = make_dataset()
    only = Dataset(whole.X[whole.y == 1], whole.y[whole.y == 1], whole.classes)
    with pytest.raises(DataError, match="at least two classes, found only 'b'"):
        engine(TREE, only)


def test_rows_need_the_features_of_the_records():
    train = make_dataset()
    with pytest.raises(DataError, match=r"rows of shape \(3,\).* found shape \(60, 2\)"):
        engine(TREE, train, train.X[:, :2])
    with pytest.raises(DataError, match=r"found shape \(0, 3\)"):
        engine(TREE, train, train.X[:0])
    with pytest.raises(DataError, match="finite numbers, found nan in record 1"):
        engine(TREE, train, np.full((1, 3), np.nan))
