"""What an audit found, as tables on a terminal; every one of them says that it is internal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from veracal.cli import _show
from veracal.data import Estimate
from veracal.report.audited import Audited, mean_flip

if TYPE_CHECKING:
    from rich.console import Group as Renderables

INTERNAL = "internal: every run looked at the records again; keep it like the records"
_FIGURES = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
_ACROSS = 3  # budgets whose intervals fit beside each other


def show(found: Audited) -> None:
    """Print every table, and below them what a reader must know."""
    console = _show.console()
    for table in tables(found):
        console.print(table)
    typer.echo()
    for note in notes(found):
        _show.say(note)


def tables(found: Audited) -> "Iterator[Renderables]":
    """All tables for which there is something to tell."""
    yield people(found)
    yield from figures(found)
    for name in found.audits[0].groups:
        yield by_group(found, name)
    yield can_tell(found)
    yield from at_levels(found)
    yield from recalibrated(found)


def people(found: Audited) -> "Renderables":
    """Disagreement over people, a line for each budget."""
    first = found.audits[0]
    title = f"{found.name}: how far runs disagree about {len(found.rows):,} people"
    ends = f"{first.level:.0%} interval"
    heads = (*_head(found), "runs", "mean", ends, "median", "p90", "p95", "most", "review")
    flips = found.audits[0].persons.flip is not None
    heads += ("flip",) if flips else ()
    rows = [
        (
            *_label(found, label),
            f"{audit.runs:,}",
            number(audit.mean.value),
            interval(audit.mean),
            number(audit.distribution.median),
            number(audit.distribution.p90),
            number(audit.distribution.p95),
            number(audit.distribution.maximum),
            f"{len(audit.review):,}",
            *((number(mean_flip(audit)),) if flips else ()),
        )
        for label, audit in found.told
    ]
    said = (
        "Disagreement is 0 where all runs decide alike, about 1 where they toss a coin. To "
        f"review: people above {first.review_above:g}, whatever the runs left open."
    )
    said += " Flip: share of runs that contradict the model in use." if flips else ""
    return _table(title, heads, rows, said)


def figures(found: Audited) -> "Iterator[Renderables]":
    """Accuracy, AUC and F1 of the runs, with their deviation."""
    names = [name for name in _FIGURES if name in found.audits[0].figures]
    if not names:
        return
    rows = [
        (*_label(found, label), *(spread(audit.figures[name]) for name in names))
        for label, audit in found.told
    ]
    heads = (*_head(found), *(_FIGURES[name] for name in names))
    yield _table("how good the runs are", heads, rows, "Mean ± standard deviation over runs.")


def by_group(found: Audited, name: str) -> "Renderables":
    """Mean disagreement of each group, with gap and ratio."""
    some = found.told[:_ACROSS]
    narrow = len(found.told) > _ACROSS
    told = [audit.groups[name] for _, audit in (found.told if narrow else some)]
    heads = [f"epsilon {label}" for label in found.labels] if found.epsilons else ["mean"]
    heads = heads[: len(told)]
    rows: list[tuple[str, ...]] = [
        (group, f"{people:,}", *(_cell(each.values[group], narrow) for each in told))
        for group, people in told[0].people.items()
    ]
    apart = all(each.gap is not None for each in told)
    if apart:
        rows.append(("difference", "", *(_cell(e.gap, narrow) for e in told)))
        rows.append(("ratio", "", *(_cell(e.ratio, narrow) for e in told)))
    said = "Difference: largest minus smallest. Ratio: smallest over largest." if apart else ""
    return _table(f"mean disagreement by {name}", ("group", "people", *heads), rows, said)


def can_tell(found: Audited) -> "Renderables":
    """What so many runs can and cannot tell of a person."""
    rows = [
        (
            *_label(found, label),
            f"{audit.runs:,}",
            f"± {number(audit.bounds['one'])}",
            f"± {number(audit.bounds['all'])}",
            f"± {number(audit.bounds['paper'])}",
            f"up to {number(audit.bounds['blind'])}",
        )
        for label, audit in found.told
    ]
    heads = (
        *_head(found),
        "runs",
        "one person",
        "everybody at once",
        "by the paper's bound",
        "if all runs agree",
    )
    said = (
        f"Largest error of an estimate, at {found.audits[0].level:.0%}, of so many runs fixed "
        "beforehand; and the disagreement that a person may still have of whom all runs agree."
    )
    return _table("what so many runs can tell", heads, rows, said)


def at_levels(found: Audited) -> "Iterator[Renderables]":
    """Disagreement among the runs that are accurate enough."""
    rows = [
        (
            *_label(found, label),
            f"{row.accuracy:g}",
            f"{row.runs:,}",
            "too few runs" if row.mean is None else number(row.mean),
        )
        for label, audit in found.told
        for row in audit.at_levels
    ]
    if rows:
        heads = (*_head(found), "accuracy at least", "runs", "mean disagreement")
        said = "Choosing runs by their accuracy spends privacy of its own."
        yield _table("among the more accurate runs", heads, rows, said)


def recalibrated(found: Audited) -> "Iterator[Renderables]":
    """Disagreement before and after every run was repaired."""
    rows = [
        (
            *_label(found, label),
            number(done.before.value),
            number(done.after.value),
            _cell(done.difference, narrow=False),
            number(done.deviation_before),
            number(done.deviation_after),
        )
        for label, audit in found.told
        if (done := audit.recalibrated) is not None
    ]
    if rows:
        heads = (*_head(found), "before", "after", "difference", "spread before", "and after")
        first = found.audits[0].recalibrated
        assert first is not None
        said = "Spread: deviation of a person's probability over runs, mean over people."
        yield _table(f"mean disagreement before and after {first.method}", heads, rows, said)


def notes(found: Audited) -> list[str]:
    """What a reader must know beside the figures."""
    said = [f"Audited: {found.what}, internal."]
    said += found.notes
    for label, audit in found.told:
        before = f"Epsilon {label}: " if len(found.epsilons) > 1 else ""
        said += [f"{before}{note}" for note in audit.notes]
        if audit.resumed:
            said.append(f"{before}{audit.resumed:,} of the runs came from the file of --keep.")
    return list(dict.fromkeys(said))


def number(value: float | None) -> str:
    """A figure with three decimals."""
    return "–" if value is None else f"{value + 0.0:.3f}"


def interval(estimate: Estimate) -> str:
    """Ends of an interval, if there is one."""
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{number(estimate.low)} to {number(estimate.high)}"


def spread(figure: Mapping[str, float]) -> str:
    """Mean and deviation over runs."""
    return f"{figure['mean']:.3f} ± {figure['deviation']:.3f}"


def _cell(estimate: Estimate | None, narrow: bool) -> str:
    """A figure and its interval, which is left out where there is no room."""
    if estimate is None or estimate.value is None:
        return "nobody"
    if narrow or estimate.low is None:
        return number(estimate.value)
    return f"{number(estimate.value)} ({interval(estimate)})"


def _head(found: Audited) -> tuple[str, ...]:
    """The column that tells budgets apart, if there are any."""
    return ("epsilon",) if found.epsilons else ()


def _label(found: Audited, label: str) -> tuple[str, ...]:
    """Its cell."""
    return (label,) if found.epsilons else ()


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], said: str
) -> "Renderables":
    """A table whose last line says that it is internal."""
    note = f"{said}\n{INTERNAL}" if said else INTERNAL
    right = [head for head in heads if head not in ("group", "epsilon")]
    return _show.table(title, heads, rows, right=right, whole=right, note=note)
