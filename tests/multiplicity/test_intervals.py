"""Bounds against the paper's figures, intervals against their coverage by enumeration."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from veracal.multiplicity import measures
from veracal.multiplicity import measures as intervals
from veracal.multiplicity.measures import plan_audit, reached


def test_the_papers_bound():
    found = [intervals.paper_error(m) for m in (50, 1000, 5000)]
    np.testing.assert_allclose(found, [0.9549, 0.1803, 0.0785], atol=5e-5)
    assert intervals.paper_error(5000, people=369) == pytest.approx(0.128, abs=5e-4)


def test_without_the_factor_that_is_not_needed():
    found = [intervals.simple_error(m) for m in (50, 1000, 5000)]
    np.testing.assert_allclose(found, [0.804, 0.173, 0.0770], atol=5e-4)


@pytest.mark.parametrize("people", [1, 369])
@pytest.mark.parametrize("error", [0.01, 0.05, 0.08, 0.1, 0.5])
def test_the_papers_number_of_runs_is_the_inverse_of_its_bound(error, people):
    m = intervals.paper_runs(error, people)
    enough = math.ceil(m)
    assert intervals.paper_error(enough, people) <= error
    assert intervals.paper_error(enough - 1, people) > error
    if people == 1 and error in (0.05, 0.08, 0.1):
        known = {0.05: 12139.2, 0.08: 4820.2, 0.1: 3118.4}[error]
        assert m == pytest.approx(known, abs=0.05)


def test_the_exact_interval_is_scipys():
    for m, s in ((10, 0), (10, 3), (10, 10), (77, 40)):
        low, high = intervals.binomial_interval(np.array([s]), m, 0.9, people=3)
        found = binomtest(s, m).proportion_ci(1 - 0.1 / 3, method="exact")
        assert (low[0], high[0]) == pytest.approx((found.low, found.high), abs=1e-10)


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.97])
def test_the_interval_of_the_disagreement_covers_it(p):
    m, mu = 60, 4 * p * (1 - p)
    counts = np.arange(m + 1)
    ends = intervals.binomial_interval(counts, m, 0.9)
    low, high = intervals.disagreement_interval(*ends)
    covered = binom.pmf(counts, m, p)[(low <= mu + 1e-12) & (mu <= high + 1e-12)].sum()
    assert covered >= 0.9
    assert (high <= 1).all() and (low >= 0).all()


def test_a_share_of_one_half_inside_makes_one_the_end():
    low, high = intervals.disagreement_interval(np.array([0.4, 0.5]), np.array([0.6, 0.5]))
    assert high.tolist() == [1.0, 1.0] and low[1] == 1.0


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_lasting_intervals_hold_after_every_run_at_once(p):
    """Exactly, by following every path of counts that has not left its interval."""
    assert 0 < ever_left(intervals.lasting_interval, p) <= 0.2
    # the close wrong ones, which hold at one number of runs, are left far more often
    assert ever_left(intervals.binomial_interval, p) > 0.2


def ever_left(interval, p, level=0.8, most=120):
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


def test_lasting_intervals_hold_the_share_and_the_shorter_ones():
    counts = np.arange(0, 101)
    low, high = intervals.lasting_interval(counts, 100)
    inner = intervals.binomial_interval(counts, 100)
    assert (low <= inner[0]).all() and (high >= inner[1]).all()
    assert low[0] == 0 and high[-1] == 1 and (np.diff(low) >= 0).all()


@pytest.mark.parametrize(("people", "error"), [(1, 0.1), (369, 0.08), (10_000, 0.2)])
def test_a_plan_has_enough_runs_and_not_many_more(people, error):
    plan = plan_audit(people, error)
    assert reached(plan.runs, people)["exact"] <= error
    assert reached(plan.paper_runs, people)["paper"] <= error
    assert reached(int(plan.runs * 0.9), people)["exact"] > error
    assert plan.runs < plan.paper_runs / 3
    assert plan.paper_runs == math.ceil(intervals.paper_runs(error, people))


def test_an_exact_error_is_kept_by_simulation():
    rng, m, people = np.random.default_rng(1), 200, 50
    shares = rng.uniform(0, 1, people)
    error = intervals.exact_error(m, people, 0.9)
    counts = rng.binomial(m, shares, (400, people))
    estimates = 4 * m / (m - 1) * (counts / m) * (1 - counts / m)
    far = np.abs(estimates - 4 * shares * (1 - shares)).max(axis=1)
    assert (far <= error).mean() >= 0.9
    assert error < intervals.simple_error(m, people, 0.9)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: intervals.paper_error(1), "runs >= 2"),
        (lambda: intervals.paper_error(10, people=0), "people >= 1"),
        (lambda: intervals.paper_error(10, level=1.0), "level between"),
        (lambda: intervals.paper_runs(0.0), "error > 0"),
        (lambda: plan_audit(1, 1e-9), "can reach"),
    ],
)
def test_what_cannot_be_meant(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_the_largest_error_of_very_many_runs_is_found_without_looking_at_all():
    runs, people = 40_001, 30
    counts = np.arange(runs // 2 + 1)
    low, high = intervals.disagreement_interval(
        *intervals.binomial_interval(counts, runs, 0.95, people)
    )
    estimate = measures.disagreement(counts, runs)
    slowly = np.maximum(estimate - low, high - estimate).max()
    assert intervals.exact_error(runs, people) == pytest.approx(slowly, rel=1e-9)
    assert intervals.exact_error(10**9, people) < 2e-4


def test_intervals_of_levels_beside_one_are_those_of_small_tails():
    low, high = intervals.binomial_interval(np.array([50]), 100, 0.95, people=10**24)
    assert 0 < low[0] < high[0] < 1
    assert low[0] == pytest.approx(1 - high[0])
    assert plan_audit(10**24, 0.1).runs < plan_audit(10**24, 0.1).paper_runs
