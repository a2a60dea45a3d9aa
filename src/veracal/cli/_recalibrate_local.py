"""Recalibration from one file of predictions: the files, the ledger, tables and JSON."""

import hashlib
import json as _json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from veracal.accounting import MICRO, Budget, Composed, Repeated, format_down, format_up
from veracal.calibration import (
    AUTO,
    FITTED_ON,
    BudgetDivision,
    CalibrationMap,
    CalibrationResult,
    Identity,
    PrivateFitter,
    Recalibration,
    RecalibrationPlan,
    SourceProfile,
    measure,
    plan_recalibration,
    run_recalibration,
)
from veracal.cli import _figures, _options, _output, _payment
from veracal.cli._artifacts import map_summary
from veracal.data import (
    Scores,
    atomic_file,
    check_output_path,
    check_score_columns,
    check_score_suffix,
    save_scores,
)
from veracal.ledger import Item, Ledger, display_name
from veracal.queries import Curator, Public

if TYPE_CHECKING:
    from veracal.cli.recalibrate import FitOptions

RUN, FIGURES = "recalibration", "figures of a recalibration"


@dataclass(frozen=True)
class RecalibrationFiles:
    """Input and output files of a recalibration; an output that is None is not written."""

    predictions: Path
    out: Path | None  # the mapped predictions
    map_out: Path | None
    unit: str  # name of the column of unit ids
    force: bool

    def check(self, ledger: Path) -> None:
        """Reject output paths that cannot be written before anything is charged."""
        used = [os.path.realpath(self.predictions), os.path.realpath(ledger)]
        for option, path in (("--out", self.out), ("--map-out", self.map_out)):
            if path is None:
                continue
            if os.path.realpath(path) in used:
                raise typer.BadParameter(
                    f"{path} is already another file of this command.", param_hint=option
                )
            used.append(os.path.realpath(path))
            _output.check_new(path, force=self.force, option=option)
            check_output_path(path, force=self.force)
        if self.out is not None:
            check_score_suffix(self.out)

    def check_scores(self, scores: Scores) -> None:
        """Reject scores that cannot be written, before anything is charged."""
        if self.out is not None:
            check_score_columns(scores, self.unit)

    def write(self, map_: CalibrationMap, scores: Scores) -> None:
        """Write the output files."""
        if self.map_out is not None:
            write_map(map_, self.map_out, force=self.force)
        if self.out is not None:
            save_scores(map_.transform(scores), self.out, unit=self.unit, force=self.force)
            _output.print_status(f"Wrote {self.out}; protect it like the records.")

    def to_json(self) -> dict[str, str | None]:
        """Paths of the output files as JSON values."""
        files = {"out": self.out, "map_out": self.map_out}
        return {name: None if path is None else str(path) for name, path in files.items()}


def write_map(map_: CalibrationMap, path: Path, *, force: bool) -> None:
    """Write a map like :func:`veracal.calibration.save_map`; ``force`` replaces a file."""
    with atomic_file(path, force=force) as file:
        file.write((_json.dumps(map_.to_json(), allow_nan=False) + "\n").encode())


@dataclass(frozen=True)
class RunIds:
    """Ids by which a ledger knows the runs of a recalibration, from the options alone.

    No id depends on the records, so that a run can be rejected before they are read.
    """

    fit: Mapping[str, Any]  # everything that determines the fit
    extras: Mapping[str, Any]  # settings of the guard and the figures
    delta: float

    def prefix(self, name: str) -> str:
        """Common prefix of the request ids of all runs with this fit."""
        return f"{name} {hashlib.sha256(_canonical(self.fit)).hexdigest()}: "

    def settings(self, name: str) -> dict[str, Any]:
        """Arguments of :meth:`veracal.ledger.Ledger.begin_run`, except for the items."""
        body = _canonical([self.fit, self.extras])
        request = self.prefix(name) + hashlib.sha256(body).hexdigest()
        return {"name": name, "request": request, "body": body, "delta": self.delta}


def _canonical(value: object) -> bytes:
    """Settings as bytes that are equal for equal settings."""
    return _json.dumps(value, sort_keys=True, default=repr).encode()


