"""The command that compares models, saved ones or several trained on one table."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _options, _output

if TYPE_CHECKING:
    from veracal.workflow import Config, Configuration


app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(
    epilog="Example:  veracal compare model-2025 model-2026\n\n"
    "Example:  veracal compare breast-cancer --methods logistic,logistic/none --epsilon 8"
)
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="A B…",
            help="Folders of 'veracal fit'; with --methods, one table or built-in set.",
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Train each of these: logistic, objective or output, alone or with a "
            "calibration method, as in logistic/none.",
        ),
    ] = None,
    target: _options.Target = None,
    epsilon: _options.Epsilon = None,
    delta: _options.Delta = None,
    schema: _options.SchemaFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the models; by default DATA's name and '-compared'."),
    ] = None,
    ledger: _options.LedgerFile = None,
    test: _options.Test = None,
    split_key: _options.SplitKey = None,
    norm: _options.Norm = None,
    group: _options.Group = None,
    bins: _options.Bins = None,
    version: _options.Version = None,
    config: _options.ConfigFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing models at --out.")
    ] = False,
    json: _options.Json = False,
) -> None:
    """Compare the guarantees and the measured figures of models.

    For saved models A, B, …, only released results are read, no record and no
    ledger, so it costs nothing. With --methods, a model of each configuration
    is trained on one table, and all of them together cost --epsilon: each has
    an equal share. Either way it says which differences exceed the noise.
    """
    typed = {
        "--schema": None if schema is None else str(schema),
        "--test": test,
        "--split-key": split_key,
        "--version": version,
        "--epsilon": epsilon,
        "--delta": delta,
        "--norm": norm,
        "--group": group,
        "--bins": bins,
    }
    if methods is None:
        others = {"--target": target, "--out": out, "--ledger": ledger, "--config": config}
        _check_saved(names, {**typed, **others, "--force": force or None})
        folders = [Path(name) for name in names]
    else:
        if len(names) != 1:
            raise typer.BadParameter("With --methods, name one table.", param_hint="A B…")
        configurations = _parse_methods(methods)
        settings = _options.build_config(names[0], typed, config)
        _options.check_data(settings, target, [each.model for each in configurations])
        folder = Path(f"{Path(names[0]).stem}-compared") if out is None else out
        folders = _train(settings, configurations, folder, ledger, force=force)
    from veracal.cli import _compare_output

    comparison = _compare_output.load_comparison(folders, one_ledger=methods is not None)
    if json:
        _output.print_json(comparison.to_json())
    else:
        _compare_output.show(comparison)


def _check_saved(names: Sequence[str], typed: dict[str, object]) -> None:
    """Reject a single model, one that is named twice, and options of training."""
    import os

    for option, value in typed.items():
        if value is not None:
            raise typer.BadParameter("This needs --methods.", param_hint=option)
    if len(names) < 2:
        raise typer.BadParameter(
            "Name two or more folders of 'veracal fit', or add --methods to train on a table.",
            param_hint="A B…",
        )
    if len({os.path.realpath(name) for name in names}) < len(names):
        raise typer.BadParameter("The same folder is named twice.", param_hint="A B…")


def _parse_methods(methods: str) -> "list[Configuration]":
    """Parse the list of configurations."""
    from veracal.workflow import Configuration, check_configurations

    try:
        configurations = [Configuration.parse(each) for each in methods.split(",")]
        check_configurations(configurations)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from error
    return configurations


def _train(
    config: "Config",
    configurations: "Sequence[Configuration]",
    folder: Path,
    ledger: Path | None,
    *,
    force: bool,
) -> list[Path]:
    """Train and measure a model of each configuration; return their folders."""
    from veracal.workflow import check_settings_apply

    kinds = tuple(dict.fromkeys(each.model for each in configurations))
    try:
        check_settings_apply(config.model, kinds)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    from veracal.workflow import is_unfinished

    _options.check_folder(folder, force=force or is_unfinished(folder, configurations))
    from veracal.accounting import format_up
    from veracal.cli import _run_output
    from veracal.workflow import compare

    n, epsilon = len(configurations), config.privacy.epsilon
    _output.print_status(
        f"Each of {n} methods has epsilon {format_up(epsilon / n, 6)}; all together "
        f"{format_up(epsilon, 6)}."
    )
    with _run_output.guard_run(config, folder, ledger) as (path, progress, notify):
        runs = compare(
            config,
            configurations,
            folder,
            ledger=path,
            force=force,
            on_progress=progress,
            on_notice=notify,
        )
    return [run.folder for run in runs]
