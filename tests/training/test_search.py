"""A search is charged for all its trials, and releases one of them."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats
from sklearn.utils.estimator_checks import estimator_checks_generator

from veracal.accounting import (
    Budget,
    Composed,
    DiscreteGaussian,
    Gaussian,
    NotPrivate,
    Parallel,
    Search,
    Unit,
    epsilon_for,
    rdp_epsilon,
)
from veracal.data import Dataset
from veracal.errors import BudgetError, DataError
from veracal.ledger import open_ledger
from veracal.queries import Curator
from veracal.training import NormClipper, PrivateLogisticRegression, PrivateStandardizer
from veracal.training import search as module
from veracal.training.base import LinearClassifier
from veracal.training.pipeline import make_private_pipeline
from veracal.training.preprocessing import shorten_rows
from veracal.training.search import PrivateSearch

FITS = []  # data to which the models below were fitted


class NoisyMeans(LinearClassifier):
    """Noisy sums of clipped rows, class by class; negated for a sign of -1."""

    delta = 1e-5  # not among its parameters

    def __init__(
        self,
        noise_multiplier=3.0,
        sign=1,
        *,
        classes=None,
        size=None,
        relation="add-remove",
        unit=None,
        random_state=None,
    ):
        self.noise_multiplier = noise_multiplier
        self.sign = sign
        self.classes = classes
        self.size = size
        self.relation = relation
        self.unit = unit
        self.random_state = random_state

    def _check_settings(self):
        if not self.noise_multiplier >= 0:
            raise ValueError(f"Expected noise, got {self.noise_multiplier!r}.")

    def _sensitivity(self):
        return 1.0 if self.relation == "add-remove" else 2.0

    def _cost(self, size):
        if self.noise_multiplier == 0:
            return None
        return Gaussian(
            self.noise_multiplier * self._sensitivity(), self._sensitivity(), self.relation
        )

    def _learn(self, data, rng):
        rows = shorten_rows(np.asarray(data.X[:], float), 1.0)
        sums = np.eye(len(data.classes))[data.codes].T @ rows
        noise = rng.normal(0, self.noise_multiplier * self._sensitivity(), sums.shape)
        coef = self.sign * (sums + noise) / data.size
        self.coef_ = coef if len(coef) > 2 else np.diff(coef, axis=0)
        self.intercept_ = np.zeros(len(self.coef_))
        FITS.append((self, data))
        return ()


SIGNS = [{"sign": 1}, {"sign": -1}, {"sign": -1}]


@pytest.fixture(autouse=True)
def _forget():
    FITS.clear()


@pytest.fixture
def data(rng):
    X = rng.normal(size=(600, 3))
    return Dataset(X, (X[:, 0] > 0).astype(int), ("no", "yes"), size=600)


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "a.ledger", Budget(5.0, 1e-5), kind="open")


def search(settings=SIGNS, model=None, **more):
    return PrivateSearch(model or NoisyMeans(), settings, **{"mean": 4.0, **more})


# ---------------------------------------------------------------- cost


def test_a_trial_is_training_and_a_noisy_score():
    trial = Composed((Gaussian(3.0), DiscreteGaussian(10.0, 1)))
    assert search().event() == Search(trial, 4.0, "logarithmic")
    assert search(distribution="poisson", mean=2).event() == Search(trial, 2.0, "poisson")
    swapped = search(model=NoisyMeans(relation="replace-one"), relation="replace-one")
    values = swapped.event().event.events
    assert values == (
        Gaussian(6.0, 2.0, "replace-one"),
        DiscreteGaussian(10.0, 1, "replace-one"),
    )


def test_the_costliest_setting_is_charged():
    event = search({"noise_multiplier": [2.0, 3.0, 2.0], "sign": [1, -1]}).event()
    score = DiscreteGaussian(10.0, 1)
    trials = tuple(Composed((Gaussian(noise), score)) for noise in (2.0, 3.0))
    assert event == Search(Parallel(trials), 4.0, "logarithmic")
    worst = search(model=NoisyMeans(2.0)).event()
    assert epsilon_for(event, 1e-5) == pytest.approx(epsilon_for(worst, 1e-5), rel=1e-9)


def test_a_holdout_costs_the_larger_of_two_searches():
    training, score = Search(Gaussian(3.0), 4.0), Search(DiscreteGaussian(1.0, 1), 4.0)
    event = search(holdout=0.25, score_noise=1.0).event()
    assert event == Parallel((training, score))
    costs = [epsilon_for(one, 1e-5) for one in (training, score)]
    assert (
        epsilon_for(event, 1e-5)
        == max(costs)
        < epsilon_for(search(score_noise=1.0).event(), 1e-5)
    )


@pytest.mark.parametrize(
    ("distribution", "figure"), [("logarithmic", 3.58), ("geometric", 4.17), ("poisson", 4.43)]
)
def test_published_figures(distribution, figure):
    model = PrivateLogisticRegression(
        epsilon=None, noise_multiplier=1.0, sampling_rate=0.01, steps=1000
    )
    event = PrivateSearch(model, [{}], distribution=distribution).event()
    assert rdp_epsilon(event.event, 1e-5) == pytest.approx(2.14, abs=5e-3)
    assert epsilon_for(event, 1e-5) == pytest.approx(figure, abs=0.03)


def test_a_search_without_a_cost_bound_is_rejected():
    model = PrivateLogisticRegression(
        epsilon=None, noise_multiplier=1.0, relation="replace-one"
    )
    with pytest.raises(ValueError, match="Rényi bound"):
        PrivateSearch(model, [{}], relation="replace-one").event()
    with pytest.raises(ValueError, match="max_contributions=1"):
        search(unit=Unit("patient", max_contributions=2)).event()
    with pytest.raises(ValueError, match="not private"):
        search({"noise_multiplier": [1.0, 0.0]}).event()
    with pytest.raises(ValueError, match="charged under add-remove"):
        search({"relation": ["add-remove", "replace-one"]}).event()


@pytest.mark.parametrize(
    "settings",
    [
        dict(mean=0.5),
        dict(mean=1.0),
        dict(distribution="uniform"),
        dict(holdout=1.0),
        dict(holdout=0.0),
        dict(score_noise=0.0),
        dict(default=3),
        dict(default=-1),
        dict(delta=0),
        dict(settings=[]),
        dict(settings=["sign"]),
        dict(settings=[{"signs": 1}]),
        dict(settings=[{"noise_multiplier": -1}]),
        dict(model=PrivateLogisticRegression),
    ],
    ids=repr,
)
def test_invalid_settings_are_rejected_before_a_charge(data, ledger, settings):
    with pytest.raises((ValueError, TypeError)):
        Curator(data, ledger).fit(search(**settings))
    assert ledger.spent().epsilon == 0 and not FITS


# ---------------------------------------------------------------- the number of trials


def test_the_drawn_number_of_trials_is_run(data, monkeypatch):
    numbers, draw_number = [], module.draw_trial_count

    def watched(mean, law, *, rng):
        numbers.append(draw_number(mean, law, rng=rng))
        return numbers[-1]

    monkeypatch.setattr(module, "draw_trial_count", watched)
    for _ in range(20):
        FITS.clear()
        search(mean=3.0, distribution="geometric").fit_records(data.take(np.arange(10)))
        assert len(FITS) == numbers[-1]
    assert len(set(numbers)) > 1


def test_settings_are_drawn_independently_and_uniformly(data, monkeypatch):
    monkeypatch.setattr(module, "draw_trial_count", lambda *_, **__: 600)
    settings = [{"sign": sign} for sign in (1, 2, 3)]
    search(settings, random_state=0).fit_records(data.take(np.arange(10)))
    drawn = np.array([model.sign - 1 for model, _ in FITS])
    assert stats.chisquare(np.bincount(drawn, minlength=3)).pvalue > 1e-3
    pairs = np.bincount(3 * drawn[:-1] + drawn[1:], minlength=9)
    assert stats.chi2_contingency(pairs.reshape(3, 3)).pvalue > 1e-3


def test_every_trial_draws_independent_noise(data, monkeypatch):
    monkeypatch.setattr(module, "draw_trial_count", lambda *_, **__: 20)
    for state in (None, 0):
        FITS.clear()
        search([{}], random_state=state).fit_records(data)
        assert len({model.coef_.tobytes() for model, _ in FITS}) == 20


def walked(value, path="", depth=0):
    """Name, type, size and numeric value of everything reachable from an object."""
    number = value if isinstance(value, int | float) else None
    yield path, type(value).__name__, getattr(value, "shape", None), number
    if depth < 4:
        inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for key in sorted(inside, key=str):
            yield from walked(inside[key], f"{path}.{key}", depth + 1)


def test_the_number_of_trials_is_not_kept(data, monkeypatch, capsys):
    shapes, sizes = set(), set()
    for number in (1, 2, 7, 211):
        monkeypatch.setattr(module, "draw_trial_count", lambda *_, number=number, **__: number)
        fitted = search([{"sign": 1}]).fit_records(data.take(np.arange(20)))
        shapes.add(tuple((path, kind, size) for path, kind, size, _ in walked(fitted)))
        sizes.add(len(pickle.dumps(fitted)))
        assert not [path for path, *_, value in walked(fitted) if value == 211]
    assert len(shapes) == len(sizes) == 1
    assert capsys.readouterr() == ("", "")


# ---------------------------------------------------------------- the winner


def test_a_search_prefers_the_better_setting(data):
    fitted = search(mean=8.0, random_state=1).fit_records(data)
    assert fitted.best_params_ == {"sign": 1} == {"sign": fitted.best_estimator_.sign}
    assert fitted.score(data.X, data.labels) > 0.9
    assert fitted.biased_score_ == pytest.approx(1, abs=0.2)
    np.testing.assert_array_equal(
        fitted.predict(data.X), fitted.best_estimator_.predict(data.X)
    )
    for method in ("predict_proba", "predict_log_proba", "decision_function", "logits"):
        np.testing.assert_array_equal(
            getattr(fitted, method)(data.X), getattr(fitted.best_estimator_, method)(data.X)
        )


def test_the_noisy_score_decides(data, monkeypatch):
    monkeypatch.setattr(module, "draw_trial_count", lambda *_, **__: 6)
    wins = [
        search(score_noise=1e6, random_state=seed).fit_records(data).best_params_["sign"]
        for seed in range(25)
    ]
    assert -1 in wins and 1 in wins  # with this much noise, any trial may win


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("holdout", [None, 0.3])
def test_without_a_trial_the_default_depends_on_no_record(data, rng, relation, holdout):
    n = 600 if relation == "replace-one" else 17
    others = Dataset(rng.normal(size=(n, 3)), rng.integers(2, size=n), data.classes, size=600)
    seed = next(s for s in range(99) if _draw_trials(s, data, relation, holdout) == 0)
    settings = dict(
        distribution="poisson", mean=1.0, default=1, relation=relation, holdout=holdout
    )
    fits = [
        search(model=NoisyMeans(relation=relation), random_state=seed, **settings)
        .fit_records(records)
        .best_estimator_
        for records in (data, data.take(np.arange(600)[::-1]))
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    FITS.clear()
    fitted = search(model=NoisyMeans(relation=relation), **settings)
    _without_trials(fitted, others)
    assert fitted.best_params_ == {"sign": -1} and math.isnan(fitted.biased_score_)
    ((_, training_data),) = FITS
    assert not np.isin(np.asarray(training_data.X), others.X).any()
    assert fitted.private_


def _draw_trials(seed, data, relation, holdout):
    """The number of trials for a seed."""
    FITS.clear()
    fitted = search(
        model=NoisyMeans(relation=relation),
        distribution="poisson",
        mean=1.0,
        relation=relation,
        holdout=holdout,
        random_state=seed,
    ).fit_records(data)
    return 0 if math.isnan(fitted.biased_score_) else len(FITS)


def _without_trials(fitted, records):
    """Fit with secret randomness, with no trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "draw_trial_count", lambda *_, **__: 0)
        fitted.fit_records(records)


