"""The command ``compare``: models side by side, saved ones or several trained on one table."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _artifacts, _figures, _options, _output, _payment

if TYPE_CHECKING:
    from veracal.data import Estimate
    from veracal.workflow import Config, Configuration


app = typer.Typer(no_args_is_help=True, add_completion=False)

# Settings that must agree for figures to be comparable, and how to say that they differ.
_SAME = {
    "data": "other data",
    "version": "another version of the records",
    "classes": "other classes",
    "test": "another share for testing",
    "split_key": "another split",
    "bins": "other bins",
}
_LOWER_IS_BETTER = {"accuracy": False, "ece": True, "brier": True}
_NO_DIFFERENCE = "no significant difference"


@app.command(
    epilog="Example:  veracal compare model-2025 model-2026\n\n"
    "Example:  veracal compare breast-cancer --methods logistic,logistic/none --epsilon 8"
)
def compare(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="A B…",
            help="Folders of models that 'veracal fit' wrote; with --methods, one table or "
            "built-in set.",
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
    force: _options.Force = False,
    json: _options.Json = False,
) -> None:
    """Compare the guarantees and the measured figures of models.

    For saved models A, B, …, only released results are read, no record and no
    ledger, so it costs nothing. With --methods, a model of each configuration
    is trained on one table, and all of them together cost --epsilon: each has
    an equal share. Either way it says which differences exceed the noise.
    """
    given = context.params
    if methods is None:
        training = [name for name in given if name not in ("names", "json")]
        _options.reject_given(context, training, "This needs --methods.")
        if len(names) < 2:
            raise typer.BadParameter(
                "Name two or more folders of models, or add --methods to train on a table.",
                param_hint="A B…",
            )
        if len({os.path.realpath(name) for name in names}) < len(names):
            raise typer.BadParameter("The same folder is named twice.", param_hint="A B…")
        folders = [Path(name) for name in names]
    else:
        if len(names) != 1:
            raise typer.BadParameter("With --methods, name one table.", param_hint="A B…")
        from veracal.workflow import Configuration, check_configurations

        with _output.usage_errors("--methods"):
            configurations = [Configuration.parse(each) for each in methods.split(",")]
            check_configurations(configurations)
        settings = _options.build_config(names[0], given, config)
        _options.check_data(settings, target, [each.model for each in configurations])
        folder = Path(f"{Path(names[0]).stem}-compared") if out is None else out
        folders = _train(settings, configurations, folder, ledger, force=force)
    artifacts = [_artifacts.facts(_artifacts.read_results(p), str(p)) for p in folders]
    _print_comparison(
        list(map(str, folders)), artifacts, one_ledger=methods is not None, json=json
    )


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

    with _output.usage_errors():
        check_settings_apply(
            config.model, tuple(dict.fromkeys(each.model for each in configurations))
        )
    from veracal.workflow import is_unfinished  # slower to import

    _options.check_folder(folder, force=force or is_unfinished(folder, configurations))
    from veracal.accounting import format_up
    from veracal.workflow import compare

    n, epsilon = len(configurations), config.privacy.epsilon
    _output.print_status(
        f"Each of {n} methods has epsilon {format_up(epsilon / n, 6)}; all together "
        f"{format_up(epsilon, 6)}."
    )
    with _payment.guard_run(config, folder, ledger) as (path, progress, notify):
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


def _print_comparison(
    names: list[str], artifacts: Sequence[Mapping[str, Any]], *, one_ledger: bool, json: bool
) -> None:
    """Print artifacts side by side, as :func:`veracal.cli._artifacts.facts` describes them.

    With ``one_ledger``, one ledger paid for all of them, so that each statement covers all.
    """
    from veracal.accounting import format_up

    first, *rest = artifacts
    differ = [
        words for name, words in _SAME.items() if any(one[name] != first[name] for one in rest)
    ]
    better = {} if differ else _find_best(names, [each["measured"] for each in artifacts])
    # Epsilons and deltas of all releases for an individual in all data sets add up (Dwork and
    # Roth 2014, Theorem 3.16), unless one ledger paid for all models: each of its statements
    # covers the whole. They cannot be added if the models protect different units.
    total = None
    if all(
        one[n] == first[n] for one in rest for n in ("unit", "max_contributions", "relation")
    ):
        add = max if one_ledger else sum
        total = {n: add(each[n] for each in artifacts) for n in ("epsilon", "delta")}
    if json:
        models = [
            {
                **each,
                "folder": name,
                "measured": {
                    when: _figures.estimates_to_json(one)
                    for when, one in each["measured"].items()
                },
            }
            for name, each in zip(names, artifacts, strict=True)
        ]
        _output.print_json(
            {
                "models": models,
                "comparable": not differ,
                "differ": differ,
                "better": better,
                "together": total,
            }
        )
        return
    _print_tables(names, artifacts)
    if differ:
        typer.echo(f"\nNot comparable: {', '.join(differ)}.")
    else:
        typer.echo("\nComparable: they report the same data, split and bins.")
        word = "better" if len(names) == 2 else "best"
        for name, best in better.items():
            verdict = f"is {word} (its interval overlaps no other)"
            _output.print_line(
                f"  {name}: {best} {verdict if best in names else '(intervals overlap)'}"
            )
    if total is None:
        _output.print_line("They protect different units, so their costs cannot be added.")
        return
    most = f"at most epsilon {format_up(total['epsilon'])} and delta {format_up(total['delta'], 3)}"
    _output.print_line(
        f"All models and all figures together cost {most}."
        if one_ledger
        else "If they were trained on records of the same individuals, each on a ledger of its "
        f"own, they cost {most} together."
    )


def _find_best(
    names: Sequence[str], measured: "Sequence[Mapping[str, Mapping[str, Estimate]]]"
) -> dict[str, str]:
    """For each figure, the model whose interval lies beyond those of all others."""
    figures = [each.get("after") or next(reversed([*each.values()]), {}) for each in measured]

    def is_beyond(one: "Estimate", other: "Estimate", figure: str) -> bool:
        if one.low is None or one.high is None or other.low is None or other.high is None:
            return False
        return one.high < other.low if _LOWER_IS_BETTER[figure] else one.low > other.high

    best = {}
    for figure in figures[0]:
        if all(figure in each for each in figures):
            all_ = [each[figure] for each in figures]
            winners = (
                name
                for name, one in zip(names, all_, strict=True)
                if all(is_beyond(one, other, figure) for other in all_ if other is not one)
            )
            best[figure] = next(winners, _NO_DIFFERENCE)
    return best


def _print_tables(names: Sequence[str], artifacts: Sequence[Mapping[str, Any]]) -> None:
    """Print two artifacts in columns; more in rows, with their figures after the map."""

    def figures(artifact: Mapping[str, Any], when: str) -> list[str]:
        return _figures.format_row(artifact["measured"].get(when, {}))

    settings = [
        (
            each["data"],
            _artifacts.protected(each),
            _artifacts.cost(each),
            each["model"],
            each["map"],
            f"{each['test']:.0%}, {each['bins']}",
        )
        for each in artifacts
    ]
    if len(names) == 2:
        heads = ["data", "protects", "cost", "model", "map", "test share, bins"]
        heads += [
            f"{name} {when}" for when in ("before", "after") for name in _artifacts.FIGURES
        ]
        columns = [
            (*own, *figures(each, "before"), *figures(each, "after"))
            for own, each in zip(settings, artifacts, strict=True)
        ]
        rows = zip(heads, *columns, strict=True)
        _output.print_table("side by side", ("", *names), rows)
        return
    _output.print_table(
        "side by side",
        ("", "model", "map", "protects", "cost"),
        [
            (name, model, map_, protects, cost)
            for name, (_, protects, cost, model, map_, _) in zip(names, settings, strict=True)
        ],
    )
    _output.print_table(
        "after the map",
        ("", *_artifacts.FIGURES),
        [(name, *figures(each, "after")) for name, each in zip(names, artifacts, strict=True)],
        note=_artifacts.NOISY_NOTE,
    )
