"""Statements of fitted models say what was not charged and what they do not cover."""

import copy
import pickle

import numpy as np
import pytest
from torch import nn

from tests.neural.huggingface.tiny import bert, trainer
from veracal.accounting import Budget, Pure, Unit
from veracal.accounting.statement_text import UNCHARGED
from veracal.artifact import PrivateClassifier
from veracal.calibration import PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.ledger import Item, open_ledger
from veracal.neural import PrivateNetwork, train
from veracal.queries import Curator
from veracal.training import (
    NormClipper,
    ObjectivePerturbation,
    PrivateLogisticRegression,
    PrivateSearch,
    PrivateStandardizer,
    make_private_pipeline,
)
from veracal.training.base import PUBLIC_WEIGHTS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
DATA = Dataset(X, Y, (0, 1), size=50, name="patients")
SAID = "not charged to a ledger; other fits of these records are not counted"


def linear(**more):
    return PrivateLogisticRegression(**{"steps": 2, "size": 50, **more})


def network(module=None, **more):
    values = {"steps": 2, "size": 50, "gradients": "ghost", **more}
    return PrivateNetwork(nn.Linear(3, 2) if module is None else module, **values)


def standardizer():
    return PrivateStandardizer(bounds=(-1, 1), noise_multiplier=12.0, size=50)


MODELS = {
    "logistic": linear,
    "objective": lambda: ObjectivePerturbation(norm=2.0, size=50),
    "network": network,
    "standardizer": standardizer,
    "pipeline": lambda: make_private_pipeline(standardizer(), NormClipper(norm=6.0), linear()),
    "search": lambda: PrivateSearch(
        linear(sampling_rate=1.0), [{"clip": 1.0}], mean=1.5, holdout=0.2, size=50
    ),
    "calibrated": lambda: PrivateCalibratedClassifier(
        linear(), epsilon=8.0, delta=1e-4, size=50
    ),
}


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "ledger", Budget(1e3, 1e-2), kind="open")


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_without_a_ledger_says_so_as_text_and_json(name, ledger):
    assert UNCHARGED == SAID
    model = MODELS[name]().fit_records(DATA)
    assert model.private_
    assert f"\n  - {SAID}\n" in model.statement_.text()
    assert SAID in model.statement_.to_json()["not_covered"]
    # Fitted again with a ledger, the same model does not say so; without a ledger it does.
    paid = Curator(DATA, ledger).fit(model).statement_
    assert SAID not in paid.text()
    assert SAID not in paid.to_json()["not_covered"]
    assert SAID in model.fit_records(DATA).statement_.text()


def test_a_fit_stored_in_the_ledger_is_charged(ledger):
    kept = []  # a copy, which is fitted instead of the caller's model
    Curator(DATA, ledger).fit_once(
        linear(), lambda fitted: kept.append(fitted) or b"", request="one", body=b""
    )
    assert SAID not in kept[0].statement_.text()


@pytest.mark.parametrize("form", ["arrays", "Dataset", "Curator"])
def test_train_says_whether_it_was_charged(form, ledger):
    data = {"arrays": (X, Y), "Dataset": DATA, "Curator": Curator(DATA, ledger)}[form]
    values = {"noise": 3.0, "steps": 2, "classes": [0, 1], "size": 50}
    pays = {} if form == "Curator" else {"ledger": ledger}
    assert SAID not in train(nn.Linear(3, 2), data, **values, **pays).statement.text()
    if pays:
        assert SAID in train(nn.Linear(3, 2), data, **values).statement.text()


def test_a_failed_fit_leaves_no_charge_to_the_next(ledger):
    def stop(model, step):
        raise KeyError

    model = linear(on_step=stop)
    with pytest.raises(KeyError):
        Curator(DATA, ledger).fit(model)
    assert SAID in model.set_params(on_step=None).fit_records(DATA).statement_.text()


def test_the_trainer_says_whether_it_was_charged(tmp_path, ledger):
    values = {"noise_multiplier": 4.0}
    charged, free = (trainer(tmp_path, privacy=values, ledger=one) for one in (ledger, None))
    charged.train()
    free.train()
    assert SAID not in charged.statement_.text()
    assert SAID in free.statement_.text()
    assert PUBLIC_WEIGHTS in charged.statement_.not_covered


# ---------------------------------------------------------------- first weights


def named(model):
    return [one for one in model.statement_.not_covered if "began with" in one]


