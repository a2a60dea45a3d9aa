"""Recalibration by several institutions whose predictions are in one file."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import typer

from veracal.accounting import (
    MICRO,
    Approximate,
    Budget,
    Pure,
    Unit,
    format_down,
    format_up,
)
from veracal.calibration import (
    FITTED_ON,
    Identity,
    Recalibration,
    RecalibrationPlan,
    SourceProfile,
    find_unaffordable,
    plan_recalibration,
    run_recalibration,
)
from veracal.cli import _methods, _predictions
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying
from veracal.cli._figures import estimate_to_json
from veracal.cli._measurement import figures_of
from veracal.cli._methods import RecalibrationFiles
from veracal.cli._output import path_exists
from veracal.cli._recalibrate_local import (
    InternalSides,
    internal_json,
    internal_sides,
    show_internal,
    sides_table,
)
from veracal.data import Scores, load_scores
from veracal.errors import BudgetError, DataError, LedgerError, VeracalError
from veracal.ledger import Ledger, open_ledger_for_data, restore_data_path
from veracal.queries import Curator, Pool

if TYPE_CHECKING:
    from veracal.cli.recalibrate import FitOptions


PURPOSE = "recalibration by institutions"


@dataclass(frozen=True)
class DataCharge:
    """Charge for one unit in the ledger of the file that contains all records.

    Each record is at one institution and is charged there. A unit with several rows is charged
    at each institution where it has rows.

    Attributes
    ----------
    path : Path
        The default ledger of the file; :meth:`charge` opens it if it does not exist.
    data : Path
        The file.
    micro_epsilon : int
        Cost for one unit at one institution.
    delta : float
    at_sources : int
        Largest number of institutions at which one unit has rows.
    """

    path: Path
    data: Path
    micro_epsilon: int
    delta: float
    at_sources: int

    def require(self, protects: Budget) -> None:
        """Check that a new charge is affordable, without writing anything."""
        if path_exists(self.path):
            ledger = Ledger(self.path)
            ledger.require(self._event(ledger, protects), PURPOSE)

    def charge(self, query: Mapping[str, Any], ledgers: Sequence[Ledger]) -> Ledger:
        """Charge the queries, unless the same ledgers were charged for them before.

        Parameters
        ----------
        query : mapping
            Everything that distinguishes these queries from others.
        ledgers : sequence of Ledger
            Ledgers of the institutions. A new ledger answers with fresh noise, so the charge is
            made again.

        Returns
        -------
        Ledger
            The ledger of the file.

        Raises
        ------
        BudgetError
            If it exceeds the remaining budget; nothing is charged.
        LedgerError
            If it protects another unit than the institutions' ledgers.
        """
        if not path_exists(self.path):
            self._open(ledgers[0].budget)
        ledger = Ledger(self.path)
        restore_data_path(ledger, self.data)
        events = [self._event(ledger, one.budget) for one in ledgers]
        settings = {
            **query,
            "ledgers": sorted(one.opening.nonce for one in ledgers),
            "epsilon": events[0].epsilon,
            "delta": self.delta,
        }
        written = json.dumps(settings, sort_keys=True, default=repr)
        request = f"institutions {hashlib.sha256(written.encode()).hexdigest()}"
        ledger.charge(events[0], PURPOSE, request=request)
        return ledger

    def _total(self, budget: Budget) -> float:
        """Cost for one unit at all institutions where it has rows."""
        return min(self.at_sources, budget.unit.max_contributions) * self.micro_epsilon / MICRO

    def _open(self, protects: Budget) -> None:
        """Open a ledger with just this budget."""
        budget = Budget(self._total(protects), self.delta, protects.relation, protects.unit)
        kind = {"kind": "open", "composition": "addition"} if self.delta else {}
        open_ledger_for_data(self.path, budget, self.data, **kind)
        _paying.report_opened(self.path, budget.epsilon, budget.delta)

    def _event(self, ledger: Ledger, protects: Budget) -> Pure | Approximate:
        """The cost as that of one row, as the ledger expects."""
        kept, rows = ledger.budget, protects.unit.max_contributions
        if (kept.relation, kept.unit) != (protects.relation, protects.unit):
            raise LedgerError(
                f"{ledger.path}: the ledger protects {kept.unit} under {kept.relation}, and "
                f"the institutions' ledgers protect {protects.unit} under {protects.relation}. "
                "Open the institutions' ledgers with the same unit and relation."
            )
        epsilon = self._total(protects)
        if not self.delta:
            # Rounded down: the ledger multiplies by the rows, and rounds up to a millionth.
            row = epsilon if rows == 1 else math.nextafter(epsilon / rows, 0.0)
            return Pure(row, kept.relation)
        if rows > 1:
            raise LedgerError(
                f"{ledger.path}: a map with a delta, for units of several rows, cannot be "
                "charged to the ledger of a file. Use a method that needs no --delta."
            )
        return Approximate(epsilon, self.delta, kept.relation)


@dataclass(frozen=True)
class SourcesOptions:
    """The column of institutions and how many must answer, from the options."""

    column: str
    least: int | None
    at_sources: int
    version: str


def recalibrate_sources(
    files: RecalibrationFiles,
    reading: Mapping[str, Any],
    options: "FitOptions",
    sources: SourcesOptions,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Recalibrate by the institutions of one file; write and print the result."""
    files.check()
    column, names = _institutions(files.predictions, reading, sources.column)
    groups = {**reading["groups"], column: names}
    scores = _predictions.load(files.predictions, {**reading, "groups": groups})
    files.check_scores(scores)
    _check_place(files.ledger, sources.least, len(names))
    ledgers = [files.ledger / f"{quote(name, safe=' ')}.ledger" for name in names]
    try:
        plan = _plan(scores, options, files.ledger, len(names))
        charge = DataCharge(
            _paying.ledger_place(files.predictions, None),
            files.predictions,
            plan.budget.total,
            plan.delta,
            sources.at_sources,
        )
        if not all(ledger.exists() for ledger in ledgers):
            charge.require(_protection(files.ledger))  # before any ledger is opened
        curators = _curators(scores, column, names, ledgers, plan, sources.version)
        pool = Pool(curators, min_sources=sources.least, max_records=options.size)
        if sources.least is None:
            _check_affordable(dict(zip(names, curators, strict=True)), plan)
        query = {
            "records": scores.name,
            "classes": list(scores.classes),
            "scores": scores.kind,
            "column": column,
            "method": options.method,
            "settings": repr(options.fitter_settings()),
            "budget": [plan.budget.map, plan.budget.guard, plan.budget.measure],
            "version": sources.version,
        }
        paid = charge.charge(query, [curator.ledger for curator in curators])
        with _show.progress_bar("Fitting the map"):
            result = run_recalibration(pool, plan, at_sources=sources.at_sources)
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    files.write(result.map, scores)
    internal = None
    if options.internal:
        internal = internal_sides(scores, result.map, options.bins, options.replicates)
    if json:
        _show.print_json(_to_json(files, result, names, curators, paid, internal))
        return
    _print(files.predictions.name, result, names, curators, paid, internal)
    typer.echo("\n" + _paying.format_statement(result.statement, whole=whole))


