"""Calibration figures as tables, and reliability curves drawn in characters."""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from veracal.cli._output import console, table
from veracal.cli._predictions import INTERNAL

if TYPE_CHECKING:
    from rich.console import Group

    from veracal.calibration import ReliabilityBin
    from veracal.data import Estimate
    from veracal.report import CurveData


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
    columns = [_column(each, use) for each in bins]
    label = {_ROWS - 1: "1.0", (_ROWS - 1) // 2: "0.5", 0: "0.0"}
    lines = []
    for row in reversed(range(_ROWS)):
        cells = "".join(column[row].center(wide) for column in columns)
        side = use.tick if row in label else use.axis
        lines.append(f"{label.get(row, ''):>{_MARGIN - 2}} {side}{cells}")
    across = wide * len(bins)
    what = "confidence" if curve.of == "top label" else "probability of the second class"
    scale = "0" + ("0.5" if across > 8 else "").center(across - 2) + "1"
    heights = "".join(_bar(each.n, curve, use) * wide for each in bins)
    lines += [
        " " * (_MARGIN - 1) + use.corner + use.floor * across,
        " " * _MARGIN + f"{scale}   {what}",
        " " * _MARGIN + f"{heights}   records",
    ]
    up = "accuracy" if curve.of == "top label" else "frequency"
    key = f"{use.point} {up}   {use.interval} interval   {use.diagonal} calibrated"
    return "\n".join([f"{'':{_MARGIN}}{key}", *(line.rstrip() for line in lines)])


def _column(each: "ReliabilityBin", use: Marks) -> list[str]:
    """Characters of one bin, from the bottom up."""
    middle = (each.low + each.high) / 2 if each.confidence is None else each.confidence
    column = [" "] * _ROWS
    if each.accuracy is not None:
        low, high = _row(each.accuracy_low or 0.0), _row(each.accuracy_high or 0.0)
        column[low : high + 1] = use.interval * (high + 1 - low)
    column[_row(middle)] = use.diagonal
    if each.accuracy is not None:
        column[_row(each.accuracy)] = use.point
    return column


def _row(share: float) -> int:
    """The row that is nearest to a share."""
    return min(max(round(share * (_ROWS - 1)), 0), _ROWS - 1)


def _bar(n: int, curve: "CurveData", use: Marks) -> str:
    """A bar for the number of records, visible unless it is zero."""
    steps = len(use.bars) - 1
    tallest = max(max(curve.counts), 1)
    return use.bars[-(-n * steps // tallest)]


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
_IN_TABLE = ("accuracy", "brier", "ece", "confidence_gap")  # of these, in a table
_WIDE = 130  # characters that a table with intervals and words needs


def format_number(value: float | None) -> str:
    """Format a figure with four decimals, fewer for large ones."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value + 0.0:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def format_interval(estimate: "Estimate") -> str:
    """Format the ends of an interval, if there is one."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{format_number(estimate.low)} to {format_number(estimate.high)}"


def estimate_to_json(estimate: "Estimate") -> dict[str, Any]:
    """Fields of an estimate as values that JSON can hold, which has no infinity."""
    return {
        name: str(value) if isinstance(value, float) and math.isinf(value) else value
        for name, value in vars(estimate).items()
    }


def figure_table(
    title: str,
    figures: "Mapping[str, Estimate]",
    floors: "Mapping[str, Estimate] | None" = None,
    words: Mapping[str, str] = WORDS,
    note: str = INTERNAL,
) -> "Group":
    """One row for each figure; with floors, the value of a calibrated classifier."""
    level = next(iter(figures.values())).level
    intervals = any(each.low is not None for each in figures.values())
    room = not intervals or console().width >= _WIDE
    columns = {
        "figure": list(figures),
        "value": [format_number(each.value) for each in figures.values()],
        f"{level:.0%} interval": [format_interval(e) for e in figures.values()]
        if intervals
        else [],
        "if calibrated": [_floor(floors, name) for name in figures] if floors else [],
        "": [words.get(name, "") for name in figures] if room else [],
    }
    columns = {head: cells for head, cells in columns.items() if cells}
    heads, rows = tuple(columns), zip(*columns.values(), strict=True)
    right = [head for head in heads[1:] if head]
    return table(title, heads, rows, right=right, whole=["figure", *right], note=note)


def group_tables(
    groups: Mapping[str, Groups],
    gaps: "Mapping[str, Estimate]",
    note: str = INTERNAL,
) -> "Iterator[Group]":
    """One table for each attribute: groups down, figures across, intervals below them."""
    for name, values in groups.items():
        columns = ("group", "records", *_columns(values))
        rows: list[tuple[str, ...]] = []
        for value, (n, figures) in values.items():
            cells = [figures.get(figure) for figure in columns[2:]]
            rows.append(
                (
                    value,
                    f"{n:,}",
                    *("–" if each is None else format_number(each.value) for each in cells),
                )
            )
            if any(each is not None and each.low is not None for each in cells):
                ends = ("" if each is None else format_interval(each) for each in cells)
                rows.append(("", "", *ends))
        gap = gaps.get(name)
        gap_note = "" if gap is None or gap.value is None else _describe_gap(gap)
        yield table(
            f"by {name}",
            columns,
            rows,
            right=columns[1:],
            whole=columns[2:],
            note=gap_note + note,
        )


def _floor(floors: "Mapping[str, Estimate]", name: str) -> str:
    """The value of a calibrated classifier on as many records."""
    return format_number(floors[name].value) if name in floors else ""


def _columns(values: Groups) -> tuple[str, ...]:
    """The figures that at least one group has, in a fixed order."""
    present = {name for _, figures in values.values() for name in figures}
    return tuple(name for name in _IN_TABLE if name in present)


def _describe_gap(gap: "Estimate") -> str:
    """Describe the largest difference between groups."""
    ends = "" if gap.low is None else f" ({format_interval(gap)})"
    return f"Largest difference of ece between groups: {format_number(gap.value)}{ends}.\n"
