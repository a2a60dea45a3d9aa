"""An audit on the command line: what is run, how, and where it is written."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import typer

from veracal.artifact import PrivateClassifier, check_place, write_folder
from veracal.cli import _methods
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
    keep_place,
)

FILES = ("audit.html", "audit.json", "people.csv")
BACKENDS = ("loky", "ray", "dask")
_MAPS = ("temperature", "two-temperatures", "platt", "beta", "isotonic", "binning")
_BINS = 15  # of a map by bins
REFUSED = (
    "error: figures of an audit are not released, with noise or without. Changing one audited "
    "person moves a mean over n people by 1/n, but changing one training record can move "
    "everybody's disagreement at once, so that 1/n is not the sensitivity, and the training "
    "would have to be charged once for every run. What can be published at no cost is the "
    "arbitrariness that the released model tells by itself:  veracal predict MODEL DATA "
    "--arbitrariness"
)


def refuse_release() -> NoReturn:
    """Say why figures do not leave, and what can."""
    _show.status(REFUSED)
    raise typer.Exit(1)


def question(*, runs: str, **asked: Any) -> AuditSettings:
    """What is asked, or which option cannot be meant."""
    number: Any = runs.strip().replace(",", "")
    if number != "auto":
        if not number.removeprefix("-").isdecimal():
            raise typer.BadParameter(
                f"expected auto, or a number of runs, got {runs!r}.", param_hint="--runs"
            )
        number = int(number)
    found: AuditSettings = _meant(partial(AuditSettings, number, **asked))
    return found


def carried_out(
    plane: tuple[str, str] | None,
    recalibrate: str | None,
    workers: tuple[int | None, str | None, str | None],
    keep: Path | None,
    random_state: int | None,
) -> AuditRun:
    """How the runs are made; workers are their number, kind and address."""
    jobs, backend, address = workers
    for option, value, known in (
        ("--recalibrate", recalibrate, _MAPS),
        ("--backend", backend, BACKENDS),
    ):
        if value is not None and value not in known:
            raise typer.BadParameter(
                f"expected one of {', '.join(known)}, got {value!r}.", param_hint=option
            )
    fitter = None
    if recalibrate is not None:
        fitter = _methods.open_fitter(recalibrate, form="vector", bins=_BINS)
    return AuditRun(plane, fitter, jobs, backend, address, keep, random_state)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The training that is audited.

    Attributes
    ----------
    config : Config
    epsilons : tuple of float
    against : PrivateClassifier or None
        The model in use.
    schema : Schema or None
        Of the model in use, where no file of one is named.
    """

    config: Config
    epsilons: tuple[float, ...]
    against: PrivateClassifier | None = None
    schema: Schema | None = None

    @classmethod
    def of(
        cls,
        data: str | None,
        typed: Mapping[str, Any],
        epsilons: Sequence[float],
        config: Path | None,
        against: Path | None,
    ) -> "Chosen":
        """Every choice: those of a file or of a saved model, and over them what was typed."""
        for epsilon in epsilons:
            _meant(partial(PrivacyConfig, epsilon), "--epsilon")
        unlike = tuple(dict.fromkeys(map(float, epsilons)))
        first = {**typed, "--epsilon": next(iter(unlike), None)}
        if against is not None:
            if config is not None:
                raise typer.BadParameter(
                    "brings its own settings; leave out --config.", param_hint="--against"
                )
            return cls._against(against, data, first, unlike)
        if data is None and config is None:
            raise typer.BadParameter(
                "name a file or a built-in set, or runs with --predictions.", param_hint="DATA"
            )
        chosen = _fitting.build_config(data, first, config)
        if config is None:
            chosen = replace(chosen, recalibration=RecalibrationConfig("none"))
        return cls(chosen, unlike or (chosen.privacy.epsilon,))

    @classmethod
    def _against(
        cls,
        folder: Path,
        data: str | None,
        typed: Mapping[str, Any],
        epsilons: tuple[float, ...],
    ) -> "Chosen":
        """Choices of a saved model, whose table may be elsewhere now."""
        classifier = PrivateClassifier.load(folder)
        results = read_results(folder)
        chosen = Config.from_entries(results.settings, where=f"{folder}: settings")
        schema = None
        if data is None:
            data = chosen.data.source
            data = data if chosen.data.schema is None else find_table(folder, data)
        own = replace(chosen.data, source=data, schema=None)
        if not is_name(data) and typed["--schema"] is None:
            schema = classifier.schema
        chosen = _fitting.override(replace(chosen, data=own), typed)
        return cls(chosen, epsilons or (chosen.privacy.epsilon,), classifier, schema)


def audited(
    chosen: Chosen, target: str | None, asked: AuditSettings, how: AuditRun
) -> AuditResults:
    """Audit, with a bar for each budget."""
    if chosen.schema is None:
        _fitting.check_data(chosen.config, target)
    with _guarded(how, chosen.epsilons), run_bars() as (load, tell):
        found = audit_config(
            chosen.config,
            chosen.epsilons,
            asked,
            how,
            against=chosen.against,
            schema=chosen.schema,
            on_load=load,
            on_progress=tell,
        )
    engine = found.audits[0].about["engine"]
    if engine != RetrainEngine.name and (how.jobs, how.backend, how.address) != (None,) * 3:
        _show.status(f"Without workers: by {engine} one process makes many runs at a time.")
    return found


@contextmanager
def _guarded(how: AuditRun, epsilons: Sequence[float]) -> Iterator[None]:
    """What cannot be meant is a matter of usage; what was counted is kept, and said to be."""
    try:
        yield
    except KeyboardInterrupt:
        places = [keep_place(how.keep, e, several=len(epsilons) > 1) for e in epsilons]
        kept = [str(place) for place in places if place is not None and place.exists()]
        said = (
            f"The runs that were counted are in {', '.join(kept)}: the same command goes on "
            "from there, and counts none twice."
            if kept
            else "Nothing was kept; with --keep FILE an audit goes on where it broke off."
            if how.keep is None
            else "No run was kept yet: the same command begins anew."
        )
        _show.status(f"Stopped; nothing half-written is left. {said}")
        raise typer.Exit(1) from None
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def run_bars() -> "Iterator[tuple[Callable[[int, int | None], None], OnRuns]]":
    """Show runs on stderr with the time that is left, if somebody is watching."""
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


def check_out(out: Path, *, force: bool) -> None:
    """Refuse a place to write to, before the work and not after it."""
    check_new(out, force=force, what="folder")
    if is_artifact(out):
        raise typer.BadParameter(
            f"{out} is a model, which is handed on. Name another folder.", param_hint="--out"
        )
    check_place(out, force=force, more=FILES)


def write(found: AuditResults, out: Path, *, force: bool) -> list[str]:
    """Write page, JSON and people, for the owner's eyes; their names.

    Without the extra that draws there is no page, and the reason is told.
    """
    files = {"audit.json": found.to_bytes(), "people.csv": found.people()}
    try:
        files["audit.html"] = render_audit(found).encode()
    except MissingExtraError as error:
        _show.status(f"Without audit.html: {error}")
    write_folder(out, files, force=force, shared=False)
    return sorted(files)


def _meant(make: Callable[[], Any], option: str | None = None) -> Any:
    """Make something of what was typed, or say that it cannot be meant."""
    try:
        return make()
    except DataError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
