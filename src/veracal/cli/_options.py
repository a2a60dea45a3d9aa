"""Options that commands which train share, and their checks.

It imports nothing heavy, so that a usage error is reported at once.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output
from veracal.errors import DataError

if TYPE_CHECKING:
    from veracal.workflow import Config


Target = Annotated[
    str | None, typer.Option(help="Column to predict; must be the target of the schema.")
]
Epsilon = Annotated[
    float | None,
    typer.Option(help="Privacy budget for all releases of the run; smaller is more private."),
]
Delta = Annotated[
    float | None,
    typer.Option(help="By default 1/(10 n), with n the declared number of records."),
]
SchemaFile = Annotated[
    Path | None, typer.Option(help="TOML file with the public facts about DATA.")
]
LedgerFile = Annotated[
    Path | None,
    typer.Option(help="Ledger to charge; by default that of DATA, see 'veracal ledger list'."),
]
Test = Annotated[
    float | None,
    typer.Option(help="Share of the records held out for measurement; by default 0.2."),
]
SplitKey = Annotated[
    str | None,
    typer.Option("--split-key", help="Public string that determines the train/test split."),
]
ModelKind = Annotated[
    str | None,
    typer.Option(
        help="logistic (default), objective or output; networks: mlp, cnn (images), features "
        "(frozen features of images or texts) or text (fine-tuning).",
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
    str | None, typer.Option(help="Group of the schema by which to break down figures.")
]
Bins = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Bins of the calibration error; by default 10."),
]
Version = Annotated[
    str | None, typer.Option(help="Public version of the records; change it when they change.")
]
MaxContributions = Annotated[
    int | None,
    typer.Option(
        "--max-contributions",
        min=1,
        help="Most rows to keep of one unit of a built-in set; schemas state it themselves.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option(help="TOML file with all settings; options override it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# As in veracal.workflow.config, which is too slow to import for shell completion.
PERTURBED = ("objective", "output")
MODELS = ("logistic", *PERTURBED, "mlp", "cnn", "features", "text")
METHODS = ("auto", "temperature", "two-temperatures", "none")
# The field of the config that each option sets.
_FIELDS: Mapping[str, tuple[str, str]] = {
    "--schema": ("data", "schema"),
    "--test": ("data", "test"),
    "--split-key": ("data", "split_key"),
    "--version": ("data", "version"),
    "--max-contributions": ("data", "max_contributions"),
    "--epsilon": ("privacy", "epsilon"),
    "--delta": ("privacy", "delta"),
    "--model": ("model", "kind"),
    "--norm": ("model", "norm"),
    "--method": ("recalibration", "method"),
    "--group": ("measurement", "group"),
    "--bins": ("measurement", "bins"),
    "--reserve": ("measurement", "reserve"),
}


def build_config(data: str | None, typed: Mapping[str, Any], config: Path | None) -> "Config":
    """The settings of the config file, overridden by the options."""
    from veracal.workflow import Config, DataConfig, PrivacyConfig

    epsilon = typed["--epsilon"]
    if epsilon is not None:
        _build(PrivacyConfig, "--epsilon", epsilon=epsilon)
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
    return override(settings, typed)


def override(config: "Config", typed: Mapping[str, Any]) -> "Config":
    """Replace the settings of a config by the options that were given."""
    for option, value in typed.items():
        if value is None:
            continue
        section, field = _FIELDS[option]
        part = _build(partial(replace, getattr(config, section)), option, **{field: value})
        config = replace(config, **{section: part})
    return config


def _build(constructor: Callable[..., Any], option: str, **settings: Any) -> Any:
    """Construct settings; an error names the option."""
    try:
        return constructor(**settings)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def is_name(data: str) -> bool:
    """Whether an argument is the name of a built-in set, and not a path."""
    path = Path(data)
    return not (path.exists() or path.suffix or len(path.parts) > 1)


def check_data(config: "Config", target: str | None, kinds: Sequence[str] = ()) -> None:
    """Reject a file without a schema, a schema for a built-in set, and another target.

    ``kinds`` are those of the models to be trained; by default the config's.
    """
    from veracal.data import SCHEMAS, Schema, check_readable, entry

    source, path = config.data.source, Path(config.data.source)
    if is_name(source):
        if config.data.schema is not None:
            raise typer.BadParameter(
                f"{source!r} has its own. Leave this out.", param_hint="--schema"
            )
        entry(source)  # an error suggests similar names
        schema = SCHEMAS.get(source)
    else:
        if not path.exists():
            check_readable(path)  # raises the usual error for a missing file
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
    if _output.path_exists(folder) and not force:
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
    name, toml = shlex.quote(str(path)), shlex.quote(str(toml_path))
    column = "COLUMN" if target is None else shlex.quote(target)
    if toml_path.exists():
        _output.print_status(
            f"  ({toml_path} exists; if it is the schema, add --schema {toml})"
        )
        return
    _output.print_status(f"  veracal schema draft {name} --target {column} --out {toml}")
