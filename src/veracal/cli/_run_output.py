"""A run, and another measurement of its model, on the terminal and as JSON."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from veracal.cli import _artifacts, _figures, _output
from veracal.errors import BudgetError, DataError, VeracalError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from veracal.data import Estimate
    from veracal.ledger import AssignmentNotice, Ledger
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
    is_new = not os.path.lexists(path)
    try:
        with run_bars() as (progress, notify):
            yield path, progress, notify
    except KeyboardInterrupt:
        _output.print_status(
            "Stopped. No incomplete files are left. Repeat the command to resume from the "
            f"ledger, {path}, if it exists: nothing is charged twice."
        )
        raise typer.Exit(1) from None
    except DataError as error:
        if not os.path.lexists(path):
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
def run_bars() -> "Iterator[tuple[OnProgress, OnNotice]]":
    """Show each step of a run on stderr if it is a terminal.

    Yields
    ------
    pair of callables
        The progress callback, and the callback with the notice for the data holder. At a
        terminal the latter asks whether to continue if more individuals are new than known,
        because the charge would follow before the figures could be read. Without a terminal
        the run continues, since a rejection would depend on the records.
    """
    is_terminal = sys.stderr.isatty()  # before the bars replace the stream
    with _output.progress_bars() as (bars, progress):

        def notify(notice: "AssignmentNotice") -> None:
            print_notice(notice)
            if notice.new > notice.known and is_terminal and sys.stdin.isatty():
                bars.stop()
                if not typer.confirm("Continue anyway?", err=True):
                    _output.print_status("Stopped: nothing was charged.")
                    raise typer.Exit(1)
                bars.start()

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


def print_run(result: "RunResult", *, whole: bool, json: bool) -> None:
    """Print the settings, the figures, the guarantee and the paths of a run."""
    from veracal.accounting import format_up

    folder, report = result.folder, result.folder / _artifacts.REPORT
    if json:
        _output.print_json(
            {
                "folder": str(folder),
                "report": str(report) if report.exists() else None,
                "internal": None if result.internal is None else str(result.internal),
                "ledger": str(result.ledger.path),
                "results": result.results.to_json(),
            }
        )
        return
    facts = _artifacts.facts(result.results, folder.name)
    paid, test = result.results.ledger, f"{facts['test']:.0%}"
    note = f"; {paid.note}" if paid.note else ""
    path, here = result.ledger.path, Path.cwd()
    path = path.relative_to(here) if path.is_relative_to(here) else path
    left = _output.format_count(_left(result.ledger), "more measurement")
    rows = [
        ("protects", _artifacts.protected(facts)),
        ("cost", _artifacts.cost(facts)),
        (
            "all runs",
            f"epsilon {format_up(paid.spent.epsilon)} spent of "
            f"{format_up(paid.caps.epsilon, 6)}, delta {format_up(paid.spent.delta, 3)} of "
            f"{format_up(paid.caps.delta, 3)}, by {_output.format_count(paid.runs, 'run')}{note}",
        ),
        (
            "trained on",
            f"{1 - facts['test']:.0%} of {facts['data']}: {facts['features']} features, "
            f"{len(facts['classes'])} classes",
        ),
        ("measured on", f"the other {test}, with noise"),
        ("model", facts["model"]),
        ("map", facts["map"]),
        ("artifact", str(folder)),
        *([("report", str(report))] if report.exists() else []),
        *(
            [("internal report", f"{result.internal}: do not publish it")]
            if result.internal is not None
            else []
        ),
        ("ledger", f"{path}, which has reserved budget for {left}"),
    ]
    _output.print_table(f"{folder.name}: a private classifier", ("", ""), rows)
    measured = facts["measured"]
    sides = {when: measured[when] for when in ("before", "after") if when in measured}
    title = "before and after the map" if len(sides) > 1 else "figures"
    _figures.print_sides(title, sides, _artifacts.NOISY_NOTE)
    after = result.results.when("after")
    if after is not None and after.groups:
        cells = [(name, *_row(_artifacts.estimates(one))) for name, one in after.groups.items()]
        heads = ("group", *_artifacts.FIGURES)
        _output.print_table(f"by {after.group}, after the map", heads, cells)
    text = facts["text"] if whole else "\n\n".join(facts["text"].split("\n\n")[:2])
    typer.echo("\n" + _output.escape_text(text, keep="\n"))
    accuracy = measured["after"].get("accuracy")
    if accuracy is None or accuracy.low is None or accuracy.high - accuracy.low > _WIDE:
        _output.print_status(
            "The intervals are wide: there are few test records for this epsilon. A larger "
            "--test, fewer --bins or --reserve 0 would have made them narrower. Running again "
            "on the same records costs the same again, and needs 'veracal ledger extend'."
        )
    quoted = shlex.quote(str(folder))
    _output.print_status(f"Next:  veracal predict {quoted} NEW.csv --out predictions.csv")


def remeasure_model(
    model: Path, data: str | None, ledger: Path | None, *, json: bool
) -> "Mapping[str, Estimate]":
    """Measure a model again, add it to its report, and print all measurements."""
    from veracal.artifact import encode
    from veracal.workflow import remeasure

    try:
        with run_bars() as (progress, notify):
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
    measured, left = result.results.measured, _left(result.ledger)
    figures: Mapping[str, Mapping[str, Estimate]]
    figures = _artifacts.facts(result.results, str(model))["measured"]
    if json:
        _output.print_json(
            {
                "model": str(result.folder),
                "when": measured[-1].when,
                "measured": encode(measured),
                "left": left,
                "ledger": str(result.ledger.path),
            }
        )
    else:
        _output.print_table(
            f"{result.folder.name}: all measurements",
            ("measured", *_artifacts.FIGURES),
            [(f"{one.when}, {one.date}", *_row(figures[one.when])) for one in measured],
            note="Released with noise, new each time. Intervals account for the noise.",
        )
        _output.print_line(
            f"It cost what was reserved for it. {_output.format_count(left, 'measurement')} left "
            f"in {result.ledger.path.name}."
        )
    return figures[measured[-1].when]


def _row(figures: "Mapping[str, Estimate]") -> list[str]:
    """Cells with the figures of one measurement."""
    return [_figures.format_estimate(figures.get(name)) for name in _artifacts.FIGURES]


def _left(ledger: "Ledger") -> int:
    """Number of reserved measurements that are left in the run of a model."""
    from veracal.workflow import TEST

    return min(
        (item.times - used for item, used in ledger.planned() if item.partition == TEST),
        default=0,
    )
