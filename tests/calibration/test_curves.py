"""A reliability curve has the right numbers, with intervals that cover."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy.stats import binomtest

from assurance import figures
from tests.calibration.metrics.sample_scores import scores, tied
from veracal.calibration.measurement import binary_curve, clopper_pearson, curve, wilson
from veracal.calibration.metrics import accuracy, binary_ece, ece
from veracal.data import Scores


@pytest.mark.parametrize("made", [scores(500), scores(300, 2, kind="logits"), tied()], ids=repr)
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_bins_hold_what_they_should(made, bins):
    result = curve(made, bins)
    cells = figures.equal_width(figures.top(made), bins)
    assert result.counts == tuple(map(len, cells))
    for each, cell in zip(result.bins, cells, strict=True):
        if not cell:
            assert (each.n, each.confidence, each.accuracy) == (0, None, None)
            assert each.accuracy_low is each.accuracy_high is None
            continue
        right = sum(happened for _, happened in cell)
        assert each.confidence == pytest.approx(np.mean([p for p, _ in cell]), abs=1e-14)
        assert each.accuracy == right / len(cell)
        test = binomtest(right, len(cell)).proportion_ci(0.95, method="wilson")
        assert (each.accuracy_low, each.accuracy_high) == pytest.approx(test, abs=1e-12)
    assert result.ece == pytest.approx(ece(made, bins), abs=1e-14)
    assert result.accuracy == accuracy(made)
    assert result.confidence == pytest.approx(made.confidence.mean(), abs=1e-14)
    assert [b.high for b in result.bins[:-1]] == [b.low for b in result.bins[1:]]


@pytest.mark.parametrize("method", ["wilson", "exact"])
def test_intervals_are_those_of_scipy(method):
    ours = {"wilson": wilson, "exact": clopper_pearson}[method]
    for n in (1, 2, 7, 1_000):
        right = np.arange(n + 1)
        low, high = ours(right, np.full(n + 1, n), 0.9)
        for r in {0, 1, n // 2, n}:
            expected = binomtest(r, n).proportion_ci(0.9, method=method)
            assert (low[r], high[r]) == pytest.approx(tuple(expected), abs=1e-12)


def test_the_second_class_has_a_curve_of_its_own():
    built = scores(400, 2)
    result = binary_curve(built, interval="clopper-pearson")
    assert result.of == "second class" and result.interval == "clopper-pearson"
    assert result.ece == pytest.approx(binary_ece(built), abs=1e-14)
    assert result.bins[0].n > 0 == curve(built).bins[0].n
    with pytest.raises(ValueError, match="two classes, found 3"):
        binary_curve(scores(5, 3))


def test_zero_and_one_have_a_bin():
    built = Scores.from_probabilities([0.0, -0.0, 1.0, 5e-324], [0, 0, 1, 1])
    result = binary_curve(built, 10)
    assert result.counts == (3, *[0] * 8, 1)


@pytest.mark.parametrize(
    "wrong", [{"level": 0}, {"level": 1}, {"level": np.nan}, {"interval": "wald"}, {"bins": 0}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="Expected"):
        curve(tied(), **wrong)


def test_a_curve_is_frozen_and_plain():
    result = curve(tied(3))
    with pytest.raises(FrozenInstanceError):
        result.n = 4  # type: ignore[misc]
    read = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert read["n"] == 3 and len(read["bins"]) == 15 and read["bins"][0]["accuracy"] is None
