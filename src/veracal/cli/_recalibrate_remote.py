"""Recalibration by remote institutions: plan, progress of each round, and result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.accounting import format_down, format_up
from veracal.artifact import check_output_folder as check_folder
from veracal.calibration import (
    BINS,
    Identity,
    Recalibration,
    RecalibrationPlan,
    plan_recalibration,
    run_recalibration,
)
from veracal.cli import _output as _show
from veracal.cli._artifacts import is_artifact
from veracal.cli._figures import estimate_to_json
from veracal.cli._measurement import figures_of
from veracal.cli._methods import save_map
from veracal.cli._output import check_new
from veracal.cli._recalibrate_local import sides_table
from veracal.cli._recalibrate_sources import map_rows
from veracal.data import check_output_path
from veracal.errors import DataError, VeracalError
from veracal.federation import (
    ConfiguredTransport,
    PrivateKey,
    RemotePool,
    RequestHistory,
    RoundEvent,
    SourceCost,
    SourceList,
    SourcePlan,
    check_plan,
    model_hash,
    plan_sources,
    read_source_list,
    recalibration_record,
    source_costs,
    statement_text,
)
from veracal.ledger import canonical, digest
from veracal.workflow import write_recalibrated

if TYPE_CHECKING:
    from rich.console import Group

    from veracal.cli.recalibrate import FitOptions


_STOPPED = (
    "Stopped. The answers so far are kept: the same command continues, and nothing is "
    "charged twice."
)


@dataclass(frozen=True)
class RemoteOptions:
    """The remote institutions and how long to wait, from the options."""

    listing: Path
    least: int | None
    at_sources: int
    wait: float | None
    given_up: tuple[str, ...]
    run: str


@dataclass(frozen=True)
class Outputs:
    """The model and the output files, from the options."""

    model: Path
    out: Path | None
    map_out: Path | None
    force: bool

    @property
    def artifact(self) -> Path | None:
        """Path of the artifact to write: a new one or the model itself."""
        if not is_artifact(self.model):
            return None
        return self.model if self.out is None and self.force else self.out

    def check(self) -> None:
        """Reject output paths that cannot be written, before any query."""
        if is_artifact(self.model):
            self._check_artifact()
        elif self.out is not None:
            raise typer.BadParameter(
                f"{self.model} is not an artifact. Write the map alone, with --map-out.",
                param_hint="--out",
            )
        if self.map_out is not None:
            check_new(self.map_out, force=self.force, option="--map-out")
            check_output_path(self.map_out, force=self.force)

    def _check_artifact(self) -> None:
        """Check the path of the artifact; without one the map must be written."""
        path = self.artifact
        if path is None and self.map_out is None:
            raise typer.BadParameter(
                "pass an output: --out FOLDER for an artifact with the new map, --force to "
                "write it into MODEL itself, or --map-out FILE for the map alone.",
                param_hint="--out",
            )
        if path is not None:
            if self.out is not None:
                check_new(path, force=self.force, what="folder")
            check_folder(path, force=self.force)

    def write(self, result: Recalibration, entry: dict[str, Any]) -> None:
        """Write the artifact and the map, and report it."""
        if self.artifact is not None:
            write_recalibrated(self.model, result.map, entry, self.artifact, force=self.force)
            unchanged = " Its map is unchanged: the guard rejected the new one."
            note = unchanged if result.map == Identity() else ""
            _show.print_status(f"Wrote {self.artifact}.{note}")
        if self.map_out is not None:
            save_map(result.map, self.map_out, force=self.force)
            _show.print_status(f"Wrote {self.map_out}.")
        if not is_artifact(self.model):
            _show.print_status(
                f"{self.model} is not an artifact of Veracal and was not changed. Apply the "
                "map to its scores where you use them."
            )

    def to_json(self) -> dict[str, str | None]:
        """Paths of the outputs as JSON values."""
        files = {"out": self.artifact, "map_out": self.map_out}
        return {name: None if path is None else str(path) for name, path in files.items()}


def recalibrate_remote(
    outputs: Outputs,
    options: "FitOptions",
    remote: RemoteOptions,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Recalibrate by the institutions of a list; write and print the result."""
    listing = _listing(remote)
    _check_model(outputs.model, listing)
    outputs.check()
    key = PrivateKey.read(listing.key)
    with (
        RequestHistory(listing.history, key.public) as history,
        ConfiguredTransport(listing) as transport,
    ):
        try:
            pool = RemotePool(
                listing.terms,
                key,
                transport,
                history,
                min_sources=remote.least or listing.min_sources,
                run=_run(options, remote.run),
                timeout=listing.timeout,
            )
            # The default number of bins counts as undeclared, because the sources declare it.
            settings = options.fitter_settings()
            settings["bins"] = None if options.bins == BINS else options.bins
            plan = plan_recalibration(pool, options.method, budget=options.budget, **settings)
        except VeracalError:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        source_plans = plan_sources(pool, plan)
        show_plan(source_plans, plan.method)
        check_plan(pool, plan, source_plans)
        result = _run_plan(pool, plan, source_plans, remote.at_sources)
        entry = recalibration_record(pool, result, listing.name)
        costs = source_costs(pool, result)
    outputs.write(result, entry)
    if json:
        values = result.to_json()
        values["temperatures"] = {
            n: estimate_to_json(one) for n, one in result.temperatures.items()
        }
        _show.print_json(
            {
                "model": str(outputs.model),
                "study": listing.name,
                **values,
                "figures_on": ON_REMOTE,
                "plan": [asdict(one) for one in source_plans],
                "institutions": [asdict(one) for one in costs],
                **outputs.to_json(),
            }
        )
        return
    show_remote(outputs.model.name, result, costs)
    text = statement_text(result, costs)
    typer.echo("\n" + _show.escape_text(text if whole else text.split("\n\n")[0], keep="\n"))


