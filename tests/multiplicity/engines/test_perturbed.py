"""Engines of perturbed models have the law of one fit after another."""

import numpy as np
import pytest

from tests.multiplicity.engines.contract import (
    LEVEL,
    check_engine,
    same_law,
)
from veracal.data import Dataset
from veracal.multiplicity.engines.perturbed import ObjectiveEngine, OutputEngine
from veracal.multiplicity.engines.streams import Seed
from veracal.training.perturbation import ObjectivePerturbation, OutputPerturbation

RULES = ["one-log", "cms11", "diffprivlib-0.6.2"]
SEED = Seed.of(0)


def table(k=2, n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.clip(np.floor(X[:, 0] + rng.normal(size=n) + k / 2), 0, k - 1).astype(int)
    return Dataset(X, y, tuple(f"class {c}" for c in range(k)), norm=4.0, size=n)


def people(d=3, count=12):
    return np.random.default_rng(9).normal(size=(count, d)) * 1.5


def engine_of(model, data, X):
    made = ObjectiveEngine if isinstance(model, ObjectivePerturbation) else OutputEngine
    return made(model, data, X)


MODELS = [
    *[ObjectivePerturbation(1.5, rule=rule) for rule in RULES],
    ObjectivePerturbation(4.0, fit_intercept=False, relation="replace-one"),
    OutputPerturbation(1.5),
    OutputPerturbation(1.5, 1e-3, C=0.1, fit_intercept=False),
]


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_the_contract(model, k):
    data, X = table(k), people()
    for other in (table(k, seed=1), table(k, n=59)):
        check_engine(engine_of(model, data, X), other=engine_of(model, other, X))
    check_engine(engine_of(model, data, X), other=engine_of(model, data, X[1:]))
    louder = type(model)(**{**model.get_params(), "epsilon": 0.7})
    check_engine(engine_of(model, data, X), other=engine_of(louder, data, X))


def runs_of(engine, count, seed=SEED):
    chunks = (range(at, min(at + 100, count)) for at in range(0, count, 100))
    scores = [found for _, found in engine.stream(chunks, seed)]
    return np.concatenate(scores).reshape(count, -1)


def fits(model, data, X, count):
    """One fit after another, and its own logits."""
    found = []
    for run in range(count):
        fitted = type(model)(**{**model.get_params(), "random_state": run}).fit_records(data)
        logits = fitted.logits(X)
        found.append(logits[:, 1] if logits.shape[1] == 2 else logits.ravel())
    return np.array(found)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_runs_have_the_law_of_fits(model, k):
    data, X = table(k), people()
    single = fits(model, data, X, 100)
    assert same_law(runs_of(engine_of(model, data, X), 1000), single) > LEVEL