# ---------------------------------------------------------------- holdouts


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_records_are_split_once_and_without_overlap(data, monkeypatch, relation):
    scored = []
    monkeypatch.setattr(module, "draw_trial_count", lambda *_, **__: 6)
    real = module.noisy_correct_count

    def watch(model, records, noise, *, rng):
        scored.append(records)
        return real(model, records, noise, rng=rng)

    monkeypatch.setattr(module, "noisy_correct_count", watch)
    model = NoisyMeans(relation=relation)
    search(model=model, holdout=0.25, relation=relation).fit_records(data)
    trained = [one for _, one in FITS]
    assert len(trained) == len(scored) == 6
    mine, theirs = set(trained[0].X[:, 0]), set(scored[0].X[:, 0])
    assert not mine & theirs and mine | theirs == set(data.X[:, 0])
    assert all(set(one.X[:, 0]) == mine for one in trained)
    assert all(set(records.X[:, 0]) == theirs for records in scored)
    assert 100 < len(theirs) < 200
    assert {one.size for one in trained} == {450}
    if relation == "replace-one":
        assert len(mine) == 450


def test_each_fit_draws_a_new_holdout(data):
    parts = []
    for _ in range(2):
        FITS.clear()
        search(holdout=0.5).fit_records(data)
        parts.append(set(FITS[0][1].X[:, 0]))
    assert parts[0] != parts[1]


