"""A pipeline costs what its steps cost together, and leaks nothing between them."""

import math
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
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
from veracal.data.rows import MappedRows
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
from veracal.training import NotPrivate, PrivateLogisticRegression, PrivateSearch, score
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
from veracal.training.preprocessing import (
    BoundedScaler,
    DeclaredOneHot,
    NormClipper,
    PrivateStandardizer,
)
from veracal.training.steps import PART, event_of

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


ACROSS = {
    "mean": lambda X: X - X.mean(axis=0),
    "largest": lambda X: X / np.abs(X).max(),
    "first": lambda X: X[:1],
    "number": lambda X: X * len(X),
    "many": lambda X: X * (len(X) > 200),
    "quantile": lambda X: np.minimum(X, np.quantile(X, 0.99, axis=0) * 5),
    "columns": lambda X: X[:, X.any(axis=0)],
    "occurs": lambda X: X + X.any(axis=0),
    "negative": lambda X: X * (X.min() < 0),
    "large": lambda X: X * (X > 1e5).any(),
    "twice": lambda X: X + (len(np.unique(X, axis=0)) < len(X)),
}


@pytest.mark.parametrize("function", ACROSS.values(), ids=ACROSS)
def test_a_function_across_rows_is_refused_before_a_record_is_read(data, ledger, function):
    pipeline = make_private_pipeline(FunctionTransformer(function), classifier())
    with pytest.raises(ValueError, match="each row by itself"):
        Holder(data, ledger).fit(pipeline)
    assert ledger.spent().epsilon == 0


DECLARED = dict(classes=["no", "yes"], size=300)


@pytest.mark.parametrize("function", list(ACROSS.values())[3:], ids=list(ACROSS)[3:])
def test_a_function_across_rows_is_not_private_in_a_plain_fit(data, function):
    for step in (
        FunctionTransformer(function),
        ColumnTransformer([("a", make_pipeline(FunctionTransformer(function)), [0, 1])]),
    ):
        pipeline = make_private_pipeline(step, classifier(**DECLARED))
        assert not pipeline.fit(data.X, data.labels).private_
        assert "turns rows apart" in pipeline.not_private_because_[0]


@pytest.mark.parametrize(
    "function",
    [
        None,
        np.log1p,
        np.square,
        lambda X: X @ np.linspace(-1, 1, 3 * 50).reshape(3, 50),
        lambda X: X[:, :1],
        lambda X: np.sort(X, axis=1),
        lambda X: np.array([[math.sqrt(v) for v in row] for row in X]),
        lambda X: X / np.linalg.norm(X, axis=1, keepdims=True),
    ],
    ids=range(8),
)
def test_a_function_of_each_row_passes_the_trial(data, function):
    pipeline = make_private_pipeline(FunctionTransformer(function), classifier(**DECLARED))
    for dtype in (np.float64, np.float32):
        rows = np.abs(data.X).astype(dtype)
        with np.errstate(all="ignore"):
            assert clone(pipeline).fit(rows + 1, data.labels).private_
        records = Dataset(rows, data.y, data.classes, size=300)
        assert clone(pipeline).fit_records(records).private_


def test_columns_that_a_function_chooses_are_refused_or_told(data, ledger):
    step = ColumnTransformer([("a", NormClipper(), lambda X: [int(X.mean() > 0)])])
    pipeline = make_private_pipeline(step, classifier(**DECLARED))
    with pytest.raises(ValueError, match="declared columns"):
        Holder(data, ledger).fit(pipeline)
    assert ledger.spent().epsilon == 0
    assert not pipeline.fit(data.X, data.labels).private_
    assert "chose the columns" in pipeline.not_private_because_[0]


def picky(rows):
    """Raise, warn or widen for some values."""
    if (rows > 50).any():
        raise RuntimeError("a value above 50")
    if (rows < -50).any():
        warnings.warn("a value below -50", stacklevel=1)
    return np.hstack([rows, rows]) if (rows == 0.25).any() else 2 * rows


