"""A reliability curve drawn in characters."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veracal.calibration.curves import ReliabilityBin
    from veracal.report.drawable import Drawable

_ROWS = 11  # one for each tenth
_WIDEST = 60  # characters for all bins together
_MOST = 90  # bins that still fit on a line
_MARGIN = 6  # characters left of the picture


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


def marks() -> Marks:
    """What the output can show."""
    try:
        "".join(vars(UNICODE).values()).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def drawn(curve: "Drawable", use: Marks = UNICODE) -> str:
    """Draw a curve: bins from left to right, their accuracy from 0 at the bottom to 1.

    A point stands in the row of the bin's accuracy, a stroke covers its interval, dots are
    where the point of a calibrated classifier would be. Below is how many records each bin
    has. With more bins than fit on a line there is no drawing, and that is said.
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


def _bar(n: int, curve: "Drawable", use: Marks) -> str:
    """One character for how many records there are; any at all can be seen."""
    steps = len(use.bars) - 1
    tallest = max(max(curve.counts), 1)
    return use.bars[-(-n * steps // tallest)]
