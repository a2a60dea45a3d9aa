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
from veracal.data import Dataset, Group, Label, Schema, encode_labels, read_npz
from veracal.errors import DataError, MissingExtraError
from veracal.multiplicity import (
    AuditSettings,
    Kind,
    RetrainEngine,
    StoredEngine,
    audit_engine,
)
from veracal.report import AuditResults, audit_notes, audit_tables, render_audit
from veracal.workflow import AuditRun, Config, audit_config, find_table, runs_path, today

FILES = ("audit.html", "audit.json", "individuals.csv")
INTERNAL = "internal: every run reads the records again; protect it like the records"
_BINS = 15  # bins of a binned calibration map


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
            deployed=deployed,
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
    for title, table, note in audit_tables(results):
        below = f"{note}\n{INTERNAL}" if note else INTERNAL
        _output.print_table(title, table.heads, table.rows, right=table.heads[1:], note=below)
    typer.echo()
    for note in (f"Audited: {results.what}, internal.", *audit_notes(results)):
        _output.print_line(note)
    for label, audit in results.labeled_audits:
        if audit.resumed:
            before = f"Epsilon {label}: " if len(results.epsilons) > 1 else ""
            _output.print_line(
                f"{before}{audit.resumed:,} of the runs came from the checkpoint."
            )
