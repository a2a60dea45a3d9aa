"""The commands that open, extend, show and verify ledgers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output

if TYPE_CHECKING:
    from veracal.ledger import Entry, Ledger, LedgerRun, Opening


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Open, extend, show and verify privacy ledgers.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
File = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="Ledger file, or a data file or built-in data set with a default ledger.",
    ),
]
_LAST = 20  # entries to show
_SPLIT = ("train", "test")  # partitions of a data set's default ledger


@app.command("list", epilog="Example:  veracal ledger list")
def list_(json: Json = False) -> None:
    """List the default ledgers with their data, caps, spending and pending charges.

    Their folder is $VERACAL_LEDGERS, or else $XDG_DATA_HOME/veracal/ledgers, by default
    ~/.local/share/veracal/ledgers.
    """
    from veracal.ledger import default_folder, list_default_ledgers

    rows = [_row(path) for path in list_default_ledgers()]
    if json:
        folder = str(default_folder(create=False))
        _output.print_json({"folder": folder, "ledgers": rows})
        return
    if not rows:
        _output.print_line(f"There is no ledger in {default_folder(create=False)}.")
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
    console = _output.console()
    title = f"Ledgers in {default_folder(create=False)}"
    console.print(_output.table(title, columns, lines, right=("runs", "pending")))
    for row in rows:
        if row["problem"]:
            _output.print_status(f"error: {row['problem']}")


@app.command(
    "open",
    epilog="Example:  veracal ledger open study.ledger --epsilon 1 --unit patient\n\n"
    "veracal ledger open --data visits.csv --epsilon 3 --delta 1e-6",
)
def open_(
    epsilon: Annotated[float, typer.Option(help="Cap on the cost of all releases together.")],
    path: Annotated[
        Path | None, typer.Argument(metavar="[LEDGER]", help="New file, on a local disk.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Cap on delta; 0 for pure differential privacy.")
    ] = 0.0,
    data: Annotated[
        str | None,
        typer.Option(help="Data file or built-in data set: open its default ledger."),
    ] = None,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit: Annotated[str, typer.Option(help="Unit to protect: record, patient, …")] = "record",
    max_contributions: Annotated[int, typer.Option(help="Most rows of one unit.")] = 1,
    kind: Annotated[
        str | None,
        typer.Option(help="pure, open or plan; the default follows from --delta and --plan."),
    ] = None,
    composition: Annotated[
        str | None,
        typer.Option(help="For kind open: rdp (default) or addition (default with --data)."),
    ] = None,
    order: Annotated[
        float | None, typer.Option(help="For rdp: order of the Rényi divergence.")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="TOML or JSON file with all events, charged at once.")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Disjoint partition of the records; may be repeated. With --data: train, test."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Open a new ledger with caps on epsilon and delta, for all releases together.

    With --data, it is the default ledger of that data set, which every later run on the same
    file uses, wherever its output is.
    """
    from veracal.accounting import Budget, Unit
    from veracal.errors import VeracalError
    from veracal.ledger import default_ledger_path, open_ledger, open_ledger_for_data, read_plan

    if path is None and data is None:
        raise typer.BadParameter("Name a new file, or a data set with --data.")
    kind = kind or ("plan" if plan else "open" if delta or data is not None else "pure")
    if data is not None and kind == "open" and composition is None and order is None:
        composition = "addition"
    place = path if path is not None else default_ledger_path(data or "")
    try:
        budget = Budget(epsilon, delta, relation, Unit(unit, max_contributions))  # type: ignore[arg-type]
        settings: dict[str, Any] = {
            "kind": kind,
            "composition": composition,
            "order": order,
            "plan": None if plan is None else read_plan(plan),
            "partitions": tuple(part or (("records",) if data is None else _SPLIT)),
        }
        if data is None:
            ledger = open_ledger(place, budget, **settings)
        else:
            ledger = open_ledger_for_data(place, budget, data, **settings)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _print_ledger(ledger, json=json)


