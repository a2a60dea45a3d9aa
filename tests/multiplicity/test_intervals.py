"""Bounds against the paper's figures, intervals against their coverage by enumeration."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from veracal.multiplicity import measures
from veracal.multiplicity import measures as intervals
from veracal.multiplicity.measures import achieved_errors, plan_audit


def test_the_papers_bound():
    result = [intervals.paper_error(m) for m in (50, 1000, 5000)]
    np.testing.assert_allclose(result, [0.9549, 0.1803, 0.0785], atol=5e-5)
    assert intervals.paper_error(5000, individuals=369) == pytest.approx(0.128, abs=5e-4)


@pytest.mark.parametrize("individuals", [1, 369])
@pytest.mark.parametrize("error", [0.01, 0.05, 0.08, 0.1, 0.5])
def test_paper_runs_inverts_paper_error(error, individuals):
    m = intervals.paper_runs(error, individuals)
    enough = math.ceil(m)
    assert intervals.paper_error(enough, individuals) <= error
    assert intervals.paper_error(enough - 1, individuals) > error
    if individuals == 1 and error in (0.05, 0.08, 0.1):
        known = {0.05: 12139.2, 0.08: 4820.2, 0.1: 3118.4}[error]
        assert m == pytest.approx(known, abs=0.05)


def test_the_exact_interval_equals_scipys():
    for m, s in ((10, 0), (10, 3), (10, 10), (77, 40)):
        low, high = intervals.binomial_interval(np.array([s]), m, 0.9, individuals=3)
        result = binomtest(s, m).proportion_ci(1 - 0.1 / 3, method="exact")
        assert (low[0], high[0]) == pytest.approx((result.low, result.high), abs=1e-10)


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.97])
def test_the_interval_of_the_disagreement_covers_it(p):
    m, mu = 60, 4 * p * (1 - p)
    counts = np.arange(m + 1)
    ends = intervals.binomial_interval(counts, m, 0.9)
    low, high = intervals.disagreement_interval(*ends)
    covered = binom.pmf(counts, m, p)[(low <= mu + 1e-12) & (mu <= high + 1e-12)].sum()
    assert covered >= 0.9
    assert (high <= 1).all() and (low >= 0).all()


def test_an_interval_containing_one_half_ends_at_one():
    low, high = intervals.disagreement_interval(np.array([0.4, 0.5]), np.array([0.6, 0.5]))
    assert high.tolist() == [1.0, 1.0] and low[1] == 1.0


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_anytime_intervals_hold_after_every_run_simultaneously(p):
    """Exactly, by following every path of counts that has not left its interval."""
    assert 0 < miss_probability(intervals.anytime_interval, p) <= 0.2
    # the close wrong ones, which hold at one number of runs, are left far more often
    assert miss_probability(intervals.binomial_interval, p) > 0.2


def miss_probability(interval, p, level=0.8, most=120):
    """How likely intervals do not hold p after some number of runs."""
    inside, left = {0: 1.0}, 0.0
    for m in range(1, most + 1):
        steps = {}
        for s, weight in inside.items():
            for new, share in ((s, 1 - p), (s + 1, p)):
                steps[new] = steps.get(new, 0.0) + weight * share
        counts = np.array(sorted(steps))
        ends = zip(counts.tolist(), *interval(counts, m, level), strict=True)
        inside = {s: steps[s] for s, low, high in ends if low <= p <= high}
        left += sum(steps.values()) - sum(inside.values())
    return left


def test_anytime_intervals_contain_the_share_and_the_exact_interval():
    counts = np.arange(0, 101)
    low, high = intervals.anytime_interval(counts, 100)
    inner = intervals.binomial_interval(counts, 100)
    assert (low <= inner[0]).all() and (high >= inner[1]).all()
    assert low[0] == 0 and high[-1] == 1 and (np.diff(low) >= 0).all()


@pytest.mark.parametrize(("individuals", "error"), [(1, 0.1), (369, 0.08), (10_000, 0.2)])
def test_a_plan_has_enough_runs_and_not_many_more(individuals, error):
    plan = plan_audit(individuals, error)
    assert achieved_errors(plan.runs, individuals)["exact"] <= error
    assert achieved_errors(plan.paper_runs, individuals)["paper"] <= error
    assert achieved_errors(int(plan.runs * 0.9), individuals)["exact"] > error
    assert plan.runs < plan.paper_runs / 3
    assert plan.paper_runs == math.ceil(intervals.paper_runs(error, individuals))


def test_the_exact_error_holds_in_simulation():
    rng, m, individuals = np.random.default_rng(1), 200, 50
    shares = rng.uniform(0, 1, individuals)
    error = intervals.exact_error(m, individuals, 0.9)
    counts = rng.binomial(m, shares, (400, individuals))
    estimates = 4 * m / (m - 1) * (counts / m) * (1 - counts / m)
    far = np.abs(estimates - 4 * shares * (1 - shares)).max(axis=1)
    assert (far <= error).mean() >= 0.9
    assert error < intervals.paper_error(m, individuals, 0.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: intervals.paper_error(1), "runs >= 2"),
        (lambda: intervals.paper_error(10, individuals=0), "individuals >= 1"),
        (lambda: intervals.paper_error(10, level=1.0), "level between"),
        (lambda: intervals.paper_runs(0.0), "error > 0"),
        (lambda: plan_audit(1, 1e-9), "can reach"),
    ],
)
def test_invalid_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_exact_error_of_very_many_runs_equals_the_full_search():
    runs, individuals = 40_001, 30
    counts = np.arange(runs // 2 + 1)
    low, high = intervals.disagreement_interval(
        *intervals.binomial_interval(counts, runs, 0.95, individuals)
    )
    estimate = measures.disagreement(counts, runs)
    slowly = np.maximum(estimate - low, high - estimate).max()
    assert intervals.exact_error(runs, individuals) == pytest.approx(slowly, rel=1e-9)
    assert intervals.exact_error(10**9, individuals) < 2e-4


def test_levels_just_below_one_use_the_small_tail():
    low, high = intervals.binomial_interval(np.array([50]), 100, 0.95, individuals=10**24)
    assert 0 < low[0] < high[0] < 1
    assert low[0] == pytest.approx(1 - high[0])
    assert plan_audit(10**24, 0.1).runs < plan_audit(10**24, 0.1).paper_runs
