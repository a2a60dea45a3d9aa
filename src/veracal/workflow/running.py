"""The whole job: plan, load, split, charge, train, recalibrate, measure, report.

:func:`run` does it for one model, :func:`compare` for several within one budget, and
:func:`remeasure` adds a measurement of a finished artifact from its reserved budget.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from veracal.accounting import Budget, Statement
from veracal.artifact import PrivateClassifier, check_output_folder, write_folder
from veracal.data import translate_os_errors
from veracal.errors import DataError
from veracal.ledger import AssignmentNotice, Ledger, ledger_total
from veracal.mechanisms import StepProgress, TrainingCurve
from veracal.report import Results
from veracal.workflow.charging import (
    DataAccount,
    OnNotice,
    assign_recorded,
    check_before_loading,
    check_known_ledger,
    ledger_path,
    send_notice,
)
from veracal.workflow.config import (
    Config,
    Configuration,
    PrivacyConfig,
    check_configurations,
    check_settings_apply,
    is_unfinished,
)
from veracal.workflow.planning import LATER, RunPlan
from veracal.workflow.records import load_records, run_budget
from veracal.workflow.results import (
    COVERS,
    add_provenance,
    build_results,
    internal_figures,
    load_results,
    result_files,
    summarize_ledger,
    with_total,
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
    classifier, results
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
    progress = on_progress or _ignore_progress
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

    on_step = partial(progress, "training")
    curve = TrainingCurve(account.records.train, on_step) if internal else None
    progress("charging", 0, None)
    hook = StepProgress(on_step) if curve is None else curve
    charged, (plan,) = account.charge([RunPlan.of(config, account.records, hook)])
    result = _execute(plan, charged, folder, progress, force=force)
    if curve is None:
        return result
    from veracal.report import render

    figures = internal_figures(config, plan.records, result.classifier, curve.losses)
    page = {INTERNAL: render(result.results, internal=figures).encode()}
    write_folder(second, page, force=force, shared=False)
    return replace(result, internal=second / INTERNAL)


def _execute(
    plan: RunPlan,
    ledger: Ledger,
    folder: Path,
    progress: OnProgress,
    *,
    force: bool,
    covers: tuple[str, ...] = COVERS,
    budget: Budget | None = None,
) -> RunResult:
    """Train, measure and write the artifact of a charged plan; repeat what the ledger kept."""
    progress("training", 0, None)
    classifier = plan.train_model(ledger)
    dates = {}  # of measurements in an existing artifact, if this ledger paid for it
    with suppress(DataError):
        known = load_results(folder)
        if known.ledger.head in {entry.hash for entry in ledger.entries()}:
            dates = {one.when: one.date for one in known.measured}
    measured = []
    for when in (*plan.config.sides, *plan.later_measurements(ledger)):
        progress(f"measuring {when}", 0, None)
        measured.append(plan.measure(classifier, when, ledger, dates.get(when)))
    progress("reporting", 0, None)
    results = build_results(plan, classifier, ledger, tuple(measured), covers, budget=budget)
    classifier = add_provenance(classifier, results)
    classifier.save(folder, other_files=result_files(results), force=force)
    return RunResult(folder, classifier, results, ledger, notice=plan.records.notice)


def _ignore_progress(step: str, done: float, total: float | None) -> None:
    """Report nothing."""


def compare(
    config: Config,
    configurations: Sequence[Configuration],
    out: str | Path,
    *,
    ledger: str | Path | None = None,
    force: bool = False,
    on_progress: OnProgress | None = None,
    on_notice: OnNotice | None = None,
) -> tuple[RunResult, ...]:
    """Train and measure a model of each configuration, all of them within one budget.

    Each configuration has an equal share of epsilon and delta, for training and calibration on
    the training records, and for measurements before and after calibration on the test records.

    Parameters
    ----------
    config : Config
        All other settings. Its epsilon is that of the whole comparison; no later measurements
        are reserved.
    configurations : sequence of Configuration
        Two or more, all different.
    out : path
        Folder in which each configuration gets an artifact of its own.
    ledger, force, on_progress, on_notice
        As for :func:`veracal.workflow.run`.

    Guarantees
    ----------
    Everything that the comparison releases, all models and all figures, is within the epsilon
    and delta of the config for each individual. Results and report of each artifact say so,
    while a ``model.json`` states the share that its own weights and map cost. Choosing a model
    by these figures needs no further budget. If interrupted, the same call resumes from the
    folder and the ledger, and nothing is charged twice.
    """
    progress = on_progress or _ignore_progress
    check_configurations(configurations)
    folder, n = Path(out), len(configurations)
    may_replace = force and folder.is_dir() and not folder.is_symlink()
    if is_unfinished(folder, configurations) or may_replace:
        for each in configurations:
            check_output_folder(folder / each.folder, force=True)
    else:
        check_output_folder(folder, force=False)
    path = ledger_path(config.data.source, ledger, outside=folder)
    for each in configurations:
        check_known_ledger(folder / each.folder, path, config)

    def share(budget: Budget) -> list[Config]:
        return [share_config(config, each, n, budget.delta) for each in configurations]

    progress("planning", 0, None)
    check_before_loading(config, path, share)
    progress("loading", 0, None)
    records = load_records(config, lambda done, total: progress("loading", done, total))
    account = DataAccount(config, records, path, on_notice)
    budget = run_budget(config, records)

    def report(name: str, step: str, done: float, total: float | None) -> None:
        progress(f"{name}: {step}", done, total)

    plans = []
    for part, each in zip(share(budget), configurations, strict=True):
        hook = StepProgress(partial(report, str(each), "training"))
        plans.append(RunPlan.of(part, account.records, hook))
    progress("charging", 0, None)
    charged, plans = account.charge(plans)
    with translate_os_errors(folder):
        folder.mkdir(exist_ok=True)
    covers = (*COVERS, f"the other models of this comparison of {n}, and their figures")
    return tuple(
        _execute(
            plan,
            charged,
            folder / each.folder,
            partial(report, str(each)),
            force=True,
            covers=covers,
            budget=budget,
        )
        for each, plan in zip(configurations, plans, strict=True)
    )


def share_config(config: Config, configuration: Configuration, n: int, delta: float) -> Config:
    """The config of one of ``n`` configurations, with its share of the budget."""
    return replace(
        config,
        name=f"{config.name} {configuration}",
        privacy=PrivacyConfig(config.privacy.epsilon / n, delta / n, config.privacy.relation),
        model=replace(config.model, kind=configuration.model),
        recalibration=replace(config.recalibration, method=configuration.method),
        measurement=replace(config.measurement, reserve=0),
    )


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
    progress = on_progress or _ignore_progress
    folder = Path(folder)
    classifier = PrivateClassifier.load(folder)
    check_output_folder(folder, force=True)  # before the measurement is paid for
    if not isinstance(classifier.manifest.guarantee, Statement):
        raise DataError(
            str(folder),
            "an artifact with the statement of a run",
            "one without a guarantee",
            "Get the artifact again from its source.",
        )
    known = load_results(folder)
    config = Config.from_entries(known.settings, where=f"{folder}: settings")
    schema = None
    if config.data.schema is not None:  # a file, not a built-in set
        schema, path = classifier.schema, source or find_table(folder, config.data.source)
        config = replace(config, data=replace(config.data, source=path))
    progress("loading", 0, None)
    records = load_records(config, lambda done, total: progress("loading", done, total), schema)
    name = known.data.name  # the recorded name, wherever the file is now
    records = replace(records, dataset=replace(records.dataset, name=name))
    whole = _open_ledger(ledger_path(config.data.source, ledger, outside=folder), known, folder)
    records = assign_recorded(config, records, whole)
    send_notice(records, on_notice)
    plan = RunPlan.of(config, records)
    runs = [e.run for e in whole.entries() if e.request == plan.request and e.run is not None]
    if not runs:
        raise DataError(
            name,
            f"records as {folder} was trained on, with the same schema and settings",
            "another schema, or other settings",
            "Use the original schema: the guarantee does not cover figures of a test set that "
            "was split in another way.",
        )
    charged = Ledger(whole.path, runs[0])
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


def _open_ledger(path: Path, known: Results, folder: Path) -> Ledger:
    """Open the ledger that an artifact was charged to; reject any other."""
    if not os.path.lexists(path):
        raise DataError(
            str(path),
            f"the ledger that {folder} was charged to, by the name {known.ledger.name}",
            "no file at that path",
            "Name its path, with --ledger on the command line.",
        )
    ledger = Ledger(path)
    if known.ledger.head not in {entry.hash for entry in ledger.entries()}:
        raise DataError(
            str(path),
            f"the ledger that {folder} was charged to",
            "another, or an older copy of it",
            "Name the right one.",
        )
    return ledger
