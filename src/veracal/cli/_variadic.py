"""Options that take several numbers in a row: --epsilon 0.5 1 2."""

from collections.abc import Collection, Sequence

import click
from typer.core import TyperCommand


def several(*names: str) -> type[TyperCommand]:
    """A kind of command some of whose options take one number after the other.

    Click knows options that repeat, and options with a fixed number of values. This is
    neither: ``--epsilon 0.5 1 2`` and ``--epsilon 0.5,1,2`` are read as the option, three
    times. A word that is no number ends the list, so that a table may be named after it.

    Parameters
    ----------
    *names : str
        Options, declared as lists of numbers.
    """

    class Several(TyperCommand):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            return super().parse_args(ctx, repeated(args, names))

    return Several


def repeated(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Words of a command line, with the option said again before each of its numbers.

    Examples
    --------
    >>> repeated(["--epsilon", "0.5", "1,2", "a.csv"], ["--epsilon"])
    ['--epsilon=0.5', '--epsilon=1', '--epsilon=2', 'a.csv']
    """
    made: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if word == "--":
            return [*made, word, *rest]
        if name not in names or not (given or rest):
            made.append(word)
            continue
        values = [value if given else rest.pop(0)]
        while rest and _are_numbers(rest[0]):
            values.append(rest.pop(0))
        parts = [part.strip() for each in values for part in each.split(",")]
        made += [f"{name}={part}" for part in parts if part] or [f"{name}="]
    return made


def _are_numbers(word: str) -> bool:
    """Tell whether a word is a number, or several with commas between them."""
    parts = [part for part in word.split(",") if part.strip()]
    return bool(parts) and all(map(_is_number, parts))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
