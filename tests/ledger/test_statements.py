"""The statement of a ledger follows from its kind."""

import pytest

from veracal.accounting import Budget, Gaussian, Pure, Unit, epsilon_for
from veracal.accounting.events import Parallel, Repeated
from veracal.ledger import Item, open_ledger
from veracal.ledger.verification import ledger_statement


def test_a_filter_states_its_budget_and_not_the_amount_spent(tmp_path):
    ledger = open_ledger(tmp_path / "a", Budget(1.0, unit=Unit("patient", 3)))
    ledger.charge(Pure(0.1), "count")
    guarantee = ledger_statement(ledger)
    assert guarantee.epsilon == 1.0 and guarantee.delta == 0
    assert (guarantee.unit, guarantee.max_contributions) == ("patient", 3)
    assert guarantee.covers == ("count",) and guarantee.composition.startswith("pure")


@pytest.mark.parametrize("composition", ["rdp", "addition"])
def test_an_open_ledger_says_that_costs_may_adapt(tmp_path, composition):
    budget = Budget(2.0, 1e-6, "replace-one")
    ledger = open_ledger(tmp_path / "a", budget, kind="open", composition=composition)
    guarantee = ledger_statement(ledger)
    assert (guarantee.epsilon, guarantee.delta, guarantee.relation) == (
        2.0,
        1e-6,
        "replace-one",
    )
    assert guarantee.composition.startswith("open") and guarantee.covers == ("nothing yet",)


def test_a_plan_states_the_cost_of_its_list(tmp_path):
    items = [
        Item("training", Gaussian(4.0), 3, "train"),
        Item("measuring", Gaussian(9.0), 1, "test"),
    ]
    ledger = open_ledger(
        tmp_path / "a", Budget(4.0, 1e-6), kind="plan", plan=items, partitions=("train", "test")
    )
    guarantee = ledger_statement(ledger)
    event = Parallel((Repeated(Gaussian(4.0), 3), Gaussian(9.0)))
    assert guarantee.epsilon == epsilon_for(event, 1e-6) < 4.0
    assert guarantee.covers == ("measuring", "training") and guarantee.composition.startswith(
        "plan"
    )
