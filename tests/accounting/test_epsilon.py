"""Costs equal their definitions, published figures and closed forms, and are never below."""

import math
from fractions import Fraction

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from veracal.accounting import rdp as renyi
from veracal.accounting.components import micro_epsilon, pure_epsilon, without_sampling
from veracal.accounting.epsilon import delta_for, epsilon_for
from veracal.accounting.events import (
    Approximate,
    AsReplaceOne,
    Budget,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
    Unit,
)
from veracal.accounting.rdp import rdp_at, rdp_epsilon, stopping_rate
from veracal.ledger.ledger import open_ledger


def steps(noise, rate, times, relation="add-remove"):
    return Repeated(PoissonGaussian(noise, rate=rate, relation=relation), times)


def decaying(start, decay, rate, each):
    return Composed(
        tuple(steps(start * math.exp(-decay * epoch), rate, each) for epoch in range(20))
    )


VECTORS = [  # event, epsilon by privacy-loss distributions, by Rényi divergences
    (steps(1.0, 0.01, 1000), 1.828, 2.101),
    (steps(1.1, 256 / 60000, 14062), 2.382, 2.597),
    (decaying(1.5, 0.02, 0.01, 50), 1.296, 1.548),
    (decaying(0.9, 0.014, 0.004, 250), 2.852, 3.489),
    (steps(5.0, 1.0, 100), 9.997, 10.726),
    (steps(0.6, 0.005, 300), 3.198, 4.134),
    (steps(1.0, 0.01, 10), 0.380, 1.035),
    (steps(1.0, 0.01, 100), 0.718, None),
]


@pytest.mark.parametrize(("event", "by_loss", "by_renyi"), VECTORS)
def test_published_figures(event, by_loss, by_renyi):
    assert epsilon_for(event, 1e-5) == pytest.approx(by_loss, abs=6e-4)
    if by_renyi is not None:
        assert rdp_epsilon(event, 1e-5) == pytest.approx(by_renyi, abs=6e-4)


def test_small_noise_costs_within_the_published_bounds():
    assert 4.19 < epsilon_for(steps(0.5, 0.001, 1000), 1e-6) < 4.24


@pytest.mark.parametrize(("count_noise", "true"), [(10.0, 1.847), (2.0, 2.352), (1.0, 4.481)])
def test_a_second_statistic_of_the_same_batch_is_one_event(count_noise, true):
    joint = (1 + count_noise**-2) ** -0.5
    assert epsilon_for(steps(joint, 0.01, 1000), 1e-5) == pytest.approx(true, abs=1e-3)


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12, 1e-30])
def test_gaussian_noise_is_exact(noise, delta):
    epsilon = epsilon_for(Gaussian(noise), delta)
    slack = 4e-16  # what the difference of two probabilities may lose
    assert delta_for(Gaussian(noise), epsilon) <= delta * (1 + 1e-6) + slack
    if epsilon > 0:
        assert delta_for(Gaussian(noise), epsilon * 0.999) > delta
    assert epsilon == pytest.approx(dpa.get_epsilon_gaussian(noise, delta), rel=1e-8)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_laplace_noise_has_its_closed_form(epsilon, delta):
    cost = epsilon_for(Laplace(1 / epsilon), delta)
    exact = max(0.0, epsilon + 2 * math.log1p(-delta))
    assert exact <= cost * (1 + 1e-12) and cost == pytest.approx(exact, abs=2e-6)


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_a_subsampled_step_equals_its_integral(epsilon):
    noise, rate = 1.0, 0.1

    def excess(x, sign):
        there = (1 - rate) * stats.norm.pdf(x, 0, noise) + rate * stats.norm.pdf(x, 1, noise)
        here = stats.norm.pdf(x, 0, noise)
        p, q = (there, here) if sign > 0 else (here, there)
        return max(0.0, p - math.exp(epsilon) * q)

    kinks = [0.5 + math.log((math.exp(e) - 1 + rate) / rate) for e in (epsilon, -0.05)]
    directions = [
        integrate.quad(excess, -12, 13, (sign,), points=kinks, limit=500, epsabs=1e-13)[0]
        for sign in (1, -1)
    ]
    cost = delta_for(PoissonGaussian(noise, rate=rate), epsilon)
    assert max(directions) <= cost * (1 + 1e-9)
    assert cost == pytest.approx(max(directions), rel=1e-5)


