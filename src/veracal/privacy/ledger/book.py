"""A ledger of what was spent, which is charged before any record is read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from veracal.privacy.budget import Budget
from veracal.privacy.events import Event
from veracal.privacy.ledger import tables
from veracal.privacy.ledger.chain import Entry
from veracal.privacy.ledger.charge import Asked, affordable, enter, failed
from veracal.privacy.ledger.check import check
from veracal.privacy.ledger.opening import Opening, name, readable, rule_for
from veracal.privacy.ledger.plan import Item, Planned
from veracal.privacy.ledger.store import create, new_ledger, reading
from veracal.privacy.ledger.units import Cost


@dataclass(frozen=True)
class Amount:
    """A part of a budget.

    Attributes
    ----------
    epsilon, delta : float
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Part:
    """What one part of the records has spent, and may still spend."""

    name: str
    spent: Amount
    left: Amount


def open_ledger(
    path: str | PathLike[str],
    budget: Budget,
    *,
    kind: Literal["pure", "open", "plan"] = "pure",
    composition: Literal["rdp", "addition"] | None = None,
    order: float | None = None,
    plan: Sequence[Item] | None = None,
    parts: Sequence[str] = ("records",),
) -> "Ledger":
    """Make a new ledger with a budget that never changes.

    Parameters
    ----------
    path : path
        A new file on a local disk. It appears whole or not at all, for its owner's eyes only.
    budget : Budget
        A pure ledger counts it in micro-epsilon, as the number is written in decimal.
    kind : {"pure", "open", "plan"}
        "pure": epsilons are added up, and delta is 0. "open": the next cost may depend on
        earlier answers. "plan": every cost is fixed now, and all are charged now. See
        :mod:`veracal.privacy.ledger.kinds` for why an open ledger costs more than a plan.
    composition : {"rdp", "addition"}, optional
        How an open ledger adds up; by default by Rényi divergence.
    order : float > 1, optional
        Of the Rényi divergence; by default the one that affords most Gaussian noise events.
    plan : sequence of Item, optional
        What a plan consists of.
    parts : sequence of str
        Disjoint parts of the records, chosen without looking at them (as ``split`` does).

    Raises
    ------
    BudgetError
        If a plan costs more than the budget.
    LedgerError
        If the place cannot keep a ledger.

    Examples
    --------
    >>> from veracal.privacy.events import Pure
    >>> folder = getfixture("tmp_path")
    >>> ledger = open_ledger(folder / "study.ledger", Budget(1.0))
    >>> entry = ledger.charge(Pure(0.25), "counting")
    >>> ledger.remaining().epsilon
    0.75
    """
    place = Path(path).absolute()
    new_ledger(place)  # before the work, not after it
    items = None if plan is None else [_checked(item) for item in plan]
    rule = rule_for(
        budget, kind=kind, composition=composition, order=order, items=items, parts=parts
    )
    opening = Opening(budget, rule, tuple(parts))
    for item in items or ():
        opening.check(item.event, item.part)
    create(place, opening.text, opening.accounts())
    return Ledger(place)


def check_ledger(ledger: object) -> None:
    """Refuse what is no ledger, before anything else is done."""
    if not isinstance(ledger, Ledger):
        raise ValueError(
            f"Expected a Ledger of veracal.privacy, got {ledger!r}. Ledger(path) is one that "
            "exists, and open_ledger(path, budget) makes one."
        )


