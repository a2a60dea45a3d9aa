"""The command that predicts with a saved classifier."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _output

if TYPE_CHECKING:
    from veracal.cli._predict_output import Predicted


app = typer.Typer(no_args_is_help=True, add_completion=False)

_MAX_ROWS = 20  # dropped rows that are listed by number


@app.command(epilog="Example:  veracal predict model breast-cancer --out predictions.csv")
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of 'veracal fit'.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Table with the columns of MODEL's schema, with or without the target, or the "
            "name of a built-in set.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Write here (.csv, .parquet or .npz) instead of CSV to stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")] = False,
    arbitrariness: Annotated[
        bool,
        typer.Option(
            "--arbitrariness",
            help="Add an interval of the disagreement of each decision between training runs, "
            "from the model alone. Needs a model of output or objective perturbation.",
        ),
    ] = False,
    level: Annotated[
        float, typer.Option(help="Simultaneous confidence level of these intervals.")
    ] = 0.95,
    review_above: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Mark decisions for review whose disagreement may exceed T.",
        ),
    ] = None,
    abstain_above: Annotated[
        float | None,
        typer.Option(metavar="T", help="Leave out decisions whose disagreement may exceed T."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the class of each row of DATA, with a probability for every class.

    Rows are numbered from 1 in the order of the table; rows that the schema
    drops have no prediction. The model may be published, but its predictions
    for individuals may not: treat them like the records.

    With --arbitrariness, each decision has an interval for the probability that
    two training runs on the same records disagree about it. It costs no
    privacy. An interval from 0 to 1 is uninformative, and exceeds any T below 1.
    """
    options = None
    if arbitrariness:
        if not 0 < level < 1:
            raise typer.BadParameter(
                f"Expected 0 < level < 1, got {level}.", param_hint="--level"
            )
        for option, value in (
            ("--review-above", review_above),
            ("--abstain-above", abstain_above),
        ):
            if value is not None and not 0 <= value <= 1:
                raise typer.BadParameter(
                    f"Expected a number from 0 to 1, got {value}.", param_hint=option
                )
        from veracal.cli._predict_output import PredictOptions

        options = PredictOptions(level, review_above, abstain_above)
    elif (review_above, abstain_above) != (None, None):
        option = "--abstain-above" if review_above is None else "--review-above"
        raise typer.BadParameter("This needs --arbitrariness.", param_hint=option)
    from veracal.artifact import PrivateClassifier
    from veracal.cli import _predict_output

    if out is not None:
        _predict_output.check_out(out, model, data, force=force)
    classifier = PrivateClassifier.load(model)
    with _output.progress_bar(f"Predicting {data}") as progress:
        blocks = _predict_output.read_blocks(classifier, data, progress)
        if out is None:
            summary = _predict_output.to_stdout(
                classifier, blocks, as_json=json, options=options
            )
        else:
            summary = _predict_output.to_file(
                classifier, blocks, out, force=force, options=options
            )
    if json and out is not None:
        _output.print_json(
            {"model": str(model), "data": data, "out": str(out), **summary.to_json()}
        )
    _report(summary, out)


def _report(summary: "Predicted", out: Path | None) -> None:
    """Report the number of predictions, their file, and the rows without one."""
    if summary.dropped:
        first = ", ".join(map(str, summary.first[:_MAX_ROWS]))
        more = ", …" * (summary.dropped > _MAX_ROWS)
        rows = _output.format_count(summary.dropped, "row")
        _output.print_status(
            f"No prediction for {rows}, dropped for a missing value: {first}{more}."
        )
    if summary.arbitrariness is not None:
        decisions = summary.arbitrariness
        _output.print_status(
            f"Disagreement: at level {decisions.level:g}, for {decisions.holds_for}. The "
            f"intervals are informative for {decisions.informative} of "
            f"{_output.format_count(summary.rows, 'row')}."
        )
        for caveat in decisions.caveats:
            _output.print_status(f"  {caveat}")
    if out is not None:
        rows = _output.format_count(summary.rows, "prediction")
        _output.print_status(f"Wrote {rows} to {out}. Treat the file like the records.")
