"""A run, and another measurement of its model, on the terminal and as JSON."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.cli import _artifacts, _output
from veracal.cli._figures import format_interval, format_number
from veracal.errors import BudgetError, DataError, VeracalError

if TYPE_CHECKING:
    from veracal.data import Estimate
    from veracal.ledger import AssignmentNotice
    from veracal.workflow import Config, OnNotice, OnProgress, RunResult


_WIDE = 0.2  # an interval of the accuracy that says too little


@contextmanager
def guard_run(
    config: "Config", folder: Path, ledger: Path | None
) -> "Iterator[tuple[Path, OnProgress, OnNotice]]":
    """Report errors and interruptions of a run with what they mean for its ledger.

    Yields
    ------
    tuple of path and two callables
        The ledger, the progress callback, and the callback for the data holder.
    """
    from veracal.accounting import format_up
    from veracal.ledger import Ledger
    from veracal.workflow import ledger_path

    path = ledger_path(config.data.source, ledger, outside=folder)
    is_new = not _output.path_exists(path)
    try:
        with step_bars() as (progress, notify):
            yield path, progress, notify
    except KeyboardInterrupt:
        _output.print_status(
            "Stopped. No incomplete files are left. Repeat the command to resume from the "
            f"ledger, {path}, if it exists: nothing is charged twice."
        )
        raise typer.Exit(1) from None
    except DataError as error:
        if not _output.path_exists(path):
            raise
        raise DataError(
            error.where,
            error.expected,
            error.found,
            f"{error.remedy} What was paid for is kept in {path}: repeat the command to resume "
            "from there, at no further cost.",
        ) from error
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if is_new:
        caps = Ledger(path).budget
        _output.print_status(
            f"Opened the ledger of {config.data.source} with caps epsilon "
            f"{format_up(caps.epsilon, 6)} and delta {format_up(caps.delta, 3)}: {path}. "
            "Every later run on these records is charged to it, wherever its --out is. To go "
            "beyond the caps, use 'veracal ledger extend'."
        )


@contextmanager
def step_bars() -> "Iterator[tuple[OnProgress, OnNotice]]":
    """Show each step of a run on stderr if it is a terminal, and clean up afterwards.

    Yields
    ------
    pair of callables
        The progress callback, and the callback with the notice for the data holder. At a
        terminal the latter asks whether to continue if more individuals are new than known,
        because the charge would follow before the figures could be read. Without a terminal
        the run continues, since a rejection would depend on the records.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    is_terminal = sys.stderr.isatty()  # before the bars replace the stream
    bars = Bars(
        TextColumn("{task.description:18}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not is_terminal,
    )
    steps: dict[str, TaskID] = {}

    def progress(step: str, done: float, total: float | None) -> None:
        if step not in steps:
            for earlier in steps.values():
                bars.update(earlier, completed=1, total=1)
                bars.stop_task(earlier)
            steps[step] = bars.add_task(step, total=None)
        bars.update(steps[step], completed=done, total=total)

    def notify(notice: "AssignmentNotice") -> None:
        print_notice(notice)
        if notice.new > notice.known and is_terminal and sys.stdin.isatty():
            bars.stop()
            if not typer.confirm("Continue anyway?", err=True):
                _output.print_status("Stopped: nothing was charged.")
                raise typer.Exit(1)
            bars.start()

    with bars:
        yield progress, notify


def print_notice(notice: "AssignmentNotice") -> None:
    """Print, for the data holder only, how the records compare with those of earlier runs."""
    rows = _output.format_count(notice.left_out, "row")
    if notice.keyed_by == "row":
        _output.print_status(
            f"For the data holder only: {rows} were not in the records of earlier runs, and "
            "are in no partition. Without a unit column in the schema, a corrected row counts "
            "as a new one."
        )
        return
    fate = "each is assigned to a partition by its id"
    danger = "individuals in the training partition may be measured"
    if notice.left_out:
        fate, danger = f"{rows} of theirs are in no partition", "their rows are missing here"
    total = _output.format_count(notice.known + notice.new, notice.keyed_by)
    _output.print_status(
        f"For the data holder only: {notice.new:,} of {total} are new to this ledger, and "
        f"{fate}; {notice.absent:,} of earlier runs are not in these records. If ids are only "
        f"spelled differently than before (7 as 007, a blank, another prefix), {danger}: stop "
        "now (Ctrl-C; nothing is charged yet), and restore the spelling of the ids."
    )


def to_json(result: "RunResult") -> dict[str, Any]:
    """The result of a run as values that JSON can hold."""
    report = result.folder / _artifacts.REPORT
    return {
        "folder": str(result.folder),
        "report": str(report) if report.exists() else None,
        "internal": None if result.internal is None else str(result.internal),
        "ledger": str(result.ledger.path),
        "results": result.results.to_json(),
    }


def show(result: "RunResult", *, whole: bool) -> None:
    """Print the settings, the figures, the guarantee and the paths of a run."""
    facts = _artifacts.facts(result.results, result.folder.name)
    console = _output.console()
    title = f"{result.folder.name}: a private classifier"
    console.print(_output.table(title, ("", ""), list(_summary(result, facts))))
    measured = facts["measured"]
    console.print(_measured_table(measured))
    if (groups := _group_table(result)) is not None:
        console.print(groups)
    text = facts["text"] if whole else "\n\n".join(facts["text"].split("\n\n")[:2])
    typer.echo("\n" + _output.escape_text(text, keep="\n"))
    accuracy = measured["after"].get("accuracy")
    if accuracy is None or accuracy.low is None or accuracy.high - accuracy.low > _WIDE:
        _output.print_status(
            "The intervals are wide: there are few test records for this epsilon. A larger "
            "--test, fewer --bins or --reserve 0 would have made them narrower. Running again "
            "on the same records costs the same again, and needs 'veracal ledger extend'."
        )
    folder = shlex.quote(str(result.folder))
    _output.print_status(f"Next:  veracal predict {folder} NEW.csv --out predictions.csv")


def _summary(result: "RunResult", facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Labels and values that describe a run."""
    from veracal.accounting import format_up

    yield "protects", _artifacts.protected(facts)
    yield "cost", _artifacts.cost(facts)
    total = result.results.ledger["total"]
    spent, note = total["spent"], total["note"]
    yield (
        "all runs",
        f"epsilon {format_up(spent['epsilon'])} spent of {format_up(total['epsilon'], 6)}, "
        f"delta {format_up(spent['delta'], 3)} of {format_up(total['delta'], 3)}, by "
        f"{_output.format_count(total['runs'], 'run')}" + (f"; {note}" if note else ""),
    )
    columns = f"{facts['features']} features, {len(facts['classes'])} classes"
    yield "trained on", f"{1 - facts['test']:.0%} of {facts['data']}: {columns}"
    yield "measured on", f"the other {facts['test']:.0%}, with noise"
    yield "model", facts["model"]
    yield "map", facts["map"]
    yield "artifact", str(result.folder)
    report = result.folder / _artifacts.REPORT
    if report.exists():
        yield "report", str(report)
    if result.internal is not None:
        yield "internal report", f"{result.internal}: do not publish it"
    path, here = result.ledger.path, Path.cwd()
    path = path.relative_to(here) if path.is_relative_to(here) else path
    left = _output.format_count(_artifacts.left(result.ledger), "more measurement")
    yield "ledger", f"{path}, which has reserved budget for {left}"


def _measured_table(measured: Mapping[str, Mapping[str, Any]]) -> object:
    """Figures before and after the map, or of the model alone if it has no map."""
    sides = {when: measured[when] for when in ("before", "after") if when in measured}
    after = measured["after"]
    level = f"{next(iter(after.values())).level:.0%} interval"
    heads = ["figure"]
    for i, when in enumerate(sides):  # blanks make headings different
        heads += [when, level + " " * i]
    rows = []
    for name in after:
        values = [side[name] for side in sides.values() if name in side]
        cells = [
            cell for one in values for cell in (format_number(one.value), format_interval(one))
        ]
        rows += [(name, *cells)] if len(values) == len(sides) else []
    title = "before and after the map" if len(sides) > 1 else "figures"
    return _output.table(title, heads, rows, right=heads[1:], note=_artifacts.NOISY_NOTE)


def _group_table(result: "RunResult") -> object | None:
    """Figures of each group after the map, if they were broken down by groups."""
    after = result.results.when("after")
    names = [] if after is None else list(after.figures["groups"])
    if after is None or not names:
        return None
    rows = []
    for name in names:
        values = _artifacts.estimates(after, name)
        cells = (_artifacts.format_estimate(values.get(f)) for f in _artifacts.FIGURES)
        rows.append((name, *cells))
    title = f"by {result.results.settings['measurement']['group']}, after the map"
    return _output.table(title, ("group", *_artifacts.FIGURES), rows)


def remeasure_model(
    model: Path, data: str | None, ledger: Path | None, *, json: bool
) -> "Mapping[str, Estimate]":
    """Measure a model again, add it to its report, and print all measurements."""
    from veracal.workflow import remeasure

    try:
        with step_bars() as (progress, notify):
            result = remeasure(
                model, source=data, ledger=ledger, on_progress=progress, on_notice=notify
            )
    except KeyboardInterrupt:
        _output.print_status(
            "Stopped. The model's folder is unchanged. Repeat the command to resume from the "
            "ledger: nothing is charged twice."
        )
        raise typer.Exit(1) from None
    except BudgetError as error:
        raise BudgetError(
            f"{error} All reserved measurements were made. 'veracal fit --reserve' sets their "
            "number, before the first."
        ) from error
    measured = result.results.measured
    figures = _artifacts.facts(result.results, str(model))["measured"]
    left = _artifacts.left(result.ledger)
    if json:
        _output.print_json(
            {
                "model": str(result.folder),
                "when": measured[-1].when,
                "measured": [vars(one) for one in measured],
                "left": left,
                "ledger": str(result.ledger.path),
            }
        )
    else:
        rows = [
            (
                f"{one.when}, {one.date}",
                *(
                    _artifacts.format_estimate(figures[one.when].get(name))
                    for name in _artifacts.FIGURES
                ),
            )
            for one in measured
        ]
        table = _output.table(
            f"{result.folder.name}: all measurements",
            ("measured", *_artifacts.FIGURES),
            rows,
            note="Released with noise, new each time. Intervals account for the noise.",
        )
        _output.console().print(table)
        _output.print_line(
            f"It cost what was reserved for it. {_output.format_count(left, 'measurement')} left "
            f"in {result.ledger.path.name}."
        )
    last: Mapping[str, Estimate] = figures[measured[-1].when]
    return last
