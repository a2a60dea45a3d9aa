"""Every private classifier states its cost before a fit, and claims nothing beyond it."""

import copy
import json
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from veracal.accounting import Budget, NotPrivate, Statement, Unit, epsilon_for
from veracal.data import Dataset, load, score
from veracal.data.rows import MappedRows
from veracal.errors import BudgetError, DataError
from veracal.ledger import Item, open_ledger
from veracal.mechanisms import SGD, Flat, Langevin, Schedule
from veracal.queries import Curator
from veracal.training import (
    BoundedScaler,
    DeclaredOneHot,
    NormClipper,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    PrivateSearch,
    PrivateStandardizer,
    make_private_pipeline,
)
from veracal.training.dp_sgd import Unclipped

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (200, 3))
Y = np.where(X[:, 0] + 0.2 * RNG.standard_normal(200) > 0, "yes", "no")
QUICK = {"epsilon": 1.0, "sampling_rate": 0.2, "epochs": 5}


def model(**changes) -> PrivateLogisticRegression:
    settings = {**QUICK, "classes": ["no", "yes"], "size": 200}
    return PrivateLogisticRegression(**{**settings, **changes})


@pytest.fixture
def data() -> Dataset:
    return Dataset(X, (Y == "yes").astype(int), ("no", "yes"), size=200)


@pytest.fixture
def make_ledger(tmp_path):
    def make(subject, epsilon=1.0):
        plan = [Item("training", subject.event())]
        budget = Budget(epsilon, 1e-5, subject.event().relation)
        return open_ledger(tmp_path / "a.ledger", budget, kind="plan", plan=plan)

    return make


def test_a_fully_declared_fit_is_private_and_states_its_guarantee() -> None:
    fitted = model().fit(X, Y)
    assert fitted.private_ and fitted.not_private_because_ == ()
    assert fitted.event_ == model().event()
    instance = fitted.statement_
    assert isinstance(instance, Statement)
    assert 0.99 < instance.epsilon <= 1.0 and instance.delta == 1e-5
    assert instance.epsilon == epsilon_for(fitted.event_, 1e-5)
    assert "weights" in instance.covers[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"classes": None}, "classes were read from the labels"),
        ({"size": None}, "number of records was read"),
        ({"random_state": 3}, "random_state was set"),
        ({"random_state": np.random.default_rng()}, "random_state was set"),
        ({"not_private": "clipping only"}, "clipping only"),
        ({"not_private": "noise only"}, "noise only"),
        ({"not_private": "neither"}, "neither"),
    ],
)
def test_reasons_for_no_guarantee_appear_in_every_output(changes, reason) -> None:
    fitted = model(**changes).fit(X, Y)
    assert not fitted.private_
    instance = fitted.statement_
    assert isinstance(instance, NotPrivate) and instance.epsilon == np.inf
    assert len(instance.reasons) == 1 and reason in instance.reasons[0]
    assert "NOT differentially private" in instance.text() and reason in instance.text()
    assert json.loads(json.dumps(instance.to_json()))["private"] is False


def test_all_reasons_are_listed() -> None:
    fitted = model(classes=None, size=None, random_state=0).fit(X, Y)
    assert len(fitted.not_private_because_) == 3


def test_the_number_of_records_is_public_under_replace_one() -> None:
    assert model(size=None, relation="replace-one").fit(X, Y).private_
    with pytest.raises(ValueError, match="Expected size=200"):
        model(size=150, relation="replace-one").fit(X, Y)
    assert model(size=150).fit(X, Y).private_  # under add-remove it is never compared


def test_classes_may_be_declared_in_fit() -> None:
    fitted = model(classes=None).fit(X, Y, classes=["yes", "no", "perhaps"])
    assert fitted.private_
    assert fitted.classes_.tolist() == ["no", "perhaps", "yes"]
    assert fitted.coef_.shape == (3, 3)


def test_a_class_without_records_is_trained() -> None:
    fitted = model(classes=["no", "yes", "zebra"]).fit(X, Y)
    assert fitted.private_ and fitted.predict_proba(X).shape == (200, 3)
    only = model().fit(X, np.full(200, "no"))
    assert only.private_ and set(only.predict(X)) <= {"no", "yes"}


def test_an_undeclared_label_is_rejected() -> None:
    with pytest.raises(ValueError, match="zebra"):
        model().fit(X, np.append(Y[:-1], "zebra"))


def test_a_clone_has_the_same_cost_and_no_fit() -> None:
    first = model(clip=Flat(0.5), optimizer=SGD(0.3), unit=Unit("patient", 2))
    second = clone(first)
    assert second.event() == first.event()
    assert not hasattr(second, "event_")
    assert copy.deepcopy(first.fit(X, Y)).event_ == first.event_


