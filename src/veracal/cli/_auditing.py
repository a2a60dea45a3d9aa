"""Audits on the command line: options, engines, progress and output files."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer

from veracal.accounting import MICRO
from veracal.artifact import PrivateClassifier, check_output_folder, write_folder
from veracal.calibration import METHODS, MethodSettings
from veracal.cli import _options as _fitting
from veracal.cli import _output as _show
from veracal.cli._artifacts import is_artifact, read_results
from veracal.cli._options import is_name
from veracal.cli._output import check_new
from veracal.data import Schema
from veracal.errors import DataError, MissingExtraError, VeracalError
from veracal.multiplicity import AuditSettings, RetrainEngine
from veracal.report import AuditResults, render_audit
from veracal.workflow import (
    AuditRun,
    Config,
    OnRuns,
    PrivacyConfig,
    RecalibrationConfig,
    audit_config,
    find_table,
    runs_path,
)

FILES = ("audit.html", "audit.json", "individuals.csv")
BACKENDS = ("loky", "ray", "dask")
_METHODS = ("temperature", "two-temperatures", "platt", "beta", "isotonic", "binning")
_BINS = 15  # bins of a binned calibration map
RELEASE_REFUSED = (
    "error: figures of an audit cannot be released, with noise or without. Changing one "
    "audited individual changes a mean over n individuals by 1/n, but changing one training "
    "record can change every individual's disagreement at once, so that 1/n is not the "
    "sensitivity, and the training would have to be charged once for every run. The "
    "arbitrariness computed from the released model alone can be published at no cost:  "
    "veracal predict MODEL DATA --arbitrariness"
)


def refuse_release() -> NoReturn:
    """Explain why figures are not released, and what can be."""
    _show.print_status(RELEASE_REFUSED)
    raise typer.Exit(1)


def make_settings(*, runs: str, **settings: Any) -> AuditSettings:
    """Create the settings of an audit, or raise a usage error."""
    number: Any = runs.strip().replace(",", "")
    if number != "auto":
        if not number.removeprefix("-").isdecimal():
            raise typer.BadParameter(
                f"expected auto, or a number of runs, got {runs!r}.", param_hint="--runs"
            )
        number = int(number)
    result: AuditSettings = _or_usage_error(partial(AuditSettings, number, **settings))
    return result


def make_run(
    plane: tuple[str, str] | None,
    recalibrate: str | None,
    workers: tuple[int | None, str | None, str | None],
    keep: Path | None,
    random_state: int | None,
) -> AuditRun:
    """Settings of the runs; workers are their number, backend and address."""
    jobs, backend, address = workers
    for option, value, known in (
        ("--recalibrate", recalibrate, _METHODS),
        ("--backend", backend, BACKENDS),
    ):
        if value is not None and value not in known:
            raise typer.BadParameter(
                f"expected one of {', '.join(known)}, got {value!r}.", param_hint=option
            )
    fitter = None
    if recalibrate is not None:
        public = METHODS[recalibrate].public
        fitter = None if public is None else public(MethodSettings(MICRO, bins=_BINS))
    return AuditRun(plane, fitter, jobs, backend, address, keep, random_state)


@dataclass(frozen=True, eq=False)
class AuditedTraining:
    """The training to audit.

    Attributes
    ----------
    config : Config
    epsilons : tuple of float
    against : PrivateClassifier or None
        The deployed model.
    schema : Schema or None
        Schema of the deployed model, unless a schema file is given.
    """

    config: Config
    epsilons: tuple[float, ...]
    against: PrivateClassifier | None = None
    schema: Schema | None = None

    @classmethod
    def from_options(
        cls,
        data: str | None,
        options: Mapping[str, Any],
        epsilons: Sequence[float],
        config: Path | None,
        against: Path | None,
    ) -> "AuditedTraining":
        """Combine the settings of a file or of a saved model with the options."""
        for epsilon in epsilons:
            _or_usage_error(partial(PrivacyConfig, epsilon), "--epsilon")
        budgets = tuple(dict.fromkeys(map(float, epsilons)))
        first = {**options, "--epsilon": next(iter(budgets), None)}
        if against is not None:
            if config is not None:
                raise typer.BadParameter(
                    "has its own settings; omit --config.", param_hint="--against"
                )
            return cls._against(against, data, first, budgets)
        if data is None and config is None:
            raise typer.BadParameter(
                "give a file, a built-in set, or --predictions.", param_hint="DATA"
            )
        chosen = _fitting.build_config(data, first, config)
        if config is None:
            chosen = replace(chosen, recalibration=RecalibrationConfig("none"))
        return cls(chosen, budgets or (chosen.privacy.epsilon,))

    @classmethod
    def _against(
        cls,
        folder: Path,
        data: str | None,
        options: Mapping[str, Any],
        epsilons: tuple[float, ...],
    ) -> "AuditedTraining":
        """Settings of a saved model, whose table may have moved."""
        classifier = PrivateClassifier.load(folder)
        results = read_results(folder)
        chosen = Config.from_entries(results.settings, where=f"{folder}: settings")
        schema = None
        if data is None:
            data = chosen.data.source
            data = data if chosen.data.schema is None else find_table(folder, data)
        own = replace(chosen.data, source=data, schema=None)
        if not is_name(data) and options["--schema"] is None:
            schema = classifier.schema
        chosen = _fitting.override(replace(chosen, data=own), options)
        return cls(chosen, epsilons or (chosen.privacy.epsilon,), classifier, schema)


def run_audit(
    training: AuditedTraining, target: str | None, settings: AuditSettings, run: AuditRun
) -> AuditResults:
    """Run the audit, with a progress bar for each budget."""
    if training.schema is None:
        _fitting.check_data(training.config, target)
    with _report_interruption(run, training.epsilons), progress_bars() as (load, on_progress):
        results = audit_config(
            training.config,
            training.epsilons,
            settings,
            run,
            against=training.against,
            schema=training.schema,
            on_load=load,
            on_progress=on_progress,
        )
    engine = results.audits[0].engine_settings["engine"]
    if engine != RetrainEngine.name and (run.jobs, run.backend, run.address) != (None,) * 3:
        _show.print_status(
            f"No workers needed: {engine} makes many runs at a time in one process."
        )
    return results


@contextmanager
def _report_interruption(run: AuditRun, epsilons: Sequence[float]) -> Iterator[None]:
    """Turn invalid settings into usage errors, and explain what an interrupted audit kept."""
    try:
        yield
    except KeyboardInterrupt:
        places = [runs_path(run.keep, e, several=len(epsilons) > 1) for e in epsilons]
        kept = [str(place) for place in places if place is not None and place.exists()]
        message = (
            f"The counted runs are in {', '.join(kept)}: the same command resumes "
            "from there, and counts none twice."
            if kept
            else "No runs were saved; with --keep FILE an interrupted audit can be resumed."
            if run.keep is None
            else "No run was saved yet: the same command starts from the beginning."
        )
        _show.print_status(f"Stopped; no partial files are left. {message}")
        raise typer.Exit(1) from None
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def progress_bars() -> "Iterator[tuple[Callable[[int, int | None], None], OnRuns]]":
    """Show progress and remaining time on stderr, if it is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description:14}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    tasks: dict[str, TaskID] = {}

    def update(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=None)
        bars.update(tasks[name], completed=done, total=total)

    with bars:
        yield (
            lambda done, total: update("loading", done, total),
            lambda epsilon, done, total: update(f"epsilon {epsilon:.6g}", done, total),
        )


def check_output(out: Path, *, force: bool) -> None:
    """Reject an output folder before the work starts."""
    check_new(out, force=force, what="folder")
    if is_artifact(out):
        raise typer.BadParameter(
            f"{out} is a model, which may be published. Choose another folder.",
            param_hint="--out",
        )
    check_output_folder(out, force=force, other_files=FILES)


def write_files(results: AuditResults, out: Path, *, force: bool) -> list[str]:
    """Write page, JSON and CSV, readable only by their owner; return their names.

    Without the ``report`` extra there is no page, and a message says why.
    """
    files = {"audit.json": results.to_bytes(), "individuals.csv": results.individuals_csv()}
    try:
        files["audit.html"] = render_audit(results).encode()
    except MissingExtraError as error:
        _show.print_status(f"Without audit.html: {error}")
    write_folder(out, files, force=force, shared=False)
    return sorted(files)


def _or_usage_error(make: Callable[[], Any], option: str | None = None) -> Any:
    """Call a function, and turn its ValueError into a usage error."""
    try:
        return make()
    except DataError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
