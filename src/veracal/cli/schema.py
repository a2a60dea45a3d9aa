"""Commands about schemas."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from veracal.data import Draft


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
    slot: Annotated[
        str | None,
        typer.Option(help="For replace-one: column with the id of a row's place."),
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Column to tell results apart by.")
    ] = None,
    header: Annotated[
        bool, typer.Option(help="Whether the first line names the columns.")
    ] = True,
    separator: Annotated[
        str | None, typer.Option(help="Character between fields, if not as the suffix tells.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write here instead of to stdout.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Propose a schema for FILE, warning of every field that was read from the records."""
    from veracal.data import draft as propose
    from veracal.data import new_file, write_new

    if out is not None:
        new_file(out)  # before the work, not after it
    with _show.progress_bar(f"Reading {file.name}") as progress:
        proposal = propose(
            file,
            target=target,
            unit=unit,
            slot=slot,
            groups=group or (),
            header=header,
            separator="\t" if separator == "\\t" else separator,
            progress=progress,
        )
    text = _show.visible(proposal.text, keep="\n")
    if out is not None:
        write_new(out, text)
    if json:
        fields = [
            {"where": w.where, "field": w.field, "warning": w.reason} for w in proposal.warnings
        ]
        _show.print_json({"schema": text, "warnings": fields})
    elif out is None:
        typer.echo(text, nl=False)
    _warn(proposal)
    if out is not None:
        _show.status(
            "To train on it, also write size = … at its top: about how many records there are, "
            f"by public knowledge. Then:  veracal fit {shlex.quote(str(file))} --schema "
            f"{shlex.quote(str(out))} --epsilon 3"
        )


def _warn(proposal: "Draft") -> None:
    """Say what was read, one line for each column, and how much there is to do."""
    fields: dict[tuple[str, str], list[str]] = {}
    for warned in proposal.warnings:
        fields.setdefault((warned.where, warned.reason), []).append(warned.field)
    for (where, reason), names in fields.items():
        _show.status(f"warning: {where}: {reason}: {', '.join(names)}")
    empty = sum(warned.reason == "to be filled in" for warned in proposal.warnings)
    read = _show.counted(len(proposal.warnings) - empty, "field")
    filled = f", fill in {_show.counted(empty, 'field')}" if empty else ""
    _show.status(
        f"Replace {read} by public knowledge{filled}, then delete the line 'draft = true'."
    )


@app.command(epilog="Example:  veracal schema check visits.toml")
def check(
    schema: Annotated[Path, typer.Argument(help="TOML file.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that SCHEMA makes sense by itself, without reading any record."""
    from veracal.data import Schema

    declared = Schema.load(schema)
    figures = {
        "name": declared.name,
        "columns": len(declared.columns),
        "features": len(declared.feature_names),
        "classes": list(declared.classes),
        "groups": list(declared.groups),
        "unit": declared.unit,
        "at_most": declared.at_most,
        "slot": declared.slot,
        "size": declared.size,
        "norm": declared.norm,
    }
    if json:
        _show.print_json(figures)
    else:
        for name, value in figures.items():
            shown = _show.listed(value) if isinstance(value, list) else value
            _show.say(f"{name:>9}  {'not declared' if value in (None, []) else shown}")
