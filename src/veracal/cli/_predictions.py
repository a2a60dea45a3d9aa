"""Options that describe a file of predictions, and the scores read with them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from veracal.data import Scores


INTERNAL = "internal: exact figures of the records; do not publish them if those are private"

File = Annotated[
    Path,
    typer.Argument(
        metavar="PREDICTIONS",
        help="npz, Parquet, Arrow or CSV file with logits or probabilities, and labels.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Labels in the order of the columns; by default 0, 1, …",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="COLUMN=A,B,…",
        help="Column by which results are broken down, and its declared values; repeats.",
    ),
]
UnitColumn = Annotated[
    str | None, typer.Option("--unit", help="Column with the id of the individual of each row.")
]
Part = Annotated[
    str | None, typer.Option(help="Suffix of the arrays, if a file holds several sets.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def settings(
    classes: str | None, groups: Sequence[str] | None, unit: str | None, part: str | None
) -> dict[str, Any]:
    """Arguments of :func:`veracal.data.load_scores` from the options."""
    return {
        "classes": None if classes is None else listed(classes, "--classes"),
        "groups": dict(_group(text) for text in groups or ()),
        "unit": unit,
        "part": part,
    }


def load(path: Path, options: Mapping[str, Any]) -> "Scores":
    """Read labeled predictions."""
    from veracal.data import load_scores

    with _show.progress_bar(f"Reading {path.name}") as progress:
        scores = load_scores(path, **options, progress=progress)
    check_labeled(scores)
    return scores


def scan(path: Path, options: Mapping[str, Any]) -> "Iterator[Scores]":
    """Read labeled predictions in blocks, one after another."""
    from veracal.data import scan_scores

    with _show.progress_bar(f"Reading {path.name}") as progress:
        for block in scan_scores(path, **options, progress=progress):
            check_labeled(block)
            yield block


def check_labeled(scores: "Scores") -> None:
    """Reject predictions without labels."""
    from veracal.errors import DataError

    if scores.labels is None:
        raise DataError(
            scores.name,
            "labels beside the predictions",
            "none",
            "Put the labels into a column or array 'labels'.",
        )


def listed(text: str, hint: str) -> list[str]:
    """Comma-separated values; a value with a comma is quoted.

    Examples
    --------
    >>> listed('benign,"low, uncertain"', "--classes")
    ['benign', 'low, uncertain']
    """
    try:
        (values,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a list of values.", param_hint=hint
        ) from error
    values = [value.strip() for value in values]
    if not all(values) or len(set(values)) < len(values):
        raise typer.BadParameter(
            f"expected distinct values separated by commas, got {text!r}.", param_hint=hint
        )
    return values


def pair(text: str, hint: str, example: str) -> tuple[str, str]:
    """The texts before and after the first equals sign."""
    name, sign, value = text.partition("=")
    if not (name.strip() and sign and value.strip()):
        raise typer.BadParameter(f"expected {example}, got {text!r}.", param_hint=hint)
    return name.strip(), value.strip()


def _group(text: str) -> tuple[str, list[str]]:
    """A column and its declared values."""
    name, values = pair(text, "--group", "a column and its values, as in sex=female,male")
    return name, listed(values, "--group")