def test_no_record_shows_in_an_error_or_a_warning_of_a_function(data, ledger):
    rows = np.array(data.X)
    rows[3], rows[5], rows[7] = 60.0, -60.0, 0.25
    wild = Dataset(rows, data.y, data.classes, size=300)
    inside = ColumnTransformer([("a", FunctionTransformer(picky), [0, 1, 2])])
    for step in (FunctionTransformer(picky), inside, make_pipeline(inside)):
        pipeline = make_private_pipeline(clone(step), classifier())
        turned = Holder(wild, ledger).fit(pipeline).before_last(wild).X
        expected = 2 * rows
        expected[[3, 7]] = 0
        np.testing.assert_array_equal(turned, expected)
        assert pipeline.private_


# ---------------------------------------------------------------- what stands where


def test_a_frozen_step_is_neither_fitted_nor_charged_again(data, ledger):
    scaler = standardizer().fit_records(data)
    before = scaler.mean_.copy()
    pipeline = make_private_pipeline(FrozenEstimator(scaler), classifier())
    assert pipeline.event() == classifier().event()
    Holder(data, ledger).fit(pipeline)
    np.testing.assert_array_equal(scaler.mean_, before)
    assert pipeline.private_ and scaler.private_
    np.testing.assert_array_equal(pipeline.before_last(data).X, scaler.transform(data.X))


def test_what_is_frozen_must_be_fitted_turn_rows_apart_and_be_private(data):
    pca = PCA(2).fit(np.eye(3))
    assert make_private_pipeline(FrozenEstimator(pca), classifier()).fit_records(data).private_
    for frozen, told in (
        (PCA(2), "not fitted"),
        (FunctionTransformer(ACROSS["mean"]).fit(data.X), "each row by itself"),
        (BoundedScaler().fit(data.X), "What is frozen is not private: the bounds"),
    ):
        with pytest.raises(ValueError, match=told):
            make_private_pipeline(FrozenEstimator(frozen), classifier()).check_records(data)


def test_classifiers_stand_at_the_end_and_are_charged_there(data):
    plain = make_pipeline(NormClipper(), classifier())
    for steps, told in (
        ((classifier(), classifier()), "only be the last step"),
        ((plain, classifier()), "only be the last step"),
        ((FeatureUnion([("a", classifier())]), classifier()), "only be the last step"),
        ((NormClipper(), plain), "Make what is inside it a PrivatePipeline"),
        ((NormClipper(), FrozenEstimator(classifier().fit_records(data))), "transformer as"),
    ):
        with pytest.raises(ValueError, match=told):
            make_private_pipeline(*steps).event()
    nested = make_private_pipeline("passthrough", PrivatePipeline(plain.steps))
    assert nested.event() == classifier().event()


def test_what_is_no_data_set_is_named(data):
    with pytest.raises(ValueError, match="Expected a data set of veracal.data, got ndarray"):
        make_private_pipeline(NormClipper(), classifier()).fit_records(data.X)


def test_a_step_stands_in_one_place(data):
    scaler = standardizer()
    for steps in ((scaler, scaler), (FeatureUnion([("a", scaler), ("b", scaler)]),)):
        with pytest.raises(ValueError, match="every step once"):
            make_private_pipeline(*steps, classifier()).event()
    # These are copied before they are fitted.
    twice = ColumnTransformer([("a", scaler, [0]), ("b", scaler, [1])])
    assert make_private_pipeline(twice, classifier()).fit_records(data).private_


# ---------------------------------------------------------------- claims


def test_claims_are_written_down_when_a_fit_ends(data):
    leaky = make_private_pipeline(StandardScaler(), classifier(**DECLARED))
    leaky.fit(data.X, data.labels).set_params(standardscaler="passthrough")
    assert not leaky.private_
    paid = make_private_pipeline(standardizer(), classifier()).fit_records(data)
    event, text = paid.event_, paid.statement_.text()
    paid.set_params(privatestandardizer="passthrough", privatelogisticregression__delta=0.1)
    paid.set_params(privatelogisticregression__unit=Unit("patient"))
    assert paid.event_ == event and paid.statement_.text() == text
    paid.set_params(privatelogisticregression=classifier())
    assert paid.private_ and paid.event_ == event


