"""A classifier and its map are charged as one, before a record is read."""

import pickle

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from veracal.calibration import classifier as module
from veracal.calibration.arranging import Guard
from veracal.calibration.classifier import PrivateCalibratedClassifier
from veracal.calibration.maps import Identity, Temperature
from veracal.calibration.metrics import ece
from veracal.calibration.private import (
    PrivateBinning,
    PrivatePlatt,
    PrivateTemperature,
    guard_event,
)
from veracal.data import Dataset, limit_contributions, load
from veracal.errors import BudgetError, DataError
from veracal.privacy import (
    Budget,
    Composed,
    Gaussian,
    Holder,
    Item,
    NotPrivate,
    Parallel,
    Statement,
    Unit,
    epsilon_for,
    open_ledger,
)
from veracal.training import (
    NormClipper,
    ObjectivePerturbation,
    PrivateLogisticRegression,
    PrivateSearch,
    make_private_pipeline,
    score,
)
from veracal.training.linear import LinearClassifier

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 3))
Y = np.where(X[:, 0] + 0.5 * RNG.standard_normal(400) > 0, "yes", "no")
DATA = Dataset(X, (Y == "yes").astype(int), ("no", "yes"), size=400)
FITS = []  # what models below were fitted to


class Known(LinearClassifier):
    """Public weights, as steep as it is told, that pretend to have cost something."""

    def __init__(
        self,
        noise_multiplier=3.0,
        steep=20.0,
        fails=False,
        *,
        classes=None,
        size=None,
        relation="add-remove",
        unit=None,
        random_state=None,
    ):
        self.noise_multiplier = noise_multiplier
        self.steep = steep
        self.fails = fails
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def _check_settings(self):
        if not self.noise_multiplier > 0:
            raise ValueError("Expected noise.")

    def _cost(self, size):
        return Gaussian(self.noise_multiplier, relation=self.relation)

    def _learn(self, facts, rng):
        FITS.append(facts)
        if self.fails:
            raise RuntimeError("on purpose")
        self.coef_ = np.array([[self.steep, 0.0, 0.0]])
        self.intercept_ = np.zeros(1)
        return ()


def training(**changes):
    usual = {"epsilon": 1.0, "sampling_rate": 0.2, "epochs": 3}
    return PrivateLogisticRegression(**{**usual, **changes})


def calibrated(estimator=None, **changes):
    return PrivateCalibratedClassifier(Known() if estimator is None else estimator, **changes)


@pytest.fixture
def asked(monkeypatch):
    """Scores that map and guard were asked of, and what was announced."""
    seen = []

    class Watching(module.Paid):
        __slots__ = ()

        def __init__(self, scores, event, **more):
            seen.append((scores, event))
            super().__init__(scores, event, **more)

    monkeypatch.setattr(module, "Paid", Watching)
    FITS.clear()
    return seen


# ---------------------------------------------------------------- cost


def test_reuse_costs_the_composition_of_training_and_map() -> None:
    model = calibrated(training(), method=PrivateTemperature(epsilon=0.05))
    parts = (training().event(), PrivateTemperature(epsilon=0.05).event())
    assert model.event() == Composed(parts)
    assert epsilon_for(model.event(), 1e-5) > epsilon_for(parts[0], 1e-5)


def test_split_costs_the_larger_of_its_parts() -> None:
    model = calibrated(training(), method=PrivateTemperature(epsilon=0.8), recalibrate="split")
    parts = (training().event(), PrivateTemperature(epsilon=0.8).event())
    assert model.event() == Parallel(parts)
    each = [epsilon_for(part, 1e-5) for part in parts]
    assert epsilon_for(model.event(), 1e-5) == pytest.approx(max(each))


