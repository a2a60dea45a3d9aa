"""Recalibration from one file of predictions: the ledger, the run, tables and JSON."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from veracal.accounting import (
    MICRO,
    Budget,
    Composed,
    Repeated,
    format_down,
    format_up,
)
from veracal.calibration import (
    AUTO,
    FITTED_ON,
    BudgetDivision,
    CalibrationMap,
    GuardResult,
    PrivateFitter,
    Recalibration,
    RecalibrationPlan,
    ReliabilityCurve,
    SourceProfile,
    measure,
    plan_recalibration,
    run_recalibration,
)
from veracal.cli import _methods, _predictions
from veracal.cli import _output as _places
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying
from veracal.cli._figures import (
    choose_characters,
    draw_curve,
    estimate_to_json,
    format_interval,
    format_number,
)
from veracal.cli._measurement import figures_of, replicates_for
from veracal.data import Estimate, Scores
from veracal.ledger import Item, Ledger
from veracal.queries import Curator, Public
from veracal.report import drawable

if TYPE_CHECKING:
    from veracal.cli.recalibrate import FitOptions, LedgerOptions

RUN, FIGURES = "recalibration", "figures of a recalibration"
_INTERNAL_FIGURES = ("accuracy", "nll", "brier", "ece", "smooth_ece", "confidence_gap")
NOT_PRIVATE = "NOT private: the map was fitted to exact records"


@dataclass(frozen=True)
class InternalSides:
    """Exact figures and curves before and after a map."""

    before: Mapping[str, Estimate]
    after: Mapping[str, Estimate]
    curves: tuple[ReliabilityCurve, ReliabilityCurve]


@dataclass(frozen=True)
class RunIds:
    """Ids by which a ledger knows the runs of a recalibration, from the options alone.

    No id depends on the records, so that a run can be rejected before they are read.

    Attributes
    ----------
    fit : mapping
        Everything that determines the fit.
    extras : mapping
        Settings of the guard and the figures.
    delta : float
        Delta of the run.
    """

    fit: Mapping[str, Any]
    extras: Mapping[str, Any]
    delta: float

    def request(self, name: str) -> str:
        """Request id of a run."""
        return f"{self.prefix(name)}{_digest([self.fit, self.extras])}"

    def prefix(self, name: str) -> str:
        """Common prefix of the request ids of all runs with this fit."""
        return f"{name} {_digest(self.fit)}: "

    def settings(self, name: str) -> dict[str, Any]:
        """Arguments of :meth:`veracal.ledger.Ledger.begin_run`, except for the items."""
        body = json.dumps([self.fit, self.extras], sort_keys=True, default=repr).encode()
        return {
            "name": name,
            "request": self.request(name),
            "body": body,
            "delta": self.delta,
        }


def _digest(value: object) -> str:
    """Hash of settings."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


def plan_local(
    options: "FitOptions", ledger: Path, scores: Scores | None, classes: int
) -> RecalibrationPlan:
    """Plan a private recalibration by one curator from public facts.

    Parameters
    ----------
    options : FitOptions
    ledger : Path
        Its relation and unit are used if it exists.
    scores : Scores or None
        Their kind and number of classes; None: before they are read.
    classes : int
        Number of classes if there are no scores. The cost does not depend on it.
    """
    assert options.budget is not None
    budget = Ledger(ledger).budget if _places.path_exists(ledger) else Budget(1.0)
    profile = SourceProfile(1, budget.relation, budget.unit, sums_only=False, exact=False)
    plan = plan_recalibration(
        profile,
        options.method,
        budget=options.budget,
        figures=options.figures,
        classes=classes if scores is None else scores.n_classes,
        reads=None if scores is None else scores.kind,
        keep_total=False,  # the ledger of a file has room for the accountant's bound
        **options.fitter_settings(),
    )
    # On the command line only the guard's own query decides about the map of a single file.
    return replace(plan, infers_guard=False)


def recalibrate_public(scores: Scores, options: "FitOptions") -> Recalibration:
    """Fit a map to public scores, without privacy."""
    settings = options.fitter_settings()
    if options.method == AUTO:
        settings["size"] = len(scores)
    source = Public(scores)
    with _show.progress_bar("Fitting the map"):
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


def is_run(ledger: Path, delta: float) -> bool:
    """Whether an existing ledger is charged for a recalibration as one run.

    A run spends a delta as a whole. Pure costs are charged query by query, and those of a plan
    are reserved already.
    """
    return bool(delta) and Ledger(ledger).opening.rule.kind == "open"


