"""Private measurement: its queries, their cost, and its figures."""

import json
import math

import numpy as np
import pytest

from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.accounting import Budget, micro_epsilon
from veracal.calibration import (
    AbsoluteGaps,
    BinnedGap,
    CorrectWrong,
    measure_private,
    plan_measurement,
)
from veracal.calibration.private.estimates import (
    NoisyValue,
    max_variance,
    mean_estimate,
    share_estimate,
)
from veracal.calibration.private.measurement import absolute_gap_total, ece_floor
from veracal.data import Group, Scores
from veracal.errors import DataError
from veracal.ledger import open_ledger
from veracal.queries import Curator, Public

ALL = ("accuracy", "ece", "brier", "curve")
NAMES = ("f", "m")


def with_groups(n, rng, temperature=2.0):
    scores = miscalibrated(n, temperature, rng)
    group = Group.from_values(rng.choice(NAMES, size=n, p=[0.3, 0.7]), NAMES)
    return Scores.from_logits(scores.values, scores.labels, groups={"sex": group})


def plain(scores, bins=15):
    """The same figures without noise, written out."""
    sure, right = scores.confidence, scores.correct
    place = np.clip(np.ceil(sure * bins) - 1, 0, bins - 1)
    sums = [(right - sure)[place == b].sum() for b in range(bins)]
    gaps = scores.probabilities - np.eye(2)[scores.labels]
    return right.mean(), np.abs(sums).sum() / len(scores), (gaps**2).sum(axis=1).mean()


def test_every_kind_of_source_measures(source_of, rng):
    scores = with_groups(4_000, rng)
    result = measure_private(
        source_of(scores, Budget(4.0)),
        epsilon=4.0,
        figures=ALL,
        group="sex",
        group_names=NAMES,
    )
    parts = {name: scores.take(scores.groups["sex"].codes == i) for i, name in enumerate(NAMES)}
    for figures, own in [
        (result.overall, scores),
        *((result.groups[n], parts[n]) for n in NAMES),
    ]:
        accuracy, ece, brier = plain(own)
        bias = figures.ece_noise_bias
        assert figures.count.value == pytest.approx(len(own), abs=300)
        assert figures.accuracy.value == pytest.approx(accuracy, abs=0.06)
        assert ece - 0.05 < figures.ece.value < ece + 0.05 + 1.5 * bias
        assert figures.brier.value == pytest.approx(brier, abs=0.12)
        for estimate in (figures.accuracy, figures.ece, figures.brier):
            assert estimate.low <= estimate.value <= estimate.high
        last = figures.curve.accuracies[-1]
        assert last.value == pytest.approx(
            own.correct[own.confidence > 14 / 15].mean(), abs=0.15
        )
        edges = figures.curve.bins.edges
        inside = zip(edges, figures.curve.confidences, edges[1:], strict=False)
        assert all(low <= sure <= high for low, sure, high in inside)
    json.dumps(result.to_json(), allow_nan=False)


def test_public_figures_are_exact_and_say_so(rng):
    scores = with_groups(1_000, rng)
    result = measure_private(Public(scores), epsilon=0.1, figures=ALL)
    accuracy, ece, brier = plain(scores)
    assert result.overall.accuracy.value == pytest.approx(accuracy)
    assert result.overall.ece.value == pytest.approx(ece, abs=1e-5)
    assert result.overall.brier.value == pytest.approx(brier, abs=1e-5)
    assert result.overall.ece_noise_bias == 0
    assert not result.private and result.statement is None


@pytest.mark.parametrize("micro", [1_000_000, 99_991])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_a_measurement_costs_what_its_plan_says(holder, rng, micro, relation):
    about = {"figures": ALL, "group": "sex", "group_names": NAMES}
    plan = plan_measurement(micro_epsilon=micro, **about)
    source = holder(with_groups(200, rng), Budget(micro / 1e6, relation=relation))
    result = measure_private(source, micro_epsilon=micro, **about)
    spent = round(source.ledger.spent().epsilon * 1e6)
    assert spent == plan.micro_epsilon == micro_epsilon(plan.event(relation))
    assert micro - len(plan.queries) < spent <= micro
    assert result.statement.epsilon == pytest.approx(spent / 1e6, abs=1e-12)
    again = measure_private(source, micro_epsilon=micro, **about)
    assert again.overall == result.overall
    assert round(source.ledger.spent().epsilon * 1e6) == spent


