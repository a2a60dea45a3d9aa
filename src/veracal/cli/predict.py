"""The command that asks a saved classifier."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    from veracal.cli._predict_output import ArbitrarinessSummary, Predicted


app = typer.Typer(no_args_is_help=True, add_completion=False)

_TOLD = 20  # numbers of dropped rows that fit on a line


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
            help="Add how much of each decision is the luck of the noise: an interval of the "
            "disagreement, from the model alone. Models of output and objective perturbation "
            "have one.",
        ),
    ] = False,
    level: Annotated[
        float, typer.Option(help="Level of those intervals, for everybody at once.")
    ] = 0.95,
    review_above: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Add whether a decision needs review: its disagreement may be above T.",
        ),
    ] = None,
    abstain_above: Annotated[
        float | None,
        typer.Option(
            metavar="T", help="Leave a decision empty whose disagreement may be above T."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the class of each row of DATA, with a probability for every class.

    Rows come in the order of the table, with their numbers in it, counted from
    1; those that the schema drops have none. The model may be published, its
    predictions for people may not: keep them like the records.

    With --arbitrariness, another run on the same records would disagree with
    itself about a person as much as the interval says. It costs no privacy. An
    interval from 0 to 1 says nothing, and counts as above any T below 1.
    """
    from veracal.artifact import PrivateClassifier
    from veracal.cli import _predict_output as _luck
    from veracal.cli import _predict_output as _predicting

    asked = None
    if arbitrariness:
        _check_shares(level, review_above, abstain_above)
        asked = _luck.PredictOptions(level, review_above, abstain_above)
    elif (review_above, abstain_above) != (None, None):
        needy = "--abstain-above" if review_above is None else "--review-above"
        raise typer.BadParameter("It needs --arbitrariness.", param_hint=needy)

    if out is not None:
        _predicting.check_out(out, model, data, force=force)
    classifier = PrivateClassifier.load(model)
    with _show.progress_bar(f"Predicting {data}") as progress:
        blocks = _predicting.blocks(classifier, data, progress)
        if out is None:
            done = _predicting.to_stdout(classifier, blocks, json=json, asked=asked)
        else:
            done = _predicting.to_file(classifier, blocks, out, force=force, asked=asked)
    if json and out is not None:
        facts = {"model": str(model), "data": data, "out": str(out), **done.to_json()}
        _show.print_json(facts)
    _tell(done, out)


def _tell(done: "Predicted", out: Path | None) -> None:
    """Say how many there are, where, and which rows have no prediction."""
    if done.dropped:
        first = ", ".join(map(str, done.first[:_TOLD])) + ", …" * (done.dropped > _TOLD)
        rows = _show.counted(done.dropped, "row")
        _show.status(f"No prediction for {rows}, dropped for a missing value: {first}.")
    if done.luck is not None:
        _tell_of_luck(done.luck, done.rows)
    if out is not None:
        rows = _show.counted(done.rows, "prediction")
        _show.status(f"Wrote {rows} to {out}; treat it as the records.")


def _tell_of_luck(luck: "ArbitrarinessSummary", rows: int) -> None:
    """Say what intervals are worth, and all that they do not say."""
    _show.status(
        f"Disagreement: at level {luck.level:g}, for {luck.holds_for}; the intervals say "
        f"something of {luck.told} of {_show.counted(rows, 'row')}."
    )
    for caveat in luck.caveats:
        _show.status(f"  {caveat}")


def _check_shares(level: float, *thresholds: float | None) -> None:
    """Refuse levels and thresholds that are none."""
    if not 0 < level < 1:
        raise typer.BadParameter(f"{level} is not between 0 and 1.", param_hint="--level")
    for name, value in zip(("--review-above", "--abstain-above"), thresholds, strict=True):
        if value is not None and not 0 <= value <= 1:
            raise typer.BadParameter(f"{value} is not from 0 to 1.", param_hint=name)
