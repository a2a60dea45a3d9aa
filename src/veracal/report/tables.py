"""Tables of the report: everything that a chart shows can also be read.

Also the part of the report on a recalibration by institutions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal.accounting import format_up
from veracal.artifact import SourceCost
from veracal.calibration import Identity, PrivateFigures
from veracal.data import Estimate
from veracal.report import text as words
from veracal.report.results import FIGURES, STAGES, Bin, Results, gap
from veracal.report.text import (
    NOT_MEASURED,
    NOT_RECORDED,
    TOO_FEW,
    cost,
    count,
    decimals,
    flat,
    interval,
    percent,
)

_HEADS = {"accuracy": "accuracy", "ece": "calibration error (ECE)", "brier": "Brier score"}
MOST = 500  # rows of a table


@dataclass(frozen=True)
class Table:
    """Cells as text, with heads and a caption."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def level(results: Results) -> str:
    """Confidence level of the intervals."""
    record = results.when("after") or results.when("before")
    return "95%" if record is None else percent(record.overall.count.level)


def confidence(results: Results) -> Table:
    """Accuracy at high confidence; no rows if none can be estimated."""
    heads = {"confidence": "confidence", "after": "accuracy", "verdict": "verdict"}
    if results.when("before") is not None:
        heads = {
            "confidence": "confidence",
            "before": "before recalibration",
            "after": "after recalibration",
            "verdict": "verdict",
        }
    summaries = words.confidence_summaries(results)
    known = any(each.known for each in summaries)
    rows = tuple(tuple(getattr(each, name) for name in heads) for each in summaries if known)
    return Table("Accuracy of the most confident predictions", tuple(heads.values()), rows)


def reliability(results: Results) -> Table | None:
    """Every bin of the released curves."""
    stages = {when: results.curve(when) for when in STAGES}
    table = bin_table("Bins of the reliability diagram", stages, count)
    return table if table.rows else None


def bin_table(
    caption: str, stages: Mapping[str, Sequence[Bin]], write: Callable[[Estimate], str]
) -> Table:
    """One row for each bin of curves, with its count as ``write`` formats it."""
    rows = tuple(
        (
            f"{each.low:.2f} to {each.high:.2f}",
            when,
            write(each.count),
            decimals(each.confidence),
            decimals(each.accuracy.value),
            interval(each.accuracy),
        )
        for when, bins in stages.items()
        for each in bins[:MOST]
    )
    heads = ("confidence in", "stage", "records", "mean confidence", "accuracy", "interval")
    return Table(caption, heads, rows)


def measured(results: Results) -> Table:
    """One row for each measurement."""
    heads = ("measurement", "date", "epsilon", "records", *(_HEADS[name] for name in FIGURES))
    rows = tuple(
        (
            record.when,
            record.date,
            format_up(record.epsilon),
            *_cells(record.overall),
        )
        for record in results.measured
    )
    return Table("Figures of the test records, with intervals", heads, rows)


def _cells(figures: PrivateFigures | None) -> tuple[str, ...]:
    """Cells with the count and the figures."""
    if figures is None:
        return (NOT_MEASURED,) * (1 + len(FIGURES))
    return cell(figures.count, count), *(cell(getattr(figures, name)) for name in FIGURES)


def floor(results: Results) -> str:
    """Calibration error that even a perfectly calibrated model would show."""
    record = results.when("after") or results.when("before")
    if record is None or (low := record.overall.ece_floor) is None:
        return ""
    bias = record.overall.ece_noise_bias
    more = f" Noise on each bin adds up to {decimals(bias)} on average." if bias else ""
    return (
        "With this many records and bins, even a perfectly calibrated model shows a "
        f"calibration error of up to {decimals(low)} on average.{more}"
    )


def by_group(results: Results) -> Table | None:
    """One row for each group and stage."""
    heads = ("group", "stage", "records", *(_HEADS[name] for name in FIGURES))
    rows = tuple(
        (name, when, *_cells(record.groups.get(name)))
        for name in results.group_names
        for when, record in results.stages().items()
    )
    return Table("Figures of each group, with intervals", heads, rows) if rows else None