def test_replacement_is_worst_for_opposite_rows():
    # The docstring proves it; here every other pair of directions in the plane is tried.
    noise, rate, epsilon = 1.0, 0.2, 0.4
    claimed = delta_for(PoissonGaussian(noise, rate=rate, relation="replace-one"), epsilon)
    axis = np.linspace(-8, 8, 401)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(mx, my):
        return np.exp(-((x - mx) ** 2 + (y - my) ** 2) / 2) / (2 * math.pi)

    cost = []
    for angle in np.linspace(0, math.pi, 9):
        p = (1 - rate) * density(0, 0) + rate * density(1, 0)
        q = (1 - rate) * density(0, 0) + rate * density(math.cos(angle), math.sin(angle))
        cost.append(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)
    assert cost == sorted(cost)
    assert cost[-1] == pytest.approx(claimed, rel=1e-3)


def test_directions_are_composed_before_taking_the_worse_one():
    # One event is worse to remove from, the other to add to; the bound of a composition is not
    # above the sum of worst cases, nor below either direction.
    event = Composed((steps(0.6, 0.01, 10), steps(3.0, 0.9, 10)))
    alone = epsilon_for(steps(0.6, 0.01, 10), 5e-6) + epsilon_for(steps(3.0, 0.9, 10), 5e-6)
    assert epsilon_for(steps(3.0, 0.9, 10), 1e-5) < epsilon_for(event, 1e-5) < alone


# ---------------------------------------------------------------- pure costs


def test_pure_costs_add_exactly():
    assert pure_epsilon(Repeated(Pure(0.1), 10)) == 1
    assert micro_epsilon(Repeated(Pure(0.1), 10)) == 1_000_000
    assert epsilon_for(Repeated(Pure(0.1), 10), 0.0) == 1.0


def test_a_small_delta_never_raises_a_pure_cost():
    # On a grid of losses six discrete Laplace of total cost 1 come out as 1.0001.
    event = Repeated(DiscreteLaplace(6.0, 1), 6)
    assert epsilon_for(event, 1e-12) <= 1
    assert pure_epsilon(event) == 1


def test_micro_epsilon_rounds_up():
    assert micro_epsilon(DiscreteLaplace(3.0, 1)) == 333_334
    assert micro_epsilon(Pure(1e-9)) == 1
    with pytest.raises(ValueError, match="pure cost"):
        micro_epsilon(Gaussian(1.0))


def test_on_a_coarse_grid_discrete_laplace_costs_more_than_laplace():
    discrete = epsilon_for(Repeated(DiscreteLaplace(2.0, 1), 20), 1e-5)
    assert discrete == pytest.approx(9.859, abs=1e-3)
    assert epsilon_for(Repeated(Laplace(2.0), 20), 1e-5) == pytest.approx(9.106, abs=1e-3)


def test_discrete_laplace_approaches_laplace_on_a_fine_grid():
    fine = epsilon_for(Repeated(DiscreteLaplace(2.0**21, 2**20), 20), 1e-5)
    assert fine == pytest.approx(epsilon_for(Repeated(Laplace(2.0), 20), 1e-5), rel=1e-5)


def test_spreading_a_shift_over_entries_never_costs_more():
    for parts in ([1, 1], [2, 1, 1], [1] * 5):
        whole = epsilon_for(DiscreteLaplace(3.0, sum(parts)), 1e-3)
        spread = epsilon_for(Composed(tuple(DiscreteLaplace(3.0, n) for n in parts)), 1e-3)
        assert spread <= whole * (1 + 1e-9)


# ---------------------------------------------------------------- parts, units, relations


def test_parallel_events_cost_as_much_as_the_worst_one():
    parts = (steps(1.0, 0.01, 1000), Gaussian(1.0))
    assert epsilon_for(Parallel(parts), 1e-5) == max(epsilon_for(p, 1e-5) for p in parts)


