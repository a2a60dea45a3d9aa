"""Recalibration by several institutions whose predictions are in one file."""

import hashlib
import json as _json
import math
import os
from collections.abc import Mapping, Sequence
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
    Recalibration,
    SourceProfile,
    find_unaffordable,
    plan_recalibration,
    run_recalibration,
)
from veracal.cli import _options, _output, _payment
from veracal.cli._recalibrate_local import (
    RecalibrationFiles,
    measure_sides,
    print_map,
    print_sides,
    recalibration_to_json,
)
from veracal.data import Scores, load_scores
from veracal.errors import BudgetError, DataError, LedgerError
from veracal.ledger import Ledger, open_ledger_for_data, restore_data_path
from veracal.queries import Pool

if TYPE_CHECKING:
    from veracal.cli.recalibrate import FitOptions


PURPOSE = "recalibration by institutions"


@dataclass(frozen=True)
class DataCharge:
    """Charge for one unit in the ledger of the file that contains all records.

    Each record is at one institution and is charged there. A unit with several rows is charged
    at each institution where it has rows, ``at_sources`` at most.
    """

    path: Path  # the default ledger of the file; a charge opens it if it does not exist
    data: Path  # the file
    micro_epsilon: int  # cost for one unit at one institution
    delta: float
    at_sources: int

    def require(self, protects: Budget) -> None:
        """Check that a new charge is affordable, without writing anything."""
        if os.path.lexists(self.path):
            ledger = Ledger(self.path)
            ledger.require(self._event(ledger, protects), PURPOSE)

    def charge(self, query: Mapping[str, Any], ledgers: Sequence[Ledger]) -> Ledger:
        """Charge the queries, unless the same ledgers were charged for them before.

        ``query`` is everything that distinguishes these queries from others, and ``ledgers``
        are those of the institutions: a new ledger answers with fresh noise, so the charge is
        made again. The ledger of the file is returned.

        Raises
        ------
        BudgetError
            If it exceeds the remaining budget; nothing is charged.
        LedgerError
            If it protects another unit than the institutions' ledgers.
        """
        if not os.path.lexists(self.path):  # a new ledger has just this budget
            protects = ledgers[0].budget
            total = self._total(protects)
            budget = Budget(total, self.delta, protects.relation, protects.unit)
            kind = {"kind": "open", "composition": "addition"} if self.delta else {}
            open_ledger_for_data(self.path, budget, self.data, **kind)
            _payment.report_opened(self.path, budget.epsilon, budget.delta)
        ledger = Ledger(self.path)
        restore_data_path(ledger, self.data)
        events = [self._event(ledger, one.budget) for one in ledgers]
        settings = {
            **query,
            "ledgers": sorted(one.opening.nonce for one in ledgers),
            "epsilon": events[0].epsilon,
            "delta": self.delta,
        }
        written = _json.dumps(settings, sort_keys=True, default=repr)
        request = f"institutions {hashlib.sha256(written.encode()).hexdigest()}"
        ledger.charge(events[0], PURPOSE, request=request)
        return ledger

    def _total(self, budget: Budget) -> float:
        """Cost for one unit at all institutions where it has rows."""
        return min(self.at_sources, budget.unit.max_contributions) * self.micro_epsilon / MICRO

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
    ledgers: Path | None
    min_sources: int | None
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
    folder = sources.ledgers or Path(f"{files.predictions}.ledgers")
    files.check(folder)
    column, names = _read_institutions(files.predictions, reading, sources.column)
    groups = {**reading["groups"], column: names}
    scores = _options.load_predictions(files.predictions, {**reading, "groups": groups})
    files.check_scores(scores)
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(
            f"Expected a folder, with a ledger for each institution, got the file {folder}.",
            param_hint="--ledger",
        )
    if sources.min_sources is not None and sources.min_sources > len(names):
        raise typer.BadParameter(
            f"Expected at most {len(names)} institutions, got {sources.min_sources}.",
            param_hint="--min-sources",
        )
    with _output.usage_errors():
        result, ledgers, paid = _run(
            files.predictions, scores, column, names, folder, options, sources
        )
    files.write(result.map, scores)
    internal = measure_sides(scores, result.map, options) if options.internal else None
    institutions: list[dict[str, Any]] = [
        {"name": name, "dropout": why, "ledger": _payment.summarize_ledger(ledger)}
        for name, why, ledger in zip(names, result.dropouts, ledgers, strict=True)
    ]
    if json:
        _output.print_json(
            {
                "file": str(files.predictions),
                **recalibration_to_json(result, internal),
                "figures_on": FITTED_ON,
                "institutions": institutions,
                "ledger": _payment.summarize_ledger(paid),
                **files.to_json(),
            }
        )
        return
    budget = ("budget", f"at each institution {result.budget.text()}")
    print_map(files.predictions.name, result, [budget])
    rows = [
        (one["name"], one["dropout"] or "answered every query", *_amounts(one["ledger"]))
        for one in institutions
    ]
    account = _amounts(_payment.summarize_ledger(paid))
    rows.append((_payment.ledger_name(paid), "charged as well", *account))
    heads = ("institution", "", "spent", "left")
    _output.print_table("institutions", heads, rows, right=heads[2:])
    print_sides(result, internal, f"Released with noise, on {FITTED_ON}.")
    _payment.print_statement(result.statement, whole=whole)


