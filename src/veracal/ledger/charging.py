"""Charges, answers, reservations and runs.

*Charge and answer.* The charge is checked, and the answer is computed and stored in the same
transaction; then it is released.

*Reservations.* A long computation must not hold the write lock of the ledger. Its charge is
*reserved* first, which is durable. Then the answer is computed, while other charges are
possible. Finally it is *recorded* by an entry that costs nothing and settles the reservation,
once.

*Runs.* A run is a list of items that is fixed and charged as a whole before its first release,
so costs within it compose tightly, as in a plan. The next run may be chosen after seeing the
releases of this one. Therefore costs across runs compose by the ledger's filter, and never as
one privacy-loss distribution.

Guarantees
----------
A reservation is never refunded. The first entry that settles it is final (by a unique column of
the database), so several processes with the same request all return one answer. Failures are
recorded. A killed process leaves its reservation pending: the same request computes again under
it, at no further cost, since the earlier attempt released nothing. If an attempt may have
released something (a hook has seen weights), every attempt is reserved and charged separately,
and supersedes the previous one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Literal

from veracal import _checks
from veracal.accounting import Event, event_to_json, pure_epsilon
from veracal.errors import AnswerError, BudgetError, ConflictError
from veracal.ledger import storage
from veracal.ledger.chain import (
    Caps,
    Entry,
    Opening,
    Outcome,
    account_name,
    canonical,
    check_item,
    check_name,
    check_serializable,
    digest,
    item_account,
    run_items,
)
from veracal.ledger.policies import (
    Cost,
    EpsilonDeltaSums,
    Item,
    Planned,
    compose_items,
    find_item,
    free_event_error,
    merge_items,
)
from veracal.ledger.storage import reading, writing

Reservation = Literal["once", "every attempt"]
Settled = tuple[Entry, bytes | None]
Debit = tuple[str | None, int | None, Cost]  # the account and filter of an entry, and its cost
_MAX_ANSWER_BYTES = 2**28
# Commands derive request ids from their settings.
_RETRY_HINT = (
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
        if self.reservation is not None and None in (self.request, self.body):
            raise ValueError("Expected a request id and a body of bytes for a reservation.")

    @property
    def fingerprint(self) -> str | None:
        """Hash of everything that is requested under the request id."""
        if self.request is None:
            return None
        content = {
            "event": event_to_json(self.event),
            "purpose": self.purpose,
            "partition": self.partition,
            "delta": self.delta,
            "body": None if self.body is None else digest(self.body),
            "reservation": self.reservation,
        }
        return digest(canonical(content))


def charge_and_answer(
    path: Path, charge: ChargeRequest, compute: Callable[[], bytes] | None
) -> Settled:
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
        entry = append_charge(connection, charge, debit, outcome, answer)
    if outcome == "failed":
        raise failed_error(entry.request)
    return entry, answer


def _find_previous(connection: Connection, charge: ChargeRequest) -> Settled | None:
    """The earlier entry of this request; raise if the id was used for another request."""
    if charge.request is None:
        return None
    previous = storage.find(connection, charge.request, charge.run or 0)
    if previous is not None and previous[0].body != charge.fingerprint:
        raise _conflict_error(charge.request)
    return previous


def debit_for(connection: Connection, charge: ChargeRequest, times: int = 1) -> Debit:
    """Account and cost of a charge; raise if the remaining budget is too small."""
    caps = storage.read_caps(connection)
    opening, rule = caps.opening, caps.opening.rule
    opening.check(charge.event, charge.partition)
    balances = storage.balances(connection)
    if charge.run is not None:
        account = _find_run_item(connection, charge, charge.run)
    elif isinstance(rule, Planned):
        account = rule.item(charge.purpose, charge.event, charge.partition)
        opening.cost(charge.event, charge.delta)  # rejects events that cost nothing
    else:
        cost = opening.cost(charge.event, charge.delta)
        names = [name for name in opening.partitions if charge.partition in (None, name)]
        needed = dict.fromkeys(names, cost * times)
        number = find_filter(caps, balances, needed, repr(charge.purpose))
        one = charge.partition
        return None if one is None else account_name(one, number), number, cost
    spent, total = balances[account]
    if not Cost(times).within(total - spent):
        planned, used = (
            "once" if count == 1 else f"{count} times" for count in (total.amount, spent.amount)
        )
        raise BudgetError(
            f"{charge.purpose!r} is planned {planned} and was used "
            f"{'as often' if spent == total else used}; no record was "
            "read. Plan more uses in another run, or in another ledger on other records."
        )
    return account, None, Cost(1)


def find_filter(
    caps: Caps,
    balances: Mapping[str, tuple[Cost, Cost]],
    costs: Mapping[str, Cost],
    what: str,
    *,
    run: bool = False,
) -> int:
    """The first filter with enough budget for the costs of all partitions, or an error."""
    left: dict[int, dict[str, Cost]] = {}
    for number in caps.filters:
        accounts = {name: balances[account_name(name, number)] for name in costs}
        left[number] = {name: total - spent for name, (spent, total) in accounts.items()}
        if all(cost.within(left[number][name]) for name, cost in costs.items()):
            return number

    def smallest(number: int) -> tuple[int, int]:
        costs_left = left[number].values()
        return min(c.amount for c in costs_left), min(c.delta for c in costs_left)

    best = max(caps.filters, key=smallest)  # report the filter with the most budget left
    name = next(name for name, cost in costs.items() if not cost.within(left[best][name]))
    rule = caps.opening.rule
    assert not isinstance(rule, Planned)
    where = f" for partition {name!r}" if len(caps.opening.partitions) > 1 else ""
    within = f" in filter {best}" if len(caps.filters) > 1 else ""
    raise BudgetError(
        f"{what} needs {rule.measure}={rule.figure(costs[name])}, but "
        f"{rule.figure(left[best][name])} of "
        f"{rule.figure(balances[account_name(name, best)][1])} is left{where}{within}; "
        f"{'nothing was charged' if run else 'no record was read'}. "
        "Request less (more noise, fewer steps), or raise the caps with `veracal ledger extend` "
        "by at least this cost, since each charge is debited to a single filter."
    )


def _find_run_item(connection: Connection, charge: ChargeRequest, run: int) -> str:
    """Account of the item of a run that a charge uses."""
    entries = storage.run_entries(connection, run)
    if not entries:
        raise ValueError(f"The ledger has no run {run}.")
    if storage.settlement(connection, entries[0].index) is not None:
        raise BudgetError(
            f"Run {run} ({entries[0].purpose!r}) was abandoned; no record was read. Its "
            "cost is not refunded. Begin another run: repeat the command that began this one "
            "with another --version (in Python: with another request id)."
        )
    items = run_items(entries)
    position = find_item(items, charge.purpose, charge.event, charge.partition)
    if position is not None:
        return item_account(run, position)
    where = "" if charge.partition is None else f" on partition {charge.partition!r}"
    raise BudgetError(
        f"{charge.purpose!r}{where} is not among the items of run {run} "
        f"({entries[0].purpose!r}) with this event; no record was read. A run fixes its items "
        "when it begins: request one of them exactly as listed, or begin another run."
    )


def append_entry(
    connection: Connection, answer: bytes | None = None, *, adds: int = 0, **values: Any
) -> Entry:
    """Append the next entry of the chain, with its answer."""
    index, previous = storage.head(connection)
    entry = Entry(
        index=index + 1,
        previous=previous,
        answer=None if answer is None else digest(answer),
        **values,
    )
    storage.append(connection, entry, answer, adds)
    return entry


def append_charge(
    connection: Connection,
    charge: ChargeRequest,
    debit: Debit,
    outcome: Outcome,
    answer: bytes | None,
) -> Entry:
    """Append the entry of a charge."""
    account, number, cost = debit
    return append_entry(
        connection,
        answer,
        purpose=charge.purpose,
        event=charge.event,
        partition=charge.partition,
        delta=charge.delta,
        account=account,
        filter=number,
        cost=cost.amount,
        cost_delta=cost.delta,
        request=charge.request,
        body=charge.fingerprint,
        run=charge.run,
        outcome=outcome,
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


def _conflict_error(request: str | None) -> ConflictError:
    return ConflictError(
        f"Request id {request!r} was used before, for another request; nothing was charged and "
        "no record was read. Use another id."
    )


# ---------------------------------------------------------------- reservations


def compute_once(
    path: Path, charge: ChargeRequest, compute: Callable[[], bytes]
) -> tuple[Entry, bytes]:
    """Reserve, compute and record; or return the recorded answer with the entry that settles."""
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
    """Charge a reservation, or find an earlier one; return it with its settlement, if any.

    A pending reservation is reused only if neither it nor this attempt charges every attempt.
    Otherwise it is superseded, and another attempt is charged under an id with its number.
    """
    with writing(path) as connection:
        attempt, superseded, number = charge, None, 1
        assert attempt.request is not None
        while previous := storage.find(connection, attempt.request or "", charge.run or 0):
            earlier = previous[0]
            check_reservation(earlier, attempt)
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
            append_settlement(connection, superseded, "superseded", None)
        entry = append_charge(connection, attempt, debit, "reserved", None)
    return entry, None


def check_reservation(entry: Entry, charge: ChargeRequest) -> None:
    """Raise unless an entry reserves this request, however it charges attempts."""
    kinds: tuple[Reservation, ...] = ("once", "every attempt")
    if entry.body not in {replace(charge, reservation=kind).fingerprint for kind in kinds}:
        raise _conflict_error(charge.request)


def settle(path: Path, index: int, answer: bytes | None) -> Settled:
    """Record an answer, or a failure, unless the reservation was settled before."""
    with writing(path) as connection:
        reservation = storage.entry(connection, index)
        settled = storage.settlement(connection, index)
        if settled is None:
            outcome: Outcome = "failed" if answer is None else "answered"
            settled = append_settlement(connection, reservation, outcome, answer), answer
    return settled


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
        f"the ledger). The charge stands, and nothing is released for it. {_RETRY_HINT}"
    )


def append_settlement(
    connection: Connection, reservation: Entry, outcome: Outcome, answer: bytes | None
) -> Entry:
    """Append the entry that settles a reservation or a run."""
    return append_entry(
        connection,
        answer,
        purpose=reservation.purpose,
        partition=reservation.partition,
        run=reservation.run,
        outcome=outcome,
        settles=reservation.index,
    )


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class LedgerRun:
    """A run of a ledger.

    Attributes
    ----------
    number : int
        Starts at 1.
    epsilons, deltas : mapping from partition to float
        Cost for each partition that it reads. For a ledger of Rényi divergences, epsilon of its
        divergence alone, at the ledger's delta.
    filter : int
        The filter that was debited.
    index : int
        Index of its first entry.
    """

    number: int
    name: str
    request: str
    items: tuple[Item, ...]
    epsilons: Mapping[str, float]
    deltas: Mapping[str, float]
    filter: int
    index: int
    abandoned: bool


@dataclass(frozen=True)
class RunRequest:
    """A requested run."""

    items: tuple[Item, ...]
    name: str
    request: str
    body: bytes
    delta: float | None

    def __post_init__(self) -> None:
        check_name(name=self.name, request=self.request)
        if not isinstance(self.body, bytes):
            raise ValueError(f"Expected body to be bytes, got {type(self.body).__name__}.")
        if self.delta is not None:
            _checks.fraction(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))
        if not self.items:
            raise ValueError("Expected at least one item for a run, got none.")
        object.__setattr__(self, "items", merge_items(map(check_item, self.items)))

    @property
    def fingerprint(self) -> str:
        """Hash of everything that distinguishes this run from another."""
        content = {
            "run": self.name,
            "items": sorted(canonical(item.to_json()) for item in self.items),
            "delta": self.delta,
            "body": digest(self.body),
        }
        return digest(canonical(content))


@dataclass(frozen=True)
class PartitionCost:
    """Cost of a run for one partition: its items as one event, at a delta if not pure."""

    event: Event
    delta: float | None
    cost: Cost


Costs = Mapping[str, PartitionCost]


def begin_run(path: Path, request: RunRequest) -> int:
    """Charge a run as a whole, once per request id, and return its number.

    Computing the costs may take a while, so it is done before the ledger is locked.
    """
    existing, options = _price_run(path, request)
    if existing is not None:
        return existing
    with writing(path) as connection:
        if (existing := _find_existing(connection, request)) is not None:
            return existing
        costs, number = _choose_option(connection, options, request)
        run = 1 + sum(entry.outcome == "run" for entry in storage.account_entries(connection))
        append_run(connection, request, run, number, costs)
    return run


def require_run(path: Path, request: RunRequest) -> None:
    """Raise what :func:`begin_run` would raise, and write nothing."""
    existing, options = _price_run(path, request)
    if existing is None:
        with reading(path) as connection:
            _choose_option(connection, options, request)


def _price_run(path: Path, request: RunRequest) -> tuple[int | None, list[Costs]]:
    """Number of the run if it was begun before, else its alternative costs by partition.

    First without a delta if a list is pure, then with all lists at the run's delta, which gives
    a smaller epsilon.
    """
    with reading(path) as connection:
        opening, _ = storage.opening_record(connection)
        existing = _find_existing(connection, request)
    if existing is not None:
        return existing, []
    options: list[Costs] = [partition_costs(opening, request.items, request.delta, pure=True)]
    if any(one.delta is None for one in options[0].values()) and request.delta:
        options.append(partition_costs(opening, request.items, request.delta, pure=False))
    return None, options


def _find_existing(connection: Connection, request: RunRequest) -> int | None:
    """Number of the run that was begun under this request; raise if it was another run."""
    match = storage.find(connection, request.request)
    if match is None:
        return None
    entry = match[0]
    if entry.outcome != "run" or entry.body != request.fingerprint:
        raise _conflict_error(request.request)
    if storage.settlement(connection, entry.index) is not None:
        raise AnswerError(
            f"Run {entry.run} ({entry.purpose!r}) was charged and abandoned. Its cost is not "
            f"refunded, and it cannot be begun again. {_RETRY_HINT}"
        )
    return entry.run


def partition_costs(
    opening: Opening, items: Sequence[Item], delta: float | None, *, pure: bool
) -> dict[str, PartitionCost]:
    """Composition and cost of the items of each partition that has items, in their order."""
    rule, budget = opening.rule, opening.budget
    if isinstance(rule, Planned):
        raise ValueError(
            "A ledger of kind 'plan' has one fixed list and no runs. Open a ledger of kind "
            "'pure' or 'open'."
        )
    for item in items:
        opening.check(item.event, item.partition)
        if pure_epsilon(item.event, budget.unit) == 0:
            raise free_event_error()
    costs: dict[str, PartitionCost] = {}
    for name in opening.partitions:
        event = compose_items(items, name)
        if event is not None:
            exact = pure and pure_epsilon(event, budget.unit) is not None
            at = delta if isinstance(rule, EpsilonDeltaSums) and not exact else None
            costs[name] = PartitionCost(event, at, rule.run_cost(event, budget, at))
    return costs


def _choose_option(
    connection: Connection, options: Sequence[Costs], request: RunRequest
) -> tuple[Costs, int]:
    """The first alternative that fits into a filter, and that filter, or an error."""
    caps, balances = storage.read_caps(connection), storage.balances(connection)
    for costs in options:
        needed = {name: one.cost for name, one in costs.items()}
        try:
            what = f"Run {request.name!r}"
            return costs, find_filter(caps, balances, needed, what, run=True)
        except BudgetError:
            if costs is options[-1]:
                raise
    raise AssertionError("there is at least one alternative")


def append_run(
    connection: Connection, request: RunRequest, run: int, number: int, costs: Costs
) -> None:
    """Append the entries of a run, one per partition, and the accounts of its items."""
    listed = {
        name: tuple(item for item in request.items if item.partition in (name, None))
        for name in costs
    }
    items = dict.fromkeys(item for one in listed.values() for item in one)
    for position, (name, one) in enumerate(costs.items()):
        is_first = position == 0
        entry = append_entry(
            connection,
            adds=len(items) if is_first else 0,
            purpose=request.name,
            event=one.event,
            partition=name,
            delta=one.delta,
            account=account_name(name, number),
            filter=number,
            cost=one.cost.amount,
            cost_delta=one.cost.delta,
            request=request.request if is_first else None,
            body=request.fingerprint if is_first else None,
            run=run,
            outcome="run",
            items=listed[name],
        )
        if is_first:
            accounts = {item_account(run, i): Cost(item.times) for i, item in enumerate(items)}
            storage.add_accounts(connection, accounts, filter=None, entry=entry.index)