def _listing(remote: RemoteOptions) -> SourceList:
    """The list of institutions with the waiting time of the options."""
    listing = read_source_list(remote.listing)
    try:
        listing = listing.with_wait(remote.wait, remote.given_up)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wait") from error
    least = remote.least or listing.min_sources
    if least is not None and not 1 <= least <= len(listing.terms):
        raise typer.BadParameter(
            f"expected at most {len(listing.terms)}, the number of institutions, got {least}.",
            param_hint="--least",
        )
    return listing


def _check_model(model: Path, listing: SourceList) -> None:
    """Reject institutions that scored their records with another model."""
    actual = model_hash(model)
    others = [one.name for one in listing.terms if one.model != actual]
    if others:
        raise DataError(
            str(model),
            "the model with which all institutions have scored their records",
            f"another (hash {actual[:12]}…) than that of {_show.format_list(others)}",
            "Pass that model, or let them enroll again for this one.",
        )


def _run(options: "FitOptions", name: str) -> str:
    """Id of the run, which the same command continues."""
    budget = options.budget
    assert budget is not None
    return digest(
        canonical(
            {
                "name": name,
                "method": options.method,
                "form": options.form,
                "bins": options.bins,
                "size": options.size,
                "temperatures": None
                if options.temperatures is None
                else [*options.temperatures],
                "budget": [budget.map, budget.guard, budget.measure, options.delta],
            }
        )
    )


def _run_plan(
    pool: RemotePool,
    plan: RecalibrationPlan,
    source_plans: tuple[SourcePlan, ...],
    at_sources: int,
) -> Recalibration:
    """Run the plan and show the progress of every institution."""
    rounds = max(one.answers for one in source_plans)
    try:
        with watching([one.name for one in source_plans], rounds) as watch:
            pool.watch = watch
            return run_recalibration(pool, plan, at_sources=at_sources)
    except KeyboardInterrupt:
        _show.print_status(_STOPPED)
        raise