def test_an_unfitted_model_makes_no_claim() -> None:
    for name in ("private_", "statement_"):
        with pytest.raises(NotFittedError):
            getattr(model(), name)


def test_the_curator_charges_the_event_and_fits(data, make_ledger) -> None:
    subject = model(classes=None, size=None)
    ledger = make_ledger(subject)
    fitted = Curator(data, ledger).fit(subject)
    assert fitted is subject and fitted.private_  # the data set declares classes and size
    assert [entry.purpose for entry in ledger.entries()] == ["training"]
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.score(X, Y) > 0.7
    with pytest.raises(BudgetError):
        Curator(data, ledger).fit(clone(subject))


def test_labels_keep_their_meaning_whatever_the_order_of_the_classes(data) -> None:
    turned = Dataset(X, (Y == "no").astype(int), ("yes", "no"), size=200)
    for records in (data, turned):
        fitted = model(classes=None, epsilon=50.0, epochs=40).fit_records(records)
        assert fitted.score(X, Y) > 0.9
        scores = score(fitted, records)
        assert scores.classes == records.classes
        assert (scores.values.argmax(axis=1) == records.y).mean() > 0.9


@pytest.mark.parametrize(
    ("records", "changes", "message"),
    [
        ({"size": None}, {"size": None}, "a declared number of records"),
        ({"classes": ("no", "maybe")}, {}, "the classes of the model"),
        ({"X": np.array([["a"], ["b"]] * 100)}, {}, "numbers of shape"),
        ({"X": np.zeros((200, 4, 4))}, {}, "numbers of shape"),
        ({}, {"initial": (np.zeros((1, 5)), np.zeros(1))}, "initial coefficients of shape"),
        ({}, {"initial": (np.full((1, 3), np.nan), np.zeros(1))}, "finite initial weights"),
        ({}, {"initial": (np.full((1, 3), 1e39), np.zeros(1))}, "finite initial weights"),
        ({}, {"relation": "replace-one", "size": 100}, "Expected size=200"),
        ({"size": 100_000}, {"size": None}, "delta below 1 / size"),
    ],
)
def test_wrong_shapes_are_rejected_before_a_charge(
    data, make_ledger, records, changes, message
) -> None:
    instance = {"X": X, "y": data.y, "classes": data.classes, "size": 200, **records}
    subject = model(**changes)
    ledger = make_ledger(subject)
    with pytest.raises(ValueError, match=message):
        Curator(Dataset(**instance), ledger).fit(subject)
    assert list(ledger.entries()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"steps": 0, "epochs": None},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.1},
        {"delta": 0.5},
        {"clip": -1.0},
        {"optimizer": 0.0},
        {"optimizer": "sgd"},
        {"weight_decay": -1.0},
        {"average": 2.0},
        {"dtype": "float16"},
        {"relation": "swap"},
        {"not_private": "nothing"},
        {"size": 0},
        {"random_state": -1},
        {"random_state": "abc"},
        {"random_state": np.random.RandomState(0)},
        {"fit_intercept": "yes"},
        {"fit_intercept": 2},
        {"on_step": 3},
        {"optimizer": SGD},
        {"unit": "patient"},
        {"clip": Unclipped(1.0)},
        {"weight_decay": 1e300},
        {"noise_multiplier": 0.0, "epsilon": None},
        {"optimizer": Langevin(0.1, temperature=1.0), "size": None, "epsilon": None},
    ],
)
def test_wrong_settings_are_rejected_before_a_charge(data, make_ledger, changes) -> None:
    ledger = make_ledger(model())
    subject = model(**changes)
    if "random_state" not in changes:
        with pytest.raises(ValueError, match="Expected"):
            subject.event()
    with pytest.raises(ValueError, match="Expected"):
        Curator(data, ledger).fit(subject)
    assert list(ledger.entries()) == []


def test_an_ablation_has_no_cost_to_charge(data, make_ledger) -> None:
    ledger = make_ledger(model())
    with pytest.raises(ValueError, match="not private"):
        Curator(data, ledger).fit(model(not_private="neither"))
    assert list(ledger.entries()) == []


@pytest.mark.parametrize("n", [0, 1, 57])
def test_a_charged_fit_works_for_any_number_of_records(n) -> None:
    few = Dataset(X[:n], (Y[:n] == "yes").astype(int), ("no", "yes"), size=200)
    fitted = model().fit_records(few)
    assert fitted.private_ and fitted.event_ == model().event()
    assert fitted.n_iter_ == 25