def test_a_plan_is_opened_for_a_measurement(tmp_path, rng):
    plan = plan_measurement(epsilon=0.5, figures=ALL)
    ledger = open_ledger(tmp_path / "ledger", Budget(0.5, 1e-6), kind="plan", plan=plan.items())
    measure_private(Curator(with_groups(50, rng), ledger), epsilon=0.5, figures=ALL)
    assert all(used == item.times for item, used in ledger.planned())


def test_one_source_answers_one_number_and_several_answer_sums(rng):
    scores = with_groups(100, rng)
    source = Quick(scores, rng)
    measure_private(source, epsilon=1.0, figures=["ece"], request="now")
    queries = [query for query, _, _ in source.asked]
    assert [type(query) for query in queries] == [CorrectWrong, AbsoluteGaps]
    assert [request for _, _, request in source.asked] == ["now: counts", "now: ece"]
    asks = plan_measurement(epsilon=1.0, figures=["ece"], by_bins=True).queries
    assert [type(ask.query) for ask in asks.values()] == [CorrectWrong, BinnedGap]
    both = plan_measurement(epsilon=1.0, figures=["ece", "curve"], by_bins=True).queries
    assert list(both) == ["counts", "gaps", "bins"]


def test_one_number_is_not_raised_by_noise_and_sums_by_bin_are(rng):
    scores = miscalibrated(1_000, 1.0, rng)
    _, ece, _ = plain(scores)
    source = Quick(scores, rng)
    one = [AbsoluteGaps(), BinnedGap()]
    draws = [
        [
            np.abs(source.answer(query, micro_epsilon=200_000).values).sum() / 1_000
            for _ in range(400)
        ]
        for query in one
    ]
    assert np.mean(draws[0]) == pytest.approx(ece, abs=0.0015)
    assert np.mean(draws[1]) > ece + 0.03  # methods: +.046 at an epsilon of .2


@pytest.mark.parametrize("sources", [1, 4])
@pytest.mark.parametrize("largest", [0.0, 40.0])
def test_noise_adds_no_more_than_the_stated_bias(sources, largest, rng):
    exact = np.linspace(-1, 1, 16) * largest
    std = 5.0 * math.sqrt(2 * sources)
    raised = []
    for _ in range(500):
        noisy = exact + rng.laplace(scale=5.0, size=(sources, 16)).sum(axis=0)
        total, bias = absolute_gap_total([NoisyValue(v, std, (5.0,) * sources) for v in noisy])
        raised.append(total.value - np.abs(exact).sum())
        assert total.interval(1e-9)[0] <= np.abs(exact).sum() <= total.interval(1e-9)[1]
    assert np.mean(raised) < 1.05 * bias
    assert (np.mean(raised) > 0.9 * bias) == (largest == 0)


@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_intervals_hold_the_truth(epsilon, rng):
    """Of the population: records and noise are drawn again."""
    many = miscalibrated(400_000, 2.0, rng)
    accuracy, _, brier = plain(many)
    expected = np.mean([plain(miscalibrated(800, 2.0, rng))[1] for _ in range(100)])
    hits = np.zeros(3)
    for _ in range(80):
        source = Quick(miscalibrated(800, 2.0, rng), rng)
        result = measure_private(source, epsilon=epsilon).overall
        for i, (estimate, truth) in enumerate(
            [(result.accuracy, accuracy), (result.ece, expected), (result.brier, brier)]
        ):
            hits[i] += estimate.low <= truth <= estimate.high
    assert (hits >= 72).all()  # of 80 at a level of 0.95


