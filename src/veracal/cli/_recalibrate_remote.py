"""Recalibration by remote institutions: plan, progress of each round, and result."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from veracal.accounting import format_down, format_up
from veracal.artifact import RecalibrationRecord, SourceCost, check_output_folder, encode
from veracal.calibration import (
    BINS,
    Identity,
    plan_recalibration,
    run_recalibration,
)
from veracal.cli import _output
from veracal.cli._artifacts import is_artifact
from veracal.cli._recalibrate_local import (
    print_map,
    print_sides,
    recalibration_to_json,
    write_map,
)
from veracal.data import check_output_path
from veracal.errors import DataError
from veracal.federation import (
    ConfiguredTransport,
    PrivateKey,
    RemotePool,
    RequestHistory,
    RoundEvent,
    SourceList,
    SourcePlan,
    check_plan,
    model_hash,
    plan_sources,
    read_source_list,
    recalibration_record,
)
from veracal.ledger import canonical, digest
from veracal.workflow import write_recalibrated

if TYPE_CHECKING:
    from rich.console import Group

    from veracal.cli.recalibrate import FitOptions


ON_REMOTE = "the institutions' records"


@dataclass(frozen=True)
class RemoteOptions:
    """The remote institutions and how long to wait, from the options."""

    listing: Path
    min_sources: int | None
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
        path = self.artifact
        if not is_artifact(self.model):
            if self.out is not None:
                raise typer.BadParameter(
                    f"{self.model} is not an artifact. Write the map alone, with --map-out.",
                    param_hint="--out",
                )
        elif path is not None:
            if self.out is not None:
                _output.check_new(path, force=self.force, what="folder")
            check_output_folder(path, force=self.force)
        elif self.map_out is None:
            raise typer.BadParameter(
                "Pass an output: --out FOLDER for an artifact with the new map, --force to "
                "write it into MODEL itself, or --map-out FILE for the map alone.",
                param_hint="--out",
            )
        if self.map_out is not None:
            _output.check_new(self.map_out, force=self.force, option="--map-out")
            check_output_path(self.map_out, force=self.force)

    def write(self, record: RecalibrationRecord) -> None:
        """Write the artifact and the map, and report it."""
        if self.artifact is not None:
            write_recalibrated(self.model, record, self.artifact, force=self.force)
            unchanged = " Its map is unchanged: the guard rejected the new one."
            note = unchanged if record.map == Identity() else ""
            _output.print_status(f"Wrote {self.artifact}.{note}")
        if self.map_out is not None:
            write_map(record.map, self.map_out, force=self.force)
            _output.print_status(f"Wrote {self.map_out}.")
        if not is_artifact(self.model):
            _output.print_status(
                f"{self.model} is not an artifact of Veracal and was not changed. Apply the "
                "map to its scores where you use them."
            )


def recalibrate_remote(
    outputs: Outputs,
    options: "FitOptions",
    remote: RemoteOptions,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Recalibrate by the institutions of a list; write and print the result."""
    listing = _read_listing(remote, outputs.model)
    outputs.check()
    key = PrivateKey.read(listing.key)
    with (
        RequestHistory(listing.history, key.public) as history,
        ConfiguredTransport(listing) as transport,
    ):
        with _output.usage_errors():
            pool = RemotePool(
                listing.terms,
                key,
                transport,
                history,
                min_sources=remote.min_sources or listing.min_sources,
                run=_run_id(options, remote.run),
                timeout=listing.timeout,
            )
            # The default number of bins counts as undeclared, because the sources declare it.
            settings = options.fitter_settings()
            settings["bins"] = None if options.bins == BINS else options.bins
            plan = plan_recalibration(pool, options.method, budget=options.budget, **settings)
        source_plans = plan_sources(pool, plan)
        _print_plan(source_plans, plan.method)
        check_plan(pool, plan, source_plans)
        rounds = max(one.answers for one in source_plans)
        try:
            with _show_progress([one.name for one in source_plans], rounds) as watch:
                pool.watch = watch
                result = run_recalibration(pool, plan, at_sources=remote.at_sources)
        except KeyboardInterrupt:
            _output.print_status(
                "Stopped. The answers so far are kept: the same command continues, and nothing "
                "is charged twice."
            )
            raise
        record = recalibration_record(pool, result, listing.name)
    outputs.write(record)
    if json:
        artifact, map_out = outputs.artifact, outputs.map_out
        _output.print_json(
            {
                "model": str(outputs.model),
                "study": listing.name,
                **recalibration_to_json(result),
                "figures_on": ON_REMOTE,
                "plan": [asdict(one) for one in source_plans],
                "institutions": encode(record.sources),
                "out": None if artifact is None else str(artifact),
                "map_out": None if map_out is None else str(map_out),
            }
        )
        return
    budget = ("budget", f"at each institution {result.budget.text()}")
    print_map(outputs.model.name, result, [budget])
    _print_costs(record.sources)
    note = f"Released with noise, on {ON_REMOTE}: without a map, and with this one."
    print_sides(result, None, note)
    text = record.text()
    typer.echo("\n" + _output.escape_text(text if whole else text.split("\n\n")[0], keep="\n"))


