"""The whole job: plan, load, split, charge, train, score, recalibrate, measure, report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from veracal.artifact import PrivateClassifier, check_place, write_folder
from veracal.errors import DataError
from veracal.ledger import AssignmentNotice, Ledger
from veracal.mechanisms import StepProgress, TrainingCurve
from veracal.report import Results, render
from veracal.workflow.charging import (
    DataAccount,
    OnNotice,
    check_remembered,
    ledger_path,
    refuse_early,
)
from veracal.workflow.config import Config, check_used
from veracal.workflow.job import RunPlan, internal_facts
from veracal.workflow.results import files_of, results, results_of, stamped
from veracal.workflow.steps import loaded

OnProgress = Callable[[str, float, float | None], None]
INTERNAL = "report-internal.html"


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run left.

    Attributes
    ----------
    folder : Path
        The artifact.
    classifier : PrivateClassifier
    results : Results
    ledger : Ledger
        The run, as a view of the data set's ledger.
    internal : Path or None
        The second report, which is not to be published.
    notice : AssignmentNotice or None
        How the records compare with those of earlier runs. For the data holder only: it is in
        no file.
    """

    folder: Path
    classifier: PrivateClassifier
    results: Results
    ledger: Ledger
    internal: Path | None = None
    notice: AssignmentNotice | None = None


def run(
    config: Config,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    force: bool = False,
    internal: bool = False,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> RunResult:
    """Train, recalibrate, measure and report, as one run of the data set's ledger.

    The first run on a data set opens its ledger, with the config's epsilon and delta as caps.
    A further one that does not fit is refused before a record is read
    (:func:`~veracal.workflow.charging.refuse_early`). A run that was interrupted, or whose
    output was lost, is run again: what was charged is in the ledger, and what was answered
    comes from there, the same to the last bit.

    Parameters
    ----------
    config : Config
    out : path
        Folder of the artifact.
    ledger : path, optional
        By default that of the data set, wherever ``out`` is
        (:func:`veracal.ledger.default_ledger_path`).
    force : bool
        Whether the artifact may take the place of one that is there.
    internal : bool
        Whether to write a second, watermarked report of the records as they are, for whoever
        holds them. It is put beside the artifact, in a folder with ``.internal`` after its
        name, because artifacts are handed on whole.
    on_progress : callable
        ``on_progress(step, done, total)``.
    on_notice : callable
        ``on_notice(notice)``, before anything is charged or recorded, if individuals are new
        beside those of earlier runs, or rows are in no partition
        (:class:`~veracal.ledger.partitions.AssignmentNotice`): figures for the data holder
        only. What it raises ends the run, and nothing is left of it.

    Guarantees
    ----------
    Whoever is in the records, with all of their rows up to the declared number, is protected
    at the config's epsilon and delta against everything in the artifact: the training part
    pays for model and map, the test part for all measurements, and nobody is in both, in this
    or any other run of the ledger (parallel composition). All runs of the ledger together keep
    its caps. The internal report is not covered.
    """
    tell = on_progress or silent
    check_used(config.model, (config.model.kind,))
    folder, second = Path(out), internal_place(out)
    check_place(folder, force=force)
    if internal:
        check_place(second, force=force)
    place = ledger_path(config.data.source, ledger, outside=folder)
    check_remembered(folder, place, config)
    tell("planning", 0, None)
    refuse_early(config, place)
    tell("loading", 0, None)
    records = loaded(config, lambda done, total: tell("loading", done, total))
    account = DataAccount(config, records, place, on_notice)
    counted = step_counter(tell)
    curve = TrainingCurve(account.records.train, counted) if internal else None
    tell("charging", 0, None)
    hook = StepProgress(counted) if curve is None else curve
    book, (job,) = account.charge([RunPlan.of(config, account.records, hook)])
    tell("training", 0, None)
    classifier = job.trained(book)
    measured, dates = [], dates_of(folder, book)
    for when in (*config.sides, *job.later(book)):
        tell(f"measuring {when}", 0, None)
        measured.append(job.asked(classifier, when, book, dates.get(when)))
    tell("reporting", 0, None)
    made = results(job, classifier, book, tuple(measured))
    classifier = stamped(classifier, made)
    classifier.save(folder, other_files=files_of(made), force=force)
    if curve is not None:
        facts = internal_facts(config, job.records, classifier, curve.losses)
        page = {INTERNAL: render(made, internal=facts).encode()}
        write_folder(second, page, force=force, shared=False)
    page_place = second / INTERNAL if internal else None
    return RunResult(folder, classifier, made, book, page_place, job.records.notice)


def internal_place(folder: str | Path) -> Path:
    """Where an artifact's internal report is: not in it."""
    return Path(f"{folder}.internal")


def dates_of(folder: Path, book: Ledger) -> dict[str, str]:
    """When the measurements of an artifact were made, if a ledger paid for the one there."""
    try:
        known = results_of(folder)
    except DataError:
        return {}
    ours = known.ledger.get("head") in {entry.hash for entry in book.entries()}
    return {one.when: one.date for one in known.measured} if ours else {}


def step_counter(tell: OnProgress) -> Callable[[int, int], None]:
    """A callback that reports the steps of training."""

    def count(done: int, total: int) -> None:
        tell("training", done, total)

    return count


def silent(step: str, done: float, total: float | None) -> None:
    """Tell nobody."""