@app.command(
    epilog="Example:  veracal ledger extend visits.csv --epsilon 1 --delta 1e-6",
)
def extend(
    path: File,
    epsilon: Annotated[
        float, typer.Option(help="Amount by which to raise the cap on epsilon.")
    ],
    delta: Annotated[
        float, typer.Option(help="Amount by which to raise the cap on delta.")
    ] = 0.0,
    json: Json = False,
) -> None:
    """Raise the caps of a ledger, by another filter that is recorded in its chain.

    Each run must fit into one filter, and the totals add up. Earlier releases may have
    influenced the decision, so every later statement says that the cap was raised.
    """
    from veracal.errors import VeracalError

    ledger = _ledger(path)
    try:
        ledger.extend(epsilon=epsilon, delta=delta)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _print_ledger(ledger, json=json)


@app.command(
    epilog="Example:  veracal ledger abandon visits.csv --request r1\n\n"
    "veracal ledger abandon visits.csv --run 2",
)
def abandon(
    path: File,
    request: Annotated[
        str | None, typer.Option(help="Id of a pending charge, as 'ledger show' prints it.")
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(help="Number of a run; without --request, abandon the whole run."),
    ] = None,
    json: Json = False,
) -> None:
    """Abandon a pending charge or a run. Nothing is refunded, and it cannot be resumed."""
    from veracal.errors import LedgerError
    from veracal.ledger import Ledger

    ledger = _ledger(path)
    if request is None and run is None:
        raise typer.BadParameter("Name a pending charge with --request, or a run with --run.")
    if request is None:
        ledger.abandon_run(run)
    else:
        runs = {entry.run for entry in ledger.pending() if entry.request == request}
        if run is None and len(runs) > 1:
            raise LedgerError(
                f"Request {request!r} is pending in several runs: name one of them with --run."
            )
        Ledger(ledger.path, run if run is not None else next(iter(runs), None)).abandon(request)
    _print_ledger(ledger, json=json)


