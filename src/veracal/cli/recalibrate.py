"""The command that repairs calibration."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.cli import _output as _places
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying
from veracal.cli import _predictions

if TYPE_CHECKING:
    from veracal.calibration import Settings
    from veracal.cli._methods import RecalibrationFiles
    from veracal.cli._recalibrate_local import LocalBudget, Repair, RunIds
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
    temperatures: tuple[float, float] | None = None

    def settings(self, spending: "LocalBudget | None") -> "Settings":
        """What a fitter is told."""
        from veracal.accounting import MICRO
        from veracal.calibration import Settings

        return Settings(
            MICRO if spending is None else spending.fit,
            delta=None if spending is None else spending.delta or None,
            temperatures=self.temperatures,
            size=self.size,
            bins=self.bins,
            form=self.form,  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class LedgerOptions:
    """Where the ledger is, and what it knows the records by."""

    place: Path
    records: Path
    part: str | None
    version: str


@app.command(
    epilog="Example:  veracal recalibrate predictions.npz --epsilon 0.1 --out calibrated.npz"
)
def recalibrate(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS|MODEL",
            help="npz, Parquet, Arrow or CSV file with logits or probabilities, and labels; "
            "with --sources a model: a folder of 'veracal fit', or any file.",
        ),
    ],
    epsilon: Annotated[
        float | None, typer.Option(help="What the map may cost; charged before it is fitted.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto (by --size, --epsilon and the number of sources), temperature, "
            "two-temperatures (for unsure and sure predictions), pooled (for many sources), "
            "acc-t, nll-t, ece-t (golden section), binning, binning-paper, descent (a "
            "temperature by noisy gradients), platt; with --not-private also isotonic, beta."
        ),
    ] = "auto",
    form: Annotated[str, typer.Option(help="Of platt: scalar, vector or matrix.")] = "vector",
    bins: Annotated[int, typer.Option(min=1, max=10_000, help="Equal-width bins.")] = 15,
    delta: Annotated[
        float | None, typer.Option(help="Failure probability, for descent and platt.")
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="Range of temperatures to search."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Declared records in all, for auto, descent, platt, acc-t …"),
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
    sources_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=A,B,…]",
            help="Column that says which institution a record belongs to, and their names "
            "(which are public; by default those in the file). Each answers for itself and "
            "pays from a ledger of its own in the folder --ledger; what one record pays is "
            "charged to the ledger of PREDICTIONS, too.",
        ),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(min=1, help="Of several sources: how many must answer; by default all."),
    ] = None,
    at_sources: Annotated[
        int,
        typer.Option(min=1, help="Of several sources: where one person may have records."),
    ] = 1,
    sources: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="List of institutions elsewhere (federation.toml of 'veracal federation "
            "init'), which are asked in place of predictions at hand.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0, help="With --sources, by files: seconds to watch for answers."),
    ] = None,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="With --sources, by files: who is not waited for; repeats."
        ),
    ] = None,
    run: Annotated[
        str,
        typer.Option(
            help="With --sources: name of a new run, in which who was silent is asked again."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the recalibrated predictions: .npz, .parquet or .csv; with --sources "
            "the folder of the model with its new map."
        ),
    ] = None,
    map_out: Annotated[Path | None, typer.Option(help="Write the map as JSON.")] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace --out and --map-out if they exist; with --sources and without --out, "
            "write the map into MODEL itself.",
        ),
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
    still those of people: keep them like the records. With --sources-by several
    institutions answer, each with its own noise from its own ledger, and the
    ledger of PREDICTIONS pays what one record pays. With --sources they are
    elsewhere, and MODEL gets the map that they find.
    """
    from veracal.cli._methods import RecalibrationFiles

    several = sources_by is not None or sources is not None
    _check_sources(several, least, at_sources, ledger_part, not_private, curve)
    if sources is not None:
        here = (sources_by, classes, group, unit, part, ledger, version, internal, replicates)
        _check_elsewhere(here)
        fit = Fit(method, form, bins, size, False, None, _range(temperatures))
        spent = _spending(epsilon, delta, guard, measure, curve=False)
        _check_fit(fit, spent)
        from veracal.cli._recalibrate_remote import Outcome, RemoteOptions, elsewhere

        asked = RemoteOptions(sources, least, at_sources, wait, tuple(give_up or ()), run)
        outcome = Outcome(predictions, out, map_out, force)
        elsewhere(outcome, fit, spent, asked, whole=statement, json=json)
        return
    if wait is not None or give_up or run:
        raise typer.BadParameter("needs --sources.", param_hint="--wait, --give-up or --run")
    told = _predictions.settings(classes, group, unit, part)
    searched = _range(temperatures)
    fit = Fit(method, form, bins, size, internal, replicates, searched)
    spending = None
    if not_private:
        _check_open(epsilon, delta, size, guard, measure, ledger, ledger_part, version)
    else:
        spending = _spending(epsilon, delta, guard, measure, curve=curve)
    _check_fit(fit, spending)
    if sources_by is not None:
        assert spending is not None
        from veracal.cli._recalibrate_sources import Federation, federated

        place = Path(f"{predictions}.ledgers") if ledger is None else ledger
        files = RecalibrationFiles(predictions, place, out, map_out, unit or "unit", force)
        whom = Federation(sources_by, least, at_sources, version)
        federated(files, told, fit, spending, whom, whole=statement, json=json)
        return
    place = _paying.ledger_place(predictions, ledger)
    payer = LedgerOptions(place, predictions, ledger_part, version)
    files = RecalibrationFiles(predictions, payer.place, out, map_out, unit or "unit", force)
    files.check()
    if spending is not None:
        _refuse_early(fit, payer, spending, told)
    scores = _predictions.load(predictions, told)
    files.check_scores(scores)
    made = _repair(scores, fit, payer, spending, told)
    files.write(made.map, scores)
    _tell(made, files, whole=statement, json=json)


