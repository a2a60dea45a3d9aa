"""Several runs of one ledger together never exceed its caps on epsilon and delta.

Random runs are charged to ledgers that add up pairs or Rényi divergences, in two parts, with an
extension on the way. What the granted runs cost is computed here from the closed form of the
Gaussian mechanism, run by run, and summed. A run that is refused must leave no trace.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import optimize
from scipy.special import log_ndtr, ndtr

from assurance import ledgers
from veracal.accounting.epsilon import epsilon_for
from veracal.accounting.events import Budget, Composed, Gaussian, Pure
from veracal.errors import BudgetError, LedgerError
from veracal.ledger import charging as ledger_charge
from veracal.ledger import charging as ledger_runs
from veracal.ledger import storage as ledger_store
from veracal.ledger import storage as ledger_tables
from veracal.ledger.chain import Caps
from veracal.ledger.charging import RunRequest
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.ledger.policies import (
    Cost,
    EpsilonDeltaSums,
    Item,
    Renyi,
    best_order,
    conversion_cost,
)

NAME = "runs"
PARTS = ("train", "test")
CAPS, MORE = Budget(2.0, 1e-5), (0.8, 4e-6)
BEGIN = "veracal.ledger.ledger.begin_run"
correct_begin, correct_costs = (
    ledger_runs.begin_run,
    ledger_runs.partition_costs,
)  # before any patch


# ---------------------------------------------------------------- mutants

Costs = Callable[[object, Caps, RunRequest], dict]


def begin_with(costs: Costs) -> Callable[[Path, RunRequest], int]:
    """Begin runs as the library does, at other costs."""

    def begin(path: Path, asked: RunRequest) -> int:
        with ledger_store.writing(path) as connection:
            caps = ledger_tables.read_caps(connection)
            due = costs(connection, caps, asked)
            balances = ledger_tables.balances(connection)
            wanted = {part: one.cost for part, one in due.items()}
            number = ledger_charge.find_filter(caps, balances, wanted, asked.name)
            run = 1 + sum(
                entry.outcome == "run" for entry in ledger_tables.account_entries(connection)
            )
            ledger_runs.append_run(connection, asked, run, number, due)
        return run

    return begin


def one_distribution(connection, caps: Caps, asked: RunRequest) -> dict:
    """Compose all runs as one list, and charge what a run adds to its epsilon."""
    due = correct_costs(caps.opening, asked.items, asked.delta, pure=True)
    if not isinstance(caps.opening.rule, EpsilonDeltaSums):
        return due
    for part, one in due.items():
        event = one.event
        before = [
            e for e in ledger_tables.entries(connection) if e.partition == part and e.items
        ]
        delta = caps.opening.budget.delta
        past = tuple(entry.event for entry in before)
        total = epsilon_for(Composed((*past, event)), delta)
        known = epsilon_for(Composed(past), delta) if past else 0.0
        added = max(1, math.ceil((total - known) * 1e6))
        due[part] = replace(one, cost=Cost(added, 0 if past else math.ceil(delta * 1e18)))
    return due


def another_order(connection, caps: Caps, asked: RunRequest) -> dict:
    """Choose another order for an extension."""
    opening = caps.opening
    if caps.extensions and isinstance(opening.rule, Renyi):
        opening = replace(opening, rule=Renyi(best_order(replace(caps.budget, epsilon=20.0))))
    return correct_costs(opening, asked.items, asked.delta, pure=True)


def next_to_nothing(connection, caps: Caps, asked: RunRequest) -> dict:
    """Charge the least there is, as if the items were to be charged when they are used."""
    due = correct_costs(caps.opening, asked.items, asked.delta, pure=True)
    return {part: replace(one, cost=Cost(1)) for part, one in due.items()}


def one_part_after_the_other(path: Path, asked: RunRequest) -> int:
    """Charge each partition in a separate transaction."""
    number = 0
    for part in PARTS:
        items = tuple(item for item in asked.items if item.partition in (part, None))
        if items:
            own = replace(asked, items=items, request=f"{asked.request} {part}")
            number = number or correct_begin(path, own)
            correct_begin(path, own)
    return number


def amount_within(cost: Cost, other: Cost) -> bool:
    """Check epsilon alone."""
    return cost.amount <= other.amount


CORRECT = ledgers.CORRECT
MUTANTS = {
    "one privacy-loss distribution across runs": {BEGIN: begin_with(one_distribution)},
    "delta cap ignored": {
        "veracal.ledger.policies.Cost.within": amount_within,
        ledgers.SCHEMA: ledgers.without(r" AND spent_delta <= total_delta"),
    },
    "an extension chooses the order again": {BEGIN: begin_with(another_order)},
    "a run is not charged": {BEGIN: begin_with(next_to_nothing)},
    "a refused run leaves an entry": {BEGIN: one_part_after_the_other},
    "M17 forget to charge": ledgers.FORGOTTEN,
}


# ---------------------------------------------------------------- measurement


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Charge random runs until nothing fits, raise the caps, and continue."""
    rng = np.random.default_rng(0)
    granted = refused = 0
    with ledgers.patched(subject) as folder:
        for trial in range(40 if long else 4):
            for composition in ("addition", "rdp"):
                ledger = open_ledger(
                    folder / f"{composition}{trial}",
                    CAPS,
                    kind="open",
                    composition=composition,
                    partitions=PARTS,
                )
                # In every other trial the noise is large, and delta is what runs out first.
                yes, no = spend(ledger, rng, less=trial % 2 * 1.0)
                granted, refused = granted + yes, refused + no
    return f"{granted} runs granted within the caps, {refused} refused without a trace"


