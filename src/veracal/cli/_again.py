"""A model measured once more, from the ledger that its run was charged to."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from veracal.cli import _artifacts, _show
from veracal.cli._run_show import step_bars
from veracal.errors import BudgetError
from veracal.pipeline import measure_again

if TYPE_CHECKING:
    from veracal.data import Estimate
    from veracal.pipeline import Run


def again(
    model: Path, data: str | None, ledger: Path | None, *, json: bool
) -> "Mapping[str, Estimate]":
    """Measure, add it to the model's report, and print the series."""
    try:
        with step_bars() as (tell, notify):
            made = measure_again(
                model, source=data, ledger=ledger, on_progress=tell, on_notice=notify
            )
    except KeyboardInterrupt:
        _show.status(
            "Stopped; the model's folder is as it was. The same command goes on from what is "
            "in the ledger: nothing is paid twice."
        )
        raise typer.Exit(1) from None
    except BudgetError as error:
        raise BudgetError(
            f"{error} Every measurement that the run laid by was made; 'veracal fit --later' "
            "says how many there are, before the first."
        ) from error
    told = _artifacts.facts(made.results, str(model))["measured"]
    if json:
        _show.print_json(_facts(made))
    else:
        _show.console().print(_series(made, told))
        more = _show.counted(_artifacts.left(made.ledger), "measurement")
        _show.say(f"It cost what was laid by for it; {more} left in {made.ledger.path.name}.")
    last: Mapping[str, Estimate] = told[made.results.measured[-1].when]
    return last


def _facts(made: "Run") -> dict[str, Any]:
    """The newest measurement and all before it, as what JSON can hold."""
    return {
        "model": str(made.folder),
        "when": made.results.measured[-1].when,
        "measured": [vars(one) for one in made.results.measured],
        "left": _artifacts.left(made.ledger),
        "ledger": str(made.ledger.path),
    }


def _series(made: "Run", told: Mapping[str, Any]) -> object:
    """All measurements below each other, in their order."""
    rows = [
        (
            f"{one.when}, {one.made}",
            *(_artifacts.shown(told[one.when].get(name)) for name in _artifacts.FIGURES),
        )
        for one in made.results.measured
    ]
    note = "Released with noise, new each time; intervals count it."
    heads = ("measured", *_artifacts.FIGURES)
    return _show.table(f"{made.folder.name}, again and again", heads, rows, note=note)
