"""The ledger that pays for what a command releases: an existing one, or a new one."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output
from veracal.cli._options import is_name
from veracal.cli._output import path_exists

if TYPE_CHECKING:
    from veracal.accounting import Statement, Unit
    from veracal.data import Scores
    from veracal.ledger import Item, Ledger
    from veracal.queries import Curator, QueryRequest


LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Ledger to charge; if it does not exist, a new one with exactly this budget. By "
        "default that of PREDICTIONS or --data, see 'veracal ledger list'.",
    ),
]
LedgerPart = Annotated[
    str | None, typer.Option(help="Partition of the ledger that these records are.")
]
Version = Annotated[
    str, typer.Option(help="Public version of the records; change it when they change.")
]


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
    opened beforehand. ``records`` is the file that it belongs to, and ``table`` says that
    models may be fitted to it, so that later runs can be charged to the same ledger.
    """
    from veracal.accounting import Budget
    from veracal.ledger import Ledger, restore_data_path
    from veracal.queries import Curator
    from veracal.workflow import open_data_ledger

    if not path_exists(place):
        if scores.units is not None or partition is not None:
            raise typer.BadParameter(
                "These records have no ledger, and a new one would protect single records, "
                "without partitions. Open it first, as in:  veracal ledger open FILE "
                "--epsilon 1 --unit patient --max-contributions 3",
                param_hint="--ledger",
            )
        if table and records is not None:
            open_data_ledger(place, Budget(epsilon, delta), str(records))
            report_opened(place, epsilon, delta)
        else:
            _open(place, items, epsilon, delta, records)
    elif records is not None:
        restore_data_path(Ledger(place), records)
    return Curator(scores, Ledger(place), partition=partition, version=version)


def _open(
    place: Path,
    items: "Sequence[Item]",
    epsilon: float,
    delta: float,
    records: str | Path | None,
) -> None:
    """Open a ledger with caps that are just enough for these items.

    The ledger of a file can be extended, and later runs are charged to it. A ledger without a
    file, such as an institution's, pays for these items only if they have a delta.
    """
    from veracal.accounting import Budget
    from veracal.ledger import open_ledger, open_ledger_for_data

    if delta:  # the accountant's bound on all items may be above the sum of their costs
        epsilon = max(epsilon, rounded(build_statement(items, delta).epsilon))
    budget = Budget(epsilon, delta)
    if records is not None:
        adding = {"kind": "open", "composition": "addition"} if delta else {}
        open_ledger_for_data(place, budget, records, **adding)
    elif delta:
        open_ledger(place, budget, kind="plan", plan=items)
    else:
        open_ledger(place, budget)
    report_opened(place, epsilon, delta)


def report_opened(place: Path, epsilon: float, delta: float) -> None:
    """Report a newly opened ledger and its budget."""
    from veracal.accounting import format_up

    at = f" at delta {format_up(delta)}" if delta else ""
    budget = f"epsilon {format_up(epsilon, 6)}{at}"
    _output.print_status(
        f"Opened {place} with a budget of {budget} for each record. "
        "Keep it: every other release about these records must be charged to it, too."
    )


def ledger_name(ledger: "Ledger") -> str:
    """Name of a ledger, from its data or its file."""
    data = ledger.opening.data
    return ledger.path.name if data is None else f"the ledger of {data}"


def unpaid_items(
    curator: "Curator", scores: "Scores", queries: "Iterable[QueryRequest]"
) -> "list[Item]":
    """Charges for the queries that a ledger has not answered before."""
    import hashlib

    from veracal.ledger import Item
    from veracal.queries import canonical_request

    known = {entry.request for entry in curator.ledger.entries()}
    items = []
    for asked in queries:
        event = asked.event(curator.relation, curator.unit)
        body = canonical_request(asked.query, event, scores, curator.partition, curator.version)
        if hashlib.sha256(body).hexdigest() not in known:
            items.append(Item(asked.query.name, event, 1, curator.partition))
    return items


def request_id(curator: "Curator", scores: "Scores", what: Mapping[str, Any]) -> str:
    """Id of a request, equal for equal queries of the same records."""
    import hashlib
    import json

    request = {
        **what,
        "records": scores.name,
        "classes": list(scores.classes),
        "scores": scores.kind,
        "part": curator.partition,
        "version": curator.version,
    }
    written = json.dumps(request, sort_keys=True, default=repr)
    return hashlib.sha256(written.encode()).hexdigest()


def build_statement(
    items: "Sequence[Item]",
    delta: float,
    unit: "Unit | None" = None,
    *covers: str,
    ledger: "Ledger | None" = None,
) -> "Statement":
    """The guarantee for everything that items release together, and for their ledger."""
    from veracal.accounting import Composed, Repeated, statement
    from veracal.ledger import ledger_total

    event = Composed(tuple(Repeated(item.event, item.times) for item in items))
    return statement(
        event,
        delta,
        unit,
        covers=covers or ("everything that was released",),
        ledger_total=None if ledger is None else ledger_total(ledger),
    )


def rounded(epsilon: float) -> float:
    """Round an epsilon up to whole millionths."""
    import math

    from veracal.accounting import MICRO

    return math.ceil(epsilon * MICRO) / MICRO


def summarize_account(ledger: "Ledger", partition: str | None) -> dict[str, Any]:
    """Spending of a ledger: its path, what is spent and left, and its head."""
    spent, amount = ledger.spent(partition), ledger.remaining(partition)
    return {
        "path": str(ledger.path),
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
        "left": {"epsilon": amount.epsilon, "delta": amount.delta},
        "head": ledger.head,
    }


def format_statement(statement: "Statement | None", *, whole: bool) -> str:
    """Text of a guarantee: in full, or its first paragraph and the total of the ledger."""
    if statement is None:
        return ""
    text = statement.text() if whole else statement.summary()
    return _output.escape_text(text, keep="\n")