def _read_listing(remote: RemoteOptions, model: Path) -> SourceList:
    """The list of institutions that scored their records with a model, and the waiting time."""
    listing = read_source_list(remote.listing)
    with _output.usage_errors("--wait"):
        listing = listing.with_wait(remote.wait, remote.given_up)
    min_sources = remote.min_sources or listing.min_sources
    if min_sources is not None and not 1 <= min_sources <= len(listing.terms):
        raise typer.BadParameter(
            f"Expected at most {len(listing.terms)} institutions, got {min_sources}.",
            param_hint="--min-sources",
        )
    actual = model_hash(model)
    others = [one.name for one in listing.terms if one.model != actual]
    if others:
        raise DataError(
            str(model),
            "the model with which all institutions have scored their records",
            f"another (hash {actual[:12]}…) than that of {_output.format_list(others)}",
            "Pass that model, or let them enroll again for this one.",
        )
    return listing


def _run_id(options: "FitOptions", name: str) -> str:
    """Id of the run, which the same command continues."""
    budget, range_ = options.budget, options.temperatures
    assert budget is not None
    settings = {
        "name": name,
        "method": options.method,
        "form": options.form,
        "bins": options.bins,
        "size": options.size,
        "temperatures": None if range_ is None else [*range_],
        "budget": [budget.map, budget.guard, budget.measure, options.delta],
    }
    return digest(canonical(settings))


def _print_plan(plan: Sequence[SourcePlan], method: str) -> None:
    """Print the queries and the cost of every institution on stderr, before the first query."""
    from rich.console import Console

    rows = [
        (
            one.name,
            f"{one.answers}" + (f" ({one.known} known)" if one.known else ""),
            _format_cost(one.epsilon, one.delta),
            format_down(one.left, 6),
            "yes" if one.why is None else f"no: {one.why}",
        )
        for one in plan
    ]
    heads = ("institution", "answers", "total cost", "left before", "can pay")
    table = _output.table(f"The plan ({method})", heads, rows, right=heads[1:4])
    width = None if sys.stderr.isatty() else 100
    Console(stderr=True, width=width, highlight=False).print(table)


class ProgressBoard:
    """Progress of every institution during the rounds, at most ``rounds`` of them."""

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
        rows = []
        for name, last, answers in zip(self._names, self._last, self._answers, strict=True):
            cells = ("", "", "not queried yet")
            if last is not None:
                why = f": {last.why}" if last.why else ""
                cells = (f"{last.round}", last.query, f"{last.status}{why}")
            rows.append((name, *cells, f"{answers} of {self._rounds}"))
        heads = ("institution", "round", "query", "", "answers")
        return _output.table("Progress", heads, rows, right=("round", "answers"))


@contextmanager
def _show_progress(names: Sequence[str], rounds: int) -> Iterator[Callable[[RoundEvent], None]]:
    """Show the progress on stderr, as a live table or as lines."""
    board = ProgressBoard(names, rounds)
    if not sys.stderr.isatty():
        yield lambda event: _output.print_status(board.update(event))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(board.table(), console=Console(stderr=True), transient=True) as live:

        def watch(event: RoundEvent) -> None:
            board.update(event)
            live.update(board.table())

        yield watch


def _print_costs(costs: Sequence[SourceCost]) -> None:
    """Print the cost of every institution."""
    rows = [
        (
            one.name,
            one.why or "answered every query",
            _format_cost(one.epsilon, one.delta),
            one.unit
            if one.max_contributions == 1
            else f"{one.unit} (up to {one.max_contributions})",
            "" if one.head is None else f"{one.head.index}",
        )
        for one in costs
    ]
    heads = ("institution", "", "charged", "for each", "last signed entry")
    note = "Charged in the institution's own ledger, whether or not its answers were used."
    _output.print_table("institutions", heads, rows, right=("charged", heads[-1]), note=note)


def _format_cost(epsilon: float, delta: float) -> str:
    """Epsilon and, if nonzero, delta as text."""
    at = f", delta {format_up(delta)}" if delta else ""
    return f"{format_up(epsilon, 6)}{at}"
