"""Output of commands: results on stdout, everything else on stderr; checks of output paths."""

import codecs
import io
import json as _json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from veracal.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console, Group

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
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    """Escape of one character in TOML."""
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(character)
    return short.get(character) or (f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}")


def prepare_streams() -> None:
    """Let stdout and stderr escape characters that their encoding lacks, instead of failing.

    If one of them was closed, it discards its output.
    """
    codecs.register_error("veracal-escape", _replace)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="veracal-escape")


def drop_stdout() -> None:
    """Discard the remaining output, so that flushing at exit does not fail again."""
    with suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Escape the characters that could not be encoded."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_escape, error.object[error.start : error.end])), error.end


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
    """A table with a title.

    Parameters
    ----------
    columns : sequence of str
        Headings. If all are empty, no heading is printed.
    right : sequence of str
        Columns that are aligned to the right.
    whole : sequence of str
        Columns that are never wrapped.
    note : str, optional
        A line below the rows.
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


@contextmanager
def progress_bar(what: str) -> "Iterator[Progress]":
    """Show progress on stderr if it is a terminal, and clean up afterwards.

    Yields
    ------
    callable
        ``progress(done, total)``, where the total may be None.
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
        task = bars.add_task(escape_text(what), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def format_count(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_list(values: Iterable[object], most: int = 8, *, quote: bool = False) -> str:
    """The first values of a list, and how many there are in all.

    Values with a comma or a blank at the end are quoted, unless they are intervals in
    brackets.
    """
    words = [str(value) for value in values]
    first = [repr(word) if quote or _is_ambiguous(word) else word for word in words[:most]]
    more = f", … ({len(words)} in all)" if len(words) > most else ""
    return ", ".join(first) + more


def _is_ambiguous(word: str) -> bool:
    """Whether a value could be misread in a list that commas separate."""
    interval = re.fullmatch(r"[\[(][^\[\]()]*[\])]", word)
    return word != word.strip() or not word or ("," in word and not interval)


def path_exists(path: Path) -> bool:
    """Whether anything exists at a path, including a broken link."""
    return os.path.lexists(path)


def check_new(path: Path, *, force: bool, what: str = "file", option: str = "--out") -> None:
    """Refuse to overwrite a file without ``force``, and name the option that allows it."""
    if path_exists(path) and not force:
        raise DataError(
            str(path),
            f"a new {what}",
            "one that exists",
            f"Add --force to replace it, or name another with {option}.",
        )
