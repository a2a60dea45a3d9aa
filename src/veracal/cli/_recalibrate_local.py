"""A map fitted to a file of predictions: charged or not private, with figures of both sides.

A repair as tables for people and as facts for programs.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import typer

from veracal.accounting import Budget, Composed, Repeated, Statement, rounded_down, rounded_up
from veracal.calibration import (
    BrierGain,
    CalibrationMap,
    Figure,
    GuardResult,
    Identity,
    PrivateFitter,
    PrivateMeasurement,
    ReliabilityCurve,
    Settings,
    guard_event,
    guard_map,
    measure,
    measure_private,
    plan_measurement,
)
from veracal.cli import _methods, _predictions
from veracal.cli import _output as _places
from veracal.cli import _output as _show
from veracal.cli import _payment as _paying
from veracal.cli._figures import drawn, interval, marks, number, plain
from veracal.cli._measurement import figures_of, replicates_for
from veracal.data import Estimate, Scores
from veracal.ledger import Item, Ledger
from veracal.queries import Curator
from veracal.report import drawable

RUN, FIGURES = "recalibration", "figures of a recalibration"
FITTED_ON = "the records that the map was fitted to"
_FIGURES = ("accuracy", "nll", "brier", "ece", "smooth_ece", "confidence_gap")
_MICRO = 1_000_000


@dataclass(frozen=True)
class LocalBudget:
    """What a private repair may cost, in millionths of epsilon.

    Attributes
    ----------
    fit, guard, measure : int
        For the map, for asking whether it helps, and for figures before and after; the last
        two may be 0.
    delta : float
        For methods with Gaussian noise; else 0.
    curve : bool
        Whether figures before and after include reliability curves.
    """

    fit: int
    guard: int
    measure: int
    delta: float
    curve: bool = False

    @property
    def figures(self) -> tuple[Figure, ...]:
        """What is measured before and after."""
        return ("accuracy", "ece", "brier", *(("curve",) if self.curve else ()))

    @property
    def epsilon(self) -> float:
        """All of it."""
        return (self.fit + self.guard + 2 * (self.measure // 2)) / _MICRO


@dataclass(frozen=True)
class Sides:
    """Figures before and after, released or internal.

    Attributes
    ----------
    before, after : PrivateMeasurement or mapping of str to Estimate
    curves : pair of ReliabilityCurve, or None
        Of internal figures.
    """

    before: Any
    after: Any
    curves: tuple[ReliabilityCurve, ReliabilityCurve] | None = None


@dataclass(frozen=True)
class Repair:
    """A map, what it cost and what it does.

    Attributes
    ----------
    map : Map
        The one to use: the identity, where a guard did not keep what was fitted.
    method : str
    statement : Statement or None
        Of everything that was released; None where the map is not private.
    spending : Spending or None
    temperatures : mapping of str to Estimate
        With intervals, where private temperatures were fitted.
    guarded : Guarded or None
    released, internal : Sides or None
    account : mapping or None
        The ledger and what is left in it.
    """

    map: CalibrationMap
    method: str
    statement: Statement | None = None
    spending: LocalBudget | None = None
    temperatures: Mapping[str, Estimate] = field(default_factory=dict)
    guarded: GuardResult | None = None
    released: Sides | None = None
    internal: Sides | None = None
    account: Mapping[str, Any] | None = None

    @property
    def private(self) -> bool:
        """Whether the map may be shown."""
        return self.statement is not None


def repaired_openly(
    scores: Scores, method: str, settings: Settings, replicates: int | None
) -> Repair:
    """Fit a map that is not private."""
    with _show.progress_bar("Fitting the map"):
        found = _methods.open_map(method, scores, settings)
        sides = internal_sides(scores, found, settings.bins, replicates)
        return Repair(found, method, internal=sides)


@dataclass(frozen=True)
class RunIds:
    """What a ledger knows the runs of a recalibration by: options as they were typed.

    Nothing of it is read from the records, so that a run can be refused before they are.

    Attributes
    ----------
    fit : mapping
        Everything that tells this map from another.
    extras : mapping
        What is asked on top of the map.
    delta : float
        Of the run.
    """

    fit: Mapping[str, Any]
    extras: Mapping[str, Any]
    delta: float

    def request(self, name: str) -> str:
        """Id of a run."""
        return f"{self.prefix(name)}{_digest([self.fit, self.extras])}"

    def prefix(self, name: str) -> str:
        """What the ids of all runs with this map begin with."""
        return f"{name} {_digest(self.fit)}: "

    def settings(self, name: str) -> dict[str, Any]:
        """Arguments of :meth:`veracal.ledger.Ledger.begin_run`, but for the items."""
        body = json.dumps([self.fit, self.extras], sort_keys=True, default=repr).encode()
        return {
            "name": name,
            "request": self.request(name),
            "body": body,
            "delta": self.delta,
        }


def _digest(told: object) -> str:
    """Hash of settings, always of the same bytes."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()


