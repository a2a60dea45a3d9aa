"""The command that puts two saved classifiers side by side."""

from pathlib import Path
from typing import Annotated

import typer

from veracal.cli import _show

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(epilog="Example:  veracal compare model-2025 model-2026")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Folder of 'veracal fit'.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare what models A and B promise, and how they were measured.

    Only what was released is read: the results in both folders, no record and
    no ledger, so it costs nothing. It says whether the figures can be compared
    at all, and whether noise leaves a difference between them to be seen.
    """
    import os

    from veracal.cli import _comparing

    if os.path.realpath(first) == os.path.realpath(second):
        raise typer.BadParameter("A and B are the same folder.", param_hint="B")
    found = _comparing.compared(first, second)
    if json:
        _show.print_json(found.to_json())
    else:
        _comparing.show(found)
