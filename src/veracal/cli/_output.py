"""Output of commands: results on stdout, everything else on stderr; checks of output paths."""

import json as _json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from veracal.errors import DataError, VeracalError

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from veracal._types import Progress


_WIDTH = 100  # where the output is not a terminal


def escape_text(text: str, keep: str = "") -> str:
    r"""Escape characters that a terminal would interpret, hide or reorder.

    Names and values come from files. The escapes are those of TOML, so that TOML text keeps
    its meaning. Characters in ``keep`` stay.

    Examples
    --------
    >>> print(escape_text("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return "".join(c if c.isprintable() or c in keep else escape_character(c) for c in text)


def escape_character(character: str) -> str:
    """Escape one character as in TOML."""
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(character)
    return short.get(character) or (f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}")


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object in ASCII."""
    try:
        text = _json.dumps(result, indent=2, allow_nan=False)
    except (TypeError, ValueError) as cause:
        raise DataError(
            "--json",
            "values that JSON can hold: text, finite numbers, true and false",
            str(cause),
            "Leave the option out, or correct the schema.",
        ) from cause
    typer.echo(text)


def print_line(text: str) -> None:
    """Print a line of the result, in which names and values from files are escaped."""
    typer.echo(escape_text(text))


def print_status(text: str) -> None:
    """Print a message that is not part of the result, on stderr."""
    typer.echo(escape_text(text), err=True)


def console() -> "Console":
    """A console on stdout, of a fixed width unless it is a terminal."""
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
    note: str = "",
) -> "Group":
    """A table with a title, and a note below it.

    Columns named in ``right`` are aligned to the right, those in ``whole`` are never wrapped.
    If all headings are empty, none is printed.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    result = Table(
        header_style="dim",
        box=SIMPLE_HEAD,
        show_edge=False,
        show_header=any(columns),
    )
    for name in columns:
        align: Literal["left", "right"] = "right" if name in right else "left"
        result.add_column(name, justify=align, no_wrap=name in whole, overflow="fold")
    for row in rows:
        result.add_row(*(Text(escape_text(cell)) for cell in row))
    # As Text: brackets in a name or a value are not markup.
    below = [Text(note, style="dim")] if note else []
    return Group(Text("\n" + escape_text(title), style="bold"), result, *below)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any
) -> None:
    """Print a :func:`table` with its options."""
    console().print(table(title, columns, rows, **options))


@contextmanager
def progress_bars(
    *, counted: bool = False
) -> "Iterator[tuple[Bars, Callable[[str, float, float | None], None]]]":
    """Show steps on stderr if it is a terminal, one bar for each, and clean up afterwards.

    Yields
    ------
    tuple of rich.progress.Progress and callable
        The bars, and ``update(step, done, total)``, where the total may be None. A new step
        ends those before it.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = (TextColumn("left", markup=False), TimeRemainingColumn()) if counted else ()
    bars = Progress(
        TextColumn("{task.description:18}", markup=False),
        BarColumn(),
        MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(),
        *left,
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    steps: dict[str, TaskID] = {}

    def update(step: str, done: float, total: float | None) -> None:
        if step not in steps:
            for task in bars.tasks:
                end = task.completed or 1
                bars.update(task.id, completed=end, total=end)
                bars.stop_task(task.id)
            steps[step] = bars.add_task(escape_text(step), total=None)
        bars.update(steps[step], completed=done, total=total)

    with bars:
        yield bars, update


@contextmanager
def progress_bar(what: str) -> "Iterator[Progress]":
    """Show the progress of one step; yields ``progress(done, total)``."""
    with progress_bars() as (_, update):
        update(what, 0, None)
        yield lambda done, total: update(what, done, total)


@contextmanager
def usage_errors(option: str | None = None) -> Iterator[None]:
    """Report a ValueError as wrong usage (of an option); errors of Veracal pass unchanged."""
    try:
        yield
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def format_count(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_list(values: Iterable[object], most: int = 8, *, quote: bool = False) -> str:
    """The first values of a list, and how many there are in all.

    Values with a comma or a blank at the end are quoted, unless they are intervals in
    brackets.
    """

    def quoted(word: str) -> str:
        interval = re.fullmatch(r"[\[(][^\[\]()]*[\])]", word)
        ambiguous = word != word.strip() or not word or ("," in word and not interval)
        return repr(word) if quote or ambiguous else word

    words = [str(value) for value in values]
    more = f", … ({len(words)} in all)" if len(words) > most else ""
    return ", ".join(map(quoted, words[:most])) + more


def check_new(path: Path, *, force: bool, what: str = "file", option: str = "--out") -> None:
    """Reject an existing path without ``force``, and name the option that allows it."""
    if os.path.lexists(path) and not force:
        raise DataError(
            str(path),
            f"a new {what}",
            "one that exists",
            f"Add --force to replace it, or name another with {option}.",
        )
