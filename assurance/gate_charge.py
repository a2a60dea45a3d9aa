"""No charge is below its cost, and no computation that reads records is free.

Random events, compositions of compositions among them, are charged to ledgers of every kind
that adds up. What a ledger charges is compared with the loss written out here as an exact
fraction; what it must refuse (nothing to pay, nothing to bound the loss, another relation) must
be refused before any record is read.
"""

import math
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.special import log_ndtr, ndtr

from assurance import ledgers
from veracal.accounting.events import (
    AsReplaceOne,
    Budget,
    Composed,
    DiscreteLaplace,
    Event,
    Gaussian,
    Laplace,
    Parallel,
    Pure,
    Repeated,
    Unit,
)
from veracal.errors import BudgetError
from veracal.ledger import charging as ledger_charge
from veracal.ledger import policies as ledger_kinds
from veracal.ledger import policies as ledger_opening
from veracal.ledger import storage as ledger_store
from veracal.ledger.chain import Opening
from veracal.ledger.charging import ChargeRequest
from veracal.ledger.ledger import Ledger, open_ledger
from veracal.ledger.policies import EpsilonDeltaSums, EpsilonSums, Renyi

NAME = "charge"
MICRO = "veracal.ledger.policies.micro_epsilon"
OPENING = "veracal.ledger.chain.Opening."
exact = ledger_kinds.pure_epsilon  # before any patch


def rounded(down: Callable[[Fraction], int]) -> Callable[..., int]:
    """Costs of pure events, turned into whole numbers in another way."""

    def micro(event: Event, unit: Unit) -> int:
        cost = exact(event, unit)
        if cost is None:
            raise ValueError("not pure")
        return down(cost * 10**6)

    return micro


def one_row(event: Event, unit: Unit) -> int:
    """Forget that a unit has several rows."""
    return rounded(math.ceil)(event, Unit(unit.name))


def compute_first(
    path: Path, asked: ChargeRequest, compute: Callable[[], bytes] | None
) -> object:
    """Read the records before checking the remaining budget."""
    answer = None if compute is None else compute()
    with ledger_store.writing(path) as connection:
        due = ledger_charge.debit_for(connection, asked)
        entry = ledger_charge.append_charge(connection, asked, due, "answered", answer)
    return entry, answer


def free_of_charge(opening: Opening, event: Event, delta: float | None) -> object:
    """Accept what costs nothing."""
    if exact(event, opening.budget.unit) == 0:
        return ledger_opening.Cost(0)
    return opening.rule.cost(event, opening.budget, delta)


CORRECT = ledgers.CORRECT
MUTANTS = {
    "cost rounded down": {MICRO: rounded(math.floor)},
    "cost rounded as a float": {MICRO: rounded(lambda cost: round(float(cost)))},
    "divergence rounded down": {
        "veracal.ledger.policies.cost_to_units": lambda value, scale: int(value * scale)
    },
    "free of charge": {
        "veracal.ledger.chain.Opening.cost": free_of_charge,
        ledgers.SCHEMA: ledgers.without(r"    CHECK \(cost \+ cost_delta > 0 OR [^)]*\),\n"),
    },
    "rows of a unit forgotten": {MICRO: one_row},
    "relation ignored": {
        "veracal.ledger.chain.Opening.check": lambda opening, event, part: None
    },
    "records read before the check": {ledgers.ENTER: compute_first},
    "M17 forget to charge": ledgers.FORGOTTEN,
}


