"""The command ``recalibrate``: a calibration map for predictions or for a model."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veracal.calibration import METHODS, method_names
from veracal.cli import _options, _output

if TYPE_CHECKING:
    from veracal.calibration import BudgetDivision, Figure


app = typer.Typer(no_args_is_help=True, add_completion=False)

_PRIVATE = [name for name in method_names() if name in METHODS]
_PUBLIC = [name for name in METHODS if name not in _PRIVATE]
_FORM = "vector"  # the default form


# Options that are part of the id of a run under another name, or that change nothing released.
NAMED_ELSEWHERE = frozenset({"method", "budget", "curve", "internal", "replicates"})


@dataclass(frozen=True)
class FitOptions:
    """Options of the fit; without privacy there is no budget."""

    method: str
    form: str
    bins: int
    size: int | None
    temperatures: tuple[float, float] | None
    budget: "BudgetDivision | None"
    delta: float
    curve: bool
    internal: bool
    replicates: int | None

    @property
    def epsilon(self) -> float:
        """Total cost for a single file, whose two sides cost the same."""
        from veracal.accounting import MICRO

        if self.budget is None:
            return 0.0
        measure = 2 * (self.budget.measure // 2)
        return (self.budget.map + self.budget.guard + measure) / MICRO

    @property
    def figures(self) -> "tuple[Figure, ...]":
        """Figures that are measured before and after on a single file."""
        return ("accuracy", "ece", "brier", *(("curve",) if self.curve else ()))

    def fitter_settings(self) -> dict[str, Any]:
        """Keyword arguments of :func:`veracal.calibration.plan_recalibration`.

        The id of a run in the ledger is made of them and of ``NAMED_ELSEWHERE``. So every other
        option belongs to them: with a new option, no earlier run is taken for the present one.
        """
        names = [each.name for each in fields(self) if each.name not in NAMED_ELSEWHERE]
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "delta": self.delta or None}


@app.command(
    epilog="Example:  veracal recalibrate predictions.npz --epsilon 0.1 --out calibrated.npz"
)
def recalibrate(
    context: typer.Context,
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS|MODEL",
            help="npz, Parquet, Arrow or CSV file with logits or probabilities, and labels; "
            "with --sources a model: a folder of 'veracal fit', or any file.",
        ),
    ],
    epsilon: Annotated[
        float | None,
        typer.Option(min=0, help="Epsilon of the map, charged before it is fitted."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="Calibration method: auto (by --size, --epsilon and the number of sources), "
            f"{', '.join(_PRIVATE)}; with --not-private also {', '.join(_PUBLIC)}."
        ),
    ] = "auto",
    form: Annotated[
        str, typer.Option(help="Form of a Platt map: scalar, vector or matrix.")
    ] = _FORM,
    bins: _options.ConfidenceBins = 15,
    delta: Annotated[
        float | None,
        typer.Option(help="Failure probability of the guarantee, for descent and platt."),
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="Range of temperatures to search; by default 0.05,20 for temperature and "
            "two-temperatures, 0.5,6 for the others, and with --sources the declared range.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Declared total number of records, for auto, descent, platt, acc-t …"
        ),
    ] = None,
    guard: Annotated[
        float | None,
        typer.Option(
            help="Additional epsilon of a noisy query that keeps the map only if it helps."
        ),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(help="Additional epsilon of private figures before and after."),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="With --measure: also release reliability curves.")
    ] = False,
    internal: Annotated[
        bool,
        typer.Option(
            "--internal", help="Also show exact figures, which must not be published."
        ),
    ] = False,
    replicates: _options.Replicates = None,
    not_private: Annotated[
        bool,
        typer.Option("--not-private", help="Fit without privacy, instead of --epsilon."),
    ] = False,
    classes: _options.Classes = None,
    group: _options.GroupColumns = None,
    unit: _options.UnitColumn = None,
    part: _options.Part = None,
    ledger: _options.LedgerFile = None,
    partition: _options.Partition = None,
    version: _options.Version = None,
    sources_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN[=A,B,…]",
            help="Column with the institution of each record, and the public names of the "
            "institutions; by default those in the file. Each institution adds its own noise "
            "and is charged in its own ledger in the folder --ledger; the cost for one record "
            "is also charged to the ledger of PREDICTIONS.",
        ),
    ] = None,
    min_sources: Annotated[
        int | None,
        typer.Option(min=1, help="With several sources: how many must answer; by default all."),
    ] = None,
    at_sources: Annotated[
        int,
        typer.Option(
            min=1, help="With several sources: at how many one individual may have records."
        ),
    ] = 1,
    sources: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="List of remote institutions (federation.toml of 'veracal federation init') "
            "that answer the queries instead of a file.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="With --sources, by files: seconds to wait for answers; by default as in the "
            "list.",
        ),
    ] = None,
    give_up: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --sources, by files: do not wait for this source. May be repeated.",
        ),
    ] = None,
    run: Annotated[
        str,
        typer.Option(
            help="With --sources: name of a new run, which queries dropped-out sources again."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the recalibrated predictions (.npz, .parquet or .csv); with --sources "
            "the folder of the model with its new map."
        ),
    ] = None,
    map_out: Annotated[Path | None, typer.Option(help="Write the map as JSON.")] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace what is at --out and --map-out; with --sources and without --out, "
            "write the map into MODEL itself.",
        ),
    ] = False,
    statement: _options.FullStatement = False,
    json: _options.Json = False,
) -> None:
    """Fit a calibration map to PREDICTIONS.

    PREDICTIONS is as for 'veracal evaluate'. The map is computed from noisy
    answers, each charged to a ledger before it is given, and may be published.
    Repeating the command returns the same map from the ledger at no cost.
    Mapped predictions are still personal data: protect them like the records.
    With --sources-by several institutions answer, each with its own noise and
    ledger, and the ledger of PREDICTIONS is charged the cost for one record.
    With --sources remote institutions answer, and MODEL gets the map.
    """

    def reject(why: str, *names: str) -> None:
        _options.reject_given(context, names, why)

    if sources is None:
        reject("This needs --sources.", "wait", "give_up", "run")
        if sources_by is None:
            reject("This needs --sources-by or --sources.", "min_sources", "at_sources")
    else:
        why = "Leave it out with --sources: the institutions have declared it themselves."
        about_records = ("classes", "group", "unit", "part", "ledger", "version")
        reject(why, "sources_by", *about_records, "internal", "replicates")
    if sources is not None or sources_by is not None:
        why = "Leave it out with several sources: each institution answers with its own noise."
        reject(why, "partition", "not_private", "curve")
    if not_private:
        why = "Leave it out with --not-private: nothing is charged."
        reject(why, "epsilon", "delta", "size", "guard", "measure", "curve")
        reject(why, "ledger", "partition", "version")
    elif epsilon is None:
        raise typer.BadParameter(
            "Pass the cost of the map, as in --epsilon 0.1, or --not-private for public "
            "records.",
            param_hint="--epsilon",
        )
    elif delta is not None and not 0 < delta < 1:
        raise typer.BadParameter(
            f"Expected a number between 0 and 1, got {delta:g}.", param_hint="--delta"
        )
    elif curve and measure is None:
        raise typer.BadParameter(
            "This needs --measure, which pays for it.", param_hint="--curve"
        )
    searched = None if temperatures is None else _parse_range(temperatures)
    check_method(method, form, private=not not_private)
    _check_settings(method, searched, delta, size, private=not not_private)
    reading = _options.parse_reading(classes, group, unit, part)
    costs_are_valid = all(c is None or 1e-6 <= c < math.inf for c in (epsilon, guard, measure))
    if sources is None and costs_are_valid:
        _options.check_exists(predictions)
    budget = None
    if epsilon is not None:
        from veracal.accounting import to_micro
        from veracal.calibration import BudgetDivision

        costs = []
        for option, value in (
            ("--epsilon", epsilon),
            ("--guard", guard),
            ("--measure", measure),
        ):
            with _output.usage_errors(option):
                costs.append(to_micro(value) if value is not None else 0)
        budget = BudgetDivision(*costs)
    options = FitOptions(
        method, form, bins, size, searched, budget, delta or 0.0, curve, internal, replicates
    )
    if sources is not None:
        from veracal.cli._recalibrate_remote import Outputs, RemoteOptions, recalibrate_remote

        remote = RemoteOptions(
            sources, min_sources, at_sources, wait, tuple(give_up or ()), run
        )
        outputs = Outputs(predictions, out, map_out, force)
        recalibrate_remote(outputs, options, remote, whole=statement, json=json)
        return
    from veracal.cli._recalibrate_local import RecalibrationFiles, recalibrate_file

    version = version or ""
    files = RecalibrationFiles(predictions, out, map_out, unit or "unit", force)
    if sources_by is None:
        recalibrate_file(
            files, reading, options, ledger, partition, version, whole=statement, json=json
        )
        return
    from veracal.cli._recalibrate_sources import SourcesOptions, recalibrate_sources

    by_column = SourcesOptions(sources_by, ledger, min_sources, at_sources, version)
    recalibrate_sources(files, reading, options, by_column, whole=statement, json=json)


def _parse_range(text: str) -> tuple[float, float]:
    """The range of temperatures of an option."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = 0.0, 0.0
    if not 0 < low < high < float("inf"):
        raise typer.BadParameter(
            f"Expected two temperatures, the lower one first, as in 0.5,6, got {text!r}.",
            param_hint="--temperatures",
        )
    return low, high


