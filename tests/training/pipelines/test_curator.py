"""A pipeline is charged, fitted, scored and handled like a classifier."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    StandardScaler,
)
from sklearn.utils.estimator_checks import estimator_checks_generator

from tests.training.pipelines.steps import both, classifier, standardizer
from veracal.accounting import NotPrivate
from veracal.data import Dataset, score
from veracal.data.rows import MappedRows
from veracal.errors import BudgetError, DataError
from veracal.queries import Curator
from veracal.training import (
    BoundedScaler,
    NormClipper,
    PrivateLogisticRegression,
    PrivateSearch,
    PrivateStandardizer,
)
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline


def test_the_curator_charges_the_composition_and_fits(data, ledger):
    pipeline = make_private_pipeline(both(), NormClipper(), classifier())
    assert Curator(data, ledger).fit(pipeline) is pipeline
    assert ledger.entries()[0].event == pipeline.event() == pipeline.event_
    assert pipeline.private_ and pipeline.statement_.epsilon <= ledger.spent().epsilon
    assert "columntransformer__numbers" in pipeline.statement_.covers[0]


@pytest.mark.parametrize(
    "steps",
    [
        (BoundedScaler([(0, 1)] * 2), classifier()),
        (BoundedScaler(), classifier()),
        (StandardScaler(), classifier()),
        (both(), classifier(classes=["no", "maybe"])),
        (both(), classifier(initial=(np.zeros((1, 3)), np.zeros(1)))),
        (standardizer(relation="replace-one"), classifier()),
        (ColumnTransformer([("a", standardizer(), [7])]), classifier()),
        (FunctionTransformer(lambda X: [].pop()), classifier()),
    ],
    ids=range(8),
)
def test_unsuitable_data_are_rejected_before_a_charge(data, ledger, steps):
    with pytest.raises((ValueError, IndexError)):
        Curator(data, ledger).fit(make_private_pipeline(*steps))
    assert ledger.spent().epsilon == 0


def test_text_and_undeclared_sizes_are_rejected_before_a_charge(data, ledger):
    text = Dataset(np.array([["a"], ["b"]]), np.array([0, 1]), ("no", "yes"), size=2)
    unsized = Dataset(data.X, data.y, data.classes)
    for records in (text, unsized):
        with pytest.raises(DataError):
            Curator(records, ledger).fit(make_private_pipeline(both(), classifier()))
    assert ledger.spent().epsilon == 0
    pipeline = make_private_pipeline(both(size=300), classifier(size=300))
    assert Curator(unsized, ledger).fit(pipeline).private_


def test_an_unaffordable_pipeline_is_not_fitted(data, ledger):
    pipeline = make_private_pipeline(standardizer(noise_multiplier=0.1), classifier())
    with pytest.raises(BudgetError):
        Curator(data, ledger).fit(pipeline)
    assert "_released" not in vars(pipeline.steps[0][1])


def test_a_pipeline_and_a_search_of_one_are_scored(data):
    pipeline = make_private_pipeline(standardizer(), "passthrough", classifier())
    scaler, _, last = (step for _, step in pipeline.fit_records(data).steps)
    expected = last.logits(scaler.transform(data.X))
    np.testing.assert_array_equal(score(pipeline, data).values, expected)
    search = PrivateSearch(clone(pipeline), [{}], mean=2.0).fit_records(data)
    np.testing.assert_array_equal(
        score(search, data).values, search.best_estimator_.logits(data.X)
    )
    assert not hasattr(make_private_pipeline(NormClipper()), "logits")


@pytest.mark.parametrize("step", [both(), NormClipper(), Normalizer()], ids=range(3))
def test_records_on_disk_are_scored_like_those_in_memory(data, step, tmp_path):
    np.save(tmp_path / "x.npy", data.X)
    mapped = MappedRows.of(np.load(tmp_path / "x.npy", mmap_mode="r"))
    there = Dataset(mapped, data.y, data.classes, size=300)
    pipeline = make_private_pipeline(clone(step), classifier()).fit_records(there)
    np.testing.assert_array_equal(score(pipeline, there).values, score(pipeline, data).values)


def test_fit_records_what_was_inferred(data):
    labels = data.labels
    pipeline = make_private_pipeline(BoundedScaler(), standardizer(), classifier())
    pipeline.fit(data.X, labels)
    assert not pipeline.private_
    values = " ".join(pipeline.not_private_because_)
    for words in ("boundedscaler: the bounds", "privatestandardizer: the number", "classes"):
        assert words in values
    assert isinstance(pipeline.statement_, NotPrivate)
    declared = make_private_pipeline(
        BoundedScaler((-4, 4)), classifier(classes=["no", "yes"], size=300)
    )
    assert declared.fit(data.X, labels).private_
    assert declared.statement_.epsilon > 0


def test_fit_accepts_any_step_and_says_that_it_is_not_private(data):
    pipeline = make_private_pipeline(
        StandardScaler(), classifier(classes=["no", "yes"], size=300)
    )
    pipeline.fit(data.X, data.labels)
    assert pipeline.not_private_because_ == (
        "standardscaler: StandardScaler learns from the records and states no cost",
    )
    assert not pipeline.private_ and isinstance(pipeline.statement_, NotPrivate)


def test_it_can_be_cloned_and_its_settings_reached():
    pipeline = make_private_pipeline(both(), classifier())
    twin = clone(pipeline).set_params(privatelogisticregression__noise_multiplier=9.0)
    assert isinstance(twin, PrivatePipeline)
    assert twin.event() != pipeline.event() == clone(pipeline).event()


def test_scikit_learn_checks_pass_as_for_its_own_pipeline():
    pipeline = make_private_pipeline(BoundedScaler(), classifier(random_state=0))
    overwritten = ("check_estimators_overwrite_params", "check_dont_overwrite_parameters")
    checked = 0
    for estimator, check in estimator_checks_generator(pipeline, legacy=True):
        name = getattr(check, "func", check).__name__
        # Scikit-learn's pipeline fits its steps in place, against scikit-learn's own rules.
        if name not in (*overwritten, "check_array_api_input"):
            check(estimator)
            checked += 1
    assert checked > 40


@pytest.mark.parametrize("changes", [{"units": True}, {"may_drop": True}])
def test_units_beyond_the_guarantee_are_rejected(changes):
    rng = np.random.default_rng(0)
    relation = "replace-one" if "may_drop" in changes else "add-remove"
    ids = (
        {"units": np.repeat(np.arange(20), 5), "max_contributions": 5}
        if "units" in changes
        else changes
    )
    records = Dataset(rng.uniform(-1, 1, (100, 2)), np.arange(100) % 2, (0, 1), size=100, **ids)
    scaler = PrivateStandardizer((-1, 1), noise_multiplier=1.0, relation=relation)
    model = PrivateLogisticRegression(
        None, noise_multiplier=1.0, steps=2, relation=relation, classes=[0, 1]
    )
    for subject in (scaler, make_private_pipeline(scaler, model), model):
        with pytest.raises(DataError):
            subject.fit_records(records)
