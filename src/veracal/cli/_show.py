"""What commands print: results on stdout, everything else on stderr."""

import json as _json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from veracal._types import Progress

_WIDTH = 100  # where the output is no terminal


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(_json.dumps(result, ensure_ascii=False, indent=2))


def status(text: str) -> None:
    """Say something that is no result."""
    typer.echo(text, err=True)


def console() -> "Console":
    """Open a console on stdout, of a fixed width unless it is a terminal."""
    from rich.console import Console

    return Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else _WIDTH, highlight=False
    )


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> "Table":
    """Lay rows of text out below a title.

    Parameters
    ----------
    columns : sequence of str
        Headings. If all are empty there is no line of them.
    right : sequence of columns whose text ends at one edge
    whole : sequence of columns that are never folded
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    result = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=SIMPLE_HEAD,
        show_edge=False,
        show_header=any(columns),
    )
    for name in columns:
        align: Literal["left", "right"] = "right" if name in right else "left"
        result.add_column(name, justify=align, no_wrap=name in whole)
    for row in rows:
        result.add_row(*map(Text, row))  # as it is: brackets in a value are no markup
    return result


@contextmanager
def progress_bar(what: str) -> "Iterator[Progress]":
    """Show progress on stderr, if somebody is watching, and clean up after it.

    Yields
    ------
    callable
        To be called with how much is done, and how much there is or None.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def listed(values: Iterable[object], most: int = 8) -> str:
    """Write some values, and how many more there are."""
    words = [str(value) for value in values]
    more = f", … ({len(words)} in all)" if len(words) > most else ""
    return ", ".join(words[:most]) + more