@pytest.mark.parametrize("how", ["reuse", "split"])
def test_a_guard_is_charged_whether_or_not_it_keeps_the_map(how) -> None:
    plain = calibrated(recalibrate=how).event()
    guarded = calibrated(recalibrate=how, guard=Guard(0.3)).event()
    assert guarded.events == (*plain.events, guard_event(Identity(), epsilon=0.3))
    for steep in (0.1, 2.0, 50.0):  # calibrated or not
        model = calibrated(Known(steep=steep), recalibrate=how, guard=Guard(0.3))
        assert model.fit_records(DATA).event_ == guarded


@pytest.mark.parametrize(
    ("estimator", "level", "delta"),
    [
        (training(), None, 1e-5),
        (training(), "epsilon", 1e-5),
        (ObjectivePerturbation(norm=2.0), None, 0.0),
        (
            make_private_pipeline(NormClipper(1.0), training()),
            "privatelogisticregression__noise_multiplier",
            1e-5,
        ),
    ],
    ids=["noise", "epsilon", "pure", "pipeline"],
)
@pytest.mark.parametrize("how", ["reuse", "split"])
def test_a_total_is_met(estimator, level, delta, how) -> None:
    model = calibrated(
        estimator, epsilon=2.0, delta=delta, level=level, share=0.1, recalibrate=how
    )
    cost = epsilon_for(model.event(), delta)
    assert 2.0 * 0.99 < cost <= 2.0
    if how == "reuse":
        spent = epsilon_for(model.event().events[1], 0.0)
        assert spent == pytest.approx(0.2, rel=1e-4)


def test_a_total_is_shared_by_map_and_guard() -> None:
    both = calibrated(epsilon=2.0, share=0.1, guard=Guard()).event()
    assert [epsilon_for(event, 0.0) for event in both.events[1:]] == pytest.approx([0.1, 0.1])
    assert 1.98 < epsilon_for(both, 1e-5) <= 2.0
    apart = calibrated(epsilon=2.0, guard=Guard(), recalibrate="split").event()
    assert [epsilon_for(event, 0.0) for event in apart.events[1:]] == pytest.approx([2.0, 2.0])


def test_without_a_share_the_planner_is_asked() -> None:
    spent = []
    for size in (1_000, 100_000):
        model = calibrated(epsilon=3.0, delta=1e-6, size=size, classes=["no", "yes"])
        spent.append(model._share())
        plan = module.plan_recalibration(size, 2, Budget(3.0, 1e-6))
        cost = epsilon_for(model.event().events[1], 0.0)
        assert cost == pytest.approx(plan.share * 3.0, rel=1e-3)
    assert spent[1] <= 0.02 < spent[0]


def test_the_cost_does_not_depend_on_records() -> None:
    for how in ("reuse", "split"):
        model = calibrated(recalibrate=how, guard=Guard())
        before = model.event()
        for records in (DATA, DATA.take(np.arange(7)), DATA.take(np.arange(0))):
            assert clone(model).fit_records(records).event_ == before


def test_a_holder_charges_first_and_exactly_that(tmp_path, asked) -> None:
    model = calibrated(guard=Guard())
    event = model.event()
    budget = Budget(epsilon_for(event, 1e-5) + 1e-6, 1e-5)
    ledger = open_ledger(tmp_path / "a", budget, kind="plan", plan=[Item("training", event)])
    holder = Holder(DATA, ledger)
    fitted = holder.fit(model)
    assert fitted.private_ and fitted.event_ == event
    assert isinstance(fitted.statement_, Statement)
    assert len(fitted.statement_.covers) == 3
    FITS.clear()
    with pytest.raises(BudgetError):
        holder.fit(clone(model))
    assert not FITS


# ---------------------------------------------------------------- parts


def test_reuse_gives_all_records_to_training_map_and_guard(asked) -> None:
    calibrated(guard=Guard()).fit_records(DATA)
    assert len(FITS[0].X) == 400 and FITS[0].size == 400
    assert [len(scores) for scores, _ in asked] == [400, 400]