def _check_place(folder: Path, least: int | None, sources: int) -> None:
    """Reject invalid settings before a ledger is opened."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(
            f"expected a folder, with a ledger for each institution, got the file {folder}.",
            param_hint="--ledger",
        )
    if least is not None and least > sources:
        raise typer.BadParameter(
            f"expected at most {sources}, the number of institutions, got {least}.",
            param_hint="--least",
        )


def _institutions(
    predictions: Path, reading: Mapping[str, Any], text: str
) -> tuple[str, tuple[str, ...]]:
    """The column and the names of the institutions, declared or from the file."""
    column, sign, _ = text.partition("=")
    if sign:
        column, values = _predictions.pair(text, "--sources-by", "hospital=north,south")
        return column, tuple(_predictions.listed(values, "--sources-by"))
    if not column:
        raise typer.BadParameter(
            "expected the name of a column, as in hospital.", param_hint="--sources-by"
        )
    alone = {**reading, "groups": {}, "unit": column}
    units = load_scores(predictions, **alone).units
    names = tuple(sorted({str(unit) for unit in units})) if units is not None else ()
    if not names:
        raise DataError(
            str(predictions), "one institution or more", "none", "Pass a file with records."
        )
    _show.print_status(
        f"{len(names)} institutions in column {column!r}; their participation is public."
    )
    return column, names


def _plan(
    scores: Scores, options: "FitOptions", folder: Path, sources: int
) -> RecalibrationPlan:
    """The plan, before any ledger is opened."""
    budget = _protection(folder)
    profile = SourceProfile(sources, budget.relation, budget.unit, sums_only=True, exact=False)
    return plan_recalibration(
        profile,
        options.method,
        budget=options.budget,
        classes=scores.n_classes,
        reads=scores.kind,
        **options.fitter_settings(),
    )


def _protection(folder: Path) -> Budget:
    """Relation and unit of the institutions' ledgers: those of the first, if there is one."""
    ledgers = sorted(folder.glob("*.ledger")) if folder.is_dir() else []
    return Ledger(ledgers[0]).budget if ledgers else Budget(1.0)


