"""Options that take several numbers in a row: --epsilon 0.5 1 2.

The command that tells how much of a decision is the luck of the noise.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from click.core import ParameterSource
from typer.core import TyperCommand

from veracal.cli import _options as _fitting
from veracal.cli import _output as _show
from veracal.errors import VeracalError

if TYPE_CHECKING:
    from veracal.multiplicity import AuditSettings
    from veracal.report import AuditResults


def several(*names: str) -> type[TyperCommand]:
    """A kind of command some of whose options take one number after the other.

    Click knows options that repeat, and options with a fixed number of values. This is
    neither: ``--epsilon 0.5 1 2`` and ``--epsilon 0.5,1,2`` are read as the option, three
    times. A word that is no number ends the list, so that a table may be named after it.

    Parameters
    ----------
    *names : str
        Options, declared as lists of numbers.
    """

    class Several(TyperCommand):
        def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
            return super().parse_args(ctx, repeated(args, names))

    return Several


def repeated(args: Sequence[str], names: Collection[str]) -> list[str]:
    """Words of a command line, with the option said again before each of its numbers.

    Examples
    --------
    >>> repeated(["--epsilon", "0.5", "1,2", "a.csv"], ["--epsilon"])
    ['--epsilon=0.5', '--epsilon=1', '--epsilon=2', 'a.csv']
    """
    made: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if word == "--":
            return [*made, word, *rest]
        if name not in names or not (given or rest):
            made.append(word)
            continue
        values = [value if given else rest.pop(0)]
        while rest and _are_numbers(rest[0]):
            values.append(rest.pop(0))
        parts = [part.strip() for each in values for part in each.split(",")]
        made += [f"{name}={part}" for part in parts if part] or [f"{name}="]
    return made


def _are_numbers(word: str) -> bool:
    """Tell whether a word is a number, or several with commas between them."""
    parts = [part for part in word.split(",") if part.strip()]
    return bool(parts) and all(map(_is_number, parts))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


app = typer.Typer(no_args_is_help=True, add_completion=False)

# What can be asked of runs that somebody else made.
_OF_PREDICTIONS = {
    "predictions", "level", "groups", "threshold", "accuracy_levels", "review_above",
    "out", "force", "release", "json",
}  # fmt: skip


@app.command(
    cls=several("--epsilon", "--accuracy-levels"),
    epilog="Example:  veracal audit breast-cancer --epsilon 0.5 1 2 --runs 200\n\n"
    "What can be published at no cost is the arbitrariness that a released model tells itself: "
    "veracal predict MODEL DATA --arbitrariness",
)
def audit(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="CSV, TSV, Parquet, Arrow or npz file, or the name of a built-in set.",
        ),
    ] = None,
    model: _fitting.ModelKind = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(metavar="E…", help="Budgets, each audited: --epsilon 0.5 1 2."),
    ] = None,
    runs: Annotated[
        str, typer.Option(metavar="auto|N", help="How often to train; auto: until --error.")
    ] = "auto",
    error: Annotated[
        float, typer.Option(help="With auto: how far anybody's disagreement may be off.")
    ] = 0.1,
    most: Annotated[int, typer.Option(help="With auto: runs at most.")] = 10_000,
    level: Annotated[float, typer.Option(help="Of intervals.")] = 0.95,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            help="Group of the schema to tell people apart by; repeats. Several at once: "
            '"age & sex".'
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Of two classes, the second is decided for above it.")
    ] = None,
    accuracy_levels: Annotated[
        list[float] | None,
        typer.Option(metavar="A…", help="Disagreement among the runs that are so accurate."),
    ] = None,
    review_above: Annotated[
        float, typer.Option(help="Disagreement above which a person should be reviewed.")
    ] = 0.5,
    varied: Annotated[
        str, typer.Option(help="What differs: noise, 'noise and batches' or all.")
    ] = "all",
    plane: Annotated[
        tuple[str, str] | None,
        typer.Option("--map", metavar="A B", help="Two features, for a map of disagreement."),
    ] = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(
            help="Repair every run on half of the test part: temperature, two-temperatures, "
            "platt, beta, isotonic or binning. Does that change disagreement?"
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Folder of 'veracal fit': how many runs contradict it. Its settings count.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            help="npz file of anybody's runs, instead of DATA: 'decisions', 'probabilities' or "
            "'logits' (runs × people), and 'labels', 'classes', 'deployed', 'rows', "
            "'group:NAME'."
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="File for runs as they arrive; if it is there, go on with it."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes, where runs are made one by one.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="Likewise: loky, ray or dask.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a cluster of Ray or Dask.")] = None,
    random_state: Annotated[
        int | None, typer.Option(min=0, help="For an audit that can be repeated.")
    ] = None,
    target: _fitting.Target = None,
    delta: _fitting.Delta = None,
    schema: _fitting.SchemaFile = None,
    test: _fitting.Test = None,
    split_key: _fitting.SplitKey = None,
    norm: _fitting.Norm = None,
    config: _fitting.ConfigFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for audit.html, audit.json and people.csv; internal, too."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an audit at --out.")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Refused: says what can be published instead.")
    ] = False,
    json: _fitting.Json = False,
) -> None:
    """Train again and again, and tell how far the runs disagree about people.

    Records are dealt as 'veracal fit' deals them: runs are trained on the
    training part, and the people of the test part are audited. Every run looks
    at the records, so the result is internal. It is not released with noise
    either: one audited person moves a mean by 1/n, but one training record can
    move everybody's disagreement at once. No ledger is charged, as nothing
    leaves; the promise of the audited model stays as it is.
    """
    from veracal.cli import _auditing

    if release:
        _auditing.refuse_release()
    asked = _auditing.question(
        runs=runs,
        error=error,
        most=most,
        level=level,
        threshold=threshold,
        groups=tuple(groups or ()),
        accuracy_levels=tuple(accuracy_levels or ()),
        review_above=review_above,
        varied=varied,
    )
    if out is not None:
        _auditing.check_out(out, force=force)
    if predictions is not None:
        found = _of_predictions(context, predictions, asked)
    else:
        typed = {
            "--schema": None if schema is None else str(schema),
            "--test": test,
            "--split-key": split_key,
            "--epsilon": None,
            "--delta": delta,
            "--model": model,
            "--norm": norm,
        }
        chosen = _auditing.Chosen.of(data, typed, epsilon or (), config, against)
        how = _auditing.carried_out(
            plane, recalibrate, (jobs, backend, address), keep, random_state
        )
        found = _auditing.audited(chosen, target, asked, how)
    _told(found, out, force=force, json=json)


def _of_predictions(
    context: typer.Context, path: Path, asked: "AuditSettings"
) -> "AuditResults":
    """Audit runs that somebody made, if nothing is asked that only runs made here can tell."""
    from veracal.cli import _audit_output as _audit_predictions

    for parameter in context.command.params:
        name = str(parameter.name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _OF_PREDICTIONS:
            raise typer.BadParameter(
                "is of runs that are made here; leave it out, or leave out --predictions.",
                param_hint=name.upper() if name == "data" else parameter.opts[0],
            )
    try:
        return _audit_predictions.audited(path, asked)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _told(found: "AuditResults", out: Path | None, *, force: bool, json: bool) -> None:
    """Write and print what was found; what could not be written is printed nevertheless."""
    from veracal.cli import _audit_output as _audit_show
    from veracal.cli import _auditing

    try:
        written = None if out is None else _auditing.write(found, out, force=force)
    finally:
        if json:
            _show.print_json(found.to_json() | {"out": None if out is None else str(out)})
        else:
            _audit_show.show(found)
    if written is not None:
        names = ", ".join(written)
        _show.status(f"Wrote {names} to {out}, internal: treat it as the records.")
