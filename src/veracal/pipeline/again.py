"""A model measured once more, for one of the measurements that its run laid by."""

from dataclasses import replace
from pathlib import Path

from veracal.artifact import PrivateClassifier
from veracal.errors import DataError
from veracal.pipeline.config import Config
from veracal.pipeline.job import LATER, Job
from veracal.pipeline.running import OnProgress, Run, ledger_place, silent
from veracal.pipeline.steps import loaded
from veracal.pipeline.telling import files_of, ledger_facts, results_of, stamped
from veracal.privacy import Ledger
from veracal.report.results import Results


def measure_again(
    folder: str | Path,
    *,
    source: str | None = None,
    ledger: str | Path | None = None,
    on_progress: OnProgress | None = None,
) -> Run:
    """Measure an artifact on its test records again, and add the figures to its report.

    The question is the one that its run asked, with new noise, paid from the same ledger.

    Parameters
    ----------
    folder : path
        An artifact that :func:`~veracal.pipeline.run` made.
    source : str, optional
        The file of records, if it is elsewhere now.
    ledger : path, optional
        By default beside the folder, with ``.ledger`` after its name.
    on_progress : callable, optional

    Raises
    ------
    BudgetError
        If no measurement is left.
    """
    tell = on_progress or silent
    folder = Path(folder)
    classifier = PrivateClassifier.load(folder)
    known = results_of(folder)
    config = Config.from_entries(known.settings, where=f"{folder}: settings")
    if source is not None:
        config = replace(config, data=replace(config.data, source=source))
    tell("loading", 0, None)
    records = loaded(config, lambda done, total: tell("loading", done, total))
    book = Ledger(ledger_place(folder) if ledger is None else Path(ledger))
    check_history(book, known, folder)
    tell("measuring again", 0, None)
    when = f"{LATER} {1 + sum(one.when.startswith(f'{LATER} ') for one in known.measured)}"
    found = Job.of(config, records).asked(classifier, when, book)
    results = replace(known, measured=(*known.measured, found), ledger=ledger_facts(book))
    tell("reporting", 0, None)
    stamped(classifier, results).save(folder, more=files_of(results), force=True)
    return Run(folder, classifier, results, book)


def check_history(book: Ledger, known: Results, folder: Path) -> None:
    """Refuse a ledger that did not pay for the artifact."""
    hashes = {entry.hash for entry in book.entries()}
    if known.ledger.get("head") not in hashes:
        raise DataError(
            str(book.path),
            f"the ledger that {folder} was charged to",
            "another, or an older copy of it",
            "Name the right one.",
        )