def test_intervals_are_not_all_there_is(rng):
    result = measure_private(Quick(miscalibrated(20_000, 2.0, rng), rng), epsilon=1.0).overall
    for estimate in (result.accuracy, result.ece, result.brier):
        assert estimate.high - estimate.low < 0.05


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("micro", [1_000, 3_000_000])
def test_whatever_the_noise_does_no_figure_is_none_of_a_number(n, micro, rng):
    scores = with_groups(max(n, 1), rng).take(np.arange(n))
    nothing = 0
    for _ in range(40):
        result = measure_private(
            Quick(scores, rng), micro_epsilon=micro, figures=ALL, group="sex", group_names=NAMES
        )
        json.dumps(result.to_json(), allow_nan=False)
        for figures in (result.overall, *result.groups.values()):
            for estimate, most in ((figures.accuracy, 1), (figures.ece, 1), (figures.brier, 2)):
                nothing += estimate.value is None
                assert 0 <= estimate.low <= estimate.high <= most
                assert estimate.value is None or estimate.low <= estimate.value <= estimate.high
            assert figures.count.n >= 0 and figures.count.low >= 0
    assert nothing > 0


def test_counts_below_their_noise_give_no_value():
    for correct, wrong in ((-5.0, 2.0), (3.0, -3.0), (0.0, 0.0), (4.0, 4.0)):
        pair = NoisyValue(correct, 10.0, (7.0,)), NoisyValue(wrong, 10.0, (7.0,))
        assert share_estimate(*pair, 0.95).value is None
        result = mean_estimate(NoisyValue(5.0, 1.0, (1.0,)), *pair, 0.95, most=2.0)
        assert (result.value, result.low, result.high) == (None, 0.0, 2.0)


def test_exact_counts_give_the_interval_of_clopper_and_pearson():
    result = share_estimate(
        NoisyValue(8.0), NoisyValue(2.0), 0.85
    )  # a third of what is left: 0.95
    assert result.value == 0.8
    assert (result.low, result.high) == (
        pytest.approx(0.4439, abs=1e-4),
        pytest.approx(0.9748, abs=1e-4),
    )


@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0, 1.7, 2.0])
def test_no_numbers_vary_more_than_said(mean):
    assert max_variance(mean, mean, 2.0) == pytest.approx(mean * (2 - mean))
    assert max_variance(0.0, 2.0, 2.0) == 1.0


def test_a_calibrated_classifier_stays_below_the_floor(rng):
    printed = np.mean([plain(miscalibrated(500, 1.0, rng))[1] for _ in range(50)])
    assert 0.3 * ece_floor(15, 500) < printed < ece_floor(15, 500)
    assert ece_floor(15, 0) == ece_floor(15, -3) == 1.0


def test_groups_must_be_those_declared(holder, rng):
    source = holder(with_groups(50, rng))
    with pytest.raises(DataError, match="declare"):
        measure_private(source, epsilon=0.5, group="age", group_names=("old", "young"))
    assert not list(source.ledger.entries())  # reported before anything was charged


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epsilon": 1.0, "micro_epsilon": 1},
        {"micro_epsilon": 2},
        {"epsilon": 1.0, "figures": ()},
        {"epsilon": 1.0, "figures": "ece"},
        {"epsilon": 1.0, "figures": ["nll"]},
        {"epsilon": 1.0, "bins": 0},
        {"epsilon": 1.0, "group": "sex"},
        {"epsilon": 1.0, "level": 0.0},
    ],
)
def test_invalid_settings_are_rejected_before_any_query(settings, rng):
    source = Quick(with_groups(10, rng), rng)
    with pytest.raises(ValueError, match="Expected"):
        measure_private(source, **settings)
    assert not source.asked


def test_a_plan_reads_as_a_split():
    text = plan_measurement(epsilon=0.5, figures=["accuracy", "ece"]).text()
    assert "0.166666" in text and "0.333333" in text and "absolute gaps" in text