def test_a_matrix_on_disk_gives_the_same_fit_as_in_memory(tmp_path) -> None:
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    disk = np.load(tmp_path / "X.npy", mmap_mode="r")
    ends = [
        model(random_state=1).fit(rows, Y).coef_
        for rows in (X.astype(np.float32), disk, MappedRows.of(disk))
    ]
    assert np.array_equal(ends[0], ends[1]) and np.array_equal(ends[0], ends[2])
    fitted = model(random_state=1).fit(disk, Y)
    held = fitted.predict_proba(np.array(disk))
    assert np.array_equal(fitted.predict_proba(MappedRows.of(disk)), held)
    np.save(tmp_path / "narrow.npy", X[:, :2].astype(np.float32))
    with pytest.raises(ValueError, match="Expected 3 features"):
        fitted.predict(MappedRows.of(np.load(tmp_path / "narrow.npy", mmap_mode="r")))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fit_rejects_values_on_disk_that_are_not_finite(tmp_path, bad) -> None:
    broken = X.astype(np.float32)
    broken[150, 1] = bad
    np.save(tmp_path / "X.npy", broken)
    with pytest.raises(ValueError, match="NaN|infinity"):
        model().fit(np.load(tmp_path / "X.npy", mmap_mode="r"), Y)
    np.save(tmp_path / "Y.npy", X.astype(np.float32))
    with pytest.raises(ValueError, match="one label for each"):
        model().fit(np.load(tmp_path / "Y.npy", mmap_mode="r"), Y[:-1])


def test_scores_of_another_task_are_rejected(data) -> None:
    with pytest.raises(DataError, match="classes of the model"):
        score(model().fit(X, Y), load("breast-cancer"))


def test_an_interrupted_fit_discards_earlier_claims() -> None:
    def interrupt(subject, step):
        raise KeyboardInterrupt

    fitted = model().fit(X, Y)
    assert fitted.private_
    with pytest.raises(KeyboardInterrupt):
        fitted.set_params(on_step=interrupt).fit(X, Y)
    assert not fitted.private_ and fitted.event_ is None
    assert "did not finish" in fitted.statement_.text()


def test_an_unhashable_rule_has_a_cost() -> None:
    @dataclass
    class Mine:
        bound: float = 1.0

        def factors(self, norms):
            return Flat(self.bound).factors(norms)

    assert model(clip=Mine()).event() == model().event()


def test_a_hook_cannot_change_a_step() -> None:
    def meddle(subject, step):
        step.weights[...] = 1e9
        step.noisy_sum[...] = 1e9
        subject.set_params(noise_multiplier=100.0, epsilon=None)

    fitted = model(on_step=meddle).fit(X, Y)
    assert np.abs(fitted.coef_).max() < 1e3
    assert fitted.event_ == model().event()


def test_a_schedule_whose_noise_changes_is_rejected(data) -> None:
    class Moody(Schedule):
        calls = 0

        def at(self, step):
            Moody.calls += 1
            return 100.0 / Moody.calls

    with pytest.raises(ValueError, match="changed since its cost was stated"):
        model(epsilon=None, noise_multiplier=Moody()).fit_records(data)


@pytest.mark.parametrize(
    ("unit", "message"),
    [(None, "none, since the ledger protects one record"), (Unit("patient", 2), "at most 2")],
)
def test_units_with_more_rows_than_protected_are_rejected(unit, message) -> None:
    several = Dataset(
        X,
        (Y == "yes").astype(int),
        ("no", "yes"),
        units=np.repeat(np.arange(40), 5),
        max_contributions=5,
        size=200,
    )
    with pytest.raises(DataError, match=message):
        model(unit=unit).fit_records(several)
    assert model(unit=Unit("patient", 5)).fit_records(several).private_


def test_replace_one_rejects_data_with_dropped_records(data) -> None:
    with pytest.raises(DataError, match="rows were dropped"):
        model(relation="replace-one").fit_records(replace(data, may_drop=True))


def test_feature_names_of_an_earlier_fit_are_discarded(data) -> None:
    table = pl.DataFrame(X, schema=["a", "b", "c"])
    fitted = model().fit(table, Y)
    assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    assert not hasattr(fitted.fit_records(data), "feature_names_in_")


@pytest.mark.parametrize(
    "estimator",
    [
        PrivateLogisticRegression(),
        ObjectivePerturbation(),
        OutputPerturbation(),
        NormClipper(),
        BoundedScaler(),
        DeclaredOneHot(),
        PrivateStandardizer(),
        PrivateSearch(PrivateLogisticRegression(), [{"clip": 1.0}]),
        make_private_pipeline(NormClipper(), PrivateLogisticRegression()),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_notebooks_show_estimators_without_a_warning(estimator) -> None:
    assert type(estimator).__name__ in estimator._repr_html_()
