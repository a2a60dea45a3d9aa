"""A ledger of what was spent, which is charged before any record is read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

from veracal.accounting import Budget, Event
from veracal.errors import LedgerError
from veracal.ledger import charging as reservations
from veracal.ledger import storage as tables
from veracal.ledger.chain import Entry
from veracal.ledger.charging import PendingCharge, affordable, enter, failed, item_account
from veracal.ledger.plan import Cost, Item, Planned
from veracal.ledger.policies import Caps, Extension, Opening, account_of, checked_item, rule_for
from veracal.ledger.runs import (
    LedgerRun,
    RunRequest,
    begin,
    number_of,
    read_run,
    read_runs,
    require,
)
from veracal.ledger.storage import create, new_ledger, reading, writing
from veracal.ledger.verification import check


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
class PartitionBalance:
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
    data: str | None = None,
    split: Mapping[str, Any] | None = None,
) -> "Ledger":
    """Make a new ledger with caps on epsilon and delta.

    Parameters
    ----------
    path : path
        A new file on a local disk. It appears whole or not at all, for its owner's eyes only.
    budget : Budget
        A pure ledger counts it in micro-epsilon, as the number is written in decimal.
    kind : {"pure", "open", "plan"}
        "pure": epsilons are added up, and delta is 0. "open": the next cost may depend on
        earlier answers. "plan": every cost is fixed now, and all are charged now. See
        :mod:`veracal.ledger.policies` for why an open ledger costs more than a plan.
    composition : {"rdp", "addition"}, optional
        How an open ledger adds up; by default by Rényi divergence.
    order : float > 1, optional
        Of the Rényi divergence; by default the one that affords most Gaussian noise events.
    plan : sequence of Item, optional
        What a plan consists of.
    parts : sequence of str
        Disjoint parts of the records, chosen without looking at them (as ``split`` does).
    data : str, optional
        Public name of the data set whose ledger it is.
    split : mapping, optional
        Public settings of how records are assigned to the parts, as what JSON can hold. Both
        are part of the opening record, which never changes.

    Raises
    ------
    BudgetError
        If a plan costs more than the budget.
    LedgerError
        If the place cannot keep a ledger.

    Examples
    --------
    >>> from veracal.accounting.events import Pure
    >>> folder = getfixture("tmp_path")
    >>> ledger = open_ledger(folder / "study.ledger", Budget(1.0))
    >>> entry = ledger.charge(Pure(0.25), "counting")
    >>> ledger.remaining().epsilon
    0.75
    """
    place = Path(path).absolute()
    new_ledger(place)  # before the work, not after it
    items = None if plan is None else [checked_item(item) for item in plan]
    rule = rule_for(
        budget, kind=kind, composition=composition, order=order, items=items, parts=parts
    )
    opening = Opening(budget, rule, tuple(parts), data=data, split=split)
    for item in items or ():
        opening.check(item.event, item.part)
    first = None if isinstance(rule, Planned) else 1
    create(place, opening.text, opening.accounts(), filter=first)
    return Ledger(place)


def check_ledger(ledger: object) -> None:
    """Refuse what is no ledger, before anything else is done."""
    if not isinstance(ledger, Ledger):
        raise ValueError(
            f"Expected a Ledger of veracal.ledger, got {ledger!r}. Ledger(path) is one that "
            "exists, and open_ledger(path, budget) makes one."
        )


@dataclass(frozen=True)
class Ledger:
    """A ledger that exists, or a view of one of its runs.

    It holds the path and the number of the run, and nothing else: copied, pickled, cloned or
    forked, it is the same ledger and forgets nothing. One machine cannot tell that a whole
    ledger was deleted, or an older copy of it put back: write down :attr:`head` elsewhere, and
    ask :meth:`verify` later.

    Parameters
    ----------
    path : path
        As made by :func:`open_ledger`.
    run : int or str, optional
        Number of a run, or the request under which it was begun (:meth:`begin_run`). Charges,
        answers and reservations of the view use up the items of the run, and cost nothing
        more; their request ids are unique within the run. :meth:`planned`, :meth:`require` and
        :meth:`knows` speak of the run as well, everything else of the whole ledger.

    Guarantees
    ----------
    A charge is on the disk before its method returns. What all charges cost together never
    exceeds the caps, whoever else charges at the same time, and however the process ends.
    """

    path: Path
    run: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())
        with reading(self.path) as connection:  # fails now, not at the first charge
            Opening.from_text(tables.opening(connection)[0])
            if self.run is not None:
                object.__setattr__(self, "run", _run_number(connection, self.run))

    @property
    def whole(self) -> "Ledger":
        """The ledger itself, of which this may be the view of one run."""
        return Ledger(self.path)

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
        asked = PendingCharge(event, purpose, part, delta, request, None, self.run)
        return enter(self.path, asked, None)[0]

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
        asked = PendingCharge(event, purpose, part, delta, request, body, self.run)
        entry, answer = enter(self.path, asked, compute)
        if answer is None:
            raise failed(entry.request)
        return entry, answer

    # ------------------------------------------------------------ reservations

    def reserve(
        self,
        event: Event,
        purpose: str,
        *,
        request: str,
        body: bytes,
        part: str | None = None,
        delta: float | None = None,
    ) -> Entry:
        """Pay for an answer that is computed now and recorded later.

        Others may charge meanwhile. The same request and body find the same reservation, at no
        cost: whoever uses it again promises that nothing that depends on records or noise has
        left the process of an earlier attempt.

        Parameters
        ----------
        event, purpose, part, delta
            As for :meth:`charge`.
        request, body
            As for :meth:`answer`.

        Raises
        ------
        BudgetError
            If it does not fit into what is left; nothing is charged.
        ConflictError
            If the id was used for something else; nothing is charged.
        AnswerError
            If it was settled before, without an answer.
        """
        asked = _reservation(event, purpose, part, delta, request, body, self.run)
        entry, settled = reservations.reserve(self.path, asked)
        if settled is not None:
            reservations.answer_of(settled, request)
        return entry

    def record(
        self, request: str, body: bytes, answer: bytes | None
    ) -> tuple[Entry, bytes | None]:
        """Settle a reservation by its answer, unless it was settled before.

        Parameters
        ----------
        request, body
            As for :meth:`reserve`.
        answer : bytes or None
            None if it could not be computed, which is an answer, too.

        Returns
        -------
        tuple of (Entry, bytes or None)
            The entry that settles the reservation and its answer: of several that are recorded
            at the same time, the first. The charge is never given back.
        """
        return reservations.record(self.path, self.run, request, body, answer)

    def compute_once(
        self,
        event: Event,
        purpose: str,
        compute: Callable[[], bytes],
        *,
        request: str,
        body: bytes,
        part: str | None = None,
        delta: float | None = None,
        every_attempt: bool = False,
    ) -> bytes:
        """Reserve, compute outside of any transaction, and record.

        Unlike :meth:`answer`, which is for what takes a moment, this lets others charge while
        ``compute`` runs. Killed or interrupted, the reservation stands, and the same request
        computes anew under it.

        Parameters
        ----------
        event, purpose, request, body, part, delta
            As for :meth:`answer`.
        compute : callable
            Nothing that depends on records or noise may leave the process through it.
        every_attempt : bool
            Charge every attempt by itself, for a ``compute`` that does not keep to that. A
            pending attempt is then superseded, stays charged, and has no answer.

        Raises
        ------
        BudgetError, ConflictError
            As for :meth:`answer`.
        AnswerError
            If ``compute`` failed, now or before; or if the reservation was abandoned.
        """
        kind: reservations.Reservation = "every attempt" if every_attempt else "once"
        asked = _reservation(event, purpose, part, delta, request, body, self.run, kind)
        return reservations.compute_once(self.path, asked, compute)[1]

    def abandon(self, request: str) -> Entry:
        """Give up a pending reservation; its charge stands, and its request is refused."""
        return reservations.abandon(self.path, self.run, request)

    def abandon_run(self, number: int | None = None) -> Entry:
        """Give up a run and its pending reservations; what it paid is not refunded."""
        run = self.run if number is None else number
        if run is None:
            raise ValueError("Name the number of the run to abandon.")
        return reservations.abandon_run(self.path, run)

    def pending(self) -> tuple[Entry, ...]:
        """Reservations of the whole ledger, or of the view's run, that are not settled."""
        with reading(self.path) as connection:
            found = tables.pending(connection)
        return tuple(entry for entry in found if self.run in (None, entry.run))

    # ------------------------------------------------------------ runs and caps

    def begin_run(
        self,
        items: Sequence[Item],
        *,
        name: str,
        request: str,
        body: bytes,
        delta: float | None = None,
    ) -> "Ledger":
        """Charge a whole list of items at once, and return a view that may use them.

        The items of each part are composed tightly, as one list that is fixed before the first
        release; an item without a part counts for every part. Across runs costs add by the
        ledger's filter, since the next run may depend on what this one releases.

        Parameters
        ----------
        items : sequence of Item
        name : str
            What the run is called in the ledger.
        request : str
            An id of the caller's. The same run under the same id is charged once.
        body : bytes
            Everything that tells this run from another.
        delta : float, optional
            Failure probability at which lists that are not pure are charged, by a ledger that
            adds up pairs. Other ledgers do not use it.

        Returns
        -------
        Ledger
            A view: ``Ledger(path, run=number)``.

        Raises
        ------
        BudgetError
            If it does not fit into what is left; nothing is written.
        ConflictError
            If the id was used for something else; nothing is written.
        AnswerError
            If the run was abandoned.

        Examples
        --------
        >>> from veracal.accounting.events import Pure
        >>> ledger = open_ledger(getfixture("tmp_path") / "study.ledger", Budget(1.0))
        >>> items = [Item("count", Pure(0.1), times=3)]
        >>> run = ledger.begin_run(items, name="first", request="first", body=b"settings")
        >>> entry = run.charge(Pure(0.1), "count")
        >>> round(ledger.spent().epsilon, 6), run.planned()[0][1]
        (0.3, 1)
        """
        asked = RunRequest(tuple(items), name, request, body, delta)
        return Ledger(self.path, begin(self.path, asked))

    def require_run(
        self,
        items: Sequence[Item],
        *,
        name: str,
        request: str,
        body: bytes,
        delta: float | None = None,
    ) -> None:
        """Raise what :meth:`begin_run` would raise, and write nothing.

        For a run that is to be refused before its records are loaded.
        """
        require(self.path, RunRequest(tuple(items), name, request, body, delta))

    def runs(self) -> tuple[LedgerRun, ...]:
        """Every run, in order."""
        with reading(self.path) as connection:
            return read_runs(connection)

    def extend(self, *, epsilon: float, delta: float = 0.0) -> Entry:
        """Raise the caps, by a further filter with caps of its own.

        The filter composes as the ledger does; for Rényi divergences its order stays the one
        that was fixed at the opening. Each charge fits wholly into one filter, the first with
        room for it. From now on every statement says that the cap was raised, and whether
        anything was released before.

        Parameters
        ----------
        epsilon : float > 0
        delta : float >= 0

        Returns
        -------
        Entry
            The extension, as it stands in the chain.
        """
        with writing(self.path) as connection:
            index, previous = tables.head(connection)
            caps = Caps.read(connection).extended(
                epsilon, delta, index + 1, after_releases=False
            )
            new = caps.extensions[-1]
            entry = Entry(
                index=index + 1,
                purpose="extension",
                event=None,
                part=None,
                delta=None,
                account=None,
                filter=None,
                cost=0,
                cost_delta=0,
                request=None,
                body=None,
                run=None,
                outcome="extended",
                answer=None,
                previous=previous,
                extension=(new.epsilon, new.delta),
            )
            accounts = caps.accounts(new.filter)
            tables.append(connection, entry, None, adds=len(accounts))
            tables.add_accounts(connection, accounts, filter=new.filter, entry=entry.index)
        return entry

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """Every raise of the caps since the opening."""
        return self._caps().extensions

    @property
    def cap_note(self) -> str | None:
        """What every statement has to say of caps that were raised; None if none was."""
        return self._caps().note

    def _caps(self) -> Caps:
        with reading(self.path) as connection:
            return Caps.read(connection)

    # ------------------------------------------------------------ state

    @property
    def opening(self) -> Opening:
        """What was fixed when the ledger was opened."""
        with reading(self.path) as connection:
            return Opening.from_text(tables.opening(connection)[0])

    @property
    def budget(self) -> Budget:
        """The most that everything may cost: the sum of all caps, extensions included."""
        return self._caps().budget

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
        times: int = 1,
    ) -> None:
        """Raise what so many charges would raise, and charge nothing.

        For those who have to load records before they can ask. Between this and the charge
        others may spend what is left; the charge decides.
        """
        with reading(self.path) as connection:
            asked = PendingCharge(event, purpose, part, delta, None, None, self.run)
            affordable(connection, asked, times)

    def parts(self, part: str | None = None) -> tuple[PartitionBalance, ...]:
        """Every part, or one of them, with what it has spent and may still spend."""
        with reading(self.path) as connection:
            caps = Caps.read(connection)
            balances = tables.balances(connection)
        caps.opening.check_part(part)
        spent = {name: cost for name, cost, _ in balances}
        wanted = caps.opening.parts if part is None else (part,)
        return tuple(_part(caps, spent, name) for name in wanted)

    def planned(self) -> tuple[tuple[Item, int], ...]:
        """Every item of a plan or of the view's run, and how often it was used."""
        with reading(self.path) as connection:
            rule = Opening.from_text(tables.opening(connection)[0]).rule
            used = {name: cost.amount for name, cost, _ in tables.balances(connection)}
            run = None if self.run is None else read_run(connection, self.run)
        if run is not None:
            numbered = enumerate(run.items)
            return tuple((item, used[item_account(run.number, i)]) for i, item in numbered)
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
        """Whether something was charged under a request id, of the view's run if it is one."""
        with reading(self.path) as connection:
            return tables.find(connection, request, self.run or 0) is not None

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


