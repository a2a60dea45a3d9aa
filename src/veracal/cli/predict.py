"""The command that asks a saved classifier."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _show

if TYPE_CHECKING:
    from veracal.cli._predicting import Predicted

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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict the class of each row of DATA, with a probability for every class.

    Rows come in the order of the table, with their numbers in it, counted from
    1; those that the schema drops have none. The model may be published, its
    predictions for people may not: keep them like the records.
    """
    from veracal.artifact import PrivateClassifier
    from veracal.cli import _predicting

    if out is not None:
        _predicting.check_out(out, model, data, force=force)
    classifier = PrivateClassifier.load(model)
    with _show.progress_bar(f"Predicting {data}") as progress:
        blocks = _predicting.blocks(classifier, data, progress)
        if out is None:
            done = _predicting.to_stdout(classifier, blocks, json=json)
        else:
            done = _predicting.to_file(classifier, blocks, out, force=force)
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
    if out is not None:
        rows = _show.counted(done.rows, "prediction")
        _show.status(f"Wrote {rows} to {out}; treat it as the records.")
