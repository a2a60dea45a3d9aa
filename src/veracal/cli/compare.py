"""The command that puts models side by side: saved ones, or several ways to make one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _output as _show
from veracal.cli import _run_options as _fitting

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
            help="Folders of 'veracal fit'; with --methods, a table or a built-in set.",
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Train each: logistic, objective or output, alone or with a map as in "
            "logistic/none.",
        ),
    ] = None,
    target: _fitting.Target = None,
    epsilon: _fitting.Epsilon = None,
    delta: _fitting.Delta = None,
    schema: _fitting.SchemaFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the models; by default DATA's name and '-compared'."),
    ] = None,
    ledger: _fitting.LedgerFile = None,
    test: _fitting.Test = None,
    seed: _fitting.Seed = None,
    norm: _fitting.Norm = None,
    group: _fitting.Group = None,
    bins: _fitting.Bins = None,
    version: _fitting.Version = None,
    config: _fitting.ConfigFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Put the models in the place of those at --out.")
    ] = False,
    json: _fitting.Json = False,
) -> None:
    """Compare what models promise, and how they were measured.

    Of saved models A, B, … only what was released is read, no record and no
    ledger, so it costs nothing. With --methods a model is made of a table in
    each way, and all of them together cost --epsilon: each has an equal share.
    Either way it says whether noise leaves a difference to be seen.
    """
    typed = {
        "--schema": None if schema is None else str(schema),
        "--test": test,
        "--seed": seed,
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
            raise typer.BadParameter("with --methods, name one table.", param_hint="A B…")
        ways = _ways(methods)
        chosen = _fitting.configured(names[0], typed, config)
        _fitting.check_data(chosen, target, [way.model for way in ways])
        place = Path(f"{Path(names[0]).stem}-compared") if out is None else out
        folders = _made(chosen, ways, place, ledger, force=force)
    from veracal.cli import _compare_output as _comparing

    found = _comparing.compared(folders, one_ledger=methods is not None)
    if json:
        _show.print_json(found.to_json())
    else:
        _comparing.show(found)


def _check_saved(names: Sequence[str], typed: dict[str, object]) -> None:
    """Refuse one model alone, the same twice, and options of training."""
    import os

    for option, value in typed.items():
        if value is not None:
            raise typer.BadParameter("needs --methods.", param_hint=option)
    if len(names) < 2:
        raise typer.BadParameter(
            "name two or more folders of 'veracal fit', or add --methods to train on a table.",
            param_hint="A B…",
        )
    if len({os.path.realpath(name) for name in names}) < len(names):
        raise typer.BadParameter("the same folder is named twice.", param_hint="A B…")


def _ways(methods: str) -> "list[Configuration]":
    """Read the list of methods."""
    from veracal.workflow import Configuration, check_ways

    try:
        ways = [Configuration.parse(each) for each in methods.split(",")]
        check_ways(ways)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--methods") from error
    return ways


def _made(
    chosen: "Config",
    ways: "Sequence[Configuration]",
    place: Path,
    ledger: Path | None,
    *,
    force: bool,
) -> list[Path]:
    """Train and measure in every way; the folders of the models."""
    from veracal.accounting import rounded_up
    from veracal.workflow import check_used, compare_ways, is_begun

    kinds = tuple(dict.fromkeys(way.model for way in ways))
    try:
        check_used(chosen.model, kinds)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    whole = chosen.privacy.epsilon
    _show.status(
        f"Each of {len(ways)} methods has epsilon {rounded_up(whole / len(ways), 6)}; all "
        f"together {rounded_up(whole, 6)}."
    )
    fine = force or is_begun(place, ways)
    with _fitting.running(chosen, place, ledger, force=fine) as (book, tell, notify):
        runs = compare_ways(
            chosen,
            ways,
            place,
            ledger=book,
            force=force,
            on_progress=tell,
            on_notice=notify,
        )
    return [made.folder for made in runs]