def method_choices(*, private: bool) -> tuple[str, ...]:
    """Methods that ``veracal recalibrate`` accepts, from the registry.

    Without privacy, methods that need a delta are offered only if they have a public fitter.
    """
    from veracal.calibration import AUTO, NONE

    if private:
        return tuple(name for name in method_names() if name != NONE)
    return (AUTO, *(m.name for m in METHODS.values() if m.public is not None or not m.requires))


def check_method(method: str, form: str, *, private: bool) -> None:
    """Reject unknown methods and forms before a file is read."""
    choices = method_choices(private=private)
    if method not in choices:
        raise typer.BadParameter(
            f"Expected one of {', '.join(choices)}, got {method!r}.", param_hint="--method"
        )
    if form == _FORM:
        return
    from veracal.calibration import FORMS  # slow to import

    if form not in FORMS:
        raise typer.BadParameter(
            f"Expected one of {', '.join(FORMS)}, got {form!r}.", param_hint="--form"
        )


def _check_settings(
    method: str,
    temperatures: tuple[float, float] | None,
    delta: float | None,
    size: int | None,
    *,
    private: bool,
) -> None:
    """Reject missing settings of Gaussian noise, and options that the method does not use."""
    from veracal.calibration import AUTO

    known = METHODS.get(method)  # none for auto
    if temperatures and known is not None and not known.searches_temperature:
        raise typer.BadParameter(
            f"{method} does not search for a temperature.", param_hint="--temperatures"
        )
    if not private:
        return
    gaussian = known is not None and "delta" in known.requires
    if gaussian and not (delta and size):
        raise typer.BadParameter(
            f"{method} also needs --delta and --size, the declared number of records.",
            param_hint="--method",
        )
    sized = [AUTO, *(each.name for each in METHODS.values() if each.uses_size)]
    if not gaussian and (delta or (size and method not in sized)):
        raise typer.BadParameter(
            f"{method} needs no --delta, and --size is for {', '.join(sized)}.",
            param_hint="--method",
        )