def test_split_deals_every_record_to_one_part(asked) -> None:
    model = calibrated(Known(steep=1.0), recalibrate="split", holdout=0.4, guard=Guard())
    model.fit_records(DATA)
    parts = [FITS[0].X[:, 0], *(scores.values[:, 1] for scores, _ in asked)]
    assert sorted(np.concatenate(parts)) == sorted(X[:, 0])
    shares = np.array([len(part) / 400 for part in parts])
    assert np.abs(shares - (0.6, 0.2, 0.2)).max() < 0.15


def test_parts_have_nominal_sizes_whatever_their_number(asked) -> None:
    declared = Dataset(X, DATA.y, DATA.classes, size=10_000)
    method = PrivateTemperature("descent", epsilon=1.0, delta=1e-6, steps=3)
    model = calibrated(recalibrate="split", method=method)
    made = model._arranged(declared.size)
    model.fit_records(declared)
    assert FITS[0].size == 9_000 and made.method.size == 1_000


def test_coins_are_secret_and_know_no_row_number(asked) -> None:
    held = np.zeros(400)
    method = PrivateBinning(epsilon=1.0, bins=1)  # the quickest
    for _ in range(30):
        asked.clear()
        model = calibrated(Known(steep=1.0), method=method, recalibrate="split", holdout=0.5)
        model.fit_records(DATA)
        held += np.isin(X[:, 0], asked[0][0].values[:, 1])
    # Thirty fair coins for each row: no row always or never held back, no run of rows either.
    assert 2 < held.min() and held.max() < 28
    assert abs(held[:200].sum() - held[200:].sum()) < 6 * np.sqrt(400 * 30 / 4)


def test_replace_one_has_exact_public_parts(asked) -> None:
    model = calibrated(
        Known(relation="replace-one"), relation="replace-one", recalibrate="split", holdout=0.25
    )
    assert model.event().relation == "replace-one"
    fitted = model.fit_records(DATA)
    assert FITS[0].size == len(FITS[0].X) == 300
    assert len(asked[0][0]) == 100 and fitted.private_


def test_no_records_at_all_are_no_error(asked) -> None:
    for how in ("reuse", "split"):
        fitted = calibrated(recalibrate=how, guard=Guard()).fit_records(DATA.take(np.arange(0)))
        assert fitted.private_ and np.isfinite(fitted.predict_proba(X)).all()


# ---------------------------------------------------------------- the repair


def test_answers_have_the_announced_noise_and_are_all_kept(asked) -> None:
    fitted = calibrated(guard=Guard(), unit=None).fit_records(DATA)
    events = [release.event for release in fitted.releases_]
    (_, mapping), (_, guarding) = asked
    assert tuple(events) == (*mapping.events, guarding)
    assert all(release.private for release in fitted.releases_)


@pytest.mark.parametrize("how", ["reuse", "split"])
def test_an_overconfident_model_is_repaired(how) -> None:
    many = np.random.default_rng(1)
    rows = many.uniform(-1, 1, (8_000, 3))
    labels = (many.uniform(size=8_000) < 1 / (1 + np.exp(-4 * rows[:, 0]))).astype(int)
    train = Dataset(rows[:4_000], labels[:4_000], (0, 1), size=4_000)
    test = Dataset(rows[4_000:], labels[4_000:], (0, 1), size=4_000)
    fitted = calibrated(
        Known(steep=20.0),
        method=PrivateTemperature(epsilon=1.0),
        recalibrate=how,
        holdout=0.6,
        guard=Guard(1.0),
        random_state=0,
    ).fit_records(train)
    assert isinstance(fitted.map_, Temperature)
    assert fitted.map_.value == pytest.approx(5.0, rel=0.35)
    assert fitted.guarded_.kept and fitted.guarded_.statement is None
    assert ("optimistic" in fitted.guarded_.text()) == (how == "reuse")
    before, after = score(fitted.estimator_, test), score(fitted, test)
    assert ece(before) > 0.1 and ece(after) < 0.04
    np.testing.assert_array_equal(before.predictions, after.predictions)


