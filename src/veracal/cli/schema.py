"""Commands about schemas."""

from pathlib import Path
from typing import Annotated

import typer

from veracal.cli._show import print_json, status

app = typer.Typer(no_args_is_help=True, help="Declare what is publicly known about a table.")


@app.command(
    epilog="Example:  veracal schema draft visits.csv --target readmitted --out visits.toml"
)
def draft(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, Arrow or npz file.")],
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="Column that says whom a row belongs to.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Column to tell results apart by.")
    ] = None,
    header: Annotated[
        bool, typer.Option(help="Whether the first line names the columns.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Write here instead of to stdout.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Propose a schema for FILE, warning of every field that was read from the records."""
    from veracal.data.draft import draft as propose
    from veracal.data.files import write_new

    proposal = propose(file, target=target, unit=unit, groups=group or (), header=header)
    if out is not None:
        write_new(out, proposal.text)
    if json:
        fields = [{"field": w.field, "warning": w.message} for w in proposal.warnings]
        print_json({"schema": proposal.text, "warnings": fields})
    elif out is None:
        typer.echo(proposal.text, nl=False)
    for warning in proposal.warnings:
        status(f"warning: {warning.field}: {warning.message}")
    status(
        f"{len(proposal.warnings)} fields must be replaced by public knowledge; then delete "
        "the line 'draft = true'."
    )


@app.command(epilog="Example:  veracal schema check visits.toml")
def check(
    schema: Annotated[Path, typer.Argument(help="TOML file.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that SCHEMA makes sense by itself, without reading any record."""
    from veracal.data.schema import Schema

    declared = Schema.load(schema)
    figures = {
        "name": declared.name,
        "columns": len(declared.columns),
        "features": len(declared.feature_names),
        "classes": list(declared.classes),
        "groups": list(declared.groups),
        "unit": declared.unit,
        "at_most": declared.at_most,
        "size": declared.size,
        "norm": declared.norm,
    }
    if json:
        print_json(figures)
    else:
        for name, value in figures.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            typer.echo(f"{name:>9}  {'not declared' if value in (None, []) else shown}")
