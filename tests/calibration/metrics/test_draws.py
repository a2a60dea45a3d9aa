"""Figures of records drawn again are those of the same rows of plain scores."""

import numpy as np
import pytest

from tests.calibration.metrics.sample_scores import scores, tied
from veracal.calibration import metrics
from veracal.calibration.measurement import figure_names
from veracal.calibration.metrics.base import (
    Draws,
    codes,
    run_starts,
    sorted_columns,
)
from veracal.calibration.metrics.performance import mean_ranks


def sets():
    """Both kinds and precisions, two classes and more, ties."""
    for kind in ("logits", "probabilities"):
        for dtype in (np.float32, np.float64):
            for k in (2, 3, 11):
                yield scores(150, k, kind=kind, dtype=dtype)
    yield tied(60)


@pytest.mark.parametrize("made", list(sets()), ids=repr)
def test_a_figure_of_draws_is_that_of_the_rows(made, rng):
    drawn = Draws.of(made)
    for _ in range(3):
        rows = rng.integers(len(made), size=len(made))
        for name in figure_names(made.n_classes):
            metric = getattr(metrics, name)
            result, plain = metric(drawn.take(rows)), metric(made.take(rows))
            assert result == pytest.approx(plain, abs=1e-14, rel=1e-13), name


def test_draws_of_draws_are_rows_of_the_whole(rng):
    result = scores(90, 3, kind="logits")
    one, two = rng.integers(90, size=70), rng.integers(70, size=50)
    drawn = Draws.of(result).take(one)
    _ = drawn.probabilities  # remembered for these rows, not for others
    twice, plain = drawn.take(two), result.take(one).take(two)
    np.testing.assert_array_equal(twice.probabilities, plain.probabilities)
    np.testing.assert_array_equal(twice.predictions, plain.predictions)
    mask = np.arange(50) % 2 == 0
    np.testing.assert_array_equal(twice.take(mask).correct, plain.take(mask).correct)


def test_other_labels_are_other_figures(rng):
    result = scores(120, 3)
    labels = rng.integers(3, size=120)
    drawn = Draws.of(result)
    before = metrics.ece(drawn)
    other = Draws.of(result).relabeled(labels)
    renewed = type(result).from_probabilities(result.values, labels)
    for name in figure_names(3):
        metric = getattr(metrics, name)
        assert metric(drawn.relabeled(labels)) == metric(other), name
        assert metric(other) == pytest.approx(metric(renewed), abs=1e-14, rel=1e-13), name
    assert metrics.ece(drawn) == before != metrics.ece(other)


@pytest.mark.parametrize("n", [1, 2, 50, 2**16, 2**16 + 1])
def test_codes_have_the_order_of_the_values_and_their_ties(n, rng):
    values = rng.integers(max(2, n // 2), size=(n, 2)) / 7
    result = codes(values)
    for column in range(2):
        order = np.argsort(values[:, column], kind="stable")
        ranked, coded = values[order, column], result[order, column].astype(np.int64)
        np.testing.assert_array_equal(np.sign(np.diff(coded)), np.sign(np.diff(ranked)))


def test_sorted_columns_are_sorted_and_runs_share_a_rank(rng):
    for dtype in (np.uint16, np.float64):
        values = rng.integers(5, size=(40, 3)).astype(dtype)
        order, ranked = sorted_columns(values)
        np.testing.assert_array_equal(ranked, np.sort(values, axis=0))
        np.testing.assert_array_equal(np.take_along_axis(values, order, axis=0), ranked)
        for j, column in enumerate(ranked.T.tolist()):
            first = [column.index(value) for value in column]
            assert run_starts(ranked)[:, j].tolist() == first
            mean = [f + (column.count(v) + 1) / 2 for f, v in zip(first, column, strict=True)]
            assert mean_ranks(ranked)[:, j].tolist() == mean