ON_REMOTE = "the institutions' records"
Watch = Callable[[RoundEvent], None]


def show_plan(plan: Sequence[SourcePlan], method: str) -> None:
    """Print the queries and the cost of every institution, before the first query."""
    from rich.console import Console

    rows = [
        (
            one.name,
            f"{one.answers}" + (f" ({one.known} known)" if one.known else ""),
            _cost(one.epsilon, one.delta),
            format_down(one.left, 6),
            "yes" if one.why is None else f"no: {one.why}",
        )
        for one in plan
    ]
    heads = ("institution", "answers", "total cost", "left before", "can pay")
    table = _show.table(f"The plan ({method})", heads, rows, right=heads[1:4])
    width = None if sys.stderr.isatty() else 100
    Console(stderr=True, width=width, highlight=False).print(table)


class ProgressBoard:
    """Progress of every institution during the rounds.

    Parameters
    ----------
    names : sequence of str
    rounds : int
        Largest number of rounds.
    """

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._names, self._rounds = list(names), rounds
        self._last: list[RoundEvent | None] = [None] * len(self._names)
        self._answers = [0] * len(self._names)

    def update(self, event: RoundEvent) -> str:
        """Record an event and return it as a line."""
        self._last[event.source] = event
        if event.status == "answered":  # also in all earlier rounds
            self._answers[event.source] = event.round
        who, why = self._names[event.source], f": {event.why}" if event.why else ""
        where = f"round {event.round} of {max(self._rounds, event.round)}, {event.query}"
        return f"{where}: {who} {event.status}{why}"

    def table(self) -> "Group":
        """Table of all institutions."""
        rows = [
            (name, *self._row(last), f"{answers} of {self._rounds}")
            for name, last, answers in zip(self._names, self._last, self._answers, strict=True)
        ]
        heads = ("institution", "round", "query", "", "answers")
        return _show.table("Progress", heads, rows, right=("round", "answers"))

    def _row(self, last: RoundEvent | None) -> tuple[str, str, str]:
        """Round, query and state of an institution."""
        if last is None:
            return "", "", "not queried yet"
        why = f": {last.why}" if last.why else ""
        return f"{last.round}", last.query, f"{last.status}{why}"


@contextmanager
def watching(names: Sequence[str], rounds: int) -> Iterator[Watch]:
    """Show the progress on stderr, as a live table or as lines."""
    board = ProgressBoard(names, rounds)
    if not sys.stderr.isatty():
        yield lambda event: _show.print_status(board.update(event))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(board.table(), console=Console(stderr=True), transient=True) as live:

        def watch(event: RoundEvent) -> None:
            board.update(event)
            live.update(board.table())

        yield watch


def show_remote(title: str, result: Recalibration, costs: Sequence[SourceCost]) -> None:
    """Print the map, the cost of every institution, and figures before and after."""
    console = _show.console()
    console.print(_show.table(f"{title}: the map", ("", ""), list(map_rows(result))))
    rows = [
        (
            one.name,
            one.why or "answered every query",
            _cost(one.epsilon, one.delta),
            one.unit if one.at_most == 1 else f"{one.unit} (up to {one.at_most})",
            "" if one.head is None else f"{one.head['index']}",
        )
        for one in costs
    ]
    heads = ("institution", "", "charged", "for each", "last signed entry")
    note = "Charged in the institution's own ledger, whether or not its answers were used."
    console.print(
        _show.table("institutions", heads, rows, right=("charged", heads[-1]), note=note)
    )
    if result.before is not None and result.after is not None:
        sides = figures_of(result.before), figures_of(result.after)
        note = f"Released with noise, on {ON_REMOTE}: without a map, and with this one."
        console.print(sides_table("before and after", *sides, note=note))


def _cost(epsilon: float, delta: float) -> str:
    """Epsilon and, if nonzero, delta as text."""
    at = f", delta {format_up(delta)}" if delta else ""
    return f"{format_up(epsilon, 6)}{at}"
