"""Another measurement of an artifact, from the budget that its run reserved."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from veracal.artifact import PrivateClassifier, check_output_folder
from veracal.errors import DataError
from veracal.ledger import Ledger, ledger_total
from veracal.workflow.charging import OnNotice, assign_recorded, ledger_path, send_notice
from veracal.workflow.config import Config
from veracal.workflow.planning import LATER, RunPlan
from veracal.workflow.records import load_records
from veracal.workflow.results import (
    add_provenance,
    load_results,
    result_files,
    summarize_ledger,
    with_total,
)
from veracal.workflow.running import OnProgress, RunResult, ignore_progress


def remeasure(
    folder: str | Path,
    *,
    source: str | None = None,
    ledger: str | Path | None = None,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> RunResult:
    """Measure an artifact on its test records again, and add the figures to its report.

    The queries are those of its run, with new noise, paid from the same ledger.

    Parameters
    ----------
    folder : path
        An artifact of :func:`~veracal.workflow.run`.
    source : str, optional
        The file of records. By default the file of the recorded name in the working folder or
        beside the artifact, which does not record paths.
    ledger : path, optional
        By default that of the data set.
    on_progress : callable, optional
    on_notice : callable, optional
        As for :func:`veracal.workflow.run`. New individuals are in no partition, and are left
        out.

    Raises
    ------
    BudgetError
        If no reserved measurement is left.
    DataError
        If the ledger did not pay for this training. With another schema, split key or test
        share, individuals that the model was trained on would be among those it is measured on.
    """
    progress = on_progress or ignore_progress
    folder = Path(folder)
    classifier = PrivateClassifier.load(folder)
    check_output_folder(folder, force=True)  # before the measurement is paid for
    known = load_results(folder)
    config = Config.from_entries(known.settings, where=f"{folder}: settings")
    schema = None
    if config.data.schema is not None:  # a file, not a built-in set
        schema, path = classifier.schema, source or find_table(folder, config.data.source)
        config = replace(config, data=replace(config.data, source=path))
    progress("loading", 0, None)
    records = load_records(config, lambda done, total: progress("loading", done, total), schema)
    name = str(known.data.get("name"))  # the recorded name, wherever the file is now
    records = replace(records, dataset=replace(records.dataset, name=name))
    whole = _open_ledger(
        ledger_path(config.data.source, ledger, outside=folder), known.ledger, folder
    )
    records = assign_recorded(config, records, whole)
    send_notice(records, on_notice)
    plan = RunPlan.of(config, records)
    charged = _find_run(whole, plan, folder)
    progress("measuring again", 0, None)
    when = f"{LATER} {1 + sum(one.when.startswith(f'{LATER} ') for one in known.measured)}"
    measurement = plan.measure(classifier, when, charged)
    results = replace(
        known,
        measured=(*known.measured, measurement),
        ledger=summarize_ledger(charged, plan.budget),
        guarantee=with_total(known.guarantee, ledger_total(charged)),
    )
    progress("reporting", 0, None)
    add_provenance(classifier, results).save(
        folder, other_files=result_files(results), force=True
    )
    return RunResult(folder, classifier, results, charged, notice=records.notice)


def find_table(folder: Path, name: str) -> str:
    """Find a table by its name, in the working folder or beside an artifact."""
    for path in (Path(name), folder.parent / name):
        if path.exists():
            return str(path)
    raise DataError(
        name,
        f"the table that {folder} was trained on, in this folder or beside the model",
        "no file of that name",
        "Name its path, with --data on the command line.",
    )


def _open_ledger(path: Path, known: Mapping[str, object], folder: Path) -> Ledger:
    """Open the ledger that an artifact was charged to; reject any other."""
    if not os.path.lexists(path):
        raise DataError(
            str(path),
            f"the ledger that {folder} was charged to, by the name {known.get('name')}",
            "no file at that path",
            "Name its path, with --ledger on the command line.",
        )
    ledger = Ledger(path)
    if known.get("head") not in {entry.hash for entry in ledger.entries()}:
        raise DataError(
            str(path),
            f"the ledger that {folder} was charged to",
            "another, or an older copy of it",
            "Name the right one.",
        )
    return ledger


def _find_run(ledger: Ledger, plan: RunPlan, folder: Path) -> Ledger:
    """The run that trained an artifact; reject settings other than its own."""
    for entry in ledger.entries():
        if entry.request == plan.request and entry.run is not None:
            return Ledger(ledger.path, entry.run)
    raise DataError(
        plan.records.dataset.name,
        f"records as {folder} was trained on, with the same schema and settings",
        "another schema, or other settings",
        "Use the original schema: the guarantee does not cover figures of a test set that was "
        "split in another way.",
    )
