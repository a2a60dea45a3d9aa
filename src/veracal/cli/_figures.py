"""Calibration figures as tables, and reliability curves drawn in characters."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from veracal.cli._artifacts import FIGURES
from veracal.cli._output import console, print_status, print_table

if TYPE_CHECKING:
    from veracal.calibration import PrivateFigures
    from veracal.data import Estimate, Scores
    from veracal.report import CurveData


INTERNAL = "internal: exact figures of the records; do not publish them if those are private"

_ROWS = 11  # one for each tenth
_WIDEST = 60  # characters for all bins together
_MOST = 90  # bins that still fit on a line
_MARGIN = 6  # characters left of the curve


@dataclass(frozen=True)
class Marks:
    """Characters to draw with."""

    point: str
    interval: str
    diagonal: str
    axis: str
    corner: str
    tick: str
    floor: str
    bars: str


UNICODE = Marks("●", "│", "·", "│", "└", "┤", "─", " ▁▂▃▄▅▆▇█")
ASCII = Marks("o", "|", ".", "|", "+", "|", "-", " .:-=+*#@")


def choose_characters() -> Marks:
    """The characters that the output can encode."""
    try:
        "".join(vars(UNICODE).values()).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def print_curve(curve: Any, title: str = "") -> None:
    """Print a reliability curve of the library in characters."""
    from veracal.report import drawable

    typer.echo(f"\n{title}{draw_curve(drawable(curve), choose_characters())}")


def draw_curve(curve: "CurveData", use: Marks = UNICODE) -> str:
    """Draw a curve: bins from left to right, their accuracy from 0 at the bottom to 1.

    A point marks the bin's accuracy, a stroke its interval, and a dot where a calibrated
    classifier would be. The number of records in each bin is below. With more bins than fit on
    a line, a note replaces the drawing.
    """
    bins = curve.bins
    if len(bins) > _MOST:
        return f"({len(bins)} bins are too many to draw.)"
    wide = max(1, min(4, _WIDEST // len(bins)))
    columns = []  # characters of each bin, from the bottom up
    for each in bins:
        column = [" "] * _ROWS
        accuracy = each.accuracy
        if accuracy.value is not None:
            low, high = _row(accuracy.low or 0.0), _row(accuracy.high or 0.0)
            column[low : high + 1] = use.interval * (high + 1 - low)
        middle = (each.low + each.high) / 2 if each.confidence is None else each.confidence
        column[_row(middle)] = use.diagonal
        if accuracy.value is not None:
            column[_row(accuracy.value)] = use.point
        columns.append(column)
    label = {_ROWS - 1: "1.0", (_ROWS - 1) // 2: "0.5", 0: "0.0"}
    lines = []
    for row in reversed(range(_ROWS)):
        cells = "".join(column[row].center(wide) for column in columns)
        side = use.tick if row in label else use.axis
        lines.append(f"{label.get(row, ''):>{_MARGIN - 2}} {side}{cells}")
    across = wide * len(bins)
    tops = curve.of == "top label"
    scale = "0" + ("0.5" if across > 8 else "").center(across - 2) + "1"
    # Rounded up, so that a bar is visible unless its bin is empty.
    counts = [each.count.n for each in bins]
    steps, tallest = len(use.bars) - 1, max(*counts, 1)
    heights = "".join(use.bars[-(-n * steps // tallest)] * wide for n in counts)
    margin = " " * _MARGIN
    lines += [
        margin[1:] + use.corner + use.floor * across,
        f"{margin}{scale}   {'confidence' if tops else 'probability of the second class'}",
        f"{margin}{heights}   records",
    ]
    up = "accuracy" if tops else "frequency"
    key = f"{use.point} {up}   {use.interval} interval   {use.diagonal} calibrated"
    return "\n".join([margin + key, *(line.rstrip() for line in lines)])


def _row(share: float) -> int:
    """The row that is nearest to a share."""
    return min(max(round(share * (_ROWS - 1)), 0), _ROWS - 1)


# Short descriptions of the figures.
WORDS: Mapping[str, str] = {
    "accuracy": "share of correct predictions",
    "f1": "mean of the classes' F1",
    "auc": "ranking; for several classes, mean of one against the rest",
    "nll": "mean negative log-likelihood",
    "brier": "mean squared error of the probabilities, all classes",
    "top_label_brier": "the same for the predicted class only",
    "ece": "calibration error, mean over bins",
    "mce": "calibration error, worst bin",
    "over_confidence": "the part of ece from overconfident bins",
    "under_confidence": "the part of ece from underconfident bins",
    "confidence_gap": "mean confidence minus accuracy",
    "ace": "ece with equally many records in each bin",
    "sce": "mean ece of all classes",
    "classwise_ace": "mean ace of all classes",
    "debiased_l2": "root mean square error, corrected for sampling bias",
    "smooth_ece": "calibration error without bins",
    "ks": "largest gap of the cumulative sums",
    "top_label_calibration_intercept": "0 if calibrated",
    "top_label_calibration_slope": "1 if calibrated, lower if overconfident",
    "binary_f1": "F1 of the second class",
    "binary_ece": "ece of the probability of the second class",
    "binary_smooth_ece": "smooth_ece of the probability of the second class",
    "calibration_in_the_large": "mean probability minus frequency",
    "calibration_intercept": "0 if calibrated",
    "calibration_slope": "1 if calibrated, lower if overconfident",
}
# Number of records and figures of each group.
Groups = Mapping[str, tuple[int, Mapping[str, "Estimate"]]]
BY_GROUP = ("accuracy", "nll", "brier", "ece", "smooth_ece", "confidence_gap")
_IN_TABLE = ("accuracy", "brier", "ece", "confidence_gap")  # of these
_WIDE = 130  # characters that a table with intervals and words needs
_WORK = 20_000_000  # resampled numbers before replicates become fewer
_REPLICATES, _MIN_REPLICATES = 100, 20


def replicates_for(scores: "Scores") -> int:
    """Default number of bootstrap replicates, smaller for many records."""
    replicates = min(_REPLICATES, _WORK // max(1, scores.values.size))
    if replicates >= _MIN_REPLICATES:
        return replicates
    print_status("Without intervals, which would take long; --replicates 20 computes them.")
    return 0


def figures_of(figures: "PrivateFigures") -> "dict[str, Estimate]":
    """The released figures that were measured, by name."""
    estimates = {name: getattr(figures, name) for name in ("count", *FIGURES)}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def format_number(value: float | None, decimals: int = 4) -> str:
    """Format a figure with some decimals, fewer for large ones."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value + 0.0:.{decimals}f}" if abs(value) < 1000 else f"{value:.4g}"


