"""Summaries over individuals, and intervals that count the runs and not the individuals."""

import numpy as np
import pytest
from scipy.special import ndtr

from veracal.errors import DataError
from veracal.multiplicity import results as individuals
from veracal.multiplicity import summary as means
from veracal.multiplicity.measures import disagreement, normalized_disagreement
from veracal.multiplicity.runs import Runs

RNG = np.random.default_rng(0)


def draw_decisions(rng, m, n=60):
    """Dependent decisions: the randomness of a run moves all individuals."""
    luck = rng.normal(size=(m, 1))
    return (np.linspace(-1.5, 1.5, n) + 0.8 * luck + rng.normal(size=(m, n)) > 0).astype(int)


def counted(decisions):
    runs = Runs(decisions.shape[1])
    runs.add(decisions)
    return runs


def test_a_distribution_equals_its_definition():
    values = RNG.uniform(size=101)
    result = individuals.Distribution.summarize(values)
    assert result.mean == pytest.approx(values.mean())
    assert result.deviation == pytest.approx(values.std(ddof=1))
    assert (result.minimum, result.maximum) == (values.min(), values.max())
    assert (result.median, result.p90, result.p95) == pytest.approx(
        np.percentile(values, [50, 90, 95])
    )
    assert individuals.Distribution.summarize(np.array([0.3])).deviation == 0.0
    with pytest.raises(DataError, match="none"):
        individuals.Distribution.summarize(np.array([]))


def test_intervals_of_a_mean_account_for_shared_runs():
    rng = np.random.default_rng(1)
    truth = normalized_disagreement(
        counted(draw_decisions(rng, 200_000)).counts, 200_000
    ).mean()
    covered, naive = 0, 0
    for _ in range(1000):
        runs = counted(draw_decisions(rng, 100))
        result = means.mean_over_individuals(runs, level=0.9)
        covered += result.low <= truth <= result.high
        # the close wrong one, as if individuals had been drawn and not runs
        values = normalized_disagreement(runs.counts, 100)
        error = 1.645 * values.std(ddof=1) / np.sqrt(len(values))
        naive += abs(values.mean() - truth) <= error
    assert 0.87 <= covered / 1000 <= 0.93
    assert not 0.87 <= naive / 1000 <= 0.93  # the deviation of individuals is no error


def test_the_mean_averages_the_measure():
    decisions = draw_decisions(RNG, 100)
    runs, some = counted(decisions), np.arange(60) < 20
    result = means.mean_over_individuals(runs, some)
    expected = disagreement(decisions.sum(axis=0)[:20], 100).mean()
    assert result.value == pytest.approx(expected) and result.n == 100
    assert result.low < result.value < result.high


def test_gaps_and_ratios_compare_the_extreme_groups():
    decisions = draw_decisions(RNG, 500)
    runs, place = counted(decisions), np.arange(60)
    groups = {
        "a": place < 20,
        "b": (place >= 20) & (place < 40),
        "c": place >= 40,
        "none": place < 0,
    }
    each = [means.mean_over_individuals(runs, rows).value for rows in list(groups.values())[:3]]
    gap, ratio = (f(runs, groups) for f in (means.gap_over_groups, means.ratio_over_groups))
    assert gap.value == pytest.approx(max(each) - min(each)) and gap.low < gap.value
    assert ratio.value == pytest.approx(min(each) / max(each)) and 0 <= ratio.low
    assert ratio.high <= 1


def test_unanimous_runs_have_no_gap():
    runs = counted(np.ones((50, 4), int))
    groups = {"a": np.array([1, 1, 0, 0], bool), "b": np.array([0, 0, 1, 1], bool)}
    hidden = 4 * (most := 1 - 0.025 ** (1 / 50)) * (1 - most)  # none of 50 is no proof
    ratio, gap = (f(runs, groups) for f in (means.ratio_over_groups, means.gap_over_groups))
    assert (ratio.value, ratio.low, ratio.high) == (1.0, 0.0, 1.0)
    assert (gap.value, gap.low, gap.high) == (0.0, 0.0, pytest.approx(hidden))
    result = means.mean_over_individuals(runs)
    assert (result.value, result.low, result.high) == (0.0, 0.0, pytest.approx(hidden))


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_intervals_of_a_mean_cover_in_both_edge_cases(share):
    """Where runs hardly ever disagree, and where they decide at random, equally for all
    individuals.
    """
    rng, truth, covered, left_out_only = np.random.default_rng(6), 4 * share * (1 - share), 0, 0
    for _ in range(500):
        runs = counted(np.repeat(rng.random((100, 1)) < share, 4, axis=1).astype(int))
        result = means.mean_over_individuals(runs)
        covered += result.low <= truth <= result.high
        blocks = runs.counts_by_block, runs.runs_by_block
        plain = means.jackknife(
            lambda c, m: np.array([normalized_disagreement(c, m).mean()]), *blocks
        )
        left_out_only += abs(result.value - truth) <= plain.half_width(0.95)[0]
    assert covered / 500 >= 0.95 > 0.9 > left_out_only / 500  # what is close, and wrong