def test_secret_weights_mix_the_losses():
    parts, weights = (Gaussian(1.0), Gaussian(4.0)), (0.25, 0.75)
    for epsilon in (0.1, 1.0, 3.0):
        exact = sum(w * delta_for(p, epsilon) for p, w in zip(parts, weights, strict=True))
        cost = delta_for(Parallel(parts, weights), epsilon)
        assert exact <= cost * (1 + 1e-8) and cost == pytest.approx(exact, rel=1e-3)


def test_weights_of_one_split_are_used_only_once():
    split = Parallel((Gaussian(1.0), Gaussian(4.0)), (0.01, 0.99))
    whole = Parallel((Repeated(Gaussian(1.0), 2), Repeated(Gaussian(4.0), 2)), (0.01, 0.99))
    twice = epsilon_for(Composed((split, split)), 1e-3)
    assert twice >= epsilon_for(whole, 1e-3)
    assert epsilon_for(Repeated(split, 2), 1e-3) >= epsilon_for(whole, 1e-3)


def test_weights_of_one_split_are_used_only_once_when_nested():
    split = Parallel((Gaussian(1.0), Gaussian(4.0)), (0.01, 0.99))
    worst = Repeated(Gaussian(1.0), 20)
    for nested in (
        Composed((split, Composed((split,) * 19))),
        Composed((split, Repeated(Composed((split,)), 19))),
        Composed((Composed((split,)), Composed((split,) * 19))),
    ):
        assert epsilon_for(nested, 1e-3) == pytest.approx(epsilon_for(worst, 1e-3))


def test_a_unit_may_be_in_each_partition_of_repeated_parallel_events():
    either = Parallel((Gaussian(6.0), Pure(0.5)))
    assert epsilon_for(Repeated(either, 2), 1e-6) == epsilon_for(
        Composed((either, either)), 1e-6
    )
    assert epsilon_for(Repeated(either, 2), 1e-6) >= epsilon_for(
        Composed((Gaussian(6.0), Pure(0.5))), 1e-6
    )
    with pytest.raises(ValueError, match="combinations of parallel partitions"):
        epsilon_for(Repeated(either, 1000), 1e-6)


def test_events_inside_nested_splits_are_counted():
    vector = DiscreteGaussian(1.0, 1.0, entries=5)
    inner = Parallel((vector, vector), (0.5, 0.5))
    outer = Parallel((Pure(0.01), Pure(0.01)), (0.5, 0.5))
    nested = Composed((outer, Composed((inner, Pure(0.0)))))
    assert epsilon_for(nested, 1e-5) > epsilon_for(vector, 1e-5)


def test_secret_weights_do_not_change_a_pure_cost():
    assert epsilon_for(Parallel((Pure(1.0), Pure(0.5)), (0.5, 0.5)), 0.0) == 1.0


def test_events_composed_with_parallel_ones_count_in_every_branch():
    shared = Gaussian(2.0)
    event = Composed((Parallel((Gaussian(1.0), Gaussian(3.0))), shared))
    worst = Composed((Gaussian(1.0), shared))
    assert epsilon_for(event, 1e-5) == epsilon_for(worst, 1e-5)


@pytest.mark.parametrize(
    ("event", "thrice"),
    [
        (Gaussian(2.0), Gaussian(2.0, 3.0)),
        (Laplace(2.0), Laplace(2.0, 3.0)),
        (DiscreteLaplace(2.0, 1), DiscreteLaplace(2.0, 3)),
        (DiscreteGaussian(2.0, 1), DiscreteGaussian(2.0, 3)),
        (Pure(0.5), Pure(1.5)),
        (steps(2.0, 1.0, 5), Repeated(Gaussian(2.0, 3.0), 5)),
        (steps(2.0, 1.0, 5, "replace-one"), Repeated(Gaussian(2.0, 6.0, "replace-one"), 5)),
    ],
)
def test_a_unit_of_three_rows_costs_three_times_the_sensitivity(event, thrice):
    cost = epsilon_for(event, 1e-5, Unit("patient", 3))
    assert cost == pytest.approx(epsilon_for(thrice, 1e-5), rel=1e-4)


def test_rows_multiply_costs_exactly():
    assert micro_epsilon(Pure(0.1), Unit("patient", 3)) == 300_000
    odd = Pure(0.1234567890123457)
    assert pure_epsilon(odd, Unit("patient", 3)) >= 3 * Fraction("0.1234567890123457")