def gaps(results: Results) -> Table:
    """Largest differences between groups."""
    rows = []
    for when, record in results.stages().items():
        groups = record.groups
        for name in FIGURES:
            figures = {group: getattr(each, name) for group, each in groups.items()}
            largest = gap({group: e for group, e in figures.items() if e is not None})
            if largest is not None:
                rows.append((_HEADS[name], when, decimals(largest.value), interval(largest)))
    caption = "Largest difference between groups; its interval holds if those of all groups do"
    return Table(caption, ("figure", "stage", "difference", "interval"), tuple(rows))


def ledger(results: Results) -> Table:
    """Planned queries, how many of them were made, and the cost of each line alone."""
    heads = ("purpose", "partition", "planned", "used", "epsilon of all planned", "at delta")
    rows = tuple(
        (
            line.purpose,
            line.partition or NOT_RECORDED,
            f"{line.times}",
            f"{line.used}",
            format_up(line.epsilon),
            format_up(line.delta, 3),
        )
        for line in results.ledger.planned
    )
    return Table("All planned uses of the budget", heads, rows)


def pairs(caption: str, settings: Mapping[str, Any]) -> Table:
    """Names and values."""
    return Table(caption, ("name", "value"), tuple(flat(settings)[:MOST]))


def cell(figure: Estimate | None, write: Callable[[Estimate], str] | None = None) -> str:
    """A figure with its interval in brackets."""
    if figure is None:
        return NOT_MEASURED
    if figure.value is None:
        return TOO_FEW
    value = decimals(figure.value) if write is None else write(figure)
    if figure.low is None or figure.high is None:
        return value
    ends = interval(figure) if write is None else f"{figure.low:,.0f} to {figure.high:,.0f}"
    return f"{value} ({ends})"


_HASH_DIGITS = 16  # digits of a hash that a table shows


@dataclass(frozen=True)
class Institutions:
    """A recalibration by institutions, as the report describes it."""

    title: str
    sentences: tuple[str, ...]
    sources: Table  # the institutions and their charges
    figures: Table | None  # before and after, if they were measured
    map: Table
    statement: str
    kept: bool  # whether the model uses the new calibration map


def institutions(results: Results) -> Institutions | None:
    """Describe the latest recalibration of a model by institutions; None if there was none."""
    if not results.recalibrations:
        return None
    record = results.recalibrations[-1]
    n, answered = len(record.sources), sum(source.answered for source in record.sources)
    kept = not isinstance(record.map, Identity)
    sentences = [
        f"On {record.made}, in the study {record.study}, {answered} of {n} institutions answered "
        "every query. Each institution keeps its records, adds its own noise to its answers, and "
        "charges its own ledger."
    ]
    if record.guarantee is not None:
        total = cost(record.guarantee.epsilon, record.guarantee.delta)
        sentences.append(
            f"Individuals with records at one of the institutions are protected at {total} "
            "against the whole release."
        )
    if kept:
        sentences.append(
            "The model now uses the calibration map from this study, by the method "
            f"{record.method}. The other figures on this page were measured on the test records "
            "with the previous map."
        )
    else:
        sentences.append(
            "The answers do not show that the new calibration map helps: the model keeps its "
            "previous map."
        )
    stages = {"before recalibration": record.before, "after recalibration": record.after}
    rows = tuple(
        (label, cell(figures.accuracy), cell(figures.ece))
        for label, figures in stages.items()
        if figures is not None
    )
    heads = ("on the institutions' records", _HEADS["accuracy"], _HEADS["ece"])
    caption = "Before and after, released with noise by the institutions"
    return Institutions(
        f"Recalibrated by {n} institution{'' if n == 1 else 's'}",
        tuple(sentences),
        _sources(record.sources),
        Table(caption, heads, rows) if rows else None,
        pairs("Fitted calibration map", record.map.to_json()),
        record.text(),
        kept,
    )


def _sources(sources: Sequence[SourceCost]) -> Table:
    """One row for each institution."""
    rows = []
    for source in sources:
        unit, most, head = source.unit, source.max_contributions, source.head
        rows.append(
            (
                source.name,
                cost(source.epsilon, source.delta, 6),
                unit if most == 1 else f"{unit} of up to {most} records",
                source.relation,
                "all" if source.answered else f"incomplete: {source.why}",
                source.key,
                "no signed entry yet"
                if head is None
                else f"entry {head.index}, {head.hash[:_HASH_DIGITS]}…",
            )
        )
    heads = ("institution", "charge", "per", "relation", "answers", "key", "ledger")
    return Table("Institutions and their charges", heads, tuple(rows))