@dataclass(frozen=True)
class Ledger:
    """A ledger that exists.

    It holds the path and nothing else: copied, pickled, cloned or forked, it is the same
    ledger and forgets nothing. One machine cannot tell that a whole ledger was deleted, or an
    older copy of it put back: write down :attr:`head` elsewhere, and ask :meth:`verify` later.

    Parameters
    ----------
    path : path
        As made by :func:`open_ledger`.

    Guarantees
    ----------
    A charge is on the disk before its method returns. What all charges cost together never
    exceeds the budget, whoever else charges at the same time, and however the process ends.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())
        self.opening  # noqa: B018 - fails now if there is none, not at the first charge

    def charge(
        self,
        event: Event,
        purpose: str,
        *,
        part: str | None = None,
        delta: float | None = None,
        request: str | None = None,
    ) -> Entry:
        """Pay for an event; then the records may be looked at.

        Parameters
        ----------
        event : Event
        purpose : str
            What it is for: "training".
        part : str, optional
            Part of the records it is about; by default all of them.
        delta : float, optional
            Failure probability to charge at; only for an open ledger that adds up pairs.
        request : str, optional
            An id of the caller's. The same charge under the same id is made once.

        Raises
        ------
        BudgetError
            If it does not fit into what is left; nothing is charged.
        ConflictError
            If the id was used for something else; nothing is charged.
        """
        return enter(self.path, Asked(event, purpose, part, delta, request, None), None)[0]

    def answer(
        self,
        event: Event,
        purpose: str,
        compute: Callable[[], bytes],
        *,
        request: str,
        body: bytes,
        part: str | None = None,
        delta: float | None = None,
    ) -> bytes:
        """Pay for an answer and keep it, in one transaction, then release it.

        Parameters
        ----------
        event, purpose, part, delta
            As for :meth:`charge`.
        compute : callable
            Reads the records and draws the noise. It is called once the charge is known to
            fit, and not at all for a request that was answered before. It must not use this
            ledger, which waits for it.
        request : str
            An id of the caller's.
        body : bytes
            What was asked for under that id.

        Returns
        -------
        bytes
            The same for the same request, always.

        Raises
        ------
        BudgetError
            If it does not fit into what is left; nothing is charged, ``compute`` not called.
        ConflictError
            If the id was used for something else; nothing is charged, ``compute`` not called.
        AnswerError
            If ``compute`` failed. The charge stands: whether it fails may depend on the
            records, so failing is an answer, too, and the same one when asked again. A
            process that is interrupted or killed charges nothing and releases nothing.
        """
        return self.answered(
            event, purpose, compute, request=request, body=body, part=part, delta=delta
        )[1]

    def answered(
        self,
        event: Event,
        purpose: str,
        compute: Callable[[], bytes],
        *,
        request: str,
        body: bytes,
        part: str | None = None,
        delta: float | None = None,
    ) -> tuple[Entry, bytes]:
        """Answer as :meth:`answer` does, and tell which entry of the ledger it is.

        Returns
        -------
        tuple of (Entry, bytes)
            The same for the same request, always.
        """
        if not isinstance(body, bytes):
            raise ValueError(f"Expected body to be bytes, got {type(body).__name__}.")
        asked = Asked(event, purpose, part, delta, request, body)
        entry, answer = enter(self.path, asked, compute)
        if answer is None:
            raise failed(entry)
        return entry, answer

    @property
    def opening(self) -> Opening:
        """What was fixed when the ledger was opened."""
        with reading(self.path) as connection:
            return Opening.from_text(tables.opening(connection)[0])

    @property
    def budget(self) -> Budget:
        """The most that everything may cost."""
        return self.opening.budget

    @property
    def head(self) -> str:
        """Hash of the last entry, which stands for the whole ledger up to it."""
        with reading(self.path) as connection:
            return tables.head(connection)[1]

    def spent(self, part: str | None = None) -> Amount:
        """What a part has spent; by default the most of any, which is the ledger's total.

        All of a plan was spent when it was opened.
        """
        found = [each.spent for each in self.parts(part)]
        return Amount(max(a.epsilon for a in found), max(a.delta for a in found))

    def remaining(self, part: str | None = None) -> Amount:
        """What a part may still spend; by default the least of any.

        Nothing of a plan, whose items are paid for already.
        """
        found = [each.left for each in self.parts(part)]
        return Amount(min(a.epsilon for a in found), min(a.delta for a in found))

    def require(
        self,
        event: Event,
        purpose: str,
        *,
        part: str | None = None,
        delta: float | None = None,
    ) -> None:
        """Raise what :meth:`charge` would raise, and charge nothing.

        For those who have to load records before they can ask. Between this and the charge
        others may spend what is left; the charge decides.
        """
        with reading(self.path) as connection:
            affordable(connection, Asked(event, purpose, part, delta, None, None))

    def parts(self, part: str | None = None) -> tuple[Part, ...]:
        """Every part, or one of them, with what it has spent and may still spend."""
        with reading(self.path) as connection:
            opening = Opening.from_text(tables.opening(connection)[0])
            balances = tables.balances(connection)
        opening.check_part(part)
        spent = {name: cost for name, cost, _ in balances}
        wanted = opening.parts if part is None else (part,)
        return tuple(_part(opening, spent, name) for name in wanted)

    def planned(self) -> tuple[tuple[Item, int], ...]:
        """Every item of a plan, and how often it was used; nothing for other kinds."""
        with reading(self.path) as connection:
            rule = Opening.from_text(tables.opening(connection)[0]).rule
            used = {name: cost.amount for name, cost, _ in tables.balances(connection)}
        if not isinstance(rule, Planned):
            return ()
        return tuple((item, used[str(i)]) for i, item in enumerate(rule.items))

    def entries(self) -> tuple[Entry, ...]:
        """Every entry, in order."""
        with reading(self.path) as connection:
            return tuple(tables.entries(connection))

    def hashes(self, indexes: Iterable[int]) -> dict[int, str]:
        """Hashes of some entries by their numbers; those that there are not are left out.

        For those who were given a head and its number: it is quicker than :meth:`verify`,
        which computes everything again.
        """
        with reading(self.path) as connection:
            return tables.hashes(connection, indexes)

    def length(self) -> int:
        """Number of entries."""
        with reading(self.path) as connection:
            return tables.head(connection)[0]

    def knows(self, request: str) -> bool:
        """Whether something was charged under a request id."""
        with reading(self.path) as connection:
            return tables.find(connection, request) is not None

    def verify(self, head: str | None = None) -> str:
        """Recompute everything: hashes, costs, sums, and the defenses of the file.

        Parameters
        ----------
        head : str, optional
            A head that was written down earlier. If the ledger does not contain it, an older
            copy was put back, or the chain rewritten.

        Returns
        -------
        str
            The head that everything leads to.

        Raises
        ------
        LedgerError
            With everything that is wrong, and where.
        """
        return check(self.path, head)

    def to_json(self, *, answers: bool = False) -> dict[str, Any]:
        """Write everything as what JSON can hold, enough to recompute the chain.

        Parameters
        ----------
        answers : bool
            Whether to include what was answered, in hexadecimal. They were released, though
            perhaps not to everybody; without them their hashes stand for them.
        """
        with reading(self.path) as connection:
            record, first = tables.opening(connection)
            entries = list(tables.entries(connection))
            kept = dict(tables.answers(connection)) if answers else {}
        opening = Opening.from_text(record)
        written = [{**entry.to_json(), "hash": entry.hash} for entry in entries]
        for line in written if answers else ():
            found = kept.get(line["index"])
            line["answer_hex"] = None if found is None else found.hex()
        return {
            "opening": {**opening.to_json(), "hash": first},
            "entries": written,
            "head": written[-1]["hash"] if written else first,
        }


def _part(opening: Opening, spent: Mapping[str, Cost], part: str) -> Part:
    """What a part has spent and may still spend."""
    rule, budget = opening.rule, opening.budget
    if isinstance(rule, Planned):
        return Part(part, Amount(rule.epsilons[part], budget.delta), Amount(0.0, 0.0))
    return Part(
        part,
        Amount(*rule.privacy(spent[part], budget)),
        Amount(*rule.left(spent[part], budget)),
    )


def _checked(item: object) -> Item:
    """Refuse what is no item of a plan."""
    if not isinstance(item, Item):
        raise ValueError(f"Expected a plan of Item, got {item!r}.")
    readable(item.event)
    name(purpose=item.purpose)
    return item