# ---------------------------------------------------------------- holders and claims


def test_the_curator_charges_the_search_and_fits(data, ledger):
    model = search(holdout=0.3)
    assert Curator(data, ledger).fit(model) is model
    assert ledger.entries()[0].event == model.event() == model.event_
    assert model.private_ and model.not_private_because_ == ()
    assert model.statement_.epsilon == pytest.approx(epsilon_for(model.event(), 1e-5))


def test_a_search_over_pipelines_is_charged_as_a_whole(data, ledger):
    pipeline = make_private_pipeline(
        PrivateStandardizer((-4, 4), noise_multiplier=6.0), NormClipper(), NoisyMeans()
    )
    model = search({"noisymeans__sign": [1, -1]}, pipeline, mean=6.0)
    Curator(data, ledger).fit(model)
    trial = Composed((Composed((Gaussian(6.0), Gaussian(3.0))), DiscreteGaussian(10.0, 1)))
    assert model.event_ == Search(trial, 6.0) and model.private_


def test_an_unaffordable_search_runs_no_trial(data, ledger):
    with pytest.raises(BudgetError):
        Curator(data, ledger).fit(search(model=NoisyMeans(0.1)))
    assert not FITS


def test_unsuitable_data_are_rejected_before_a_charge(data, ledger):
    text = Dataset(np.array([["a"], ["b"]]), np.array([0, 1]), ("no", "yes"), size=2)
    unsized = Dataset(data.X, data.y, data.classes)
    for records, model in (
        (text, search()),
        (unsized, search()),
        (data, search(classes=["no", "perhaps"])),
        (data, search({"classes": [["no", "perhaps"]]})),
    ):
        with pytest.raises(DataError):
            Curator(records, ledger).fit(model)
    assert ledger.spent().epsilon == 0 and not FITS
    assert Curator(unsized, ledger).fit(search(size=600)).private_