def is_run(place: Path, spending: LocalBudget) -> bool:
    """Whether a ledger that exists is charged a recalibration as one run.

    A delta is spent by the run as a whole. Pure answers are charged one by one, and those of a
    plan are paid for already.
    """
    return bool(spending.delta) and Ledger(place).opening.rule.kind == "open"


def require_recalibration(
    place: Path,
    fitter: PrivateFitter,
    spending: LocalBudget,
    ids: RunIds,
    *,
    part: str | None,
    bins: int,
) -> None:
    """Refuse what a ledger cannot pay, before a record is read.

    Parameters
    ----------
    place : path
        Of the ledger. If there is none, nothing is refused.
    fitter : PrivateFitter
        For any number of classes: the noise is made for the same cost.
    spending, ids, part, bins
        Of the recalibration.

    Raises
    ------
    BudgetError
        If it does not fit into what is left.
    AnswerError
        If the run was abandoned.
    """
    if not _places.is_there(place):
        return
    ledger = Ledger(place)
    fit, extras = _items(fitter, spending, ledger.budget, part, bins)
    if is_run(place, spending):
        _, name, items = _to_begin(ledger, fit, extras, ids)
        if items:
            known = [run for run in ledger.runs() if run.request == ids.request(name)]
            ledger.require_run(known[0].items if known else items, **ids.settings(name))
        return
    items = [*fit, *extras]
    charged = {entry.purpose for entry in ledger.entries() if entry.event is not None}
    asked_before = any(item.purpose in charged for item in items)  # then it may cost nothing
    if not asked_before and ledger.opening.rule.kind != "plan":
        whole = Composed(tuple(Repeated(item.event, item.times) for item in items))
        ledger.require(whole, items[0].purpose, part=part)


def _to_begin(
    ledger: Ledger, fit: Sequence[Item], extras: Sequence[Item], ids: RunIds
) -> tuple[int | None, str, list[Item]]:
    """The run that has paid for the map, if one has, and name and items of the run to begin.

    The whole recalibration is one run. On top of a map that was paid for before, only what is
    new is charged; there are no items if nothing is.
    """
    for run in ledger.runs():
        if run.request.startswith(ids.prefix(RUN)) and not run.abandoned:
            same = run.request == ids.request(RUN)
            return run.number, FIGURES, [] if same else list(extras)
    return None, RUN, [*fit, *extras]


def _begin(
    ledger: Ledger, fit: Sequence[Item], extras: Sequence[Item], ids: RunIds
) -> tuple[Ledger, Ledger]:
    """Views of the runs that pay for the map, and for what is asked on top of it."""
    paid, name, items = _to_begin(ledger, fit, extras, ids)
    begun = ledger.begin_run(items, **ids.settings(name)) if items else None
    view = begun if paid is None else Ledger(ledger.path, paid)
    assert view is not None
    return view, begun or view


