"""The commands that draft and check schemas."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _options, _output

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Declare what is publicly known about a table.",
)


@app.command(
    epilog="Example:  veracal schema draft visits.csv --target readmitted --out visits.toml"
)
def draft(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, Arrow or npz file.")],
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    unit: _options.UnitColumn = None,
    slot: Annotated[
        str | None,
        typer.Option(help="For replace-one: column with the slot id of a row."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="Column by which figures are broken down. May be repeated."),
    ] = None,
    header: Annotated[
        bool, typer.Option(help="Whether the first line names the columns.")
    ] = True,
    separator: Annotated[
        str | None,
        typer.Option(help="Character between fields; by default that of the file's suffix."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of stdout.")
    ] = None,
    json: _options.Json = False,
) -> None:
    """Draft a schema for FILE, with a warning for each field that was read from the records."""
    from veracal.data import draft as propose
    from veracal.data import new_file, write_new_text

    if out is not None:
        new_file(out)  # fail before the work
    with _output.progress_bar(f"Reading {file.name}") as progress:
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
    text = _output.escape_text(proposal.text, keep="\n")
    if out is not None:
        write_new_text(out, text)
    if json:
        listed = [
            {"where": w.where, "field": w.field, "warning": w.reason} for w in proposal.warnings
        ]
        _output.print_json({"schema": text, "warnings": listed})
    elif out is None:
        typer.echo(text, nl=False)
    fields: dict[tuple[str, str], list[str]] = {}  # one line for each column and reason
    for warning in proposal.warnings:
        fields.setdefault((warning.where, warning.reason), []).append(warning.field)
    for (where, reason), names in fields.items():
        _output.print_status(f"warning: {where}: {reason}: {', '.join(names)}")
    empty = sum(warning.reason == "to be filled in" for warning in proposal.warnings)
    read = _output.format_count(len(proposal.warnings) - empty, "field")
    filled = f", fill in {_output.format_count(empty, 'field')}" if empty else ""
    _output.print_status(
        f"Replace {read} by public knowledge{filled}, then delete the line 'draft = true'."
    )
    if out is not None:
        _output.print_status(
            "To train on it, also write size = … at its top: the approximate number of "
            "records, from public knowledge. Then:  veracal fit "
            f"{shlex.quote(str(file))} --schema "
            f"{shlex.quote(str(out))} --epsilon 3"
        )


@app.command(epilog="Example:  veracal schema check visits.toml")
def check(
    schema: Annotated[Path, typer.Argument(help="TOML file.")],
    json: _options.Json = False,
) -> None:
    """Check that SCHEMA is valid, without reading any record."""
    from veracal.data import Schema

    declared = Schema.load(schema)
    figures = {
        "name": declared.name,
        "columns": len(declared.columns),
        "features": len(declared.feature_names),
        "classes": list(declared.classes),
        "groups": list(declared.groups),
        "unit": declared.unit,
        "max_contributions": declared.max_contributions,
        "slot": declared.slot,
        "size": declared.size,
        "norm": declared.norm,
    }
    if json:
        _output.print_json(figures)
    else:
        for name, value in figures.items():
            text = _output.format_list(value) if isinstance(value, list) else value
            _output.print_line(f"{name:>9}  {'not declared' if value in (None, []) else text}")
