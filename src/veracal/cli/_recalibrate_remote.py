"""A map fitted by institutions elsewhere, each behind its own budget.

What a command shows of institutions elsewhere: the plan, each round, the result.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.accounting import rounded_down, rounded_up
from veracal.artifact import check_place as check_folder
from veracal.calibration import (
    BINS,
    Identity,
    Recalibration,
    RecalibrationSteps,
    choose_method,
    plan_steps,
)
from veracal.calibration import BudgetDivision as Division
from veracal.calibration import profile_source as asked_of
from veracal.cli import _output as _show
from veracal.cli._artifacts import is_artifact
from veracal.cli._figures import plain
from veracal.cli._measurement import figures_of
from veracal.cli._methods import save_map
from veracal.cli._output import check_new
from veracal.cli._recalibrate_local import LocalBudget, sides_table
from veracal.cli._recalibrate_sources import map_lines
from veracal.data import check_place
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
    charged,
    check_plan,
    model_hash,
    plan_for,
    read_listing,
    record,
    run,
    statement_text,
)
from veracal.ledger import canonical, digest
from veracal.workflow import write_recalibrated

if TYPE_CHECKING:
    from rich.console import Group

    from veracal.cli.recalibrate import Fit


_STOPPED = (
    "Stopped. What was answered is kept: the same command goes on from here, and nothing is "
    "asked or paid twice."
)


@dataclass(frozen=True)
class RemoteOptions:
    """Who is asked and how patiently, as it was typed."""

    listing: Path
    least: int | None
    at_sources: int
    wait: float | None
    given_up: tuple[str, ...]
    run: str


@dataclass(frozen=True)
class Outcome:
    """What is written where, as it was typed."""

    model: Path
    out: Path | None
    map_out: Path | None
    force: bool

    @property
    def artifact(self) -> Path | None:
        """The artifact that is written: another, or the model itself."""
        if not is_artifact(self.model):
            return None
        return self.model if self.out is None and self.force else self.out

    def check(self) -> None:
        """Refuse places that could not be written, before anybody is asked."""
        if is_artifact(self.model):
            self._check_artifact()
        elif self.out is not None:
            raise typer.BadParameter(
                f"{self.model} is no artifact that a map could be written into. Write the map "
                "alone, with --map-out.",
                param_hint="--out",
            )
        if self.map_out is not None:
            check_new(self.map_out, force=self.force, option="--map-out")
            check_place(self.map_out, force=self.force)

    def _check_artifact(self) -> None:
        """A place for the artifact, or at least for the map."""
        place = self.artifact
        if place is None and self.map_out is None:
            raise typer.BadParameter(
                "say where the result goes: --out FOLDER for an artifact with the new map, "
                "--force to write it into MODEL itself, or --map-out FILE for the map alone.",
                param_hint="--out",
            )
        if place is not None:
            if self.out is not None:
                check_new(place, force=self.force, what="folder")
            check_folder(place, force=self.force)

    def write(self, found: Recalibration, told: dict[str, Any]) -> None:
        """Write what was asked for, and say so."""
        if self.artifact is not None:
            write_recalibrated(self.model, found.map, told, self.artifact, force=self.force)
            stays = " It keeps its map: the one that was found was not kept."
            _show.status(f"Wrote {self.artifact}.{stays if found.map == Identity() else ''}")
        if self.map_out is not None:
            save_map(found.map, self.map_out, force=self.force)
            _show.status(f"Wrote {self.map_out}.")
        if not is_artifact(self.model):
            _show.status(
                f"{self.model} is no artifact of Veracal: nothing was written into it. Apply "
                "the map to its scores where you use them."
            )

    def written(self) -> dict[str, str | None]:
        """Names of what was written, for programs."""
        files = {"out": self.artifact, "map_out": self.map_out}
        return {name: None if path is None else str(path) for name, path in files.items()}


def elsewhere(
    outcome: Outcome,
    fit: "Fit",
    spending: LocalBudget,
    whom: RemoteOptions,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Ask the institutions of a list; write and print what comes of it."""
    listing = _listing(whom)
    _check_model(outcome.model, listing)
    outcome.check()
    key = PrivateKey.read(listing.key)
    with (
        RequestHistory(listing.history, key.public) as history,
        ConfiguredTransport(listing) as transport,
    ):
        try:
            asked = RemotePool(
                listing.terms,
                key,
                transport,
                history,
                least=whom.least or listing.min_sources,
                run=_run(fit, spending, whom.run),
                timeout=listing.timeout,
            )
            steps = _steps(asked, fit, spending)
        except VeracalError:
            raise
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        plan = plan_for(asked, steps)
        show_plan(plan, steps.method)
        check_plan(asked, steps, plan)
        found = _asked(asked, steps, plan, whom.at_sources)
        told = record(asked, found, listing.name)
        each = charged(asked, found)
    outcome.write(found, told)
    if json:
        given = facts(found, plan, each)
        _show.print_json(
            {"model": str(outcome.model), "study": listing.name, **given, **outcome.written()}
        )
        return
    show(outcome.model.name, found, each)
    text = statement_text(found, each)
    typer.echo("\n" + _show.visible(text if whole else text.split("\n\n")[0], keep="\n"))


