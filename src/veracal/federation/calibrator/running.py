"""One recalibration by sources elsewhere: what it will cost each of them, then the result."""

import datetime
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from veracal.calibration.private.asking import unaffordable
from veracal.calibration.recalibration.result import Recalibration
from veracal.calibration.recalibration.steps import Steps, carried_out
from veracal.errors import BudgetError, SilentError
from veracal.federation.calibrator.federated import Federated
from veracal.federation.calibrator.remote import Remote
from veracal.privacy import Event, PooledRelease
from veracal.privacy.costs.statement import rounded_up

TOO_POOR = "it cannot pay for everything that will be asked"


@dataclass(frozen=True)
class SourcePlan:
    """What one source will be asked, before it is.

    Attributes
    ----------
    name : str
    answers : int
        How many answers are asked for, at most.
    known : int
        How many of these the book has already.
    epsilon, delta : float
        What all of them cost, as the source's own ledger counts.
    left, left_delta : float
        What is left of its budget now, as far as the book knows.
    why : str or None
        Why it is left out; None if it can pay.
    """

    name: str
    answers: int
    known: int
    epsilon: float
    delta: float
    left: float
    left_delta: float
    why: str | None


@dataclass(frozen=True)
class Charged:
    """What one source was asked for a result, and what is known of it.

    Attributes
    ----------
    name : str
    key : str
        Fingerprint of its key.
    unit : str
    at_most : int
    relation : str
    epsilon, delta : float
        What it was charged for the result, at most: everything that it was asked, answered or
        not, as its own ledger counts.
    answered : bool
        Whether it answered everything.
    why : str or None
        Why not.
    head : dict or None
        Number and hash of the last entry of its ledger that it has signed.
    """

    name: str
    key: str
    unit: str
    at_most: int
    relation: str
    epsilon: float
    delta: float
    answered: bool
    why: str | None
    head: dict[str, Any] | None

    def text(self) -> str:
        """A line for people."""
        at = f", delta {rounded_up(self.delta)}" if self.delta else ""
        cost = f"epsilon {rounded_up(self.epsilon, 6)}{at}" if self.epsilon else "nothing"
        who = self.unit if self.at_most == 1 else f"{self.unit} of up to {self.at_most} records"
        told = "answered everything" if self.answered else f"was silent: {self.why}"
        return f"{self.name} ({self.key}): {cost} for each {who} ({self.relation}); {told}."


def plan_for(asked: Federated, steps: Steps) -> tuple[SourcePlan, ...]:
    """What each source will be asked and pay, and whether it can; nobody is asked anything."""
    return tuple(_plan(one, steps) for one in asked.sources)


def check_plan(asked: Federated, steps: Steps, plan: Sequence[SourcePlan]) -> None:
    """Refuse to begin what too few sources could pay for to the end, and name them.

    Raises
    ------
    BudgetError
        Nobody was asked.
    """
    poor = [one.why for one in plan if one.why is not None]
    needed = len(plan) if asked.least is None else asked.least
    if len(plan) - len(poor) < needed:
        enough = "all" if asked.least is None else f"{needed}"
        raise BudgetError(
            f"Expected {enough} of {len(plan)} sources to be able to pay for everything, got "
            f"{len(plan) - len(poor)}. {poor[0]}{_others(len(poor) - 1)} Or say how many are "
            "enough (least)."
        )
    try:
        unaffordable(asked, steps.items)
    except SilentError as error:
        raise BudgetError(str(error)) from error


def _others(number: int) -> str:
    """That there are more reasons, which the plan shows."""
    return f" And {number} more, as the plan shows." if number else ""


def run(asked: Federated, steps: Steps, *, at_sources: int = 1) -> Recalibration:
    """Ask everything; what broke off before goes on."""
    return carried_out(asked, steps, at_sources=at_sources)


def charged(asked: Federated, found: Recalibration) -> tuple[Charged, ...]:
    """What every source was charged for a result."""
    return tuple(
        _charged(one, found, i, why)
        for i, (one, why) in enumerate(zip(asked.sources, found.silences, strict=True))
    )


def record(asked: Federated, found: Recalibration, name: str) -> dict[str, Any]:
    """What an artifact keeps of a recalibration, as what JSON can hold.

    Parameters
    ----------
    asked : Federated
    found : Recalibration
    name : str
        What the study is called.
    """
    each = charged(asked, found)
    told = found.to_json()
    kept = ("method", "map", "guard", "before", "after", "temperatures")
    return {
        "study": name,
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **{field: _finite(told[field]) for field in kept},
        "private": found.private,
        "guarantee": told["statement"],
        "statement": statement_text(found, each),
        "sources": [asdict(one) for one in each],
    }


def statement_text(found: Recalibration, each: Sequence[Charged]) -> str:
    """The guarantee in full, and what every source was charged."""
    promise = "" if found.statement is None else f"{found.statement.text()}\n\n"
    costs = "\n".join(f"- {one.text()}" for one in each)
    return (
        f"{promise}What each institution was charged for this, as its own ledger counts, "
        f"whether or not its answers were used:\n{costs}"
    )


def _finite(told: Any) -> Any:
    """The same without numbers that JSON has no words for, such as an end at infinity."""
    if isinstance(told, dict):
        return {name: _finite(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [_finite(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


def _plan(one: Remote, steps: Steps) -> SourcePlan:
    """What one source will be asked."""
    items = steps.items(one.relation, one.unit)
    unpaid = one.unpaid(items)
    every = [item.event for item in items for _ in range(item.times)]
    why = one.book.fault(one.terms.source)
    try:
        one.require(unpaid)
    except BudgetError as error:
        why = str(error)
    left = one.account.left(one.charges())
    total = sum(item.times for item in items)
    known = total - sum(item.times for item in unpaid)
    return SourcePlan(one.name, total, known, *one.account.privacy(every), *left, why)


def _charged(one: Remote, found: Recalibration, i: int, why: str | None) -> Charged:
    """What one source was charged."""
    events = list[Event]()
    for release in found.releases:
        if isinstance(release, PooledRelease) and (i,) in release.asked:
            events.append(release.asked[i,])
    head = one.book.head(one.terms.source)
    return Charged(
        one.name,
        one.terms.key.fingerprint,
        one.unit.name,
        one.unit.at_most,
        one.relation,
        *one.account.privacy(events),
        why is None,
        why,
        None if head is None else {"index": head.index, "hash": head.hash},
    )
