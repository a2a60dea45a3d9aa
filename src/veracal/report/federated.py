"""The part of the report that institutions have a share in: who recalibrated, at which cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veracal.report.results import Results
from veracal.report.tables import Table, cell, pairs
from veracal.report.told import estimate, mapping, number
from veracal.report.writing import epsilon, visible

_SIDES = (("before", "without a map"), ("after", "with the map of the institutions"))
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
    for side, words in _SIDES:
        found = mapping(mapping(told.get(side)).get("overall")) or mapping(told.get(side))
        if found:
            names = ("accuracy", "ece")
            rows.append((words, *(cell(estimate(found.get(name))) for name in names)))
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