def require_recalibration(
    plan: RecalibrationPlan, options: "FitOptions", ledger: "LedgerOptions", ids: RunIds
) -> None:
    """Check that a ledger can pay, before a record is read.

    Raises
    ------
    BudgetError
        If the cost exceeds the remaining budget.
    AnswerError
        If the run was abandoned.
    """
    if not _places.path_exists(ledger.path):
        return
    existing, partition = Ledger(ledger.path), ledger.partition
    relation, unit = existing.budget.relation, existing.budget.unit
    fit, extras = (
        plan.fit_items(relation, unit, partition),
        plan.extra_items(relation, unit, partition),
    )
    if is_run(ledger.path, options.delta):
        _, name, items = _next_run(existing, fit, extras, ids)
        if items:
            known = [run for run in existing.runs() if run.request == ids.request(name)]
            existing.require_run(known[0].items if known else items, **ids.settings(name))
        return
    items = [*fit, *extras]
    charged = {entry.purpose for entry in existing.entries() if entry.event is not None}
    repeated = any(item.purpose in charged for item in items)  # a repetition may be free
    if not repeated and existing.opening.rule.kind != "plan":
        whole = Composed(tuple(Repeated(item.event, item.times) for item in items))
        existing.require(whole, items[0].purpose, partition=partition)


def _next_run(
    ledger: Ledger, fit: Sequence[Item], extras: Sequence[Item], ids: RunIds
) -> tuple[int | None, str, list[Item]]:
    """An existing run that has paid for the fit, and the name and items of the run to begin.

    The whole recalibration is one run. If the fit is paid for already, the new run has only the
    extras; there are no items if these are paid for, too.
    """
    for run in ledger.runs():
        if run.request.startswith(ids.prefix(RUN)) and not run.abandoned:
            same = run.request == ids.request(RUN)
            return run.number, FIGURES, [] if same else list(extras)
    return None, RUN, [*fit, *extras]


def recalibrate_local(
    scores: Scores,
    plan: RecalibrationPlan,
    options: "FitOptions",
    ledger: "LedgerOptions",
    ids: RunIds,
) -> tuple[Recalibration, Mapping[str, Any]]:
    """Run a plan with one curator, and return the result and the state of the ledger.

    All queries are checked against the ledger before the first one; with a delta they are
    charged as one run.
    """
    place, partition = ledger.path, ledger.partition
    budget = (
        Ledger(place).budget
        if _places.path_exists(place)
        else Budget(plan.budget.total / MICRO)
    )
    fit = plan.fit_items(budget.relation, budget.unit, partition)
    extras = plan.extra_items(budget.relation, budget.unit, partition)
    curator = _paying.open_curator(
        place,
        scores,
        [*fit, *extras],
        epsilon=options.epsilon,
        delta=options.delta,
        partition=partition,
        version=ledger.version,
        records=ledger.records,
    )
    # Of the fit alone, so that a later guard or measurement gets the same map.
    assert isinstance(plan.fitter, PrivateFitter)
    settings = {"method": plan.method, **plan.fitter.get_params()}
    request = _paying.request_id(curator, scores, settings)
    extra_curator = None
    if is_run(place, options.delta):
        number, name, items = _next_run(curator.ledger, fit, extras, ids)
        begun = curator.ledger.begin_run(items, **ids.settings(name)) if items else None
        paid = begun if number is None else Ledger(curator.ledger.path, number)
        assert paid is not None
        curator = Curator(scores, paid, partition=partition, version=ledger.version)
        extra_curator = Curator(
            scores, begun or paid, partition=partition, version=ledger.version
        )

    def mapped(map_: CalibrationMap) -> Curator:
        charged = extra_curator or curator
        version = f"{ledger.version}, mapped"  # mapped scores are other records
        return Curator(
            map_.transform(scores), charged.ledger, partition=partition, version=version
        )

    with _show.progress_bar("Fitting the map"):
        result = run_recalibration(
            curator, plan, request=request, extras=extra_curator, mapped=mapped
        )
    return result, _paying.summarize_account(curator.ledger, partition)


def internal_sides(
    scores: Scores, map_: CalibrationMap, bins: int, replicates: int | None
) -> InternalSides:
    """Exact figures of the records before and after a map."""
    n_draws = replicates_for(scores) if replicates is None else replicates
    before, after = (
        measure(
            side,
            figures=_INTERNAL_FIGURES,
            bins=bins,
            replicates=n_draws,
            rng=np.random.default_rng(0),
        )
        for side in (scores, map_.transform(scores))
    )
    return InternalSides(before.figures, after.figures, (before.curve, after.curve))


