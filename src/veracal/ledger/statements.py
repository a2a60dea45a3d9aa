"""What a ledger promises, as a statement."""

from dataclasses import replace

from veracal.accounting import (
    Approximate,
    Composed,
    Event,
    Parallel,
    Pure,
    Repeated,
    Statement,
    rounded_up,
    statement,
)
from veracal.ledger.book import Ledger
from veracal.ledger.plan import Planned


def ledger_statement(ledger: Ledger) -> Statement:
    """State what everything charged to a ledger promises together, whatever comes.

    A plan is stated by the list it fixed. Any other ledger is a *filter*: costs may depend on
    earlier answers, so what was spent so far is itself an answer, and only the whole budget
    is a promise. It is stated as such: the sum of the caps, and that a cap was raised after
    releases, if one was.

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
    budget, rule, parts = ledger.budget, ledger.opening.rule, ledger.opening.parts
    entries = [entry for entry in ledger.entries() if entry.event is not None]
    purposes = {item.purpose for entry in entries for item in entry.items}
    purposes |= {entry.purpose for entry in entries if entry.outcome != "run"}
    covers = tuple(sorted(purposes)) or ("nothing yet",)
    if isinstance(rule, Planned):
        event: Event = Parallel(tuple(_planned(rule, part, budget.relation) for part in parts))
        planned = tuple(sorted({item.purpose for item in rule.items}))
        return statement(
            event, budget.delta, budget.unit, covers=planned, composition=rule.words
        )
    whole = (
        Pure(budget.epsilon, budget.relation)
        if budget.delta == 0
        else Approximate(budget.epsilon, budget.delta, budget.relation)
    )
    # The budget is the unit's already, whatever its rows: state it for one row, then name it.
    note = ledger.cap_note
    composition = rule.words if note is None else f"{rule.words}; {note}"
    made = statement(whole, budget.delta, covers=covers, composition=composition)
    return replace(
        made,
        epsilon=budget.epsilon,
        unit=budget.unit.name,
        at_most=budget.unit.at_most,
        accountant="the ledger's filter, which never grants more than the budget",
        sampler="as the entries of the ledger say",
        numerics="as the entries of the ledger say",
        renyi_epsilon=None,
    )


def ledger_total(ledger: Ledger) -> str:
    """What everything that is charged to a ledger may cost together, in a sentence.

    It goes beside the promise of one release, as the caps are now: whoever is in the records
    has to do with all of them. A plan was charged as a whole and has no further room.

    Parameters
    ----------
    ledger : Ledger

    Examples
    --------
    >>> from veracal.accounting import Budget
    >>> from veracal.ledger import open_ledger
    >>> ledger = open_ledger(getfixture("tmp_path") / "study.ledger", Budget(1.0))
    >>> ledger_total(ledger)
    'Everything that the ledger of these records pays for, this release included, costs at most
    epsilon = 1.'
    """
    caps, note = ledger.budget, ledger.cap_note
    delta = "" if caps.delta == 0 else f", delta = {rounded_up(caps.delta, 3)}"
    raised = "" if note is None else f" ({note})"
    if isinstance(ledger.opening.rule, Planned):
        what = "The whole plan of the ledger of these records, this release included,"
    else:
        what = "Everything that the ledger of these records pays for, this release included,"
    return f"{what} costs at most epsilon = {rounded_up(caps.epsilon, 6)}{delta}{raised}."


def _planned(rule: Planned, part: str, relation: str) -> Event:
    """Everything planned for one part."""
    used = [
        Repeated(item.event, item.times) for item in rule.items if item.part in (part, None)
    ]
    return Composed(tuple(used)) if used else Pure(0.0, relation)  # type: ignore[arg-type]
