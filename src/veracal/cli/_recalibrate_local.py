"""Recalibration from one file of predictions: the files, the ledger, tables and JSON."""

import hashlib
import json as _json
import os
from collections.abc import Iterator, Mapping, Sequence
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
    GuardResult,
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
from veracal.cli._figures import estimates_to_json, print_sides
from veracal.cli._measurement import BY_GROUP, figures_of, replicates_for
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
    part: str | None,
    version: str,
    *,
    whole: bool,
    json: bool,
) -> None:
    """Recalibrate one file of predictions; write and print the result."""
    place = _payment.ledger_place(files.predictions, ledger)
    files.check(place)

    def plan(scores: Scores | None) -> tuple[RecalibrationPlan, RunIds]:
        planned = _plan(options, reading, place, scores)
        return planned, _run_ids(planned, options, files.predictions, reading, part, version)

    account = None
    with _output.usage_errors():
        if options.budget is not None and os.path.lexists(place):
            _require(*plan(None), place, part)
        scores = _options.load_predictions(files.predictions, reading)
        files.check_scores(scores)
        if options.budget is None:
            result = _fit_public(scores, options)
        else:
            planned, ids = plan(scores)
            result, paid = _fit_private(
                scores, planned, ids, options.epsilon, place, files.predictions, part, version
            )
            account = _payment.summarize_account(paid, part)
    internal = None
    if options.internal or options.budget is None:
        internal = measure_sides(scores, result.map, options)
    files.write(result.map, scores)
    if json:
        values = _to_json(result, options, internal, account)
        _output.print_json({"file": str(files.predictions), **values, **files.to_json()})
        return
    _print_result(files.predictions.name, result, options, internal, account)
    _payment.print_statement(result.statement, whole=whole)


def _plan(
    options: "FitOptions", reading: Mapping[str, Any], place: Path, scores: Scores | None
) -> RecalibrationPlan:
    """Plan a private recalibration by one curator from public facts, and from scores if given.

    The relation and the unit are those of the ledger, if it exists. The cost does not depend on
    the number of classes.
    """
    assert options.budget is not None
    budget = Ledger(place).budget if os.path.lexists(place) else Budget(1.0)
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
    part: str | None,
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
        "part": part,
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


def _require(plan: RecalibrationPlan, ids: RunIds, place: Path, part: str | None) -> None:
    """Check that an existing ledger can pay, before a record is read.

    Raises
    ------
    BudgetError
        If the cost exceeds the remaining budget.
    AnswerError
        If the run was abandoned.
    """
    ledger = Ledger(place)
    relation, unit = ledger.budget.relation, ledger.budget.unit
    fit, extras = plan.fit_items(relation, unit, part), plan.extra_items(relation, unit, part)
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
        ledger.require(whole, items[0].purpose, partition=part)


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
    place: Path,
    records: Path,
    part: str | None,
    version: str,
) -> tuple[Recalibration, Ledger]:
    """Run a plan with one curator, and return the ledger that paid, too.

    All queries are checked against the ledger before the first one; with a delta they are
    charged as one run.
    """
    new = Budget(plan.budget.total / MICRO)
    budget = Ledger(place).budget if os.path.lexists(place) else new
    fit = plan.fit_items(budget.relation, budget.unit, part)
    extras = plan.extra_items(budget.relation, budget.unit, part)
    curator = _payment.open_curator(
        place,
        scores,
        [*fit, *extras],
        epsilon=epsilon,
        delta=ids.delta,
        partition=part,
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
        "part": part,
        "version": version,
    }
    request = hashlib.sha256(_canonical(query)).hexdigest()
    extra_curator = None
    if is_run(curator.ledger, ids.delta):
        number, name, items = _next_run(curator.ledger, fit, extras, ids)
        begun = curator.ledger.begin_run(items, **ids.settings(name)) if items else None
        paid = begun if number is None else Ledger(curator.ledger.path, number)
        assert paid is not None
        curator = Curator(scores, paid, partition=part, version=version)
        extra_curator = Curator(scores, begun or paid, partition=part, version=version)

    def mapped(map_: CalibrationMap) -> Curator:
        payer = (extra_curator or curator).ledger
        # Mapped scores are other records.
        return Curator(
            map_.transform(scores), payer, partition=part, version=f"{version}, mapped"
        )

    with _output.progress_bar("Fitting the map"):
        result = run_recalibration(
            curator, plan, request=request, extras=extra_curator, mapped=mapped
        )
    return result, curator.ledger


# ---------------------------------------------------------------- results

Sides = Mapping[str, CalibrationResult]  # before and after a map