@pytest.mark.parametrize("event", [Approximate(0.1, 1e-6), Search(Gaussian(4.0), 5)])
def test_events_without_group_privacy_reject_several_rows(event):
    with pytest.raises(ValueError, match="Expected max_contributions=1 for"):
        epsilon_for(event, 1e-5, Unit("patient", 2))


@pytest.mark.parametrize("order", [1.01, 1.02, 1.3, 1.5, 1.9, 2.0, 2.5, 7.3])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (0.6, 0.02), (1.2, 0.5)])
def test_divergences_of_sampled_events_are_bounded_at_every_order(noise, rate, order):
    """Dp-accounting's series gives up at some orders; the integral does not."""

    def alone(x):
        return stats.norm.logpdf(x, 0, noise)

    def mixture(x):
        there = math.log(rate) + stats.norm.logpdf(x, 1, noise)
        return np.logaddexp(math.log(1 - rate) + alone(x), there)

    def divergence(first, second):
        def density(x):
            return math.exp(order * first(x) + (1 - order) * second(x))

        whole, _ = integrate.quad(density, -20, 30, points=[0, 1, order], epsrel=1e-10)
        return math.log(whole) / (order - 1)

    exact = max(divergence(mixture, alone), divergence(alone, mixture))
    next_whole = rdp_at(PoissonGaussian(noise, rate=rate), math.ceil(order))
    cost = rdp_at(PoissonGaussian(noise, rate=rate), order)
    assert exact * (1 - 1e-6) <= cost <= next_whole * (1 + 1e-9)


def test_divergences_at_tiny_rates_are_at_least_the_leading_term():
    """Logarithms of numbers next to 1 have few digits left."""
    for rate, noise in ((1e-7, 20.0), (1e-9, 50.0)):
        leading = rate**2 * math.expm1(1 / noise**2)
        assert rdp_at(PoissonGaussian(noise, rate=rate), 2.0) >= leading


def test_a_larger_budget_admits_what_a_smaller_one_does(tmp_path):
    """Its order lies nearer to 1, where the series gives up for such batches."""
    for epsilon in (8.0, 50.0, 1_000.0):
        ledger = open_ledger(tmp_path / f"{epsilon}", Budget(epsilon, 1e-3), kind="open")
        ledger.charge(steps(1.0, 0.1, 20), "training")
        assert ledger.length() == 1


def test_cached_curves_depend_on_event_unit_and_order():
    event = PoissonGaussian(1.0, rate=0.1)
    first, at_two = rdp_epsilon(event, 1e-5), rdp_at(event, 2.0)
    assert rdp_epsilon(event, 1e-5) == first and rdp_at(event, 2.0) == at_two
    assert rdp_at(event, 3.0) > at_two
    assert rdp_at(PoissonGaussian(1.0, rate=0.2), 2.0) > at_two
    with pytest.raises(ValueError, match="Rényi bound"):
        rdp_epsilon(event, 1e-5, Unit("pair", 2))
    with pytest.raises(ValueError, match="Rényi bound"):
        rdp_epsilon(PoissonGaussian(1.0, rate=0.1, relation="replace-one"), 1e-5)
    with pytest.raises(ValueError, match="read-only"):
        renyi._dp_accounting_curve(event, renyi.ORDERS, Unit())[0] = 0.0


def test_renyi_rejects_events_it_would_understate():
    with pytest.raises(ValueError, match="replace-one with max_contributions=1"):
        rdp_epsilon(steps(1.0, 0.01, 10, "replace-one"), 1e-5)
    with pytest.raises(ValueError, match="max_contributions=2"):
        rdp_epsilon(steps(1.0, 0.01, 10), 1e-5, Unit("patient", 2))


def test_conversion_to_replace_one_doubles_epsilon():
    assert epsilon_for(AsReplaceOne(Pure(1.0)), 0.0) == 2.0
    assert epsilon_for(AsReplaceOne(Gaussian(1.0)), 1e-5) == pytest.approx(11.05, abs=0.01)
    converted = AsReplaceOne(steps(1.0, 0.01, 100))
    assert epsilon_for(converted, 1e-5) == pytest.approx(1.67, abs=0.01)
    direct = epsilon_for(steps(1.0, 0.01, 100, "replace-one"), 1e-5)
    assert direct == pytest.approx(0.895, abs=1e-3)