def test_empty_data_are_supported(data):
    for holdout in (None, 0.3):
        assert search(holdout=holdout).fit_records(data.take(np.arange(0))).private_


def test_fit_records_what_was_inferred(data):
    values = search().fit(data.X, data.labels)
    assert isinstance(values.statement_, NotPrivate) and len(values.not_private_because_) == 2
    declared = search(classes=["no", "yes"], size=600).fit(data.X, data.labels)
    assert declared.private_


def test_repeatable_draws_are_not_private(data):
    model = search(random_state=0).fit_records(data)
    assert model.not_private_because_ == (
        "its random draws can be reproduced: random_state was set",
    )
    inner = search(model=NoisyMeans(random_state=0)).fit_records(data)
    assert not inner.private_
    twin = search(random_state=0).fit_records(data)
    np.testing.assert_array_equal(model.best_estimator_.coef_, twin.best_estimator_.coef_)
    assert model.biased_score_ == twin.biased_score_


class Misstated(NoisyMeans):
    """States another cost after the fit."""

    def fit_records(self, dataset):
        super().fit_records(dataset)
        self.event_ = Gaussian(9.0)
        return self


def test_a_trial_with_another_cost_is_not_released(data):
    with pytest.raises(ValueError, match="Do not release"):
        search([{}], Misstated()).fit_records(data)


