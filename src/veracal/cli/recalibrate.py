"""The command that repairs calibration."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _paying, _places, _predictions, _show

if TYPE_CHECKING:
    from veracal.cli._out import Files
    from veracal.cli._repairing import Repair, Spending
    from veracal.data import Scores

app = typer.Typer(no_args_is_help=True, add_completion=False)


@dataclass(frozen=True)
class Fit:
    """How a map is fitted and shown, as it was typed."""

    method: str
    form: str
    bins: int
    size: int | None
    internal: bool
    replicates: int | None


@dataclass(frozen=True)
class Payer:
    """Where the ledger is, and what it knows the records by."""

    place: Path
    part: str | None
    version: str


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
            help="temperature, two-temperatures (for unsure and sure predictions), auto (two "
            "if --size and --epsilon are enough for them), descent (a temperature by noisy "
            "gradients), platt, binning; with --not-private also isotonic, beta."
        ),
    ] = "auto",
    form: Annotated[str, typer.Option(help="Of platt: scalar, vector or matrix.")] = "vector",
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal-width bins.")] = 15,
    delta: Annotated[
        float | None, typer.Option(help="Failure probability, for descent and platt.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Declared records, for auto, descent and platt.")
    ] = None,
    guard: Annotated[
        float | None,
        typer.Option(help="Epsilon on top, to keep the map only if it helps, told by noise."),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(help="Epsilon on top, for private figures before and after."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="With --measure: ask for curves, too.")
    ] = False,
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
    from veracal.cli._out import Files

    told = _predictions.settings(classes, group, unit, part)
    fit = Fit(method, form, bins, size, internal, replicates)
    payer = Payer(_paying.ledger_place(predictions, ledger), ledger_part, version)
    spending = None
    if not_private:
        _check_open(epsilon, delta, size, guard, measure, ledger, ledger_part, version)
    else:
        spending = _spending(epsilon, delta, guard, measure, curve=curve)
    _check_fit(fit, spending)
    files = Files(predictions, payer.place, out, map_out, unit or "unit", force)
    files.check()
    scores = _predictions.load(predictions, told)
    files.check_scores(scores)
    made = _repair(scores, fit, payer, spending)
    files.write(made.map, scores)
    _tell(made, files, whole=statement, json=json)


def _check_open(*private: object) -> None:
    """Refuse options of a private fit where none is wanted."""
    if any(option not in (None, "") for option in private):
        raise typer.BadParameter(
            "leave out --epsilon, --delta, --size, --guard, --measure and what is for the "
            "ledger: nothing is charged.",
            param_hint="--not-private",
        )


def _spending(
    epsilon: float | None,
    delta: float | None,
    guard: float | None,
    measure: float | None,
    *,
    curve: bool,
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
    if curve and measure is None:
        raise typer.BadParameter("needs --measure, which pays for it.", param_hint="--curve")
    return Spending(
        price("--epsilon", epsilon),
        price("--guard", guard),
        price("--measure", measure),
        delta or 0.0,
        curve,
    )


def _check_fit(fit: Fit, spending: "Spending | None") -> None:
    """Refuse methods there are not; ask for what Gaussian noise needs, and for no more."""
    from veracal.cli._methods import check_method

    check_method(fit.method, fit.form, private=spending is not None)
    if spending is None:
        return
    gaussian = fit.method in ("descent", "platt")
    if gaussian and not (spending.delta and fit.size):
        raise typer.BadParameter(
            f"{fit.method} also needs --delta and --size, the declared number of records.",
            param_hint="--method",
        )
    if not gaussian and (spending.delta or (fit.size is not None and fit.method != "auto")):
        raise typer.BadParameter(
            f"{fit.method} needs no --delta, and --size is for auto, descent and platt.",
            param_hint="--method",
        )


def _repair(scores: "Scores", fit: Fit, payer: Payer, spending: "Spending | None") -> "Repair":
    """Fit a map, private if something is spent; what cannot be meant is a matter of usage."""
    from veracal.cli._methods import chosen, private_fitter
    from veracal.cli._repairing import repaired, repaired_openly
    from veracal.errors import VeracalError
    from veracal.privacy import Budget, Ledger
    from veracal.privacy.costs.pure import MICRO

    if spending is None:
        method = chosen(fit.method, len(scores), Budget(1.0))  # as if for an epsilon of 1
        return repaired_openly(scores, method, fit.form, fit.bins, fit.replicates)
    there = _places.is_there(payer.place)
    protects = Ledger(payer.place).budget if there else Budget(1.0)
    method = chosen(fit.method, fit.size, replace(protects, epsilon=spending.fit / MICRO))
    try:
        fitter = private_fitter(
            method,
            scores,
            micro_epsilon=spending.fit,
            delta=spending.delta or None,
            size=fit.size,
            form=fit.form,
            bins=fit.bins,
        )
        return repaired(
            scores,
            fitter,
            method,
            payer.place,
            spending,
            part=payer.part,
            version=payer.version,
            bins=fit.bins,
            internal=fit.internal,
            replicates=fit.replicates,
        )
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _tell(made: "Repair", files: "Files", *, whole: bool, json: bool) -> None:
    """Print the map, what it cost, and figures of both sides."""
    from veracal.cli._repair_show import facts, show

    if json:
        _show.print_json({"file": str(files.predictions), **facts(made), **files.written()})
        return
    show(made, files.predictions.name, files.ledger.name)
    if made.statement is not None:
        typer.echo("\n" + _paying.promise(made.statement, whole=whole))
