"""Commands about ledgers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from veracal.ledger import Entry, Ledger, LedgerRun, Opening


app = typer.Typer(
    no_args_is_help=True, help="Open, look at, verify and extend privacy ledgers."
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
File = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="Ledger file; or a data file or built-in data set, whose default ledger is meant.",
    ),
]
_LAST = 20  # entries that are shown
_SPLIT = ("train", "test")  # parts of a data set's own ledger


@app.command("list", epilog="Example:  veracal ledger list")
def list_(json: Json = False) -> None:
    """List the default ledgers: of which data, what was spent, what is left, what is pending.

    They are in $VERACAL_LEDGERS, or in $XDG_DATA_HOME/veracal/ledgers, by default
    ~/.local/share/veracal/ledgers.
    """
    from veracal.ledger import default_folder, default_ledgers

    rows = [_row(path) for path in default_ledgers()]
    if json:
        folder = str(default_folder(create=False))
        _show.print_json({"folder": folder, "ledgers": rows})
        return
    if not rows:
        _show.say(f"There is no ledger in {default_folder(create=False)}.")
        return
    columns = ("ledger", "data", "caps", "spent", "left", "runs", "pending")
    lines = [
        (
            row["name"],
            row["data"] or "",
            *(("cannot be read", "", "", "", "") if row["problem"] else _figures(row)),
        )
        for row in rows
    ]
    console = _show.console()
    title = f"Ledgers in {default_folder(create=False)}"
    console.print(_show.table(title, columns, lines, right=("runs", "pending")))
    for row in rows:
        if row["problem"]:
            _show.status(f"error: {row['problem']}")


@app.command(
    "open",
    epilog="Example:  veracal ledger open study.ledger --epsilon 1 --unit patient\n\n"
    "veracal ledger open --data visits.csv --epsilon 3 --delta 1e-6",
)
def open_(
    epsilon: Annotated[float, typer.Option(help="Most that all releases may cost.")],
    path: Annotated[
        Path | None, typer.Argument(metavar="[LEDGER]", help="New file, on a local disk.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Failure probability; 0 for pure.")] = 0.0,
    data: Annotated[
        str | None,
        typer.Option(help="Data file or built-in data set whose default ledger to open."),
    ] = None,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit: Annotated[str, typer.Option(help="Whom to protect: record, patient, …")] = "record",
    at_most: Annotated[int, typer.Option(help="Most rows of one unit.")] = 1,
    kind: Annotated[
        str | None,
        typer.Option(help="pure, open or plan; by default as --delta and --plan ask for."),
    ] = None,
    composition: Annotated[
        str | None,
        typer.Option(
            help="Of an open ledger: rdp (default) or addition (default with --data)."
        ),
    ] = None,
    order: Annotated[float | None, typer.Option(help="Order of the Rényi divergence.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="TOML or JSON file of every event, charged at once.")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="Disjoint part of the records; repeats. With --data: train, test."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a new ledger with caps on epsilon and delta, for all releases together.

    With --data it is the default ledger of that data set, which every later run on the same
    file uses, wherever its results are put.
    """
    from veracal.accounting import Budget, Unit
    from veracal.errors import VeracalError
    from veracal.ledger import default_ledger_path, open_for_data, open_ledger, read_plan

    if path is None and data is None:
        raise typer.BadParameter("Name a new file, or a data set with --data.")
    kind = kind or ("plan" if plan else "open" if delta or data is not None else "pure")
    if data is not None and kind == "open" and composition is None and order is None:
        composition = "addition"
    place = path if path is not None else default_ledger_path(data or "")
    try:
        budget = Budget(epsilon, delta, relation, Unit(unit, at_most))  # type: ignore[arg-type]
        settings: dict[str, Any] = {
            "kind": kind,
            "composition": composition,
            "order": order,
            "plan": None if plan is None else read_plan(plan),
            "parts": tuple(part or (("records",) if data is None else _SPLIT)),
        }
        if data is None:
            ledger = open_ledger(place, budget, **settings)
        else:
            ledger = open_for_data(place, budget, data, **settings)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _report(ledger, json=json)


