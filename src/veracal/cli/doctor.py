"""The command that looks whether this machine can keep the promises."""

from typing import Annotated

import typer

from veracal.cli import _output as _show

app = typer.Typer(add_completion=False)


@app.command(epilog="Example:  veracal doctor")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the environment, and that noise has the law it is taken for.

    Draws some noise of every kind and tests its law (a machine that is well
    fails about once in a million runs), makes a ledger in this folder and removes
    it, and lists versions and extras. Exit code 1 if something is wrong; an extra
    that is not installed is not.
    """
    from veracal.cli import _checkup

    with _show.progress_bar("Drawing noise"):
        found = _checkup.checked()
    if json:
        _show.print_json(found.to_json())
    else:
        _checkup.show(found)
    for check in found.wrong:
        _show.status(f"error: {check.name}: {check.found} {check.remedy}".rstrip())
    if found.wrong:
        raise typer.Exit(1)