def test_a_guard_that_sees_nothing_to_gain_keeps_the_scores() -> None:
    fitted = calibrated(Known(steep=1.0), guard=Guard(0.001), random_state=2)
    fitted.fit_records(DATA)
    assert not fitted.guarded_.kept and fitted.map_ == Identity()
    np.testing.assert_array_equal(fitted.logits(X), fitted.estimator_.logits(X))


def test_predictions_go_through_the_map() -> None:
    fitted = calibrated().fit_records(DATA)
    logits = fitted.estimator_.logits(X) * fitted.map_.inverse
    np.testing.assert_allclose(fitted.logits(X), logits)
    np.testing.assert_allclose(fitted.predict_proba(X), softmax(logits, axis=1))
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))
    np.testing.assert_allclose(fitted.decision_function(X), logits[:, 1] - logits[:, 0])
    assert (fitted.predict(X) == np.where(logits[:, 1] > 0, "yes", "no")).all()
    alone = np.vstack([fitted.predict_proba(X[i : i + 1]) for i in (0, 200, 399)])
    assert alone.tobytes() == fitted.predict_proba(X)[[0, 200, 399]].tobytes()


def test_nothing_is_predicted_before_a_fit() -> None:
    for way in ("predict", "predict_proba", "predict_log_proba", "logits", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(calibrated(), way)(X)


def test_classes_in_another_order_are_not_mixed_up(asked) -> None:
    other = Dataset(X, (Y == "no").astype(int), ("yes", "no"), size=400)
    calibrated().fit_records(other)
    calibrated().fit_records(DATA)
    first, second = (scores for scores, _ in asked)
    assert first.classes == second.classes == ("no", "yes")
    np.testing.assert_array_equal(first.labels, second.labels)


@pytest.mark.parametrize(
    "method",
    [
        PrivateBinning(epsilon=1.0, bins=5),
        PrivatePlatt("vector", epsilon=1.0, steps=5),
        PrivatePlatt("matrix", epsilon=1.0, delta=1e-6, steps=5),
        PrivateTemperature("descent", epsilon=1.0, steps=5),
    ],
    ids=["binning", "vector", "matrix", "descent"],
)
@pytest.mark.parametrize("how", ["reuse", "split"])
def test_every_private_map_will_do(method, how) -> None:
    model = calibrated(method=method, recalibrate=how, classes=["no", "yes"])
    fitted = model.fit_records(DATA)
    assert fitted.private_ and fitted.event_ == model.event()
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)
    assert hasattr(fitted, "logits") == (not isinstance(method, PrivateBinning))


def test_a_fitter_that_asks_for_more_than_it_announced_gets_nothing() -> None:
    class Greedy(PrivateTemperature):
        def fit(self, source, *, request=None):
            super().fit(source, request="first")
            return super().fit(source, request="second")

    class Dearer(PrivateTemperature):
        def event(self, relation="add-remove", unit=None):
            return PrivateTemperature(epsilon=0.01).event(relation, unit)

    for method in (Greedy(epsilon=0.1), Dearer(epsilon=0.1)):
        with pytest.raises(BudgetError, match="not announced, or is used up"):
            calibrated(method=method).fit_records(DATA)


def test_no_error_tells_of_a_record() -> None:
    huge = X.copy()
    huge[3] = np.finfo(float).max
    fitted = calibrated().fit_records(Dataset(huge, DATA.y, DATA.classes, size=400))
    assert np.isfinite(fitted.predict_proba(huge)).all()


# ---------------------------------------------------------------- claims


