"""The privacy ledger, which is charged before any record is read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from veracal.accounting import Budget, Event
from veracal.errors import LedgerError
from veracal.ledger import charging, storage
from veracal.ledger.chain import (
    Caps,
    Entry,
    EpsilonDelta,
    Opening,
    PartitionBalance,
    account_name,
    check_item,
    item_account,
    run_items,
)
from veracal.ledger.charging import (
    ChargeRequest,
    LedgerRun,
    RunRequest,
    begin_run,
    charge_and_answer,
)
from veracal.ledger.policies import Cost, Item, Planned, rule_for
from veracal.ledger.storage import check_new_path, create_file, reading, writing
from veracal.ledger.verification import verify_ledger


def open_ledger(
    path: str | PathLike[str],
    budget: Budget,
    *,
    kind: Literal["pure", "open", "plan"] = "pure",
    composition: Literal["rdp", "addition"] | None = None,
    order: float | None = None,
    plan: Sequence[Item] | None = None,
    partitions: Sequence[str] = ("records",),
    data: str | None = None,
    split: Mapping[str, Any] | None = None,
) -> "Ledger":
    """Create a ledger with caps on epsilon and delta.

    Parameters
    ----------
    path : path
        A new file on a local disk. It is created atomically and readable by its owner only.
    budget : Budget
        A pure ledger counts it in micro-epsilon of its decimal representation.
    kind : {"pure", "open", "plan"}
        "pure": epsilons are added, and delta is 0. "open": the next cost may depend on
        earlier answers. "plan": every cost is fixed and charged at creation. See
        :mod:`veracal.ledger.policies` for why an open ledger costs more than a plan.
    composition : {"rdp", "addition"}, optional
        Composition of an open ledger; by default by Rényi divergence.
    order : float > 1, optional
        Order of the Rényi divergence; by default the one that admits most Gaussian events.
    plan : sequence of Item, optional
        The items of a plan.
    partitions : sequence of str
        Disjoint partitions of the records, chosen independently of their contents (as by
        ``split``).
    data : str, optional
        Public name of the data set.
    split : mapping, optional
        Public settings of the assignment of records to partitions, as a JSON object. ``data``
        and ``split`` are part of the opening record, which never changes.

    Raises
    ------
    BudgetError
        If a plan costs more than the budget.
    LedgerError
        If a ledger cannot be stored at the path.

    Examples
    --------
    >>> from veracal.accounting.events import Pure
    >>> folder = getfixture("tmp_path")
    >>> ledger = open_ledger(folder / "study.ledger", Budget(1.0))
    >>> entry = ledger.charge(Pure(0.25), "counting")
    >>> ledger.remaining().epsilon
    0.75
    """
    target = Path(path).absolute()
    check_new_path(target)  # before costs are computed
    items = None if plan is None else [check_item(item) for item in plan]
    rule = rule_for(
        budget,
        kind=kind,
        composition=composition,
        order=order,
        items=items,
        partitions=partitions,
    )
    opening = Opening(budget, rule, tuple(partitions), data=data, split=split)
    for item in items or ():
        opening.check(item.event, item.partition)
    first = None if isinstance(rule, Planned) else 1
    create_file(target, opening.text, Caps(opening).accounts(1), filter=first)
    return Ledger(target)


def check_ledger(ledger: object) -> None:
    """Raise unless the object is a ledger."""
    if not isinstance(ledger, Ledger):
        raise ValueError(
            f"Expected a Ledger of veracal.ledger, got {ledger!r}. Use Ledger(path) for an "
            "existing ledger, or open_ledger(path, budget) to create one."
        )


@dataclass(frozen=True)
class Ledger:
    """An existing ledger, or a view of one of its runs.

    The object contains only the path and the number of the run, so a copied, pickled, cloned
    or forked object refers to the same ledger. One machine cannot detect that a whole ledger
    was deleted or replaced by an older copy: note :attr:`head` elsewhere, and pass it to
    :meth:`verify` later.

    Parameters
    ----------
    path : path
        A file created by :func:`open_ledger`.
    run : int or str, optional
        Number of a run, or the request id under which it was begun (:meth:`begin_run`).
        Charges, answers and reservations of the view use the items of the run, at no further
        cost; their request ids are unique within the run. :meth:`planned`, :meth:`require` and
        :meth:`knows` refer to the run as well, all other methods to the whole ledger.

    Guarantees
    ----------
    A charge is on the disk before its method returns. The total cost of all charges never
    exceeds the caps, also with concurrent charges, and however the process ends.
    """

    path: Path
    run: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())
        run: object = self.run
        with reading(self.path) as connection:  # fail now, not at the first charge
            storage.opening_record(connection)
            if run is None:
                return
            number: int | None = None
            if isinstance(run, str):
                match = storage.find(connection, run)
                if match is not None and match[0].outcome == "run":
                    number = match[0].run
            elif isinstance(run, int) and not isinstance(run, bool):
                number = int(run) if storage.run_entries(connection, run) else None
        if number is None:
            raise LedgerError(f"The ledger has no run {run!r}.")
        object.__setattr__(self, "run", number)

    def charge(
        self,
        event: Event,
        purpose: str,
        *,
        partition: str | None = None,
        delta: float | None = None,
        request: str | None = None,
    ) -> Entry:
        """Charge an event; afterwards the records may be read.

        Parameters
        ----------
        event : Event
        purpose : str
            Such as "training".
        partition : str, optional
            Partition of the records; by default all of them.
        delta : float, optional
            Failure probability to charge at; only for an open ledger that adds epsilons and
            deltas.
        request : str, optional
            Request id. The same charge under the same id is made once.

        Raises
        ------
        BudgetError
            If the remaining budget is too small; nothing is charged.
        ConflictError
            If the id was used for another request; nothing is charged.
        """
        charge = ChargeRequest(event, purpose, partition, delta, request, None, self.run)
        return charge_and_answer(self.path, charge, None)[0]

    def answer(
        self,
        event: Event,
        purpose: str,
        compute: Callable[[], bytes],
        *,
        request: str,
        body: bytes,
        partition: str | None = None,
        delta: float | None = None,
    ) -> tuple[Entry, bytes]:
        """Charge and store an answer in one transaction, then release it.

        Parameters
        ----------
        event, purpose, partition, delta
            As for :meth:`charge`.
        compute : callable
            Reads the records and draws the noise. It is called after the budget was checked,
            and not called for a request that was answered before. It must not use this
            ledger, which is locked meanwhile.
        request : str
            Request id.
        body : bytes
            Everything that is requested under this id.

        Returns
        -------
        entry, answer : Entry, bytes
            Always the same for the same request.

        Raises
        ------
        BudgetError, ConflictError
            As for :meth:`charge`; ``compute`` is not called.
        AnswerError
            If ``compute`` failed. The charge stands: since the failure may depend on the
            records, it is an answer, too, and repeated for the same request. A process that is
            interrupted or killed charges nothing and releases nothing.
        """
        if not isinstance(body, bytes):
            raise ValueError(f"Expected body to be bytes, got {type(body).__name__}.")
        charge = ChargeRequest(event, purpose, partition, delta, request, body, self.run)
        entry, answer = charge_and_answer(self.path, charge, compute)
        if answer is None:
            raise charging.failed_error(entry.request)
        return entry, answer

    # ------------------------------------------------------------ reservations

    def reserve(
        self,
        event: Event,
        purpose: str,
        *,
        request: str,
        body: bytes,
        partition: str | None = None,
        delta: float | None = None,
    ) -> Entry:
        """Charge an answer that will be computed and recorded later.

        Other charges may be made meanwhile. The same request and body return the same
        reservation, at no cost. A caller that uses a reservation again promises that no earlier
        attempt has released anything that depends on records or noise.

        Parameters and errors are those of :meth:`answer`; an ``AnswerError`` says that the
        reservation was settled before, without an answer.
        """
        settings = (event, purpose, partition, delta, request, body, self.run)
        charge = ChargeRequest(*settings, reservation="once")
        entry, settled = charging.reserve(self.path, charge)
        if settled is not None:
            charging.get_answer(settled, request)
        return entry

    def record(
        self, request: str, body: bytes, answer: bytes | None
    ) -> tuple[Entry, bytes | None]:
        """Settle a reservation with its answer, unless it was settled before.

        The answer is None if the computation failed, which is an answer, too. Returns the entry
        that settles the reservation, and its answer. If several are recorded concurrently, it
        is the first. The charge is never refunded.
        """
        if answer is not None:
            charging.check_answer(answer)
        with reading(self.path) as connection:
            previous = storage.find(connection, request, self.run or 0)
        if previous is None or previous[0].event is None:
            raise LedgerError(f"Nothing is reserved under request {request!r}: reserve first.")
        entry = previous[0]
        assert entry.event is not None
        charge = ChargeRequest(
            entry.event, entry.purpose, entry.partition, entry.delta, request, body
        )
        charging.check_reservation(entry, charge)
        return charging.settle(self.path, entry.index, answer)

    def compute_once(
        self,
        event: Event,
        purpose: str,
        compute: Callable[[], bytes],
        *,
        request: str,
        body: bytes,
        partition: str | None = None,
        delta: float | None = None,
        every_attempt: bool = False,
    ) -> bytes:
        """Reserve, compute outside of any transaction, and record.

        For long computations: unlike with :meth:`answer`, other charges may be made while
        ``compute`` runs. If the process is killed or interrupted, the reservation stands, and
        the same request computes again under it.

        Parameters
        ----------
        event, purpose, request, body, partition, delta
            As for :meth:`answer`.
        compute : callable
            Must release nothing that depends on records or noise.
        every_attempt : bool
            Charge every attempt separately, for a ``compute`` that may release something. A
            pending attempt is then superseded, stays charged, and has no answer.
        """
        settings = (event, purpose, partition, delta, request, body, self.run)
        kind = "every attempt" if every_attempt else "once"
        charge = ChargeRequest(*settings, reservation=kind)
        return charging.compute_once(self.path, charge, compute)[1]

    def abandon(self, request: str) -> Entry:
        """Abandon a pending reservation; its charge stands, and its request is rejected."""
        with writing(self.path) as connection:
            previous = storage.find(connection, request, self.run or 0)
            if previous is None or previous[0].outcome != "reserved":
                raise LedgerError(
                    f"Nothing is reserved under request {request!r}. `veracal ledger show` "
                    "lists pending reservations."
                )
            settled = storage.settlement(connection, previous[0].index)
            if settled is not None:
                raise LedgerError(
                    f"The reservation of request {request!r} is not pending: it was "
                    f"{settled[0].outcome} by entry {settled[0].index}."
                )
            return charging.append_settlement(connection, previous[0], "abandoned", None)

    def abandon_run(self, number: int | None = None) -> Entry:
        """Abandon a run and its pending reservations; its cost is not refunded."""
        run = self.run if number is None else number
        if run is None:
            raise ValueError("Expected the number of the run to abandon.")
        with writing(self.path) as connection:
            entries = storage.run_entries(connection, run)
            if not entries:
                raise LedgerError(
                    f"The ledger has no run {run}. `veracal ledger show` lists its runs."
                )
            if storage.settlement(connection, entries[0].index) is not None:
                raise LedgerError(f"Run {run} was abandoned before.")
            for entry in storage.pending(connection):
                if entry.run == run:
                    charging.append_settlement(connection, entry, "abandoned", None)
            return charging.append_settlement(connection, entries[0], "abandoned", None)

    def pending(self) -> tuple[Entry, ...]:
        """Unsettled reservations of the whole ledger, or of the view's run."""
        with reading(self.path) as connection:
            pending = storage.pending(connection)
        return tuple(entry for entry in pending if self.run in (None, entry.run))

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
        """Charge a list of items as a whole, and return a view that may use them.

        The items of each partition are composed tightly, as a list that is fixed before the
        first release; an item without a partition counts for all. Across runs costs compose by
        the ledger's filter, since the next run may depend on the releases of this one.

        Parameters
        ----------
        items : sequence of Item
        name : str
            Name of the run in the ledger.
        request : str
            Request id. The same run under the same id is charged once.
        body : bytes
            Everything that distinguishes this run from another.
        delta : float, optional
            Failure probability at which a ledger that adds epsilons and deltas charges lists
            that are not pure. Other ledgers do not use it.

        Returns
        -------
        Ledger
            A view: ``Ledger(path, run=number)``.

        Raises
        ------
        BudgetError, ConflictError
            As for :meth:`charge`; nothing is written.
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
        run = RunRequest(tuple(items), name, request, body, delta)
        return Ledger(self.path, begin_run(self.path, run))

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

        Use it to reject a run before its records are loaded.
        """
        charging.require_run(self.path, RunRequest(tuple(items), name, request, body, delta))

    def runs(self) -> tuple[LedgerRun, ...]:
        """All runs, in order."""
        result = []
        with reading(self.path) as connection:
            caps = storage.read_caps(connection)
            rule, budget = caps.opening.rule, caps.budget
            for first in storage.account_entries(connection):
                if first.outcome != "run":
                    continue
                assert first.run is not None
                assert first.filter is not None
                assert not isinstance(rule, Planned)
                entries = storage.run_entries(connection, first.run)
                amounts = {
                    entry.partition or "": rule.privacy(
                        Cost(entry.cost, entry.cost_delta), budget
                    )
                    for entry in entries
                }
                run = LedgerRun(
                    first.run,
                    first.purpose,
                    first.request or "",
                    run_items(entries),
                    {name: epsilon for name, (epsilon, _) in amounts.items()},
                    {name: delta for name, (_, delta) in amounts.items()},
                    first.filter,
                    first.index,
                    storage.settlement(connection, first.index) is not None,
                )
                result.append(run)
        return tuple(result)

    def extend(self, *, epsilon: float, delta: float = 0.0) -> Entry:
        """Raise the caps by adding a filter with caps of its own.

        The filter composes as the ledger does; for Rényi divergences it uses the order that was
        fixed at the opening. Each charge is debited to a single filter, the first with enough
        budget. From now on every statement says that the cap was raised, and whether anything
        was released before.

        Parameters
        ----------
        epsilon : float > 0
        delta : float >= 0
        """
        with writing(self.path) as connection:
            index = storage.head(connection)[0] + 1
            caps = storage.read_caps(connection).extended(
                epsilon, delta, index, after_releases=False
            )
            new = caps.extensions[-1]
            accounts = caps.accounts(new.filter)
            entry = charging.append_entry(
                connection,
                adds=len(accounts),
                purpose="extension",
                outcome="extended",
                extension=(new.epsilon, new.delta),
            )
            storage.add_accounts(connection, accounts, filter=new.filter, entry=entry.index)
        return entry

    # ------------------------------------------------------------ state

    @property
    def opening(self) -> Opening:
        """The opening record, which never changes."""
        with reading(self.path) as connection:
            return storage.opening_record(connection)[0]

    @property
    def caps(self) -> Caps:
        """The current caps: those of the opening and all extensions."""
        with reading(self.path) as connection:
            return storage.read_caps(connection)

    @property
    def budget(self) -> Budget:
        """Upper bound on the total cost: the sum of all caps, including extensions."""
        return self.caps.budget

    @property
    def head(self) -> str:
        """Hash of the last entry, which identifies the whole ledger up to it."""
        with reading(self.path) as connection:
            return storage.head(connection)[1]

    def spent(self, partition: str | None = None) -> EpsilonDelta:
        """Amount that a partition has spent; by default the maximum, which is the total.

        A plan is spent entirely when it is opened.
        """
        amounts = [each.spent for each in self.partitions(partition)]
        return EpsilonDelta(max(a.epsilon for a in amounts), max(a.delta for a in amounts))

    def remaining(self, partition: str | None = None) -> EpsilonDelta:
        """Amount that a partition has left; by default the minimum over partitions.

        It is zero for a plan, whose items are paid for already.
        """
        amounts = [each.left for each in self.partitions(partition)]
        return EpsilonDelta(min(a.epsilon for a in amounts), min(a.delta for a in amounts))

    def require(
        self,
        event: Event,
        purpose: str,
        *,
        partition: str | None = None,
        delta: float | None = None,
        times: int = 1,
    ) -> None:
        """Raise what this number of charges would raise, and charge nothing.

        Use it to check the budget before records are loaded. Concurrent charges may use up the
        budget between this check and the charge, which decides.
        """
        charge = ChargeRequest(event, purpose, partition, delta, None, None, self.run)
        with reading(self.path) as connection:
            charging.debit_for(connection, charge, times)

    def partitions(self, partition: str | None = None) -> tuple[PartitionBalance, ...]:
        """Balances of all partitions, or of one."""
        with reading(self.path) as connection:
            caps, balances = storage.read_caps(connection), storage.balances(connection)
        opening, budget, rule = caps.opening, caps.budget, caps.opening.rule
        opening.check_partition(partition)
        result = []
        for name in opening.partitions if partition is None else (partition,):
            if isinstance(rule, Planned):
                spent, left = (rule.epsilons[name], budget.delta), (0.0, 0.0)
            else:
                accounts = [balances[account_name(name, number)] for number in caps.filters]
                total = sum((each for each, _ in accounts), Cost(0))
                spent, left = rule.privacy(total, budget), rule.left(total, budget)
            result.append(PartitionBalance(name, EpsilonDelta(*spent), EpsilonDelta(*left)))
        return tuple(result)

    def planned(self) -> tuple[tuple[Item, int], ...]:
        """Every item of a plan or of the view's run, with its number of uses."""
        with reading(self.path) as connection:
            rule = storage.opening_record(connection)[0].rule
            balances = storage.balances(connection)
            entries = [] if self.run is None else storage.run_entries(connection, self.run)
        if self.run is not None:
            items = run_items(entries)
            accounts = [item_account(self.run, position) for position in range(len(items))]
        else:
            items = rule.items if isinstance(rule, Planned) else ()
            accounts = [str(position) for position in range(len(items))]
        used = [balances[account][0].amount for account in accounts]
        return tuple(zip(items, used, strict=True))

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in order."""
        with reading(self.path) as connection:
            return tuple(storage.entries(connection))

    def hashes(self, indexes: Iterable[int]) -> dict[int, str]:
        """Hashes of entries by their indexes; missing entries are omitted.

        Use it to check a noted head and its index: it is faster than :meth:`verify`, which
        recomputes everything.
        """
        with reading(self.path) as connection:
            return storage.hashes(connection, indexes)

    def length(self) -> int:
        """Number of entries."""
        with reading(self.path) as connection:
            return storage.head(connection)[0]

    def knows(self, request: str) -> bool:
        """Whether a charge was made under a request id, in the view's run if there is one."""
        with reading(self.path) as connection:
            return storage.find(connection, request, self.run or 0) is not None

    def verify(self, head: str | None = None) -> str:
        """Recompute all hashes, costs and sums, and check the file.

        Parameters
        ----------
        head : str, optional
            A head that was noted earlier. If the ledger does not contain it, the file was
            replaced by an older copy, or the chain was rewritten.

        Returns
        -------
        str
            The head of the verified chain. A ``LedgerError`` lists all problems.
        """
        return verify_ledger(self.path, head)

    def to_json(self, *, answers: bool = False) -> dict[str, Any]:
        """Convert to a JSON object from which the chain can be recomputed.

        Parameters
        ----------
        answers : bool
            Whether to include the answers, in hexadecimal. Answers were released, but perhaps
            not publicly. Without them the entries contain only their hashes.
        """
        with reading(self.path) as connection:
            opening, first = storage.opening_record(connection)
            entries = list(storage.entries(connection))
            contents = dict(storage.answers(connection)) if answers else {}
        rows = [{**entry.to_json(), "hash": entry.hash} for entry in entries]
        for row in rows if answers else ():
            answer = contents.get(row["index"])
            row["answer_hex"] = None if answer is None else answer.hex()
        return {
            "opening": {**opening.to_json(), "hash": first},
            "entries": rows,
            "head": rows[-1]["hash"] if rows else first,
        }
