"""The commands that open, extend, show and verify ledgers."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _options, _output
from veracal.errors import LedgerError

if TYPE_CHECKING:
    from veracal.ledger import Entry, Ledger, LedgerRun


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Open, extend, show and verify privacy ledgers.",
)

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
def list_(json: _options.Json = False) -> None:
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
    lines = []
    for row in rows:
        figures = ["cannot be read", "", "", "", ""]
        if not row["problem"]:
            figures = [_amount(row[name], name) for name in ("caps", "spent", "left")]
            figures += [str(row["runs"]), str(row["pending"])]
        lines.append((row["name"], row["data"] or "", *figures))
    _output.print_table(
        f"Ledgers in {default_folder(create=False)}",
        ("ledger", "data", "caps", "spent", "left", "runs", "pending"),
        lines,
        right=("runs", "pending"),
    )
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
    relation: _options.Relation = "add-remove",
    unit: _options.Unit = "record",
    max_contributions: _options.UnitRows = 1,
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
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="Disjoint partition of the records. May be repeated; with --data, by default "
            "train and test."
        ),
    ] = None,
    json: _options.Json = False,
) -> None:
    """Open a new ledger with caps on epsilon and delta, for all releases together.

    With --data, it is the default ledger of that data set, which every later run on the same
    file uses, wherever its output is.
    """
    from veracal.accounting import Budget, Unit
    from veracal.ledger import default_ledger_path, open_ledger, open_ledger_for_data, read_plan

    if path is None and data is None:
        raise typer.BadParameter("Name a new file, or a data set with --data.")
    kind = kind or ("plan" if plan else "open" if delta or data is not None else "pure")
    if data is not None and kind == "open" and composition is None and order is None:
        composition = "addition"
    ledger_path = path if path is not None else default_ledger_path(data or "")
    with _output.usage_errors():
        budget = Budget(epsilon, delta, relation, Unit(unit, max_contributions))  # type: ignore[arg-type]
        settings: dict[str, Any] = {
            "kind": kind,
            "composition": composition,
            "order": order,
            "plan": None if plan is None else read_plan(plan),
            "partitions": tuple(partition or (("records",) if data is None else _SPLIT)),
        }
        if data is None:
            ledger = open_ledger(ledger_path, budget, **settings)
        else:
            ledger = open_ledger_for_data(ledger_path, budget, data, **settings)
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
    json: _options.Json = False,
) -> None:
    """Raise the caps of a ledger, by another filter that is recorded in its chain.

    Each run must fit into one filter, and the totals add up. Earlier releases may have
    influenced the decision, so every later statement says that the cap was raised.
    """
    ledger = _ledger(path)
    invalid = "--epsilon" if not epsilon > 0 else None if 0 <= delta < 1 else "--delta"
    with _output.usage_errors(invalid):
        ledger.extend(epsilon=epsilon, delta=delta)
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
    json: _options.Json = False,
) -> None:
    """Abandon a pending charge or a run. Nothing is refunded, and it cannot be resumed."""
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
        from veracal.ledger import Ledger

        Ledger(ledger.path, run if run is not None else next(iter(runs), None)).abandon(request)
    _print_ledger(ledger, json=json)


@app.command(epilog="Example:  veracal ledger show study.ledger --statement")
def show(
    path: File,
    statement: _options.FullStatement = False,
    json: _options.Json = False,
) -> None:
    """Show the caps, partitions, runs and entries of a ledger."""
    ledger = _ledger(path)
    if not statement:
        _print_ledger(ledger, json=json)
        return
    from veracal.ledger import ledger_statement

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
    json: _options.Json = False,
) -> None:
    """Recompute all hashes, costs and sums of a ledger; exit 1 if one is wrong."""
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
    if not os.path.lexists(given):
        from veracal.data import CATALOG

        if given not in CATALOG:  # known before the slow imports
            raise LedgerError(
                f"{Path(given).absolute()}: expected a ledger, but the file does not exist. "
                "Check the path, or create a ledger with `veracal ledger open`."
            )
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
            "note": ledger.caps.note,
            "spent": asdict(ledger.spent()),
            "left": asdict(ledger.remaining()),
            "runs": len(ledger.runs()),
            "pending": len(ledger.pending()),
            "problem": None,
        }
    except VeracalError as error:  # a damaged ledger must not hide the others
        return {**row, "data": None, "problem": str(error)}


def _print_ledger(ledger: "Ledger", *, json: bool) -> None:
    """Print a ledger as tables or as one JSON object."""
    from veracal.accounting import format_up

    facts = _facts(ledger)
    if json:
        _output.print_json(facts)
        return
    name, budget = ledger.path.name, ledger.budget
    amounts = f"epsilon {format_up(budget.epsilon, 6)}, delta {format_up(budget.delta)}"
    rows: list[tuple[str, ...]] = [
        ("guarantee", amounts),
        ("protects", f"{budget.unit}, under {budget.relation}"),
        ("kind", facts["words"]),
        *((key, facts[key]) for key in ("data", "note") if facts[key]),
        ("head", facts["head"]),
    ]
    _output.print_table(f"{name}: the budget", ("", ""), rows)
    several = len(facts["partitions"]) > 1
    parts = [*facts["partitions"], *([{"name": "total", **facts["total"]}] if several else [])]
    rows = [
        (p["name"], _amount(p["spent"], "spent"), _amount(p["left"], "left")) for p in parts
    ]
    note = "Partitions are disjoint: the total is the largest of them." if several else ""
    _output.print_table(
        f"{name}: the partitions", ("partition", "spent", "left"), rows, note=note
    )
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
        columns: tuple[str, ...] = ("", "run", "partition", "cost", "filter", "")
        _output.print_table(f"{name}: the runs", columns, rows)
    if facts["pending"]:
        _output.print_table(
            f"{name}: pending charges",
            ("request", "purpose", "run"),
            [(e["request"], e["purpose"], str(e["run"] or "")) for e in facts["pending"]],
            note="Repeat the command that made the charge, or abandon it: `veracal ledger "
            "abandon LEDGER --request …`. Nothing is refunded.",
        )
    _print_entries(name, facts)


def _print_entries(name: str, facts: dict[str, Any]) -> None:
    """Print the items of a plan, and the last entries."""
    rows: list[tuple[str, ...]]
    if facts["plan"]:
        rows = [
            (item["purpose"], item["event"]["kind"], item["partition"] or "all", item["used"])
            for item in facts["plan"]
        ]
        columns = ("purpose", "event", "partition", "used")
        _output.print_table(f"{name}: the plan", columns, rows)
    entries = facts["entries"]
    if not entries:
        _output.console().print("\nNothing was charged yet.")
        return
    rows = [
        (
            str(entry["index"]),
            entry["purpose"],
            entry["event"]["kind"] if entry["event"] else "",
            entry["partition"] or "all",
            entry["charged"],
            str(entry["outcome"])
            + ("" if entry["settles"] is None else f" (entry {entry['settles']})"),
        )
        for entry in entries[-_LAST:]
    ]
    hidden = len(entries) - len(rows)
    _output.print_table(
        f"{name}: the entries",
        ("", "purpose", "event", "partition", "cost", "outcome"),
        rows,
        right=("",),
        note=f"{_output.format_count(hidden, 'earlier one')} not shown." if hidden else "",
    )


def _facts(ledger: "Ledger") -> dict[str, Any]:
    """All facts about a ledger."""
    from dataclasses import asdict

    from veracal.ledger import Cost, Ledger

    opening, entries = ledger.opening, ledger.entries()
    rule, budget = opening.rule, ledger.budget

    def items(one: "Ledger") -> list[dict[str, Any]]:
        return [
            {**item.to_json(), "used": f"{used} of {item.times}"}
            for item, used in one.planned()
        ]

    def run_facts(run: "LedgerRun") -> dict[str, Any]:
        return {
            "number": run.number,
            "name": run.name,
            "request": run.request,
            "filter": run.filter,
            "epsilons": dict(run.epsilons),
            "deltas": dict(run.deltas),
            "state": "abandoned" if run.abandoned else "active",
            "items": items(Ledger(ledger.path, run.number)),
        }

    def charged(entry: "Entry") -> str:
        if entry.event is None:
            return ""
        if entry.run is not None and entry.outcome != "run":
            return f"of run {entry.run}"
        return opening.figure(Cost(entry.cost, entry.cost_delta))

    return {
        "path": str(ledger.path),
        **{key: opening.to_json()[key] for key in ("budget", "data", "split")},
        "caps": {"epsilon": budget.epsilon, "delta": budget.delta},
        "extensions": [asdict(one) for one in ledger.caps.extensions],
        "note": ledger.caps.note,
        "kind": rule.kind,
        "words": rule.description,
        "head": entries[-1].hash if entries else ledger.head,
        "partitions": [asdict(balance) for balance in ledger.partitions()],
        "total": {"spent": asdict(ledger.spent()), "left": asdict(ledger.remaining())},
        "plan": items(ledger),
        "runs": [run_facts(run) for run in ledger.runs()],
        "pending": [entry.to_json() for entry in ledger.pending()],
        "entries": [{**entry.to_json(), "charged": charged(entry)} for entry in entries],
    }


def _amount(amount: dict[str, float], figure: str) -> str:
    """Format a part of a budget, rounding spending up and the rest down."""
    from veracal.accounting import format_down, format_up

    rounded = format_down if figure == "left" else format_up
    delta = f", delta {rounded(amount['delta'])}" if amount["delta"] else ""
    return f"epsilon {rounded(amount['epsilon'], 6)}{delta}"