def spend(ledger: Ledger, rng: np.random.Generator, *, less: float) -> tuple[int, int]:
    """Begin random runs; how many were granted and refused."""
    paid: dict[str, list[tuple[list[Item], float]]] = {part: [] for part in PARTS}
    counts = [0, 0]
    for number in range(24):
        if number == 14:
            ledger.extend(epsilon=MORE[0], delta=MORE[1])
        items, delta = random_items(rng, less), float(rng.choice([5e-7, 2e-6]))
        pure = isinstance(items[0].event, Pure)  # charged as such, at no delta
        head, length = ledger.head, ledger.length()
        try:
            begun = ledger.begin_run(
                items,
                name="gate",
                request=f"{number}",
                body=b"?",
                delta=None if pure else delta,
            )
        except BudgetError:
            counts[1] += 1
            assert (ledger.head, ledger.length()) == (head, length), "a refusal left a trace"
            continue
        except LedgerError as error:
            raise AssertionError(str(error)) from error
        counts[0] += 1
        for part in PARTS:
            if own := [item for item in items if item.partition in (part, None)]:
                paid[part].append((own, delta))
        check(ledger, paid)
        use(begun, items)
    ledgers.verified(ledger)
    return counts[0], counts[1]


def use(run: Ledger, items: list[Item]) -> None:
    """Use a run up, and not beyond."""
    before = run.spent()
    item = items[0]
    for _ in range(item.times):
        run.charge(item.event, item.purpose, partition=item.partition)
    try:
        run.charge(item.event, item.purpose, partition=item.partition)
        raise AssertionError("an item was used more often than it was paid for")
    except BudgetError:
        pass
    assert run.spent() == before, "the items of a run were charged twice"


def random_items(rng: np.random.Generator, less: float) -> list[Item]:
    """A few items for one part, the other or all."""
    if rng.random() < 0.2 * (1 - less):
        part = str(rng.choice(PARTS))
        return [Item("pure", Pure(round(float(rng.uniform(0.01, 0.5)), 3)), 2, part)]
    items = []
    for number in range(int(rng.integers(1, 4))):
        part = [*PARTS, None][int(rng.integers(3))]
        noise = float(10 ** rng.uniform(0.7 + less, 1.7 + less))
        items.append(Item(f"{number}", Gaussian(noise), int(rng.integers(1, 4)), part))
    return items


def check(ledger: Ledger, paid: dict[str, list[tuple[list[Item], float]]]) -> None:
    """Compare what was granted with the caps, and with what the ledger says it spent."""
    caps, rule = ledger.budget, ledger.opening.rule
    for part, granted in paid.items():
        spent = ledger.spent(part)
        if isinstance(rule, Renyi):
            loss = sum(divergence(items, rule.order) for items, _ in granted)
            epsilon = loss + conversion_cost(rule.order, caps.delta) if granted else 0.0
            delta = caps.delta if granted else 0.0
        else:
            pairs = [epsilon_and_delta(*one) for one in granted]
            epsilon = sum(pair[0] for pair in pairs)
            delta = sum(pair[1] for pair in pairs)
        told = f"{part}: ({epsilon:.6f}, {delta:.3g}) granted"
        assert epsilon <= caps.epsilon + 1e-9, f"{told}, epsilon capped at {caps.epsilon}"
        assert delta <= caps.delta * (1 + 1e-9), f"{told}, delta capped at {caps.delta}"
        assert spent.epsilon >= epsilon - 1e-6, f"{told}, {spent} charged"
        assert spent.delta >= delta * (1 - 1e-9), f"{told}, {spent} charged"


def epsilon_and_delta(items: list[Item], delta: float) -> tuple[float, float]:
    """Cost of one run by the closed form of the Gaussian mechanism, or by exact sums."""
    if isinstance(items[0].event, Pure):
        return sum(item.times * item.event.epsilon for item in items), 0.0
    ratio = math.sqrt(sum(item.times / item.event.noise**2 for item in items))

    def excess(epsilon: float) -> float:
        near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
        return float(ndtr(near) - math.exp(epsilon + log_ndtr(far))) - delta

    return (0.0 if excess(0.0) <= 0 else optimize.brentq(excess, 0.0, 50.0)), delta


def divergence(items: list[Item], order: float) -> float:
    """Rényi divergence of one run, of order a."""
    if isinstance(items[0].event, Pure):
        return sum(item.times * pure_divergence(item.event.epsilon, order) for item in items)
    return sum(item.times * order / (2 * item.event.noise**2) for item in items)


def pure_divergence(epsilon: float, order: float) -> float:
    """Rényi divergence of randomized response, the worst there is for a pure epsilon."""
    p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    total = p**order * q ** (1 - order) + q**order * p ** (1 - order)
    return math.log(total) / (order - 1)
