"""Tables of the report: whatever a chart shows can be read, too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal.data import Estimate
from veracal.report import words
from veracal.report.results import Measured, Results
from veracal.report.told import (
    FIGURES,
    cost,
    figure,
    gap,
    group_names,
    mapping,
    number,
    possible,
    single,
)
from veracal.report.writing import (
    UNTOLD,
    count,
    decimals,
    epsilon,
    flat,
    interval,
    percent,
)

_HEADS = {"accuracy": "right", "ece": "calibration error (ece)", "brier": "Brier score"}
_LEDGER = ("purpose", "part of the records", "planned times", "used")
_SIDES = ("before", "after")
MOST = 500  # rows of what is not for people anymore


@dataclass(frozen=True)
class Table:
    """Cells as text, with heads and a caption."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def all_tables(results: Results) -> dict[str, Any]:
    """Tables of the public page, under the names of its template."""
    return {
        "level": level(results),
        "sureness": sureness(results),
        "reliability": reliability(results),
        "measured": measured(results),
        "floor": floor(results),
        "by_group": by_group(results),
        "gaps": gaps(results),
        "ledger": ledger(results),
        "data": pairs("Declared before a record was read", results.data),
        "settings": pairs("Settings of the run", results.settings),
        "map": pairs("What repairs confidence", results.map),
        "versions": pairs("Versions of libraries", results.versions),
    }


def level(results: Results) -> str:
    """Level of the intervals."""
    found = figure(results.when("after") or results.when("before"), "count")
    return percent(found.level) if found is not None and found.level else "95%"


def sureness(results: Results) -> Table:
    """The sure end of the curve, in words; no rows where nothing can be told."""
    found = words.sureness(results)
    rows = found if any(each.told for each in found) else ()
    caption = "How often it is right when it says it is sure"
    if results.when("before") is None:
        heads: tuple[str, ...] = ("it says it is sure to", "right", "verdict")
        return Table(caption, heads, tuple((r.says, r.after, r.verdict) for r in rows))
    heads = ("it says it is sure to", "right before the repair", "right after it", "verdict")
    return Table(caption, heads, tuple((r.says, r.before, r.after, r.verdict) for r in rows))


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
        for when in _SIDES
        for each in possible(results, when)
    ]
    heads = ("confidence in", "side", "records", "mean confidence", "right", "interval")
    return Table("Bins of the reliability diagram", heads, tuple(rows)) if rows else None


def measured(results: Results) -> Table:
    """One row for each measurement."""
    heads = ("measurement", "made", "epsilon", "records", *(_HEADS[name] for name in FIGURES))
    rows = []
    for one in results.measured:
        paid = cost(one)
        rows.append(
            (
                str(one.when),
                str(one.made),
                "not told" if paid is None else epsilon(paid),
                cell(figure(one, "count"), count),
                *(cell(figure(one, name)) for name in FIGURES),
            )
        )
    return Table("Figures of the test records, with intervals", heads, tuple(rows))


def floor(results: Results) -> str:
    """What calibration error even a perfect model would show."""
    last = results.when("after") or results.when("before")
    low, bias = single(last, "ece_floor"), single(last, "ece_noise_bias")
    if low is None:
        return ""
    more = f" Noise on every bin adds up to {decimals(bias)} on average." if bias else ""
    return (
        "With so many records and bins even a perfectly calibrated model shows a calibration "
        f"error of up to {decimals(low)} on average.{more}"
    )


def by_group(results: Results) -> Table | None:
    """One row for each group and side."""
    heads = ("group", "side", "records", *(_HEADS[name] for name in FIGURES))
    rows = [
        (
            str(name),
            when,
            cell(figure(one, "count", name), count),
            *(cell(figure(one, each, name)) for each in FIGURES),
        )
        for name in group_names(results)
        for when, one in _sides(results)
    ]
    return Table("Figures of each group, with intervals", heads, tuple(rows)) if rows else None


def gaps(results: Results) -> Table:
    """Largest differences between groups."""
    rows = []
    for when, one in _sides(results):
        for each in FIGURES:
            found = {name: figure(one, each, name) for name in group_names(results)}
            made = gap({name: e for name, e in found.items() if e is not None})
            if made is not None:
                rows.append((_HEADS[each], when, decimals(made.value), interval(made)))
    caption = "Largest difference between groups; the interval holds if those of all groups do"
    return Table(caption, ("figure", "side", "difference", "interval"), tuple(rows))


def ledger(results: Results) -> Table:
    """What was planned, how much of it was used, and what each line costs by itself."""
    planned = results.ledger.get("planned")
    lines = planned if isinstance(planned, Sequence) and not isinstance(planned, str) else ()
    items = [mapping(line) for line in lines]
    names, heads = ["purpose", "part", "times", "used"], list(_LEDGER)
    priced = any("epsilon" in item for item in items)  # older results do not tell
    if priced:
        heads += ["epsilon of all planned", "at delta"]
    rows = tuple(
        (*(_plain(item.get(name)) for name in names), *(_price(item) if priced else ()))
        for item in items
    )
    return Table("Everything that was planned, and how often it was used", tuple(heads), rows)


def _price(item: Mapping[str, Any]) -> tuple[str, str]:
    """Epsilon and delta of a line of the ledger, never below what they are."""
    cost, at = number(item.get("epsilon")), number(item.get("delta"))
    if cost is None:
        return "not told", "not told"
    return epsilon(cost), "not told" if at is None else epsilon(at, 3)


def pairs(caption: str, found: Mapping[str, Any]) -> Table:
    """Names and values."""
    return Table(caption, ("name", "value"), tuple(flat(found)[:MOST]))


def _sides(results: Results) -> list[tuple[str, Measured]]:
    """Measurements before and after the map, as far as there are."""
    found = [(when, results.when(when)) for when in _SIDES]
    return [(when, one) for when, one in found if one is not None]


def cell(found: Estimate | None, write: Any = None) -> str:
    """A figure with its interval in brackets."""
    if found is None:
        return "not measured"
    if found.value is None:
        return UNTOLD
    said = decimals(found.value) if write is None else write(found)
    if found.low is None or found.high is None:
        return str(said)
    ends = interval(found) if write is None else f"{found.low:,.0f} to {found.high:,.0f}"
    return f"{said} ({ends})"


def _plain(value: object) -> str:
    """A cell of the ledger."""
    return "not told" if value is None else str(value)
