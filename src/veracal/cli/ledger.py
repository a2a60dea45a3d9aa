"""Commands about ledgers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _show

if TYPE_CHECKING:
    from veracal.privacy.ledger.book import Ledger

app = typer.Typer(no_args_is_help=True, help="Open, look at and verify privacy ledgers.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
File = Annotated[Path, typer.Argument(help="Ledger file.")]
_LAST = 20  # entries that are shown


@app.command(
    "open", epilog="Example:  veracal ledger open study.ledger --epsilon 1 --unit patient"
)
def open_(
    path: Annotated[Path, typer.Argument(help="New file, on a local disk.")],
    epsilon: Annotated[float, typer.Option(help="Most that all releases may cost.")],
    delta: Annotated[float, typer.Option(help="Failure probability; 0 for pure.")] = 0.0,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit: Annotated[str, typer.Option(help="Whom to protect: record, patient, …")] = "record",
    at_most: Annotated[int, typer.Option(help="Most rows of one unit.")] = 1,
    kind: Annotated[
        str | None,
        typer.Option(help="pure, open or plan; by default as --delta and --plan ask for."),
    ] = None,
    composition: Annotated[
        str | None, typer.Option(help="Of an open ledger: rdp (default) or addition.")
    ] = None,
    order: Annotated[float | None, typer.Option(help="Order of the Rényi divergence.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="TOML or JSON file of every event, charged at once.")
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help="Disjoint part of the records; repeats.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a new ledger with a budget that never changes."""
    from veracal.errors import VeracalError
    from veracal.privacy.budget import Budget, Unit
    from veracal.privacy.ledger.book import open_ledger
    from veracal.privacy.ledger.plan_files import read_plan

    by_default = "plan" if plan else "open" if delta else "pure"
    try:
        ledger = open_ledger(
            path,
            Budget(epsilon, delta, relation, Unit(unit, at_most)),  # type: ignore[arg-type]
            kind=kind or by_default,  # type: ignore[arg-type]
            composition=composition,  # type: ignore[arg-type]
            order=order,
            plan=None if plan is None else read_plan(plan),
            parts=tuple(part or ("records",)),
        )
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _report(ledger, json=json)


