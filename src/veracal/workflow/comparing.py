"""Several configurations of a model side by side, within one budget."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from veracal.accounting import Budget
from veracal.artifact import check_output_folder
from veracal.data import translate_os_errors
from veracal.ledger import Ledger
from veracal.mechanisms import StepProgress
from veracal.workflow.charging import (
    DataAccount,
    OnNotice,
    check_before_loading,
    check_known_ledger,
    ledger_path,
)
from veracal.workflow.config import (
    Config,
    Configuration,
    PrivacyConfig,
    check_configurations,
    is_unfinished,
)
from veracal.workflow.planning import RunPlan
from veracal.workflow.records import load_records, run_budget
from veracal.workflow.results import COVERS, add_provenance, build_results, result_files
from veracal.workflow.running import OnProgress, RunResult, ignore_progress, report_steps


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
    progress = on_progress or ignore_progress
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
    progress("planning", 0, None)
    check_before_loading(
        config,
        path,
        lambda budget: [share_config(config, each, n, budget.delta) for each in configurations],
    )
    progress("loading", 0, None)
    records = load_records(config, lambda done, total: progress("loading", done, total))
    account = DataAccount(config, records, path, on_notice)
    budget = run_budget(config, records)
    callbacks = [_prefix_progress(progress, each) for each in configurations]
    plans = [
        RunPlan.of(
            share_config(config, each, n, budget.delta),
            account.records,
            StepProgress(report_steps(callback)),
        )
        for each, callback in zip(configurations, callbacks, strict=True)
    ]
    progress("charging", 0, None)
    charged, plans = account.charge(plans)
    with translate_os_errors(folder):
        folder.mkdir(exist_ok=True)
    return tuple(
        _run_plan(plan, charged, folder / each.folder, n, budget, callback)
        for each, plan, callback in zip(configurations, plans, callbacks, strict=True)
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


def _prefix_progress(progress: OnProgress, configuration: Configuration) -> OnProgress:
    """Progress that names the configuration."""
    return lambda step, done, total: progress(f"{configuration}: {step}", done, total)


def _run_plan(
    plan: RunPlan, ledger: Ledger, folder: Path, n: int, budget: Budget, progress: OnProgress
) -> RunResult:
    """Train, measure and write the model of one configuration."""
    progress("training", 0, None)
    classifier = plan.train_model(ledger)
    measured = []
    for when in plan.config.sides:
        progress(f"measuring {when}", 0, None)
        measured.append(plan.measure(classifier, when, ledger))
    covers = (*COVERS, f"the other models of this comparison of {n}, and their figures")
    results = build_results(plan, classifier, ledger, tuple(measured), covers, budget=budget)
    classifier = add_provenance(classifier, results)
    classifier.save(folder, other_files=result_files(results), force=True)
    return RunResult(folder, classifier, results, ledger, notice=plan.records.notice)
