"""Every kind of ledger keeps its budget, and describes its composition."""

import json
import math

import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon

from veracal.accounting.epsilon import epsilon_for
from veracal.accounting.events import (
    Approximate,
    Budget,
    Composed,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Repeated,
    Unit,
)
from veracal.errors import BudgetError, DataError
from veracal.ledger.ledger import open_ledger
from veracal.ledger.policies import (
    Cost,
    EpsilonDeltaSums,
    Item,
    Renyi,
    best_order,
    conversion_cost,
    read_plan,
)

BUDGET = Budget(1.0, 1e-5)
NOISE = Gaussian(20.0)


def spend(ledger, event, **settings):
    """Charge an event as often as the ledger allows."""
    times = 0
    while True:
        try:
            ledger.charge(event, "spending", **settings)
        except BudgetError:
            return times
        times += 1


# ---------------------------------------------------------------- Rényi divergences


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 64.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_the_conversion_is_the_published_one(order, delta):
    by_others = compute_epsilon(np.array([order]), np.array([3.0]), delta)[0]
    assert 3.0 + conversion_cost(order, delta) == pytest.approx(by_others, rel=1e-12)


@pytest.mark.parametrize("budget", [Budget(0.1, 1e-6), BUDGET, Budget(8.0, 1e-3)], ids=str)
def test_the_default_order_admits_the_most_events(budget):
    def affords(order):
        return Renyi(order).total(budget).amount / order

    best = best_order(budget)
    orders = np.geomspace(1.05, 1000, 300)
    others = [a for a in orders if conversion_cost(a, budget.delta) < 0.99 * budget.epsilon]
    assert affords(best) >= max(map(affords, others)) * (1 - 1e-5)
    assert affords(best) > 1.01 * affords(1.5 * best)


def test_a_filter_grants_events_within_its_divergence(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", BUDGET, kind="open")
    granted = spend(ledger, NOISE)
    order = ledger.opening.rule.order
    each, total = order / (2 * 20.0**2), BUDGET.epsilon - conversion_cost(order, BUDGET.delta)
    assert granted == math.floor(total / each)
    spent = ledger.spent()
    assert spent.epsilon == pytest.approx(
        granted * each + conversion_cost(order, 1e-5), abs=1e-6
    )
    assert spent.delta == BUDGET.delta and spent.epsilon <= BUDGET.epsilon
    # What was granted keeps the budget, by an accountant for lists that are fixed beforehand,
    assert epsilon_for(Repeated(NOISE, granted), BUDGET.delta) < BUDGET.epsilon
    # which would allow more, and must not be used here: these costs may depend on answers.
    assert epsilon_for(Repeated(NOISE, granted + 1), BUDGET.delta) < BUDGET.epsilon
    ledger.verify()


def test_divergences_are_rounded_up(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(20.0, 1e-5), kind="open", order=2.0)
    for noise in (3.0, 7.0, 1000.0):
        true = 2 * 10**9 / (2 * noise**2)
        charged = ledger.charge(Gaussian(noise), "x").cost
        assert true <= charged <= true * (1 + 1e-11) + 1


def test_subsampled_noise_costs_less_and_rows_of_a_unit_more(tmp_path):
    whole = open_ledger(tmp_path / "whole", BUDGET, kind="open")
    full = whole.charge(NOISE, "x").cost
    assert whole.charge(PoissonGaussian(20.0, rate=0.1), "x").cost < full / 50
    units = open_ledger(tmp_path / "units", Budget(1.0, 1e-5, unit=Unit("u", 2)), kind="open")
    assert units.charge(NOISE, "x").cost == pytest.approx(4 * full, abs=4)


def test_a_budget_too_small_for_divergences_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="got delta=0"):
        open_ledger(tmp_path / "ledger", Budget(1.0), kind="open")
    with pytest.raises(ValueError, match='composition="addition"'):
        open_ledger(tmp_path / "ledger", BUDGET, kind="open", order=1.1)
    for order in (1.0, 0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="order"):
            open_ledger(tmp_path / "ledger", BUDGET, kind="open", order=order)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- pairs


@pytest.fixture
def pairs(tmp_path):
    return open_ledger(tmp_path / "pairs", BUDGET, kind="open", composition="addition")


def test_epsilons_and_deltas_add_up(pairs):
    assert spend(pairs, NOISE, delta=2e-6) == 5  # of 1e-5
    each = math.ceil(epsilon_for(NOISE, 2e-6) * 1e6)
    assert all(entry.cost in (each, each + 1) for entry in pairs.entries())
    assert pairs.spent().epsilon == pytest.approx(5 * each / 1e6, abs=1e-5)
    assert pairs.spent().delta == 1e-5 and pairs.remaining().delta == 0
    pairs.charge(Pure(0.05), "pure events need no delta")
    with pytest.raises(BudgetError, match=r"needs \(epsilon, delta\)="):
        pairs.charge(Pure(1.0), "too much")
    pairs.verify()


