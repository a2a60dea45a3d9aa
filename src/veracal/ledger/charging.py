"""How a charge is made: check, compute and keep in one transaction, then release.

Reservations: charge, compute outside of any transaction, record.

An answer that takes long to compute must not hold the ledger's write lock meanwhile. Its charge
is *reserved* first, which is durable; then it is computed, while others may charge; then it is
*recorded* by an entry that costs nothing and settles the reservation, once.

Guarantees
----------
A reservation is never refunded. The first entry to settle it stands (a unique column of the
database), so that of several processes with one request all return the answer of one. What
fails is recorded as failed. A process that is killed leaves the reservation pending: the same
request computes anew under it, at no further cost, since nothing of the earlier attempt has
left the process. Where something may have left (a hook has seen weights), every attempt is
reserved and charged by itself, and supersedes the one before.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

from veracal import _checks
from veracal.accounting import Event, event_to_json
from veracal.errors import AnswerError, BudgetError, ConflictError, LedgerError
from veracal.ledger import storage as tables
from veracal.ledger.chain import Entry, Outcome, canonical, digest
from veracal.ledger.plan import Cost, Item, Planned
from veracal.ledger.policies import SEPARATOR, Caps, account_of, name, readable
from veracal.ledger.storage import reading, writing

_LONGEST_ANSWER = 2**28  # bytes
# What to do about a request that was given up. Commands derive request ids from settings.
ANEW = (
    "To pay for it anew, repeat the command with another --version (in Python: use another "
    "request id)."
)


@dataclass(frozen=True)
class PendingCharge:
    """A charge, before it is made.

    Attributes
    ----------
    event, purpose, part, delta, request
        As of :meth:`veracal.ledger.Ledger.charge`.
    body : bytes or None
        What is asked for under the request id, if an answer is.
    run : int or None
        Run whose items it uses.
    reservation : {"once", "every attempt"}, optional
        For an answer that is recorded later: whether attempts that came to no end are charged
        again.
    """

    event: Event
    purpose: str
    part: str | None
    delta: float | None
    request: str | None
    body: bytes | None
    run: int | None = None
    reservation: str | None = None

    def __post_init__(self) -> None:
        readable(self.event)
        name(purpose=self.purpose)
        if self.delta is not None:
            _checks.fraction(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))
        if self.request is not None:
            name(request=self.request)
        if not isinstance(self.body, bytes | None):
            raise ValueError(f"Expected body to be bytes, got {type(self.body).__name__}.")

    @property
    def fingerprint(self) -> str | None:
        """Hash of everything that is asked for under a request id."""
        if self.request is None:
            return None
        asked = {
            "event": event_to_json(self.event),
            "purpose": self.purpose,
            "part": self.part,
            "delta": self.delta,
            "body": None if self.body is None else digest(self.body),
            "reservation": self.reservation,
        }
        return digest(canonical(asked))


@dataclass(frozen=True)
class Debit:
    """What a charge takes, and from which account.

    Attributes
    ----------
    account : str or None
        None for every part of the filter.
    filter : int or None
        None for an item of a plan or of a run.
    cost : Cost
    """

    account: str | None
    filter: int | None
    cost: Cost


def enter(
    path: Path, asked: PendingCharge, compute: Callable[[], bytes] | None
) -> tuple[Entry, bytes | None]:
    """Charge, compute and keep: all of it or nothing, and only once for one request id.

    Guarantees
    ----------
    ``compute`` is called only inside a transaction in which the charge is known to fit; what
    it returns leaves only after the charge and the answer are on the disk together.
    """
    answer: bytes | None = None
    with writing(path) as connection:
        if (kept := _kept(connection, asked)) is not None:
            return kept
        debit = affordable(connection, asked)
        outcome: Outcome = "charged"
        if compute is not None:
            try:
                answer, outcome = as_answer(compute()), "answered"
            except KeyboardInterrupt:  # from outside: nothing is charged, nothing released
                raise
            except BaseException:  # whatever it says may tell of records: nothing of it is kept
                outcome = "failed"
        entry = _entry(connection, asked, debit, outcome, answer)
        tables.append(connection, entry, answer)
    if outcome == "failed":
        raise failed(entry.request)
    return entry, answer


def _kept(connection: Connection, asked: PendingCharge) -> tuple[Entry, bytes | None] | None:
    """What was made of this request before, or a refusal of another one under its id."""
    if asked.request is None:
        return None
    found = tables.find(connection, asked.request, asked.run or 0)
    if found is not None and found[0].body != asked.fingerprint:
        raise conflict(asked.request)
    return found


def conflict(request: str) -> ConflictError:
    """Refusal of a request whose id was used for something else."""
    return ConflictError(
        f"Request {request!r} was made before, for something else; nothing was charged and no "
        "record was read. Ask under another id."
    )


def affordable(connection: Connection, asked: PendingCharge, times: int = 1) -> Debit:
    """Account and cost of a charge that fits into what is left."""
    caps = Caps.read(connection)
    opening, rule = caps.opening, caps.opening.rule
    opening.check(asked.event, asked.part)
    balances = {where: (spent, total) for where, spent, total in tables.balances(connection)}
    if asked.run is not None:
        account = _item_of_run(connection, asked)
        return _use(asked.purpose, account, balances, times)
    if isinstance(rule, Planned):
        account = rule.item(asked.purpose, asked.event, asked.part)
        opening.cost(asked.event, asked.delta)  # refuses what costs nothing
        return _use(asked.purpose, account, balances, times)
    cost = opening.cost(asked.event, asked.delta)
    wanted = {part: cost * times for part in opening.parts if asked.part in (None, part)}
    number = filter_for(caps, balances, wanted, repr(asked.purpose))
    account_name = None if asked.part is None else account_of(asked.part, number)
    return Debit(account_name, number, cost)


def filter_for(
    caps: Caps,
    balances: Mapping[str, tuple[Cost, Cost]],
    wanted: Mapping[str, Cost],
    what: str,
    *,
    run: bool = False,
) -> int:
    """The first filter into which costs of parts fit, or a refusal."""
    for number in caps.filters:
        if not _lacking(balances, wanted, number):
            return number
    # Refuse by the filter with the most room: no other would do either.
    best = max(caps.filters, key=lambda number: _room(balances, wanted, number))
    part = _lacking(balances, wanted, best)[0]
    spent, total = balances[account_of(part, best)]
    rule = caps.opening.rule
    assert not isinstance(rule, Planned)
    where = f" for part {part!r}" if len(caps.opening.parts) > 1 else ""
    within = f" in filter {best}" if len(caps.filters) > 1 else ""
    raise BudgetError(
        f"{what} needs {rule.measure}={rule.figure(wanted[part])}, but "
        f"{rule.figure(total - spent)} of {rule.figure(total)} is left{where}{within}; "
        f"{'nothing was charged' if run else 'no record was read'}. "
        "Ask for less (more noise, fewer steps), or raise the caps with "
        "`veracal ledger extend`, by at least what this needs: a charge fits into one filter."
    )


def _lacking(
    balances: Mapping[str, tuple[Cost, Cost]], wanted: Mapping[str, Cost], number: int
) -> list[str]:
    """Parts that cannot pay from a filter."""
    found = []
    for part, cost in wanted.items():
        spent, total = balances[account_of(part, number)]
        if not cost.within(total - spent):
            found.append(part)
    return found


def _room(
    balances: Mapping[str, tuple[Cost, Cost]], wanted: Mapping[str, Cost], number: int
) -> tuple[int, int]:
    """The least that is left of a filter for the parts that are to pay."""
    left = [balances[account_of(part, number)] for part in wanted]
    rest = [total - spent for spent, total in left]
    return min(one.amount for one in rest), min(one.delta for one in rest)


def items_of_run(entries: Iterable[Entry]) -> tuple[Item, ...]:
    """Every item of a run, in the order of its accounts, from the entries that began it."""
    listed = [item for entry in entries if entry.outcome == "run" for item in entry.items]
    return tuple(dict.fromkeys(listed))  # one without a part is listed for every part


def item_account(run: int, position: int) -> str:
    """Name of the account of an item of a run."""
    return f"run {run}{SEPARATOR}{position}"


def _item_of_run(connection: Connection, asked: PendingCharge) -> str:
    """Account of the item of a run that a charge uses."""
    assert asked.run is not None
    begun = tables.begun(connection, asked.run)
    if not begun:
        raise ValueError(f"The ledger has no run {asked.run}.")
    if tables.settlement(connection, begun[0].index) is not None:
        raise BudgetError(
            f"Run {asked.run} ({begun[0].purpose!r}) was abandoned; no record was read. What "
            "it paid is not refunded. Begin another run: by the command that began this one, "
            "with another --version (in Python: with another request id)."
        )
    wanted = (asked.purpose, asked.event, asked.part)
    for position, item in enumerate(items_of_run(begun)):
        if (item.purpose, item.event, item.part) == wanted:
            return item_account(asked.run, position)
    where = "" if asked.part is None else f" on part {asked.part!r}"
    raise BudgetError(
        f"{asked.purpose!r}{where} is not among the items of run {asked.run} "
        f"({begun[0].purpose!r}) with this event; no record was read. A run fixes its list "
        "when it begins: ask for what it lists, exactly as it lists it, or begin another run."
    )


def _use(
    purpose: str, account: str, balances: Mapping[str, tuple[Cost, Cost]], times: int
) -> Debit:
    """Use an item that was paid for before, if it is not used up."""
    spent, total = balances[account]
    if not Cost(times).within(total - spent):
        raise BudgetError(
            f"{purpose!r} is planned {_times(total.amount)} and was used "
            f"{'as often' if spent == total else _times(spent.amount)}; no record was read. "
            "Plan more of it in another run, or in another ledger on other records."
        )
    return Debit(account, None, Cost(1))


def _times(number: int) -> str:
    """How often, in words."""
    return "once" if number == 1 else f"{number} times"


def _entry(
    connection: Connection,
    asked: PendingCharge,
    debit: Debit,
    outcome: Outcome,
    answer: bytes | None,
) -> Entry:
    """The entry that follows the last one."""
    index, previous = tables.head(connection)
    return Entry(
        index=index + 1,
        purpose=asked.purpose,
        event=asked.event,
        part=asked.part,
        delta=asked.delta,
        account=debit.account,
        filter=debit.filter,
        cost=debit.cost.amount,
        cost_delta=debit.cost.delta,
        request=asked.request,
        body=asked.fingerprint,
        run=asked.run,
        outcome=outcome,
        answer=None if answer is None else digest(answer),
        previous=previous,
    )


def as_answer(answer: object) -> bytes:
    """Refuse an answer that cannot be kept as it is."""
    if not isinstance(answer, bytes) or len(answer) > _LONGEST_ANSWER:
        raise ValueError(f"Expected an answer of at most {_LONGEST_ANSWER:,} bytes.")
    return answer


def failed(request: str | None) -> AnswerError:
    """The one way in which a failed request is refused, at first and ever after."""
    return AnswerError(
        f"Request {request!r} was charged, and its answer could not be computed. The "
        "charge stands, and asking again under this id will be refused in the same way."
    )


Reservation = Literal["once", "every attempt"]
Settled = tuple[Entry, bytes | None]


def compute_once(
    path: Path, asked: PendingCharge, compute: Callable[[], bytes]
) -> tuple[Entry, bytes]:
    """Reserve, compute and record; or return what was recorded before.

    Returns
    -------
    tuple of (Entry, bytes)
        The entry that settles the reservation, and the answer.
    """
    reservation, settled = reserve(path, asked)
    if settled is None:
        answer = None
        try:
            answer = as_answer(compute())
        except KeyboardInterrupt:  # from outside: the reservation stands, nothing is released
            raise
        except BaseException:  # whatever it says may tell of records: nothing of it is kept
            answer = None
        settled = settle(path, reservation.index, answer)
    return settled[0], answer_of(settled, asked.request)


def reserve(path: Path, asked: PendingCharge) -> tuple[Entry, Settled | None]:
    """Charge a reservation, or find the one that was charged before.

    A pending reservation is used again only if neither it nor this attempt charges every
    attempt. Otherwise it is superseded, and a further attempt is charged under an id that
    names its number.

    Returns
    -------
    tuple of (Entry, settled)
        The reservation, and what settles it, if anything does.
    """
    with writing(path) as connection:
        attempt, given_up, tried = asked, None, 1
        while (found := _reserved(connection, attempt)) is not None:
            settled = tables.settlement(connection, found.index)
            if settled is not None and settled[0].outcome != "superseded":
                return found, settled
            if settled is None:
                if found.body == attempt.fingerprint and attempt.reservation == "once":
                    return found, None
                given_up = found
            tried += 1
            attempt = replace(asked, request=f"{asked.request} [attempt {tried}]")
        debit = affordable(connection, attempt)
        if given_up is not None:
            _append_settlement(connection, given_up, "superseded", None)
        entry = _entry(connection, attempt, debit, "reserved", None)
        tables.append(connection, entry, None)
    return entry, None


def _reserved(connection: Connection, asked: PendingCharge) -> Entry | None:
    """A reservation under this id, or a refusal of anything else under it."""
    assert asked.request is not None
    found = tables.find(connection, asked.request, asked.run or 0)
    if found is None:
        return None
    kinds: tuple[Reservation, ...] = ("once", "every attempt")
    if found[0].body not in {replace(asked, reservation=kind).fingerprint for kind in kinds}:
        raise conflict(asked.request)
    return found[0]


def settle(path: Path, index: int, answer: bytes | None) -> Settled:
    """Record an answer, or a failure, unless the reservation was settled before."""
    with writing(path) as connection:
        reservation = tables.entry(connection, index)
        settled = tables.settlement(connection, index)
        if settled is None:
            outcome: Outcome = "failed" if answer is None else "answered"
            settled = (
                _append_settlement(connection, reservation, outcome, answer),
                answer,
            )
    return settled


def record(
    path: Path, run: int | None, request: str, body: bytes, answer: bytes | None
) -> Settled:
    """Settle the reservation of a request, if it was made for this body."""
    kept = None if answer is None else as_answer(answer)
    with reading(path) as connection:
        found = tables.find(connection, request, run or 0)
    if found is None or found[0].event is None:
        raise LedgerError(f"Nothing is reserved under request {request!r}: reserve first.")
    entry = found[0]
    kinds: tuple[Reservation, ...] = ("once", "every attempt")
    assert entry.event is not None
    asked = PendingCharge(entry.event, entry.purpose, entry.part, entry.delta, request, body)
    if entry.body not in {replace(asked, reservation=kind).fingerprint for kind in kinds}:
        raise conflict(request)
    return settle(path, entry.index, kept)


def abandon(path: Path, run: int | None, request: str) -> Entry:
    """Settle a pending reservation without an answer."""
    with writing(path) as connection:
        found = tables.find(connection, request, run or 0)
        if found is None or found[0].outcome != "reserved":
            raise LedgerError(
                f"Nothing is reserved under request {request!r}. `veracal ledger show` lists "
                "what is pending."
            )
        settled = tables.settlement(connection, found[0].index)
        if settled is not None:
            raise LedgerError(
                f"The reservation of request {request!r} is not pending: it was "
                f"{settled[0].outcome} before, by entry {settled[0].index}."
            )
        return _append_settlement(connection, found[0], "abandoned", None)


def abandon_run(path: Path, run: int) -> Entry:
    """Settle a run: its pending reservations, and then itself."""
    with writing(path) as connection:
        begun = tables.begun(connection, run)
        if not begun:
            raise LedgerError(
                f"The ledger has no run {run}. `veracal ledger show` lists its runs."
            )
        if tables.settlement(connection, begun[0].index) is not None:
            raise LedgerError(f"Run {run} was abandoned before.")
        for entry in tables.pending(connection):
            if entry.run == run:
                _append_settlement(connection, entry, "abandoned", None)
        return _append_settlement(connection, begun[0], "abandoned", None)


def answer_of(settled: Settled, request: str | None) -> bytes:
    """The answer of a settled reservation, or the one way in which it is refused."""
    entry, answer = settled
    if answer is not None:
        return answer
    if entry.outcome == "failed":
        raise failed(request)
    why = {
        "abandoned": "was abandoned",
        "superseded": "was superseded by a further attempt, which alone has an answer",
    }[entry.outcome]
    raise AnswerError(
        f"{entry.purpose!r} was charged, and its reservation {why} (entry {entry.index} of the "
        f"ledger). The charge stands, and nothing is released for it. {ANEW}"
    )


def _append_settlement(
    connection: Connection, reservation: Entry, outcome: Outcome, answer: bytes | None
) -> Entry:
    """Add the entry that settles a reservation, or a run."""
    index, previous = tables.head(connection)
    entry = Entry(
        index=index + 1,
        purpose=reservation.purpose,
        event=None,
        part=reservation.part,
        delta=None,
        account=None,
        filter=None,
        cost=0,
        cost_delta=0,
        request=None,
        body=None,
        run=reservation.run,
        outcome=outcome,
        answer=None if answer is None else digest(answer),
        previous=previous,
        settles=reservation.index,
    )
    tables.append(connection, entry, answer)
    return entry