def test_logistic_regression_is_searched(data):
    model = PrivateLogisticRegression(
        epsilon=None, noise_multiplier=2.0, sampling_rate=1.0, steps=10
    )
    instance = PrivateSearch(model, {"optimizer": [1e-9, 3.0]}, mean=6.0, random_state=4)
    instance.fit_records(data)
    assert instance.best_params_ == {"optimizer": 3.0}
    assert instance.score(data.X, data.labels) > 0.9
    assert instance.event_ == instance.event()


def test_scikit_learn_checks_pass():
    model = search([{}, {"sign": -1}], mean=2.0)
    checked = 0
    for estimator, check in estimator_checks_generator(model, legacy=True):
        if getattr(check, "func", check).__name__ != "check_array_api_input":
            check(estimator)
            checked += 1
    assert checked > 40


def test_a_seed_in_any_setting_is_a_reason():
    seeded = [{"random_state": 0}, {"random_state": None}]
    for _ in range(4):
        search = PrivateSearch(
            PrivateLogisticRegression(epsilon=0.5, steps=2, sampling_rate=1.0),
            seeded,
            mean=2.0,
            classes=[0, 1],
            size=40,
        ).fit(np.random.default_rng(0).uniform(-1, 1, (40, 2)), np.arange(40) % 2)
        assert not search.private_


@pytest.mark.parametrize(
    "search",
    [
        {"unit": Unit("patient", 5)},
        {"relation": "replace-one"},
        {"settings": {"not_private": [None, "neither"]}},
    ],
)
def test_a_search_without_a_cost_is_not_private(search):
    model = PrivateLogisticRegression(epsilon=0.5, steps=2, sampling_rate=1.0)
    instance = {"estimator": model, "settings": {"clip": [1.0]}, "mean": 2.0, **search}
    fitted = PrivateSearch(**instance, classes=[0, 1], size=40)
    for _ in range(3):
        fitted.fit(np.random.default_rng(0).uniform(-1, 1, (40, 2)), np.arange(40) % 2)
        assert not fitted.private_ and fitted.statement_.reasons


def test_the_best_model_makes_no_claim_of_its_own():
    model = PrivateLogisticRegression(epsilon=0.5, steps=2, sampling_rate=1.0)
    search = PrivateSearch(model, {"clip": [1.0]}, mean=2.0, classes=[0, 1], size=40)
    search.fit(np.random.default_rng(0).uniform(-1, 1, (40, 2)), np.arange(40) % 2)
    assert search.private_ and not search.best_estimator_.private_
    assert "best model of a search" in search.best_estimator_.statement_.text()