def test_the_whole_delta_can_be_spent_at_once(pairs):
    pairs.charge(NOISE, "x", delta=1e-5)
    assert pairs.remaining().delta == 0
    assert EpsilonDeltaSums().total(Budget(1.0, 1e-5)) == Cost(10**6, 10**13)


def test_stated_guarantees_are_added_as_decimal_numbers(tmp_path):
    budget = Budget(0.3, 3e-6)
    ledger = open_ledger(tmp_path / "shares", budget, kind="open", composition="addition")
    assert spend(ledger, Approximate(0.1, 1e-6)) == 3
    assert (ledger.remaining().epsilon, ledger.remaining().delta) == (0, 0)
    ledger.verify()
    rows = Budget(1.0, 1e-5, unit=Unit("patient", max_contributions=2))
    many = open_ledger(tmp_path / "rows", rows, kind="open", composition="addition")
    with pytest.raises(ValueError, match="max_contributions=1 for Approximate"):
        many.charge(Approximate(0.1, 1e-6), "x")


def test_an_event_that_is_not_pure_needs_a_delta(pairs):
    with pytest.raises(ValueError, match="delta=None"):
        pairs.charge(NOISE, "x")
    for delta in (-1e-6, math.nan, 1.5):
        with pytest.raises(ValueError, match="delta"):
            pairs.charge(NOISE, "x", delta=delta)
    with pytest.raises(BudgetError, match="no finite cost"):
        pairs.charge(NOISE, "x", delta=0.0)
    assert pairs.entries() == ()


# ---------------------------------------------------------------- plans

PLAN = (Item("count", NOISE, 10), Item("train", PoissonGaussian(30.0, rate=0.1), 5, "train"))
PARTS = ("train", "test")


@pytest.fixture
def planned(tmp_path):
    return open_ledger(tmp_path / "plan", BUDGET, kind="plan", plan=PLAN, partitions=PARTS)


def test_a_plan_is_charged_at_once(planned):
    both = Composed((Repeated(NOISE, 10), Repeated(PLAN[1].event, 5)))
    assert planned.spent("train").epsilon == epsilon_for(both, BUDGET.delta)
    assert planned.spent("test").epsilon == epsilon_for(Repeated(NOISE, 10), BUDGET.delta)
    assert planned.spent() == planned.spent("train")
    assert planned.remaining().epsilon == 0
    assert planned.entries() == () and planned.verify()


def test_planned_events_may_come_in_any_order_but_not_more_often(planned):
    for _ in range(5):
        planned.charge(NOISE, "count")
    assert spend_planned(planned, PLAN[1].event, "train", "train") == 5
    assert spend_planned(planned, NOISE, "count", None) == 5
    assert [used for _, used in planned.planned()] == [10, 5]
    with pytest.raises(BudgetError, match="planned 10 times and was used as often"):
        planned.charge(NOISE, "count")
    planned.verify()


def spend_planned(ledger, event, purpose, part):
    """Charge a planned item as often as the ledger allows."""
    times = 0
    while True:
        try:
            ledger.charge(event, purpose, partition=part)
        except BudgetError:
            return times
        times += 1


@pytest.mark.parametrize(
    ("event", "purpose", "part"),
    [
        (Gaussian(19.9), "count", None),
        (Gaussian(20.1), "count", None),  # cheaper, and still not what was planned
        (NOISE, "counting", None),
        (NOISE, "count", "train"),
        (PLAN[1].event, "train", None),
        (Pure(1e-6), "count", None),
    ],
)
def test_unplanned_events_are_rejected(planned, event, purpose, part):
    read = []
    with pytest.raises(BudgetError, match="is not planned with this event"):
        planned.answer(
            event, purpose, lambda: read.append(1) or b"", request="r", body=b"", partition=part
        )
    assert not read and planned.entries() == ()


def test_a_plan_admits_more_than_a_filter_within_the_budget(tmp_path):
    filtered = spend(open_ledger(tmp_path / "open", BUDGET, kind="open"), NOISE)
    most = filtered
    while epsilon_for(Repeated(NOISE, most + 1), BUDGET.delta) <= BUDGET.epsilon:
        most += 1
    assert most > filtered
    open_ledger(tmp_path / "most", BUDGET, kind="plan", plan=[Item("x", NOISE, most)])
    with pytest.raises(BudgetError, match="more than the budget's 1; nothing was opened"):
        open_ledger(tmp_path / "more", BUDGET, kind="plan", plan=[Item("x", NOISE, most + 1)])
    assert not (tmp_path / "more").exists()


