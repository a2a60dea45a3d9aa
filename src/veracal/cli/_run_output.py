"""A run while it goes on, and what it left, for people and for programs.

A model measured once more, from the ledger that its run was charged to.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.cli import _artifacts
from veracal.cli import _output as _show
from veracal.cli._figures import interval, number
from veracal.errors import BudgetError
from veracal.workflow import measure_again

if TYPE_CHECKING:
    from veracal.data import Estimate
    from veracal.ledger import AssignmentNotice
    from veracal.workflow import OnNotice, OnProgress, RunResult


_WIDE = 0.2  # an interval of the accuracy in which a report finds nothing to tell


@contextmanager
def step_bars() -> "Iterator[tuple[OnProgress, OnNotice]]":
    """Show every step of a run on stderr, if somebody is watching, and clean up after it.

    Yields
    ------
    pair of callables
        What shows a step, and what tells the data holder how the records compare with those
        of earlier runs. At a terminal the latter asks whether to go on if more individuals
        are new than known: the charge would follow before anybody has read the figures. Where
        nobody can be asked the run goes on, since a refusal would depend on the records.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    watched = sys.stderr.isatty()  # now: bars put something else in its place
    bars = Bars(
        TextColumn("{task.description:18}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not watched,
    )
    steps: dict[str, TaskID] = {}

    def tell(step: str, done: float, total: float | None) -> None:
        if step not in steps:
            for earlier in steps.values():
                bars.update(earlier, completed=1, total=1)
                bars.stop_task(earlier)
            steps[step] = bars.add_task(step, total=None)
        bars.update(steps[step], completed=done, total=total)

    def notify(notice: "AssignmentNotice") -> None:
        show_notice(notice)
        if notice.new > notice.known and watched and sys.stdin.isatty():
            bars.stop()
            if not typer.confirm("Go on all the same?", err=True):
                _show.status("Stopped: nothing was charged.")
                raise typer.Exit(1)
            bars.start()

    with bars:
        yield tell, notify


def show_notice(notice: "AssignmentNotice") -> None:
    """Tell the data holder, and nobody else, how records compare with those of earlier runs."""
    rows = _show.counted(notice.left_out, "row")
    if notice.keyed_by == "row":
        _show.status(
            f"For you alone: {rows} in no partition, since no earlier run recorded the "
            "content. Corrected rows count as new ones where the schema has no unit column."
        )
        return
    fate = "each draws a partition by its id"
    danger = "individuals who were trained on may be measured"
    if notice.left_out:
        fate, danger = f"{rows} of theirs are in no partition", "they are missed here"
    found = _show.counted(notice.known + notice.new, notice.keyed_by)
    _show.status(
        f"For you alone: {notice.new:,} of {found} are new to this ledger, and {fate}; "
        f"{notice.absent:,} that earlier runs recorded are not in these records. If ids are "
        "only spelt otherwise than before (7 as 007, a blank, another prefix), "
        f"{danger}: stop now (Ctrl-C; nothing is charged yet), and write the ids as they were."
    )


def facts(made: "RunResult") -> dict[str, Any]:
    """Everything as what JSON can hold."""
    report = made.folder / _artifacts.REPORT
    return {
        "folder": str(made.folder),
        "report": str(report) if report.exists() else None,
        "internal": None if made.internal is None else str(made.internal),
        "ledger": str(made.ledger.path),
        "results": made.results.to_json(),
    }


def show(made: "RunResult", *, whole: bool) -> None:
    """Print what was protected, figures of both sides, the promise and where everything is."""
    told = _artifacts.facts(made.results, made.folder.name)
    console = _show.console()
    title = f"{made.folder.name}: a private classifier"
    console.print(_show.table(title, ("", ""), list(_lines(made, told))))
    sides = told["measured"]
    console.print(_sides(sides))
    if (groups := _by_group(made)) is not None:
        console.print(groups)
    text = told["text"] if whole else "\n\n".join(told["text"].split("\n\n")[:2])
    typer.echo("\n" + _show.visible(text, keep="\n"))
    _advise(sides["after"], made.folder)


def _lines(made: "RunResult", told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say of a run."""
    yield "protects", _artifacts.protected(told)
    yield "cost", _artifacts.cost(told)
    yield "all runs", _total(made)
    columns = f"{told['features']} features, {len(told['classes'])} classes"
    yield (
        "trained on",
        f"{1 - told['test']:.0%} of {told['data']}: {columns}",
    )
    yield "measured on", f"the other {told['test']:.0%}, with noise"
    yield "model", told["model"]
    yield "map", told["map"]
    yield "artifact", str(made.folder)
    report = made.folder / _artifacts.REPORT
    if report.exists():
        yield "report", str(report)
    if made.internal is not None:
        yield "internal report", f"{made.internal}: not to be published"
    yield "ledger", f"{_near(made.ledger.path)}, {_later(made)}"


def _total(made: "RunResult") -> str:
    """What all runs on the records have spent, and may."""
    from veracal.accounting import rounded_up

    total = made.results.ledger["total"]
    spent, note = total["spent"], total["note"]
    text = f"epsilon {rounded_up(spent['epsilon'])} spent of {rounded_up(total['epsilon'], 6)}"
    delta = f"delta {rounded_up(spent['delta'], 3)} of {rounded_up(total['delta'], 3)}"
    runs = _show.counted(total["runs"], "run")
    return f"{text}, {delta}, by {runs}" + (f"; {note}" if note else "")


def _near(path: Path) -> Path:
    """A path as somebody would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _later(made: "RunResult") -> str:
    """How often the model can be measured again."""
    left = _artifacts.left(made.ledger)
    return f"which has paid for {_show.counted(left, 'more measurement')}"


def _sides(measured: Mapping[str, Mapping[str, Any]]) -> object:
    """Figures of both sides of the map, or of the model alone where there is no map."""
    sides = {when: measured[when] for when in ("before", "after") if when in measured}
    after = measured["after"]
    ends = f"{next(iter(after.values())).level:.0%} interval"
    heads = ["figure"]
    for i, when in enumerate(sides):  # blanks make headings different
        heads += [when, ends + " " * i]
    rows = []
    for name in after:
        found = [side[name] for side in sides.values() if name in side]
        cells = [cell for one in found for cell in (number(one.value), interval(one))]
        rows += [(name, *cells)] if len(found) == len(sides) else []
    note = "Released with noise, on records that nobody trained on; intervals count the noise."
    title = "before and after the map" if len(sides) > 1 else "figures"
    return _show.table(title, heads, rows, right=heads[1:], note=note)


def _by_group(made: "RunResult") -> object | None:
    """Figures of each group after the map, if groups were told apart."""
    after = made.results.when("after")
    names = [] if after is None else list(after.figures["groups"])
    if after is None or not names:
        return None
    rows = []
    for name in names:
        found = _artifacts.estimates(after, name)
        rows.append((name, *(_artifacts.shown(found.get(f)) for f in _artifacts.FIGURES)))
    title = f"by {made.results.settings['measurement']['group']}, after the map"
    return _show.table(title, ("group", *_artifacts.FIGURES), rows)


def _advise(after: Mapping[str, Any], folder: Path) -> None:
    """Say what comes next, and what to do about intervals that say nothing."""
    found = after.get("accuracy")
    if found is None or found.low is None or found.high - found.low > _WIDE:
        _show.status(
            "The intervals are wide: there are few test records for this epsilon. A larger "
            "--test, fewer --bins or --later 0 would have made them narrower; to run again on "
            "the same people costs them as much again, and takes 'veracal ledger extend'."
        )
    place = shlex.quote(str(folder))
    _show.status(f"Next:  veracal predict {place} NEW.csv --out predictions.csv")


def again(
    model: Path, data: str | None, ledger: Path | None, *, json: bool
) -> "Mapping[str, Estimate]":
    """Measure, add it to the model's report, and print the series."""
    try:
        with step_bars() as (tell, notify):
            made = measure_again(
                model, source=data, ledger=ledger, on_progress=tell, on_notice=notify
            )
    except KeyboardInterrupt:
        _show.status(
            "Stopped; the model's folder is as it was. The same command goes on from what is "
            "in the ledger: nothing is paid twice."
        )
        raise typer.Exit(1) from None
    except BudgetError as error:
        raise BudgetError(
            f"{error} Every measurement that the run laid by was made; 'veracal fit --later' "
            "says how many there are, before the first."
        ) from error
    told = _artifacts.facts(made.results, str(model))["measured"]
    if json:
        _show.print_json(_facts(made))
    else:
        _show.console().print(_series(made, told))
        more = _show.counted(_artifacts.left(made.ledger), "measurement")
        _show.say(f"It cost what was laid by for it; {more} left in {made.ledger.path.name}.")
    last: Mapping[str, Estimate] = told[made.results.measured[-1].when]
    return last


def _facts(made: "RunResult") -> dict[str, Any]:
    """The newest measurement and all before it, as what JSON can hold."""
    return {
        "model": str(made.folder),
        "when": made.results.measured[-1].when,
        "measured": [vars(one) for one in made.results.measured],
        "left": _artifacts.left(made.ledger),
        "ledger": str(made.ledger.path),
    }


def _series(made: "RunResult", told: Mapping[str, Any]) -> object:
    """All measurements below each other, in their order."""
    rows = [
        (
            f"{one.when}, {one.date}",
            *(_artifacts.shown(told[one.when].get(name)) for name in _artifacts.FIGURES),
        )
        for one in made.results.measured
    ]
    note = "Released with noise, new each time; intervals count it."
    heads = ("measured", *_artifacts.FIGURES)
    return _show.table(f"{made.folder.name}, again and again", heads, rows, note=note)