def recalibrate_file(
    files: RecalibrationFiles,
    reading: Mapping[str, Any],
    options: "FitOptions",
    ledger: Path | None,
    partition: str | None,
    version: str,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Recalibrate one file of predictions; write and print the result."""
    ledger_path = _payment.find_ledger(files.predictions, ledger)
    files.check(ledger_path)

    def plan(scores: Scores | None) -> tuple[RecalibrationPlan, RunIds]:
        planned = _plan(options, reading, ledger_path, scores)
        return planned, _run_ids(
            planned, options, files.predictions, reading, partition, version
        )

    account = None
    with _output.usage_errors():
        if options.budget is not None and os.path.lexists(ledger_path):
            _require(*plan(None), ledger_path, partition)
        scores = _options.load_predictions(files.predictions, reading)
        files.check_scores(scores)
        if options.budget is None:
            result = _fit_public(scores, options)
        else:
            planned, ids = plan(scores)
            result, paid = _fit_private(
                scores,
                planned,
                ids,
                options.epsilon,
                ledger_path,
                files.predictions,
                partition,
                version,
            )
            account = _payment.summarize_ledger(paid, partition)
    internal = None
    if options.internal or options.budget is None:
        internal = measure_sides(scores, result.map, options)
    files.write(result.map, scores)
    if json:
        _output.print_json(
            {
                "file": str(files.predictions),
                **recalibration_to_json(result, internal),
                "figures_on": FITTED_ON,
                "ledger": account,
                **files.to_json(),
            }
        )
        return
    cost = [("privacy", "NOT private: the map was fitted to exact records")]
    if account is not None:
        assert result.statement is not None
        total = format_up(options.epsilon, 6)
        if options.delta:
            total = f"{format_up(result.statement.epsilon)}, delta {format_up(options.delta)}"
        spent = format_up(account["spent"]["epsilon"], 6)
        left = format_down(account["left"]["epsilon"], 6)
        name = _payment.ledger_name(Ledger(Path(account["path"])))
        cost = [
            ("cost", f"epsilon {total} in total: {result.budget.text()}"),
            ("ledger", f"{name}: epsilon {spent} spent, {left} left"),
        ]
    print_map(files.predictions.name, result, cost)
    print_sides(result, internal, f"Released with noise, on {FITTED_ON}.")
    if result.measurements is None and internal is None:
        _output.print_status(
            "No figures before and after: --measure EPSILON releases private ones at an "
            "additional cost (with --curve also reliability curves), and --internal shows "
            "exact ones. The map is the same."
        )
    _payment.print_statement(result.statement, whole=whole)


def _plan(
    options: "FitOptions", reading: Mapping[str, Any], ledger_path: Path, scores: Scores | None
) -> RecalibrationPlan:
    """Plan a private recalibration by one curator from public facts, and from scores if given.

    The relation and the unit are those of the ledger, if it exists. The cost does not depend on
    the number of classes.
    """
    assert options.budget is not None
    budget = Ledger(ledger_path).budget if os.path.lexists(ledger_path) else Budget(1.0)
    profile = SourceProfile(1, budget.relation, budget.unit, sums_only=False, exact=False)
    plan = plan_recalibration(
        profile,
        options.method,
        budget=options.budget,
        figures=options.figures,
        classes=len(reading["classes"] or ()) or 2 if scores is None else scores.n_classes,
        reads=None if scores is None else scores.kind,
        keep_total=False,  # the ledger of a file has room for the accountant's bound
        **options.fitter_settings(),
    )
    # On the command line only the guard's own query decides about the map of a single file.
    return replace(plan, infers_guard=False)


def _run_ids(
    plan: RecalibrationPlan,
    options: "FitOptions",
    records: Path,
    reading: Mapping[str, Any],
    partition: str | None,
    version: str,
) -> RunIds:
    """Ids of the runs of a recalibration, from the options alone."""
    assert options.budget is not None
    settings = options.fitter_settings()
    bins = settings.pop("bins")  # of figures; methods with a delta have no bins
    fit = {
        "records": display_name(records),
        "reading": {name: reading[name] for name in ("classes", "unit", "part")},
        "method": plan.method,
        "settings": {**settings, "micro_epsilon": options.budget.map},
        "partition": partition,
        "version": version,
    }
    extras = {"guard": options.budget.guard, "measure": options.budget.measure}
    return RunIds(fit, {**extras, "curve": options.curve, "bins": bins}, options.delta)


def is_run(ledger: Ledger, delta: float) -> bool:
    """Whether a ledger is charged for a recalibration as one run.

    A run spends a delta as a whole. Pure costs are charged query by query, and those of a plan
    are reserved already.
    """
    return bool(delta) and ledger.opening.rule.kind == "open"


def _require(
    plan: RecalibrationPlan, ids: RunIds, ledger_path: Path, partition: str | None
) -> None:
    """Check that an existing ledger can pay, before a record is read.

    Raises
    ------
    BudgetError
        If the cost exceeds the remaining budget.
    AnswerError
        If the run was abandoned.
    """
    ledger = Ledger(ledger_path)
    relation, unit = ledger.budget.relation, ledger.budget.unit
    fit, extras = (
        plan.fit_items(relation, unit, partition),
        plan.extra_items(relation, unit, partition),
    )
    if is_run(ledger, ids.delta):
        _, name, items = _next_run(ledger, fit, extras, ids)
        if items:
            settings = ids.settings(name)
            known = [run for run in ledger.runs() if run.request == settings["request"]]
            ledger.require_run(known[0].items if known else items, **settings)
        return
    items = [*fit, *extras]
    charged = {entry.purpose for entry in ledger.entries() if entry.event is not None}
    repeated = any(item.purpose in charged for item in items)  # a repetition may be free
    if not repeated and ledger.opening.rule.kind != "plan":
        whole = Composed(tuple(Repeated(item.event, item.times) for item in items))
        ledger.require(whole, items[0].purpose, partition=partition)


def _next_run(
    ledger: Ledger, fit: Sequence[Item], extras: Sequence[Item], ids: RunIds
) -> tuple[int | None, str, list[Item]]:
    """An existing run that has paid for the fit, and the name and items of the run to begin.

    The whole recalibration is one run. If the fit is paid for already, the new run has only the
    extras; there are no items if these are paid for, too.
    """
    for run in ledger.runs():
        if run.request.startswith(ids.prefix(RUN)) and not run.abandoned:
            same = run.request == ids.settings(RUN)["request"]
            return run.number, FIGURES, [] if same else list(extras)
    return None, RUN, [*fit, *extras]


def _fit_public(scores: Scores, options: "FitOptions") -> Recalibration:
    """Fit a map to public scores, without privacy."""
    settings = options.fitter_settings()
    if options.method == AUTO:
        settings["size"] = len(scores)
    source = Public(scores)
    with _output.progress_bar("Fitting the map"):
        plan = plan_recalibration(
            source,
            options.method,
            budget=BudgetDivision(MICRO),
            classes=scores.n_classes,
            reads=scores.kind,
            read_public=True,
            **settings,
        )
        return run_recalibration(source, replace(plan, infers_guard=False))


def _fit_private(
    scores: Scores,
    plan: RecalibrationPlan,
    ids: RunIds,
    epsilon: float,
    ledger_path: Path,
    records: Path,
    partition: str | None,
    version: str,
) -> tuple[Recalibration, Ledger]:
    """Run a plan with one curator, and return the ledger that paid, too.

    All queries are checked against the ledger before the first one; with a delta they are
    charged as one run.
    """
    new = Budget(plan.budget.total / MICRO)
    budget = Ledger(ledger_path).budget if os.path.lexists(ledger_path) else new
    fit = plan.fit_items(budget.relation, budget.unit, partition)
    extras = plan.extra_items(budget.relation, budget.unit, partition)
    curator = _payment.open_curator(
        ledger_path,
        scores,
        [*fit, *extras],
        epsilon=epsilon,
        delta=ids.delta,
        partition=partition,
        version=version,
        records=records,
    )
    # Of the fit alone, so that a later guard or measurement gets the same map.
    assert isinstance(plan.fitter, PrivateFitter)
    query = {
        "method": plan.method,
        **plan.fitter.get_params(),
        "records": scores.name,
        "classes": list(scores.classes),
        "scores": scores.kind,
        "partition": partition,
        "version": version,
    }
    request = hashlib.sha256(_canonical(query)).hexdigest()
    extra_curator = None
    if is_run(curator.ledger, ids.delta):
        number, name, items = _next_run(curator.ledger, fit, extras, ids)
        begun = curator.ledger.begin_run(items, **ids.settings(name)) if items else None
        paid = begun if number is None else Ledger(curator.ledger.path, number)
        assert paid is not None
        curator = Curator(scores, paid, partition=partition, version=version)
        extra_curator = Curator(scores, begun or paid, partition=partition, version=version)

    def mapped(map_: CalibrationMap) -> Curator:
        payer = (extra_curator or curator).ledger
        # Mapped scores are other records.
        return Curator(
            map_.transform(scores), payer, partition=partition, version=f"{version}, mapped"
        )

    with _output.progress_bar("Fitting the map"):
        result = run_recalibration(
            curator, plan, request=request, extras=extra_curator, mapped=mapped
        )
    return result, curator.ledger


# ---------------------------------------------------------------- results, of every mode

Sides = Mapping[str, CalibrationResult]  # before and after a map


def measure_sides(scores: Scores, map_: CalibrationMap, options: "FitOptions") -> Sides:
    """Exact figures of the records before and after a map."""
    replicates = options.replicates
    if replicates is None:
        replicates = _figures.replicates_for(scores)
    return {
        when: measure(
            side,
            figures=_figures.BY_GROUP,
            bins=options.bins,
            replicates=replicates,
            rng=np.random.default_rng(0),
        )
        for when, side in (("before", scores), ("after", map_.transform(scores)))
    }


def recalibration_to_json(
    result: Recalibration, internal: Sides | None = None
) -> dict[str, Any]:
    """The result as values that JSON can hold, which has no infinity."""
    exact = None
    if internal is not None:
        sides = {when: side.to_json() for when, side in internal.items()}
        exact = {"note": _figures.INTERNAL, **sides}
    temperatures = _figures.estimates_to_json(result.temperatures)
    return {**result.to_json(), "temperatures": temperatures, "internal": exact}


def print_map(name: str, result: Recalibration, cost: Sequence[tuple[str, str]]) -> None:
    """Print the method, the map, its temperatures, and rows with the cost."""
    rows = [("method", result.method), ("map", map_summary(result.map))]
    for temperature, one in result.temperatures.items():
        label = "" if temperature == "temperature" else f", {temperature}"
        ends = f"{one.level:.0%} interval {one.low:.4g} to {one.high:.4g}"
        rows.append((f"fitted temperature{label}", f"{one.value:.5g}, {ends}"))
        rows.append(("", f"the interval covers {result.interval_covers}"))
    if result.guard is not None:
        rows.append(("guard", result.guard.text()))
    if result.map == Identity() and result.before is not None and result.measurements is None:
        rows.append(("figures", "the same before and after, because no map is used"))
    _output.print_table(f"{name}: the map", ("", ""), [*rows, *cost])


def print_sides(result: Recalibration, internal: Sides | None, note: str) -> None:
    """Print the released and the exact figures before and after the map, and their curves."""
    if result.before is not None and result.after is not None:
        sides = {"before": result.before, "after": result.after}
        figures = {when: _figures.figures_of(side) for when, side in sides.items()}
        _figures.print_sides("before and after", figures, note)
        for when, side in sides.items():
            if side.curve is not None:
                _figures.print_curve(side.curve, f"{when}\n")
    if internal is not None:
        exact = {when: side.figures for when, side in internal.items()}
        _figures.print_sides(
            "before and after",
            exact,
            f"{_figures.INTERNAL}\nOn {FITTED_ON}, which is optimistic for a map with many "
            "parameters.",
        )
        for when, each in internal.items():
            _figures.print_curve(each.curve, f"{when}\n")
