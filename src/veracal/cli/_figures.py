"""Figures of calibration as tables for people and as facts for programs."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from veracal.cli._predictions import INTERNAL
from veracal.cli._show import console, table

if TYPE_CHECKING:
    from rich.console import Group

    from veracal.data import Estimate

# In few words, beside the name under which the library has it.
WORDS: Mapping[str, str] = {
    "accuracy": "right predictions",
    "f1": "mean of the classes' F1",
    "auc": "ranking; with more classes, mean of one against the rest",
    "nll": "negative log-likelihood, mean",
    "brier": "squared distance from the truth, all classes",
    "top_label_brier": "the same of the predicted class alone",
    "ece": "calibration error, mean over bins",
    "mce": "calibration error, worst bin",
    "over_confidence": "the part of ece from bins too sure",
    "under_confidence": "the part of ece from bins not sure enough",
    "confidence_gap": "mean confidence minus accuracy",
    "ace": "ece with equally many records in each bin",
    "sce": "ece of every class, mean",
    "classwise_ace": "ace of every class, mean",
    "debiased_l2": "root mean square error, sampling bias taken off",
    "smooth_ece": "calibration error without bins",
    "ks": "largest gap of cumulative sums",
    "top_label_calibration_intercept": "0 if calibrated",
    "top_label_calibration_slope": "1 if calibrated, below if too sure",
    "binary_f1": "F1 of the second class",
    "binary_ece": "ece of the second class' probability",
    "binary_smooth_ece": "smooth_ece of the second class' probability",
    "calibration_in_the_large": "mean probability minus frequency",
    "calibration_intercept": "0 if calibrated",
    "calibration_slope": "1 if calibrated, below if too extreme",
}
# Number of records and figures of each group.
Groups = Mapping[str, tuple[int, Mapping[str, "Estimate"]]]
BY_GROUP = ("accuracy", "nll", "brier", "ece", "smooth_ece", "confidence_gap")
_SHOWN = ("accuracy", "brier", "ece", "confidence_gap")  # of these, in a table
_WIDE = 130  # characters that a table with intervals and words needs


def number(value: float | None) -> str:
    """Write a figure with four decimals; fewer where it is large."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value + 0.0:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def interval(estimate: "Estimate") -> str:
    """Write the ends of an interval, if there is one."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{number(estimate.low)} to {number(estimate.high)}"


def plain(estimate: "Estimate") -> dict[str, Any]:
    """Fields of an estimate, as JSON has no infinity."""
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
    """One line for each figure; with floors, what a calibrated classifier would show."""
    level = next(iter(figures.values())).level
    drawn = any(found.low is not None for found in figures.values())
    room = not drawn or console().width >= _WIDE
    columns = {
        "figure": list(figures),
        "value": [number(found.value) for found in figures.values()],
        f"{level:.0%} interval": [interval(e) for e in figures.values()] if drawn else [],
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
            found = [figures.get(figure) for figure in columns[2:]]
            rows.append(
                (
                    value,
                    f"{n:,}",
                    *("–" if each is None else number(each.value) for each in found),
                )
            )
            if any(each is not None and each.low is not None for each in found):
                ends = ("" if each is None else interval(each) for each in found)
                rows.append(("", "", *ends))
        gap = gaps.get(name)
        said = "" if gap is None or gap.value is None else _gap_words(gap)
        yield table(
            f"by {name}", columns, rows, right=columns[1:], whole=columns[2:], note=said + note
        )


def _floor(floors: "Mapping[str, Estimate]", name: str) -> str:
    """What a calibrated classifier would show on as many records."""
    return number(floors[name].value) if name in floors else ""


def _columns(values: Groups) -> tuple[str, ...]:
    """Figures that any group has, in a fixed order."""
    had = {name for _, found in values.values() for name in found}
    return tuple(name for name in _SHOWN if name in had)


def _gap_words(gap: "Estimate") -> str:
    """Say how far apart groups are."""
    ends = "" if gap.low is None else f" ({interval(gap)})"
    return f"Largest difference of ece between groups: {number(gap.value)}{ends}.\n"
