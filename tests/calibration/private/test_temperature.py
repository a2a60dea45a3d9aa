"""A private temperature: its queries, its cost and its accuracy."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.accounting import Budget, Unit, epsilon_for, micro_epsilon
from veracal.calibration import Gap, PrivateTemperature, Temperature, TemperatureGradient
from veracal.calibration.queries.scalars import loss_at
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.ledger import open_ledger
from veracal.queries import Curator, Public


def balanced(scores):
    """Where mean confidence equals accuracy, by bisection, without noise."""

    def gap(u):
        return Gap(math.exp(u)).evaluate(scores)[0]

    return math.exp(optimize.brentq(gap, math.log(0.05), math.log(20)))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_every_kind_of_source_finds_it(source_of, temperature, rng):
    scores = miscalibrated(3_000, temperature, rng, classes=4)
    result = PrivateTemperature(epsilon=1.0, level=0.999).fit(source_of(scores))
    assert result.map_.value == pytest.approx(1 / balanced(scores), rel=0.08)
    assert result.map_.value == pytest.approx(temperature, rel=0.25)
    estimate = result.temperature_
    assert estimate.low < temperature < estimate.high
    assert estimate.low <= estimate.value == result.map_.value <= estimate.high
    assert isinstance(result.map_, Temperature)
    assert (result.transform(scores).predictions == scores.predictions).all()


def test_public_records_are_said_not_to_be_private(rng):
    scores = miscalibrated(2_000, 2.0, rng)
    result = PrivateTemperature(epsilon=0.1).fit(Public(scores))
    assert not result.private_ and result.statement_ is None
    assert result.map_.inverse == pytest.approx(balanced(scores), rel=0.02)


@pytest.mark.parametrize("micro", [1_000_000, 123_457, 7_001])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_search_costs_what_it_says_and_no_millionth_more(holder, rng, micro, relation):
    fitter = PrivateTemperature(micro_epsilon=micro, classes=2)
    source = holder(miscalibrated(300, 2.0, rng), Budget(micro / 1e6, relation=relation))
    fitter.fit(source)
    spent = round(source.ledger.spent().epsilon * 1e6)
    assert micro - 4 < spent <= micro
    assert spent == micro_epsilon(fitter.event(relation))
    assert spent == sum(release.micro_epsilon for release in fitter.releases_)
    assert fitter.private_ and fitter.statement_.epsilon <= micro / 1e6
    assert fitter.statement_.relation == relation


def test_units_of_several_rows_pay_once_for_all_of_them(tmp_path, rng):
    scores = miscalibrated(300, 2.0, rng)
    units = np.repeat(np.arange(100), 3)
    scores = Scores.from_logits(scores.values, scores.labels, units=units)
    unit = Unit("patient", 3)
    ledger = open_ledger(tmp_path / "ledger", Budget(0.5, unit=unit))
    fitter = PrivateTemperature(epsilon=0.5).fit(Curator(scores, ledger))
    assert micro_epsilon(fitter.event(unit=unit), unit) == round(ledger.spent().epsilon * 1e6)
    assert fitter.statement_.max_contributions == 3
    one = PrivateTemperature(epsilon=0.5).event()
    assert [e.noise for e in fitter.event(unit=unit).events] == pytest.approx(
        [3 * e.noise for e in one.events]
    )


def test_what_cannot_be_paid_is_refused_at_the_question_it_runs_out(holder, rng):
    source = holder(miscalibrated(100, 2.0, rng), Budget(0.1))
    with pytest.raises(BudgetError):
        PrivateTemperature(epsilon=0.2).fit(source)
    assert source.ledger.spent().epsilon <= 0.1


class Breaks:
    """A source that is cut off after some answers."""

    def __init__(self, source, answers):
        self.source, self.left = source, answers

    def answer(self, query, **about):
        if not self.left:
            raise ConnectionError
        self.left -= 1
        return self.source.answer(query, **about)

    def answer_gaussian(self, query, **about):
        if not self.left:
            raise ConnectionError
        self.left -= 1
        return self.source.answer_gaussian(query, **about)


@pytest.mark.parametrize("request_id", [None, "mine"])
def test_a_fit_that_broke_off_goes_on_where_it_was(holder, rng, request_id):
    source = holder(miscalibrated(500, 2.0, rng), Budget(0.4))
    fitter = PrivateTemperature(epsilon=0.4)
    with pytest.raises(ConnectionError):
        fitter.fit(Breaks(source, 3), request=request_id)
    spent = source.ledger.spent().epsilon
    first = fitter.fit(source, request=request_id)
    assert 0 < spent < source.ledger.spent().epsilon <= 0.4
    again = clone(fitter).fit(source, request=request_id)  # no budget is left for new queries
    assert again.map_ == first.map_ and again.releases_ == first.releases_


def test_a_plan_is_opened_for_a_fit(tmp_path, rng):
    fitter = PrivateTemperature(epsilon=0.3)
    ledger = open_ledger(
        tmp_path / "ledger", Budget(0.3, 1e-6), kind="plan", plan=fitter.items()
    )
    fitter.fit(Curator(miscalibrated(300, 2.0, rng), ledger))
    assert all(used == item.times for item, used in ledger.planned())


def test_gaps_are_queried_at_the_posterior_median_with_the_stated_shares(rng):
    source = Quick(miscalibrated(20_000, 3.0, rng), rng)
    fitter = PrivateTemperature(micro_epsilon=1_000_000, temperatures=(0.1, 10.0)).fit(source)
    prices = [price for _, price, _ in source.asked]
    assert prices == [150_000, 120_000, 240_000, 490_000]
    inverses = [query.inverse for query, _, _ in source.asked[1:]]
    assert inverses[0] == 1.0
    assert abs(math.log(3 * inverses[2])) < 0.1 < abs(math.log(3 * inverses[0]))
    assert all(inverse * 2**16 == int(inverse * 2**16) for inverse in inverses)
    assert 0.1 <= fitter.map_.inverse <= 10.0


@pytest.mark.parametrize("temperatures", [(0.1, 0.5), (2.0, 20.0)])
def test_the_range_is_kept(temperatures, rng):
    result = PrivateTemperature(epsilon=1.0, temperatures=temperatures)
    result.fit(Public(miscalibrated(2_000, 1.0, rng)))
    assert result.map_.value == pytest.approx(
        min(temperatures, key=lambda t: abs(math.log(t))), rel=0.02
    )


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_few_records_leave_a_temperature_near_one(n, rng):
    scores = miscalibrated(max(n, 1), 5.0, rng).take(np.arange(n))
    for _ in range(40):
        result = PrivateTemperature(epsilon=0.05).fit(Quick(scores, rng))
        assert 0.05 <= result.map_.inverse <= 20
        estimate = result.temperature_
        assert all(math.isfinite(x) for x in (estimate.low, estimate.value, estimate.high))
        assert 0.05 <= estimate.low < 0.8 and 1.2 < estimate.high <= 20


def test_a_search_beats_bisection_and_comes_near_one_exact_draw(rng):
    """At little epsilon; figures of the trial that chose it are in the documentation."""
    scores = [miscalibrated(4_000, t, rng, classes=k) for t in (0.5, 1.0, 3.0) for k in (2, 10)]
    ours, bisected = [], []
    for one in scores:
        source = Quick(one, rng)
        for _ in range(8):
            result = PrivateTemperature(epsilon=0.05).fit(source)
            ours.append(abs(Gap(result.map_.inverse).evaluate(one)[0]) / 2**20 / len(one))
            bisected.append(
                abs(Gap(bisection(source, 50_000)).evaluate(one)[0]) / 2**20 / len(one)
            )
    assert np.mean(ours) < 0.75 * np.mean(bisected)
    assert np.mean(ours) < 0.025


def bisection(source, micro, probes=5):
    """On the sign of the gap, in log inverse temperature, at equal shares."""
    low, high = math.log(0.05), math.log(20)
    for _ in range(probes):
        middle = round(math.exp((low + high) / 2) * 512) / 512
        gap = source.answer(Gap(middle), micro_epsilon=micro // probes).value
        low, high = (math.log(middle), high) if gap > 0 else (low, math.log(middle))
    return math.exp((low + high) / 2)


@pytest.mark.parametrize("epsilon", [0.02, 0.3])
def test_intervals_hold_the_right_temperature(epsilon, rng):
    """With records and noise drawn again each time."""
    hits = 0
    for i in range(60):
        temperature = (0.5, 1.0, 2.5)[i % 3]
        source = Quick(miscalibrated(1_500, temperature, rng, classes=2 + 3 * (i % 2)), rng)
        estimate = PrivateTemperature(epsilon=epsilon).fit(source).temperature_
        hits += estimate.low <= temperature <= estimate.high
    assert hits >= 52  # of 60 at a level of 0.95: fewer has a probability below 0.01


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_narrower_levels_give_narrower_intervals(level, rng):
    scores = miscalibrated(1_000, 2.0, rng)
    result = PrivateTemperature(epsilon=0.2, level=level).fit(Quick(scores, rng))
    width = math.log(result.temperature_.high / result.temperature_.low)
    assert (width < 0.45) == (level == 0.5)


def test_real_scores_end_where_confidence_is_accuracy(tmp_path):
    digits = load_digits(return_X_y=True)
    cancer = load_breast_cancer(return_X_y=True)
    for i, (X, y, strength) in enumerate([(*digits, 1e-4), (*cancer, 1e-3)]):
        rows = StandardScaler().fit_transform(X) if i else X
        cut = len(y) // 3
        model = LogisticRegression(C=strength, max_iter=2_000).fit(rows[:cut], y[:cut])
        scores = Scores.from_logits(model.decision_function(rows[cut:]), y[cut:])
        before = abs(scores.confidence.mean() - scores.correct.mean())
        source = Curator(scores, open_ledger(tmp_path / str(i), Budget(2.0)))
        result = PrivateTemperature(epsilon=2.0, level=0.9999).fit(source)
        after = result.transform(scores)
        assert before > 0.15
        assert abs(after.confidence.mean() - after.correct.mean()) < 0.03
        assert result.temperature_.low < 1 / balanced(scores) < result.temperature_.high


# ---------------------------------------------------------------- descent


DESCENT = {"epsilon": 8.0, "delta": 1e-5, "size": 2_000}


def test_descent_follows_the_paper_step_by_step(rng):
    scores = miscalibrated(500, 2.0, rng)
    result = PrivateTemperature("descent", **{**DESCENT, "size": 500}).fit(Public(scores))
    p = math.log(math.e - 1)
    for step in range(100):
        beta, h = math.log1p(math.exp(p)), 1e-6
        slopes = (loss_at(scores, math.log1p(math.exp(p + h))) - loss_at(scores, beta)) / h
        p -= 0.1 * (1 - step / 100) * np.clip(slopes, -10, 10).sum() / 500
    assert result.map_.inverse == pytest.approx(math.log1p(math.exp(p)), abs=2e-3)
    assert len(result.releases_) == 100


def test_descent_divides_by_the_declared_size(rng):
    scores = miscalibrated(500, 2.0, rng)
    near = PrivateTemperature("descent", epsilon=8.0, delta=1e-5, size=5_000).fit(
        Public(scores)
    )
    far = PrivateTemperature("descent", epsilon=8.0, delta=1e-5, size=500).fit(Public(scores))
    assert abs(near.map_.inverse - 1) < 0.3 * abs(far.map_.inverse - 1)


def test_descent_runs_on_every_kind_of_source(source_of, rng):
    scores = miscalibrated(2_000, 2.0, rng)
    fitter = PrivateTemperature("descent", **DESCENT, steps=15, level=0.9999)
    source = source_of(scores, Budget(8.0, 1e-5), kind="plan", plan=fitter.items())
    exact = clone(fitter).fit(Public(scores)).map_.inverse
    result = fitter.fit(source)
    assert result.map_.inverse == pytest.approx(exact, abs=0.05)
    estimate = result.temperature_
    assert estimate.low <= 1 / exact <= estimate.high or not result.private_
    if result.private_:
        assert result.statement_.epsilon <= 8.0 + 1e-9
        assert result.statement_.delta == 1e-5


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("unit", [Unit(), Unit("patient", 4)], ids=str)
def test_descent_costs_at_most_epsilon_and_nearly_all_of_it(relation, unit):
    fitter = PrivateTemperature("descent", epsilon=2.0, delta=1e-6, size=1_000, steps=30)
    cost = epsilon_for(fitter.event(relation, unit), 1e-6, unit)
    assert 1.98 < cost <= 2.0


def test_descent_that_broke_off_asks_no_step_twice(holder, rng):
    fitter = PrivateTemperature("descent", epsilon=4.0, delta=1e-5, size=300, steps=6)
    source = holder(
        miscalibrated(300, 2.0, rng), Budget(4.0, 1e-5), kind="plan", plan=fitter.items()
    )
    with pytest.raises(ConnectionError):
        fitter.fit(Breaks(source, 4))
    first = fitter.fit(source)  # a seventh question would not be in the plan
    assert len({release.units for release in first.releases_}) > 1
    assert clone(fitter).fit(source).map_ == first.map_
    assert [used for _, used in source.ledger.planned()] == [6]


def test_steps_at_the_same_place_are_different_questions():
    first, second = (TemperatureGradient(0.2, step=i) for i in (0, 1))
    assert first.settings != second.settings


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("descent", {"epsilon": 1.0}),
        ("descent", {"epsilon": 1.0, "delta": 1e-5}),
        ("descent", {"epsilon": 1.0, "delta": 1e-5, "size": 0}),
        ("descent", {"epsilon": 1.0, "delta": 1e-5, "size": 9, "temperatures": (2.0, 1.0)}),
        ("search", {}),
        ("search", {"epsilon": 1.0, "micro_epsilon": 5}),
        ("search", {"epsilon": 1.0, "temperatures": (2.0, 1.0)}),
        ("search", {"epsilon": 1.0, "temperatures": (0.0, 1.0)}),
        ("search", {"epsilon": 1.0, "temperatures": (1.0, 1e7)}),  # no map has it
        ("search", {"epsilon": 1.0, "temperatures": (1e-7, 1.0)}),
        ("search", {"epsilon": 1.0, "level": 1.0}),
        ("search", {"micro_epsilon": 3}),
        ("bisection", {"epsilon": 1.0}),
    ],
)
def test_invalid_settings_are_rejected_before_any_query(method, settings, rng):
    source = Quick(miscalibrated(10, 1.0, rng), rng)
    with pytest.raises(ValueError, match="Expected"):
        PrivateTemperature(method, **settings).fit(source)
    with pytest.raises(ValueError, match="Expected"):
        PrivateTemperature(method, **settings).event()
    assert not source.asked


def test_descent_needs_gaussian_answers(rng):
    source = Quick(miscalibrated(10, 1.0, rng), rng)
    with pytest.raises(ValueError, match="search"):
        PrivateTemperature("descent", **DESCENT).fit(source)


def test_a_fitter_keeps_no_records(rng):
    result = PrivateTemperature(epsilon=1.0).fit(Public(miscalibrated(50, 1.0, rng)))
    assert not any(isinstance(value, Scores | Public | Path) for value in vars(result).values())
