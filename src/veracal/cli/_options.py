"""Options that commands share: their declarations, and what is read with them.

It imports nothing heavy, so that a usage error is reported at once.
"""

import csv
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource

from veracal.cli import _output
from veracal.errors import DataError

if TYPE_CHECKING:
    from veracal.data import Scores
    from veracal.workflow import Config


def _check_model(kind: str | None) -> str | None:
    """Reject an unknown kind of model."""
    if kind is not None and kind not in MODELS:
        raise typer.BadParameter(f"Expected one of {', '.join(MODELS)}, got {kind!r}.")
    return kind


def _check_level(level: float) -> float:
    """Reject a confidence level that is not between 0 and 1."""
    if not 0 < level < 1:
        raise typer.BadParameter(f"Expected a number between 0 and 1, got {level:g}.")
    return level


# ---------------------------------------------------------------- options of all commands

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is at --out.")]
FullStatement = Annotated[
    bool, typer.Option("--statement", help="Print the privacy guarantee in full.")
]
Level = Annotated[
    float, typer.Option(callback=_check_level, help="Confidence level of the intervals.")
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(help="TOML file with the public facts about a data file."),
]
Delta = Annotated[
    float | None,
    typer.Option(
        help="Failure probability of the guarantee; by default 1/(10 n), with n the declared "
        "number of records."
    ),
]
Relation = Annotated[str, typer.Option(help="Neighboring relation: add-remove or replace-one.")]
Unit = Annotated[str, typer.Option(help="Unit of privacy: record, patient, …")]
UnitRows = Annotated[int, typer.Option(help="Largest number of rows of one unit.")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a model that 'veracal fit' wrote.")
]

# ---------------------------------------------------------------- options of predictions

Predictions = Annotated[
    Path,
    typer.Argument(
        metavar="PREDICTIONS",
        help="npz, Parquet, Arrow or CSV file with logits or probabilities, and labels.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Labels in the order of the columns; by default 0, 1, …",
    ),
]
GroupColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="COLUMN=A,B,…",
        help="Column by which figures are broken down, and its declared values. May be "
        "repeated.",
    ),
]
UnitColumn = Annotated[
    str | None, typer.Option("--unit", help="Column with the id of the individual of each row.")
]
Part = Annotated[
    str | None, typer.Option(help="Suffix of the arrays, if a file holds several sets.")
]
ConfidenceBins = Annotated[
    int,
    typer.Option("--bins", min=1, max=10_000, help="Number of equal-width confidence bins."),
]
Replicates = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=100_000,
        help="Bootstrap replicates for the intervals of exact figures; by default 100, fewer "
        "for large files.",
    ),
]

# ---------------------------------------------------------------- options of ledgers

LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        help="Ledger to charge; by default that of the records, see 'veracal ledger list'. If "
        "there is none, it is opened with exactly this budget.",
    ),
]
Partition = Annotated[
    str | None, typer.Option(help="Partition of the ledger that the records belong to.")
]
Version = Annotated[
    str | None, typer.Option(help="Public version of the records; change it when they change.")
]

# ---------------------------------------------------------------- options of training

Data = Annotated[
    str | None,
    typer.Argument(
        metavar="DATA",
        help="CSV, TSV, Parquet, Arrow or npz file, or a name from 'veracal data list'.",
    ),
]
Target = Annotated[
    str | None, typer.Option(help="Column to predict; must be the target of the schema.")
]
Epsilon = Annotated[
    float | None,
    typer.Option(help="Privacy budget for all releases of the run; smaller is more private."),
]
Test = Annotated[
    float | None,
    typer.Option(help="Share of the records held out for measurement; by default 0.2."),
]
SplitKey = Annotated[
    str | None, typer.Option(help="Public string that determines the train/test split.")
]
ModelKind = Annotated[
    str | None,
    typer.Option(
        callback=_check_model,
        help="logistic (default), objective or output; networks: mlp, cnn (square images), "
        "features (frozen features of texts) or text (fine-tuning).",
        autocompletion=lambda: list(MODELS),
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help="Calibration method: auto (default), temperature, two-temperatures or none.",
        autocompletion=lambda: list(METHODS),
    ),
]
Norm = Annotated[
    float | None,
    typer.Option(
        help="For objective and output: bound on the norm of a row, longer rows are scaled "
        "down; by default the schema's."
    ),
]
Group = Annotated[
    str | None, typer.Option(help="Group of the schema by which figures are broken down.")
]
Bins = Annotated[
    int | None,
    typer.Option(
        min=1, max=10_000, help="Number of equal-width confidence bins; by default 10."
    ),
]
MaxContributions = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Most rows to keep of one unit of a built-in set; schemas state it themselves.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file with all settings; options override it.")
]

