"""The command that repairs calibration."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _paying, _predictions, _show

if TYPE_CHECKING:
    from veracal.cli._repairing import Repair, Spending

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command(
    epilog="Example:  veracal recalibrate predictions.npz --epsilon 0.1 --out calibrated.npz"
)
def recalibrate(
    predictions: _predictions.File,
    epsilon: Annotated[
        float | None, typer.Option(help="What the map may cost; charged before it is fitted.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="temperature (by private search), descent (a temperature by noisy gradients), "
            "platt, binning; with --not-private also isotonic, beta."
        ),
    ] = "temperature",
    form: Annotated[str, typer.Option(help="Of platt: scalar, vector or matrix.")] = "vector",
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal-width bins.")] = 15,
    delta: Annotated[
        float | None, typer.Option(help="Failure probability, for descent and platt.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Declared records, for descent and platt.")
    ] = None,
    guard: Annotated[
        float | None,
        typer.Option(help="Epsilon on top, to keep the map only if it helps, told by noise."),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(help="Epsilon on top, for private figures before and after."),
    ] = None,
    internal: Annotated[
        bool,
        typer.Option("--internal", help="Show figures of the records as they are, too."),
    ] = False,
    replicates: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Bootstrap draws for internal intervals."),
    ] = None,
    not_private: Annotated[
        bool,
        typer.Option("--not-private", help="Fit without privacy, in place of --epsilon."),
    ] = False,
    classes: _predictions.Classes = None,
    group: _predictions.Groups = None,
    unit: _predictions.UnitColumn = None,
    part: _predictions.Part = None,
    ledger: _paying.LedgerFile = None,
    ledger_part: _paying.LedgerPart = None,
    version: _paying.Version = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the recalibrated predictions: .npz, .parquet or .csv."),
    ] = None,
    map_out: Annotated[Path | None, typer.Option(help="Write the map as JSON.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace --out and --map-out if they exist.")
    ] = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Print the guarantee in full.")
    ] = False,
    json: _predictions.Json = False,
) -> None:
    """Fit a map to PREDICTIONS that brings their probabilities closer to frequencies.

    PREDICTIONS is as for 'veracal evaluate'. The map is made of noisy answers,
    each charged to a ledger before it is given, and may be published. Asked for
    again, the same map comes from the ledger at no cost. Mapped predictions are
    still those of people: keep them like the records.
    """
    from veracal.cli._methods import check_method
    from veracal.cli._out import check_columns

    told = _predictions.settings(classes, group, unit, part)
    spending = None
    place = _paying.ledger_place(predictions, ledger)
    if not_private:
        _check_open(epsilon, delta, size, guard, measure, ledger, ledger_part, version)
    else:
        spending = _spending(epsilon, delta, guard, measure)
    check_method(method, form, private=not not_private)
    _check_gaussian(method, spending, size)
    _check_places(predictions, place, out, map_out, force=force)
    scores = _predictions.load(predictions, told)
    if out is not None:
        check_columns(scores, unit or "unit")
    if spending is None:
        from veracal.cli._repairing import repaired_openly

        made = repaired_openly(scores, method, form, bins, replicates)
    else:
        setting = {"method": method, "form": form, "bins": bins, "size": size}
        where = {"place": place, "part": ledger_part, "version": version}
        shown = {"internal": internal, "replicates": replicates}
        made = _repair(scores, setting, spending, {**where, **shown})
    _write(made, scores, unit, out, map_out, force=force)
    _tell(made, predictions, place, out, map_out, whole=statement, json=json)


def _check_open(*private: object) -> None:
    """Refuse options of a private fit where none is wanted."""
    if any(option not in (None, "") for option in private):
        raise typer.BadParameter(
            "leave out --epsilon, --delta, --size, --guard, --measure and what is for the "
            "ledger: nothing is charged.",
            param_hint="--not-private",
        )


def _spending(
    epsilon: float | None, delta: float | None, guard: float | None, measure: float | None
) -> "Spending":
    """What may be spent on what."""
    from veracal.cli._repairing import Spending
    from veracal.privacy.costs.pure import micro

    if epsilon is None:
        raise typer.BadParameter(
            "say what the map may cost, as in --epsilon 0.1, or that it need not be private: "
            "--not-private.",
            param_hint="--epsilon",
        )

    def price(hint: str, value: float | None) -> int:
        try:
            return 0 if value is None else micro(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=hint) from error

    if delta is not None and not 0 < delta < 1:
        raise typer.BadParameter(
            f"expected 0 < delta < 1, got {delta!r}.", param_hint="--delta"
        )
    return Spending(
        price("--epsilon", epsilon),
        price("--guard", guard),
        price("--measure", measure),
        delta or 0.0,
    )


def _check_gaussian(method: str, spending: "Spending | None", size: int | None) -> None:
    """Ask for what Gaussian noise needs, and for nothing that no other method uses."""
    if spending is None:
        return
    gaussian = method in ("descent", "platt")
    if gaussian and not (spending.delta and size):
        raise typer.BadParameter(
            f"{method} also needs --delta and --size, the declared number of records.",
            param_hint="--method",
        )
    if not gaussian and (spending.delta or size is not None):
        raise typer.BadParameter(
            f"{method} needs neither --delta nor --size.", param_hint="--method"
        )


def _check_places(
    predictions: Path, ledger: Path, out: Path | None, map_out: Path | None, *, force: bool
) -> None:
    """Refuse places to write to, before the work and before anything is charged."""
    from veracal.cli._out import check_place, writer

    taken = [os.path.realpath(predictions), os.path.realpath(ledger)]
    for hint, path in (("--out", out), ("--map-out", map_out)):
        if path is None:
            continue
        if os.path.realpath(path) in taken:
            raise typer.BadParameter(
                f"{path} is another file of this command.", param_hint=hint
            )
        taken.append(os.path.realpath(path))
        check_place(path, force=force)
    if out is not None:
        writer(out)


def _repair(
    scores: Any,
    setting: dict[str, Any],
    spending: "Spending",
    where: dict[str, Any],
) -> "Repair":
    """Fit a private map; what cannot be meant is a matter of usage."""
    from veracal.cli._methods import private_fitter
    from veracal.cli._repairing import repaired
    from veracal.errors import VeracalError

    try:
        fitter = private_fitter(
            scores=scores, micro_epsilon=spending.fit, delta=spending.delta or None, **setting
        )
        return repaired(
            scores,
            fitter,
            setting["method"],
            spending=spending,
            bins=setting["bins"],
            **where,
        )
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _write(
    made: "Repair",
    scores: Any,
    unit: str | None,
    out: Path | None,
    map_out: Path | None,
    *,
    force: bool,
) -> None:
    """Write what was asked for."""
    from veracal.cli._out import save_map, save_scores

    if map_out is not None:
        save_map(made.map, map_out, force=force)
    if out is not None:
        save_scores(made.map.transform(scores), out, unit=unit or "unit", force=force)
        _show.status(f"Wrote {out}; treat it as the records.")


def _tell(
    made: "Repair",
    predictions: Path,
    place: Path,
    out: Path | None,
    map_out: Path | None,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Print the map, what it cost, and figures of both sides."""
    from veracal.cli._repair_show import facts, show

    files = {"out": out, "map_out": map_out}
    if json:
        written = {name: None if path is None else str(path) for name, path in files.items()}
        _show.print_json({"file": str(predictions), **facts(made), **written})
        return
    show(made, predictions.name, place.name)
    if made.statement is not None:
        typer.echo("\n" + _paying.promise(made.statement, whole=whole))