@pytest.mark.parametrize("plain", [False, True])
def test_an_interrupted_fit_keeps_no_claim(data, plain, monkeypatch):
    pipeline = make_private_pipeline(standardizer(size=300), classifier(**DECLARED))

    def fit():
        return pipeline.fit(data.X, data.labels) if plain else pipeline.fit_records(data)

    assert fit().private_

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.steps[-1][1], "_learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit()
    assert not pipeline.private_ and pipeline.event_ is None
    assert pipeline.statement_.reasons == ("its fit did not end",)


def test_what_was_never_fitted_as_a_whole_claims_nothing(data):
    pipeline = make_private_pipeline(standardizer(), classifier())
    with pytest.raises(NotFittedError):
        _ = pipeline.private_
    pipeline.fit_records(data)
    assert not pipeline[1:].private_ and isinstance(pipeline[1:].statement_, NotPrivate)
    free = make_private_pipeline(NormClipper(), BoundedScaler((0, 1))).fit_records(data)
    assert free.private_ and free.statement_.reasons == ("nothing in it is charged",)


class Dearer(PrivateStandardizer):
    """Costs more in the end than it said before."""

    def _learn(self, rows, size):
        reasons = super()._learn(rows, size)
        self.noise_multiplier /= 2
        return reasons

    def _fitted(self, rows, size):
        super()._fitted(rows, size)
        self.event_ = self._cost()
        return self


def test_what_costs_something_else_than_was_charged_is_not_private(data):
    dear = make_private_pipeline(Dearer((-3, 3), noise_multiplier=4.0), classifier())
    assert dear.fit_records(data).not_private_because_ == (
        "its steps cost something else than was charged",
    )


def test_a_part_does_not_speak_for_the_whole(data):
    inner = make_private_pipeline(both(), classifier())
    pipeline = make_private_pipeline(NormClipper(9.0), inner)
    for _ in range(2):
        pipeline.fit_records(data)
        assert pipeline.private_ and pipeline.event_ == pipeline.event()
        assert not inner.private_ and inner.statement_.reasons == (PART,)
        for part in (inner[-1], inner[0].transformers_[0][1]):
            assert not part.private_ and part.statement_.reasons == (PART,)
    assert inner.fit_records(data).private_
    alone = clone(inner[-1]).fit_records(data)
    assert alone.private_ and alone.statement_.epsilon < pipeline.statement_.epsilon
    transforming = make_private_pipeline(standardizer(size=300))
    transforming.fit_transform(data.X)
    assert transforming.private_ and not transforming[0].private_


def test_steps_that_disagree_claim_nothing_in_a_plain_fit(data):
    pipeline = make_private_pipeline(
        standardizer(relation="replace-one"), classifier(**DECLARED)
    ).fit(data.X, data.labels)
    assert not pipeline.private_ and pipeline.event_ is None
    assert "relation" in pipeline.not_private_because_[0]


# ---------------------------------------------------------------- scores


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


# ---------------------------------------------------------------- odd numbers


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


@pytest.mark.parametrize("changes", [{"units": True}, {"may_drop": True}])
def test_neighbors_beyond_the_guarantee_are_refused(changes):
    rng = np.random.default_rng(0)
    relation = "replace-one" if "may_drop" in changes else "add-remove"
    ids = (
        {"units": np.repeat(np.arange(20), 5), "at_most": 5} if "units" in changes else changes
    )
    records = Dataset(rng.uniform(-1, 1, (100, 2)), np.arange(100) % 2, (0, 1), size=100, **ids)
    scaler = PrivateStandardizer((-1, 1), noise_multiplier=1.0, relation=relation)
    model = PrivateLogisticRegression(
        None, noise_multiplier=1.0, steps=2, relation=relation, classes=[0, 1]
    )
    for subject in (scaler, make_private_pipeline(scaler, model), model):
        with pytest.raises(DataError):
            subject.fit_records(records)
