"""The command ``report``: render the report of a saved classifier."""

from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _output as _show

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(epilog="Example:  veracal report model --out report.html")
def report(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of 'veracal fit'.")],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file; by default the name of MODEL with '-report.html'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Render the report of MODEL from its released results.

    Reads only the results in the folder, no records and no ledger: it has no
    privacy cost, and may be published like the model.
    """
    from veracal import report as reports
    from veracal.cli._artifacts import read_results
    from veracal.cli._output import check_new
    from veracal.data import atomic_file, check_output_path

    path = Path(f"{model.resolve().name}-report.html") if out is None else out
    check_new(path, force=force)
    check_output_path(path, force=force)
    text = reports.render(read_results(model))
    with atomic_file(path, force=force) as file:
        file.write(text.encode())
    path.chmod(0o644)  # it may be published
    if json:
        _show.print_json({"model": str(model), "out": str(path), "bytes": len(text.encode())})
    else:
        _show.print_line(str(path))
