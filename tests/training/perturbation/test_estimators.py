"""Guarantees of both perturbed classifiers, and scikit-learn's contract."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator

from veracal.accounting import Budget, Pure, Unit
from veracal.data import Dataset
from veracal.errors import BudgetError, DataError
from veracal.ledger import open_ledger
from veracal.queries import Curator
from veracal.training import ObjectivePerturbation, OutputPerturbation

BOTH = [ObjectivePerturbation, OutputPerturbation]
MODELS = [
    ObjectivePerturbation(),
    ObjectivePerturbation(rule="cms11", relation="replace-one"),
    ObjectivePerturbation(rule="diffprivlib-0.6.2", fit_intercept=False),
    ObjectivePerturbation(3.0, norm=2.0, unit=Unit("patient", 2), random_state=0),
    # A small C has little noise: with very large weights, two classes may have a probability of
    # 1 in float64, and probabilities do not determine the prediction.
    OutputPerturbation(C=0.01),
    OutputPerturbation(2.0, 1e-5, fit_intercept=False),
    OutputPerturbation(delta=1e-5, relation="replace-one", norm=1.0, C=0.01),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_scikit_learns_checks_pass(model):
    assert issubclass(SkipTestWarning, Warning)
    check_estimator(model)


@pytest.fixture
def table(rng):
    X = rng.normal(size=(60, 3))
    return X, np.where(X[:, 0] > 0, "yes", "no")


def dataset(X, y, **declared):
    declared = {"size": 60, "norm": 10.0, **declared}
    return Dataset.from_labels(X, y, ["yes", "no"], **declared)


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_declared_fit_is_private_and_learns(make, relation, table):
    X, y = table
    model = make(200.0, norm=4.0, C=1.0, classes=["yes", "no"], size=60, relation=relation)
    model.fit(X, y)
    assert model.private_ and model.event_ == model.event() == Pure(200.0, relation)
    assert model.score(X, y) > 0.85
    assert model.classes_.tolist() == ["no", "yes"]


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ("norm", "norm"),
        ("classes", "classes"),
        ("random_state", "reproduced"),
    ],
)
def test_an_undeclared_fit_is_not_private(make, left_out, reason, table):
    declared = dict(norm=4.0, classes=["yes", "no"], size=60, random_state=None)
    declared[left_out] = 0 if left_out == "random_state" else None
    model = make(**declared).fit(*table)
    assert not model.private_
    (result,) = model.not_private_because_
    assert reason in result and result in model.statement_.text()


@pytest.mark.parametrize("make", BOTH)
def test_the_norm_of_the_data_set_is_the_default(make, table):
    X, y = table
    assert make().fit_records(dataset(X, y)).norm_ == 10.0
    model = make(norm=1.5).fit_records(dataset(X, y))
    assert model.norm_ == 1.5 and model.private_
    assert make(norm=1.5).fit_records(dataset(X, y, norm=None)).private_
    with pytest.raises(DataError, match="norm"):
        make().check_records(dataset(X, y, norm=None))


@pytest.mark.parametrize("make", BOTH)
def test_long_rows_are_clipped_and_not_counted(make, table):
    X, y = table
    longer = X.copy()
    longer[::2] *= 1e6
    clipped = X.copy()
    clipped[::2] /= np.linalg.norm(X[::2], axis=1, keepdims=True)
    clipped[1::2] *= np.minimum(1, 1 / np.linalg.norm(X[1::2], axis=1))[:, None]
    models = [
        make(norm=1.0, random_state=3, classes=["yes", "no"], size=60).fit(rows, y)
        for rows in (longer, clipped)
    ]
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-6)
    assert "clip" not in str(vars(models[0]))


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("k", [2, 3])
def test_a_class_without_records_is_trained(make, k, table):
    X, _ = table
    model = make(norm=2.0, classes=[*range(k)], size=60).fit(X, np.zeros(60, dtype=int))
    assert model.private_
    assert model.coef_.shape == (1 if k == 2 else k, 3)
    chances = model.predict_proba(X)
    assert chances.shape == (60, k)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    chosen = model.logits(X).argmax(axis=1)  # one of the likeliest
    np.testing.assert_allclose(chances[np.arange(60), chosen], chances.max(axis=1))
    assert (model.predict(X) == chosen).all()


@pytest.mark.parametrize("make", BOTH)
def test_rows_on_disk_are_the_same_rows(make, tmp_path, table):
    X, y = table
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    mapped.flush()
    settings = dict(norm=2.0, classes=["yes", "no"], size=60, random_state=0)
    one, other = (make(**settings).fit(rows, y) for rows in (mapped, np.array(mapped)))
    np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-9)


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": "much"}, "epsilon"),
        ({"C": 0.0}, "C"),
        ({"C": 1e13}, "C"),
        ({"norm": -1.0}, "norm"),
        ({"norm": 1e-13}, "norm"),
        ({"norm": float("nan")}, "norm"),
        ({"relation": "replace"}, "relation"),
        ({"fit_intercept": "yes"}, "fit_intercept"),
        ({"unit": "patient"}, "unit"),
        ({"size": 0}, "size"),
        ({"classes": ["a"]}, "classes"),
        ({"epsilon": 1e3, "C": 1e6, "norm": 1e6}, "squared norm"),
    ],
    ids=str,
)
def test_wrong_settings_are_rejected_before_a_charge(make, settings, message, table, tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(1e4))
    model = make(**settings)
    for ask in (
        model.event,
        lambda: model.fit(*table),
        lambda: Curator(dataset(*table), ledger).fit(model),
    ):
        with pytest.raises(ValueError, match=message):
            ask()
    assert ledger.spent().epsilon == 0 and not list(ledger.entries())


@pytest.mark.parametrize(
    "model",
    [
        ObjectivePerturbation(rule="best"),
        OutputPerturbation(delta=1.0),
        OutputPerturbation(delta=-0.1),
    ],
    ids=repr,
)
def test_invalid_settings_of_each_class_are_rejected(model):
    with pytest.raises(ValueError, match="Expected"):
        model.event()


@pytest.mark.parametrize("make", BOTH)
def test_the_curator_charges_before_it_reads_records(make, table, tmp_path):
    X, y = table
    ledger = open_ledger(tmp_path / "a.ledger", Budget(1.0))
    model = Curator(dataset(X, y), ledger).fit(make(0.75))
    assert model.private_ and ledger.spent().epsilon == 0.75
    assert sorted(model.classes_) == ["no", "yes"]
    late = make(0.5)
    with pytest.raises(BudgetError):
        Curator(dataset(X, y), ledger).fit(late)
    assert not hasattr(late, "coef_")


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"norm": None}, "norm"),
        ({"norm": 1e7}, "squared"),
    ],
)
def test_unsuitable_data_are_not_charged(make, declared, message, table, tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(1e4))
    holder = Curator(dataset(*table, **declared), ledger)
    with pytest.raises(ValueError, match=message):
        holder.fit(make(1000.0, C=1e4))
    assert not list(ledger.entries())


def test_the_curator_rejects_rules_that_are_not_private(table, tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(1e4))
    model = ObjectivePerturbation(rule="diffprivlib-0.6.2")
    with pytest.raises(ValueError, match="not private"):
        Curator(dataset(*table), ledger).fit(model)
    assert not list(ledger.entries()) and not hasattr(model, "coef_")


def test_units_of_several_rows_pay_epsilon(table, tmp_path):
    X, y = table
    unit = Unit("patient", max_contributions=3)
    data = dataset(X, y, units=np.arange(60) // 3)
    data = Dataset(
        data.X, data.y, data.classes, units=data.units, max_contributions=3, size=60, norm=10.0
    )
    ledger = open_ledger(tmp_path / "a.ledger", Budget(1.0, unit=unit))
    model = Curator(data, ledger).fit(ObjectivePerturbation(1.0, unit=unit))
    assert 0.999 < ledger.spent().epsilon <= 1.0
    assert model.statement_.max_contributions == 3 and 0.999 < model.statement_.epsilon <= 1.0


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((0, 3)),
        np.zeros((1, 3)),
        np.full((5, 3), 1e308),
        np.full((5, 3), 5e-324),
        np.tile([1e-160, 1e160, -1.0], (5, 1)),
        np.repeat([[1.0, 2.0, 3.0]], 500, axis=0),
    ],
    ids=["none", "zeros", "huge", "tiny", "mixed", "equal"],
)
def test_no_error_on_the_charged_path_depends_on_a_record(make, rows):
    for label in (0, 1):
        data = Dataset(rows, np.full(len(rows), label), ("a", "b"), size=5)
        for norm in (1e-9, 1.0, 1e4):
            model = make(norm=norm).fit_records(data)
            assert np.isfinite(model.coef_).all() and model.private_


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_clones_share_settings_and_no_noise(model, table):
    copies = [clone(model).set_params(random_state=None).fit(*table) for _ in range(2)]
    assert np.abs(copies[0].coef_ - copies[1].coef_).max() > 0
    assert copies[0].get_params() == copies[1].get_params()


@pytest.mark.parametrize("make", [ObjectivePerturbation, OutputPerturbation])
def test_no_fit_depends_on_the_number_of_records(make, table):
    model = make(norm=4.0, classes=["yes", "no"]).fit(*table)
    assert model.private_