# As in veracal.workflow.config, which is too slow to import for shell completion.
PERTURBED = ("objective", "output")
MODELS = ("logistic", *PERTURBED, "mlp", "cnn", "features", "text")
METHODS = ("auto", "temperature", "two-temperatures", "none")
# The field of the config that each option sets, by the name of its parameter.
FIELDS: Mapping[str, tuple[str, str]] = {
    "schema": ("data", "schema"),
    "test": ("data", "test"),
    "split_key": ("data", "split_key"),
    "version": ("data", "version"),
    "max_contributions": ("data", "max_contributions"),
    "epsilon": ("privacy", "epsilon"),
    "delta": ("privacy", "delta"),
    "model": ("model", "kind"),
    "norm": ("model", "norm"),
    "method": ("recalibration", "method"),
    "group": ("measurement", "group"),
    "bins": ("measurement", "bins"),
    "reserve": ("measurement", "reserve"),
}


def build_config(data: str | None, given: Mapping[str, Any], config: Path | None) -> "Config":
    """The settings of the config file, overridden by the parameters of a command."""
    from veracal.workflow import Config, DataConfig, PrivacyConfig

    epsilon = given["epsilon"]
    if epsilon is not None:
        with _output.usage_errors("--epsilon"):
            PrivacyConfig(epsilon)
    if config is None:
        if data is None:
            raise typer.BadParameter("Name a file or a built-in set.", param_hint="DATA")
        if epsilon is None:
            raise typer.BadParameter(
                "Set the privacy budget, as in --epsilon 3 (smaller is more private).",
                param_hint="--epsilon",
            )
        settings = Config(DataConfig(data), PrivacyConfig(epsilon), name=Path(data).stem)
    else:
        settings = Config.load(config, epsilon=epsilon)
        if data is not None:
            settings = replace(settings, data=replace(settings.data, source=data))
    return override(settings, given)


def override(config: "Config", given: Mapping[str, Any]) -> "Config":
    """Replace the settings of a config by the parameters that were given."""
    for name, (section, field) in FIELDS.items():
        if given.get(name) is not None:
            with _output.usage_errors("--" + name.replace("_", "-")):
                part = replace(getattr(config, section), **{field: given[name]})
            config = replace(config, **{section: part})
    return config


def reject_given(context: typer.Context, parameters: Collection[str], why: str) -> None:
    """Reject parameters that were given on the command line; the error names the first."""
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in parameters and source is ParameterSource.COMMANDLINE:
            is_option = parameter.param_type_name == "option"
            hint = (
                parameter.opts[0] if is_option else parameter.make_metavar(context).strip("[]")
            )
            raise typer.BadParameter(why, param_hint=hint)


def check_confirmation(*, yes: bool, json: bool) -> None:
    """Reject JSON output of a command that would ask for confirmation."""
    if json and not yes:
        raise typer.BadParameter(
            "Add --yes: with --json there is no confirmation prompt.", param_hint="--json"
        )


def check_exists(path: Path) -> None:
    """Raise the usual error for a missing file, before the slow imports of its reader."""
    from veracal.data import check_readable, translate_os_errors

    with translate_os_errors(path):
        exists = path.exists()
    if not exists:
        check_readable(path)


def is_name(data: str) -> bool:
    """Whether an argument is the name of a built-in set, and not a path."""
    path = Path(data)
    return not (path.exists() or path.suffix or len(path.parts) > 1)