@app.command(
    epilog="Example:  veracal ledger extend visits.csv --epsilon 1 --delta 1e-6",
)
def extend(
    path: File,
    epsilon: Annotated[float, typer.Option(help="By how much to raise the cap.")],
    delta: Annotated[float, typer.Option(help="By how much to raise that on delta.")] = 0.0,
    json: Json = False,
) -> None:
    """Raise the caps of a ledger, by a second filter that is recorded in its chain.

    Each run must fit wholly into one filter, and the totals add. What was released before may
    have led to this, so every later statement says that the cap was raised after releases.
    """
    from veracal.errors import VeracalError

    ledger = _ledger(path)
    try:
        ledger.extend(epsilon=epsilon, delta=delta)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _report(ledger, json=json)


@app.command(
    epilog="Example:  veracal ledger abandon visits.csv --request r1\n\n"
    "veracal ledger abandon visits.csv --run 2",
)
def abandon(
    path: File,
    request: Annotated[
        str | None, typer.Option(help="Id of a pending reservation, as `show` prints it.")
    ] = None,
    run: Annotated[
        int | None, typer.Option(help="Number of a run; alone, the whole run is abandoned.")
    ] = None,
    json: Json = False,
) -> None:
    """Give up a pending reservation or a run. Nothing is refunded, and it is never resumed."""
    from veracal.errors import LedgerError
    from veracal.ledger import Ledger

    ledger = _ledger(path)
    if request is None and run is None:
        raise typer.BadParameter("Name a reservation with --request, or a run with --run.")
    if request is None:
        ledger.abandon_run(run)
    else:
        runs = {entry.run for entry in ledger.pending() if entry.request == request}
        if run is None and len(runs) > 1:
            raise LedgerError(
                f"Request {request!r} is pending in several runs: name one of them with --run."
            )
        Ledger(ledger.path, run if run is not None else next(iter(runs), None)).abandon(request)
    _report(ledger, json=json)


