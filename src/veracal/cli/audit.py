"""The command ``audit``: how far decisions depend on the randomness of training.

Also options that take several numbers in a row: ``--epsilon 0.5 1 2``.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from veracal.cli import _artifacts, _options, _output
from veracal.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from veracal._types import Array, Ints
    from veracal.artifact import PrivateClassifier
    from veracal.data import Group, Label, Schema
    from veracal.multiplicity import Kind, StoredEngine
    from veracal.report import AuditResults
    from veracal.workflow import AuditRun, Config

    # The settings of a training, the deployed model if it is audited, and its schema.
    Training = tuple[Config, PrivateClassifier | None, Schema | None]

FILES = ("audit.html", "audit.json", "individuals.csv")
INTERNAL = "internal: every run reads the records again; protect it like the records"
_BINS = 15  # bins of a binned calibration map
RECALIBRATIONS = ("temperature", "two-temperatures", "platt", "beta", "isotonic", "binning")
BACKENDS = ("loky", "ray", "dask")
LISTS = ("--epsilon", "--accuracy-levels")  # options that take several numbers
# Options that apply to runs that were made elsewhere.
_PREDICTION_OPTIONS = {
    "predictions", "level", "groups", "threshold", "accuracy_levels", "review_above",
    "out", "force", "release", "json",
}  # fmt: skip


class ListCommand(TyperCommand):
    """A command some of whose options accept a list of numbers.

    Click supports repeated options and options with a fixed number of values. Here
    ``--epsilon 0.5 1 2`` and ``--epsilon 0.5,1,2`` are both read as the option, three times. A
    word that is not a number ends the list, so that a table may follow.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat each of :data:`LISTS` before its numbers."""
        return super().parse_args(ctx, expand_lists(args, LISTS))


def expand_lists(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Words of a command line, with the option repeated before each of its numbers.

    Examples
    --------
    >>> expand_lists(["--epsilon", "0.5", "1,2", "a.csv"], ["--epsilon"])
    ['--epsilon=0.5', '--epsilon=1', '--epsilon=2', 'a.csv']
    """
    expanded: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if word == "--":
            return [*expanded, word, *rest]
        if name not in names or not (given or rest):
            expanded.append(word)
            continue
        values = [value if given else rest.pop(0)]
        while rest and _is_number_list(rest[0]):
            values.append(rest.pop(0))
        parts = [part.strip() for each in values for part in each.split(",")]
        expanded += [f"{name}={part}" for part in parts if part] or [f"{name}="]
    return expanded


def _is_number_list(word: str) -> bool:
    """Whether a word is a number, or several separated by commas."""
    parts = [part for part in word.split(",") if part.strip()]
    try:
        return bool([float(part) for part in parts])
    except ValueError:
        return False