def check_data(config: "Config", target: str | None, kinds: Sequence[str] = ()) -> None:
    """Reject a file without a schema, a schema for a built-in set, and another target.

    ``kinds`` are those of the models to be trained; by default the config's.
    """
    from veracal.data import SCHEMAS, Schema, entry

    source, path = config.data.source, Path(config.data.source)
    if is_name(source):
        if config.data.schema is not None:
            raise typer.BadParameter(
                f"The built-in set {source!r} has its own: leave this out.",
                param_hint="--schema",
            )
        entry(source)  # an error suggests similar names
        schema = SCHEMAS.get(source)
    else:
        check_exists(path)
        if config.data.schema is None:
            _explain_schema(path, target)
            raise typer.Exit(2)
        schema = Schema.load(config.data.schema)
    if target is not None and schema is not None and schema.target != target:
        raise typer.BadParameter(
            f"The schema's target is {schema.target!r}, not {target!r}. Correct one of them, "
            "or leave --target out.",
            param_hint="--target",
        )
    if config.model.norm is None and (schema is None or schema.norm is None):
        for kind in kinds or (config.model.kind,):
            if kind in PERTURBED:
                raise DataError(
                    source,
                    f"a declared bound on the norm of a row, which {kind} perturbation needs",
                    "none",
                    "Write norm = … at the top of the schema, or pass --norm …. Longer rows "
                    "are scaled down to it. The model 'logistic' needs none.",
                )


def check_folder(folder: Path, *, force: bool) -> None:
    """Reject an existing output folder without ``force``."""
    if os.path.lexists(folder) and not force:
        raise DataError(
            str(folder),
            "a new folder",
            "one that exists",
            "Add --force to replace it (its ledger stays, and nothing is charged twice), or "
            "name another with --out.",
        )


def _explain_schema(path: Path, target: str | None) -> None:
    """Explain why a file needs a schema, and print the command that drafts one."""
    toml_path = path.with_suffix(".toml")
    _output.print_status(
        f"error: {path} needs a schema: bounds of numbers, values of categories, classes and "
        "the approximate number of records. These must be public knowledge, because anything "
        "read from the records would reveal something about them. Draft a schema, replace what "
        "it read from the records by public knowledge, write size = … at its top, delete its "
        "line 'draft = true', and run this command again with --schema:"
    )
    out_path = path.with_name(f"{path.stem}-schema.toml") if toml_path.exists() else toml_path
    name, out = shlex.quote(str(path)), shlex.quote(str(out_path))
    column = "COLUMN" if target is None else shlex.quote(target)
    _output.print_status(f"  veracal schema draft {name} --target {column} --out {out}")
    if toml_path.exists():
        toml = shlex.quote(str(toml_path))
        _output.print_status(f"{toml_path} exists; if it is the schema, add --schema {toml}")


def parse_reading(
    classes: str | None, groups: Sequence[str] | None, unit: str | None, part: str | None
) -> dict[str, Any]:
    """Arguments of :func:`veracal.data.load_scores` from the options."""
    example = "a column and its values, as in sex=female,male"
    pairs = [parse_pair(text, "--group", example) for text in groups or ()]
    return {
        "classes": None if classes is None else parse_list(classes, "--classes"),
        "groups": {name: parse_list(values, "--group") for name, values in pairs},
        "unit": unit,
        "part": part,
    }


def parse_list(text: str, option: str) -> list[str]:
    """Comma-separated values; a value with a comma is quoted.

    Examples
    --------
    >>> parse_list('benign,"low, uncertain"', "--classes")
    ['benign', 'low, uncertain']
    """
    try:
        (values,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a list of values.", param_hint=option
        ) from error
    values = [value.strip() for value in values]
    if not all(values) or len(set(values)) < len(values):
        raise typer.BadParameter(
            f"Expected distinct values separated by commas, got {text!r}.", param_hint=option
        )
    return values


def parse_pair(text: str, option: str, example: str) -> tuple[str, str]:
    """The texts before and after the first equals sign."""
    name, sign, value = text.partition("=")
    if not (name.strip() and sign and value.strip()):
        raise typer.BadParameter(f"Expected {example}, got {text!r}.", param_hint=option)
    return name.strip(), value.strip()


def load_predictions(path: Path, reading: Mapping[str, Any]) -> "Scores":
    """Read labeled predictions."""
    from veracal.data import load_scores

    with _output.progress_bar(f"Reading {path.name}") as progress:
        return _require_labels(load_scores(path, **reading, progress=progress))


def scan_predictions(path: Path, reading: Mapping[str, Any]) -> "Iterator[Scores]":
    """Read labeled predictions in blocks, one after another."""
    from veracal.data import scan_scores

    with _output.progress_bar(f"Reading {path.name}") as progress:
        yield from map(_require_labels, scan_scores(path, **reading, progress=progress))


def _require_labels(scores: "Scores") -> "Scores":
    """Reject predictions without labels."""
    if scores.labels is None:
        raise DataError(
            scores.name,
            "labels beside the predictions",
            "none",
            "Put the labels into a column or array 'labels'.",
        )
    return scores