# ---------------------------------------------------------------- searches and pairs


def test_a_search_composes_as_an_epsilon_delta_pair():
    run = steps(1.0, 0.01, 1000)
    search = Search(run, 10, "logarithmic")
    assert epsilon_for(search, 1e-5) == pytest.approx(rdp_epsilon(search, 1e-5), rel=1e-9)
    total = epsilon_for(Composed((search, Pure(0.1))), 1e-5)
    assert epsilon_for(search, 1e-5) < total
    assert total <= epsilon_for(search, 5e-6) + 0.1 + 1e-9


@pytest.mark.parametrize(
    ("mean", "distribution", "figure"),
    [
        (10, "logarithmic", 3.58),
        (10, "geometric", 4.17),
        (10, "poisson", 4.43),
        (50, "poisson", 11.6),
    ],
)
def test_published_costs_of_searches(mean, distribution, figure):
    run = Composed((steps(1.0, 0.01, 1000), Gaussian(10.0)))  # training and a noisy score
    assert rdp_epsilon(run, 1e-5) == pytest.approx(2.14, abs=5e-3)
    assert epsilon_for(run, 1e-5) == pytest.approx(1.87, abs=5e-3)
    assert epsilon_for(Search(run, mean, distribution), 1e-5) == pytest.approx(figure, abs=0.03)


def test_equal_pairs_are_counted_separately():
    search = Search(Gaussian(20.0), 5)
    like = Approximate(rdp_epsilon(search, 5e-6), 5e-6)
    both = epsilon_for(Composed((search, like)), 1e-5)
    assert both == pytest.approx(2 * like.epsilon, rel=1e-3)


@pytest.mark.parametrize("bare", [Gaussian(0.0), Laplace(0.0), PoissonGaussian(0.0, rate=0.1)])
def test_zero_noise_inside_wrappers_is_infinite(bare):
    for wrapped in (Search(bare, 5), AsReplaceOne(bare), Repeated(Search(bare, 5), 2)):
        assert epsilon_for(wrapped, 1e-5) == math.inf
        assert delta_for(wrapped, 10.0) == 1.0


def test_a_search_over_free_events_is_free():
    assert epsilon_for(Search(Pure(0.0), 5), 1e-5) == 0.0


def test_a_search_over_several_runs_costs_the_worst_at_every_order():
    # Neither dominates: a rare large step is worse at high orders, many small ones at low.
    rare, many = steps(0.7, 0.001, 20), steps(8.0, 0.2, 400)
    orders = (1.5, 4.0, 30.0)
    assert rdp_at(rare, 1.5) < rdp_at(many, 1.5) and rdp_at(rare, 30.0) > rdp_at(many, 30.0)
    for order in orders:
        worst = max(rdp_at(rare, order), rdp_at(many, order))
        cost = rdp_at(Search(Parallel((rare, many)), 5), order)
        alone = [rdp_at(Search(run, 5), order) for run in (rare, many)]
        gamma = stopping_rate(5, "logarithmic")
        added = (1 - 1 / order) * worst - math.log(gamma) / order + math.log(5) / (order - 1)
        assert cost == pytest.approx(worst + added, rel=1e-9) and cost >= max(alone)
    both = epsilon_for(Search(Parallel((rare, many)), 5), 1e-5)
    assert both > 1.01 * max(epsilon_for(Search(run, 5), 1e-5) for run in (rare, many))
    same = epsilon_for(Search(Parallel((many, many)), 5), 1e-5)
    assert same == pytest.approx(epsilon_for(Search(many, 5), 1e-5), rel=1e-12)


@pytest.mark.parametrize("mean", [1.2, 10, 5_000])
def test_stopping_rate_gives_the_mean(mean):
    gamma = stopping_rate(mean, "logarithmic")
    assert (1 / gamma - 1) / -math.log(gamma) == pytest.approx(mean, rel=1e-9)
    assert 1 / stopping_rate(mean, "geometric") == mean