def repaired(
    scores: Scores,
    fitter: PrivateFitter,
    method: str,
    place: Path,
    spending: LocalBudget,
    ids: RunIds,
    *,
    records: Path,
    part: str | None,
    version: str,
    bins: int,
    internal: bool,
    replicates: int | None,
) -> Repair:
    """Fit a private map: every question charged before it is answered.

    All that will be asked is checked against the ledger before the first question; with a
    delta all of it is charged as one run.
    """
    there = _places.is_there(place)
    budget = Ledger(place).budget if there else Budget(spending.epsilon)
    fit, extras = _items(fitter, spending, budget, part, bins)
    items = [*fit, *extras]
    holder = _paying.paying(
        place,
        scores,
        items,
        epsilon=spending.epsilon,
        delta=spending.delta,
        part=part,
        version=version,
        records=records,
    )
    # Of the fit alone: whoever asks for a guard or for figures later gets the same map.
    request = _paying.fingerprint(holder, scores, {"method": method, **fitter.get_params()})
    beside = holder
    if is_run(place, spending):
        paid, more = _begin(holder.ledger, fit, extras, ids)
        holder = Curator(scores, paid, part=part, version=version)
        beside = Curator(scores, more, part=part, version=version)
    else:
        holder.require(holder.unpaid(items, request=request))
    covers = ["the map, and every answer that led to it"]
    covers += ["whether it was kept, and the noisy gain"] if spending.guard else []
    covers += ["figures before and after"] if spending.measure else []
    with _show.progress_bar("Fitting the map"):
        fitter.fit(holder, request=f"{request}: fit")
        kept, guarded = fitter.map_, None
        if spending.guard:
            guarded = guard_map(
                fitter.map_,
                beside,
                micro_epsilon=spending.guard,
                records=FITTED_ON,
                request=f"{request}: guard for {spending.guard}",
            )
            kept = guarded.map
        return Repair(
            kept,
            method,
            _paying.stated(items, spending.delta, holder.unit, *covers, ledger=holder.ledger),
            spending,
            _methods.temperatures(fitter),
            guarded,
            _released_sides(beside, scores, kept, spending, request, bins),
            internal_sides(scores, kept, bins, replicates) if internal else None,
            _paying.left(holder.ledger, part),
        )


def _items(
    fitter: PrivateFitter,
    spending: LocalBudget,
    budget: Budget,
    part: str | None,
    bins: int,
) -> tuple[list[Item], list[Item]]:
    """What the map is charged and what is asked on top, for the ledger's relation and unit."""
    relation, unit = budget.relation, budget.unit
    items: list[Item] = []
    if spending.guard:
        event = guard_event(
            Identity(), micro_epsilon=spending.guard, relation=relation, unit=unit
        )
        items.append(Item(BrierGain.name, event, 1, part))
    if spending.measure:
        plan = plan_measurement(
            micro_epsilon=spending.measure // 2, bins=bins, figures=spending.figures
        )
        items += 2 * plan.items(relation, unit, part)
    return fitter.items(relation, unit, part), items


def _released_sides(
    holder: Curator,
    scores: Scores,
    map_: CalibrationMap,
    spending: LocalBudget,
    request: str,
    bins: int,
) -> Sides | None:
    """Figures before and after with noise, each for half of what measuring may cost."""
    if not spending.measure:
        return None
    mapped = Curator(
        map_.transform(scores),
        holder.ledger,
        part=holder.part,
        version=f"{holder.version}, mapped",  # other records than those before
    )
    half = spending.measure // 2
    how = f"for {half}, {bins} bins" + (", curve" if spending.curve else "")

    def side(source: Curator, when: str) -> PrivateMeasurement:
        return measure_private(
            source,
            micro_epsilon=half,
            bins=bins,
            figures=spending.figures,
            request=f"{request}: {when}, {how}",
        )

    return Sides(side(holder, "before"), side(mapped, map_.kind))


def internal_sides(
    scores: Scores, map_: CalibrationMap, bins: int, replicates: int | None
) -> Sides:
    """Figures before and after, of the records as they are."""
    turns = replicates_for(scores) if replicates is None else replicates
    before, after = (
        measure(
            side,
            figures=_FIGURES,
            bins=bins,
            replicates=turns,
            rng=np.random.default_rng(0),
        )
        for side in (scores, map_.transform(scores))
    )
    return Sides(before.figures, after.figures, (before.curve, after.curve))


NOT_PRIVATE = "NOT private: the map was fitted to the records as they are"


def facts(made: Repair) -> dict[str, Any]:
    """Everything as what JSON can hold."""
    spent = made.spending
    return {
        "method": made.method,
        "private": made.private,
        "map": made.map.to_json(),
        "temperatures": {name: plain(found) for name, found in made.temperatures.items()},
        "epsilon": None if spent is None else spent.epsilon,
        "delta": None if spent is None else spent.delta,
        "statement": None if made.statement is None else made.statement.to_json(),
        "guard": _guard(made),
        "figures_on": FITTED_ON,
        "released": None
        if made.released is None
        else {
            "before": made.released.before.to_json(),
            "after": made.released.after.to_json(),
        },
        "internal": None if made.internal is None else internal_facts(made.internal),
        "ledger": made.account,
    }