app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(
    cls=ListCommand,
    epilog="Example:  veracal audit breast-cancer --epsilon 0.5 1 2 --runs 200\n\n"
    "The arbitrariness computed from a released model alone can be published at no cost: "
    "veracal predict MODEL DATA --arbitrariness",
)
def audit(
    context: typer.Context,
    data: _options.Data = None,
    model: _options.ModelKind = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(metavar="E…", help="Budgets to audit, one or more: --epsilon 0.5 1 2."),
    ] = None,
    runs: Annotated[
        str,
        typer.Option(metavar="auto|N", help="Number of runs; auto: until --error is reached."),
    ] = "auto",
    error: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="With auto: largest error of any individual's disagreement."
        ),
    ] = 0.1,
    max_runs: Annotated[
        int, typer.Option(min=2, help="With auto: largest number of runs.")
    ] = 10_000,
    level: _options.Level = 0.95,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            help="Group of the schema by which figures are broken down, or an intersection: "
            "'age & sex'. May be repeated.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="For two classes: probability above which the second is predicted; by default 0.5."
        ),
    ] = None,
    accuracy_levels: Annotated[
        list[float] | None,
        typer.Option(
            metavar="A…", help="Also measure disagreement among runs of at least this accuracy."
        ),
    ] = None,
    review_above: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Disagreement above which a decision should be reviewed."
        ),
    ] = 0.5,
    varied: Annotated[
        str, typer.Option(help="What differs between runs: noise, 'noise and batches' or all.")
    ] = "all",
    plane: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="Two features, for a plot of disagreement in their plane."
        ),
    ] = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(
            help="Recalibrate every run on half of the test partition, to see the effect on "
            "disagreement: temperature, two-temperatures, platt, beta, isotonic or binning."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Folder of a deployed model that 'veracal fit' wrote: audits its settings.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="npz file of runs made elsewhere, instead of DATA: 'decisions', "
            "'probabilities' or 'logits' (runs × individuals), and optionally 'labels', "
            "'classes', 'deployed', 'rows', 'group:NAME'."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Checkpoint file for runs; if it exists, the audit resumes."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Concurrent processes, for models that are trained one by one; by default one "
            "for each core.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="joblib backend of these processes: loky (default), ray or dask."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray or Dask cluster.")
    ] = None,
    random_state: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of a repeatable audit; by default fresh entropy."),
    ] = None,
    target: _options.Target = None,
    delta: _options.Delta = None,
    schema: _options.SchemaFile = None,
    test: _options.Test = None,
    split_key: _options.SplitKey = None,
    norm: _options.Norm = None,
    config: _options.ConfigFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for audit.html, audit.json and individuals.csv; internal."),
    ] = None,
    force: _options.Force = False,
    release: Annotated[
        bool,
        typer.Option("--release", help="Rejected; explains what can be published instead."),
    ] = False,
    json: _options.Json = False,
) -> None:
    """Retrain a model many times and measure how far its decisions disagree.

    The records are split as by 'veracal fit': runs are trained on the training
    partition, and the individuals of the test partition are audited. Every run
    reads the records, so the result is internal. Noise would not make it
    releasable: one audited individual changes a mean by 1/n, but one training
    record can change every individual's disagreement at once. No ledger is
    charged, because nothing is released; the guarantee of the audited model is
    unchanged.
    """
    if release:
        _output.print_status(
            "error: figures of an audit cannot be released, with noise or without. Changing "
            "one audited individual changes a mean over n individuals by 1/n, but changing one "
            "training record can change every individual's disagreement at once, so that 1/n "
            "is not the sensitivity, and the training would have to be charged once for every "
            "run. The arbitrariness computed from the released model alone can be published at "
            "no cost:  veracal predict MODEL DATA --arbitrariness"
        )
        raise typer.Exit(1)
    number = runs.strip().replace(",", "")
    if number != "auto" and not number.removeprefix("-").isdecimal():
        raise typer.BadParameter(
            f"Expected auto, or a number of runs, got {runs!r}.", param_hint="--runs"
        )
    for option, value, known in (
        ("--recalibrate", recalibrate, RECALIBRATIONS),
        ("--backend", backend, BACKENDS),
    ):
        if value is not None and value not in known:
            raise typer.BadParameter(
                f"Expected one of {', '.join(known)}, got {value!r}.", param_hint=option
            )
    if out is not None:
        _output.check_new(out, force=force, what="folder")
    # Everything that needs no training is checked before the slow imports.
    budgets = tuple(dict.fromkeys(epsilon or ()))
    given = {**context.params, "epsilon": next(iter(budgets), None)}
    training: Any = None
    if predictions is not None:
        training_options = [name for name in given if name not in _PREDICTION_OPTIONS]
        why = "Leave it out with --predictions: those runs were made elsewhere."
        _options.reject_given(context, training_options, why)
    else:
        chosen = _choose_training(data, given, budgets, config, against)
        if chosen is not None:
            _options.check_data(chosen, target)
            training = chosen, None, None
    settings = {
        "runs": number if number == "auto" else int(number),
        "groups": tuple(groups or ()),
        "accuracy_levels": tuple(accuracy_levels or ()),
        **{n: given[n] for n in ("error", "max_runs", "level", "threshold", "review_above")},
        "varied": varied,
    }
    if out is not None:
        from veracal.artifact import check_output_folder

        if _artifacts.is_artifact(out):
            raise typer.BadParameter(
                f"{out} is a model, which may be published. Choose another folder.",
                param_hint="--out",
            )
        check_output_folder(out, force=force, other_files=FILES)
    if predictions is not None:
        results = _audit_predictions(predictions, settings)
    else:
        if against is not None:
            training = _read_deployed(against, data, given, target)
        results = _audit_training(
            training,
            budgets,
            settings,
            recalibrate,
            plane=plane,
            jobs=jobs,
            backend=backend,
            address=address,
            keep=keep,
            random_state=random_state,
        )
    _write_results(results, out, force=force, json=json)


