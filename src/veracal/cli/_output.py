"""What commands print: results on stdout, everything else on stderr.

Places that a command writes to.
"""

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


_WIDTH = 100  # where the output is no terminal


def visible(text: str, keep: str = "") -> str:
    r"""Write characters that a terminal would obey, hide or reorder as escapes.

    Names and values come out of files. The escapes are those of TOML, so that text in TOML
    means the same afterwards. Characters in ``keep`` stay.

    Examples
    --------
    >>> print(visible("a\x1b[2Jb"))
    a\u001b[2Jb
    """
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    """Escape of one character in TOML."""
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    code = ord(character)
    return short.get(character) or (f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}")


def prepare_streams() -> None:
    """Let stdout and stderr escape what their encoding lacks, instead of failing.

    Where one of them was closed, what is written to it goes nowhere.
    """
    codecs.register_error("veracal-escape", _replace)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="veracal-escape")


def drop_stdout() -> None:
    """Let what is left for stdout go nowhere, so that leaving is no second error."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Escape the characters that could not be encoded."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_escape, error.object[error.start : error.end])), error.end


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object, in characters that every terminal can show."""
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


def say(text: str) -> None:
    """Print a line of a result that may hold names and values of files."""
    typer.echo(visible(text))


def status(text: str) -> None:
    """Say something that is no result."""
    typer.echo(visible(text), err=True)


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
    note: str = "",
) -> "Group":
    """Lay rows of text out below a title.

    Parameters
    ----------
    columns : sequence of str
        Headings. If all are empty there is no line of them.
    right : sequence of columns whose text ends at one edge
    whole : sequence of columns that are never folded
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
        result.add_row(*(Text(visible(cell)) for cell in row))
    # As text: brackets in a name or a value are no markup.
    below = [Text(note, style="dim")] if note else []
    return Group(Text("\n" + visible(title), style="bold"), result, *below)


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
        task = bars.add_task(visible(what), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def counted(number: int, noun: str) -> str:
    """Write how many there are of something."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listed(values: Iterable[object], most: int = 8, *, quote: bool = False) -> str:
    """Write some values, and how many more there are.

    Values in which a comma or a blank would mislead stand in quotation marks; an interval
    is told apart by its brackets.
    """
    words = [str(value) for value in values]
    shown = [repr(word) if quote or _is_unclear(word) else word for word in words[:most]]
    more = f", … ({len(words)} in all)" if len(words) > most else ""
    return ", ".join(shown) + more


def _is_unclear(word: str) -> bool:
    """Tell whether a value in a list could be taken for something else."""
    interval = re.fullmatch(r"[\[(][^\[\]()]*[\])]", word)
    return word != word.strip() or not word or ("," in word and not interval)


def is_there(place: Path) -> bool:
    """Tell whether there is anything at a place, a link that leads nowhere included."""
    return os.path.lexists(place)


def check_new(place: Path, *, force: bool, what: str = "file", option: str = "--out") -> None:
    """Refuse to write over something unless that was wanted, and say how to want it."""
    if is_there(place) and not force:
        raise DataError(
            str(place),
            f"a new {what}",
            "one that exists",
            f"Add --force to replace it, or name another with {option}.",
        )
