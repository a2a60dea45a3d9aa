"""A model measured once more, for one of the measurements that its run laid by."""

import os
from dataclasses import replace
from pathlib import Path

from veracal.artifact import PrivateClassifier, check_place
from veracal.errors import DataError
from veracal.ledger import Ledger, ledger_total
from veracal.report import Results
from veracal.workflow.charging import OnNotice, assigned, ledger_path, tell_notice
from veracal.workflow.config import Config
from veracal.workflow.job import LATER, RunPlan
from veracal.workflow.results import files_of, ledger_facts, results_of, stamped, with_total
from veracal.workflow.running import OnProgress, RunResult, silent
from veracal.workflow.steps import loaded


def measure_again(
    folder: str | Path,
    *,
    source: str | None = None,
    ledger: str | Path | None = None,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> RunResult:
    """Measure an artifact on its test records again, and add the figures to its report.

    The question is the one that its run asked, with new noise, paid from the same ledger.

    Parameters
    ----------
    folder : path
        An artifact that :func:`~veracal.workflow.run` made.
    source : str, optional
        The file of records. By default one of its name here, or beside the artifact, which
        does not tell where files were.
    ledger : path, optional
        By default that of the data set.
    on_progress : callable, optional
    on_notice : callable, optional
        As for :func:`veracal.workflow.run`. Individuals that are new are in no partition: they
        are left out.

    Raises
    ------
    BudgetError
        If no measurement is left.
    DataError
        If the ledger did not pay for this training: with another schema, key or share for
        testing, people who were learnt from would be among those measured on.
    """
    tell = on_progress or silent
    folder = Path(folder)
    classifier = PrivateClassifier.load(folder)
    check_place(folder, force=True)  # or it could not be written to after it was paid for
    known = results_of(folder)
    config = Config.from_entries(known.settings, where=f"{folder}: settings")
    schema = None
    if config.data.schema is not None:  # a file, and not a built-in set
        schema, place = classifier.schema, source or found_near(folder, config.data.source)
        config = replace(config, data=replace(config.data, source=place))
    tell("loading", 0, None)
    records = loaded(config, lambda done, total: tell("loading", done, total), schema)
    name = str(known.data.get("name"))  # called as before, wherever they are now
    records = replace(records, whole=replace(records.whole, name=name))
    paid = ledger_path(config.data.source, ledger, outside=folder)
    whole = Ledger(found_ledger(paid, known, folder))
    check_head(whole, known, folder)
    records = assigned(config, records, whole)
    tell_notice(records, on_notice)
    job = RunPlan.of(config, records)
    book = run_of(whole, job, folder)
    tell("measuring again", 0, None)
    when = f"{LATER} {1 + sum(one.when.startswith(f'{LATER} ') for one in known.measured)}"
    found = job.asked(classifier, when, book)
    results = replace(
        known,
        measured=(*known.measured, found),
        ledger=ledger_facts(book, job.budget),
        guarantee=with_total(known.guarantee, ledger_total(book)),
    )
    tell("reporting", 0, None)
    stamped(classifier, results).save(folder, other_files=files_of(results), force=True)
    return RunResult(folder, classifier, results, book, notice=records.notice)


def found_near(folder: Path, name: str) -> str:
    """A table by its name: here, or beside an artifact."""
    for place in (Path(name), folder.parent / name):
        if place.exists():
            return str(place)
    raise DataError(
        name,
        f"the table that {folder} was made of, in this folder or beside the model",
        "nothing of that name",
        "Say where it is, with --data on the command line.",
    )


def found_ledger(place: Path, known: Results, folder: Path) -> Path:
    """The place of a ledger, or how to say where it is now."""
    if os.path.lexists(place):
        return place
    raise DataError(
        str(place),
        f"the ledger that {folder} was charged to, by the name {known.ledger.get('name')}",
        "nothing at that path",
        "Say where it is, with --ledger on the command line.",
    )


def check_head(ledger: Ledger, known: Results, folder: Path) -> None:
    """Refuse a ledger that did not pay for an artifact."""
    if known.ledger.get("head") not in {entry.hash for entry in ledger.entries()}:
        raise DataError(
            str(ledger.path),
            f"the ledger that {folder} was charged to",
            "another, or an older copy of it",
            "Name the right one.",
        )


def run_of(ledger: Ledger, job: RunPlan, folder: Path) -> Ledger:
    """The run that trained an artifact; other settings than its own are refused."""
    for entry in ledger.entries():
        if entry.request == job.request and entry.run is not None:
            return Ledger(ledger.path, entry.run)
    raise DataError(
        job.records.whole.name,
        f"records as {folder} was trained on, by the same schema and settings",
        "another schema, or other settings",
        "Use the schema as it was: figures of a test set that was split otherwise are not "
        "covered by the guarantee.",
    )