def test_longer_searches_cost_more_and_distributions_are_ordered():
    run = steps(1.0, 0.01, 1000)
    by_distribution = [
        epsilon_for(Search(run, 10, distribution), 1e-5)
        for distribution in ("logarithmic", "geometric", "poisson")
    ]
    assert epsilon_for(run, 1e-5) < by_distribution[0] < by_distribution[1] < by_distribution[2]
    assert epsilon_for(Search(run, 50), 1e-5) > by_distribution[0]


def test_discrete_gaussian_vectors_use_the_concentrated_bound():
    vector = DiscreteGaussian(10.0, 3.0, entries=4)
    assert rdp_at(vector, 8.0) == pytest.approx(8 * 0.3**2 / 2)
    assert epsilon_for(vector, 1e-5) == pytest.approx(rdp_epsilon(vector, 1e-5), rel=1e-9)
    assert epsilon_for(vector, 1e-5) > epsilon_for(DiscreteGaussian(10.0, 3), 1e-5)


def test_pairs_compose_no_worse_than_they_add():
    event = Repeated(Approximate(0.5, 1e-6), 3)
    assert epsilon_for(event, 1e-5) <= 1.5
    assert epsilon_for(event, 1e-6) == math.inf  # three deltas of 1e-6 are more


# ---------------------------------------------------------------- corners


@pytest.mark.parametrize("kind", [Gaussian, Laplace, DiscreteGaussian, PoissonGaussian])
def test_zero_noise_is_infinite(kind):
    assert epsilon_for(kind(0.0, 1), 1e-5) == math.inf
    assert delta_for(kind(0.0, 1), 100.0) == 1.0


@pytest.mark.parametrize(
    "event",
    [Gaussian(1.0, 0.0), Gaussian(0.0, 0.0), PoissonGaussian(1.0, rate=0.0), Pure(0.0)],
)
def test_events_that_ignore_the_records_cost_nothing(event):
    assert epsilon_for(event, 0.0) == 0.0
    assert epsilon_for(Repeated(event, 1000), 1e-5) == 0.0


@pytest.mark.parametrize("delta", [1e-9, 1e-11, 1e-13, 1e-20])
def test_epsilon_decreases_with_delta_for_tiny_deltas(delta):
    event = steps(1.0, 0.01, 1000)
    cost = epsilon_for(event, delta)
    assert epsilon_for(event, 10 * delta) < cost <= rdp_epsilon(event, delta) + 1e-9


@pytest.mark.parametrize("cost", [epsilon_for, rdp_epsilon])
@pytest.mark.parametrize("delta", [-0.1, 1.0, 2.0, math.nan, "small"])
def test_delta_is_a_probability(cost, delta):
    with pytest.raises(ValueError, match="delta"):
        cost(Pure(1.0), delta)


@pytest.mark.parametrize("order", [1.0, 0.5, -2.0, 1e6, math.inf, math.nan])
def test_orders_are_validated(order):
    with pytest.raises(ValueError, match="order"):
        rdp_at(Gaussian(1.0), order)


@pytest.mark.parametrize("kind", [Gaussian, PoissonGaussian, DiscreteGaussian])
def test_negligible_noise_is_infinite(kind):
    assert epsilon_for(kind(1e-90, 1), 1e-5) == math.inf


@pytest.mark.parametrize(
    ("rows", "entering"),  # hardly ever so many: some hundredth of them enter a batch
    [(200, 14.0), pytest.param(1000, 35.0, marks=pytest.mark.long)],
)
def test_a_unit_of_very_many_rows_has_a_finite_cost(rows, entering):
    few = epsilon_for(steps(20.0, 0.01, 10), 1e-5, Unit("hospital", 20))
    many = epsilon_for(steps(20.0, 0.01, 10), 1e-5, Unit("hospital", rows))
    assert few < many < epsilon_for(Repeated(Gaussian(20.0, entering), 10), 1e-5)


