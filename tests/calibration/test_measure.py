"""All figures at once, with intervals that hold the truth as often as they say."""

import json
import math

import numpy as np
import pytest

from tests.calibration.metrics.made import scores
from veracal.calibration import metrics
from veracal.calibration.measurement import figure_names, measure
from veracal.data import Scores


def test_figures_are_those_of_the_metrics(rng):
    made = scores(80, 2)
    found = measure(made, replicates=5, rng=rng)
    assert set(found.figures) == set(metrics.__all__)
    for name, estimate in found.figures.items():
        assert estimate.value == getattr(metrics, name)(made)
        assert estimate.n == 80 and estimate.level == 0.95
    assert (found.n, found.n_units, found.n_classes, found.replicates) == (80, 80, 2, 5)
    assert found.private is False
    assert found.curve.ece == pytest.approx(found["ece"].value)


def test_bins_are_passed_on(rng):
    made = scores(400, 2)
    found = measure(made, bins=4, replicates=0, rng=rng)
    changed = {n for n in found.figures if found[n].value != getattr(metrics, n)(made)}
    assert changed >= {"ece", "ace", "sce", "mce", "binary_ece", "debiased_l2", "classwise_ace"}
    assert len(found.curve.bins) == 4 == found.bins
    assert found["sce"].value == metrics.sce(made, 4)


def test_more_classes_have_no_binary_figures(rng):
    found = measure(scores(50, 3), replicates=2, rng=rng)
    assert set(found.figures) == set(figure_names(3))
    assert not any(name.startswith(("binary", "calibration")) for name in found.figures)
    with pytest.raises(ValueError, match="'binary_ece'. Check the spelling"):
        measure(scores(50, 3), figures=["ece", "binary_ece"], rng=rng)


def test_figures_can_be_chosen_and_drawn_again():
    made = scores(200)
    one, two = (
        measure(made, figures=["ece", "nll"], replicates=50, rng=np.random.default_rng(7))
        for _ in range(2)
    )
    assert list(one.figures) == ["ece", "nll"]
    assert one["ece"] == two["ece"] and one.floors["ece"] == two.floors["ece"]
    assert one["ece"].low < one["ece"].high and one["nll"].low < one["nll"].value


def test_without_replicates_there_are_no_intervals(rng):
    found = measure(scores(20), replicates=0, rng=rng)
    assert all(e.low is e.high is None for e in found.figures.values())
    assert not found.floors


def test_one_unit_has_no_interval(rng):
    made = scores(20, 2)
    alone = Scores.from_probabilities(made.values, made.labels, units=["x"] * 20)
    found = measure(alone, figures=["ece"], rng=rng)
    assert found["ece"].low is None and found.n_units == 1
    assert measure(made.take([3]), rng=rng)["ece"].high is None


def width(estimate):
    return estimate.high - estimate.low


def test_units_are_drawn_whole(rng):
    made = scores(60, 3)
    five = np.repeat(np.arange(60), 5)
    copies = made.take(five)
    known = Scores.from_probabilities(copies.values, copies.labels, units=five)
    chosen = {"figures": ["accuracy"], "replicates": 400}
    alone = measure(made, rng=rng, **chosen)["accuracy"]
    units = measure(known, rng=rng, **chosen)["accuracy"]
    naive = measure(copies, rng=rng, **chosen)["accuracy"]
    assert width(units) == pytest.approx(width(alone), rel=0.25)
    assert width(naive) < 0.6 * width(alone)  # copies taken for independent records


def coverage(stretch, truth, n=300, trials=40):
    """How often the interval of the binned error holds the true one."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(trials):
        made = made_top(n, stretch, rng)
        found = measure(made, figures=["ece"], replicates=60, rng=rng)["ece"]
        held += found.low <= truth <= found.high
    return held / trials


def made_top(n, stretch, rng):
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
    found = measure(made_top(500, 1.0, rng), figures=["ece", "ks"], replicates=100, rng=rng)
    for name in ("ece", "ks"):
        floor = found.floors[name]
        assert floor.low <= found[name].value <= floor.high and found[name].low == 0.0
    # The floor is what perfect classifiers show on average.
    shown = np.mean([metrics.ece(made_top(500, 1.0, rng)) for _ in range(100)])
    assert found.floors["ece"].value == pytest.approx(shown, rel=0.15)
    wrong = measure(made_top(500, 4.0, rng), figures=["ece"], replicates=100, rng=rng)
    assert wrong["ece"].low > wrong.floors["ece"].high


def test_an_infinite_likelihood_stays_one(rng):
    made = Scores.from_probabilities([0.0, 0.5, 0.5, 0.9], [1, 1, 0, 1])
    found = measure(made, figures=["nll"], replicates=50, rng=rng)
    assert found["nll"].value == math.inf and not math.isnan(found["nll"].low)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["figures"]["nll"]


def test_results_are_plain(rng):
    found = measure(scores(30, 2), replicates=3, rng=rng)
    read = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert read["figures"]["ece"]["value"] == found["ece"].value
    assert read["floors"]["ece"]["n"] == 30 and read["private"] is False
    with pytest.raises(TypeError):
        found.figures["ece"] = None  # type: ignore[index]


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
