"""What an audit found, as tables on a terminal; every one of them says that it is internal.

Runs that anybody made, from a file of arrays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from veracal._types import Array, Ints
from veracal.cli import _output as _show
from veracal.data import Dataset, Estimate, Group, Label, encode_labels, read_npz
from veracal.errors import DataError
from veracal.multiplicity import AuditSettings, Kind, StoredEngine, audit_engine
from veracal.report import AuditResults, mean_flip
from veracal.workflow import today

if TYPE_CHECKING:
    from rich.console import Group as Renderables


INTERNAL = "internal: every run looked at the records again; keep it like the records"
_FIGURES = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
_ACROSS = 3  # budgets whose intervals fit beside each other


def show(found: AuditResults) -> None:
    """Print every table, and below them what a reader must know."""
    console = _show.console()
    for table in tables(found):
        console.print(table)
    typer.echo()
    for note in notes(found):
        _show.say(note)


def tables(found: AuditResults) -> "Iterator[Renderables]":
    """All tables for which there is something to tell."""
    yield individuals(found)
    yield from figures(found)
    for name in found.audits[0].groups:
        yield by_group(found, name)
    yield can_tell(found)
    yield from at_levels(found)
    yield from recalibrated(found)


def individuals(found: AuditResults) -> "Renderables":
    """Disagreement over people, a line for each budget."""
    first = found.audits[0]
    title = f"{found.name}: how far runs disagree about {len(found.rows):,} people"
    ends = f"{first.level:.0%} interval"
    heads = (*_head(found), "runs", "mean", ends, "median", "p90", "p95", "most", "review")
    flips = found.audits[0].individuals.flip is not None
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
        for label, audit in found.labeled_audits
    ]
    said = (
        "Disagreement is 0 where all runs decide alike, about 1 where they toss a coin. To "
        f"review: people above {first.review_above:g}, whatever the runs left open."
    )
    said += " Flip: share of runs that contradict the model in use." if flips else ""
    return _table(title, heads, rows, said)


def figures(found: AuditResults) -> "Iterator[Renderables]":
    """Accuracy, AUC and F1 of the runs, with their deviation."""
    names = [name for name in _FIGURES if name in found.audits[0].figures]
    if not names:
        return
    rows = [
        (*_label(found, label), *(spread(audit.figures[name]) for name in names))
        for label, audit in found.labeled_audits
    ]
    heads = (*_head(found), *(_FIGURES[name] for name in names))
    yield _table("how good the runs are", heads, rows, "Mean ± standard deviation over runs.")


def by_group(found: AuditResults, name: str) -> "Renderables":
    """Mean disagreement of each group, with gap and ratio."""
    some = found.labeled_audits[:_ACROSS]
    narrow = len(found.labeled_audits) > _ACROSS
    told = [audit.groups[name] for _, audit in (found.labeled_audits if narrow else some)]
    heads = [f"epsilon {label}" for label in found.labels] if found.epsilons else ["mean"]
    heads = heads[: len(told)]
    rows: list[tuple[str, ...]] = [
        (group, f"{individuals:,}", *(_cell(each.values[group], narrow) for each in told))
        for group, individuals in told[0].individuals.items()
    ]
    apart = all(each.gap is not None for each in told)
    if apart:
        rows.append(("difference", "", *(_cell(e.gap, narrow) for e in told)))
        rows.append(("ratio", "", *(_cell(e.ratio, narrow) for e in told)))
    said = "Difference: largest minus smallest. Ratio: smallest over largest." if apart else ""
    return _table(f"mean disagreement by {name}", ("group", "people", *heads), rows, said)


def can_tell(found: AuditResults) -> "Renderables":
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
        for label, audit in found.labeled_audits
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


def at_levels(found: AuditResults) -> "Iterator[Renderables]":
    """Disagreement among the runs that are accurate enough."""
    rows = [
        (
            *_label(found, label),
            f"{row.accuracy:g}",
            f"{row.runs:,}",
            "too few runs" if row.mean is None else number(row.mean),
        )
        for label, audit in found.labeled_audits
        for row in audit.by_accuracy
    ]
    if rows:
        heads = (*_head(found), "accuracy at least", "runs", "mean disagreement")
        said = "Choosing runs by their accuracy spends privacy of its own."
        yield _table("among the more accurate runs", heads, rows, said)


def recalibrated(found: AuditResults) -> "Iterator[Renderables]":
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
        for label, audit in found.labeled_audits
        if (done := audit.recalibrated) is not None
    ]
    if rows:
        heads = (*_head(found), "before", "after", "difference", "spread before", "and after")
        first = found.audits[0].recalibrated
        assert first is not None
        said = "Spread: deviation of a person's probability over runs, mean over people."
        yield _table(f"mean disagreement before and after {first.method}", heads, rows, said)


def notes(found: AuditResults) -> list[str]:
    """What a reader must know beside the figures."""
    said = [f"Audited: {found.what}, internal."]
    said += found.notes
    for label, audit in found.labeled_audits:
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


def _head(found: AuditResults) -> tuple[str, ...]:
    """The column that tells budgets apart, if there are any."""
    return ("epsilon",) if found.epsilons else ()


def _label(found: AuditResults, label: str) -> tuple[str, ...]:
    """Its cell."""
    return (label,) if found.epsilons else ()


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], said: str
) -> "Renderables":
    """A table whose last line says that it is internal."""
    note = f"{said}\n{INTERNAL}" if said else INTERNAL
    right = [head for head in heads if head not in ("group", "epsilon")]
    return _show.table(title, heads, rows, right=right, whole=right, note=note)


# Names of the array with the runs, and what its numbers are.
VALUES: Mapping[str, Kind] = {
    "decisions": "decision",
    "probabilities": "probability",
    "scores": "probability",
    "logits": "logit",
}
_OTHERS = ("labels", "classes", "deployed", "rows")
_GROUP = "group:"
_TIME = "Runs were made elsewhere; what differed between them is not known here."


def audited(path: Path, asked: AuditSettings) -> AuditResults:
    """Audit the runs of a file, all of them.

    Parameters
    ----------
    path : path
        An npz file. One of ``decisions`` (whole numbers of classes), ``probabilities`` (or
        ``scores``) and ``logits``, of shape (runs, people) or, but for decisions,
        (runs, people, classes). May hold ``labels`` and ``deployed``, one for each person, as
        numbers of classes or as ``classes`` writes them; ``classes``; ``rows``, numbers of
        people in a table; and attributes, ``group:NAME``.
    asked : Question
        Without groups, people are told apart by all that the file has.
    """
    arrays = read_npz(path)
    name = _named(arrays, path)
    engine = StoredEngine(arrays[name], _classes(arrays, path), VALUES[name])
    groups = _groups(arrays, engine.individuals, path)
    labels = _codes("labels", arrays, engine, path)
    codes = np.zeros(engine.individuals, dtype=np.int64) if labels is None else labels
    individuals = Dataset(np.zeros((engine.individuals, 1)), codes, engine.classes, groups)
    found = audit_engine(
        engine,
        individuals,
        replace(asked, runs=engine.runs, groups=asked.groups or tuple(groups)),
        deployed=_codes("deployed", arrays, engine, path),
        labeled=labels is not None,
    )
    return AuditResults(
        name=path.name,
        date=today(),
        what=f"{name} of runs that were made elsewhere",
        rows=_rows(arrays, engine.individuals, path),
        audits=(found,),
        epsilons=(),
        settings={"predictions": path.name, "arrays": sorted(arrays)},
        notes=(_TIME,),
    )


def _named(arrays: Mapping[str, Array], path: Path) -> str:
    """The one array that holds the runs."""
    strange = [
        name
        for name in arrays
        if name not in VALUES and name not in _OTHERS and not name.startswith(_GROUP)
    ]
    found = [name for name in VALUES if name in arrays]
    if strange or len(found) != 1:
        known = ", ".join((*_OTHERS, f"{_GROUP}NAME"))
        raise DataError(
            str(path),
            f"one array of {', '.join(VALUES)}, and beside it only {known}",
            ", ".join(map(repr, strange or found))[:200] or "none of them",
            "Name the arrays so:  np.savez(FILE, decisions=..., labels=...).",
        )
    return found[0]


def _classes(arrays: Mapping[str, Array], path: Path) -> Sequence[Label] | None:
    """Classes as they are written, if the file says."""
    if "classes" not in arrays:
        return None
    held = arrays["classes"]
    if held.ndim != 1 or held.dtype.kind not in "iuUT" or len(held) < 2:
        raise DataError(
            f"{path}: classes",
            "two or more names or whole numbers",
            f"{held.dtype} of shape {held.shape}",
            "Write all classes, in the order of their numbers.",
        )
    labels: list[Label] = held.tolist()
    return labels


def _codes(
    name: str, arrays: Mapping[str, Array], engine: StoredEngine, path: Path
) -> Ints | None:
    """Classes of people as numbers; None if the file does not tell."""
    if name not in arrays:
        return None
    held, where = _of_people(name, arrays, engine.individuals, path), f"{path}: {name}"
    if held.dtype.kind in "UT" or "classes" in arrays:
        return encode_labels(held, engine.classes, where)
    whole = held.dtype.kind in "biu"
    if not (whole and held.min() >= 0 and held.max() < len(engine.classes)):
        raise DataError(
            where,
            f"numbers of classes, 0 to {len(engine.classes) - 1}",
            "others",
            "Number them as the runs do, or add an array 'classes' with their names.",
        )
    codes: Ints = held.astype(np.int64)
    return codes


def _groups(arrays: Mapping[str, Array], individuals: int, path: Path) -> dict[str, Group]:
    """Attributes by their names; the file is its owner's, so that values may be read."""
    found = {}
    for name in arrays:
        if not name.startswith(_GROUP):
            continue
        held, called = _of_people(name, arrays, individuals, path), name.removeprefix(_GROUP)
        if held.dtype.kind not in "biuUT" or not called.strip() or "&" in called:
            raise DataError(
                f"{path}: {name}",
                "an attribute with a name (without '&') and words or whole numbers as values",
                str(held.dtype),
                "Give an age, say, as a range of years in words.",
            )
        values = held.astype(str)
        found[called] = Group.from_values(values, sorted(set(values.tolist())))
    return found


def _rows(arrays: Mapping[str, Array], individuals: int, path: Path) -> Ints:
    """Where people stand in a table, or their places in the file, counted from 1."""
    if "rows" not in arrays:
        return np.arange(1, individuals + 1)
    held = _of_people("rows", arrays, individuals, path)
    if held.dtype.kind not in "iu":
        raise DataError(
            f"{path}: rows", "whole numbers", str(held.dtype), "Number the rows of the table."
        )
    numbers: Ints = held.astype(np.int64)
    return numbers


def _of_people(name: str, arrays: Mapping[str, Array], individuals: int, path: Path) -> Array:
    """An array with one value for each person."""
    held = arrays[name]
    if held.shape != (individuals,):
        raise DataError(
            f"{path}: {name}",
            f"{individuals} values, one for each person",
            f"the shape {held.shape}",
            "Give them in the order of the runs' columns.",
        )
    return held