def _range(text: str | None) -> tuple[float, float] | None:
    """A range of temperatures, as it was typed."""
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low < high < float("inf"):
        raise typer.BadParameter(
            f"expected two temperatures, as in 0.5,6, got {text!r}.",
            param_hint="--temperatures",
        )
    return low, high


def _check_elsewhere(here: tuple[object, ...]) -> None:
    """Refuse what is for predictions at hand."""
    if any(option not in (None, "", False, []) for option in here):
        raise typer.BadParameter(
            "leave out --sources-by, --classes, --group, --unit, --part, --ledger, --version, "
            "--internal and --replicates: institutions have declared all of that themselves.",
            param_hint="--sources",
        )


def _check_sources(
    several: bool,
    least: int | None,
    at_sources: int,
    ledger_part: str | None,
    not_private: bool,
    curve: bool,
) -> None:
    """Refuse what is for several sources where there is one, and the other way round."""
    if not several:
        if least is not None or at_sources != 1:
            hint = "--least" if least is not None else "--at-sources"
            raise typer.BadParameter(
                "needs --sources-by or --sources, which say whose.", param_hint=hint
            )
    elif ledger_part is not None or not_private or curve:
        raise typer.BadParameter(
            "leave out --ledger-part, --not-private and --curve: each institution answers for "
            "itself, with noise.",
            param_hint="--sources-by or --sources",
        )


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
) -> "LocalBudget":
    """What may be spent on what."""
    from veracal.accounting import to_micro
    from veracal.cli._recalibrate_local import LocalBudget

    if epsilon is None:
        raise typer.BadParameter(
            "say what the map may cost, as in --epsilon 0.1, or that it need not be private: "
            "--not-private.",
            param_hint="--epsilon",
        )

    def price(hint: str, value: float | None) -> int:
        try:
            return 0 if value is None else to_micro(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=hint) from error

    if delta is not None and not 0 < delta < 1:
        raise typer.BadParameter(
            f"expected 0 < delta < 1, got {delta!r}.", param_hint="--delta"
        )
    if curve and measure is None:
        raise typer.BadParameter("needs --measure, which pays for it.", param_hint="--curve")
    return LocalBudget(
        price("--epsilon", epsilon),
        price("--guard", guard),
        price("--measure", measure),
        delta or 0.0,
        curve,
    )


