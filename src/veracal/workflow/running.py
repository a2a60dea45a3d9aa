"""The whole job: plan, load, split, charge, train, recalibrate, measure, report."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from veracal.artifact import PrivateClassifier, check_output_folder, write_folder
from veracal.errors import DataError
from veracal.ledger import AssignmentNotice, Ledger
from veracal.mechanisms import StepProgress, TrainingCurve
from veracal.report import Results
from veracal.workflow.charging import (
    DataAccount,
    OnNotice,
    check_before_loading,
    check_known_ledger,
    ledger_path,
)
from veracal.workflow.config import Config, check_settings_apply
from veracal.workflow.planning import RunPlan
from veracal.workflow.records import load_records
from veracal.workflow.results import (
    add_provenance,
    build_results,
    internal_figures,
    load_results,
    result_files,
)

OnProgress = Callable[[str, float, float | None], None]
INTERNAL = "report-internal.html"


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of a run.

    Attributes
    ----------
    folder : Path
        The artifact.
    classifier : PrivateClassifier
    results : Results
    ledger : Ledger
        The run, as a view of the data set's ledger.
    internal : Path or None
        The internal report, which must not be published.
    notice : AssignmentNotice or None
        How the records compare with those of earlier runs. For the data holder only: no file
        contains it.
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

    The first run on a data set opens its ledger, with the epsilon and delta of the config as
    caps. A later run that exceeds the remaining budget is rejected before a record is read
    (:func:`~veracal.workflow.charging.check_before_loading`). To resume a run that was
    interrupted, or whose output was lost, call it again: the charges are in the ledger, and
    so are the answers, identical to the last bit.

    Parameters
    ----------
    config : Config
    out : path
        Folder of the artifact.
    ledger : path, optional
        By default that of the data set, wherever ``out`` is
        (:func:`veracal.ledger.default_ledger_path`).
    force : bool
        Whether the artifact may replace an existing one.
    internal : bool
        Whether to write a second, watermarked report with exact figures, for the data holder.
        It is put beside the artifact, in a folder with the suffix ``.internal``, because
        artifacts are shared as a whole.
    on_progress : callable
        ``on_progress(step, done, total)``.
    on_notice : callable
        ``on_notice(notice)``, called before anything is charged or recorded if individuals are
        new since the earlier runs, or if rows are in no partition
        (:class:`~veracal.ledger.partitions.AssignmentNotice`). The figures are for the data
        holder only. An exception that it raises ends the run without a trace.

    Guarantees
    ----------
    Each individual, with all rows up to the declared number, is protected at the epsilon and
    delta of the config against everything in the artifact. The training partition pays for
    model and calibration map, the test partition for all measurements, and no individual is in
    both, in this or any other run of the ledger (parallel composition). All runs of the ledger
    together keep its caps. The internal report is not covered.
    """
    progress = on_progress or ignore_progress
    check_settings_apply(config.model, (config.model.kind,))
    folder, second = Path(out), Path(f"{out}.internal")
    check_output_folder(folder, force=force)
    if internal:
        check_output_folder(second, force=force)
    path = ledger_path(config.data.source, ledger, outside=folder)
    check_known_ledger(folder, path, config)
    progress("planning", 0, None)
    check_before_loading(config, path)
    progress("loading", 0, None)
    records = load_records(config, lambda done, total: progress("loading", done, total))
    account = DataAccount(config, records, path, on_notice)
    on_training_step = report_steps(progress)
    curve = TrainingCurve(account.records.train, on_training_step) if internal else None
    progress("charging", 0, None)
    hook = StepProgress(on_training_step) if curve is None else curve
    charged, (plan,) = account.charge([RunPlan.of(config, account.records, hook)])
    progress("training", 0, None)
    classifier = plan.train_model(charged)
    measured, dates = [], measurement_dates(folder, charged)
    for when in (*config.sides, *plan.later_measurements(charged)):
        progress(f"measuring {when}", 0, None)
        measured.append(plan.measure(classifier, when, charged, dates.get(when)))
    progress("reporting", 0, None)
    results = build_results(plan, classifier, charged, tuple(measured))
    classifier = add_provenance(classifier, results)
    classifier.save(folder, other_files=result_files(results), force=force)
    if curve is not None:
        from veracal.report import render

        figures = internal_figures(config, plan.records, classifier, curve.losses)
        page = {INTERNAL: render(results, internal=figures).encode()}
        write_folder(second, page, force=force, shared=False)
    page_path = second / INTERNAL if internal else None
    return RunResult(folder, classifier, results, charged, page_path, plan.records.notice)


def measurement_dates(folder: Path, ledger: Ledger) -> dict[str, str]:
    """Dates of the measurements in an existing artifact, if this ledger paid for it."""
    try:
        known = load_results(folder)
    except DataError:
        return {}
    ours = known.ledger.get("head") in {entry.hash for entry in ledger.entries()}
    return {one.when: one.date for one in known.measured} if ours else {}


def report_steps(progress: OnProgress) -> Callable[[int, int], None]:
    """A callback that reports each training step as progress."""
    return lambda done, total: progress("training", done, total)


def ignore_progress(step: str, done: float, total: float | None) -> None:
    """Report nothing."""
