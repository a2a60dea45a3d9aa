"""The ledger that pays for what a command releases: an existing one, or a new one."""

import hashlib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.cli import _output
from veracal.cli._options import is_name

if TYPE_CHECKING:
    from veracal.accounting import Statement
    from veracal.calibration import MeasurementPlan
    from veracal.data import Scores
    from veracal.ledger import Item, Ledger
    from veracal.queries import Curator


def ledger_place(records: str | Path, ledger: Path | None) -> Path:
    """Path of the ledger of records: one for each file, whichever command uses it."""
    from veracal.data import check_readable
    from veracal.ledger import default_ledger_path

    if ledger is not None:
        return ledger
    if not Path(records).exists() and not is_name(str(records)):
        check_readable(Path(records))  # raises the usual error for a missing file
    return default_ledger_path(records)


def open_curator(
    place: Path,
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

    if os.path.lexists(place):
        if records is not None:
            restore_data_path(Ledger(place), records)
        return Curator(scores, Ledger(place), partition=partition, version=version)
    if scores.units is not None or partition is not None:
        raise typer.BadParameter(
            "These records have no ledger, and a new one would protect single records, "
            "without partitions. Open it first, as in:  veracal ledger open FILE "
            "--epsilon 1 --unit patient --max-contributions 3",
            param_hint="--ledger",
        )
    if table and records is not None:
        open_data_ledger(place, Budget(epsilon, delta), str(records))
    else:
        if delta:  # the accountant's bound on all items may be above the sum of their costs
            event = Composed(tuple(Repeated(item.event, item.times) for item in items))
            bound = statement(event, delta, covers=("everything that was released",)).epsilon
            epsilon = max(epsilon, math.ceil(bound * MICRO) / MICRO)
        budget = Budget(epsilon, delta)
        if records is not None:
            adding = {"kind": "open", "composition": "addition"} if delta else {}
            open_ledger_for_data(place, budget, records, **adding)
        elif delta:
            open_ledger(place, budget, kind="plan", plan=items)
        else:
            open_ledger(place, budget)
    report_opened(place, epsilon, delta)
    return Curator(scores, Ledger(place), partition=partition, version=version)


def report_opened(place: Path, epsilon: float, delta: float) -> None:
    """Report a newly opened ledger and its budget."""
    from veracal.accounting import format_up

    at = f" at delta {format_up(delta)}" if delta else ""
    budget = f"epsilon {format_up(epsilon, 6)}{at}"
    _output.print_status(
        f"Opened {place} with a budget of {budget} for each record. "
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


def summarize_account(ledger: "Ledger", partition: str | None = None) -> dict[str, Any]:
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