def test_large_costs_are_finite():
    assert epsilon_for(Composed((Pure(1000.0), Gaussian(1.0))), 1e-5) > 1000
    assert 800 <= epsilon_for(Approximate(800.0, 1e-7), 1e-5) < 801
    assert epsilon_for(Laplace(1e-100, 1e100), 1e-5) == pytest.approx(1e200)
    assert epsilon_for(Gaussian(1e90), 1e-5) == 0.0
    assert delta_for(Gaussian(1e18), 0.0) > 0
    with pytest.raises(ValueError, match="Expected noise between"):
        Gaussian(1e200)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_very_little_noise_has_a_large_finite_cost(noise):
    # At a rate of 1 % a record is in at most 8 of 100 batches but once in 1e5 times.
    most = epsilon_for(Repeated(Gaussian(noise), 8), 1e-6)
    assert 0.5 * most < epsilon_for(steps(noise, 0.01, 100), 1e-5) < most


@settings(max_examples=8, deadline=None)  # the gate of accounting has 24 more
@given(
    noise=st.floats(0.4, 20),
    rate=st.floats(1e-3, 1),
    times=st.integers(1, 2000),
    delta=st.floats(1e-9, 1e-2),
)
def test_cost_is_monotone_in_everything(noise, rate, times, delta):
    base = epsilon_for(steps(noise, rate, times), delta)
    slack = 1 + 1e-6
    assert base >= 0
    assert epsilon_for(steps(noise * 1.05, rate, times), delta) <= base * slack
    assert epsilon_for(steps(noise, rate * 0.95, times), delta) <= base * slack
    assert epsilon_for(steps(noise, rate, times + 1), delta) * slack >= base
    assert epsilon_for(steps(noise, rate, times), delta / 2) * slack >= base
    assert epsilon_for(steps(noise, rate, times), delta, Unit("pair", 2)) * slack >= base
    wider = Repeated(PoissonGaussian(noise, 1.05, rate=rate), times)
    assert epsilon_for(wider, delta) * slack >= base


@settings(max_examples=15, deadline=None)
@given(noise=st.floats(0.3, 30), delta=st.floats(1e-9, 1e-2), times=st.integers(1, 200))
def test_a_full_batch_is_never_below_the_exact_gaussian(noise, delta, times):
    exact = epsilon_for(Repeated(Gaussian(noise), times), delta)
    cost = epsilon_for(steps(noise, 1.0, times), delta)
    assert exact * (1 - 1e-9) <= cost <= exact * (1 + 1e-3) + 1e-6


def test_without_sampling_records_are_used_as_often_as_expected():
    event = Composed((steps(2.0, 0.1, 30), steps(1.0, 0.1, 5), Pure(0.1)))
    known = without_sampling(event)
    # 35 steps at a tenth: four uses, the ones with the least noise.
    assert known == Parallel((Composed((Repeated(Pure(0.1), 1), Repeated(Gaussian(1.0), 4))),))
    assert epsilon_for(known, 1e-5) > epsilon_for(event, 1e-5)
    assert without_sampling(Gaussian(1.0)) is None


def test_without_sampling_applies_inside_wrappers():
    search = Search(steps(2.0, 0.1, 20), 5)
    known = without_sampling(search)
    inside = Search(Repeated(Gaussian(2.0), 2), 5)
    assert epsilon_for(known, 1e-5) == pytest.approx(epsilon_for(inside, 1e-5))
    converted = without_sampling(AsReplaceOne(steps(2.0, 0.1, 20)))
    assert epsilon_for(converted, 1e-5) == pytest.approx(
        epsilon_for(AsReplaceOne(Repeated(Gaussian(2.0), 2)), 1e-5)
    )
    for nothing in (steps(2.0, 0.0, 20), steps(2.0, 0.1, 0)):
        assert epsilon_for(without_sampling(nothing), 1e-5) == 0.0


def test_exact_sums_use_exact_scales():
    third = DiscreteLaplace(math.nextafter(3.0, 4), 1)
    assert pure_epsilon(third) < Fraction(1, 3)


def test_orders_without_a_bound_are_not_logged(caplog) -> None:
    step = PoissonGaussian(1.309591, rate=0.1)
    assert rdp_at(step, 1.1) == pytest.approx(rdp_at(step, 2.0), rel=1e-9)
    assert math.isfinite(rdp_epsilon(step, 1e-5))
    assert not caplog.records