@app.command(epilog="Example:  veracal ledger show study.ledger --statement")
def show(
    path: File,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the full guarantee of the ledger.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the caps, partitions, runs and entries of a ledger."""
    from veracal.ledger import ledger_statement

    ledger = _ledger(path)
    if not statement:
        _print_ledger(ledger, json=json)
        return
    guarantee = ledger_statement(ledger)
    if json:
        _output.print_json(guarantee.to_json())
    else:
        typer.echo(_output.escape_text(guarantee.text(), keep="\n"))


@app.command(epilog="Example:  veracal ledger verify study.ledger --json")
def verify(
    path: File,
    head: Annotated[
        str | None, typer.Option(help="A head recorded earlier, which the chain must contain.")
    ] = None,
    json: Json = False,
) -> None:
    """Recompute all hashes, costs and sums of a ledger; exit 1 if one is wrong."""
    from veracal.errors import LedgerError

    problems: tuple[str, ...] = ()
    try:
        ledger = _ledger(path)
        verified = ledger.verify(head)
    except LedgerError as error:
        verified, problems = "", error.problems
    if json:
        _output.print_json(
            {"valid": not problems, "head": verified or None, "problems": list(problems)}
        )
    elif problems:
        for problem in problems:
            _output.print_status(f"error: {problem}")
    else:
        charges = sum(entry.event is not None for entry in ledger.entries())
        count = _output.format_count(charges, "charge")
        _output.print_line(f"{path}: {count}; all hashes, costs and sums are correct.")
        _output.print_line(f"head  {verified}")
    if problems:
        raise typer.Exit(1)


@app.command(epilog="Example:  veracal ledger export study.ledger > study.json")
def export(
    path: File,
    answers: Annotated[
        bool, typer.Option("--answers", help="Include the answers, in hexadecimal.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="No effect: the output is always JSON.")
    ] = True,
) -> None:
    """Print a ledger as one JSON object, with everything needed to verify its chain.

    Answers were released, but perhaps not to the public: without --answers, their hashes
    replace them.
    """
    _output.print_json(_ledger(path).to_json(answers=answers))


def _ledger(given: str) -> "Ledger":
    """Open the ledger of an argument."""
    from veracal.ledger import Ledger, resolve_ledger

    return Ledger(resolve_ledger(given))


def _row(path: Path) -> dict[str, Any]:
    """Figures of one ledger for the list."""
    from dataclasses import asdict

    from veracal.errors import VeracalError
    from veracal.ledger import Ledger, read_data_path

    row: dict[str, Any] = {"name": path.name, "path": str(path), "source": read_data_path(path)}
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
    except VeracalError as error:  # a damaged ledger must not hide the others
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


def _print_ledger(ledger: "Ledger", *, json: bool) -> None:
    """Print a ledger as tables or as one JSON object."""
    from veracal.accounting import format_up

    facts = _facts(ledger)
    if json:
        _output.print_json(facts)
        return
    console, budget = _output.console(), ledger.budget
    rows = [
        (
            "guarantee",
            f"epsilon {format_up(budget.epsilon, 6)}, delta {format_up(budget.delta)}",
        ),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("kind", facts["words"]),
        *([("data", facts["data"])] if facts["data"] else []),
        *([("note", facts["note"])] if facts["note"] else []),
        ("head", facts["head"]),
    ]
    console.print(_output.table(f"{ledger.path.name}: the budget", ("", ""), rows))
    figures = ("spent", "left")
    parts = [
        (part["name"], *(_amount(part[figure], figure) for figure in figures))
        for part in facts["parts"]
    ]
    if len(parts) > 1:
        parts.append(
            ("total", *(_amount(facts["total"][figure], figure) for figure in figures))
        )
    note = "Partitions are disjoint: the total is the largest of them."
    console.print(
        _output.table(
            f"{ledger.path.name}: the partitions",
            ("partition", *figures),
            parts,
            note=note if len(facts["parts"]) > 1 else "",
        )
    )
    _print_runs(ledger, facts)
    _print_entries(ledger, facts)


def _print_runs(ledger: "Ledger", facts: dict[str, Any]) -> None:
    """Print the runs and the pending charges."""
    console = _output.console()
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
        columns = ("", "run", "partition", "cost", "filter", "")
        console.print(_output.table(f"{ledger.path.name}: the runs", columns, rows))
    if facts["pending"]:
        pending = [
            (entry["request"], entry["purpose"], str(entry["run"] or ""))
            for entry in facts["pending"]
        ]
        console.print(
            _output.table(
                f"{ledger.path.name}: pending charges",
                ("request", "purpose", "run"),
                pending,
                note="Repeat the command that made the charge, or abandon it: `veracal ledger "
                "abandon LEDGER --request …`. Nothing is refunded.",
            )
        )


def _print_entries(ledger: "Ledger", facts: dict[str, Any]) -> None:
    """Print the items of a plan, and the last entries."""
    console = _output.console()
    if facts["plan"]:
        rows = [
            (item["purpose"], item["event"]["kind"], item["part"] or "all", item["used"])
            for item in facts["plan"]
        ]
        columns = ("purpose", "event", "partition", "used")
        console.print(_output.table(f"{ledger.path.name}: the plan", columns, rows))
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
        _output.table(
            f"{ledger.path.name}: the entries",
            ("", "purpose", "event", "partition", "cost", "outcome"),
            lines,
            right=("",),
            note=f"{_output.format_count(hidden, 'earlier one')} not shown." if hidden else "",
        )
    )


def _facts(ledger: "Ledger") -> dict[str, Any]:
    """All facts about a ledger."""
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
        "parts": [asdict(balance) for balance in ledger.partitions()],
        "total": {"spent": asdict(ledger.spent()), "left": asdict(ledger.remaining())},
        "plan": _plan(ledger),
        "runs": [_run(ledger, run) for run in ledger.runs()],
        "pending": [entry.to_json() for entry in ledger.pending()],
        "entries": [
            {**entry.to_json(), "charged": _charged(opening, entry)} for entry in entries
        ],
    }


def _charged(opening: "Opening", entry: "Entry") -> str:
    """Cost of an entry, in words."""
    from veracal.ledger import Cost

    if entry.event is None:
        return ""
    if entry.run is not None and entry.outcome != "run":
        return f"of run {entry.run}"
    return opening.figure(Cost(entry.cost, entry.cost_delta))


def _outcome(entry: dict[str, Any]) -> str:
    """Outcome of an entry, and the entry that it settles."""
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
    """Format a part of a budget, rounding spending up and the rest down."""
    from veracal.accounting import format_down, format_up

    rounded = format_down if figure == "left" else format_up
    delta = f", delta {rounded(amount['delta'])}" if amount["delta"] else ""
    return f"epsilon {rounded(amount['epsilon'], 6)}{delta}"
