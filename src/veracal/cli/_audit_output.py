"""Results of an audit as tables for the terminal, and audits of runs from a file.

Every table says that it is internal.
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


INTERNAL = "internal: every run reads the records again; protect it like the records"
_FIGURES = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
_MAX_COLUMNS = 3  # budgets whose intervals fit into one table


def show(results: AuditResults) -> None:
    """Print every table, and the notes below them."""
    console = _show.console()
    for table in tables(results):
        console.print(table)
    typer.echo()
    for note in notes(results):
        _show.print_line(note)


def tables(results: AuditResults) -> "Iterator[Renderables]":
    """All tables with content."""
    yield summary_table(results)
    yield from figures_tables(results)
    for name in results.audits[0].groups:
        yield group_table(results, name)
    yield precision_table(results)
    yield from accuracy_tables(results)
    yield from recalibration_tables(results)


def summary_table(results: AuditResults) -> "Renderables":
    """Disagreement over individuals, a row for each budget."""
    first = results.audits[0]
    title = f"{results.name}: disagreement over {len(results.rows):,} individuals"
    ends = f"{first.level:.0%} interval"
    heads = (*_head(results), "runs", "mean", ends, "median", "p90", "p95", "max", "review")
    flips = results.audits[0].individuals.flip is not None
    heads += ("flip",) if flips else ()
    rows = [
        (
            *_label(results, label),
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
        for label, audit in results.labeled_audits
    ]
    note = (
        "Disagreement is 0 if all runs agree, and about 1 if the decision is as good as a coin "
        f"toss. Review: individuals above {first.review_above:g} with confidence."
    )
    note += " Flip: share of runs that contradict the deployed model." if flips else ""
    return _table(title, heads, rows, note)


def figures_tables(results: AuditResults) -> "Iterator[Renderables]":
    """Accuracy, AUC and F1 of the runs, with their deviation."""
    names = [name for name in _FIGURES if name in results.audits[0].figures]
    if not names:
        return
    rows = [
        (*_label(results, label), *(spread(audit.figures[name]) for name in names))
        for label, audit in results.labeled_audits
    ]
    heads = (*_head(results), *(_FIGURES[name] for name in names))
    yield _table("performance of the runs", heads, rows, "Mean ± standard deviation over runs.")


def group_table(results: AuditResults, name: str) -> "Renderables":
    """Mean disagreement of each group, with gap and ratio."""
    narrow = len(results.audits) > _MAX_COLUMNS
    groups = [audit.groups[name] for audit in results.audits]
    heads = [f"epsilon {label}" for label in results.labels] if results.epsilons else ["mean"]
    rows: list[tuple[str, ...]] = [
        (group, f"{individuals:,}", *(_cell(each.values[group], narrow) for each in groups))
        for group, individuals in groups[0].individuals.items()
    ]
    comparable = all(each.gap is not None for each in groups)
    if comparable:
        rows.append(("difference", "", *(_cell(e.gap, narrow) for e in groups)))
        rows.append(("ratio", "", *(_cell(e.ratio, narrow) for e in groups)))
    note = (
        "Difference: largest minus smallest. Ratio: smallest over largest."
        if comparable
        else ""
    )
    return _table(f"mean disagreement by {name}", ("group", "individuals", *heads), rows, note)


def precision_table(results: AuditResults) -> "Renderables":
    """Precision of the estimates for individuals."""
    rows = [
        (
            *_label(results, label),
            f"{audit.runs:,}",
            f"± {number(audit.bounds['single'])}",
            f"± {number(audit.bounds['simultaneous'])}",
            f"± {number(audit.bounds['paper'])}",
            f"up to {number(audit.bounds['hidden'])}",
        )
        for label, audit in results.labeled_audits
    ]
    heads = (
        *_head(results),
        "runs",
        "one individual",
        "all simultaneously",
        "by the paper's bound",
        "if all runs agree",
    )
    note = (
        f"Largest error of an estimate, at {results.audits[0].level:.0%} confidence, for a "
        "number of runs fixed in advance; and the disagreement that unanimous runs may hide."
    )
    return _table("precision of the estimates", heads, rows, note)


def accuracy_tables(results: AuditResults) -> "Iterator[Renderables]":
    """Disagreement among the runs that reach each accuracy."""
    rows = [
        (
            *_label(results, label),
            f"{row.accuracy:g}",
            f"{row.runs:,}",
            "too few runs" if row.mean is None else number(row.mean),
        )
        for label, audit in results.labeled_audits
        for row in audit.by_accuracy
    ]
    if rows:
        heads = (*_head(results), "accuracy at least", "runs", "mean disagreement")
        note = "Selecting runs by their accuracy has a privacy cost of its own."
        yield _table("runs of higher accuracy", heads, rows, note)


def recalibration_tables(results: AuditResults) -> "Iterator[Renderables]":
    """Disagreement before and after recalibrating each run."""
    rows = [
        (
            *_label(results, label),
            number(effect.before.value),
            number(effect.after.value),
            _cell(effect.difference, narrow=False),
            number(effect.deviation_before),
            number(effect.deviation_after),
        )
        for label, audit in results.labeled_audits
        if (effect := audit.recalibrated) is not None
    ]
    if rows:
        heads = (
            *_head(results),
            "before",
            "after",
            "difference",
            "deviation before",
            "and after",
        )
        first = results.audits[0].recalibrated
        assert first is not None
        note = "Deviation: of an individual's probability over runs, mean over individuals."
        yield _table(f"mean disagreement before and after {first.method}", heads, rows, note)


def notes(results: AuditResults) -> list[str]:
    """Notes below the tables."""
    messages = [f"Audited: {results.what}, internal."]
    messages += results.notes
    for label, audit in results.labeled_audits:
        before = f"Epsilon {label}: " if len(results.epsilons) > 1 else ""
        messages += [f"{before}{note}" for note in audit.notes]
        if audit.resumed:
            messages.append(f"{before}{audit.resumed:,} of the runs came from the checkpoint.")
    return list(dict.fromkeys(messages))


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
    """A figure and its interval, which is left out in a narrow table."""
    if estimate is None or estimate.value is None:
        return "empty"
    if narrow or estimate.low is None:
        return number(estimate.value)
    return f"{number(estimate.value)} ({interval(estimate)})"


def _head(results: AuditResults) -> tuple[str, ...]:
    """The column head of budgets, if they are known."""
    return ("epsilon",) if results.epsilons else ()


def _label(results: AuditResults, label: str) -> tuple[str, ...]:
    """The cell of a budget, if it is known."""
    return (label,) if results.epsilons else ()


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str
) -> "Renderables":
    """A table whose last line says that it is internal."""
    note = f"{note}\n{INTERNAL}" if note else INTERNAL
    right = [head for head in heads if head not in ("group", "epsilon")]
    return _show.table(title, heads, rows, right=right, whole=right, note=note)


# Names of the array with the runs, and the kind of its numbers.
KINDS: Mapping[str, Kind] = {
    "decisions": "decision",
    "probabilities": "probability",
    "scores": "probability",
    "logits": "logit",
}
_OTHER_ARRAYS = ("labels", "classes", "deployed", "rows")
_GROUP_PREFIX = "group:"
_UNKNOWN_VARIATION = "The runs were made elsewhere; what varied between them is unknown."


def audit_file(path: Path, settings: AuditSettings) -> AuditResults:
    """Audit all runs of a file.

    Parameters
    ----------
    path : path
        An npz file with one of ``decisions`` (class indices), ``probabilities`` (or ``scores``)
        and ``logits``, of shape (runs, individuals) or, but for decisions, (runs, individuals,
        classes). May hold ``labels`` and ``deployed``, one for each individual, as class
        indices or as in ``classes``; ``classes``; ``rows``, the rows of the individuals in a
        table; and attributes, ``group:NAME``.
    settings : AuditSettings
        Without groups, results are broken down by all attributes of the file.
    """
    arrays = read_npz(path)
    runs_name = _runs_array(arrays, path)
    engine = StoredEngine(arrays[runs_name], _classes(arrays, path), KINDS[runs_name])
    groups = _groups(arrays, engine.individuals, path)
    labels = _codes("labels", arrays, engine, path)
    codes = np.zeros(engine.individuals, dtype=np.int64) if labels is None else labels
    individuals = Dataset(np.zeros((engine.individuals, 1)), codes, engine.classes, groups)
    result = audit_engine(
        engine,
        individuals,
        replace(settings, runs=engine.runs, groups=settings.groups or tuple(groups)),
        deployed=_codes("deployed", arrays, engine, path),
        labeled=labels is not None,
    )
    return AuditResults(
        name=path.name,
        date=today(),
        what=f"{runs_name} of runs that were made elsewhere",
        rows=_rows(arrays, engine.individuals, path),
        audits=(result,),
        epsilons=(),
        settings={"predictions": path.name, "arrays": sorted(arrays)},
        notes=(_UNKNOWN_VARIATION,),
    )


def _runs_array(arrays: Mapping[str, Array], path: Path) -> str:
    """Name of the array with the runs."""
    unknown = [
        name
        for name in arrays
        if name not in KINDS
        and name not in _OTHER_ARRAYS
        and not name.startswith(_GROUP_PREFIX)
    ]
    present = [name for name in KINDS if name in arrays]
    if unknown or len(present) != 1:
        known = ", ".join((*_OTHER_ARRAYS, f"{_GROUP_PREFIX}NAME"))
        raise DataError(
            str(path),
            f"one array of {', '.join(KINDS)}, and beside it only {known}",
            ", ".join(map(repr, unknown or present))[:200] or "none of them",
            "Save the arrays as in:  np.savez(FILE, decisions=..., labels=...).",
        )
    return present[0]


def _classes(arrays: Mapping[str, Array], path: Path) -> Sequence[Label] | None:
    """Names of the classes, if the file has them."""
    if "classes" not in arrays:
        return None
    array = arrays["classes"]
    if array.ndim != 1 or array.dtype.kind not in "iuUT" or len(array) < 2:
        raise DataError(
            f"{path}: classes",
            "two or more names or whole numbers",
            f"{array.dtype} of shape {array.shape}",
            "Write all classes, in the order of their numbers.",
        )
    labels: list[Label] = array.tolist()
    return labels


def _codes(
    name: str, arrays: Mapping[str, Array], engine: StoredEngine, path: Path
) -> Ints | None:
    """Classes of individuals as indices; None if the file lacks them."""
    if name not in arrays:
        return None
    array, where = _validate_length(name, arrays, engine.individuals, path), f"{path}: {name}"
    if array.dtype.kind in "UT" or "classes" in arrays:
        return encode_labels(array, engine.classes, where)
    whole = array.dtype.kind in "biu"
    if not (whole and array.min() >= 0 and array.max() < len(engine.classes)):
        raise DataError(
            where,
            f"numbers of classes, 0 to {len(engine.classes) - 1}",
            "others",
            "Number them as the runs do, or add an array 'classes' with their names.",
        )
    codes: Ints = array.astype(np.int64)
    return codes


def _groups(arrays: Mapping[str, Array], individuals: int, path: Path) -> dict[str, Group]:
    """Attributes by name. The file belongs to the user, so that its values may be read."""
    groups = {}
    for name in arrays:
        if not name.startswith(_GROUP_PREFIX):
            continue
        array, attribute = (
            _validate_length(name, arrays, individuals, path),
            name.removeprefix(_GROUP_PREFIX),
        )
        if array.dtype.kind not in "biuUT" or not attribute.strip() or "&" in attribute:
            raise DataError(
                f"{path}: {name}",
                "an attribute with a name (without '&') and text or integers as values",
                str(array.dtype),
                "Convert numbers to categories, for example ages to age ranges.",
            )
        values = array.astype(str)
        groups[attribute] = Group.from_values(values, sorted(set(values.tolist())))
    return groups


def _rows(arrays: Mapping[str, Array], individuals: int, path: Path) -> Ints:
    """Rows of the individuals in a table, or in the file, counted from 1."""
    if "rows" not in arrays:
        return np.arange(1, individuals + 1)
    array = _validate_length("rows", arrays, individuals, path)
    if array.dtype.kind not in "iu":
        raise DataError(
            f"{path}: rows", "whole numbers", str(array.dtype), "Number the rows of the table."
        )
    numbers: Ints = array.astype(np.int64)
    return numbers


def _validate_length(
    name: str, arrays: Mapping[str, Array], individuals: int, path: Path
) -> Array:
    """Check that an array has one value for each individual."""
    array = arrays[name]
    if array.shape != (individuals,):
        raise DataError(
            f"{path}: {name}",
            f"{individuals} values, one for each individual",
            f"the shape {array.shape}",
            "Give them in the order of the runs' columns.",
        )
    return array
