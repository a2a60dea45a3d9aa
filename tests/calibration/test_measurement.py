"""All metrics at once, with intervals that cover at their level."""

import json
import math

import numpy as np
import pytest

from tests.calibration.metrics.sample_scores import scores
from veracal import calibration
from veracal.calibration.measurement import figure_names, measure
from veracal.data import Scores


def test_figures_are_those_of_the_metrics(rng):
    built = scores(80, 2)
    result = measure(built, replicates=5, rng=rng)
    assert set(result.figures) == set(calibration.figure_names(2))
    for name, estimate in result.figures.items():
        assert estimate.value == getattr(calibration, name)(built)
        assert estimate.n == 80 and estimate.level == 0.95
    assert (result.n, result.n_units, result.n_classes, result.replicates) == (80, 80, 2, 5)
    assert result.private is False
    assert result.curve.ece == pytest.approx(result["ece"].value)


def test_bins_are_passed_on(rng):
    built = scores(400, 2)
    result = measure(built, bins=4, replicates=0, rng=rng)
    changed = {n for n in result.figures if result[n].value != getattr(calibration, n)(built)}
    assert changed >= {"ece", "ace", "sce", "mce", "binary_ece", "debiased_l2", "classwise_ace"}
    assert len(result.curve.bins) == 4 == result.bins
    assert result["sce"].value == calibration.sce(built, 4)


def test_more_classes_have_no_binary_figures(rng):
    result = measure(scores(50, 3), replicates=2, rng=rng)
    assert set(result.figures) == set(figure_names(3))
    assert not any(name.startswith(("binary", "calibration")) for name in result.figures)
    with pytest.raises(ValueError, match="'binary_ece'. Check the spelling"):
        measure(scores(50, 3), figures=["ece", "binary_ece"], rng=rng)


def test_figures_can_be_chosen_and_drawn_again():
    result = scores(200)
    one, two = (
        measure(result, figures=["ece", "nll"], replicates=50, rng=np.random.default_rng(7))
        for _ in range(2)
    )
    assert list(one.figures) == ["ece", "nll"]
    assert one["ece"] == two["ece"] and one.floors["ece"] == two.floors["ece"]
    assert one["ece"].low < one["ece"].high and one["nll"].low < one["nll"].value


def test_without_replicates_there_are_no_intervals(rng):
    result = measure(scores(20), replicates=0, rng=rng)
    assert all(e.low is e.high is None for e in result.figures.values())
    assert not result.floors


def test_one_unit_has_no_interval(rng):
    built = scores(20, 2)
    alone = Scores.from_probabilities(built.values, built.labels, units=["x"] * 20)
    result = measure(alone, figures=["ece"], rng=rng)
    assert result["ece"].low is None and result.n_units == 1
    assert measure(built.take([3]), rng=rng)["ece"].high is None


def width(estimate):
    return estimate.high - estimate.low


def test_units_are_drawn_whole(rng):
    result = scores(60, 3)
    five = np.repeat(np.arange(60), 5)
    copies = result.take(five)
    known = Scores.from_probabilities(copies.values, copies.labels, units=five)
    chosen = {"figures": ["accuracy"], "replicates": 400}
    alone = measure(result, rng=rng, **chosen)["accuracy"]
    units = measure(known, rng=rng, **chosen)["accuracy"]
    naive = measure(copies, rng=rng, **chosen)["accuracy"]
    assert width(units) == pytest.approx(width(alone), rel=0.25)
    assert width(naive) < 0.6 * width(alone)  # copies taken for independent records


def coverage(stretch, truth, n=300, trials=40):
    """How often the interval of the binned error holds the true one."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(trials):
        built = make_top_label(n, stretch, rng)
        result = measure(built, figures=["ece"], replicates=60, rng=rng)["ece"]
        held += result.low <= truth <= result.high
    return held / trials


def make_top_label(n, stretch, rng):
    """Two classes, the second predicted with a confidence that is too high by a stretch."""
    p = rng.uniform(0.5, 1, n)
    odds = np.log(p / (1 - p)) / stretch
    return Scores.from_probabilities(p, (rng.random(n) < 1 / (1 + np.exp(-odds))).astype(int))


def true_ece(stretch):
    """The same with the true frequency in place of what happened."""
    p = (np.arange(200_000) + 0.5) / 400_000 + 0.5
    truth = 1 / (1 + np.exp(-np.log(p / (1 - p)) / stretch))
    bins = np.ceil(p * 15).astype(int)
    return np.abs(np.bincount(bins, p - truth)).sum() / len(p)


@pytest.mark.parametrize("stretch", [1.0, 2.0])
def test_intervals_hold_the_true_error(stretch):
    assert coverage(stretch, true_ece(stretch)) >= 0.85


@pytest.mark.long
@pytest.mark.parametrize("stretch", [1.0, 1.25, 2.0])
@pytest.mark.parametrize("n", [300, 2_000])
def test_intervals_hold_the_true_error_more_precisely(stretch, n):
    assert 0.86 <= coverage(stretch, true_ece(stretch), n, trials=300)


def test_a_perfect_classifier_stands_on_its_floor():
    rng = np.random.default_rng(1)
    result = measure(
        make_top_label(500, 1.0, rng), figures=["ece", "ks"], replicates=100, rng=rng
    )
    for name in ("ece", "ks"):
        floor = result.floors[name]
        assert floor.low <= result[name].value <= floor.high and result[name].low == 0.0
    # The floor is what perfect classifiers show on average.
    printed = np.mean([calibration.ece(make_top_label(500, 1.0, rng)) for _ in range(100)])
    assert result.floors["ece"].value == pytest.approx(printed, rel=0.15)
    wrong = measure(make_top_label(500, 4.0, rng), figures=["ece"], replicates=100, rng=rng)
    assert wrong["ece"].low > wrong.floors["ece"].high


def test_an_infinite_likelihood_stays_one(rng):
    built = Scores.from_probabilities([0.0, 0.5, 0.5, 0.9], [1, 1, 0, 1])
    result = measure(built, figures=["nll"], replicates=50, rng=rng)
    assert result["nll"].value == math.inf and not math.isnan(result["nll"].low)
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["figures"]["nll"]


def test_results_are_plain(rng):
    result = measure(scores(30, 2), replicates=3, rng=rng)
    read = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert read["figures"]["ece"]["value"] == result["ece"].value
    assert read["floors"]["ece"]["n"] == 30 and read["private"] is False
    with pytest.raises(TypeError):
        result.figures["ece"] = None  # type: ignore[index]


@pytest.mark.parametrize(
    "wrong",
    [{"level": 0}, {"level": 1.0}, {"replicates": -1}, {"bins": 0}],
)
def test_wrong_settings_are_refused(wrong, rng):
    with pytest.raises(ValueError, match="Expected"):
        measure(scores(5), rng=rng, **wrong)


def test_records_and_labels_are_needed(rng):
    with pytest.raises(ValueError, match="at least one record"):
        measure(Scores.from_probabilities(np.zeros((0, 2)), []), rng=rng)
    with pytest.raises(ValueError, match="labeled scores"):
        measure(Scores.from_probabilities([0.5]), rng=rng)
