"""Tables of the report: everything that a chart shows can also be read.

Also the part of the report on a recalibration by institutions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal.data import Estimate
from veracal.report import text as words
from veracal.report.results import (
    FIGURES,
    FigureSet,
    MeasurementRecord,
    Results,
    estimate,
    gap,
    listing,
    mapping,
    number,
)
from veracal.report.text import (
    NOT_MEASURED,
    NOT_RECORDED,
    TOO_FEW,
    count,
    decimals,
    epsilon,
    flat,
    interval,
    percent,
    visible,
)

_HEADS = {"accuracy": "accuracy", "ece": "calibration error (ECE)", "brier": "Brier score"}
_STAGES = ("before", "after")
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
    figure = None if record is None else record.overall.count
    return percent(figure.level) if figure is not None and figure.level else "95%"


def confidence(results: Results) -> Table:
    """Accuracy at high confidence; no rows if none can be estimated."""
    rows = words.confidence_summaries(results)
    rows = rows if any(row.known for row in rows) else ()
    caption = "Accuracy of the most confident predictions"
    if results.when("before") is None:
        cells = tuple((row.confidence, row.after, row.verdict) for row in rows)
        return Table(caption, ("confidence", "accuracy", "verdict"), cells)
    heads = ("confidence", "before recalibration", "after recalibration", "verdict")
    cells4 = tuple((row.confidence, row.before, row.after, row.verdict) for row in rows)
    return Table(caption, heads, cells4)


def reliability(results: Results) -> Table | None:
    """Every bin of the curves."""
    rows = [
        (
            f"{each.low:.2f} to {each.high:.2f}",
            when,
            count(each.count),
            decimals(each.confidence),
            decimals(each.accuracy.value),
            interval(each.accuracy),
        )
        for when in _STAGES
        for each in results.curve(when)
    ]
    heads = ("confidence in", "stage", "records", "mean confidence", "accuracy", "interval")
    return Table("Bins of the reliability diagram", heads, tuple(rows)) if rows else None


def measured(results: Results) -> Table:
    """One row for each measurement."""
    heads = ("measurement", "date", "epsilon", "records", *(_HEADS[name] for name in FIGURES))
    rows = tuple(
        (
            str(record.when),
            str(record.date),
            NOT_RECORDED if record.epsilon is None else epsilon(record.epsilon),
            *_cells(record.overall),
        )
        for record in results.measured
    )
    return Table("Figures of the test records, with intervals", heads, rows)


def _cells(figures: FigureSet) -> tuple[str, ...]:
    """Cells with the count and the figures."""
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
    stages = [(when, record.groups) for when, record in _stages(results)]
    empty = FigureSet.from_json(None)
    rows = tuple(
        (str(name), when, *_cells(groups.get(name, empty)))
        for name in results.group_names
        for when, groups in stages
    )
    return Table("Figures of each group, with intervals", heads, rows) if rows else None


def gaps(results: Results) -> Table:
    """Largest differences between groups."""
    rows = []
    for when, record in _stages(results):
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
    heads: tuple[str, ...] = ("purpose", "partition", "planned", "used")
    items = [mapping(line) for line in listing(results.ledger.get("planned"))]
    priced = any("epsilon" in item for item in items)  # older results have no costs
    if priced:
        heads += ("epsilon of all planned", "at delta")
    rows = []
    for item in items:
        values = [item.get(name) for name in ("purpose", "partition", "times", "used")]
        cells = [NOT_RECORDED if value is None else str(value) for value in values]
        if priced:
            price, at = number(item.get("epsilon")), number(item.get("delta"))
            cells += [
                NOT_RECORDED if price is None else epsilon(price),
                NOT_RECORDED if price is None or at is None else epsilon(at, 3),
            ]
        rows.append(tuple(cells))
    return Table("All planned uses of the budget", heads, tuple(rows))


def pairs(caption: str, settings: Mapping[str, Any]) -> Table:
    """Names and values."""
    return Table(caption, ("name", "value"), tuple(flat(settings)[:MOST]))


def _stages(results: Results) -> list[tuple[str, MeasurementRecord]]:
    """The measurements before and after recalibration that exist."""
    records = [(when, results.when(when)) for when in _STAGES]
    return [(when, record) for when, record in records if record is not None]


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


_INSTITUTION_STAGES = (
    ("before", "before recalibration"),
    ("after", "after recalibration"),
)
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
    """Describe the recalibration of a model by institutions; None if there was none."""
    if results.federation is None:
        return None
    record = results.federation
    sources = [mapping(each) for each in listing(record.get("sources"))]
    answered = sum(source.get("answered") is True for source in sources)
    kept = mapping(record.get("map")).get("kind") != "identity"
    guarantee = mapping(record.get("guarantee"))
    sentences = [
        f"On {_text(record.get('made'))}, in the study {_text(record.get('study'))}, "
        f"{answered} of {len(sources)} institutions answered every query. Each institution "
        "keeps its records, adds its own noise to its answers, and charges its own ledger.",
        "Individuals with records at one of the institutions are protected at epsilon "
        f"{epsilon(number(guarantee.get('epsilon')))}{_delta(guarantee)} against the whole "
        "release.",
    ]
    if kept:
        sentences.append(
            "The model now uses the calibration map from this study, by the method "
            f"{_text(record.get('method'))}. The other figures on this page were measured on "
            "the test records with the previous map."
        )
    else:
        sentences.append(
            "The answers do not show that the new calibration map helps: the model keeps its "
            "previous map."
        )
    rows = []
    for stage, label in _INSTITUTION_STAGES:
        measured = mapping(record.get(stage))
        figures = mapping(measured.get("overall")) or measured
        if figures:
            names = ("accuracy", "ece")
            rows.append((label, *(cell(estimate(figures.get(name))) for name in names)))
    heads = ("on the institutions' records", _HEADS["accuracy"], _HEADS["ece"])
    caption = "Before and after, released with noise by the institutions"
    return Institutions(
        f"Recalibrated by {len(sources)} institution{'' if len(sources) == 1 else 's'}",
        tuple(sentences),
        _sources(sources),
        Table(caption, heads, tuple(rows)) if rows else None,
        pairs("Fitted calibration map", mapping(record.get("map"))),
        _text(record.get("statement")),
        kept,
    )


def _sources(sources: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each institution."""
    rows = []
    for source in sources:
        head, most = mapping(source.get("head")), number(source.get("max_contributions")) or 1
        unit = _text(source.get("unit"))
        entry = f"entry {_text(head.get('index'))}, {_text(head.get('hash'))[:_HASH_DIGITS]}…"
        answered = source.get("answered") is True
        rows.append(
            (
                _text(source.get("name")),
                f"epsilon {epsilon(number(source.get('epsilon')), 6)}{_delta(source)}",
                unit if most == 1 else f"{unit} of up to {most:.0f} records",
                _text(source.get("relation")),
                "all" if answered else f"incomplete: {_text(source.get('why'))}",
                _text(source.get("key")),
                entry if head else "no signed entry yet",
            )
        )
    heads = ("institution", "charge", "per", "relation", "answers", "key", "ledger")
    return Table("Institutions and their charges", heads, tuple(rows))


def _delta(guarantee: Mapping[str, Any]) -> str:
    """The delta of a guarantee, if there is one."""
    delta = number(guarantee.get("delta"))
    return f", delta {epsilon(delta, 3)}" if delta else ""


def _text(value: object) -> str:
    """Text of an untrusted file."""
    if value is None or isinstance(value, Mapping | list):
        return NOT_RECORDED
    return visible(str(value), keep="\n")