def test_a_fit_with_everything_declared_is_private() -> None:
    fitted = calibrated(training(), classes=["no", "yes"], size=400, epsilon=1.0).fit(X, Y)
    assert fitted.private_ and fitted.not_private_because_ == ()
    assert 0.99 < fitted.statement_.epsilon <= 1.0
    assert fitted.classes_.tolist() == ["no", "yes"]
    # Training by itself cost less, and must not say so.
    assert not fitted.estimator_.private_
    assert "part of a calibrated classifier" in fitted.estimator_.not_private_because_[-1]


@pytest.mark.parametrize(
    ("changes", "inner", "reason"),
    [
        ({"classes": None}, {}, "classes were read"),
        ({"size": None}, {}, "number of records was read"),
        ({"random_state": 1}, {}, "random_state was set"),
        ({}, {"random_state": 1}, "random_state was set"),
    ],
)
def test_what_breaks_the_guarantee_is_said(changes, inner, reason) -> None:
    settings = {"classes": ["no", "yes"], "size": 400, **changes}
    for how in ("reuse", "split"):
        fitted = calibrated(Known(**inner), recalibrate=how, **settings).fit(X, Y)
        assert not fitted.private_ and fitted.statement_.epsilon == np.inf
        assert fitted.statement_ == NotPrivate(fitted.not_private_because_)
        assert len(fitted.not_private_because_) == 1
        assert reason in fitted.not_private_because_[0]


def test_the_size_of_the_estimator_is_enough_where_it_gets_all_records() -> None:
    assert calibrated(Known(size=400), classes=["no", "yes"]).fit(X, Y).private_
    with pytest.raises(DataError, match="declared number of records"):
        calibrated(recalibrate="split").fit_records(Dataset(X, DATA.y, DATA.classes))


def test_a_fit_that_is_interrupted_claims_nothing() -> None:
    model = calibrated().fit_records(DATA)
    assert model.private_
    model.estimator = Known(fails=True)
    with pytest.raises(RuntimeError):
        model.fit_records(DATA)
    assert not model.private_ and model.statement_ == NotPrivate(("its fit did not end",))


def test_a_model_that_says_it_cost_something_else_is_not_released() -> None:
    class Liar(Known):
        def _learn(self, facts, rng):
            super()._learn(facts, rng)
            self.__class__ = Dear
            return ()

    class Dear(Known):
        @property
        def event_(self):
            return Gaussian(1.0)

        @event_.setter
        def event_(self, event):
            pass

    with pytest.raises(ValueError, match="Do not release"):
        calibrated(Liar()).fit_records(DATA)


def test_seeds_repeat_everything_and_secrets_nothing() -> None:
    for how in ("reuse", "split"):
        made = [
            calibrated(training(), recalibrate=how, random_state=s)
            for s in (7, 7, 8, None, None)
        ]
        found = [model.fit_records(DATA).logits(X).tobytes() for model in made]
        assert found[0] == found[1] and len(set(found)) == 4


def test_units_pay_for_all_their_rows() -> None:
    unit = Unit("patient", at_most=2)
    ids = np.repeat(np.arange(200), 2).astype(str)
    plain_set = Dataset(X, DATA.y, DATA.classes, units=ids, size=400)
    people = limit_contributions(plain_set, at_most=2)
    model = calibrated(Known(unit=unit), unit=unit, method=PrivateTemperature(epsilon=0.1))
    fitted = model.fit_records(people)
    noises = [release.event.noise for release in fitted.releases_]
    plain = calibrated(method=PrivateTemperature(epsilon=0.1)).event().events[1].events
    assert noises == [2 * event.noise for event in plain]
    assert fitted.statement_.at_most == 2
    with pytest.raises(DataError, match="units"):
        calibrated().fit_records(people)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recalibrate": "both"}, "recalibrate to be one of"),
        ({"relation": "swap"}, "relation to be one of"),
        ({"epsilon": -1.0}, "finite epsilon > 0"),
        ({"delta": 2.0}, "delta between 0 and 1"),
        ({"delta": 0.01, "size": 400}, "delta below 1 / size"),
        ({"share": 0.0}, "share between 0 and 1"),
        ({"share": 1.5}, "share between 0 and 1"),
        ({"holdout": 1.0}, "holdout between 0 and 1"),
        ({"guard": True}, "guard to be a Guard or None"),
        ({"unit": "patient"}, "unit to be a Unit or None"),
        ({"size": 0}, "integer size >= 1"),
        ({"method": "temperature"}, "a private fitter such as"),
        ({"unit": Unit("patient", 2)}, "the same unit"),
        ({"relation": "replace-one"}, "the same relation"),
        ({"level": "nothing", "epsilon": 1.0}, "a parameter of"),
        ({"random_state": "x"}, "random_state to be None"),
        ({"classes": ["a", "b"]}, "classes of the model"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_a_record_is_read(changes, said, asked):
    with pytest.raises(ValueError, match=said):
        calibrated(**changes).fit_records(DATA)
    assert not FITS and not asked


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), FrozenEstimator(Known().fit_records(DATA))]
)
def test_what_does_not_say_its_cost_is_refused(estimator) -> None:
    with pytest.raises(ValueError, match="does not say what it costs"):
        calibrated(estimator).event()


