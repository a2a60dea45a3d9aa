"""Audits on the command line: trainings and files of runs, tables, and output files.

Every table says that it is internal.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import typer

from veracal._types import Array, Ints
from veracal.accounting import MICRO
from veracal.artifact import PrivateClassifier, check_output_folder, write_folder
from veracal.calibration import METHODS, MethodSettings
from veracal.cli import _options, _output
from veracal.cli._artifacts import is_artifact, read_results
from veracal.cli._figures import format_interval, format_number
from veracal.data import Dataset, Estimate, Group, Label, Schema, encode_labels, read_npz
from veracal.errors import DataError, MissingExtraError
from veracal.multiplicity import (
    AuditSettings,
    Kind,
    RetrainEngine,
    StoredEngine,
    audit_engine,
)
from veracal.report import AuditResults, mean_flip, render_audit
from veracal.workflow import AuditRun, Config, audit_config, find_table, runs_path, today

FILES = ("audit.html", "audit.json", "individuals.csv")
INTERNAL = "internal: every run reads the records again; protect it like the records"
_BINS = 15  # bins of a binned calibration map
_MAX_COLUMNS = 3  # budgets whose intervals fit into one table


# ---------------------------------------------------------------- trainings


def read_deployed(
    folder: Path, data: str | None, given: Mapping[str, Any], target: str | None
) -> tuple[Config, PrivateClassifier, Schema | None]:
    """The settings of a saved model, whose table may have moved, and the model.

    The third is the schema of the model, unless a schema file is given.
    """
    classifier = PrivateClassifier.load(folder)
    results = read_results(folder)
    config = Config.from_entries(results.settings, where=f"{folder}: settings")
    if data is None:
        data = config.data.source
        data = data if config.data.schema is None else find_table(folder, data)
    own = replace(config.data, source=data, schema=None)
    config = _options.override(replace(config, data=own), given)
    schema = None
    if not _options.is_name(data) and given["schema"] is None:
        schema = classifier.schema
    if schema is None:
        _options.check_data(config, target)
    return config, classifier, schema


def audit_training(
    training: tuple[Config, PrivateClassifier | None, Schema | None],
    epsilons: tuple[float, ...],
    settings: Mapping[str, Any],
    method: str | None,
    **options: Any,
) -> AuditResults:
    """Audit a training for some budgets (by default its own), with a progress bar for each.

    ``training`` is the config, the deployed model and its schema, as :func:`read_deployed`
    returns them; ``method`` recalibrates each run without privacy, and ``options`` are those of
    :class:`veracal.workflow.AuditRun`.
    """
    config, deployed, schema = training
    with _output.usage_errors():
        question = AuditSettings(**settings)
    public = None if method is None else METHODS[method].public
    fitter = None if public is None else public(MethodSettings(MICRO, bins=_BINS))
    run = AuditRun(recalibrate=fitter, **options)
    epsilons = epsilons or (config.privacy.epsilon,)
    with (
        _explain_interruption(run, epsilons),
        _output.progress_bars(counted=True) as (_, update),
    ):
        results = audit_config(
            config,
            epsilons,
            question,
            run,
            against=deployed,
            schema=schema,
            on_load=lambda done, total: update("loading", done, total),
            on_progress=lambda epsilon, done, total: update(
                f"epsilon {epsilon:.6g}", done, total
            ),
        )
    engine = results.audits[0].engine_settings["engine"]
    if engine != RetrainEngine.name and (run.jobs, run.backend, run.address) != (None,) * 3:
        _output.print_status(
            f"No workers needed: {engine} makes many runs at a time in one process."
        )
    return results


@contextmanager
def _explain_interruption(run: AuditRun, epsilons: Sequence[float]) -> Iterator[None]:
    """Turn invalid settings into usage errors, and explain what an interrupted audit kept."""
    try:
        with _output.usage_errors():
            yield
    except KeyboardInterrupt:
        places = [runs_path(run.keep, e, several=len(epsilons) > 1) for e in epsilons]
        kept = [str(place) for place in places if place is not None and place.exists()]
        message = (
            f"The counted runs are in {', '.join(kept)}: the same command resumes "
            "from there, and counts none twice."
            if kept
            else "No runs were saved; with --keep FILE an interrupted audit can be resumed."
            if run.keep is None
            else "No run was saved yet: the same command starts from the beginning."
        )
        _output.print_status(f"Stopped; no partial files are left. {message}")
        raise typer.Exit(1) from None


# ---------------------------------------------------------------- files of runs

# Names of the array with the runs, and the kind of its numbers.
KINDS: Mapping[str, Kind] = {
    "decisions": "decision",
    "probabilities": "probability",
    "scores": "probability",
    "logits": "logit",
}
_OTHER_ARRAYS = ("labels", "classes", "deployed", "rows")
_GROUP_PREFIX = "group:"


def audit_predictions(path: Path, settings: Mapping[str, Any]) -> AuditResults:
    """Audit all runs of a file.

    Parameters
    ----------
    path : path
        An npz file with one of ``decisions`` (class indices), ``probabilities`` (or ``scores``)
        and ``logits``, of shape (runs, individuals) or, but for decisions, (runs, individuals,
        classes). May hold ``labels`` and ``deployed``, one for each individual, as class
        indices or as in ``classes``; ``classes``; ``rows``, the rows of the individuals in a
        table; and attributes, ``group:NAME``.
    settings : mapping
        Of :class:`~veracal.multiplicity.AuditSettings`. Without groups, results are broken down
        by all attributes of the file.
    """
    with _output.usage_errors():
        question = AuditSettings(**settings)
        arrays = read_npz(path)
        name = _find_runs(arrays, path)
        classes = _read_classes(arrays, path)
        engine = StoredEngine(arrays[name], classes, KINDS[name])
        count = engine.individuals
        labels, deployed = (
            _read_codes(each, arrays, engine, path) for each in ("labels", "deployed")
        )
        groups = _read_groups(arrays, count, path)
        rows = _read_column("rows", arrays, count, path)
        if rows is not None and rows.dtype.kind not in "iu":
            raise DataError(
                f"{path}: rows",
                "whole numbers",
                str(rows.dtype),
                "Number the rows of the table.",
            )
        codes = np.zeros(count, dtype=np.int64) if labels is None else labels
        result = audit_engine(
            engine,
            Dataset(np.zeros((count, 1)), codes, engine.classes, groups),
            replace(question, runs=engine.runs, groups=question.groups or tuple(groups)),
            deployed=deployed,
            labeled=labels is not None,
        )
    return AuditResults(
        name=path.name,
        date=today(),
        what=f"{name} of runs that were made elsewhere",
        rows=np.arange(1, count + 1) if rows is None else rows.astype(np.int64),
        audits=(result,),
        epsilons=(),
        settings={"predictions": path.name, "arrays": sorted(arrays)},
        notes=("The runs were made elsewhere; what varied between them is unknown.",),
    )


def _find_runs(arrays: Mapping[str, Array], path: Path) -> str:
    """Name of the array with the runs."""
    runs = [name for name in KINDS if name in arrays]
    known = {*KINDS, *_OTHER_ARRAYS}
    unknown = [n for n in arrays if n not in known and not n.startswith(_GROUP_PREFIX)]
    if unknown or len(runs) != 1:
        others = ", ".join((*_OTHER_ARRAYS, f"{_GROUP_PREFIX}NAME"))
        raise DataError(
            str(path),
            f"one array of {', '.join(KINDS)}, and beside it only {others}",
            ", ".join(map(repr, unknown or runs))[:200] or "none of them",
            "Save the arrays as in:  np.savez(FILE, decisions=..., labels=...).",
        )
    return runs[0]


def _read_classes(arrays: Mapping[str, Array], path: Path) -> Sequence[Label] | None:
    """Names of the classes, if the file has them."""
    array = arrays.get("classes")
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind not in "iuUT" or len(array) < 2:
        raise DataError(
            f"{path}: classes",
            "two or more names or whole numbers",
            f"{array.dtype} of shape {array.shape}",
            "Write all classes, in the order of their numbers.",
        )
    labels: list[Label] = array.tolist()
    return labels


def _read_codes(
    name: str, arrays: Mapping[str, Array], engine: StoredEngine, path: Path
) -> Ints | None:
    """Classes of individuals as indices; None if the file lacks them."""
    array = _read_column(name, arrays, engine.individuals, path)
    if array is None:
        return None
    if array.dtype.kind in "UT" or "classes" in arrays:
        return encode_labels(array, engine.classes, f"{path}: {name}")
    whole = array.dtype.kind in "biu"
    if not (whole and array.min() >= 0 and array.max() < len(engine.classes)):
        raise DataError(
            f"{path}: {name}",
            f"numbers of classes, 0 to {len(engine.classes) - 1}",
            "others",
            "Number them as the runs do, or add an array 'classes' with their names.",
        )
    codes: Ints = array.astype(np.int64)
    return codes


def _read_groups(arrays: Mapping[str, Array], individuals: int, path: Path) -> dict[str, Group]:
    """Attributes by name. The file belongs to the user, so that its values may be read."""
    groups = {}
    for name in arrays:
        attribute = name.removeprefix(_GROUP_PREFIX)
        if attribute == name:
            continue
        array = _read_column(name, arrays, individuals, path)
        assert array is not None
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


def _read_column(
    name: str, arrays: Mapping[str, Array], individuals: int, path: Path
) -> Array | None:
    """An array with one value for each individual, if the file has it."""
    array = arrays.get(name)
    if array is not None and array.shape != (individuals,):
        raise DataError(
            f"{path}: {name}",
            f"{individuals} values, one for each individual",
            f"the shape {array.shape}",
            "Give them in the order of the runs' columns.",
        )
    return array


# ---------------------------------------------------------------- results


def check_output(out: Path, *, force: bool) -> None:
    """Reject an output folder before the work starts."""
    if is_artifact(out):
        raise typer.BadParameter(
            f"{out} is a model, which may be published. Choose another folder.",
            param_hint="--out",
        )
    check_output_folder(out, force=force, other_files=FILES)


def print_results(results: AuditResults, out: Path | None, *, force: bool, json: bool) -> None:
    """Write page, JSON and CSV, readable only by their owner, and print the results.

    They are printed even if writing fails. Without the ``report`` extra there is no page, and a
    message says why.
    """
    written = None
    try:
        if out is not None:
            csv = results.individuals_csv()
            files = {"audit.json": results.to_bytes(), "individuals.csv": csv}
            try:
                files["audit.html"] = render_audit(results).encode()
            except MissingExtraError as error:
                _output.print_status(f"Without audit.html: {error}")
            write_folder(out, files, force=force, shared=False)
            written = ", ".join(sorted(files))
    finally:
        if json:
            _output.print_json(results.to_json() | {"out": None if out is None else str(out)})
        else:
            _print_tables(results)
    if written is not None:
        _output.print_status(
            f"Wrote {written} to {out}. Internal: protect it like the records."
        )


def _print_tables(results: AuditResults) -> None:
    """Print every table with content, and the notes below them."""
    audits, first = results.labeled_audits, results.audits[0]
    _print_disagreement(results)
    names = {"accuracy": "accuracy", "auc": "AUC", "f1": "F1"}
    figures = [name for name in names if name in first.figures]
    if figures:
        rows = []
        for label, audit in audits:
            spreads = [audit.figures[name] for name in figures]
            cells = [f"{each['mean']:.3f} ± {each['deviation']:.3f}" for each in spreads]
            rows.append((label, *cells))
        heads = [names[name] for name in figures]
        note = "Mean ± standard deviation over runs."
        _print_table(results, "performance of the runs", heads, rows, note)
    for name in first.groups:
        _print_group(results, name)
    rows = [
        (
            label,
            f"{audit.runs:,}",
            *(f"± {_number(audit.bounds[n])}" for n in ("single", "simultaneous", "paper")),
            f"up to {_number(audit.bounds['hidden'])}",
        )
        for label, audit in audits
    ]
    _print_table(
        results,
        "precision of the estimates",
        (
            "runs",
            "one individual",
            "all simultaneously",
            "by the paper's bound",
            "if all runs agree",
        ),
        rows,
        f"Largest error of an estimate, at {first.level:.0%} confidence, for a "
        "number of runs fixed in advance; and the disagreement that unanimous runs may hide.",
    )
    rows = [
        (
            label,
            f"{row.accuracy:g}",
            f"{row.runs:,}",
            "too few runs" if row.mean is None else _number(row.mean),
        )
        for label, audit in audits
        for row in audit.by_accuracy
    ]
    heads = ["accuracy at least", "runs", "mean disagreement"]
    note = "Selecting runs by their accuracy has a privacy cost of its own."
    _print_table(results, "runs of higher accuracy", heads, rows, note)
    rows = [
        (
            label,
            _number(effect.before.value),
            _number(effect.after.value),
            _cell(effect.difference),
            _number(effect.deviation_before),
            _number(effect.deviation_after),
        )
        for label, audit in audits
        if (effect := audit.recalibrated) is not None
    ]
    method = "" if first.recalibrated is None else first.recalibrated.method
    heads = ["before", "after", "difference", "deviation before", "and after"]
    note = "Deviation: of an individual's probability over runs, mean over individuals."
    _print_table(results, f"mean disagreement before and after {method}", heads, rows, note)
    notes = [f"Audited: {results.what}, internal.", *results.notes]
    for label, audit in audits:
        before = f"Epsilon {label}: " if len(results.epsilons) > 1 else ""
        notes += [f"{before}{note}" for note in audit.notes]
        if audit.resumed:
            notes.append(f"{before}{audit.resumed:,} of the runs came from the checkpoint.")
    typer.echo()
    for note in dict.fromkeys(notes):
        _output.print_line(note)


def _print_disagreement(results: AuditResults) -> None:
    """Print the disagreement over individuals, a row for each budget."""
    first = results.audits[0]
    flips = first.individuals.flip is not None
    heads = (
        "runs",
        "mean",
        f"{first.level:.0%} interval",
        "median",
        "p90",
        "p95",
        "max",
        "review",
    )
    rows = []
    for label, audit in results.labeled_audits:
        shape = audit.distribution
        rows.append(
            (
                label,
                f"{audit.runs:,}",
                _number(audit.mean.value),
                format_interval(audit.mean, 3),
                *map(_number, (shape.median, shape.p90, shape.p95, shape.maximum)),
                f"{len(audit.review):,}",
                *((_number(mean_flip(audit)),) if flips else ()),
            )
        )
    note = (
        "Disagreement is 0 if all runs agree, and about 1 if the decision is as good as a coin "
        f"toss. Review: individuals above {first.review_above:g} with confidence."
    )
    note += " Flip: share of runs that contradict the deployed model." if flips else ""
    title = f"{results.name}: disagreement over {len(results.rows):,} individuals"
    _print_table(results, title, (*heads, "flip") if flips else heads, rows, note)


def _print_group(results: AuditResults, name: str) -> None:
    """Print the mean disagreement of each group, with gap and ratio."""
    narrow = len(results.audits) > _MAX_COLUMNS
    groups = [audit.groups[name] for audit in results.audits]
    rows: list[tuple[str, ...]] = [
        (group, f"{individuals:,}", *(_cell(each.values[group], narrow) for each in groups))
        for group, individuals in groups[0].individuals.items()
    ]
    note = ""
    if all(each.gap is not None for each in groups):
        rows.append(("difference", "", *(_cell(e.gap, narrow) for e in groups)))
        rows.append(("ratio", "", *(_cell(e.ratio, narrow) for e in groups)))
        note = "Difference: largest minus smallest. Ratio: smallest over largest.\n"
    right = ["individuals", "mean"]
    if results.epsilons:
        right = ["individuals", *(f"epsilon {label}" for label in results.labels)]
    title, note = f"mean disagreement by {name}", note + INTERNAL
    _output.print_table(title, ("group", *right), rows, right=right, whole=right, note=note)


def _print_table(
    results: AuditResults,
    title: str,
    heads: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    note: str,
) -> None:
    """Print rows that begin with the label of their budget, which is left out if unknown."""
    if rows:
        _output.print_table(
            title,
            ("epsilon", *heads) if results.epsilons else heads,
            rows if results.epsilons else [row[1:] for row in rows],
            right=heads,
            whole=heads,
            note=f"{note}\n{INTERNAL}",
        )


def _number(value: float | None) -> str:
    """A figure with three decimals."""
    return format_number(value, 3)


def _cell(estimate: Estimate | None, narrow: bool = False) -> str:
    """A figure and its interval, which is left out in a narrow table."""
    if estimate is None or estimate.value is None:
        return "empty"
    if narrow or estimate.low is None:
        return _number(estimate.value)
    return f"{_number(estimate.value)} ({format_interval(estimate, 3)})"