def test_a_group_about_which_all_runs_agree_may_still_be_arbitrary():
    decisions = np.column_stack([np.ones((50, 2), int), draw_decisions(RNG, 50, 2)])
    groups = {"a": np.arange(4) < 2, "b": np.arange(4) >= 2}
    result = means.ratio_over_groups(counted(decisions), groups)
    assert result.value == result.low == 0.0 and 0.05 < result.high <= 1.0


def test_two_runs_have_a_mean_and_no_interval():
    result = means.mean_over_individuals(counted(np.array([[0, 1], [1, 1]])))
    assert result.value == pytest.approx(1.0) and result.low is None


def test_the_review_list_starts_with_the_least_certain():
    low = np.array([0.1, 0.95, 0.5, 0.8])
    assert individuals.select_for_review(low, 0.5).tolist() == [1, 3]
    assert individuals.select_for_review(low, 1.0).tolist() == []
    with pytest.raises(ValueError, match="threshold"):
        individuals.select_for_review(low, 1.5)


def test_abstention_keeps_the_most_certain():
    values = np.array([0.9, 0.1, 0.5, 0.0])
    correct = np.array([False, True, False, True])
    rows = individuals.abstention_curve(values, correct, (0, 0.5, 0.9))
    assert [row["accuracy"] for row in rows] == [0.5, 1.0, 1.0]
    assert [row["disagreement"] for row in rows] == pytest.approx([0.375, 0.05, 0.0])
    with pytest.raises(ValueError, match="shares"):
        individuals.abstention_curve(values, shares=(1.0,))


@pytest.mark.parametrize("groups", [{}, {"a": np.ones(3, bool)}])
def test_one_group_has_no_gap(groups):
    with pytest.raises(DataError, match="at least two"):
        means.gap_over_groups(counted(np.ones((5, 3), int)), groups)


def test_an_empty_group_is_left_out():
    with pytest.raises(DataError, match="none"):
        means.mean_over_individuals(counted(np.ones((5, 3), int)), np.zeros(3, bool))


@pytest.mark.parametrize("apart", [0.0, 0.5])
def test_the_interval_of_a_gap_covers_even_a_zero_gap(apart):
    rng, k, each = np.random.default_rng(8), 6, 15
    place = np.repeat(0.8 + apart * np.arange(k) / k, each)
    share = ndtr(place / np.hypot(1, 0.8))
    truth = (4 * share * (1 - share)).reshape(k, each).mean(axis=1)
    groups = {str(code): np.repeat(np.arange(k), each) == code for code in range(k)}
    gaps, ratios, naive = 0, 0, 0
    for _ in range(300):
        luck = 0.8 * rng.normal(size=(60, 1))
        runs = counted((place + luck + rng.normal(size=(60, k * each)) > 0).astype(int))
        gap = means.gap_over_groups(runs, groups, level=0.9)
        gaps += gap.low <= np.ptp(truth) <= gap.high
        ratio = means.ratio_over_groups(runs, groups, level=0.9)
        ratios += ratio.low <= truth.min() / truth.max() <= ratio.high
        # the close wrong one, the jackknife of the largest difference itself
        result = means.jackknife(
            lambda counts, m: np.array(
                [np.ptp(normalized_disagreement(counts, m).reshape(k, each).mean(axis=1))]
            ),
            runs.counts_by_block,
            runs.runs_by_block,
        )
        half_width = result.half_width(0.9)
        naive += np.abs(result.values - np.ptp(truth)) <= half_width
    assert gaps >= 270 - 16 and ratios >= 270 - 16
    if not apart:
        assert naive < 254
