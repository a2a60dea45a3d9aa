"""Ledgers behind commands: which one pays, and what errors and notices of a run mean for it."""

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.cli import _output
from veracal.cli._options import is_name
from veracal.errors import DataError, LedgerError, VeracalError

if TYPE_CHECKING:
    from veracal.accounting import Statement
    from veracal.calibration import MeasurementPlan
    from veracal.data import Scores
    from veracal.ledger import AssignmentNotice, Item, Ledger
    from veracal.queries import Curator
    from veracal.workflow import Config, OnNotice, OnProgress


def find_ledger(records: str | Path, ledger: Path | None) -> Path:
    """Path of the ledger of records: one for each file, whichever command uses it."""
    from veracal.data import check_readable
    from veracal.ledger import default_ledger_path

    if ledger is not None:
        return ledger
    if not Path(records).exists() and not is_name(str(records)):
        check_readable(Path(records))  # raises the usual error for a missing file
    return default_ledger_path(records)


def open_curator(
    ledger_path: Path,
    scores: "Scores",
    items: "Sequence[Item]",
    *,
    epsilon: float,
    delta: float = 0.0,
    partition: str | None = None,
    version: str = "",
    records: str | Path | None = None,
    table: bool = False,
) -> "Curator":
    """A curator of scores whose queries a ledger pays for: an existing or a new one.

    A new ledger protects one record under add-remove; for any other guarantee, it must be
    opened beforehand. Its caps are just enough for these items. ``records`` is the file that it
    belongs to, whose ledger can be extended and pays for later runs, and ``table`` says that
    models may be fitted to it. A ledger without a file, such as an institution's, pays for
    these items only if they have a delta.
    """
    from veracal.accounting import MICRO, Budget, Composed, Repeated, statement
    from veracal.ledger import Ledger, open_ledger, open_ledger_for_data, restore_data_path
    from veracal.queries import Curator
    from veracal.workflow import open_data_ledger

    if os.path.lexists(ledger_path):
        if records is not None:
            restore_data_path(Ledger(ledger_path), records)
        return Curator(scores, Ledger(ledger_path), partition=partition, version=version)
    if scores.units is not None or partition is not None:
        raise typer.BadParameter(
            "These records have no ledger, and a new one would protect single records, "
            "without partitions. Open it first, as in:  veracal ledger open FILE "
            "--epsilon 1 --unit patient --max-contributions 3",
            param_hint="--ledger",
        )
    if table and records is not None:
        open_data_ledger(ledger_path, Budget(epsilon, delta), str(records))
    else:
        if delta:  # the accountant's bound on all items may be above the sum of their costs
            event = Composed(tuple(Repeated(item.event, item.times) for item in items))
            bound = statement(event, delta, covers=("everything that was released",)).epsilon
            epsilon = max(epsilon, math.ceil(bound * MICRO) / MICRO)
        budget = Budget(epsilon, delta)
        if records is not None:
            adding = {"kind": "open", "composition": "addition"} if delta else {}
            open_ledger_for_data(ledger_path, budget, records, **adding)
        elif delta:
            open_ledger(ledger_path, budget, kind="plan", plan=items)
        else:
            open_ledger(ledger_path, budget)
    report_opened(ledger_path, epsilon, delta)
    return Curator(scores, Ledger(ledger_path), partition=partition, version=version)


def report_opened(ledger_path: Path, epsilon: float, delta: float) -> None:
    """Report a newly opened ledger and its budget."""
    from veracal.accounting import format_up

    at = f" at delta {format_up(delta)}" if delta else ""
    budget = f"epsilon {format_up(epsilon, 6)}{at}"
    _output.print_status(
        f"Opened {ledger_path} with a budget of {budget} for each record. "
        "Keep it: every other release about these records must be charged to it, too."
    )


def require_unpaid(curator: "Curator", scores: "Scores", plan: "MeasurementPlan") -> None:
    """Check that a ledger can pay for the queries of a plan that it has not answered before."""
    from veracal.ledger import Item
    from veracal.queries import canonical_request

    known = {entry.request for entry in curator.ledger.entries()}
    items = []
    for priced in plan.queries.values():
        event = priced.event(curator.relation, curator.unit)
        body = canonical_request(
            priced.query, event, scores, curator.partition, curator.version
        )
        if hashlib.sha256(body).hexdigest() not in known:
            items.append(Item(priced.query.name, event, 1, curator.partition))
    curator.require(items)


def ledger_name(ledger: "Ledger") -> str:
    """Name of a ledger, from its data or its file."""
    data = ledger.opening.data
    return ledger.path.name if data is None else f"the ledger of {data}"


def summarize_ledger(ledger: "Ledger", partition: str | None = None) -> dict[str, Any]:
    """Spending of a ledger: its path, what is spent and left, and its head."""
    spent, left = ledger.spent(partition), ledger.remaining(partition)
    return {
        "path": str(ledger.path),
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
        "left": {"epsilon": left.epsilon, "delta": left.delta},
        "head": ledger.head,
    }


def print_statement(statement: "Statement | None", *, whole: bool) -> None:
    """Print a guarantee: in full, or its first paragraph and the total of the ledger."""
    if statement is not None:
        text = statement.text() if whole else statement.summary()
        typer.echo("\n" + _output.escape_text(text, keep="\n"))


# ---------------------------------------------------------------- runs


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
    is_new, head = not os.path.lexists(path), _find_head(path)
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
        if _find_head(path) == head:  # nothing was paid
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


def _find_head(path: Path) -> str | None:
    """Head of a ledger; None if there is none, or if it cannot be read."""
    from veracal.ledger import Ledger

    try:
        return Ledger(path).head
    except LedgerError:
        return None


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


def count_measurements_left(ledger: "Ledger") -> int:
    """Number of reserved measurements that are left in the run of a model."""
    from veracal.workflow import TEST

    return min(
        (item.times - used for item, used in ledger.planned() if item.partition == TEST),
        default=0,
    )