@app.command(epilog="Example:  veracal ledger show study.ledger --statement")
def show(
    path: File,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print what the ledger promises, in full.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a ledger: its budget, what each part spent and has left, and its entries."""
    from veracal.privacy.ledger.book import Ledger
    from veracal.privacy.ledger.stating import ledger_statement

    ledger = Ledger(path)
    if not statement:
        _report(ledger, json=json)
        return
    promised = ledger_statement(ledger)
    if json:
        _show.print_json(promised.to_json())
    else:
        typer.echo(_show.visible(promised.text(), keep="\n"))


@app.command(epilog="Example:  veracal ledger verify study.ledger --json")
def verify(
    path: File,
    head: Annotated[
        str | None, typer.Option(help="A head written down earlier, to be found again.")
    ] = None,
    json: Json = False,
) -> None:
    """Compute every hash, cost and sum of a ledger again; exit 1 if something is wrong."""
    from veracal.errors import LedgerError
    from veracal.privacy.ledger.book import Ledger

    problems: tuple[str, ...] = ()
    try:
        ledger = Ledger(path)
        found = ledger.verify(head)
    except LedgerError as error:
        found, problems = "", error.problems
    if json:
        _show.print_json(
            {"sound": not problems, "head": found or None, "problems": list(problems)}
        )
    elif problems:
        for problem in problems:
            _show.status(f"error: {problem}")
    else:
        count = _show.counted(len(ledger.entries()), "charge")
        _show.say(f"{path}: {count}, and everything adds up.")
        _show.say(f"head  {found}")
    if problems:
        raise typer.Exit(1)


@app.command(epilog="Example:  veracal ledger export study.ledger > study.json")
def export(
    path: File,
    answers: Annotated[
        bool, typer.Option("--answers", help="Include what was answered, in hexadecimal.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The same: it is JSON anyway.")] = True,
) -> None:
    """Print a whole ledger as one JSON object, with everything needed to check its chain.

    Answers were released, though perhaps not to everybody: without --answers their hashes
    stand for them.
    """
    from veracal.privacy.ledger.book import Ledger

    _show.print_json(Ledger(path).to_json(answers=answers))


def _report(ledger: "Ledger", *, json: bool) -> None:
    """Print a ledger as tables or as one JSON object."""
    from veracal.privacy.costs.statement import rounded_up

    facts = _facts(ledger)
    if json:
        _show.print_json(facts)
        return
    console, budget = _show.console(), ledger.budget
    rows = [
        (
            "promise",
            f"epsilon {rounded_up(budget.epsilon, 6)}, delta {rounded_up(budget.delta)}",
        ),
        ("to", f"{budget.unit}, under {budget.relation}"),
        ("kind", facts["words"]),
        ("head", facts["head"]),
    ]
    console.print(_show.table(f"{ledger.path.name}: the budget", ("", ""), rows))
    figures = ("spent", "left")
    parts = [
        (part["name"], *(_amount(part[figure], figure) for figure in figures))
        for part in facts["parts"]
    ]
    if len(parts) > 1:
        parts.append(
            ("total", *(_amount(facts["total"][figure], figure) for figure in figures))
        )
    note = "Parts are disjoint: the total is the most that any of them spent."
    console.print(
        _show.table(
            f"{ledger.path.name}: the parts",
            ("part", *figures),
            parts,
            note=note if len(facts["parts"]) > 1 else "",
        )
    )
    _print_entries(ledger, facts)


def _print_entries(ledger: "Ledger", facts: dict[str, Any]) -> None:
    """Print what a plan lists, and the last entries."""
    console = _show.console()
    if facts["plan"]:
        rows = [
            (item["purpose"], item["event"]["kind"], item["part"] or "all", item["used"])
            for item in facts["plan"]
        ]
        columns = ("purpose", "event", "part", "used")
        console.print(_show.table(f"{ledger.path.name}: the plan", columns, rows))
    entries = facts["entries"]
    if not entries:
        console.print("\nNothing was charged yet.")
        return
    lines = [
        (
            str(entry["index"]),
            entry["purpose"],
            entry["event"]["kind"],
            entry["part"] or "all",
            entry["charged"],
            entry["outcome"],
        )
        for entry in entries[-_LAST:]
    ]
    hidden = len(entries) - len(lines)
    console.print(
        _show.table(
            f"{ledger.path.name}: the entries",
            ("", "purpose", "event", "part", "cost", "outcome"),
            lines,
            right=("",),
            note=f"{_show.counted(hidden, 'earlier one')} not shown." if hidden else "",
        )
    )


def _facts(ledger: "Ledger") -> dict[str, Any]:
    """Everything that is shown about a ledger."""
    from dataclasses import asdict

    from veracal.privacy.ledger.units import Cost

    opening, entries = ledger.opening, ledger.entries()
    rule = opening.rule
    return {
        "path": str(ledger.path),
        **{key: opening.to_json()[key] for key in ("budget", "parts")},
        "kind": rule.kind,
        "words": rule.words,
        "head": entries[-1].hash if entries else ledger.head,
        "parts": [asdict(part) for part in ledger.parts()],
        "total": {"spent": asdict(ledger.spent()), "left": asdict(ledger.remaining())},
        "plan": _plan(ledger),
        "entries": [
            {**entry.to_json(), "charged": opening.figure(Cost(entry.cost, entry.cost_delta))}
            for entry in entries
        ],
    }


def _plan(ledger: "Ledger") -> list[dict[str, Any]]:
    """Items of a plan, and how often each was used."""
    return [
        {**item.to_json(), "used": f"{used} of {item.times}"} for item, used in ledger.planned()
    ]


def _amount(amount: dict[str, float], figure: str) -> str:
    """Write a part of a budget: never less than was spent, nor more than is left."""
    from veracal.privacy.costs.statement import rounded_down, rounded_up

    rounded = rounded_down if figure == "left" else rounded_up
    delta = f", delta {rounded(amount['delta'])}" if amount["delta"] else ""
    return f"epsilon {rounded(amount['epsilon'], 6)}{delta}"