@app.command(epilog="Example:  veracal ledger show study.ledger --statement")
def show(
    path: File,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print what the ledger promises, in full.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a ledger: its caps, what each part spent and has left, its runs and entries."""
    from veracal.ledger import ledger_statement

    ledger = _ledger(path)
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

    problems: tuple[str, ...] = ()
    try:
        ledger = _ledger(path)
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
        charges = sum(entry.event is not None for entry in ledger.entries())
        count = _show.counted(charges, "charge")
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
    _show.print_json(_ledger(path).to_json(answers=answers))


def _ledger(given: str) -> "Ledger":
    """The ledger that an argument means."""
    from veracal.ledger import Ledger, resolve_ledger

    return Ledger(resolve_ledger(given))


def _row(path: Path) -> dict[str, Any]:
    """What is listed of one ledger."""
    from dataclasses import asdict

    from veracal.errors import VeracalError
    from veracal.ledger import Ledger, noted_data

    row: dict[str, Any] = {"name": path.name, "path": str(path), "source": noted_data(path)}
    try:
        ledger = Ledger(path)
        budget = ledger.budget
        return {
            **row,
            "data": ledger.opening.data,
            "caps": {"epsilon": budget.epsilon, "delta": budget.delta},
            "note": ledger.cap_note,
            "spent": asdict(ledger.spent()),
            "left": asdict(ledger.remaining()),
            "runs": len(ledger.runs()),
            "pending": len(ledger.pending()),
            "problem": None,
        }
    except VeracalError as error:  # one ledger that is damaged does not hide the others
        return {**row, "data": None, "problem": str(error)}


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    """Figures of a listed ledger, for a table."""
    return (
        _amount(row["caps"], "caps"),
        _amount(row["spent"], "spent"),
        _amount(row["left"], "left"),
        str(row["runs"]),
        str(row["pending"]),
    )


def _report(ledger: "Ledger", *, json: bool) -> None:
    """Print a ledger as tables or as one JSON object."""
    from veracal.accounting import rounded_up

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
        *([("data", facts["data"])] if facts["data"] else []),
        *([("note", facts["note"])] if facts["note"] else []),
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
    _print_runs(ledger, facts)
    _print_entries(ledger, facts)


def _print_runs(ledger: "Ledger", facts: dict[str, Any]) -> None:
    """Print the runs, and what is pending."""
    console = _show.console()
    if facts["runs"]:
        rows = [
            (
                str(run["number"]),
                run["name"],
                part,
                _amount({"epsilon": epsilon, "delta": run["deltas"][part]}, "spent"),
                str(run["filter"]),
                run["state"],
            )
            for run in facts["runs"]
            for part, epsilon in run["epsilons"].items()
        ]
        columns = ("", "run", "part", "cost", "filter", "")
        console.print(_show.table(f"{ledger.path.name}: the runs", columns, rows))
    if facts["pending"]:
        pending = [
            (entry["request"], entry["purpose"], str(entry["run"] or ""))
            for entry in facts["pending"]
        ]
        console.print(
            _show.table(
                f"{ledger.path.name}: reserved, and not settled",
                ("request", "purpose", "run"),
                pending,
                note="Repeat the command that reserved it, or give it up: `veracal ledger "
                "abandon LEDGER --request …`. Nothing is refunded.",
            )
        )


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
            entry["event"]["kind"] if entry["event"] else "",
            entry["part"] or "all",
            entry["charged"],
            _outcome(entry),
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

    opening, entries = ledger.opening, ledger.entries()
    rule, budget = opening.rule, ledger.budget
    return {
        "path": str(ledger.path),
        **{key: opening.to_json()[key] for key in ("budget", "parts", "data", "split")},
        "caps": {"epsilon": budget.epsilon, "delta": budget.delta},
        "extensions": [asdict(one) for one in ledger.extensions],
        "note": ledger.cap_note,
        "kind": rule.kind,
        "words": rule.description,
        "head": entries[-1].hash if entries else ledger.head,
        "parts": [asdict(part) for part in ledger.parts()],
        "total": {"spent": asdict(ledger.spent()), "left": asdict(ledger.remaining())},
        "plan": _plan(ledger),
        "runs": [_run(ledger, run) for run in ledger.runs()],
        "pending": [entry.to_json() for entry in ledger.pending()],
        "entries": [
            {**entry.to_json(), "charged": _charged(opening, entry)} for entry in entries
        ],
    }


def _charged(opening: "Opening", entry: "Entry") -> str:
    """What an entry cost, for people."""
    from veracal.ledger import Cost

    if entry.event is None:
        return ""
    if entry.run is not None and entry.outcome != "run":
        return f"of run {entry.run}"
    return opening.figure(Cost(entry.cost, entry.cost_delta))


def _outcome(entry: dict[str, Any]) -> str:
    """What became of an entry, or what it settles."""
    settles = entry["settles"]
    return str(entry["outcome"]) + ("" if settles is None else f" (entry {settles})")


def _run(ledger: "Ledger", run: "LedgerRun") -> dict[str, Any]:
    """A run, and how often its items were used."""
    from veracal.ledger import Ledger

    planned = Ledger(ledger.path, run.number).planned()
    return {
        "number": run.number,
        "name": run.name,
        "request": run.request,
        "filter": run.filter,
        "epsilons": dict(run.epsilons),
        "deltas": dict(run.deltas),
        "state": "abandoned" if run.abandoned else "begun",
        "items": [
            {**item.to_json(), "used": f"{used} of {item.times}"} for item, used in planned
        ],
    }


def _plan(ledger: "Ledger") -> list[dict[str, Any]]:
    """Items of a plan, and how often each was used."""
    return [
        {**item.to_json(), "used": f"{used} of {item.times}"} for item, used in ledger.planned()
    ]


def _amount(amount: dict[str, float], figure: str) -> str:
    """Write a part of a budget: never less than was spent, nor more than is left."""
    from veracal.accounting import rounded_down, rounded_up

    rounded = rounded_down if figure == "left" else rounded_up
    delta = f", delta {rounded(amount['delta'])}" if amount["delta"] else ""
    return f"epsilon {rounded(amount['epsilon'], 6)}{delta}"