def _curators(
    scores: Scores,
    column: str,
    names: tuple[str, ...],
    ledgers: Sequence[Path],
    plan: RecalibrationPlan,
    version: str,
) -> list[Curator]:
    """A curator for each institution, whose ledger is opened if it does not exist."""
    ledgers[0].parent.mkdir(parents=True, exist_ok=True)
    codes = scores.groups[column].codes
    return [
        _paying.open_curator(
            ledger,
            scores.take(np.flatnonzero(codes == i)).renamed(f"{scores.name}, {name}"),
            plan.items("add-remove", Unit()),
            epsilon=plan.budget.total / MICRO,
            delta=plan.delta,
            version=version,
        )
        for i, (name, ledger) in enumerate(zip(names, ledgers, strict=True))
    ]


def _check_affordable(curators: Mapping[str, Curator], plan: RecalibrationPlan) -> None:
    """Check that every institution can pay, before any is charged."""
    for name, curator in curators.items():
        try:
            find_unaffordable(curator, plan.items)
        except BudgetError as error:
            raise BudgetError(
                f"{name}: {error} Or require fewer institutions with --least."
            ) from error


def _to_json(
    files: RecalibrationFiles,
    result: Recalibration,
    names: tuple[str, ...],
    curators: list[Curator],
    paid: Ledger,
    internal: InternalSides | None,
) -> dict[str, Any]:
    """The result as JSON values."""
    values = result.to_json()
    values["temperatures"] = {
        name: estimate_to_json(one) for name, one in result.temperatures.items()
    }
    return {
        "file": str(files.predictions),
        **values,
        "figures_on": FITTED_ON,
        "internal": None if internal is None else internal_json(internal),
        "institutions": [
            {
                "name": name,
                "dropout": why,
                "ledger": _paying.summarize_account(curator.ledger, None),
            }
            for name, why, curator in zip(names, result.dropouts, curators, strict=True)
        ],
        "ledger": _paying.summarize_account(paid, None),
        **files.to_json(),
    }


def _print(
    name: str,
    result: Recalibration,
    names: tuple[str, ...],
    curators: list[Curator],
    paid: Ledger,
    internal: InternalSides | None,
) -> None:
    """Print the map, the institutions, and figures before and after."""
    console = _show.console()
    console.print(_show.table(f"{name}: the map", ("", ""), list(map_rows(result))))
    rows = [
        (one, _show.escape_text(why or "answered every query"), *_account(curator.ledger))
        for one, why, curator in zip(names, result.dropouts, curators, strict=True)
    ]
    rows.append(
        (_show.escape_text(_paying.ledger_name(paid)), "charged as well", *_account(paid))
    )
    heads = ("institution", "", "spent", "left")
    console.print(_show.table("institutions", heads, rows, right=heads[2:]))
    if result.before is not None and result.after is not None:
        sides = figures_of(result.before), figures_of(result.after)
        note = f"Released with noise, on {FITTED_ON}."
        console.print(sides_table("before and after", *sides, note=note))
    if internal is not None:
        show_internal(internal)


def map_rows(result: Recalibration) -> Iterator[tuple[str, str]]:
    """Table rows with the method, the map, its temperatures and the budget."""
    yield "method", result.method
    yield "map", _methods.map_summary(result.map)
    for name, one in result.temperatures.items():
        ends = f"{one.level:.0%} interval {one.low:.4g} to {one.high:.4g}"
        yield f"fitted {name}", f"{one.value:.5g}, {ends}"
        yield "", f"the interval covers {result.interval_covers}"
    if result.guard is not None:
        yield "guard", result.guard.text()
    yield "budget", f"at each institution {result.budget.text()}"
    if result.map == Identity() and result.before is not None:
        yield "figures", "the same before and after, because no map is used"


def _account(ledger: Ledger) -> tuple[str, str]:
    """Spent and remaining epsilon of a ledger."""
    account = _paying.summarize_account(ledger, None)
    return (
        format_up(account["spent"]["epsilon"], 6),
        format_down(account["left"]["epsilon"], 6),
    )
