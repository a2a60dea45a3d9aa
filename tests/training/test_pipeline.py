"""A pipeline costs what its steps cost together, and leaks nothing between them."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.utils.estimator_checks import estimator_checks_generator

from veracal.data import Dataset
from veracal.errors import BudgetError, DataError
from veracal.privacy import (
    Budget,
    Composed,
    Gaussian,
    Holder,
    Unit,
    epsilon_for,
    open_ledger,
)
from veracal.training import NotPrivate, PrivateLogisticRegression
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
from veracal.training.preprocessing import (
    BoundedScaler,
    DeclaredOneHot,
    NormClipper,
    PrivateStandardizer,
)
from veracal.training.steps import event_of

CODES = [[0.0, 1.0, 2.0]]
KNOWN = OneHotEncoder(categories=CODES, handle_unknown="ignore")


def classifier(**settings):
    usual = dict(epsilon=None, noise_multiplier=4.0, steps=3, sampling_rate=1.0)
    return PrivateLogisticRegression(**{**usual, **settings})


def standardizer(**settings):
    return PrivateStandardizer((-3, 3), **{"noise_multiplier": 5.0, **settings})


def both(**settings):
    """A standardizer and a one-hot encoder, each on its columns."""
    return ColumnTransformer(
        [("numbers", standardizer(**settings), [0, 1]), ("codes", KNOWN, [2])]
    )


@pytest.fixture
def data(rng):
    X = np.column_stack([rng.normal(size=(300, 2)), rng.integers(0, 4, 300)])
    return Dataset(X, (X[:, 0] > 0).astype(int), ("no", "yes"), size=300)


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "a.ledger", Budget(20.0, 1e-5), kind="open")


# ---------------------------------------------------------------- events


def test_a_pipeline_costs_what_its_steps_cost_together():
    steps = Gaussian(5.0), classifier().event()
    pipeline = make_pipeline(both(), PolynomialFeatures(), NormClipper(), classifier())
    assert event_of(pipeline) == Composed(steps)
    assert PrivatePipeline(pipeline.steps).event() == Composed(steps)
    nested = make_private_pipeline(make_pipeline("passthrough", both()), classifier())
    assert nested.event() == Composed(steps)
    union = FeatureUnion([("a", standardizer()), ("b", standardizer(noise_multiplier=7.0))])
    assert event_of(union) == Composed((Gaussian(5.0), Gaussian(7.0)))
    assert epsilon_for(Composed(steps), 1e-5) > epsilon_for(steps[1], 1e-5)


def test_one_charged_step_is_no_composition_and_none_costs_nothing():
    assert event_of(make_pipeline(NormClipper(), classifier())) == classifier().event()
    free = make_pipeline(BoundedScaler((0, 1)), "passthrough", None, Normalizer())
    assert event_of(free) is None
    assert make_private_pipeline(BoundedScaler((0, 1))).event() is None


@pytest.mark.parametrize(
    ("step", "instead"),
    [
        (StandardScaler(), "PrivateStandardizer"),
        (MinMaxScaler(), "BoundedScaler"),
        (OneHotEncoder(), "DeclaredOneHot"),
        (PCA(), "public records"),
        (SelectKBest(), "public records"),
    ],
    ids=repr,
)
def test_a_step_that_learns_without_a_cost_is_named(step, instead):
    wrapped = ColumnTransformer([("inner", make_pipeline("passthrough", step), [0])])
    for pipeline in (
        Pipeline([("mine", step), ("model", classifier())]),
        make_pipeline(wrapped, classifier()),
        make_pipeline(ColumnTransformer([], remainder=step), classifier()),
    ):
        with pytest.raises(ValueError, match=type(step).__name__) as told:
            event_of(pipeline)
        assert instead in str(told.value)
    assert "as 'columntransformer__remainder'" in str(told.value)


def test_a_classifier_without_a_cost_is_named():
    with pytest.raises(ValueError, match="Use PrivateLogisticRegression"):
        event_of(make_pipeline(NormClipper(), LogisticRegression()))


@pytest.mark.parametrize(
    "settings",
    [
        dict(handle_unknown="error"),
        dict(handle_unknown="warn"),
        dict(drop="first"),
        dict(min_frequency=3),
        dict(max_categories=2),
        dict(categories="auto"),
    ],
    ids=repr,
)
def test_an_encoder_that_may_learn_or_tell_something_is_refused(settings):
    assert event_of(KNOWN) is None
    with pytest.raises(ValueError, match="DeclaredOneHot"):
        event_of(clone(KNOWN).set_params(**settings))


class Sly(Normalizer):
    """A subclass may do anything."""


def test_only_the_very_classes_that_are_known_pass():
    with pytest.raises(ValueError, match="Sly"):
        event_of(make_pipeline(Sly(), classifier()))


def test_steps_must_agree_on_neighbors_and_on_units():
    with pytest.raises(ValueError, match="one neighboring relation"):
        make_private_pipeline(standardizer(relation="replace-one"), classifier()).event()
    other = standardizer(unit=Unit("patient"))
    with pytest.raises(ValueError, match="same unit"):
        make_private_pipeline(other, classifier()).event()
    assert make_private_pipeline(other, classifier(unit=Unit("patient"))).event() is not None


# ---------------------------------------------------------------- fits to a data set


def test_a_fit_to_a_data_set_is_one_step_after_the_other(data):
    scaler, model = standardizer(random_state=1), classifier(random_state=2)
    pipeline = make_private_pipeline(clone(scaler), NormClipper(0.5), clone(model))
    pipeline.fit_records(data)
    scaler.fit_records(data)
    rows = NormClipper(0.5).fit_transform(scaler.transform(data.X))
    model.fit_records(Dataset(rows, data.y, data.classes, size=300, norm=0.5))
    np.testing.assert_array_equal(pipeline.steps[-1][1].coef_, model.coef_)
    np.testing.assert_array_equal(pipeline.predict(data.X), model.predict(rows))


@pytest.mark.parametrize(
    "step",
    [
        both(),
        ColumnTransformer([("a", standardizer(), slice(0, 2))], remainder="passthrough"),
        ColumnTransformer([("a", "drop", 0), ("b", "passthrough", [True, False, True])]),
        ColumnTransformer(
            [("a", make_pipeline(standardizer(), Binarizer()), [1]), ("b", NormClipper(), [2])],
            transformer_weights={"a": 3.0},
        ),
        FeatureUnion([("a", standardizer()), ("b", DeclaredOneHot(CODES * 3))]),
        FeatureUnion([("a", NormClipper()), ("b", "drop")], transformer_weights={"a": 2.0}),
    ],
    ids=range(6),
)
def test_rows_are_turned_as_scikit_learn_turns_them(data, step):
    pipeline = make_private_pipeline(clone(step), PolynomialFeatures(2), classifier())
    pipeline.fit_records(data)
    turned = pipeline.before_last(data)
    expected = pipeline[:-1].transform(data.X)
    np.testing.assert_array_equal(
        turned.X, expected.toarray() if hasattr(expected, "toarray") else expected
    )
    assert pipeline.private_ and pipeline.event_ == pipeline.event()


def test_steps_that_cost_nothing_never_see_a_record(data):
    seen = []

    def double(rows):
        seen.append(rows.shape[0])
        return 2 * rows

    pipeline = make_private_pipeline(
        FunctionTransformer(double), PolynomialFeatures(), classifier()
    )
    pipeline.check_records(data)
    assert seen and max(seen) < len(data)  # made-up rows, a few
    pipeline.fit_records(data)
    first = pipeline.steps[1][1]
    other = clone(pipeline).fit_records(data.take(np.arange(2))).steps[1][1]
    assert vars(first).keys() == vars(other).keys()
    assert first.n_output_features_ == other.n_output_features_


@pytest.mark.parametrize(
    "function",
    [lambda X: X - X.mean(axis=0), lambda X: X / np.abs(X).max(), lambda X: X[:1]],
    ids=["mean", "largest", "first"],
)
def test_a_function_across_rows_is_refused_before_a_record_is_read(data, ledger, function):
    pipeline = make_private_pipeline(FunctionTransformer(function), classifier())
    with pytest.raises(ValueError, match="each row by itself"):
        Holder(data, ledger).fit(pipeline)
    assert ledger.spent().epsilon == 0


def test_numbers_that_overflow_raise_nothing_and_become_zero(data):
    rows = np.array(data.X)
    rows[0], rows[1] = 1e200, -1e308
    wild = Dataset(rows, data.y, data.classes, size=300)
    logarithm = FunctionTransformer(np.log)
    for steps in (
        (PolynomialFeatures(3), NormClipper()),
        (make_pipeline(PolynomialFeatures(3), Normalizer()), NormClipper()),
        (ColumnTransformer([("a", make_pipeline(logarithm, NormClipper()), [0, 1])]),),
        (logarithm, standardizer()),
    ):
        pipeline = make_private_pipeline(*steps, classifier()).fit_records(wild)
        assert np.isfinite(pipeline.before_last(wild).X).all()
        assert np.isfinite(pipeline.steps[-1][1].coef_).all()


def test_bounds_on_norms_are_handed_on(data):
    scaled = make_private_pipeline(BoundedScaler((-3, 3), to=(-2, 2)), classifier())
    assert scaled.fit_records(data).before_last(data).norm == 2 * np.sqrt(3)
    clipped = make_private_pipeline(both(), NormClipper(0.25), classifier())
    assert clipped.fit_records(data).before_last(data).norm == 0.25
    widened = make_private_pipeline(NormClipper(0.25), PolynomialFeatures(), classifier())
    assert widened.fit_records(data).before_last(data).norm is None


def test_no_records_are_records_too(data):
    none = data.take(np.arange(0))
    pipeline = make_private_pipeline(both(), PolynomialFeatures(), classifier())
    assert pipeline.fit_records(none).private_
    assert pipeline.before_last(none).X.shape == (0, 21)


def test_replace_one_is_a_relation_too(data):
    swapped = dict(relation="replace-one")
    pipeline = make_private_pipeline(both(**swapped), classifier(**swapped))
    assert pipeline.fit_records(data).private_
    assert pipeline.event_.relation == "replace-one"
    wrong = make_private_pipeline(both(**swapped), classifier(**swapped, size=299))
    with pytest.raises(ValueError, match="size"):
        wrong.check_records(data)


# ---------------------------------------------------------------- holders


def test_a_holder_charges_the_composition_and_fits(data, ledger):
    pipeline = make_private_pipeline(both(), NormClipper(), classifier())
    assert Holder(data, ledger).fit(pipeline) is pipeline
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
def test_what_does_not_fit_is_refused_before_anything_is_charged(data, ledger, steps):
    with pytest.raises((ValueError, IndexError)):
        Holder(data, ledger).fit(make_private_pipeline(*steps))
    assert ledger.spent().epsilon == 0


def test_text_and_undeclared_sizes_are_refused_before_anything_is_charged(data, ledger):
    text = Dataset(np.array([["a"], ["b"]]), np.array([0, 1]), ("no", "yes"), size=2)
    unsized = Dataset(data.X, data.y, data.classes)
    for records in (text, unsized):
        with pytest.raises(DataError):
            Holder(records, ledger).fit(make_private_pipeline(both(), classifier()))
    assert ledger.spent().epsilon == 0
    pipeline = make_private_pipeline(both(size=300), classifier(size=300))
    assert Holder(unsized, ledger).fit(pipeline).private_


def test_what_cannot_be_paid_is_not_fitted(data, ledger):
    pipeline = make_private_pipeline(standardizer(noise_multiplier=0.1), classifier())
    with pytest.raises(BudgetError):
        Holder(data, ledger).fit(pipeline)
    assert "_released" not in vars(pipeline.steps[0][1])


# ---------------------------------------------------------------- scikit-learn


def test_a_plain_fit_says_what_was_inferred(data):
    labels = data.labels
    pipeline = make_private_pipeline(BoundedScaler(), standardizer(), classifier())
    pipeline.fit(data.X, labels)
    assert not pipeline.private_
    told = " ".join(pipeline.not_private_because_)
    for words in ("boundedscaler: the bounds", "privatestandardizer: the number", "classes"):
        assert words in told
    assert isinstance(pipeline.statement_, NotPrivate)
    declared = make_private_pipeline(
        BoundedScaler((-4, 4)), classifier(classes=["no", "yes"], size=300)
    )
    assert declared.fit(data.X, labels).private_
    assert declared.statement_.epsilon > 0


def test_a_plain_fit_takes_any_step_and_says_that_it_leaks(data):
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


def test_scikit_learn_is_as_content_as_with_its_own():
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