def measure_sides(scores: Scores, map_: CalibrationMap, options: "FitOptions") -> Sides:
    """Exact figures of the records before and after a map."""
    replicates = replicates_for(scores) if options.replicates is None else options.replicates
    return {
        when: measure(
            side,
            figures=BY_GROUP,
            bins=options.bins,
            replicates=replicates,
            rng=np.random.default_rng(0),
        )
        for when, side in (("before", scores), ("after", map_.transform(scores)))
    }


def sides_to_json(sides: Sides | None) -> dict[str, Any] | None:
    """Internal figures as JSON values, with a note."""
    if sides is None:
        return None
    return {
        "note": _figures.INTERNAL,
        **{when: estimates_to_json(side.figures) for when, side in sides.items()},
        "curves": {when: side.curve.to_json() for when, side in sides.items()},
    }


def print_internal(sides: Sides) -> None:
    """Print exact figures of the records."""
    note = (
        f"{_figures.INTERNAL}\nOn {FITTED_ON}, which is optimistic for a map with many "
        "parameters."
    )
    print_sides("before and after", {when: s.figures for when, s in sides.items()}, note)
    for when, side in sides.items():
        _figures.print_curve(side.curve, f"{when}\n")


def temperature_rows(result: Recalibration) -> Iterator[tuple[str, str]]:
    """Table rows with the fitted temperatures."""
    for name, one in result.temperatures.items():
        label = name if name == "temperature" else f"temperature, {name}"
        ends = f"{one.level:.0%} interval {one.low:.4g} to {one.high:.4g}"
        yield f"fitted {label}", f"{one.value:.5g}, {ends}"


def _to_json(
    result: Recalibration,
    options: "FitOptions",
    internal: Sides | None,
    account: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The result as JSON values."""
    private = options.budget is not None
    guard, sides = result.guard, result.measurements
    names = ("kept", "gain", "threshold", "beta", "records")
    return {
        "method": result.method,
        "private": private,
        "map": result.map.to_json(),
        "temperatures": estimates_to_json(result.temperatures) if private else {},
        "epsilon": options.epsilon if private else None,
        "delta": options.delta if private else None,
        "statement": None if result.statement is None else result.statement.to_json(),
        "guard": {name: getattr(guard, name) for name in names}
        if isinstance(guard, GuardResult)
        else None,
        "figures_on": FITTED_ON,
        "released": None
        if sides is None
        else {"before": sides[0].to_json(), "after": sides[1].to_json()},
        "internal": sides_to_json(internal),
        "ledger": account,
    }


def _print_result(
    name: str,
    result: Recalibration,
    options: "FitOptions",
    internal: Sides | None,
    account: Mapping[str, Any] | None,
) -> None:
    """Print the map and its cost, then figures before and after."""
    rows = [("map", map_summary(result.map))]
    budget = options.budget
    if budget is not None:
        rows += temperature_rows(result)
    if result.guard is not None:
        rows.append(("guard", result.guard.text()))
    if budget is None or account is None:
        rows.append(("privacy", "NOT private: the map was fitted to exact records"))
    else:
        assert result.statement is not None
        parts = {
            "the map": budget.map,
            "the guard": budget.guard,
            "figures": 2 * (budget.measure // 2),
        }
        costs = [f"{format_up(cost / MICRO, 6)} for {n}" for n, cost in parts.items() if cost]
        total = format_up(options.epsilon, 6)
        if options.delta:
            total = f"{format_up(result.statement.epsilon)}, delta {format_up(options.delta)}"
        paid = format_up(account["spent"]["epsilon"], 6)
        left = format_down(account["left"]["epsilon"], 6)
        ledger = _payment.ledger_name(Ledger(Path(account["path"])))
        rows += [
            ("cost", f"epsilon {total} in total: {', '.join(costs)}"),
            ("ledger", f"{ledger}: epsilon {paid} spent, {left} left"),
        ]
    _output.print_table(f"{name}: the map", ("", ""), rows)
    if result.measurements is not None:
        sides = dict(zip(("before", "after"), result.measurements, strict=True))
        figures = {when: figures_of(side.overall) for when, side in sides.items()}
        print_sides("before and after", figures, f"Released with noise, on {FITTED_ON}.")
        for when, side in sides.items():
            if side.overall.curve is not None:
                _figures.print_curve(side.overall.curve, f"{when}\n")
    if internal is not None:
        print_internal(internal)
    if result.measurements is None and internal is None:
        _output.print_status(
            "No figures before and after: --measure EPSILON releases private ones at an "
            "additional cost (with --curve also reliability curves), and --internal shows "
            "exact ones. The map is the same."
        )