def test_a_plan_may_be_pure(tmp_path):
    plan = [Item("a", Pure(0.1), 3), Item("b", Laplace(10.0), 7)]
    ledger = open_ledger(tmp_path / "pure", Budget(1.0), kind="plan", plan=plan)
    assert ledger.spent().epsilon == 1.0
    with pytest.raises(BudgetError):
        open_ledger(tmp_path / "x", Budget(0.99), kind="plan", plan=plan)
    with pytest.raises(BudgetError):
        open_ledger(tmp_path / "x", Budget(1.0), kind="plan", plan=[Item("c", NOISE)])


def test_equal_items_of_a_plan_are_merged(tmp_path):
    plan = [Item("x", NOISE, 2), Item("x", NOISE, 3)]
    ledger = open_ledger(tmp_path / "ledger", BUDGET, kind="plan", plan=plan)
    assert ledger.planned() == ((Item("x", NOISE, 5), 0),)


@pytest.mark.parametrize(
    "plan",
    [
        None,
        [],
        [("x", NOISE, 1)],
        [Item("", NOISE)],
        [Item("x", NOISE, partition="elsewhere")],
        [Item("x", Gaussian(20.0, relation="replace-one"))],
        [Item("x", Gaussian(20.0, 0.0))],
        [Item("x", Pure(0.0))],
    ],
    ids=repr,
)
def test_invalid_plans_are_rejected(tmp_path, plan):
    with pytest.raises(ValueError, match="Expected"):
        open_ledger(tmp_path / "ledger", BUDGET, kind="plan", plan=plan)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("closed", {}),
        ("pure", {"composition": "rdp"}),
        ("pure", {"order": 2.0}),
        ("pure", {"plan": PLAN}),
        ("open", {"plan": PLAN}),
        ("open", {"composition": "pld"}),
        ("open", {"composition": "addition", "order": 2.0}),
        ("plan", {"composition": "rdp"}),
        ("pure", {}),  # of a budget with a delta
    ],
)
def test_inconsistent_settings_are_rejected(tmp_path, kind, settings):
    with pytest.raises(ValueError, match="Expected"):
        open_ledger(tmp_path / "ledger", BUDGET, kind=kind, **settings)
    assert not list(tmp_path.iterdir())


def test_a_budget_below_a_millionth_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="at least 1e-6"):
        open_ledger(tmp_path / "ledger", Budget(9e-7))
    with pytest.raises(ValueError, match="within the range of a ledger"):
        open_ledger(tmp_path / "ledger", Budget(1e30))


def test_each_kind_has_a_description(tmp_path, pairs, planned):
    pure = open_ledger(tmp_path / "pure", Budget(1.0))
    rdp = open_ledger(tmp_path / "rdp", BUDGET, kind="open")
    descriptions = [ledger.opening.rule.description for ledger in (pure, pairs, rdp, planned)]
    assert [text.partition(":")[0] for text in descriptions] == ["pure", "open", "open", "plan"]
    assert len(set(descriptions)) == 4


# ---------------------------------------------------------------- plans in files

TOML = """
[[items]]
purpose = "count"
event = {kind = "Gaussian", noise = 20}
times = 10

[[items]]
purpose = "train"
partition = "train"
times = 5
[items.event]
kind = "PoissonGaussian"
noise = 30.0
rate = 0.1
"""


def test_a_plan_is_read_from_toml_and_json(tmp_path):
    (tmp_path / "plan.toml").write_text(TOML)
    assert read_plan(tmp_path / "plan.toml") == PLAN
    written = {"items": [item.to_json() for item in PLAN]}
    (tmp_path / "plan.json").write_text(json.dumps(written))
    assert read_plan(tmp_path / "plan.json") == PLAN


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", ""),
        ("p.toml", "items = 3"),
        ("p.toml", "items = []"),
        ("p.toml", TOML + "\n[more]\n"),
        ("p.toml", TOML.replace("purpose", "porpoise")),
        ("p.toml", TOML.replace("Gaussian", "Gauss")),
        ("p.toml", TOML.replace("times = 10", "times = 0")),
        ("p.toml", TOML.replace("times = 10", "times = 'x'")),
        ("p.toml", TOML.replace("times = 10", "twice = 2")),
        ("p.toml", TOML.replace("noise = 20", "noise = nan")),
        ("p.toml", "[[items]]\nevent = 3\npurpose = 'x'"),
        ("p.json", '{"items": [], "items": []}'),
        ("p.json", '{"items": [NaN]}'),
        ("p.json", "[" * 100_000),
        ("p.toml", "x" * (2**20 + 1)),
    ],
)
def test_invalid_plan_files_are_rejected(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError):
        read_plan(tmp_path / name)
