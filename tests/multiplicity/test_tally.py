"""Counting as runs come in gives what all runs at once give, in memory that stays."""

import numpy as np
import pytest

from veracal.errors import DataError
from veracal.multiplicity.tally import Tally

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("steps", [(100,), (1,) * 20, (7, 0, 50, 3, 41)])
def test_in_whatever_portions_runs_come_in(k, steps):
    decisions = RNG.integers(0, k, (sum(steps), 9))
    tally, start = Tally(9, k, blocks=8), 0
    for step in steps:
        tally.add(decisions[start : start + step])
        start += step
    assert tally.runs == len(decisions)
    expected = np.stack([(decisions == c).sum(axis=0) for c in range(k)], axis=1)
    np.testing.assert_array_equal(tally.counts, expected)
    for block in range(8):
        mine = decisions[block::8]
        assert tally.runs_by_block[block] == len(mine)
        by_class = np.stack([(mine == c).sum(axis=0) for c in range(k)], axis=1)
        np.testing.assert_array_equal(tally.counts_by_block[block], by_class)


def test_a_score_at_the_threshold_does_not_pass_it():
    tally = Tally(3)
    tally.add_scores(np.array([[0.5, np.nextafter(0.5, 1), 0.4]]))
    assert tally.counts[:, 1].tolist() == [0, 1, 0]
    high = Tally(3)
    high.add_scores(np.array([[0.5, 0.8, 0.81]]), threshold=0.8)
    assert high.counts[:, 1].tolist() == [0, 0, 1]


def test_the_viable_range_is_that_of_all_scores():
    scores = RNG.uniform(size=(30, 5))
    tally = Tally(5)
    for some in np.array_split(scores, 4):
        tally.add_scores(some)
    np.testing.assert_allclose(tally.viable_range[:, 1], np.ptp(scores, axis=0))
    assert (Tally(5).viable_range == 0).all()


def test_of_several_classes_the_likeliest_counts_the_first_of_equal_ones():
    tally = Tally(2, 3)
    tally.add_scores(np.array([[[0.4, 0.4, 0.2], [0.1, 0.2, 0.7]]]))
    assert tally.counts.tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match="no threshold"):
        tally.add_scores(np.full((1, 2, 3), 1 / 3), threshold=0.5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.add(np.zeros((2, 4), int)), "shape"),
        (lambda t: t.add(np.zeros(3, int)), "shape"),
        (lambda t: t.add(np.zeros((2, 3))), "whole numbers"),
        (lambda t: t.add(np.array([[0, 1, 2]])), "0 to 1"),
        (lambda t: t.add(np.array([[0, -1, 1]])), "0 to 1"),
        (lambda t: t.add_scores(np.array([[0.1, np.nan, 0.2]])), "or NaN"),
        (lambda t: t.add_scores(np.array([[0.1, 1.1, 0.2]])), "between 0 and 1"),
        (lambda t: t.add_scores(np.zeros((1, 4))), "shape"),
    ],
)
def test_what_is_no_decision_is_refused_and_nothing_is_counted(call, said):
    tally = Tally(3)
    with pytest.raises(DataError, match=said):
        call(tally)
    assert tally.runs == 0 and (tally.counts == 0).all()
