"""Tables of the report: whatever a chart shows can be read, too.

The part of the report that institutions have a share in: who recalibrated, at which cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal.data import Estimate
from veracal.report import text as words
from veracal.report.results import (
    FIGURES,
    MeasurementRecord,
    Results,
    cost,
    estimate,
    figure,
    gap,
    group_names,
    mapping,
    number,
    possible,
    single,
)
from veracal.report.text import (
    UNTOLD,
    count,
    decimals,
    epsilon,
    flat,
    interval,
    percent,
    visible,
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


def _sides(results: Results) -> list[tuple[str, MeasurementRecord]]:
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


_INSTITUTION_SIDES = (
    ("before", "without a map"),
    ("after", "with the map of the institutions"),
)
_SHOWN = 16  # digits of a hash that a table has room for


@dataclass(frozen=True)
class Institutions:
    """What the report says of a recalibration by institutions.

    Attributes
    ----------
    title : str
    sentences : tuple of str
    sources : Table
        Who they are, and what each was charged.
    figures : Table or None
        Before and after, if they were measured.
    map : Table
    statement : str
    kept : bool
        Whether the model uses their map.
    """

    title: str
    sentences: tuple[str, ...]
    sources: Table
    figures: Table | None
    map: Table
    statement: str
    kept: bool


def institutions(results: Results) -> Institutions | None:
    """What institutions did to the map of a model; None if none did."""
    if results.federation is None:
        return None
    told = results.federation
    each = [mapping(one) for one in _listed(told.get("sources"))]
    answered = sum(one.get("answered") is True for one in each)
    return Institutions(
        f"Recalibrated by {len(each)} institution{'' if len(each) == 1 else 's'}",
        tuple(_sentences(told, len(each), answered)),
        _sources(each),
        _figures(told),
        pairs("The map that they found", mapping(told.get("map"))),
        _words(told.get("statement")),
        is_kept(told),
    )


def _sentences(told: Mapping[str, Any], asked: int, answered: int) -> list[str]:
    """What happened, for who decides."""
    study, made = (_words(told.get(name)) for name in ("study", "made"))
    guarantee = mapping(told.get("guarantee"))
    cost = epsilon(number(guarantee.get("epsilon")))
    said = [
        f"On {made}, in the study {study}, {answered} of {asked} institutions answered "
        "everything that they were asked. Each keeps its records, answers with noise of its "
        "own and pays from its own ledger.",
        f"Whoever has records at one of them is protected at epsilon {cost}"
        f"{_delta(guarantee)} against all of it.",
    ]
    if is_kept(told):
        said.append(
            "Since then the model uses the map that they found, by the method "
            f"{_words(told.get('method'))}. Figures elsewhere on this page are of the test "
            "records, with the map that it had before."
        )
    else:
        said.append(
            "What they answered does not show that the map they found helps: the model keeps "
            "the one that it had."
        )
    return said


def is_kept(told: Mapping[str, Any]) -> bool:
    """Whether the map that institutions found is in use."""
    return mapping(told.get("map")).get("kind") != "identity"


def _sources(each: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each institution."""
    heads = ("institution", "charged", "for each", "under", "answers", "its key", "ledger")
    return Table("Who was asked, and what each was charged", heads, tuple(map(_row, each)))


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    """One institution."""
    head, at_most = mapping(one.get("head")), number(one.get("at_most")) or 1
    unit = _words(one.get("unit"))
    why = "everything" if one.get("answered") is True else f"silent: {_words(one.get('why'))}"
    entry = f"entry {_words(head.get('index'))}, {_words(head.get('hash'))[:_SHOWN]}…"
    return (
        _words(one.get("name")),
        f"epsilon {epsilon(number(one.get('epsilon')), 6)}{_delta(one)}",
        unit if at_most == 1 else f"{unit} of up to {at_most:.0f} records",
        _words(one.get("relation")),
        why,
        _words(one.get("key")),
        entry if head else "nothing signed yet",
    )


def _figures(told: Mapping[str, Any]) -> Table | None:
    """Accuracy and calibration error on the institutions' records."""
    rows = []
    for side, label in _INSTITUTION_SIDES:
        found = mapping(mapping(told.get(side)).get("overall")) or mapping(told.get(side))
        if found:
            names = ("accuracy", "ece")
            rows.append((label, *(cell(estimate(found.get(name))) for name in names)))
    heads = ("on their records", "right", "calibration error (ece)")
    caption = "Before and after, released with noise by the institutions"
    return Table(caption, heads, tuple(rows)) if rows else None


def _delta(found: Mapping[str, Any]) -> str:
    """Words for a delta, where there is one."""
    delta = number(found.get("delta"))
    return f", delta {epsilon(delta, 3)}" if delta else ""


def _words(found: object) -> str:
    """Text of a file that anybody may have written."""
    if found is None or isinstance(found, Mapping | list):
        return "not told"
    return visible(str(found), keep="\n")


def _listed(found: object) -> list[Any]:
    """A list, or an empty one."""
    return list(found) if isinstance(found, list | tuple) else []