def _check_fit(fit: Fit, spending: "LocalBudget | None") -> None:
    """Refuse methods there are not; ask for what Gaussian noise needs, and for no more."""
    from veracal.calibration import AUTO, METHODS
    from veracal.cli._methods import check_method, is_gaussian, sized

    check_method(fit.method, fit.form, private=spending is not None)
    if fit.temperatures and fit.method != AUTO and not METHODS[fit.method].searches:
        raise typer.BadParameter(
            f"{fit.method} looks for no temperature.", param_hint="--temperatures"
        )
    if spending is None:
        return
    gaussian = is_gaussian(fit.method)
    if gaussian and not (spending.delta and fit.size):
        raise typer.BadParameter(
            f"{fit.method} also needs --delta and --size, the declared number of records.",
            param_hint="--method",
        )
    if not gaussian and (spending.delta or (fit.size and fit.method not in sized())):
        raise typer.BadParameter(
            f"{fit.method} needs no --delta, and --size is for {', '.join(sized())}.",
            param_hint="--method",
        )


def _refuse_early(
    fit: Fit, payer: LedgerOptions, spending: "LocalBudget", told: Mapping[str, Any]
) -> None:
    """Refuse what the ledger cannot pay, before the predictions are read."""
    from veracal.calibration import METHODS
    from veracal.cli._recalibrate_local import require_recalibration
    from veracal.errors import VeracalError

    if not _places.is_there(payer.place):
        return
    method = _chosen(fit, payer, spending)
    classes = len(told["classes"] or ()) or 2  # any number: the cost is the same
    try:
        settings = replace(fit.settings(spending), classes=classes)
        require_recalibration(
            payer.place,
            METHODS[method].fitter(settings),
            spending,
            _run_ids(fit, method, payer, spending, told),
            part=payer.part,
            bins=fit.bins,
        )
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _chosen(fit: Fit, payer: LedgerOptions, spending: "LocalBudget") -> str:
    """The method, for whom the ledger protects."""
    from veracal.accounting import MICRO, Budget
    from veracal.cli._methods import chosen
    from veracal.ledger import Ledger

    there = _places.is_there(payer.place)
    protects = Ledger(payer.place).budget if there else Budget(1.0)
    return chosen(fit.method, fit.size, replace(protects, epsilon=spending.fit / MICRO))


def _run_ids(
    fit: Fit,
    method: str,
    payer: LedgerOptions,
    spending: "LocalBudget",
    told: Mapping[str, Any],
) -> "RunIds":
    """What a ledger knows a recalibration by, from options as they were typed."""
    from dataclasses import asdict

    from veracal.cli._recalibrate_local import RunIds
    from veracal.ledger import display_name

    settings = asdict(fit.settings(spending))
    bins = settings.pop("bins")  # of figures; no method with a delta has some
    asked = {
        "records": display_name(payer.records),
        "read as": {name: told[name] for name in ("classes", "unit", "part")},
        "method": method,
        "settings": settings,
        "part": payer.part,
        "version": payer.version,
    }
    extras = {"guard": spending.guard, "measure": spending.measure, "curve": spending.curve}
    return RunIds(asked, {**extras, "bins": bins}, spending.delta)


def _repair(
    scores: "Scores",
    fit: Fit,
    payer: LedgerOptions,
    spending: "LocalBudget | None",
    told: Mapping[str, Any],
) -> "Repair":
    """Fit a map, private if something is spent; what cannot be meant is a matter of usage."""
    from veracal.accounting import Budget
    from veracal.cli._methods import chosen, private_fitter
    from veracal.cli._recalibrate_local import repaired, repaired_openly
    from veracal.errors import VeracalError

    if spending is None:
        method = chosen(fit.method, len(scores), Budget(1.0))  # as if for an epsilon of 1
        return repaired_openly(scores, method, fit.settings(None), fit.replicates)
    method = _chosen(fit, payer, spending)
    try:
        fitter = private_fitter(method, scores, fit.settings(spending))
        return repaired(
            scores,
            fitter,
            method,
            payer.place,
            spending,
            _run_ids(fit, method, payer, spending, told),
            records=payer.records,
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


def _tell(made: "Repair", files: "RecalibrationFiles", *, whole: bool, json: bool) -> None:
    """Print the map, what it cost, and figures of both sides."""
    from veracal.cli._recalibrate_local import facts, show
    from veracal.ledger import Ledger

    if json:
        _show.print_json({"file": str(files.predictions), **facts(made), **files.written()})
        return
    paid = "no ledger" if made.account is None else _paying.called(Ledger(files.ledger))
    show(made, files.predictions.name, paid)
    if made.statement is not None:
        typer.echo("\n" + _paying.promise(made.statement, whole=whole))
