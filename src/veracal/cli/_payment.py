"""Who pays for what a command releases: a ledger that is there, or one made for the purpose."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _show
from veracal.cli._output import is_there

if TYPE_CHECKING:
    from veracal.accounting import Statement, Unit
    from veracal.calibration import PricedQuery
    from veracal.data import Scores
    from veracal.ledger import Item, Ledger
    from veracal.queries import Curator


LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Ledger that pays; if there is none, a new one with just this budget. By default "
        "that of PREDICTIONS or --data, see 'veracal ledger list'.",
    ),
]
LedgerPart = Annotated[
    str | None, typer.Option(help="Part of the ledger that these records are.")
]
Version = Annotated[
    str, typer.Option(help="Public mark of the records; change it when they change.")
]


def ledger_place(records: str | Path, ledger: Path | None) -> Path:
    """Where the ledger of records is, or will be: one for one file, whoever asks."""
    from veracal.cli._artifacts import is_name
    from veracal.data import readable
    from veracal.ledger import default_ledger_path

    if ledger is not None:
        return ledger
    if not Path(records).exists() and not is_name(str(records)):
        readable(Path(records))  # says that nothing is there
    return default_ledger_path(records)


def paying(
    place: Path,
    scores: "Scores",
    items: "Sequence[Item]",
    *,
    epsilon: float,
    delta: float = 0.0,
    part: str | None = None,
    version: str = "",
    records: str | Path | None = None,
    table: bool = False,
) -> "Curator":
    """Put a ledger in front of scores: the one at that place, or a new one for these items.

    A new one protects one record under add-remove. Whoever needs another promise opens the
    ledger beforehand. ``records`` says which file it belongs to, and ``table`` that models may
    be fitted to it, so that further runs can be charged to the same ledger.
    """
    from veracal.accounting import Budget
    from veracal.ledger import Ledger, restore_data_note
    from veracal.queries import Curator
    from veracal.workflow import open_data_ledger

    if not is_there(place):
        if scores.units is not None or part is not None:
            raise typer.BadParameter(
                "these records have no ledger, and a new one would protect one record of all. "
                "Open it first, as in:  veracal ledger open FILE --epsilon 1 --unit patient "
                "--at-most 3",
                param_hint="--ledger",
            )
        if table and records is not None:
            open_data_ledger(place, Budget(epsilon, delta), str(records))
            say_opened(place, epsilon, delta)
        else:
            _open(place, items, epsilon, delta, records)
    elif records is not None:
        restore_data_note(Ledger(place), records)
    return Curator(scores, Ledger(place), part=part, version=version)


def _open(
    place: Path,
    items: "Sequence[Item]",
    epsilon: float,
    delta: float,
    records: str | Path | None,
) -> None:
    """Make a ledger with caps that are just enough for what is about to be asked.

    That of a file can be extended, and further runs are charged to it. One without a file, of
    an institution, pays for these items alone if they have a delta.
    """
    from veracal.accounting import Budget
    from veracal.ledger import open_for_data, open_ledger

    if delta:  # the accountant's bound on all items may be above the sum of their costs
        epsilon = max(epsilon, rounded(stated(items, delta).epsilon))
    budget = Budget(epsilon, delta)
    if records is not None:
        adding = {"kind": "open", "composition": "addition"} if delta else {}
        open_for_data(place, budget, records, **adding)
    elif delta:
        open_ledger(place, budget, kind="plan", plan=items)
    else:
        open_ledger(place, budget)
    say_opened(place, epsilon, delta)


def say_opened(place: Path, epsilon: float, delta: float) -> None:
    """Say which ledger was opened, and what it is for."""
    from veracal.accounting import rounded_up

    at = f" at delta {rounded_up(delta)}" if delta else ""
    budget = f"epsilon {rounded_up(epsilon, 6)}{at}"
    _show.status(
        f"Opened {place} with a budget of {budget} for each record. "
        "Keep it: whatever else is released about these records must be charged to it, too."
    )


def called(ledger: "Ledger") -> str:
    """What to call a ledger: by its data, or by its file."""
    data = ledger.opening.data
    return ledger.path.name if data is None else f"the ledger of {data}"


def unanswered(
    holder: "Curator", scores: "Scores", asks: "Iterable[PricedQuery]"
) -> "list[Item]":
    """What is left to pay of questions, each of which is its own request id."""
    import hashlib

    from veracal.ledger import Item
    from veracal.queries import canonical_request

    known = {entry.request for entry in holder.ledger.entries()}
    items = []
    for ask in asks:
        event = holder.event(ask.query, ask.micro_epsilon)
        body = canonical_request(ask.query, event, scores, holder.part, holder.version)
        if hashlib.sha256(body).hexdigest() not in known:
            items.append(Item(ask.query.name, event, 1, holder.part))
    return items


def fingerprint(holder: "Curator", scores: "Scores", what: Mapping[str, Any]) -> str:
    """Id of a request: the same for the same question about the same records."""
    import hashlib
    import json

    told = {"records": scores.name, "classes": list(scores.classes), "scores": scores.kind}
    about = {**what, **told, "part": holder.part, "version": holder.version}
    written = json.dumps(about, sort_keys=True, default=repr)
    return hashlib.sha256(written.encode()).hexdigest()


def stated(
    items: "Sequence[Item]",
    delta: float,
    unit: "Unit | None" = None,
    *covers: str,
    ledger: "Ledger | None" = None,
) -> "Statement":
    """What is promised of everything that items release together, and by their ledger."""
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
    """An epsilon in whole millionths, rounded up."""
    import math

    from veracal.accounting import MICRO

    return math.ceil(epsilon * MICRO) / MICRO


def left(ledger: "Ledger", part: str | None) -> dict[str, Any]:
    """Where the money went: the ledger, what is left in it, its head."""
    spent, amount = ledger.spent(part), ledger.remaining(part)
    return {
        "path": str(ledger.path),
        "spent": {"epsilon": spent.epsilon, "delta": spent.delta},
        "left": {"epsilon": amount.epsilon, "delta": amount.delta},
        "head": ledger.head,
    }


def promise(statement: "Statement | None", *, whole: bool) -> str:
    """What is promised: in full, or its first paragraph and the ledger's total."""
    if statement is None:
        return ""
    text = statement.text() if whole else statement.summary()
    return _show.visible(text, keep="\n")
