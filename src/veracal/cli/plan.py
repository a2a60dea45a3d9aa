"""The commands ``plan train`` and ``plan audit``: costs computed before any run."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _options, _output

if TYPE_CHECKING:
    from veracal.mechanisms import TrainingPlan


app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Compute noise and costs before any run."
)


@app.callback()
def plan() -> None:
    """Compute noise and costs before any run."""


@app.command(
    epilog="Example:  veracal plan train --records 60000 --batch 256 --epochs 15 --epsilon 1"
)
def train(
    records: Annotated[int, typer.Option(help="Declared number of rows of the training set.")],
    batch: Annotated[float, typer.Option(help="Expected batch size, in rows.")],
    epochs: Annotated[float | None, typer.Option(help="Passes over the rows.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps, instead of --epochs.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget, which determines the noise.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise multiplier, instead of --epsilon.")
    ] = None,
    delta: _options.Delta = None,
    decay: Annotated[
        float,
        typer.Option(help="The noise multiplier decreases by the factor exp(-decay) per pass."),
    ] = 0.0,
    relation: _options.Relation = "add-remove",
    unit: _options.Unit = "record",
    max_contributions: _options.UnitRows = 1,
    statement: _options.FullStatement = False,
    json: _options.Json = False,
) -> None:
    """Plan a training run: the noise for a budget, or the cost of a noise multiplier.

    Reads no records; all sizes are declared.
    """
    if (epochs is None) == (steps is None):
        raise typer.BadParameter("Give one of --epochs and --steps.")
    if (epsilon is None) == (noise is None):
        raise typer.BadParameter("Give one of --epsilon and --noise.")
    from veracal.accounting import Unit
    from veracal.mechanisms import plan_training

    with _output.usage_errors(), _output.progress_bar("Computing the noise"):
        if steps is None:
            assert epochs is not None
            if not (math.isfinite(epochs) and epochs > 0 and batch > 0):
                raise ValueError(
                    f"Expected --epochs and --batch above 0, got {epochs!r} and {batch!r}."
                )
            steps = math.ceil(min(epochs * records / batch, 1e18))  # beyond any limit
        training_plan = plan_training(
            records=records,
            batch=batch,
            steps=steps,
            epsilon=epsilon,
            noise_multiplier=noise,
            delta=delta if delta is not None else 1 / (10 * max(records, 1)),
            decay=decay,
            relation=relation,  # type: ignore[arg-type]
            unit=Unit(unit, max_contributions),
        )
    if json:
        _output.print_json(training_plan.to_json())
    elif statement:
        typer.echo(_output.escape_text(training_plan.statement.text(), keep="\n"))
    else:
        _print_plan(training_plan)


@app.command(epilog="Example:  veracal plan audit --individuals 369 --error 0.08")
def audit(
    individuals: Annotated[
        int,
        typer.Option(help="Audited individuals, for all of whom the error holds; two classes."),
    ] = 1,
    error: Annotated[
        float | None, typer.Option(help="Largest error of any disagreement; by default 0.1.")
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Compute the error of this many runs instead.")
    ] = None,
    level: _options.Level = 0.95,
    json: _options.Json = False,
) -> None:
    """Plan an audit: the runs that an error requires, or the error of a number of runs.

    Uses the exact intervals of an audit, and the bound of Kulynych
    et al. (2023). Reads no records.
    """
    if error is not None and runs is not None:
        raise typer.BadParameter("Give one of --error and --runs.")
    if error is not None and not 0 < error < 1:
        raise typer.BadParameter("Expected a number between 0 and 1.", param_hint="--error")
    from veracal.multiplicity import achieved_errors, plan_audit

    content: dict[str, Any]
    with _output.usage_errors():
        if runs is None:
            content = vars(plan_audit(individuals, 0.1 if error is None else error, level))
        else:
            errors = achieved_errors(runs, individuals, level)
            content = {"individuals": individuals, "level": level, "runs": runs}
            content |= {"error": errors["exact"], "paper_error": errors["paper"]}
    if json:
        _output.print_json(content)
        return
    each = f"simultaneously, at confidence level {level:.6g}"
    rows = [("individuals", _output.format_count(individuals, "individual"), each)]
    if runs is None:
        rows += [
            ("error", f"± {content['error']:.6g}", "of any disagreement"),
            ("runs", f"{content['runs']:,}", "fixed in advance, by exact intervals"),
            ("runs", f"{content['paper_runs']:,}", "by the bound of Kulynych et al."),
        ]
    else:
        rows += [
            ("runs", f"{content['runs']:,}", "fixed in advance"),
            ("error", f"± {content['error']:.4f}", "of any disagreement, exact intervals"),
            ("error", f"± {content['paper_error']:.4f}", "by the bound of Kulynych et al."),
        ]
    _output.print_table("Audit plan", ("", "", ""), rows)


def _print_plan(plan: "TrainingPlan") -> None:
    """Print the plan of a training run as a table."""
    from veracal.accounting import format_up

    promise = plan.statement
    on_mean = format_up(plan.noise_multiplier / plan.expected_batch)
    limit = promise.max_contributions
    most = "one row" if limit == 1 else f"at most {limit} rows"
    attack = f"{format_up(100 * promise.advantage)} %"
    rows = [
        ("noise multiplier", format_up(plan.noise_multiplier, 5), "noise on sum ÷ clip bound"),
        ("noise on the mean", on_mean, "× clip bound"),
        ("steps", f"{plan.steps:,}", f"{plan.passes:.4g} passes over the rows"),
        ("sampling rate", f"{plan.rate:.6g}", f"expected batch {plan.expected_batch:,.6g}"),
        ("epsilon", format_up(promise.epsilon), promise.accountant),
        ("delta", format_up(promise.delta, 3), ""),
        ("protects", f"one {promise.unit}", f"{most}, {promise.relation}"),
    ]
    if promise.renyi_epsilon is not None:
        rows.append(("epsilon by Rényi", format_up(promise.renyi_epsilon), "second opinion"))
    if promise.epsilon_without_poisson is not None:
        known = format_up(promise.epsilon_without_poisson)
        rows.append(("epsilon if batches were known", known, "no amplification"))
    rows.append(("best attack's advantage", attack, "true minus false positive rate"))
    _output.print_table("Training plan", ("", "", ""), rows)
