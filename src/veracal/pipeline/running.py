"""The whole way: load, split, announce and charge, train, score, repair, measure, report."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.artifact import PrivateClassifier
from veracal.artifact.folder import check_place, write_folder
from veracal.errors import DataError
from veracal.pipeline.config import Config, check_used
from veracal.pipeline.internal import TrainingCurve, internal_facts
from veracal.pipeline.job import Job
from veracal.pipeline.steps import ledger_for, loaded
from veracal.pipeline.telling import files_of, results, results_of, stamped
from veracal.privacy import Ledger, Step
from veracal.report import render
from veracal.report.results import Results
from veracal.training.logistic import Hook

OnProgress = Callable[[str, float, float | None], None]
INTERNAL = "report-internal.html"


@dataclass(frozen=True, eq=False)
class Run:
    """What a run left.

    Attributes
    ----------
    folder : Path
        The artifact.
    classifier : PrivateClassifier
    results : Results
    ledger : Ledger
    internal : Path or None
        The second report, which is not to be published.
    """

    folder: Path
    classifier: PrivateClassifier
    results: Results
    ledger: Ledger
    internal: Path | None = None


def run(
    config: Config,
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    force: bool = False,
    internal: bool = False,
    on_progress: OnProgress | None = None,
) -> Run:
    """Train, repair, measure and report, all charged to one ledger before a record is used.

    A run that was interrupted, or whose output was lost, is run again: what was charged is in
    the ledger with its answer, and comes from there, the same to the last bit.

    Parameters
    ----------
    config : Config
    out : path
        Folder of the artifact.
    ledger : path, optional
        By default beside it, with ``.ledger`` after its name.
    force : bool
        Whether the artifact may take the place of one that is there.
    internal : bool
        Whether to write a second, watermarked report of the records as they are, for whoever
        holds them. It is put beside the artifact, in a folder with ``.internal`` after its
        name, because artifacts are handed on whole.
    on_progress : callable
        ``on_progress(step, done, total)``.

    Guarantees
    ----------
    Whoever is in the records, with all of their rows up to the declared number, is protected
    at the config's epsilon and delta against everything in the artifact: the training part
    pays for model and map, the test part for all measurements, and nobody is in both
    (parallel composition). The internal report is not covered.
    """
    tell = on_progress or silent
    check_used(config.model, (config.model.kind,))
    folder, second = Path(out), internal_place(out)
    check_place(folder, force=force)
    if internal:
        check_place(second, force=force)
    place = ledger_place(folder, ledger)
    tell("loading", 0, None)
    records = loaded(config, lambda done, total: tell("loading", done, total))
    tell("planning", 0, None)
    curve = TrainingCurve(records.train) if internal else None
    job = Job.of(config, records, watching(tell, curve))
    tell("charging", 0, None)
    book = ledger_for(place, job.budget, job.items)
    tell("training", 0, None)
    classifier = job.trained(book)
    measured, dates = [], dates_of(folder, book)
    for when in (*config.sides, *job.later(book)):
        tell(f"measuring {when}", 0, None)
        measured.append(job.asked(classifier, when, book, dates.get(when)))
    tell("reporting", 0, None)
    made = results(job, classifier, book, tuple(measured))
    classifier = stamped(classifier, made)
    classifier.save(folder, more=files_of(made), force=force)
    if curve is not None:
        facts = internal_facts(config, records, classifier, curve.losses)
        page = {INTERNAL: render(made, internal=facts).encode()}
        write_folder(second, page, force=force, shared=False)
    return Run(folder, classifier, made, book, second / INTERNAL if internal else None)


def ledger_place(folder: str | Path, chosen: str | Path | None = None) -> Path:
    """Where the ledger of an artifact is: beside it, unless somebody says otherwise.

    Raises
    ------
    DataError
        If that is in the folder, which is replaced as a whole: what was paid would be
        forgotten.
    """
    place = Path(f"{folder}.ledger") if chosen is None else Path(chosen)
    if Path(os.path.realpath(place)).is_relative_to(os.path.realpath(folder)):
        raise DataError(
            str(place),
            f"a ledger that is not in {folder}, which is handed on and replaced as a whole",
            "one in it",
            "Keep it elsewhere.",
        )
    return place


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
    return {one.when: one.made for one in known.measured} if ours else {}


def watching(tell: OnProgress, curve: TrainingCurve | None = None) -> Hook:
    """A hook that tells of every step of training, and notes the curve if one is wanted."""

    def watch(model: Any, step: Step) -> None:
        tell("training", step.number + 1, model.length())
        if curve is not None:
            curve.note(model, step)

    return watch


def silent(step: str, done: float, total: float | None) -> None:
    """Tell nobody."""
