"""A private affine map by bounded equations, on an enrolled grid."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.accounting import Budget, Unit, epsilon_for
from veracal.calibration import (
    ParameterGrid,
    Platt,
    PlattCurvature,
    PlattEquations,
    PrivatePlatt,
    PrivateTemperature,
    Temperature,
    guard_map,
    nll,
    plan_platt,
)
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private.platt import LogOddsTransform, StepSizes
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.queries import Pool, Public, Release, gaussian_event
from veracal.testing import adversarial_scores, check_query
from veracal.testing.queries import check_neighbors

FORMS = ["scalar", "vector", "matrix"]
GRID = ParameterGrid()
TOLD = {"epsilon": 4.0, "delta": 1e-5, "classes": 3}


def biased(n, rng):
    """Scores with a wrong temperature and a wrong bias for each class."""
    scores = miscalibrated(n, 2.0, rng, classes=3)
    return Scores.from_logits(scores.values + np.array([2.0, 0.0, -2.0]), scores.labels)


def of_four(n, rng):
    return adversarial_scores(n, rng, classes=4)


def map_of(form, k=4, weight=0.5):
    weights = {"scalar": weight, "vector": np.full(k, weight), "matrix": weight * np.eye(k)}
    return Platt(weights[form], np.arange(k) / 4)


@dataclass
class Noisy(Quick):
    """A quick source with Gaussian noise, too, as large as that of ``sources``."""

    sources: int = 1
    asked_gaussian: list = field(default_factory=list)

    def answer_gaussian(self, query, *, noise_multiplier, request=None):
        self.asked_gaussian.append((query, noise_multiplier))
        noise = gaussian_event(query, noise_multiplier, self.relation).noise
        noise *= self.sources**0.5
        drawn = np.rint(self.rng.normal(0, noise, query.entries))
        units = tuple(int(k) for k in query.evaluate(self.records) + drawn)
        std = noise * query.grid.step
        return Release(query.name, units, query.grid, std, None, None, private=False)


# ---------------------------------------------------------------- the questions


@pytest.mark.parametrize("form", FORMS)
def test_equations_keep_the_contract_of_a_query(form):
    check_query(PlattEquations(map_of(form), 0.5, 1.5), of_four, trials=12)


def test_the_curvature_keeps_the_contract_of_a_query():
    check_query(PlattCurvature(0.3, 4), of_four, trials=20)


@pytest.mark.parametrize("form", FORMS)
def test_equations_equal_their_definition(form, rng):
    scores = biased(30, rng)
    map_ = map_of(form, 3)
    query = PlattEquations(map_, 0.5, 1.5, bits=20)
    expected = np.zeros(query.entries)
    for z, y in zip(scores.values, scores.labels, strict=True):
        f = np.minimum(np.maximum((z - 0.5) / 1.5, -1), 1)
        u = map_.weights @ z if form == "matrix" else map_.weights * z
        r = softmax(u + map_.bias) - (np.arange(3) == y)
        parts = {"scalar": [r @ f], "vector": r * f, "matrix": np.outer(r, f).ravel()}
        expected += np.concatenate([parts[form], r])
    result = query.evaluate(scores) / 2**20
    np.testing.assert_allclose(result, expected, atol=30 * 2.0**-20)


@pytest.mark.parametrize("form", FORMS)
def test_one_record_reaches_the_bound_of_the_equations_and_no_more(form):
    """Sure and wrong, with the two logits at both ends; a smaller bound would be broken."""
    far = 400.0 * np.eye(4)[0] - 400.0 * np.eye(4)[1]
    far[2:] = 400.0 if form == "matrix" else 0.0
    far[0] = 500.0
    one = Scores.from_logits(far[None], [1])
    query = PlattEquations(map_of(form, weight=1.0), 0.0, 1.0)
    longest = np.linalg.norm(query.evaluate(one) / 2**10)
    bound = {"scalar": 6, "vector": 4, "matrix": 10}[form] ** 0.5
    assert query.bound == pytest.approx(bound)
    assert 0.99 * bound < longest <= bound + 2**-10
    pool = Scores.from_logits(np.stack([far, far, -far]), [1, 1, 0])
    check_neighbors(query, pool, 0)


def test_the_curvature_equals_its_definition(rng):
    scores, k = biased(40, rng), 3
    p = softmax(0.7 * scores.values, axis=1)
    q = p * (1 - p)
    expected = q.sum(), (q * np.clip(0.7 * scores.values / 8, -1, 1)).sum()
    result = PlattCurvature(0.7, k, bits=20).evaluate(scores) / 2**20
    np.testing.assert_allclose(result, expected, atol=40 * 2.0**-20)
    tied = Scores.from_logits(
        np.full((1, k), 1e6), [0]
    )  # with the lowest confidence, and far up
    reached = np.linalg.norm(PlattCurvature(1.0, k).evaluate(tied) / 2**12)
    assert 0.99 < reached / PlattCurvature(1.0, k).bound <= 1 + 2**-10


def test_equations_have_their_zero_at_the_true_map_and_clipped_gradients_do_not(rng):
    """The reason for bounded equations: clipping shortens those who are sure and wrong."""
    scores = miscalibrated(60_000, 4.0, rng, classes=3)
    truth = Platt(np.full(3, 0.25), np.zeros(3))
    query = PlattEquations(truth, 0.0, 1.0)
    mean = query.evaluate(scores) / 2**10 / len(scores)
    assert np.abs(mean).max() < 5 * 0.6 / 60_000**0.5 + 2**-11  # sampling, and truncation
    z, y = scores.values, scores.labels
    r = softmax(z / 4, axis=1) - np.eye(3)[y]
    gradients = np.concatenate([r * z, r], axis=1)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = (gradients * np.minimum(1, 2 / norms)).mean(axis=0)
    assert np.abs(clipped).max() > 10 * np.abs(mean).max()


def test_what_differs_is_another_question():
    map_ = map_of("vector")
    queries = [PlattEquations(map_), PlattEquations(map_, step=1), PlattEquations(map_, 0.5)]
    queries += [PlattEquations(map_, 0.0, 2.0), PlattEquations(map_of("vector", weight=0.75))]
    queries += [PlattEquations(map_, parameters=ParameterGrid(8)), PlattCurvature(1.0, 4)]
    queries += [PlattEquations(Platt(map_.weights, map_.bias, "logits"))]
    settings = {(q.name, tuple(sorted(q.settings.items()))) for q in queries}
    assert len(settings) == len(queries)
    assert PlattEquations(map_).settings["parameters"] == "2048 2048 2048 2048 0 1024 2048 3072"


@pytest.mark.parametrize(
    "make",
    [
        lambda: PlattEquations(Platt(0.1, np.zeros(3))),  # off the grid
        lambda: PlattEquations(Platt(17.0, np.zeros(3))),
        lambda: PlattEquations(Platt(1.0, [0.0, 16.5])),
        lambda: PlattEquations(Temperature(1.0)),
        lambda: PlattEquations(map_of("vector"), spread=0.0),
        lambda: PlattEquations(map_of("vector"), center=np.nan),
        lambda: PlattEquations(map_of("vector"), step=-1),
        lambda: PlattCurvature(0.0, 3),
        lambda: PlattCurvature(1.0, 1),
        lambda: ParameterGrid(bits=25),
        lambda: ParameterGrid(most_weight=0),
        lambda: ParameterGrid(most_bias=5_000),
        lambda: GRID.map((1, 2, 3), "vector", 2),
        lambda: GRID.map((16 * 4096 + 1, 0, 0, 0), "vector", 2),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError, match="Expected"):
        make()


# ---------------------------------------------------------------- the grid


@given(
    st.integers(0, 14),
    st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=6, max_size=6),
)
def test_the_nearest_map_is_on_the_grid_and_its_integers_are_the_map(bits, values):
    grid = ParameterGrid(bits, most_weight=4, most_bias=2)
    map_ = grid.nearest(values[:3], values[3:])
    units = grid.units(map_)
    assert all(abs(k) <= 4 << bits for k in units[:3])
    assert all(abs(k) <= 2 << bits for k in units[3:])
    assert grid.map(units, "vector", 3) == map_
    for result, wanted, most in zip(
        [*map_.weights, *map_.bias], values, [4] * 3 + [2] * 3, strict=True
    ):
        assert abs(result - np.clip(wanted, -most, most)) <= grid.step / 2
        assert result == round(result * 2**bits) / 2**bits


@pytest.mark.parametrize("form", FORMS)
def test_every_queried_map_is_on_the_grid(form, rng):
    grid = ParameterGrid(6, most_weight=4, most_bias=4)
    source = Noisy(biased(500, rng), rng)
    result = PrivatePlatt(form, grid=grid, **TOLD).fit(source)
    queried = [q for q, _ in source.asked_gaussian if isinstance(q, PlattEquations)]
    assert len(queried) == 8 and all(q.parameters == grid for q in queried)
    assert len({q.settings["parameters"] for q in queried}) > 4
    assert grid.units(result.map_)


@pytest.mark.parametrize("form", FORMS)
def test_steps_in_log_odds_are_the_map_they_say(form, rng):
    view = LogOddsTransform(form, 3, 0.5, 1.25, ParameterGrid(20))
    theta = rng.normal(size={"scalar": 4, "vector": 6, "matrix": 12}[form])
    theta = view.without_offsets(theta)
    z = rng.normal(size=(5, 3))
    x = (0.5 * z - 1.25) / 2
    a = theta[:-3].reshape({"scalar": (), "vector": (3,), "matrix": (3, 3)}[form])
    moved = x @ a.T if form == "matrix" else a * x
    expected = softmax(0.5 * z + moved + theta[-3:], axis=1)
    result = view.map(theta).transform(Scores.from_logits(z)).probabilities
    np.testing.assert_allclose(result, expected, atol=1e-5)


# ---------------------------------------------------------------- the fit


@pytest.mark.parametrize("form", FORMS)
def test_without_noise_it_is_nearly_the_best_map(form, rng):
    scores = biased(4_000, rng)
    result = PrivatePlatt(form, steps=40, **TOLD).fit(Public(scores))
    true = Scores.from_logits((scores.values - np.array([2.0, 0, -2.0])) / 2, scores.labels)
    one = PrivateTemperature(epsilon=1.0).fit(Public(scores))
    best, reached = nll(true), nll(result.transform(scores))
    near = 0.01 if form == "matrix" else 0.003  # many weights converge slowly
    assert reached < best + near < nll(one.transform(scores)) - 0.05
    assert not result.private_ and result.statement_ is None


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_source_beats_a_temperature(source_of, rng, form):
    scores = biased(3_000, rng)
    fitter = PrivatePlatt(form, **TOLD)
    source = source_of(scores, Budget(4.0, 1e-5), kind="plan", plan=fitter.items())
    result = fitter.fit(source)
    one = PrivateTemperature(epsilon=1.0).fit(Public(scores))
    assert nll(result.transform(scores)) < nll(one.transform(scores)) - 0.05
    assert result.map_.form == form
    if result.private_:
        assert 3.9 < result.statement_.epsilon <= 4.0 and result.statement_.delta == 1e-5
        again = fitter.fit(source)  # everything was answered: nothing is left to pay
        assert again.map_ == result.map_


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_fit_costs_at_most_epsilon(form, relation, rows):
    unit = Unit("patient", max_contributions=rows)
    event = PrivatePlatt(form, **TOLD).event(relation, unit)
    assert 3.9 < epsilon_for(event, 1e-5, unit) <= 4.0
    assert epsilon_for(event, 1e-5 / 2, unit) > 4.0  # delta is used, too


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_event_is_exactly_the_queries(rng, relation):
    fitter = PrivatePlatt(**TOLD)
    source = PrepaidSource(biased(300, rng), fitter.event(relation))
    assert fitter.fit(source).private_ and "0 answers left" in repr(source)
    more = PrivatePlatt(**{**TOLD, "epsilon": 4.1})  # less noise than was announced
    with pytest.raises(BudgetError):
        more.fit(PrepaidSource(biased(300, rng), fitter.event(relation)))
    short = PrivatePlatt(steps=7, **TOLD).event(relation)
    with pytest.raises(BudgetError):
        fitter.fit(PrepaidSource(biased(300, rng), short))


def test_noises_depend_on_no_record(rng):
    """Neighbors, and quite other records: the same noises for the same kinds of question."""
    queried = []
    for scores in (biased(300, rng), biased(299, rng), adversarial_scores(50, rng, classes=3)):
        source = Noisy(scores, np.random.default_rng(0))
        PrivatePlatt(**TOLD).fit(source)
        laws = [(q.name, q.sensitivity_l2("add-remove"), m) for q, m in source.asked_gaussian]
        queried.append(laws)
    assert queried[0] == queried[1] == queried[2]


def test_the_same_answers_lead_to_the_same_map(rng):
    scores = biased(300, rng)
    pair = [Noisy(scores, np.random.default_rng(1)) for _ in range(2)]
    first, second = (PrivatePlatt(**TOLD).fit(source).map_ for source in pair)
    assert first == second
    other = PrivatePlatt(**TOLD).fit(Noisy(scores, np.random.default_rng(2))).map_
    assert other != first


def test_the_noise_is_at_most_what_is_said_and_not_far_below(rng):
    scores = biased(3_000, rng)
    fits = [
        PrivatePlatt(**TOLD, size=3_000).fit(Noisy(scores, np.random.default_rng(seed)))
        for seed in range(25)
    ]
    # Probabilities of a map do not change with an offset of all biases: they are centered.
    biases = np.std([fit.map_.bias for fit in fits], axis=0)
    weights = np.std([fit.map_.weights for fit in fits], axis=0)
    said = fits[0]
    assert said.noise_std_ == max(said.weight_std_, said.bias_std_)
    assert 0.15 * said.bias_std_ < biases.max() < 1.3 * said.bias_std_
    assert 0.15 * said.weight_std_ < weights.max() < 1.3 * said.weight_std_
    exact = PrivatePlatt(**TOLD, size=3_000).fit(Public(scores))
    middle = exact.effective_temperature_.value
    held = [
        fit.effective_temperature_.low <= middle <= fit.effective_temperature_.high
        for fit in fits
    ]
    assert sum(held) >= 22 and said.effective_temperature_.n == 3_000


def test_much_noise_leaves_a_temperature(rng):
    scores = miscalibrated(2_000, 2.0, rng, classes=3)
    worst = 0.0
    for seed in range(8):
        source = Noisy(scores, np.random.default_rng(seed), sources=1_000_000)
        result = PrivatePlatt(**TOLD, size=2_000).fit(source)
        worst = max(worst, float(np.ptp(result.map_.bias)))
        assert result.map_.weights.min() > 0
    assert worst < 0.5


def test_sources_that_drop_out_are_left_out(holder, rng):
    scores = biased(6_000, rng)
    fitter = PrivatePlatt(**TOLD)
    parts = [scores.take(np.arange(i, 6_000, 3)) for i in range(3)]
    plan = fitter.items()
    able = [holder(p, Budget(4.0, 1e-5), kind="plan", plan=plan) for p in parts[:2]]

    class Leaving:
        def __init__(self):
            self.source, self.left = Noisy(parts[2], rng), 7

        def answer(self, query, **told):
            return self.told("answer", query, told)

        def answer_gaussian(self, query, **told):
            return self.told("answer_gaussian", query, told)

        def told(self, how, query, told):
            self.left -= 1
            if self.left < 0:
                raise TimeoutError("gone")
            return getattr(self.source, how)(query, **told)

    result = fitter.fit(Pool([*able, Leaving()], min_sources=2))
    one = PrivateTemperature(epsilon=1.0).fit(Public(scores))
    assert nll(result.transform(scores)) < nll(one.transform(scores)) - 0.05
    # The number that was divided by is that of those who stayed.
    assert result.effective_temperature_.n == pytest.approx(4_000, abs=400)


def test_the_guard_keeps_it_where_it_helps_and_not_where_it_does_not(holder, rng):
    scores = biased(3_000, rng)
    map_ = PrivatePlatt(**TOLD).fit(Public(scores)).map_
    assert guard_map(map_, holder(biased(3_000, rng)), epsilon=1.0).kept
    fine = miscalibrated(3_000, 1.0, rng, classes=3)
    assert not guard_map(map_, holder(fine), epsilon=1.0).kept


# ---------------------------------------------------------------- the plan


def test_what_counts_is_records_by_the_root_of_sources():
    settings = {"epsilon": 1.0, "delta": 1e-6, "classes": 10}
    one = plan_platt(size=10_000, sources=1, **settings)
    many = plan_platt(size=100_000, sources=100, **settings)
    assert one.parameter_std == pytest.approx(many.parameter_std)
    assert one.shrinkage == pytest.approx(many.shrinkage)
    few = plan_platt(size=1_000, sources=1, **settings)
    assert few.advice == "temperature" and few.shrinkage < 0.2
    assert "temperature is expected to be more accurate" in few.text()
    enough = plan_platt(size=100_000, **settings)
    assert enough.advice == "platt" and "Sufficient" in enough.text()
    assert enough.excess < one.excess
    fitter = PrivatePlatt(**settings)
    event = fitter.event().events[2].event
    assert event.noise == pytest.approx(
        one.noise_multiplier * PlattCurvature(1.0, 10).sensitivity_l2("add-remove")
    )


def test_the_plan_foresees_the_noise(rng):
    scores = biased(3_000, rng)
    p = softmax(scores.values / 2 - np.array([1.0, 0, -1.0]), axis=1)
    curvature = float((p * (1 - p)).sum(axis=1).mean())
    plan = plan_platt(size=3_000, curvature=curvature, **TOLD)
    biases = [
        PrivatePlatt(**TOLD, size=3_000).fit(Noisy(scores, np.random.default_rng(s))).map_.bias
        for s in range(25)
    ]
    assert 0.4 < np.std(biases, axis=0).mean() / plan.parameter_std < 2.5


def test_a_step_goes_where_its_formula_says():
    pace = StepSizes.of("vector", 2, 0.2, 0.01, 4)
    h, ridge = 0.1, 0.01**2 / 4 / (0.25 * 0.1)
    np.testing.assert_allclose(pace.ridge, ridge)
    theta, mean = np.array([1.0, 0, 0, 0]), np.array([0.0, 0.3, 0, 0])
    expected = theta - (mean + ridge * theta) / (2 * h + ridge)
    np.testing.assert_allclose(pace.step(theta, mean), expected)
    draws = np.random.default_rng(0).normal(0, 0.01, (4_000, 4, 4))
    ends = []
    for noises in draws:  # flat equations: nothing but noise and the ridge
        at, kept = np.zeros(4), []
        for step, noise in enumerate(noises):
            at = pace.step(at, noise)
            kept += [at] if step >= 2 else []
        ends.append(np.mean(kept, axis=0))
    np.testing.assert_allclose(np.std(ends, axis=0), pace.std(0.01), rtol=0.05)


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "full"},
        {"method": "newton"},
        {"delta": None},
        {"delta": 0.0},
        {"delta": 1.0},
        {"classes": None},
        {"classes": 1},
        {"form": "matrix", "classes": 51},
        {"steps": 0},
        {"size": 0},
        {"grid": 12},
        {"level": 1.0},
        {"epsilon": None},
    ],
    ids=str,
)
def test_nonsense_settings_are_refused(settings):
    with pytest.raises(ValueError, match="Expected"):
        PrivatePlatt(**{**TOLD, **settings}).event()


@pytest.mark.parametrize("settings", [{"curvature": 0.0}, {"size": 0}, {"sources": 0}], ids=str)
def test_nonsense_plans_are_refused(settings):
    with pytest.raises(ValueError, match="Expected"):
        plan_platt(**{**TOLD, "size": 100, **settings})


def test_a_source_without_gaussian_noise_is_refused_before_a_question(rng):
    source = Quick(biased(100, rng), rng)
    with pytest.raises(ValueError, match="Gaussian"):
        PrivatePlatt(**TOLD).fit(source)
    assert source.asked == []