def test_initial_weights_are_public_unless_trained_in_this_process():
    assert named(linear().fit_records(DATA)) == []
    start = (np.zeros((1, 3)), np.zeros(1))
    assert named(linear(initial=start).fit_records(DATA)) == [PUBLIC_WEIGHTS]
    assert named(network().fit_records(DATA)) == [PUBLIC_WEIGHTS]


def test_weights_of_an_earlier_fit_are_named(tmp_path):
    first = linear().fit_records(DATA)
    again = linear(initial=(first.coef_, first.intercept_)).fit_records(DATA)
    (values,) = named(again)
    assert "an earlier fit on 'patients' trained them" in values
    assert "adds to this one where the records are the same" in values
    assert values in again.statement_.to_json()["not_covered"]

    before = network().fit_records(DATA)
    for module in (before.module_, copy.deepcopy(before.module_)):
        assert "'patients'" in named(network(module).fit_records(DATA))[0]
    loaded = nn.Linear(3, 2)
    loaded.load_state_dict(before.module_.state_dict())
    assert "'patients'" in named(network(loaded).fit_records(DATA))[0]
    assert "'patients'" in named(network(lambda: loaded).fit_records(DATA))[0]
    inside = make_private_pipeline(standardizer(), network(loaded)).fit_records(DATA)
    assert "'patients'" in named(inside)[0]


def test_frozen_weights_of_an_earlier_fit_are_named_too():
    before = network(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))).fit_records(DATA)
    frozen = copy.deepcopy(before.module_[0]).requires_grad_(False)
    (values,) = named(network(nn.Sequential(frozen, nn.Linear(4, 2))).fit_records(DATA))
    assert "an earlier fit on 'patients'" in values


def test_a_model_that_another_trainer_has_trained_is_named(tmp_path):
    model = bert()
    trainer(tmp_path, model).train()
    second = trainer(tmp_path, model)
    second.train()
    assert "an earlier fit on 'train_dataset'" in named(second)[0]


def test_a_unit_other_than_a_record_needs_ids():
    with pytest.raises(ValueError, match="the patient of each row, found no ids"):
        linear(unit=Unit("patient", 2)).fit_records(DATA)


# ---------------------------------------------------------------- the ledger's total

RAISED = "costs at most epsilon = 1001, delta = 0.01 (cap raised after releases)."


@pytest.fixture
def raised(ledger):
    ledger.charge(Pure(1.0), "an earlier release")
    ledger.extend(epsilon=1.0)
    return ledger


@pytest.mark.parametrize("name", MODELS)
def test_every_fit_after_a_raised_budget_says_so(name, raised):
    model = MODELS[name]()
    assert model.fit_records(DATA).statement_.ledger_total is None
    Curator(DATA, raised).fit(model)
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert RAISED in one.statement_.text()
        assert RAISED in one.statement_.summary()
        assert one.statement_.to_json()["ledger_total"].endswith(RAISED)
    assert model.fit_records(DATA).statement_.ledger_total is None


def test_a_stored_fit_states_the_total(raised):
    kept = []
    Curator(DATA, raised).fit_once(
        linear(), lambda fitted: kept.append(fitted) or b"", request="one", body=b""
    )
    assert RAISED in kept[0].statement_.text()


@pytest.mark.parametrize("form", ["arrays", "Dataset", "Curator"])
def test_train_names_the_total(form, raised):
    data = {"arrays": (X, Y), "Dataset": DATA, "Curator": Curator(DATA, raised)}[form]
    values = {"noise": 3.0, "steps": 2, "classes": [0, 1], "size": 50}
    pays = {} if form == "Curator" else {"ledger": raised}
    assert RAISED in train(nn.Linear(3, 2), data, **values, **pays).statement.text()


def test_the_trainer_names_the_total(tmp_path, raised):
    model = trainer(tmp_path, privacy={"noise_multiplier": 4.0}, ledger=raised)
    model.train()
    assert RAISED in model.statement_.text()


def test_an_artifact_keeps_the_total(raised):
    model = PrivateClassifier.of(Curator(DATA, raised).fit(linear()))
    assert RAISED in model.manifest.guarantee.text()
    assert model.manifest.guarantee.ledger_total.endswith(RAISED)


def test_the_total_of_a_plan_is_that_of_its_list(tmp_path):
    item = Item("training", linear().event())
    ledger = open_ledger(tmp_path / "plan", Budget(1e3, 1e-2), kind="plan", plan=[item])
    said = Curator(DATA, ledger).fit(linear(), purpose="training").statement_.ledger_total
    assert said == (
        "The whole plan of the ledger of these records, including this release, costs at most "
        "epsilon = 1000, delta = 0.01."
    )
