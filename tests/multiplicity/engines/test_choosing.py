"""Each model gets the fastest engine that supports it unchanged, and engines agree."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from veracal.data import Dataset
from veracal.mechanisms import GlobalAdapt
from veracal.multiplicity import audit, engine_for
from veracal.multiplicity.engines import RetrainEngine, Seed
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    gaussian_disagreement,
)
from veracal.training.perturbation import clip_rows

RNG = np.random.default_rng(2)
ROWS = clip_rows(RNG.normal(size=(260, 3)) / 3, 1.0, fit_intercept=False)
LABELS = (ROWS @ [2.0, -1.0, 0.5] + 0.3 * RNG.normal(size=260) > 0).astype(int)
TRAIN = Dataset(ROWS[:200], LABELS[:200], ("no", "yes"), size=200, norm=1.001)
PEOPLE = Dataset(ROWS[200:], LABELS[200:], ("no", "yes"))


class Own(OutputPerturbation):
    """A subclass, which may do anything."""


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (OutputPerturbation(), "re-noise"),
        (ObjectivePerturbation(), "batched objective perturbation"),
        (PrivateLogisticRegression(delta=1e-3), "batched DP-SGD"),
        (PrivateLogisticRegression(delta=1e-3, clip=GlobalAdapt(1.0)), "retrain"),
        (Own(), "retrain"),
        (LogisticRegression(), "retrain"),
        (lambda run: np.zeros(60), "retrain"),
    ],
)
def test_each_model_gets_its_engine(model, name):
    assert engine_for(model, TRAIN, PEOPLE.X).name == name


@pytest.mark.parametrize(
    "model",
    [
        OutputPerturbation(50.0),
        ObjectivePerturbation(50.0),
        PrivateLogisticRegression(50.0, 1e-3),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("names", [("no", "yes"), ("yes", "no"), ("c", "a", "b")])
def test_scores_are_in_the_declared_order_of_classes(model, names):
    codes = (LABELS if len(names) == 2 else 2 * LABELS + (ROWS[:, 2] > 0) * (1 - LABELS))[:200]
    train = Dataset(ROWS[:200], codes, names, size=200, norm=1.001)
    for engine in (engine_for(model, train, ROWS), RetrainEngine(model, train, ROWS, jobs=1)):
        assert engine.classes == names
        scores = np.concatenate(
            [engine.scores(1, Seed.from_random_state(i).streams(0)) for i in range(5)]
        )
        mean = scores.mean(axis=0)
        decided = (mean > 0) if len(names) == 2 else mean.argmax(axis=1)
        assert (decided[:200] == codes).mean() > 0.75  # in another order, less than a half


@pytest.mark.parametrize(
    "model",
    [OutputPerturbation(), ObjectivePerturbation(), PrivateLogisticRegression(delta=1e-3)],
    ids=lambda model: type(model).__name__,
)
def test_another_order_of_classes_is_another_audit(model):
    """The same records, but scores of the other class: counts must not be mixed."""
    turned = Dataset(TRAIN.X, 1 - TRAIN.y, ("yes", "no"), size=200, norm=1.001)
    engines = (
        engine_for(model, TRAIN, PEOPLE.X),
        RetrainEngine(model, TRAIN, PEOPLE.X, jobs=1),
    )
    others = (
        engine_for(model, turned, PEOPLE.X),
        RetrainEngine(model, turned, PEOPLE.X, jobs=1),
    )
    for engine, other in zip(engines, others, strict=True):
        assert engine.settings() != other.settings()


def test_an_engine_is_returned_unchanged():
    engine = RetrainEngine(LogisticRegression(), TRAIN, PEOPLE.X, jobs=1)
    assert engine_for(engine, TRAIN, PEOPLE.X) is engine


@pytest.mark.parametrize(
    "model",
    [
        OutputPerturbation(2.0, delta=1e-3, C=0.3),
        ObjectivePerturbation(2.0, C=0.3),
        PrivateLogisticRegression(2.0, delta=1e-3, epochs=3),
    ],
    ids=lambda model: type(model).__name__,
)
def test_batched_and_single_runs_have_the_same_disagreement(model):
    fast = audit(model, TRAIN, PEOPLE, runs=2_000, level=0.999, random_state=1)
    engine = RetrainEngine(model, TRAIN, PEOPLE.X, jobs=1)
    slow = audit(engine, TRAIN, PEOPLE, runs=90, level=0.999, random_state=2)
    assert slow.mean.low <= fast.mean.high and fast.mean.low <= slow.mean.high
    assert (slow.individuals.low <= fast.individuals.high).all()
    assert (fast.individuals.low <= slow.individuals.high).all()
    halved = (
        np.minimum(fast.individuals.high, 1) / 2
    )  # what half the arbitrariness would look like
    assert (slow.individuals.low > halved).any()
    assert slow.classes == fast.classes == ("no", "yes")


def test_renoised_output_perturbation_matches_the_closed_form():
    model = OutputPerturbation(2.0, delta=1e-3, C=0.3)
    result = audit(model, TRAIN, PEOPLE, runs=4_000, level=0.999, random_state=3)
    fitted = OutputPerturbation(2.0, delta=1e-3, C=0.3, random_state=0).fit_records(TRAIN)
    engine = engine_for(model, TRAIN, PEOPLE.X)
    rows = np.column_stack([PEOPLE.X, np.ones(len(PEOPLE))])
    truth = gaussian_disagreement(engine._exact[0], rows, fitted.noise_std_)
    assert ((result.individuals.low <= truth) & (truth <= result.individuals.high)).all()
    wrong = gaussian_disagreement(engine._exact[0], rows, 0.8 * fitted.noise_std_)
    assert not ((result.individuals.low <= wrong) & (wrong <= result.individuals.high)).all()