def _listing(whom: RemoteOptions) -> SourceList:
    """The list, with the patience that was typed."""
    listing = read_listing(whom.listing)
    try:
        listing = listing.with_wait(whom.wait, whom.given_up)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wait") from error
    least = whom.least or listing.min_sources
    if least is not None and not 1 <= least <= len(listing.sources):
        raise typer.BadParameter(
            f"expected at most {len(listing.sources)}, the number of institutions, got "
            f"{least}.",
            param_hint="--least",
        )
    return listing


def _check_model(model: Path, listing: SourceList) -> None:
    """Refuse sources that have scored their records by another model, and name them."""
    found = model_hash(model)
    others = [one.name for one in listing.terms if one.model != found]
    if others:
        raise DataError(
            str(model),
            "the model that all institutions have scored their records by",
            f"another (hash {found[:12]}…) than that of {_show.listed(others)}",
            "Name that model, or ask them to enroll again for this one.",
        )


def _run(fit: "Fit", spending: LocalBudget, name: str) -> str:
    """Everything that tells this run from another, so that the same command goes on."""
    told = {
        "name": name,
        "method": fit.method,
        "form": fit.form,
        "bins": fit.bins,
        "size": fit.size,
        "temperatures": None if fit.temperatures is None else list(fit.temperatures),
        "spending": [spending.fit, spending.guard, spending.measure, spending.delta],
    }
    return digest(canonical(told))


def _steps(asked: RemotePool, fit: "Fit", spending: LocalBudget) -> RecalibrationSteps:
    """Everything that will be asked."""
    about = asked_of(asked)
    settings = replace(fit.settings(spending), sources=about.sources)
    known = choose_method(fit.method, settings, about)
    assert about.enrolled is not None
    about.enrolled.shares(spending.guard or None, spending.measure or None, known)
    bins = None if fit.bins == BINS else fit.bins  # as where nobody says how many
    settings = about.enrolled.adopted(settings, known, bins=bins)
    division = Division(spending.fit, spending.guard, spending.measure)
    steps = plan_steps(known, settings, division, about)
    # Without a question of its own the guard goes by the answers that led to the map.
    return replace(steps, infers=known.infers and not spending.guard)


def _asked(
    asked: RemotePool, steps: RecalibrationSteps, plan: tuple[SourcePlan, ...], at_sources: int
) -> Recalibration:
    """Ask, and show every institution's progress."""
    rounds = max(one.answers for one in plan)
    try:
        with watching([one.name for one in plan], rounds) as watch:
            asked.watch = watch
            return run(asked, steps, at_sources=at_sources)
    except KeyboardInterrupt:
        _show.status(_STOPPED)
        raise


ON_THEIRS = "the institutions' records"
Watch = Callable[[RoundEvent], None]


