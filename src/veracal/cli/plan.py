"""The commands ``plan train`` and ``plan audit``: costs computed before any run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from veracal.mechanisms import TrainingPlan


app = typer.Typer(no_args_is_help=True, help="Compute noise and costs before any run.")


@app.callback()
def plan() -> None:
    """Compute noise and costs before any run."""


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
        float | None, typer.Option(help="By default 1 / (10 × --records).")
    ] = None,
    decay: Annotated[
        float, typer.Option(help="The noise decreases by exp(-decay) per pass.")
    ] = 0.0,
    relation: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    unit: Annotated[
        str, typer.Option(help="Unit of protection: record, patient, …")
    ] = "record",
    max_contributions: Annotated[
        int, typer.Option(help="Largest number of rows per unit.")
    ] = 1,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the full privacy statement.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a training run: the noise for a budget, or the cost of a noise multiplier.

    Reads no records; all sizes are declared.
    """
    from veracal.accounting import Unit
    from veracal.mechanisms import plan_training

    if (epochs is None) == (steps is None):
        raise typer.BadParameter("Give one of --epochs and --steps.")
    if (epsilon is None) == (noise is None):
        raise typer.BadParameter("Give one of --epsilon and --noise.")
    try:
        with _show.progress_bar("Looking for the noise"):
            training_plan = plan_training(
                records=records,
                batch=batch,
                steps=steps if steps is not None else _steps(epochs, records, batch),
                epsilon=epsilon,
                noise_multiplier=noise,
                delta=delta if delta is not None else 1 / (10 * max(records, 1)),
                decay=decay,
                relation=relation,  # type: ignore[arg-type]
                unit=Unit(unit, max_contributions),
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if json:
        _show.print_json(training_plan.to_json())
    elif statement:
        typer.echo(_show.escape_text(training_plan.statement.text(), keep="\n"))
    else:
        _show.console().print(_table(training_plan))


@app.command(epilog="Example:  veracal plan audit --individuals 369 --error 0.08")
def audit(
    individuals: Annotated[
        int, typer.Option(help="Individuals for whom the estimates hold; two classes.")
    ] = 1,
    error: Annotated[
        float | None, typer.Option(help="Largest error of any disagreement; by default 0.1.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Compute the error of this many runs instead.")
    ] = None,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.95,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan an audit: the runs that an error requires, or the error of a number of runs.

    Uses the exact intervals of an audit, and the bound of Kulynych
    et al. (2023). Reads no records.
    """
    if error is not None and runs is not None:
        raise typer.BadParameter("Give one of --error and --runs.")
    if error is not None and not 0 < error < 1:
        raise typer.BadParameter("expected a number between 0 and 1.", param_hint="--error")
    from veracal.multiplicity import achieved_errors, plan_audit

    content: dict[str, Any]
    try:
        if runs is None:
            content = vars(plan_audit(individuals, 0.1 if error is None else error, level))
        else:
            errors = achieved_errors(runs, individuals, level)
            content = {"individuals": individuals, "level": level, "runs": runs}
            content |= {"error": errors["exact"], "paper_error": errors["paper"]}
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from problem
    if json:
        _show.print_json(content)
    else:
        _show.console().print(_audit_table(content))


def _steps(epochs: float | None, records: int, batch: float) -> int:
    """Number of steps of a number of passes, rounded up."""
    from math import ceil, isfinite

    assert epochs is not None
    if not (isfinite(epochs) and epochs > 0 and batch > 0):
        raise ValueError(
            f"Expected --epochs and --batch above 0, got {epochs!r} and {batch!r}."
        )
    return ceil(min(epochs * records / batch, 1e18))  # beyond the limit in any case


def _table(training_plan: "TrainingPlan") -> object:
    """The plan of a training run as a table."""
    from veracal.accounting import format_up

    promise = training_plan.statement
    on_mean = format_up(training_plan.noise_multiplier / training_plan.expected_batch)
    rows = [
        (
            "noise multiplier",
            format_up(training_plan.noise_multiplier, 5),
            "noise on sum ÷ clip bound",
        ),
        ("noise on the mean", on_mean, "× clip bound"),
        (
            "steps",
            f"{training_plan.steps:,}",
            f"{training_plan.passes:.4g} passes over the rows",
        ),
        (
            "sampling rate",
            f"{training_plan.rate:.6g}",
            f"expected batch {training_plan.expected_batch:,.6g}",
        ),
        ("epsilon", format_up(promise.epsilon), promise.accountant),
        ("delta", format_up(promise.delta, 3), ""),
        ("protects", f"one {promise.unit}", _protection(promise.at_most, promise.relation)),
    ]
    if promise.renyi_epsilon is not None:
        rows.append(("epsilon by Rényi", format_up(promise.renyi_epsilon), "second opinion"))
    if promise.epsilon_without_poisson is not None:
        known = format_up(promise.epsilon_without_poisson)
        rows.append(("epsilon if batches were known", known, "no amplification"))
    attack = f"{format_up(100 * promise.advantage)} %"
    rows.append(("best attack's advantage", attack, "true minus false positive rate"))
    return _show.table("Training plan", ("", "", ""), rows)


def _audit_table(content: "Mapping[str, Any]") -> object:
    """The plan of an audit as a table."""
    individuals = _show.format_count(content["individuals"], "individual")
    rows = [
        (
            "individuals",
            individuals,
            f"simultaneously, at confidence level {content['level']:.6g}",
        )
    ]
    if "paper_runs" in content:
        rows += [
            ("error", f"± {content['error']:.6g}", "of any disagreement"),
            ("runs", f"{content['runs']:,}", "fixed in advance, by exact intervals"),
            ("runs", f"{content['paper_runs']:,}", "by the paper's bound"),
        ]
    else:
        rows += [
            ("runs", f"{content['runs']:,}", "fixed in advance"),
            ("error", f"± {content['error']:.4f}", "of any disagreement, exact intervals"),
            ("error", f"± {content['paper_error']:.4f}", "by the paper's bound"),
        ]
    return _show.table("Audit plan", ("", "", ""), rows)


def _protection(max_contributions: int, relation: str) -> str:
    """Contribution limit and neighboring relation."""
    rows = "one row" if max_contributions == 1 else f"at most {max_contributions} rows"
    return f"{rows}, {relation}"
