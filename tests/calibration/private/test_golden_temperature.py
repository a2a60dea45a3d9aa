"""A temperature by golden section: its queries, its cost and its accuracy."""

import numpy as np
import pytest
from sklearn.base import clone

from tests.calibration.private.conftest import Quick, miscalibrated
from tests.calibration.private.test_golden_section import as_defined
from veracal.accounting import Budget, Unit, micro_epsilon
from veracal.calibration import Gap, Identity, Temperature
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private import golden_section as golden
from veracal.calibration.private.golden_section import (
    OBJECTIVES,
    GoldenTemperature,
    SourceSums,
    narrow_bracket,
)
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.ledger import open_ledger
from veracal.queries import Curator, Pool, Public

RELATIONS = "add-remove", "replace-one"
of_objectives = pytest.mark.parametrize("objective", OBJECTIVES)
of_relations = pytest.mark.parametrize("relation", RELATIONS)


def slowly(scores, objective, t):
    """The minimized objective, record by record, as printed in the paper."""
    gaps, losses = np.zeros(15), 0.0
    for logits, label in zip(scores.values, scores.labels, strict=True):
        powers = np.exp((logits - logits.max()) / t)
        p = powers / powers.sum()
        losses += min(-np.log(p[label]), 10.0)
        gap = (p.argmax() == label) - p.max()
        gaps[max(int(np.ceil(p.max() * 15)) - 1, 0)] += gap
    values = abs(gaps.sum()), losses, np.abs(gaps).sum()
    return dict(zip(OBJECTIVES, values, strict=True))[objective]


@of_objectives
@pytest.mark.parametrize("temperatures", [(0.5, 3.0), (0.5, 6.0)], ids=str)
def test_public_records_give_the_search_as_defined(objective, temperatures, rng):
    scores = miscalibrated(120, 2.0, rng, classes=3)
    fitter = GoldenTemperature(objective, epsilon=1.0, temperatures=temperatures)
    result = fitter.fit(Public(scores))
    low, high = as_defined(lambda t: slowly(scores, objective, t), *temperatures, 5)
    assert result.map_.value == pytest.approx((low + high) / 2, rel=1e-4)  # up to its grid
    assert isinstance(result.map_, Temperature)
    assert not result.private_ and result.statement_ is None
    assert [probe.noise_std for probe in result.evaluations_] == [0.0] * 6
    expected = [slowly(scores, objective, probe.temperature) for probe in result.evaluations_]
    short = 5 * 120 if objective == "likelihood" else 0  # centered
    values = [probe.value for probe in result.evaluations_]
    np.testing.assert_allclose(values, np.array(expected) - short, atol=1e-4)


@of_objectives
def test_every_kind_of_source_finds_it(source_of, objective, rng):
    scores = miscalibrated(3_000, 2.5, rng)
    fitter = GoldenTemperature(objective, epsilon=60.0, level=0.99)
    result = fitter.fit(source_of(scores, Budget(60.0)))
    assert result.map_.value == pytest.approx(2.5, abs=0.7)
    estimate = result.temperature_
    assert 0.5 <= estimate.low <= estimate.value == result.map_.value <= estimate.high <= 6
    assert estimate.low <= 2.5 <= estimate.high
    assert (result.transform(scores).predictions == scores.predictions).all()