def show_plan(plan: Sequence[SourcePlan], method: str) -> None:
    """Say, before anybody is asked, what each will be asked and what it pays."""
    from rich.console import Console

    rows = [
        (
            one.name,
            f"{one.answers}" + (f" ({one.known} known)" if one.known else ""),
            _cost(one.epsilon, one.delta),
            rounded_down(one.left, 6),
            "yes" if one.why is None else f"no: {one.why}",
        )
        for one in plan
    ]
    heads = ("institution", "answers", "cost in all", "left before", "can pay")
    table = _show.table(f"The plan ({method})", heads, rows, right=heads[1:4])
    width = None if sys.stderr.isatty() else 100
    Console(stderr=True, width=width, highlight=False).print(table)


class Board:
    """What is known of every institution while rounds go on.

    Parameters
    ----------
    names : sequence of str
    rounds : int
        How many there will be, at most.
    """

    def __init__(self, names: Sequence[str], rounds: int) -> None:
        self._names, self._rounds = list(names), rounds
        self._last: list[RoundEvent | None] = [None] * len(self._names)
        self._answers = [0] * len(self._names)

    def note(self, heard: RoundEvent) -> str:
        """Take note of something; the line that says it."""
        self._last[heard.source] = heard
        if heard.status == "answered":  # and so did it in every round before
            self._answers[heard.source] = heard.round
        who, why = self._names[heard.source], f": {heard.why}" if heard.why else ""
        where = f"round {heard.round} of {max(self._rounds, heard.round)}, {heard.query}"
        return f"{where}: {who} {heard.status}{why}"

    def table(self) -> "Group":
        """All of them, as they are now."""
        rows = [
            (name, *self._row(last), f"{answers} of {self._rounds}")
            for name, last, answers in zip(self._names, self._last, self._answers, strict=True)
        ]
        heads = ("institution", "round", "question", "", "answers")
        return _show.table("Asking", heads, rows, right=("round", "answers"))

    def _row(self, last: RoundEvent | None) -> tuple[str, str, str]:
        """Round, question and fate of one of them."""
        if last is None:
            return "", "", "not asked yet"
        why = f": {last.why}" if last.why else ""
        return f"{last.round}", last.query, f"{last.status}{why}"


@contextmanager
def watching(names: Sequence[str], rounds: int) -> Iterator[Watch]:
    """Show every institution's progress on stderr: a table that changes, or lines of a log."""
    board = Board(names, rounds)
    if not sys.stderr.isatty():
        yield lambda heard: _show.status(board.note(heard))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(board.table(), console=Console(stderr=True), transient=True) as live:

        def watch(heard: RoundEvent) -> None:
            board.note(heard)
            live.update(board.table())

        yield watch


def facts(
    found: Recalibration, plan: Sequence[SourcePlan], each: Sequence[SourceCost]
) -> dict[str, Any]:
    """Everything as what JSON can hold."""
    written = found.to_json()
    written["temperatures"] = {name: plain(one) for name, one in found.temperatures.items()}
    return {
        **written,
        "figures_on": ON_THEIRS,
        "plan": [asdict(one) for one in plan],
        "institutions": [asdict(one) for one in each],
    }


def show(title: str, found: Recalibration, each: Sequence[SourceCost]) -> None:
    """Print the map, who answered and at which cost, and figures of both sides."""
    console = _show.console()
    console.print(_show.table(f"{title}: the map", ("", ""), list(map_lines(found))))
    rows = [
        (
            one.name,
            one.why or "answered everything",
            _cost(one.epsilon, one.delta),
            one.unit if one.at_most == 1 else f"{one.unit} (up to {one.at_most})",
            "" if one.head is None else f"{one.head['index']}",
        )
        for one in each
    ]
    heads = ("institution", "", "charged", "for each", "last entry signed")
    note = "Charged as its own ledger counts, whether or not its answers were used."
    console.print(
        _show.table("who was asked", heads, rows, right=("charged", heads[-1]), note=note)
    )
    if found.before is not None and found.after is not None:
        sides = figures_of(found.before), figures_of(found.after)
        note = f"Released with noise, on {ON_THEIRS}: without a map, and with this one."
        console.print(sides_table("before and after", *sides, note=note))


def _cost(epsilon: float, delta: float) -> str:
    """Epsilon, and delta where there is one."""
    at = f", delta {rounded_up(delta)}" if delta else ""
    return f"{rounded_up(epsilon, 6)}{at}"
