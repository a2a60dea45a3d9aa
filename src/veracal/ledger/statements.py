"""The privacy statement of a ledger."""

from dataclasses import replace

from veracal.accounting import (
    Approximate,
    Event,
    Parallel,
    Pure,
    Statement,
    format_up,
    statement,
)
from veracal.ledger.ledger import Ledger
from veracal.ledger.plan import Planned, compose_items


def ledger_statement(ledger: Ledger) -> Statement:
    """The privacy statement for everything charged to a ledger, now and later.

    The statement of a plan follows from its fixed list. Any other ledger is a *filter*: costs
    may depend on earlier answers, so the amount spent so far depends on the records, and only
    the whole budget is a guarantee. The statement therefore contains the sum of the caps, and
    says if a cap was raised after releases.

    Parameters
    ----------
    ledger : Ledger

    Examples
    --------
    >>> from veracal.accounting import Budget
    >>> from veracal.ledger import open_ledger
    >>> ledger = open_ledger(getfixture("tmp_path") / "study.ledger", Budget(1.0))
    >>> ledger_statement(ledger).epsilon
    1.0
    """
    budget, rule, partitions = ledger.budget, ledger.opening.rule, ledger.opening.partitions
    entries = [entry for entry in ledger.entries() if entry.event is not None]
    purposes = {item.purpose for entry in entries for item in entry.items}
    purposes |= {entry.purpose for entry in entries if entry.outcome != "run"}
    covers = tuple(sorted(purposes)) or ("nothing yet",)
    if isinstance(rule, Planned):
        nothing = Pure(0.0, budget.relation)
        event: Event = Parallel(
            tuple(compose_items(rule.items, partition) or nothing for partition in partitions)
        )
        planned = tuple(sorted({item.purpose for item in rule.items}))
        return statement(
            event, budget.delta, budget.unit, covers=planned, composition=rule.description
        )
    whole = (
        Pure(budget.epsilon, budget.relation)
        if budget.delta == 0
        else Approximate(budget.epsilon, budget.delta, budget.relation)
    )
    # The budget holds for the unit with all its rows: state it for one row, then set the unit.
    note = ledger.cap_note
    composition = rule.description if note is None else f"{rule.description}; {note}"
    return replace(
        statement(whole, budget.delta, covers=covers, composition=composition),
        epsilon=budget.epsilon,
        unit=budget.unit.name,
        at_most=budget.unit.max_contributions,
        accountant="the ledger's filter, which never grants more than the budget",
        sampler="as stated by the entries of the ledger",
        numerics="as stated by the entries of the ledger",
        renyi_epsilon=None,
    )


def ledger_total(ledger: Ledger) -> str:
    """A sentence about the total cost of everything charged to a ledger.

    It accompanies the statement of a single release, since all releases concern the same
    individuals. It uses the current caps. A plan was charged as a whole and cannot grow.

    Parameters
    ----------
    ledger : Ledger

    Examples
    --------
    >>> from veracal.accounting import Budget
    >>> from veracal.ledger import open_ledger
    >>> ledger = open_ledger(getfixture("tmp_path") / "study.ledger", Budget(1.0))
    >>> ledger_total(ledger)
    'Everything charged to the ledger of these records, including this release, costs at most
    epsilon = 1.'
    """
    caps, note = ledger.budget, ledger.cap_note
    delta = "" if caps.delta == 0 else f", delta = {format_up(caps.delta, 3)}"
    raised = "" if note is None else f" ({note})"
    cost = f"at most epsilon = {format_up(caps.epsilon, 6)}{delta}{raised}"
    planned = isinstance(ledger.opening.rule, Planned)
    subject = "The whole plan of" if planned else "Everything charged to"
    return f"{subject} the ledger of these records, including this release, costs {cost}."