def local_json(
    result: Recalibration,
    options: "FitOptions",
    internal: InternalSides | None,
    account: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The result as JSON values."""
    private = options.budget is not None
    guard = result.guard if isinstance(result.guard, GuardResult) else None
    names = ("kept", "gain", "threshold", "beta", "records")
    sides = result.measurements
    return {
        "method": result.method,
        "private": private,
        "map": result.map.to_json(),
        "temperatures": {
            name: estimate_to_json(one) for name, one in result.temperatures.items() if private
        },
        "epsilon": options.epsilon if private else None,
        "delta": options.delta if private else None,
        "statement": None if result.statement is None else result.statement.to_json(),
        "guard": None if guard is None else {name: getattr(guard, name) for name in names},
        "figures_on": FITTED_ON,
        "released": None
        if sides is None
        else {"before": sides[0].to_json(), "after": sides[1].to_json()},
        "internal": None if internal is None else internal_json(internal),
        "ledger": account,
    }


def internal_json(sides: InternalSides) -> dict[str, Any]:
    """Internal figures as JSON values, with a note."""
    return {
        "note": _predictions.INTERNAL,
        "before": {name: estimate_to_json(one) for name, one in sides.before.items()},
        "after": {name: estimate_to_json(one) for name, one in sides.after.items()},
        "curves": {
            "before": sides.curves[0].to_json(),
            "after": sides.curves[1].to_json(),
        },
    }


def show_local(
    result: Recalibration,
    options: "FitOptions",
    name: str,
    internal: InternalSides | None,
    account: Mapping[str, Any] | None,
    ledger: str,
) -> None:
    """Print the map and its cost, then figures before and after."""
    console = _show.console()
    rows = [("map", _methods.map_summary(result.map))]
    if options.budget is not None:
        rows += _temperature_rows(result)
    if result.guard is not None:
        rows.append(("guard", result.guard.text()))
    rows += _cost_rows(result, options, account, ledger)
    console.print(_show.table(f"{name}: the map", ("", ""), rows))
    if result.measurements is not None:
        before, after = (side.overall for side in result.measurements)
        note = f"Released with noise, on {FITTED_ON}."
        sides = figures_of(before), figures_of(after)
        console.print(sides_table("before and after", *sides, note=note))
        _draw(curve for curve in (before.curve, after.curve) if curve is not None)
    if internal is not None:
        show_internal(internal)
    if result.measurements is None and internal is None:
        _show.print_status(
            "No figures before and after: --measure EPSILON releases private ones at an "
            "additional cost (with --curve also reliability curves), and --internal shows "
            "exact ones. The map is the same."
        )


def show_internal(sides: InternalSides) -> None:
    """Print exact figures of the records."""
    note = (
        f"{_predictions.INTERNAL}\nOn {FITTED_ON}, which is optimistic for a map with many "
        "parameters."
    )
    table = sides_table("before and after", sides.before, sides.after, note=note)
    _show.console().print(table)
    _draw(sides.curves)


def _draw(curves: Iterable[Any]) -> None:
    """Draw the reliability curves of both sides, if there are any."""
    for when, curve in zip(("before", "after"), curves, strict=False):
        typer.echo(f"\n{when}\n{draw_curve(drawable(curve), choose_characters())}")


def _temperature_rows(result: Recalibration) -> Iterator[tuple[str, str]]:
    """Rows with the fitted temperatures."""
    for name, one in result.temperatures.items():
        label = name if name == "temperature" else f"temperature, {name}"
        ends = f"{one.level:.0%} interval {one.low:.4g} to {one.high:.4g}"
        yield f"fitted {label}", f"{one.value:.5g}, {ends}"


def _cost_rows(
    result: Recalibration,
    options: "FitOptions",
    account: Mapping[str, Any] | None,
    ledger: str,
) -> Iterator[tuple[str, str]]:
    """Rows with the cost and the state of the ledger."""
    budget = options.budget
    if budget is None or account is None:
        yield "privacy", NOT_PRIVATE
        return
    parts = [f"{format_up(budget.map / MICRO, 6)} for the map"]
    parts += [f"{format_up(budget.guard / MICRO, 6)} for the guard"] if budget.guard else []
    measuring = format_up(2 * (budget.measure // 2) / MICRO, 6)
    parts += [f"{measuring} for figures"] if budget.measure else []
    delta = f", delta {format_up(options.delta)}" if options.delta else ""
    assert result.statement is not None
    pure = format_up(options.epsilon, 6)
    total = format_up(result.statement.epsilon) if options.delta else pure
    yield "cost", f"epsilon {total}{delta} in total: {', '.join(parts)}"
    paid = format_up(account["spent"]["epsilon"], 6)
    left = format_down(account["left"]["epsilon"], 6)
    yield "ledger", f"{ledger}: epsilon {paid} spent, {left} left"


def sides_table(
    title: str, before: Mapping[str, Estimate], after: Mapping[str, Estimate], *, note: str
) -> object:
    """Table of figures before and after."""
    level = next(iter(before.values())).level
    ends = f"{level:.0%} interval"
    rows = [
        (
            name,
            format_number(one.value),
            format_interval(one),
            format_number(after[name].value),
            format_interval(after[name]),
        )
        for name, one in before.items()
    ]
    heads = ("figure", "before", ends, "after", f"{ends} ")
    return _show.table(title, heads, rows, right=heads[1:], note=note)