def test_a_pipeline_must_name_what_sets_its_noise() -> None:
    pipe = make_private_pipeline(NormClipper(1.0), training())
    with pytest.raises(ValueError, match="Expected level"):
        calibrated(pipe, epsilon=1.0).event()


def test_a_guard_is_checked_when_it_is_made() -> None:
    for wrong in ({"epsilon": 0.0}, {"beta": 0.5}, {"beta": 0.0}):
        with pytest.raises(ValueError, match="Expected"):
            Guard(**wrong)


# ---------------------------------------------------------------- company


def test_pipelines_go_inside_and_outside() -> None:
    inside = calibrated(make_private_pipeline(NormClipper(1.0), training())).fit_records(DATA)
    outside = make_private_pipeline(NormClipper(1.0), calibrated(training())).fit_records(DATA)
    assert inside.private_ and outside.private_
    assert inside.event_ == outside.event_
    assert score(inside, DATA).values.shape == score(outside, DATA).values.shape == (400, 2)


def test_a_search_may_choose_among_calibrated_classifiers() -> None:
    model = calibrated(training(sampling_rate=1.0))
    search = PrivateSearch(model, {"estimator__update": [0.1, 1.0]}, mean=2.0)
    assert search.fit_records(DATA).private_
    assert score(search, DATA).values.shape == (400, 2)


def test_it_is_copied_and_written_like_any_estimator() -> None:
    fitted = calibrated(guard=Guard(0.2), recalibrate="split").fit_records(DATA)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert again.private_ and again.event_ == fitted.event_
    fresh = clone(fitted)
    assert not hasattr(fresh, "map_") and fresh.event() == fitted.event_
    assert "Paid" not in repr(vars(fitted))


@pytest.mark.parametrize("changes", [{}, {"recalibrate": "split", "guard": Guard()}])
def test_scikit_learn_is_content(changes) -> None:
    quick = training(sampling_rate=1.0, steps=20, epochs=None)
    check_estimator(calibrated(quick, **changes), on_skip=None)  # one wants other arrays


def test_digits_are_better_calibrated_and_as_well_told_apart() -> None:
    digits = load("digits")
    rows = np.asarray(digits.X).reshape(len(digits), -1)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = (
        Dataset(rows[part] / 16, digits.y[part], digits.classes, size=len(part))
        for part in (order[:1400], order[1400:])
    )
    model = calibrated(
        training(clip=0.1, update=50.0, epochs=20),
        epsilon=8.0,
        size=1400,
        classes=digits.classes,
        random_state=0,
    ).fit_records(train)
    before, after = score(model.estimator_, test), score(model, test)
    assert ece(before) > 0.3 and ece(after) < 0.08
    np.testing.assert_array_equal(before.predictions, after.predictions)
