"""Commands that say what something will cost."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from veracal.mechanisms import TrainingPlan


app = typer.Typer(no_args_is_help=True, help="Find the noise for a budget, before any run.")


@app.callback()
def plan() -> None:
    """Find the noise for a budget, before any run."""


@app.command(
    epilog="Example:  veracal plan train --records 60000 --batch 256 --epochs 15 --epsilon 1"
)
def train(
    records: Annotated[int, typer.Option(help="Declared number of rows.")],
    batch: Annotated[float, typer.Option(help="Expected rows in a batch.")],
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, instead of --epochs.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget; finds the noise.")] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise multiplier, instead of --epsilon.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="By default one over ten times --records.")
    ] = None,
    decay: Annotated[
        float, typer.Option(help="Noise falls by exp(-decay) with every pass.")
    ] = 0.0,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit: Annotated[str, typer.Option(help="Whom to protect: record, patient, …")] = "record",
    at_most: Annotated[int, typer.Option(help="Most rows of one unit.")] = 1,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the guarantee in full.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a training run: the noise for a budget, or the cost of a noise.

    Reads no records. All sizes are declared ones.
    """
    from veracal.accounting import Unit
    from veracal.mechanisms import plan_training

    if (epochs is None) == (steps is None):
        raise typer.BadParameter("Give one of --epochs and --steps.")
    if (epsilon is None) == (noise is None):
        raise typer.BadParameter("Give one of --epsilon and --noise.")
    try:
        with _show.progress_bar("Looking for the noise"):
            made = plan_training(
                records=records,
                batch=batch,
                steps=steps if steps is not None else _steps(epochs, records, batch),
                epsilon=epsilon,
                noise_multiplier=noise,
                delta=delta if delta is not None else 1 / (10 * max(records, 1)),
                decay=decay,
                relation=relation,  # type: ignore[arg-type]
                unit=Unit(unit, at_most),
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if json:
        _show.print_json(made.to_json())
    elif statement:
        typer.echo(_show.visible(made.statement.text(), keep="\n"))
    else:
        _show.console().print(_table(made))


@app.command(epilog="Example:  veracal plan audit --people 369 --error 0.08")
def audit(
    individuals: Annotated[
        int, typer.Option(help="Of whom all estimates hold together; of two classes.")
    ] = 1,
    error: Annotated[
        float | None, typer.Option(help="How far any disagreement may be off: 0.1.")
    ] = None,
    runs: Annotated[int | None, typer.Option(help="The reverse: the error they reach.")] = None,
    level: Annotated[float, typer.Option(help="Probability that none is.")] = 0.95,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan an audit: how many runs an error takes, or what error runs reach.

    Both by exact intervals, which an audit uses, and by the bound of Kulynych
    et al. (2023). It looks at no records.
    """
    if error is not None and runs is not None:
        raise typer.BadParameter("Give one of --error and --runs.")
    if error is not None and not 0 < error < 1:
        raise typer.BadParameter("expected a number between 0 and 1.", param_hint="--error")
    from veracal.multiplicity import plan_audit, achieved_errors

    told: dict[str, Any]
    try:
        if runs is None:
            told = vars(plan_audit(individuals, 0.1 if error is None else error, level))
        else:
            found = achieved_errors(runs, individuals, level)
            told = {"people": individuals, "level": level, "runs": runs}
            told |= {"error": found["exact"], "paper_error": found["paper"]}
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem
    if json:
        _show.print_json(told)
    else:
        _show.console().print(_audit_table(told))


def _steps(epochs: float | None, records: int, batch: float) -> int:
    """How many steps so many passes take, rounded up."""
    from math import ceil, isfinite

    assert epochs is not None
    if not (isfinite(epochs) and epochs > 0 and batch > 0):
        raise ValueError(
            f"Expected --epochs and --batch above 0, got {epochs!r} and {batch!r}."
        )
    return ceil(min(epochs * records / batch, 1e18))  # more than is allowed, whatever it is


def _table(made: "TrainingPlan") -> object:
    """The plan, line by line."""
    from veracal.accounting import rounded_up

    promise = made.statement
    on_mean = rounded_up(made.noise_multiplier / made.expected_batch)
    rows = [
        ("noise multiplier", rounded_up(made.noise_multiplier, 5), "noise on sum ÷ clip bound"),
        ("noise on the mean", on_mean, "× clip bound"),
        ("steps", f"{made.steps:,}", f"{made.passes:.4g} passes over the rows"),
        ("sampling rate", f"{made.rate:.6g}", f"expected batch {made.expected_batch:,.6g}"),
        ("epsilon", rounded_up(promise.epsilon), promise.accountant),
        ("delta", rounded_up(promise.delta, 3), ""),
        ("protects", f"one {promise.unit}", _whom(promise.at_most, promise.relation)),
    ]
    if promise.renyi_epsilon is not None:
        rows.append(("epsilon by Rényi", rounded_up(promise.renyi_epsilon), "second opinion"))
    if promise.epsilon_without_poisson is not None:
        known = rounded_up(promise.epsilon_without_poisson)
        rows.append(("epsilon if batches were known", known, "no amplification"))
    attack = f"{rounded_up(100 * promise.advantage)} %"
    rows.append(("best attack's advantage", attack, "true minus false positive rate"))
    return _show.table("Training plan", ("", "", ""), rows)


def _audit_table(told: "Mapping[str, Any]") -> object:
    """The plan of an audit, line by line."""
    individuals = _show.counted(told["people"], "person").replace("persons", "people")
    rows = [("people", individuals, f"all at once, at {told['level']:.6g}")]
    if "paper_runs" in told:
        rows += [
            ("error", f"± {told['error']:.6g}", "of anybody's disagreement"),
            ("runs", f"{told['runs']:,}", "fixed beforehand, by exact intervals"),
            ("runs", f"{told['paper_runs']:,}", "by the paper's bound"),
        ]
    else:
        rows += [
            ("runs", f"{told['runs']:,}", "fixed beforehand"),
            ("error", f"± {told['error']:.4f}", "of anybody's disagreement, exact intervals"),
            ("error", f"± {told['paper_error']:.4f}", "by the paper's bound"),
        ]
    return _show.table("Audit plan", ("", "", ""), rows)


def _whom(at_most: int, relation: str) -> str:
    """The unit and its neighbors."""
    rows = "one row" if at_most == 1 else f"at most {at_most} rows"
    return f"{rows}, {relation}"
