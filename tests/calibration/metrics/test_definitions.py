"""Every metric equals its definition, written out slowly."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from assurance import figures as definitions
from tests.calibration.metrics.sample_scores import scores, tied
from veracal.calibration import metrics
from veracal.data import Scores

ANY = [
    "accuracy", "ace", "auc", "brier", "classwise_ace", "confidence_gap", "debiased_l2", "ece",
    "f1", "ks", "mce", "nll", "over_confidence", "sce", "top_label_brier", "under_confidence",
]  # fmt: skip
BINARY = ["binary_ece", "binary_f1", "calibration_in_the_large"]
BINNED = ["ece", "mce", "ace", "sce", "classwise_ace", "debiased_l2", "over_confidence"]


@pytest.mark.parametrize("k", [2, 3, 11])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics_equal_their_definitions(k, kind, dtype):
    built = scores(240, k, kind=kind, dtype=dtype)
    for name in ANY + (BINARY if k == 2 else []):
        result, expected = getattr(metrics, name)(built), getattr(definitions, name)(built)
        assert isinstance(result, float)
        assert result == pytest.approx(expected, abs=1e-13), name


@pytest.mark.parametrize("name", ANY)
def test_equal_values_and_values_on_edges_count_as_defined(name):
    for result in (tied(), tied(7), tied(2)):
        expected = getattr(definitions, name)(result)
        assert getattr(metrics, name)(result) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("bins", [1, 2, 10, 100, 10_000])
def test_any_number_of_bins(name, bins):
    result = tied(50)
    expected = getattr(definitions, name)(result, bins)
    assert getattr(metrics, name)(result, bins) == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("name", [*BINNED, "under_confidence", "binary_ece"])
@pytest.mark.parametrize("bins", [0, -1, 2.5, math.nan, "15", None, True])
def test_what_is_no_number_of_bins_is_refused(name, bins):
    with pytest.raises(ValueError, match="Expected an integer bins >= 1"):
        getattr(metrics, name)(scores(10, 2), bins)


def test_order_and_layout_of_records_do_not_matter(rng):
    result = tied(500)
    shuffled = result.take(rng.permutation(len(result)))
    columns = Scores.from_probabilities(np.asfortranarray(result.values), result.labels)
    for name in ANY:
        whole = getattr(metrics, name)(result)
        assert getattr(metrics, name)(shuffled) == pytest.approx(whole, abs=1e-14), name
        assert getattr(metrics, name)(columns) == pytest.approx(whole, abs=1e-14), name


def test_parts_of_the_error_add_up():
    result = scores(2_000)
    over, under = metrics.over_confidence(result), metrics.under_confidence(result)
    assert over > 0.05 > under > 0
    assert over + under == pytest.approx(metrics.ece(result), abs=1e-14)
    assert over - under == pytest.approx(metrics.confidence_gap(result), abs=1e-14)


def test_top_label_and_binary_errors_are_not_the_same():
    result = Scores.from_probabilities([0.1, 0.1, 0.9, 0.9], [1, 0, 1, 0])
    assert metrics.ece(result) == pytest.approx(0.4)
    assert metrics.binary_ece(result) == pytest.approx(0.4)
    # Wrong in opposite directions: the top label cancels what the second class does not.
    result = Scores.from_probabilities([0.1, 0.9], [1, 1])
    assert metrics.ece(result) == pytest.approx(0.4)
    assert metrics.binary_ece(result) == pytest.approx(0.5)


def test_ten_bins_are_another_figure():
    result = scores(2_000)
    assert metrics.ece(result, 10) == pytest.approx(definitions.ece(result, 10), abs=1e-13)
    assert abs(metrics.ece(result, 10) - metrics.ece(result)) > 1e-4


def test_a_calibrated_classifier_has_a_small_error_and_a_distorted_one_a_large():
    honest, proud = scores(20_000, stretch=1.0), scores(20_000, stretch=2.0)
    for name in ("ece", "ace", "debiased_l2", "smooth_ece", "ks", "sce"):
        small, large = getattr(metrics, name)(honest), getattr(metrics, name)(proud)
        assert small < 0.02 < 0.04 < large, name
    assert metrics.debiased_l2(honest) < 0.01


def test_debiasing_takes_off_what_sampling_adds():
    rng = np.random.default_rng(2)
    result = []
    for _ in range(60):
        built = scores(300, stretch=1.0, rng=rng)
        squares = [
            len(cell) / 300 * definitions.gap(cell) ** 2
            for cell in definitions.equal_mass(definitions.top(built), 15)
        ]
        result.append((metrics.debiased_l2(built) ** 2, math.fsum(squares)))
    debiased, plain = np.mean(result, axis=0)
    assert debiased < plain / 3


# ---------------------------------------------------------------- smooth


@pytest.mark.parametrize("bandwidth", [0.02, 0.1, 1.0])
def test_smooth_error_equals_its_definition(bandwidth):
    for built in (scores(120, 3), scores(40, 2, kind="logits"), tied(30)):
        result = metrics.smooth_ece(built, bandwidth=bandwidth)
        expected = definitions.smooth_ece(built, bandwidth)
        assert result == pytest.approx(expected, abs=1e-6)
    built = scores(60, 2)
    expected = definitions.binary_smooth_ece(built, bandwidth)
    result = metrics.binary_smooth_ece(built, bandwidth=bandwidth)
    assert result == pytest.approx(expected, abs=1e-6)
    assert result != pytest.approx(metrics.smooth_ece(built, bandwidth=bandwidth), abs=1e-4)


@pytest.mark.parametrize("n", [1, 2, 30, 1_000])
def test_smooth_error_is_its_own_bandwidth(n):
    result = metrics.smooth_ece(built := scores(n, 3))
    assert metrics.smooth_ece(built, bandwidth=result) == pytest.approx(result, abs=1e-9)


def test_smooth_error_hardly_moves_when_scores_do():
    at, beside = np.full(100, 2 / 3), np.full(100, 2 / 3 + 1e-9)
    labels = [1, 0] * 50
    pair = [np.r_[at, beside], np.r_[at, at]]
    smooth = [metrics.binary_smooth_ece(Scores.from_probabilities(p, labels * 2)) for p in pair]
    assert smooth[0] == pytest.approx(smooth[1], abs=1e-8)


def test_a_perfect_classifier_has_no_smooth_error():
    assert metrics.smooth_ece(Scores.from_probabilities([0.0, 1.0], [0, 1])) == 0.0


@pytest.mark.parametrize("bandwidth", [0, -1.0, math.nan, math.inf])
def test_a_bandwidth_is_positive(bandwidth):
    with pytest.raises(ValueError, match="Expected a finite bandwidth > 0"):
        metrics.smooth_ece(scores(5), bandwidth=bandwidth)


# ---------------------------------------------------------------- clinical


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_slope_is_that_of_logistic_regression(kind):
    result = scores(400, 2, kind=kind)
    odds = result.logits[:, 1] - result.logits[:, 0]
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12)
    model.fit(odds[:, None], result.labels)
    assert metrics.calibration_slope(result) == pytest.approx(model.coef_[0, 0], abs=1e-8)
    assert metrics.calibration_slope(result) < 0.8  # too extreme, by construction


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_intercept_makes_the_mean_right(kind):
    result = scores(400, 2, kind=kind)
    odds = result.logits[:, 1] - result.logits[:, 0]
    shifted = 1 / (1 + np.exp(-(odds + metrics.calibration_intercept(result))))
    assert shifted.mean() == pytest.approx(result.labels.mean(), abs=1e-12)


def test_top_label_slope_and_intercept_are_those_of_being_right():
    built = scores(500, 5)
    event = Scores.from_probabilities(built.confidence, built.correct.astype(int))
    for name in ("calibration_slope", "calibration_intercept"):
        result = getattr(metrics, f"top_label_{name}")(built)
        assert result == pytest.approx(getattr(metrics, name)(event), abs=1e-9)


def test_slope_has_a_stated_value_where_there_is_no_best_one():
    p = [0.1, 0.3, 0.6, 0.8]
    slope = lambda p, y: metrics.calibration_slope(Scores.from_probabilities(p, y))  # noqa: E731
    assert slope(p, [0, 0, 1, 1]) == 100.0  # separated
    assert slope(p, [1, 1, 0, 0]) == -100.0
    assert slope([0.1, 0.3, 0.3, 0.8], [0, 0, 1, 1]) == 100.0  # but for a tie
    assert slope(p, [1, 1, 1, 1]) == slope([0.3] * 4, [0, 1, 1, 1]) == 0.0
    assert -100 < slope(p, [0, 1, 0, 1]) < 100


def test_intercept_has_a_stated_value_for_one_class():
    for label, sign in ((0, -1), (1, 1)):
        result = Scores.from_probabilities([0.2, 0.6], [label] * 2)
        assert metrics.calibration_intercept(result) == sign * math.log(2**53 - 1)


@pytest.mark.parametrize(
    "name",
    [*BINARY, "binary_smooth_ece", "calibration_slope", "calibration_intercept"],
)
def test_binary_metrics_refuse_more_classes_and_name_another(name):
    with pytest.raises(ValueError, match="two classes, found 3 classes. Use "):
        getattr(metrics, name)(scores(10, 3))


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", metrics.__all__)
def test_metrics_need_records_and_labels(name):
    metric = getattr(metrics, name)
    with pytest.raises(ValueError, match="expected at least one record, found none"):
        metric(Scores.from_probabilities(np.zeros((0, 2)), []))
    with pytest.raises(ValueError, match="expected labeled scores"):
        metric(Scores.from_probabilities([[0.5, 0.5]]))


def test_blocks_do_not_show(monkeypatch):
    result = scores(500, 7)
    whole = {name: getattr(metrics, name)(result) for name in ANY}
    for at in (
        "errors._CELLS",
        "errors._CLASSWISE_CELLS",
        "performance._CELLS",
        "performance._RANKED_CELLS",
    ):
        monkeypatch.setattr(f"veracal.calibration.metrics.{at}", 20)
    monkeypatch.setattr("veracal.calibration.metrics.errors._BLOCK", 3)
    monkeypatch.setattr("veracal.calibration.metrics.base._BYTES", 200)
    for name in ANY:
        assert getattr(metrics, name)(result) == pytest.approx(whole[name], abs=1e-13), name