@of_objectives
@of_relations
@pytest.mark.parametrize("micro", [123_457, 7])
def test_it_costs_equal_parts_and_no_millionth_more(holder, rng, objective, relation, micro):
    fitter = GoldenTemperature(objective, micro_epsilon=micro, classes=2)
    source = holder(miscalibrated(40, 2.0, rng), Budget(micro / 1e6, relation=relation))
    fitter.fit(source)
    assert [release.micro_epsilon for release in fitter.releases_] == [micro // 6] * 6
    spent = round(source.ledger.spent().epsilon * 1e6)
    assert micro - 6 < spent == 6 * (micro // 6) == micro_epsilon(fitter.event(relation))
    assert fitter.private_ and fitter.statement_.relation == relation
    assert fitter.statement_.epsilon <= micro / 1e6


@pytest.mark.parametrize(
    ("settings", "moves"),
    [
        ({"objective": "accuracy"}, (1, 2)),
        ({"objective": "accuracy", "classes": 4}, (1, 1.75)),
        ({"objective": "likelihood"}, (5, 10)),
        ({"objective": "likelihood", "centered": False}, (10, 10)),
        ({"objective": "likelihood", "clamp": 4.0, "centered": False}, (4, 4)),
        ({"objective": "calibration error"}, (1, 2)),
    ],
    ids=str,
)
def test_noise_is_that_of_the_sensitivity_and_of_a_share(settings, moves):
    """Laplace scale (K + 1) / epsilon times what one record moves, under each relation."""
    for relation, moved in zip(RELATIONS, moves, strict=True):
        event = GoldenTemperature(epsilon=0.6, reductions=5, **settings).event(relation)
        assert len(event.events) == 6
        for each in event.events:
            assert each.noise * 2.0**-20 == pytest.approx(moved * 6 / 0.6)
            assert each.sensitivity * 2.0**-20 == moved
            assert each.relation == relation


def test_the_unclamped_loss_has_no_event():
    with pytest.raises(ValueError, match="clamp"):
        GoldenTemperature("likelihood", epsilon=1.0, clamp=np.inf).event()


@of_objectives
@of_relations
def test_what_was_announced_is_enough_and_not_one_question_more(objective, relation, rng):
    scores = miscalibrated(60, 2.0, rng)
    fitter = GoldenTemperature(objective, micro_epsilon=600_000)
    source = PrepaidSource(scores, fitter.event(relation))
    fitter.fit(source)
    extra = fitter._query(0.123)
    with pytest.raises(BudgetError):
        source.answer(extra, micro_epsilon=100_000)


def one_value_more(ask, low, high, reductions):
    """The printed search: a value after the last cut as well."""
    result = narrow_bracket(ask, low, high, reductions)
    new = max(result.bracket.points(), key=lambda point: np.abs(result.points - point).min())
    ask(new)
    return result


def test_a_value_after_the_last_cut_is_seen(holder, rng, monkeypatch):
    scores = miscalibrated(60, 2.0, rng)
    fitter = GoldenTemperature(micro_epsilon=600_000)
    monkeypatch.setattr(golden, "narrow_bracket", one_value_more)
    with pytest.raises(IndexError):  # there is no price for it
        fitter.fit(PrepaidSource(scores, fitter.event()))
    # Even with one, there is no charge.
    asks = fitter._queries()
    monkeypatch.setattr(GoldenTemperature, "_queries", lambda _: [*asks, asks[0]])
    announced = golden.QueryRequest.event(asks[0], "add-remove")
    with pytest.raises(BudgetError):
        fitter.fit(PrepaidSource(scores, type(fitter.event())((announced,) * 6)))
    with pytest.raises(BudgetError):
        fitter.fit(holder(scores, Budget(0.6)))


def test_a_share_of_one_in_k_is_seen(rng):
    """The paper's epsilon / K for each of K + 1 values is 1.2 epsilon."""
    scores = miscalibrated(60, 2.0, rng)
    right = GoldenTemperature(micro_epsilon=600_000)
    wrong = GoldenTemperature(micro_epsilon=720_000)
    assert wrong._queries()[0].micro_epsilon == 600_000 // 5
    with pytest.raises(BudgetError):
        wrong.fit(PrepaidSource(scores, right.event()))


def test_noise_for_the_other_relation_is_seen(rng):
    scores = miscalibrated(60, 2.0, rng)
    fitter = GoldenTemperature(micro_epsilon=600_000)
    source = PrepaidSource(scores, fitter.event("replace-one"))
    answer = fitter.fit(source).releases_[0]
    assert answer.event.noise == 2 * fitter.event("add-remove").events[0].noise


def test_units_of_several_rows_pay_once_for_all_of_them(tmp_path, rng):
    scores = miscalibrated(300, 2.0, rng)
    units = np.repeat(np.arange(100), 3)
    scores = Scores.from_logits(scores.values, scores.labels, units=units)
    unit = Unit("patient", 3)
    ledger = open_ledger(tmp_path / "ledger", Budget(0.6, unit=unit))
    fitter = GoldenTemperature(epsilon=0.6, size=300).fit(Curator(scores, ledger))
    assert micro_epsilon(fitter.event(unit=unit), unit) == 600_000
    assert round(ledger.spent().epsilon * 1e6) == 600_000
    assert fitter.statement_.max_contributions == 3
    one = GoldenTemperature(epsilon=0.6).event().events[0].noise
    assert {e.noise for e in fitter.event(unit=unit).events} == {3 * one}


class Breaks:
    """A source that is cut off after some answers."""

    def __init__(self, source, answers):
        self.source, self.left = source, answers

    def answer(self, query, **about):
        if not self.left:
            raise ConnectionError
        self.left -= 1
        return self.source.answer(query, **about)


@of_objectives
@pytest.mark.parametrize("request_id", [None, "mine"])
def test_a_fit_that_broke_off_goes_on_where_it_was(holder, rng, objective, request_id):
    source = holder(miscalibrated(100, 2.0, rng), Budget(0.6))
    fitter = GoldenTemperature(objective, epsilon=0.6)
    with pytest.raises(ConnectionError):
        fitter.fit(Breaks(source, 3), request=request_id)
    assert source.ledger.spent().epsilon == pytest.approx(0.3)
    first = fitter.fit(source, request=request_id)
    assert source.ledger.spent().epsilon == pytest.approx(0.6)
    again = clone(fitter).fit(source, request=request_id)  # no budget is left for new queries
    assert again.map_ == first.map_ and again.releases_ == first.releases_
    assert again.evaluations_ == first.evaluations_ and again.temperature_ == first.temperature_


def test_what_cannot_be_paid_to_the_last_is_not_begun(holder, rng):
    source = holder(miscalibrated(100, 2.0, rng), Budget(0.5))
    with pytest.raises(BudgetError):
        GoldenTemperature(epsilon=0.6).fit(source)
    assert source.ledger.spent().epsilon == 0


def test_a_plan_is_opened_for_a_fit(tmp_path, rng):
    fitter = GoldenTemperature(epsilon=0.3)
    ledger = open_ledger(
        tmp_path / "ledger", Budget(0.3, 1e-6), kind="plan", plan=fitter.items()
    )
    fitter.fit(Curator(miscalibrated(100, 2.0, rng), ledger))
    assert all(used == item.times for item, used in ledger.planned())


def test_queried_temperatures_are_on_the_public_grid(rng):
    source = Quick(miscalibrated(500, 2.0, rng), rng)
    result = GoldenTemperature(epsilon=1.0, temperatures=(0.7, 4.3)).fit(source)
    inverses = [query.inverse for query, _, _ in source.asked] + [result.map_.inverse]
    assert all(inverse * 2**16 == int(inverse * 2**16) for inverse in inverses)
    assert all(1 / 4.3 <= inverse <= 1 / 0.7 for inverse in inverses)
    assert [1 / p.temperature for p in result.evaluations_] == pytest.approx(inverses[:-1])
    assert len({inverse for inverse in inverses[:-1]}) == 6


def sixths(scores):
    """Six sources of unequal size."""
    cuts = np.split(np.arange(len(scores)), np.array([1, 2, 4, 6, 9]) * len(scores) // 16)
    return [scores.take(index) for index in cuts]


def test_a_source_that_falls_silent_is_left_out_of_every_value(rng):
    scores = miscalibrated(1_600, 4.5, rng)
    sources = [Quick(part, rng) for part in sixths(scores)]
    sources[5] = Breaks(sources[5], 1)
    fitter = GoldenTemperature("likelihood", epsilon=1e5)
    result = fitter.fit(Pool(sources, min_sources=3))
    left = scores.take(np.arange(900))
    expected = [
        slowly(left, "likelihood", p.temperature) - 5 * 900 for p in result.evaluations_
    ]
    np.testing.assert_allclose([p.value for p in result.evaluations_], expected, atol=0.02)
    assert result.map_.value == pytest.approx(4.5, abs=0.5)


def stale(ask, low, high, reductions):
    """A close mistake: a value is kept from when its point was queried."""
    seen = []

    def remember(point):
        seen.append(ask(point)[-1])
        return seen

    return narrow_bracket(remember, low, high, reductions)


def test_values_of_other_sources_than_before_would_lead_astray(rng, monkeypatch):
    monkeypatch.setattr(golden, "narrow_bracket", stale)
    sources = [Quick(part, rng) for part in sixths(miscalibrated(1_600, 4.5, rng))]
    sources[5] = Breaks(sources[5], 1)
    result = GoldenTemperature("likelihood", epsilon=1e5).fit(Pool(sources, min_sources=3))
    assert result.map_.value < 4.0


def test_a_dropped_out_source_is_charged_and_named(holder, rng):
    parts = sixths(miscalibrated(320, 2.5, rng))
    holders = [holder(part, Budget(0.6)) for part in parts]
    pool = Pool([Breaks(holders[0], 2), *holders[1:]], min_sources=5)
    result = GoldenTemperature(epsilon=0.6).fit(pool)
    assert [one.ledger.spent().epsilon for one in holders] == pytest.approx([0.2] + [0.6] * 5)
    assert result.private_ and result.statement_.epsilon == pytest.approx(0.6)
    assert len(result.releases_) == 6
    given = [release.parts[0] is not None for release in result.releases_]
    assert given == [True, True, False, False, False, False]  # what was released stays listed


def test_rows_of_one_unit_are_not_so_many_chances():
    """Rows of one individual may be equal, so a sample of them contains less information."""
    settings = [SourceSums(np.array([[gap]]), (), 1.0) for gap in (-80.0, 80.0)]
    fitter = GoldenTemperature(epsilon=1.0, size=500)
    points = np.array([2.0, 4.0])
    assert fitter._interval(points, settings, rows=1) == (2.0, 4.0)
    assert fitter._interval(points, settings, rows=3) == (0.5, 6.0)


def test_the_interval_says_what_it_counts(rng):
    scores = miscalibrated(600, 2.0, rng)

    def fitted(sources, **settings):
        parts = [scores.take(np.arange(i, 600, sources)) for i in range(sources)]
        return GoldenTemperature(epsilon=9.0, **settings).fit(
            Pool([Quick(part, rng) for part in parts])
        )

    assert fitted(2).interval_covers_ == "noise"
    assert fitted(2).temperature_.n == 0
    assert fitted(2, size=600).interval_covers_ == "noise and sampling"
    assert fitted(2, size=600).temperature_.n == 600
    assert fitted(10).interval_covers_ == "noise and sampling"
    quiet = GoldenTemperature(epsilon=1.0).fit(Pool([Public(scores.take(np.arange(300)))]))
    assert quiet.interval_covers_ == "noise" and not quiet.private_


@of_objectives
def test_intervals_hold_the_right_temperature(objective, rng):
    """End to end, at sources of unequal size; the distribution is tested on the formulas."""
    for _ in range(4):
        parts = [miscalibrated(int(n), 2.0, rng) for n in rng.integers(10, 60, size=10)]
        pool = Pool([Quick(part, rng) for part in parts])
        estimate = GoldenTemperature(objective, epsilon=20.0).fit(pool).temperature_
        assert estimate.low <= 2.0 <= estimate.high


def test_with_hardly_any_epsilon_the_interval_is_the_whole_range(rng):
    source = Quick(miscalibrated(50, 2.0, rng), rng)
    for objective in OBJECTIVES:
        estimate = GoldenTemperature(objective, micro_epsilon=600).fit(source).temperature_
        assert (estimate.low, estimate.high) == (0.5, 6.0)


def test_no_records_give_a_temperature_all_the_same(rng):
    empty = miscalibrated(5, 2.0, rng).take(np.arange(0))
    for objective in OBJECTIVES:
        result = GoldenTemperature(objective, epsilon=1.0).fit(Public(empty))
        assert (result.temperature_.low, result.temperature_.high) == (0.5, 6.0)
        assert 0.5 < result.map_.value < 6.0


def test_the_baselines_of_the_paper_are_a_source_alone_and_no_map(rng):
    parts = sixths(miscalibrated(3_200, 2.5, rng))
    alone = GoldenTemperature(epsilon=1.0).fit(Public(parts[0]))
    every = GoldenTemperature(epsilon=1.0).fit(Pool([Public(part) for part in parts]))
    assert not alone.private_ and not every.private_
    assert abs(every.map_.value - 2.5) < 0.4
    np.testing.assert_array_equal(Identity().transform(parts[0]).values, parts[0].values)


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "ECE"},
        {"temperatures": (3.0, 0.5)},
        {"temperatures": (0.0, 3.0)},
        {"temperatures": (0.5, 1e7)},
        {"temperatures": (0.5, 3.0, 6.0)},
        {"temperatures": 3.0},
        {"reductions": 0},
        {"reductions": 2.5},
        {"level": 1.0},
        {"level": 0.0},
        {"size": 0},
        {"epsilon": -1.0},
        {"epsilon": None},
        {"micro_epsilon": 5, "epsilon": None},
        {"bins": 0, "objective": "calibration error"},
        {"classes": 1},
        {"clamp": 0.0, "objective": "likelihood"},
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_is_charged(holder, rng, settings):
    source = holder(miscalibrated(20, 1.0, rng))
    fitter = GoldenTemperature(**{"epsilon": 0.5, **settings})
    for use in (fitter.event, lambda: fitter.fit(source)):
        with pytest.raises(ValueError, match="Expected"):
            use()
    assert source.ledger.spent().epsilon == 0


def test_gaps_of_the_search_are_those_of_the_query(rng):
    scores = miscalibrated(200, 2.0, rng)
    for probe in GoldenTemperature(epsilon=1.0).fit(Public(scores)).evaluations_:
        gap = Gap(1 / probe.temperature)
        assert probe.value == abs(gap.evaluate(scores)[0]) * gap.grid.step