def _guard(made: Repair) -> dict[str, Any] | None:
    """What the guard said."""
    if made.guarded is None:
        return None
    found = made.guarded
    names = ("kept", "gain", "threshold", "beta", "records")
    return {name: getattr(found, name) for name in names}


def internal_facts(sides: Sides) -> dict[str, Any]:
    """Internal figures, under a note that they are."""
    assert sides.curves is not None
    return {
        "note": _predictions.INTERNAL,
        "before": {name: plain(found) for name, found in sides.before.items()},
        "after": {name: plain(found) for name, found in sides.after.items()},
        "curves": {
            "before": sides.curves[0].to_json(),
            "after": sides.curves[1].to_json(),
        },
    }


def show(made: Repair, name: str, ledger: str) -> None:
    """Print the map and what it cost, then figures of both sides."""
    console = _show.console()
    rows = list(_lines(made, ledger))
    console.print(_show.table(f"{name}: the map", ("", ""), rows))
    if made.released is not None:
        sides = (
            figures_of(made.released.before.overall),
            figures_of(made.released.after.overall),
        )
        note = f"Released with noise, on {FITTED_ON}."
        console.print(sides_table("before and after", *sides, note=note))
        released = made.released.before.overall.curve, made.released.after.overall.curve
        _draw(curve for curve in released if curve is not None)
    if made.internal is not None:
        show_internal(made.internal)
    if made.released is None and made.internal is None:
        _show.status(
            "No figures before and after: --measure EPSILON releases private ones, for so much "
            "more (with --curve, drawings, too), and --internal shows plain ones. The map is "
            "the same."
        )


def show_internal(found: Sides) -> None:
    """Print figures of the records as they are."""
    note = f"{_predictions.INTERNAL}\nOn {FITTED_ON}, which flatters a map with many numbers."
    table = sides_table("before and after", found.before, found.after, note=note)
    _show.console().print(table)
    _draw(found.curves or ())


def _draw(curves: Iterable[Any]) -> None:
    """Draw the curves of both sides, if there are any."""
    for when, curve in zip(("before", "after"), curves, strict=False):
        typer.echo(f"\n{when}\n{drawn(drawable(curve), marks())}")


def _lines(made: Repair, ledger: str) -> Iterator[tuple[str, str]]:
    """What there is to say of a map."""
    yield "map", _methods.words(made.map)
    for name, found in made.temperatures.items():
        ends = f"{found.level:.0%} interval {found.low:.4g} to {found.high:.4g}"
        which = name if name == "temperature" else f"temperature, {name}"
        yield f"{which} found", f"{found.value:.5g}, {ends}"
    if made.guarded is not None:
        yield "guard", made.guarded.text()
    if made.spending is None or made.account is None:
        yield "privacy", NOT_PRIVATE
        return
    spent, account = made.spending, made.account
    parts = [f"{rounded_up(spent.fit / 1e6, 6)} for the map"]
    parts += [f"{rounded_up(spent.guard / 1e6, 6)} for the guard"] if spent.guard else []
    measuring = rounded_up(2 * (spent.measure // 2) / 1e6, 6)
    parts += [f"{measuring} for figures"] if spent.measure else []
    delta = f", delta {rounded_up(spent.delta)}" if spent.delta else ""
    assert made.statement is not None
    pure = rounded_up(spent.epsilon, 6)
    total = rounded_up(made.statement.epsilon) if spent.delta else pure
    yield "cost", f"epsilon {total}{delta} in all: {', '.join(parts)}"
    paid = rounded_up(account["spent"]["epsilon"], 6)
    left = rounded_down(account["left"]["epsilon"], 6)
    yield "ledger", f"{ledger}: epsilon {paid} spent, {left} left"


def sides_table(
    title: str, before: Mapping[str, Estimate], after: Mapping[str, Estimate], *, note: str
) -> object:
    """Figures side by side."""
    level = next(iter(before.values())).level
    ends = f"{level:.0%} interval"
    rows = [
        (
            name,
            number(one.value),
            interval(one),
            number(after[name].value),
            interval(after[name]),
        )
        for name, one in before.items()
    ]
    heads = ("figure", "before", ends, "after", f"{ends} ")
    return _show.table(title, heads, rows, right=heads[1:], note=note)