def _run(
    predictions: Path,
    scores: Scores,
    column: str,
    names: tuple[str, ...],
    folder: Path,
    options: "FitOptions",
    sources: SourcesOptions,
) -> tuple[Recalibration, list[Ledger], Ledger]:
    """Plan, check every ledger, charge the file's ledger, and run the plan.

    Returns
    -------
    tuple
        The result, the ledgers of the institutions, and the ledger of the file.
    """
    # Everything is planned before any ledger is opened, for the unit of the first, if any.
    existing = sorted(folder.glob("*.ledger")) if folder.is_dir() else []
    protects = Ledger(existing[0]).budget if existing else Budget(1.0)
    profile = SourceProfile(
        len(names), protects.relation, protects.unit, sums_only=True, exact=False
    )
    plan = plan_recalibration(
        profile,
        options.method,
        budget=options.budget,
        classes=scores.n_classes,
        reads=scores.kind,
        **options.fitter_settings(),
    )
    charge = DataCharge(
        _payment.find_ledger(predictions, None),
        predictions,
        plan.budget.total,
        plan.delta,
        sources.at_sources,
    )
    paths = [folder / f"{quote(name, safe=' ')}.ledger" for name in names]
    if not all(path.exists() for path in paths):
        charge.require(protects)
    folder.mkdir(parents=True, exist_ok=True)
    codes = scores.groups[column].codes
    curators = [
        _payment.open_curator(
            path,
            scores.take(np.flatnonzero(codes == i)).renamed(f"{scores.name}, {name}"),
            plan.items("add-remove", Unit()),
            epsilon=plan.budget.total / MICRO,
            delta=plan.delta,
            version=sources.version,
        )
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    pool = Pool(curators, min_sources=sources.min_sources, max_records=options.size)
    if sources.min_sources is None:  # every institution can pay, before any is charged
        for name, curator in zip(names, curators, strict=True):
            try:
                find_unaffordable(curator, plan.items)
            except BudgetError as error:
                raise BudgetError(
                    f"{name}: {error} Or require fewer institutions with --min-sources."
                ) from error
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
    ledgers = [curator.ledger for curator in curators]
    paid = charge.charge(query, ledgers)
    with _output.progress_bar("Fitting the map"):
        result = run_recalibration(pool, plan, at_sources=sources.at_sources)
    return result, ledgers, paid


def _read_institutions(
    predictions: Path, reading: Mapping[str, Any], text: str
) -> tuple[str, tuple[str, ...]]:
    """The column and the names of the institutions, declared or from the file."""
    column, sign, _ = text.partition("=")
    if sign:
        column, values = _options.parse_pair(text, "--sources-by", "hospital=north,south")
        return column, tuple(_options.parse_list(values, "--sources-by"))
    if not column:
        raise typer.BadParameter(
            "Expected the name of a column, as in hospital.", param_hint="--sources-by"
        )
    alone = {**reading, "groups": {}, "unit": column}
    units = load_scores(predictions, **alone).units
    names = tuple(sorted({str(unit) for unit in units})) if units is not None else ()
    if not names:
        raise DataError(
            str(predictions), "one institution or more", "none", "Pass a file with records."
        )
    _output.print_status(
        f"{len(names)} institutions in column {column!r}; their participation is public."
    )
    return column, names


def _amounts(account: Mapping[str, Any]) -> tuple[str, str]:
    """Spent and remaining epsilon of a ledger."""
    spent, left = account["spent"]["epsilon"], account["left"]["epsilon"]
    return format_up(spent, 6), format_down(left, 6)
