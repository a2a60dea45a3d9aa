"""The command that checks whether this machine can keep the privacy guarantees."""

from typing import Annotated

import typer

from veracal.cli import _output

app = typer.Typer(add_completion=False)


@app.command(epilog="Example:  veracal doctor")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the environment, the noise and the ledger.

    Draws noise of every kind and tests its distribution (with a false alarm in
    one run of a million), writes a temporary ledger in this folder, and lists
    versions and extras. Exits with 1 if a check fails. A missing extra is not a
    failure.
    """
    from veracal.cli import _checkup

    with _output.progress_bar("Drawing noise"):
        checkup = _checkup.run_checks()
    if json:
        _output.print_json(checkup.to_json())
    else:
        _checkup.show(checkup)
    for check in checkup.failed:
        _output.print_status(f"error: {check.name}: {check.result} {check.remedy}".rstrip())
    if checkup.failed:
        raise typer.Exit(1)
