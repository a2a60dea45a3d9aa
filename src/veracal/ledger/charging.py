"""Charges, answers and reservations.

*Charge and answer.* The charge is checked, and the answer is computed and stored in the same
transaction; then it is released.

*Reservations.* A long computation must not hold the write lock of the ledger. Its charge is
*reserved* first, which is durable. Then the answer is computed, while other charges are
possible. Finally it is *recorded* by an entry that costs nothing and settles the reservation,
once.

Guarantees
----------
A reservation is never refunded. The first entry that settles it is final (by a unique column of
the database), so several processes with the same request all return one answer. Failures are
recorded. A killed process leaves its reservation pending: the same request computes again under
it, at no further cost, since the earlier attempt released nothing. If an attempt may have
released something (a hook has seen weights), every attempt is reserved and charged separately,
and supersedes the previous one.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Literal

from veracal import _checks
from veracal.accounting import Event, event_to_json
from veracal.errors import AnswerError, BudgetError, ConflictError, LedgerError
from veracal.ledger import storage
from veracal.ledger.chain import Entry, Outcome, canonical, digest
from veracal.ledger.plan import Cost, Item, Planned
from veracal.ledger.policies import (
    SEPARATOR,
    Caps,
    account_name,
    check_name,
    check_serializable,
)
from veracal.ledger.storage import reading, writing

_MAX_ANSWER_BYTES = 2**28  # bytes
# Commands derive request ids from their settings.
RETRY_HINT = (
    "To pay for it again, repeat the command with another --version (in Python: use another "
    "request id)."
)


@dataclass(frozen=True)
class ChargeRequest:
    """A requested charge.

    Attributes
    ----------
    event, purpose, partition, delta, request
        As in :meth:`veracal.ledger.Ledger.charge`.
    body : bytes or None
        Everything that is requested under the request id, if an answer is requested.
    run : int or None
        The run whose items are used.
    reservation : {"once", "every attempt"}, optional
        For an answer that is recorded later: whether unfinished attempts are charged again.
    """

    event: Event
    purpose: str
    partition: str | None
    delta: float | None
    request: str | None
    body: bytes | None
    run: int | None = None
    reservation: str | None = None

    def __post_init__(self) -> None:
        check_serializable(self.event)
        check_name(purpose=self.purpose)
        if self.delta is not None:
            _checks.fraction(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))
        if self.request is not None:
            check_name(request=self.request)
        if not isinstance(self.body, bytes | None):
            raise ValueError(f"Expected body to be bytes, got {type(self.body).__name__}.")

    @property
    def fingerprint(self) -> str | None:
        """Hash of everything that is requested under the request id."""
        if self.request is None:
            return None
        content = {
            "event": event_to_json(self.event),
            "purpose": self.purpose,
            "part": self.partition,
            "delta": self.delta,
            "body": None if self.body is None else digest(self.body),
            "reservation": self.reservation,
        }
        return digest(canonical(content))


@dataclass(frozen=True)
class Debit:
    """The account that a charge debits, and the cost.

    Attributes
    ----------
    account : str or None
        None for every partition of the filter.
    filter : int or None
        None for an item of a plan or of a run.
    cost : Cost
    """

    account: str | None
    filter: int | None
    cost: Cost


def charge_and_answer(
    path: Path, charge: ChargeRequest, compute: Callable[[], bytes] | None
) -> tuple[Entry, bytes | None]:
    """Charge, compute and store, atomically and once per request id.

    Guarantees
    ----------
    ``compute`` is called only inside a transaction in which the budget is known to suffice. Its
    result is released only after charge and answer are on the disk together.
    """
    answer: bytes | None = None
    with writing(path) as connection:
        if (previous := _find_previous(connection, charge)) is not None:
            return previous
        debit = debit_for(connection, charge)
        outcome: Outcome = "charged"
        if compute is not None:
            try:
                answer, outcome = check_answer(compute()), "answered"
            except KeyboardInterrupt:  # external: nothing is charged, nothing released
                raise
            except BaseException:  # its message may depend on records, so it is discarded
                outcome = "failed"
        entry = _next_entry(connection, charge, debit, outcome, answer)
        storage.append(connection, entry, answer)
    if outcome == "failed":
        raise failed_error(entry.request)
    return entry, answer


def _find_previous(
    connection: Connection, charge: ChargeRequest
) -> tuple[Entry, bytes | None] | None:
    """The earlier entry of this request; raise if the id was used for another request."""
    if charge.request is None:
        return None
    previous = storage.find(connection, charge.request, charge.run or 0)
    if previous is not None and previous[0].body != charge.fingerprint:
        raise conflict_error(charge.request)
    return previous


def conflict_error(request: str) -> ConflictError:
    """Error for a request whose id was used for another request."""
    return ConflictError(
        f"Request id {request!r} was used before, for another request; nothing was charged and "
        "no record was read. Use another id."
    )


def debit_for(connection: Connection, charge: ChargeRequest, times: int = 1) -> Debit:
    """Account and cost of a charge; raise if the remaining budget is too small."""
    caps = Caps.read(connection)
    opening, rule = caps.opening, caps.opening.rule
    opening.check(charge.event, charge.partition)
    balances = {where: (spent, total) for where, spent, total in storage.balances(connection)}
    if charge.run is not None:
        account = _find_run_item(connection, charge)
        return _use_item(charge.purpose, account, balances, times)
    if isinstance(rule, Planned):
        account = rule.item(charge.purpose, charge.event, charge.partition)
        opening.cost(charge.event, charge.delta)  # rejects events that cost nothing
        return _use_item(charge.purpose, account, balances, times)
    cost = opening.cost(charge.event, charge.delta)
    costs = {
        partition: cost * times
        for partition in opening.partitions
        if charge.partition in (None, partition)
    }
    number = find_filter(caps, balances, costs, repr(charge.purpose))
    account_of_part = (
        None if charge.partition is None else account_name(charge.partition, number)
    )
    return Debit(account_of_part, number, cost)


def find_filter(
    caps: Caps,
    balances: Mapping[str, tuple[Cost, Cost]],
    costs: Mapping[str, Cost],
    what: str,
    *,
    run: bool = False,
) -> int:
    """The first filter with enough budget for the costs of all partitions, or an error."""
    for number in caps.filters:
        if not _parts_without_room(balances, costs, number):
            return number
    # Report the filter with the most budget left.
    best = max(caps.filters, key=lambda number: _remaining_room(balances, costs, number))
    partition = _parts_without_room(balances, costs, best)[0]
    spent, total = balances[account_name(partition, best)]
    rule = caps.opening.rule
    assert not isinstance(rule, Planned)
    where = f" for partition {partition!r}" if len(caps.opening.partitions) > 1 else ""
    within = f" in filter {best}" if len(caps.filters) > 1 else ""
    raise BudgetError(
        f"{what} needs {rule.measure}={rule.figure(costs[partition])}, but "
        f"{rule.figure(total - spent)} of {rule.figure(total)} is left{where}{within}; "
        f"{'nothing was charged' if run else 'no record was read'}. "
        "Request less (more noise, fewer steps), or raise the caps with `veracal ledger "
        "extend` "
        "by at least this cost, since each charge is debited to a single filter."
    )


def _parts_without_room(
    balances: Mapping[str, tuple[Cost, Cost]], costs: Mapping[str, Cost], number: int
) -> list[str]:
    """Partitions whose remaining budget in a filter is too small."""
    partitions = []
    for partition, cost in costs.items():
        spent, total = balances[account_name(partition, number)]
        if not cost.within(total - spent):
            partitions.append(partition)
    return partitions


def _remaining_room(
    balances: Mapping[str, tuple[Cost, Cost]], costs: Mapping[str, Cost], number: int
) -> tuple[int, int]:
    """The smallest remaining amount and delta of a filter over the partitions with a cost."""
    accounts = [balances[account_name(partition, number)] for partition in costs]
    left = [total - spent for spent, total in accounts]
    return min(one.amount for one in left), min(one.delta for one in left)


def run_items(entries: Iterable[Entry]) -> tuple[Item, ...]:
    """The items of a run, in the order of its accounts, from the entries that began it."""
    items = [item for entry in entries if entry.outcome == "run" for item in entry.items]
    return tuple(dict.fromkeys(items))  # an item without a partition is listed for each


def item_account(run: int, position: int) -> str:
    """Name of the account of an item of a run."""
    return f"run {run}{SEPARATOR}{position}"


def _find_run_item(connection: Connection, charge: ChargeRequest) -> str:
    """Account of the item of a run that a charge uses."""
    assert charge.run is not None
    entries = storage.run_entries(connection, charge.run)
    if not entries:
        raise ValueError(f"The ledger has no run {charge.run}.")
    if storage.settlement(connection, entries[0].index) is not None:
        raise BudgetError(
            f"Run {charge.run} ({entries[0].purpose!r}) was abandoned; no record was read. Its "
            "cost is not refunded. Begin another run: repeat the command that began this one "
            "with another --version (in Python: with another request id)."
        )
    key = (charge.purpose, charge.event, charge.partition)
    for position, item in enumerate(run_items(entries)):
        if (item.purpose, item.event, item.partition) == key:
            return item_account(charge.run, position)
    where = "" if charge.partition is None else f" on partition {charge.partition!r}"
    raise BudgetError(
        f"{charge.purpose!r}{where} is not among the items of run {charge.run} "
        f"({entries[0].purpose!r}) with this event; no record was read. A run fixes its items "
        "when it begins: request one of them exactly as listed, or begin another run."
    )


def _use_item(
    purpose: str, account: str, balances: Mapping[str, tuple[Cost, Cost]], times: int
) -> Debit:
    """The debit for a use of a paid item; raise if it is used up."""
    spent, total = balances[account]
    if not Cost(times).within(total - spent):
        raise BudgetError(
            f"{purpose!r} is planned {_format_count(total.amount)} and was used "
            f"{'as often' if spent == total else _format_count(spent.amount)}; no record was "
            "read. Plan more uses in another run, or in another ledger on other records."
        )
    return Debit(account, None, Cost(1))


def _format_count(number: int) -> str:
    """Format a number of times."""
    return "once" if number == 1 else f"{number} times"


def _next_entry(
    connection: Connection,
    charge: ChargeRequest,
    debit: Debit,
    outcome: Outcome,
    answer: bytes | None,
) -> Entry:
    """The next entry of the chain."""
    index, previous = storage.head(connection)
    return Entry(
        index=index + 1,
        purpose=charge.purpose,
        event=charge.event,
        partition=charge.partition,
        delta=charge.delta,
        account=debit.account,
        filter=debit.filter,
        cost=debit.cost.amount,
        cost_delta=debit.cost.delta,
        request=charge.request,
        body=charge.fingerprint,
        run=charge.run,
        outcome=outcome,
        answer=None if answer is None else digest(answer),
        previous=previous,
    )


def check_answer(answer: object) -> bytes:
    """Raise unless an answer is bytes of limited size."""
    if not isinstance(answer, bytes) or len(answer) > _MAX_ANSWER_BYTES:
        raise ValueError(f"Expected an answer of at most {_MAX_ANSWER_BYTES:,} bytes.")
    return answer


def failed_error(request: str | None) -> AnswerError:
    """Error for a failed request, the same at every repetition."""
    return AnswerError(
        f"Request {request!r} was charged, but computing its answer failed. The charge stands, "
        "and repeating the request will fail in the same way."
    )


Reservation = Literal["once", "every attempt"]
Settled = tuple[Entry, bytes | None]


def compute_once(
    path: Path, charge: ChargeRequest, compute: Callable[[], bytes]
) -> tuple[Entry, bytes]:
    """Reserve, compute and record; or return the recorded answer.

    Returns
    -------
    tuple of (Entry, bytes)
        The entry that settles the reservation, and the answer.
    """
    reservation, settled = reserve(path, charge)
    if settled is None:
        answer = None
        try:
            answer = check_answer(compute())
        except KeyboardInterrupt:  # external: the reservation stands, nothing is released
            raise
        except BaseException:  # its message may depend on records, so it is discarded
            answer = None
        settled = settle(path, reservation.index, answer)
    return settled[0], get_answer(settled, charge.request)


def reserve(path: Path, charge: ChargeRequest) -> tuple[Entry, Settled | None]:
    """Charge a reservation, or find an earlier one.

    A pending reservation is reused only if neither it nor this attempt charges every attempt.
    Otherwise it is superseded, and another attempt is charged under an id with its number.

    Returns
    -------
    tuple of (Entry, settled)
        The reservation, and its settlement, if any.
    """
    with writing(path) as connection:
        attempt, superseded, number = charge, None, 1
        while (earlier := _find_reservation(connection, attempt)) is not None:
            settled = storage.settlement(connection, earlier.index)
            if settled is not None and settled[0].outcome != "superseded":
                return earlier, settled
            if settled is None:
                if earlier.body == attempt.fingerprint and attempt.reservation == "once":
                    return earlier, None
                superseded = earlier
            number += 1
            attempt = replace(charge, request=f"{charge.request} [attempt {number}]")
        debit = debit_for(connection, attempt)
        if superseded is not None:
            _append_settlement(connection, superseded, "superseded", None)
        entry = _next_entry(connection, attempt, debit, "reserved", None)
        storage.append(connection, entry, None)
    return entry, None


def _find_reservation(connection: Connection, charge: ChargeRequest) -> Entry | None:
    """The reservation of this request; raise if the id was used for another request."""
    assert charge.request is not None
    previous = storage.find(connection, charge.request, charge.run or 0)
    if previous is None:
        return None
    _check_same_reservation(previous[0], charge)
    return previous[0]


def _check_same_reservation(entry: Entry, charge: ChargeRequest) -> None:
    """Raise unless an entry reserves this request, however it charges attempts."""
    kinds: tuple[Reservation, ...] = ("once", "every attempt")
    if entry.body not in {replace(charge, reservation=kind).fingerprint for kind in kinds}:
        raise conflict_error(charge.request or "")


def settle(path: Path, index: int, answer: bytes | None) -> Settled:
    """Record an answer, or a failure, unless the reservation was settled before."""
    with writing(path) as connection:
        reservation = storage.entry(connection, index)
        settled = storage.settlement(connection, index)
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
    if answer is not None:
        check_answer(answer)
    with reading(path) as connection:
        previous = storage.find(connection, request, run or 0)
    if previous is None or previous[0].event is None:
        raise LedgerError(f"Nothing is reserved under request {request!r}: reserve first.")
    entry = previous[0]
    assert entry.event is not None
    _check_same_reservation(
        entry,
        ChargeRequest(entry.event, entry.purpose, entry.partition, entry.delta, request, body),
    )
    return settle(path, entry.index, answer)


def abandon(path: Path, run: int | None, request: str) -> Entry:
    """Settle a pending reservation without an answer."""
    with writing(path) as connection:
        previous = storage.find(connection, request, run or 0)
        if previous is None or previous[0].outcome != "reserved":
            raise LedgerError(
                f"Nothing is reserved under request {request!r}. `veracal ledger show` lists "
                "pending reservations."
            )
        settled = storage.settlement(connection, previous[0].index)
        if settled is not None:
            raise LedgerError(
                f"The reservation of request {request!r} is not pending: it was "
                f"{settled[0].outcome} by entry {settled[0].index}."
            )
        return _append_settlement(connection, previous[0], "abandoned", None)


def abandon_run(path: Path, run: int) -> Entry:
    """Settle the pending reservations of a run, then the run."""
    with writing(path) as connection:
        entries = storage.run_entries(connection, run)
        if not entries:
            raise LedgerError(
                f"The ledger has no run {run}. `veracal ledger show` lists its runs."
            )
        if storage.settlement(connection, entries[0].index) is not None:
            raise LedgerError(f"Run {run} was abandoned before.")
        for entry in storage.pending(connection):
            if entry.run == run:
                _append_settlement(connection, entry, "abandoned", None)
        return _append_settlement(connection, entries[0], "abandoned", None)


def get_answer(settled: Settled, request: str | None) -> bytes:
    """The answer of a settled reservation; raise if there is none."""
    entry, answer = settled
    if answer is not None:
        return answer
    if entry.outcome == "failed":
        raise failed_error(request)
    reason = {
        "abandoned": "was abandoned",
        "superseded": "was superseded by another attempt, the only one with an answer",
    }[entry.outcome]
    raise AnswerError(
        f"{entry.purpose!r} was charged, and its reservation {reason} (entry {entry.index} of "
        f"the ledger). The charge stands, and nothing is released for it. {RETRY_HINT}"
    )


def _append_settlement(
    connection: Connection, reservation: Entry, outcome: Outcome, answer: bytes | None
) -> Entry:
    """Append the entry that settles a reservation or a run."""
    index, previous = storage.head(connection)
    entry = Entry(
        index=index + 1,
        purpose=reservation.purpose,
        event=None,
        partition=reservation.partition,
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
    storage.append(connection, entry, answer)
    return entry