def run(subject: ledgers.Patches, *, long: bool) -> str:
    """Charge random events by the rules alone, and fewer of them to real ledgers."""
    rng = np.random.default_rng(0)
    trials = 100_000 if long else 5_000
    with ledgers.patched(subject) as folder:
        for _ in range(trials // 50):
            gaussian_cost(rng)
        for i in range(trials // 200):
            real_ledger(folder / f"{i}", rng)
        judged = sum(pure_cost(rng) for _ in range(trials))
    return f"{judged:,} of {trials:,} random events accepted, none below its cost, none free"


# ---------------------------------------------------------------- the loss, written out


def loss(event: Event, rows: int) -> Fraction | None:
    """Pure loss of an event for so many rows; None if nothing bounds it."""
    if isinstance(event, Pure):
        return rows * Fraction(repr(event.epsilon))
    if isinstance(event, Laplace | DiscreteLaplace):
        if event.sensitivity == 0:
            return Fraction(0)
        unbounded = event.noise == 0
        return None if unbounded else rows * Fraction(event.sensitivity) / Fraction(event.noise)
    if isinstance(event, Repeated):
        inner = loss(event.event, rows) if event.times else Fraction(0)
        return None if inner is None else event.times * inner
    if isinstance(event, AsReplaceOne):
        inner = loss(event.event, rows)
        return None if inner is None else 2 * inner
    if isinstance(event, Composed | Parallel):
        parts = [loss(part, rows) for part in event.events]
        if any(part is None for part in parts):
            return None
        return sum(parts) if isinstance(event, Composed) else max(parts)
    return Fraction(0) if event.sensitivity == 0 else None


def random_event(rng: np.random.Generator, depth: int, relation: str) -> Event:
    """A mechanism, or a composition of some; now and then without noise or without effect."""
    kind = int(rng.integers(9 if depth else 4))
    amount = float(rng.choice([0.0, 10 ** rng.uniform(-8, 1)], p=[0.05, 0.95]))
    if kind == 0:
        return Pure(round(amount, 9), relation)
    if kind == 1:
        return Laplace(amount, float(rng.choice([0.0, 1.0, 0.1, 3.0])), relation)
    if kind == 2:
        return DiscreteLaplace(amount * 2**10, int(rng.integers(4)), relation)
    if kind == 3:
        return Gaussian(amount, 1.0, relation) if rng.random() < 0.1 else Pure(0.1, relation)
    if kind == 4:
        return Repeated(random_event(rng, depth - 1, relation), int(rng.integers(5)))
    if kind == 5 and relation == "replace-one":
        return AsReplaceOne(random_event(rng, depth - 1, "add-remove"))
    parts = tuple(random_event(rng, depth - 1, relation) for _ in range(rng.integers(1, 4)))
    return Parallel(parts) if kind == 6 else Composed(parts)


# ---------------------------------------------------------------- rules alone


def pure_cost(rng: np.random.Generator) -> bool:
    """Whether a pure ledger accepts a random event; if so, at no less than its loss."""
    relation, rows = str(rng.choice(["add-remove", "replace-one"])), int(rng.integers(1, 4))
    asked = str(rng.choice([relation, "replace-one"], p=[0.8, 0.2]))
    opening = Opening(Budget(1.0, 0.0, relation, Unit("u", rows)), EpsilonSums(), ("records",))
    event = random_event(rng, 3, asked)
    true = loss(event, rows)
    try:
        opening.check(event, None)
        cost = opening.cost(event, None).amount
    except (ValueError, BudgetError):
        must = asked != relation or not true
        assert must, f"refused, with {rows} rows: {event}"
        return False
    assert asked == relation, f"accepted {event} under {relation}"
    assert true is not None, f"accepted without any bound: {event}"
    assert cost >= 1, f"free: {event}"
    gap = f"{event} with {rows} rows costs {float(true) * 1e6:.3f}, was charged {cost}"
    assert cost >= true * 10**6, gap
    assert cost < true * 10**6 * (1 + Fraction(1, 10**9)) + 1, f"too much: {gap}"
    return True


def gaussian_cost(rng: np.random.Generator) -> None:
    """Gaussian noise is charged at no less than its divergence, or its (epsilon, delta)."""
    noise, rows = float(10 ** rng.uniform(-1, 3)), int(rng.integers(1, 4))
    event = Gaussian(noise, float(rng.choice([0.5, 1.0, 3.0])))
    budget = Budget(1.0, 1e-5, "add-remove", Unit("u", rows))
    order = float(rng.choice([1.5, 2.0, 17.81]))
    shift = rows * Fraction(event.sensitivity) / Fraction(noise)
    charged = Opening(budget, Renyi(order), ("records",)).cost(event, None).amount
    divergence = Fraction(order) * shift**2 / 2
    assert charged >= divergence * 10**9, f"{event}: {charged} of {float(divergence)}"
    delta = float(10 ** rng.uniform(-9, -2))
    pair = Opening(budget, EpsilonDeltaSums(), ("records",)).cost(event, delta)
    assert pair.delta >= Fraction(repr(delta)) * 10**18
    left = gaussian_delta(float(shift), pair.amount / 1e6)
    assert left <= delta * (1 + 1e-6), f"{event}: delta {left} at the epsilon charged"


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    near, far = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    return float(ndtr(near) - math.exp(epsilon + log_ndtr(far)))


# ---------------------------------------------------------------- real ledgers


def real_ledger(path: Path, rng: np.random.Generator) -> None:
    """Spend a real ledger on random events until nothing fits."""
    rows = int(rng.integers(1, 4))
    ledger = open_ledger(path, Budget(0.7, 0.0, "add-remove", Unit("patient", rows)))
    paid, read, granted = Fraction(0), 0, 0

    def compute() -> bytes:
        nonlocal read
        read += 1
        return os.urandom(8)

    for i in range(12):
        event = random_event(rng, 2, "add-remove")
        true = loss(event, rows)
        try:
            ledger.answer(event, "gate", compute, request=f"{i}", body=b"?")
        except (ValueError, BudgetError):
            continue
        granted += 1
        assert read == granted, f"records read {read} times for {granted} answers"
        assert true is not None and true > 0, f"granted for nothing: {event}"
        paid += true
        assert paid <= Fraction(7, 10), f"granted {float(paid)} of 0.7"
    assert read == granted, f"records read {read} times for {granted} answers"
    check_sum(ledger, paid)


def check_sum(ledger: Ledger, paid: Fraction) -> None:
    """What a ledger says it spent is no less than what was lost."""
    entries = ledgers.verified(ledger)
    spent = sum(entry.cost for entry in entries)
    assert spent >= paid * 10**6, f"charged {spent} for {float(paid) * 1e6:.3f}"
    assert ledger.spent().epsilon == spent / 10**6, "the sum is not the sum of its entries"
