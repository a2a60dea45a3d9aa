"""A ledger's statement promises what its kind can keep."""

import pytest

from veracal.accounting import Budget, Gaussian, Pure, Unit, epsilon_for
from veracal.accounting.events import Parallel, Repeated
from veracal.ledger import Item, open_ledger
from veracal.ledger.statements import ledger_statement


def test_a_filter_promises_its_budget_and_not_what_was_spent(tmp_path):
    ledger = open_ledger(tmp_path / "a", Budget(1.0, unit=Unit("patient", 3)))
    ledger.charge(Pure(0.1), "count")
    made = ledger_statement(ledger)
    assert made.epsilon == 1.0 and made.delta == 0
    assert (made.unit, made.at_most) == ("patient", 3)
    assert made.covers == ("count",) and made.composition.startswith("pure")


@pytest.mark.parametrize("composition", ["rdp", "addition"])
def test_an_open_ledger_says_that_costs_may_adapt(tmp_path, composition):
    budget = Budget(2.0, 1e-6, "replace-one")
    ledger = open_ledger(tmp_path / "a", budget, kind="open", composition=composition)
    made = ledger_statement(ledger)
    assert (made.epsilon, made.delta, made.relation) == (2.0, 1e-6, "replace-one")
    assert made.composition.startswith("open") and made.covers == ("nothing yet",)


def test_a_plan_promises_its_list(tmp_path):
    items = [
        Item("training", Gaussian(4.0), 3, "train"),
        Item("measuring", Gaussian(9.0), 1, "test"),
    ]
    ledger = open_ledger(
        tmp_path / "a", Budget(4.0, 1e-6), kind="plan", plan=items, parts=("train", "test")
    )
    made = ledger_statement(ledger)
    event = Parallel((Repeated(Gaussian(4.0), 3), Gaussian(9.0)))
    assert made.epsilon == epsilon_for(event, 1e-6) < 4.0
    assert made.covers == ("measuring", "training") and made.composition.startswith("plan")
