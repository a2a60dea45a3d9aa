"""The ledger of a data set in a run: its path, early checks, partitions and the charge.

A run reads records only in the partitions that the ledger keeps, and is charged as a whole
before a record is used. The caps that were fixed when the ledger was opened bound the cost of
all its runs together.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from veracal.accounting import Budget
from veracal.errors import DataError, LedgerError
from veracal.ledger import (
    AssignmentNotice,
    Ledger,
    PartitionStore,
    default_ledger_path,
    open_ledger_for_data,
    restore_data_path,
    split_and_assign,
)
from veracal.workflow.config import Config
from veracal.workflow.planning import RunPlan, merge_items
from veracal.workflow.records import (
    TEST,
    TRAIN,
    LoadedRecords,
    declare_records,
    partition_rule,
    run_budget,
)
from veracal.workflow.results import load_results

OnNotice = Callable[[AssignmentNotice], None]


class DataAccount:
    """Records in the partitions of their data set's ledger, which pays for each use of them.

    Parameters
    ----------
    config : Config
        Of the whole run.
    records : LoadedRecords
    path : path
        Of the ledger. If it does not exist, :meth:`charge` opens it with the epsilon and delta
        of the run as caps.
    on_notice : callable, optional
        As for :func:`veracal.workflow.run`.

    Attributes
    ----------
    records : LoadedRecords
        In the partitions that earlier runs recorded, if there were any.

    Guarantees
    ----------
    No individual is in two partitions over all runs of the ledger (see
    :class:`~veracal.ledger.partitions.PartitionStore`): a run with another split key or other
    fractions is rejected. The assignment is fixed on disk before the first charge that depends
    on it. New individuals never cause a rejection: the rejection itself would reveal single
    records, and no rule can distinguish a new id from a known one in another spelling. The
    data holder can, and receives the figures.

    Raises
    ------
    LedgerError
        If the ledger protects another unit, has no partitions, or lost their assignment; or if
        earlier runs used another split.
    """

    def __init__(
        self,
        config: Config,
        records: LoadedRecords,
        path: Path,
        on_notice: OnNotice | None = None,
    ) -> None:
        self._config, self._path, self._on_notice = config, path, on_notice
        self._budget = run_budget(config, records)
        self.records, self._is_new = records, not os.path.lexists(path)
        if not self._is_new:
            self._ledger = Ledger(path)
            check_guarantee(self._ledger, self._budget)
            restore_data_path(self._ledger, config.data.source)
            self._assign()

    def charge(self, plans: Sequence[RunPlan]) -> tuple[Ledger, list[RunPlan]]:
        """Charge plans for these records, all of them as one run.

        Returns a view of the run, and the plans with the records in their final partitions. The
        same plans find the same run again, and are not charged twice.
        """
        plans = list(plans)
        if self._is_new:
            source = self._config.data.source
            self._ledger = open_data_ledger(self._path, self._budget, source)
            check_guarantee(self._ledger, self._budget)  # another process may have opened it
            self._assign()
            plans = [replace(plan, records=self.records) for plan in plans]
        request = _run_request(plans, self._config, self._budget)
        self._ledger.require_run(**request)
        self._store.seal(self._assignment)
        return self._ledger.begin_run(**request), plans

    def _assign(self) -> None:
        """Assign the records to the partitions of the ledger, or record a new assignment."""
        self._store, self._assignment, self.records = _assign(
            self._config, self.records, self._ledger
        )
        send_notice(self.records, self._on_notice)


def send_notice(records: LoadedRecords, on_notice: OnNotice | None) -> None:
    """Call back with the notice for the data holder, if there is one."""
    if on_notice is not None and records.notice is not None:
        on_notice(records.notice)


def assign_recorded(config: Config, records: LoadedRecords, ledger: Ledger) -> LoadedRecords:
    """Assign the records to the recorded partitions of a ledger; leave out all others."""
    return _assign(config, records, ledger, grow=False)[2]


def _assign(
    config: Config, records: LoadedRecords, ledger: Ledger, *, grow: bool = True
) -> tuple[Any, Any, LoadedRecords]:
    fresh = is_unused(ledger)
    rule = partition_rule(config, records.dataset, records.schema)
    store = PartitionStore.obtain(partitions_path(ledger.path), rule, fresh=fresh)
    parts, assignment = split_and_assign(records.dataset, store, fresh=fresh, grow=grow)
    return store, assignment, replace(records, split=parts, notice=assignment.notice)


def is_unused(ledger: Ledger) -> bool:
    """Whether no charge depends on partitions yet."""
    charged = (entry for entry in ledger.entries() if entry.event is not None)
    return all(entry.partition is None for entry in charged)


def partitions_path(ledger: Path) -> Path:
    """Path of the file that keeps the assignment to partitions of a ledger."""
    return Path(f"{ledger}.partitions")


def _run_request(plans: Sequence[RunPlan], config: Config, budget: Budget) -> dict[str, Any]:
    """The request by which a ledger charges a run and recognizes it."""
    body = b"\n".join(plan.body for plan in plans)
    return {
        "items": merge_items(item for plan in plans for item in plan.items),
        "name": config.name,
        "request": f"run {hashlib.sha256(body).hexdigest()}",
        "body": body,
        "delta": budget.delta,
    }


def open_data_ledger(path: Path, budget: Budget, source: str) -> Ledger:
    """Open the ledger of a data set, which adds up epsilons and deltas of its runs.

    If several processes do so at once, the first opens it and the others use it. A missing
    ledger is an error (:func:`check_not_lost`).
    """
    check_not_lost(path)
    try:
        return open_ledger_for_data(
            path, budget, source, kind="open", composition="addition", partitions=(TRAIN, TEST)
        )
    except DataError:
        if not os.path.lexists(path):
            raise
        return Ledger(path)


def check_not_lost(path: Path) -> None:
    """Reject a path where a charged ledger is missing, according to the files beside it.

    An assignment to partitions is sealed just before the first charge that is based on it,
    after its ledger has been opened.
    """
    beside = partitions_path(path)
    if os.path.lexists(path) or not os.path.lexists(beside):
        return
    if PartitionStore(beside).sealed and not os.path.lexists(path):
        raise LedgerError(
            f"{path}: the ledger is missing, but {beside.name} was used by runs that were "
            "charged to it. Their costs would be forgotten: restore the ledger. Another "
            "ledger, named with --ledger, grants one more full budget for the same individuals."
        )


def check_guarantee(ledger: Ledger, budget: Budget) -> None:
    """Reject a ledger that protects another unit than the run, or has no partitions."""
    caps, opening = ledger.budget, ledger.opening
    if (caps.relation, caps.unit) != (budget.relation, budget.unit):
        raise LedgerError(
            f"{ledger.path}: the ledger protects {caps.unit} under {caps.relation}, but this "
            f"run protects {budget.unit} under {budget.relation}. Their costs cannot be added: "
            "use the schema and the relation of the first run."
        )
    if not {TRAIN, TEST} <= set(opening.partitions) or opening.rule.kind != "open":
        raise LedgerError(
            f"{ledger.path}: a run needs a ledger of kind 'open' with partitions {TRAIN} and "
            f"{TEST}; this one is of kind {opening.rule.kind!r} with "
            f"{', '.join(opening.partitions)}. Open one with `veracal ledger open --data DATA`."
        )


def ledger_path(source: str, chosen: str | Path | None = None, *, outside: Path) -> Path:
    """Path of the ledger of a data set, unless the user names another.

    It must be outside of the artifact, which is replaced as a whole with its ledger.
    """
    path = default_ledger_path(source) if chosen is None else Path(chosen)
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(outside)):
        raise DataError(
            str(path),
            f"a ledger outside of {outside}, which is shared and replaced as a whole",
            "one in it",
            "Keep the ledger elsewhere.",
        )
    return path


def check_known_ledger(folder: Path, path: Path, config: Config) -> None:
    """Reject a ledger if an artifact of the same data was charged to another, or an older copy."""
    try:
        known = load_results(folder)
    except DataError:
        return  # no artifact, or not one of a run
    data = known.settings.get("data")  # the other settings need not be those of this version
    if not isinstance(data, Mapping) or data.get("source") != Path(config.data.source).name:
        return
    if not os.path.lexists(path):
        problem = "no ledger is at this path"
    elif known.ledger.head not in {entry.hash for entry in Ledger(path).entries()}:
        problem = "the ledger at this path has no such entry"
    else:
        return
    raise LedgerError(
        f"{path}: {folder} was charged to the ledger {known.ledger.name}, but {problem}. "
        "The earlier spending on these records would be lost. Restore the ledger, or name it "
        "with --ledger."
    )


def check_before_loading(
    config: Config, path: Path, shares: Callable[[Budget], Sequence[Config]] | None = None
) -> None:
    """Reject a run that its ledger cannot pay, or another split, before a record is read.

    The cost follows from declared facts (:func:`~veracal.workflow.records.declare_records`).
    Under replace-one it also depends on the number of slots, which is public and recorded by
    the first run; before that, the records are loaded before their run can be rejected.

    ``shares`` returns the configs of the parts of the run from its budget; by default the one
    config.

    Raises
    ------
    BudgetError
        If the cost of the run exceeds the remaining budget.
    LedgerError
        If the ledger protects another unit, individuals were assigned by another rule, or the
        ledger is missing.
    AnswerError
        If the run was abandoned.
    """
    check_not_lost(path)
    if not os.path.lexists(path):
        return
    ledger, records = Ledger(path), declare_records(config)
    budget = run_budget(config, records)
    check_guarantee(ledger, budget)
    fresh = is_unused(ledger)
    if not fresh:
        rule = partition_rule(config, records.dataset, records.schema)
        store = PartitionStore.obtain(partitions_path(path), rule, fresh=False)
    if config.privacy.relation == "replace-one":
        if fresh:
            return
        records = declare_records(config, store.slot_counts())
    configs = [config] if shares is None else shares(budget)
    plans = [RunPlan.of(each, records, check=False) for each in configs]
    request = _run_request(plans, config, budget)
    # A run that was charged keeps its plan: slots may be missing since then.
    known = [run.items for run in ledger.runs() if run.request == request["request"]]
    ledger.require_run(**{**request, "items": known[0] if known else request["items"]})