def _part(caps: Caps, spent: Mapping[str, Cost], part: str) -> PartitionBalance:
    """What a part has spent and may still spend, over all filters."""
    rule, budget = caps.opening.rule, caps.budget
    if isinstance(rule, Planned):
        return PartitionBalance(
            part, Amount(rule.epsilons[part], budget.delta), Amount(0.0, 0.0)
        )
    total = sum((spent[account_of(part, number)] for number in caps.filters), Cost(0))
    return PartitionBalance(
        part, Amount(*rule.privacy(total, budget)), Amount(*rule.left(total, budget))
    )


def _run_number(connection: Connection, run: object) -> int:
    """Number of a run that exists, from its number or the request that began it."""
    found: int | None = None
    if isinstance(run, str):
        found = number_of(connection, run)
    elif isinstance(run, int) and not isinstance(run, bool) and tables.begun(connection, run):
        found = int(run)
    if found is None:
        raise LedgerError(f"The ledger has no run {run!r}.")
    return found


def _reservation(
    event: Event,
    purpose: str,
    part: str | None,
    delta: float | None,
    request: str,
    body: bytes,
    run: int | None,
    kind: reservations.Reservation = "once",
) -> PendingCharge:
    """A reservation, before it is made."""
    if not isinstance(request, str) or not isinstance(body, bytes):
        raise ValueError("A reservation needs a request id and a body of bytes.")
    return PendingCharge(event, purpose, part, delta, request, body, run, kind)
