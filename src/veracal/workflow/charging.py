"""The ledger of a data set in a run: where it is, what it refuses, what a run is charged.

A run reads records only in the partitions that their ledger keeps, and is charged as a whole
before a record is used. What it may cost together with all other runs is bounded by the caps
that were fixed when the ledger was opened.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
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
    open_for_data,
    restore_data_note,
    split_and_assign,
)
from veracal.workflow.config import Config
from veracal.workflow.job import RunPlan
from veracal.workflow.results import results_of
from veracal.workflow.steps import (
    TEST,
    TRAIN,
    LoadedRecords,
    budget_of,
    declared,
    partition_rule,
    together,
)

OnNotice = Callable[[AssignmentNotice], None]


class DataAccount:
    """Records in the partitions of their data set's ledger, which pays for what is read.

    Parameters
    ----------
    config : Config
        Of the whole run.
    records : Loaded
    place : path
        Of the ledger. If there is none, :meth:`charge` opens it with the run's epsilon and
        delta as caps.
    on_notice : callable, optional
        Told, before anything is charged or recorded, of individuals that are new beside those
        that earlier runs recorded, and of rows in no partition. What it raises ends the run.

    Attributes
    ----------
    records : Loaded
        In the partitions that earlier runs recorded, if there were any.
    opened : bool
        Whether the ledger was opened by this run.

    Guarantees
    ----------
    No individual is in two partitions over all runs of the ledger (see
    :class:`~veracal.ledger.partitions.PartitionStore`): a run that splits by another key or
    other fractions is refused. The assignment is fixed, on the disk, before the first charge
    that rests on it. New individuals are never a reason for a refusal: whether a run is
    refused would then tell of single records, and no rule can tell a new id from a known one
    that is spelt otherwise. Whoever holds the records can, and is told the figures.

    Raises
    ------
    LedgerError
        If the ledger protects other units, has no partitions, or lost their assignment; or if
        earlier runs split otherwise.
    """

    def __init__(
        self,
        config: Config,
        records: LoadedRecords,
        place: Path,
        on_notice: OnNotice | None = None,
    ) -> None:
        self._config, self._place, self._on_notice = config, place, on_notice
        self._budget = budget_of(config, records)
        self.records, self.opened = records, not os.path.lexists(place)
        if not self.opened:
            self._ledger = Ledger(place)
            check_promise(self._ledger, self._budget)
            restore_data_note(self._ledger, config.data.source)
            self._assign()

    def charge(self, jobs: Sequence[RunPlan]) -> tuple[Ledger, list[RunPlan]]:
        """Charge jobs on these records, all of them as one run.

        Returns
        -------
        tuple of (Ledger, list of Job)
            A view of the run, and the jobs on the records in their final partitions. Run
            again, the same jobs find the same run, and are charged nothing.
        """
        jobs = list(jobs)
        if self.opened:
            source = self._config.data.source
            self._ledger = open_data_ledger(self._place, self._budget, source)
            check_promise(self._ledger, self._budget)  # another process may have opened it
            self._assign()
            jobs = [replace(job, records=self.records) for job in jobs]
        asked = _run_request(jobs, self._config, self._budget)
        self._ledger.require_run(**asked)
        self._store.seal(self._assignment)
        return self._ledger.begin_run(**asked), jobs

    def _assign(self) -> None:
        """Put the records into the partitions that the ledger keeps, or record them."""
        self._store, self._assignment, self.records = _assigned(
            self._config, self.records, self._ledger
        )
        tell_notice(self.records, self._on_notice)


def tell_notice(records: LoadedRecords, on_notice: OnNotice | None) -> None:
    """Tell the data holder, if there is something to tell."""
    if on_notice is not None and records.notice is not None:
        on_notice(records.notice)


def assigned(config: Config, records: LoadedRecords, ledger: Ledger) -> LoadedRecords:
    """The records in the partitions that a ledger has recorded; others are left out."""
    return _assigned(config, records, ledger, grow=False)[2]


def _assigned(
    config: Config, records: LoadedRecords, ledger: Ledger, *, grow: bool = True
) -> tuple[Any, Any, LoadedRecords]:
    fresh = is_fresh(ledger)
    rule = partition_rule(config, records.whole, records.schema)
    store = PartitionStore.obtain(partitions_path(ledger.path), rule, fresh=fresh)
    parts, assignment = split_and_assign(records.whole, store, fresh=fresh, grow=grow)
    return store, assignment, replace(records, parts=parts, notice=assignment.notice)


def is_fresh(ledger: Ledger) -> bool:
    """Whether nothing that was charged rests on partitions yet."""
    charged = (entry for entry in ledger.entries() if entry.event is not None)
    return all(entry.part is None for entry in charged)


def partitions_path(ledger: Path) -> Path:
    """Where the assignment to partitions of a ledger is kept."""
    return Path(f"{ledger}.partitions")


def _run_request(jobs: Sequence[RunPlan], config: Config, budget: Budget) -> dict[str, Any]:
    """What a ledger is asked for, and knows a run by."""
    body = b"\n".join(job.body for job in jobs)
    return {
        "items": together(item for job in jobs for item in job.items),
        "name": config.name,
        "request": f"run {hashlib.sha256(body).hexdigest()}",
        "body": body,
        "delta": budget.delta,
    }


def open_data_ledger(place: Path, budget: Budget, source: str) -> Ledger:
    """Open the ledger of a data set, to which epsilons and deltas of runs are added.

    Of several processes that do so at once the first opens it, and the others use it.

    Raises
    ------
    LedgerError
        If the ledger that was there has vanished (:func:`check_not_lost`).
    """
    check_not_lost(place)
    try:
        return open_for_data(
            place, budget, source, kind="open", composition="addition", parts=(TRAIN, TEST)
        )
    except DataError:
        if not os.path.lexists(place):
            raise
        return Ledger(place)


def check_not_lost(place: Path) -> None:
    """Refuse to open a ledger where another was charged, and what is beside it remembers that.

    An assignment to partitions is sealed just before the first charge that rests on it, when
    its ledger has been opened.

    Raises
    ------
    LedgerError
    """
    beside = partitions_path(place)
    if os.path.lexists(place) or not os.path.lexists(beside):
        return
    if PartitionStore(beside).sealed and not os.path.lexists(place):
        raise LedgerError(
            f"{place}: nothing is there, but {beside.name} was used by runs that a ledger "
            "there was charged for. What they spent would be forgotten: put the ledger back. "
            "Another one, named with --ledger, is one more full budget for the same "
            "individuals."
        )


def check_promise(ledger: Ledger, budget: Budget) -> None:
    """Refuse a ledger that protects others than a run, or has no partitions.

    Raises
    ------
    LedgerError
    """
    kept, opening = ledger.budget, ledger.opening
    if (kept.relation, kept.unit) != (budget.relation, budget.unit):
        raise LedgerError(
            f"{ledger.path}: the ledger protects {kept.unit} under {kept.relation}, and this "
            f"run {budget.unit} under {budget.relation}. Costs of the two do not add: use the "
            "schema and the relation of the first run."
        )
    if not {TRAIN, TEST} <= set(opening.parts) or opening.rule.kind != "open":
        raise LedgerError(
            f"{ledger.path}: a run needs an open ledger with partitions {TRAIN} and {TEST}, "
            f"to which runs can be added; this one is of kind {opening.rule.kind!r} with "
            f"{', '.join(opening.parts)}. Open one with `veracal ledger open --data DATA`."
        )


def ledger_path(source: str, chosen: str | Path | None = None, *, outside: Path) -> Path:
    """Where the ledger of a data set is, unless the user names another.

    Raises
    ------
    DataError
        If that is in the artifact's folder, which is replaced as a whole: what was paid would
        be forgotten.
    """
    place = default_ledger_path(source) if chosen is None else Path(chosen)
    if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(outside)):
        raise DataError(
            str(place),
            f"a ledger that is not in {outside}, which is handed on and replaced as a whole",
            "one in it",
            "Keep it elsewhere.",
        )
    return place


def check_remembered(folder: Path, place: Path, config: Config) -> None:
    """Refuse to start anew where an artifact of the same data remembers another ledger.

    Raises
    ------
    LedgerError
        If the ledger that the artifact was charged to has vanished, or was replaced.
    """
    try:
        known = results_of(folder)
    except DataError:
        return  # no artifact, or none of ours
    if known.settings["data"]["source"] != Path(config.data.source).name:
        return
    if not os.path.lexists(place):
        found = "nothing is there"
    elif known.ledger.get("head") not in {entry.hash for entry in Ledger(place).entries()}:
        found = "the one there does not know of that"
    else:
        return
    raise LedgerError(
        f"{place}: {folder} was charged to the ledger {known.ledger.get('name')}, and {found}. "
        "What was spent on these records would be forgotten: put the ledger back, or say where "
        "it is with --ledger."
    )


def refuse_early(
    config: Config, place: Path, shares: Callable[[Budget], Sequence[Config]] | None = None
) -> None:
    """Refuse what a ledger cannot pay, or another split, before a record is read.

    What a run costs follows from what is declared (:func:`~veracal.workflow.steps.declared`).
    Under replace-one it follows from the number of slots, too, which is public and was recorded
    by the first run; until then, records are loaded before their run is refused.

    Parameters
    ----------
    config : Config
        Of the whole run.
    place : path
        Of the ledger.
    shares : callable, optional
        Configs of the jobs of the run, from its budget; by default the one config.

    Raises
    ------
    BudgetError
        If the run does not fit into what is left.
    LedgerError
        If the ledger protects others, individuals were assigned by another rule, or the
        ledger has vanished.
    AnswerError
        If the run was abandoned.
    """
    check_not_lost(place)
    if not os.path.lexists(place):
        return
    ledger, records = Ledger(place), declared(config)
    budget = budget_of(config, records)
    check_promise(ledger, budget)
    fresh = is_fresh(ledger)
    if not fresh:
        rule = partition_rule(config, records.whole, records.schema)
        store = PartitionStore.obtain(partitions_path(place), rule, fresh=False)
    if config.privacy.relation == "replace-one":
        if fresh:
            return
        records = declared(config, store.slot_counts())
    configs = [config] if shares is None else shares(budget)
    jobs = [RunPlan.of(each, records, check=False) for each in configs]
    asked = _run_request(jobs, config, budget)
    # A run that was charged before is not planned anew: slots may be missing since then.
    known = [run.items for run in ledger.runs() if run.request == asked["request"]]
    ledger.require_run(**{**asked, "items": known[0] if known else asked["items"]})