def format_interval(estimate: "Estimate", decimals: int = 4) -> str:
    """Format the ends of an interval, if there is one."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return (
        f"{format_number(estimate.low, decimals)} to {format_number(estimate.high, decimals)}"
    )


def format_estimate(estimate: "Estimate | None") -> str:
    """A figure and its interval on one line."""
    if estimate is None:
        return "–"
    return f"{format_number(estimate.value)} ({format_interval(estimate)})"


def format_row(figures: "Mapping[str, Estimate]") -> list[str]:
    """Cells with the released figures of one measurement."""
    return [format_estimate(figures.get(name)) for name in FIGURES]


def estimates_to_json(estimates: "Mapping[str, Estimate]") -> dict[str, dict[str, Any]]:
    """Estimates as values that JSON can hold, which has no infinity."""
    return {
        name: {
            field: str(value) if isinstance(value, float) and math.isinf(value) else value
            for field, value in vars(one).items()
        }
        for name, one in estimates.items()
    }


def print_figures(
    title: str,
    figures: "Mapping[str, Estimate]",
    floors: "Mapping[str, Estimate] | None" = None,
    note: str = INTERNAL,
) -> None:
    """Print one row for each figure; with floors, the value of a calibrated classifier."""
    level = next(iter(figures.values())).level
    columns = {
        "figure": list(figures),
        "value": [format_number(each.value) for each in figures.values()],
    }
    intervals = any(each.low is not None for each in figures.values())
    if intervals:
        columns[f"{level:.0%} interval"] = [format_interval(e) for e in figures.values()]
    if floors:
        columns["if calibrated"] = [
            format_number(floors[name].value) if name in floors else "" for name in figures
        ]
    right = list(columns)[1:]
    if not intervals or console().width >= _WIDE:
        columns[""] = [{"count": "records", **WORDS}.get(name, "") for name in figures]
    rows = zip(*columns.values(), strict=True)
    print_table(title, tuple(columns), rows, right=right, whole=["figure", *right], note=note)


def print_groups(
    groups: Mapping[str, Groups],
    gaps: "Mapping[str, Estimate] | None" = None,
    note: str = INTERNAL,
) -> None:
    """Print one table for each attribute: groups down, figures across, intervals below them.

    ``gaps`` are the largest differences of the calibration error between groups.
    """
    for name, values in groups.items():
        present = {figure for _, figures in values.values() for figure in figures}
        names = [figure for figure in _IN_TABLE if figure in present]
        rows: list[tuple[str, ...]] = []
        for value, (n, figures) in values.items():
            cells = [figures.get(figure) for figure in names]
            numbers = ("–" if each is None else format_number(each.value) for each in cells)
            rows.append((value, f"{n:,}", *numbers))
            if any(each is not None and each.low is not None for each in cells):
                ends = ("" if each is None else format_interval(each) for each in cells)
                rows.append(("", "", *ends))
        gap, text = (gaps or {}).get(name), ""
        if gap is not None and gap.value is not None:
            ends_text = "" if gap.low is None else f" ({format_interval(gap)})"
            text = (
                "Largest difference of ece between groups: "
                f"{format_number(gap.value)}{ends_text}.\n"
            )
        heads = ("group", "records", *names)
        print_table(f"by {name}", heads, rows, right=heads[1:], whole=names, note=text + note)


def print_sides(
    title: str, sides: "Mapping[str, Mapping[str, Estimate]]", note: str = ""
) -> None:
    """Print figures of one or more sides, such as before and after a map, beside each other."""
    last = list(sides.values())[-1]
    level = f"{next(iter(last.values())).level:.0%} interval"
    heads = ["figure"]
    for i, side in enumerate(sides):
        heads += [side, level + " " * i]  # blanks make headings different
    rows = [
        (
            name,
            *(
                cell
                for side in sides.values()
                for cell in (format_number(side[name].value), format_interval(side[name]))
            ),
        )
        for name in last
        if all(name in side for side in sides.values())
    ]
    print_table(title, heads, rows, right=heads[1:], note=note)