def _choose_training(
    data: str | None,
    given: Mapping[str, Any],
    budgets: Sequence[float],
    config: Path | None,
    against: Path | None,
) -> "Config | None":
    """The training that the options describe; None if it is that of a deployed model."""
    from veracal.workflow import PrivacyConfig, RecalibrationConfig

    for each in budgets:
        with _output.usage_errors("--epsilon"):
            PrivacyConfig(each)
    if against is not None:
        if config is not None:
            raise typer.BadParameter(
                "Leave it out with --against: the deployed model has its own settings.",
                param_hint="--config",
            )
        return None
    if data is None and config is None:
        raise typer.BadParameter(
            "Give a file, a built-in set, or --predictions.", param_hint="DATA"
        )
    chosen = _options.build_config(data, given, config)
    if config is None:
        chosen = replace(chosen, recalibration=RecalibrationConfig("none"))
    return chosen


# ---------------------------------------------------------------- trainings


def _read_deployed(
    folder: Path, data: str | None, given: Mapping[str, Any], target: str | None
) -> "Training":
    """The settings of a saved model, whose table may have moved, and the model.

    The third is the schema of the model, unless a schema file is given.
    """
    from veracal.artifact import PrivateClassifier
    from veracal.workflow import Config, find_table

    classifier = PrivateClassifier.load(folder)
    results = _artifacts.read_results(folder)
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


def _audit_training(
    training: "Training",
    epsilons: tuple[float, ...],
    settings: Mapping[str, Any],
    method: str | None,
    **options: Any,
) -> "AuditResults":
    """Audit a training for some budgets (by default its own), with a progress bar for each.

    ``method`` recalibrates each run without privacy, and ``options`` are those of
    :class:`veracal.workflow.AuditRun`.
    """
    from veracal.accounting import MICRO
    from veracal.calibration import METHODS, MethodSettings
    from veracal.multiplicity import AuditSettings, RetrainEngine
    from veracal.workflow import AuditRun, audit_config

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
def _explain_interruption(run: "AuditRun", epsilons: Sequence[float]) -> Iterator[None]:
    """Turn invalid settings into usage errors, and explain what an interrupted audit kept."""
    from veracal.workflow import runs_path

    try:
        with _output.usage_errors():
            yield
    except KeyboardInterrupt:
        paths = [runs_path(run.keep, e, several=len(epsilons) > 1) for e in epsilons]
        kept = [str(path) for path in paths if path is not None and path.exists()]
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
KINDS: "Mapping[str, Kind]" = {
    "decisions": "decision",
    "probabilities": "probability",
    "scores": "probability",
    "logits": "logit",
}
_OTHER_ARRAYS = ("labels", "classes", "deployed", "rows")
_GROUP_PREFIX = "group:"


def _audit_predictions(path: Path, settings: Mapping[str, Any]) -> "AuditResults":
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
    import numpy as np

    from veracal.data import Dataset, read_npz
    from veracal.multiplicity import AuditSettings, StoredEngine, audit_engine
    from veracal.report import AuditResults
    from veracal.workflow import today

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


def _find_runs(arrays: "Mapping[str, Array]", path: Path) -> str:
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


def _read_classes(arrays: "Mapping[str, Array]", path: Path) -> "Sequence[Label] | None":
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
    name: str, arrays: "Mapping[str, Array]", engine: "StoredEngine", path: Path
) -> "Ints | None":
    """Classes of individuals as indices; None if the file lacks them."""
    import numpy as np

    from veracal.data import encode_labels

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


def _read_groups(
    arrays: "Mapping[str, Array]", individuals: int, path: Path
) -> "dict[str, Group]":
    """Attributes by name. The file belongs to the user, so that its values may be read."""
    from veracal.data import Group

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
    name: str, arrays: "Mapping[str, Array]", individuals: int, path: Path
) -> "Array | None":
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


def _write_results(
    results: "AuditResults", out: Path | None, *, force: bool, json: bool
) -> None:
    """Write page, JSON and CSV, readable only by their owner, and print the results.

    They are printed even if writing fails. Without the ``report`` extra there is no page, and a
    message says why.
    """
    from veracal.artifact import write_folder
    from veracal.report import render_audit

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


def _print_tables(results: "AuditResults") -> None:
    """Print every table with content, and the notes below them."""
    from veracal.report import audit_notes, audit_tables

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
