"""The command ``report``: render the report of a saved classifier."""

from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _options, _output

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(epilog="Example:  veracal report model --out report.html")
def report(
    model: _options.Model,
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file; by default the name of MODEL with '-report.html'."),
    ] = None,
    force: _options.Force = False,
    json: _options.Json = False,
) -> None:
    """Render the report of MODEL from its released results.

    Reads only the results in the folder, no records and no ledger: it has no
    privacy cost, and may be published like the model.
    """
    from veracal.cli._artifacts import read_results
    from veracal.data import atomic_file, check_output_path

    path = Path(f"{model.resolve().name}-report.html") if out is None else out
    _output.check_new(path, force=force)
    check_output_path(path, force=force)
    results = read_results(model)
    from veracal.report import render  # slow to import, after errors about the folder

    text = render(results)
    with atomic_file(path, force=force) as file:
        file.write(text.encode())
    path.chmod(0o644)  # it may be published
    if json:
        _output.print_json({"model": str(model), "out": str(path), "bytes": len(text.encode())})
    else:
        _output.print_line(str(path))
