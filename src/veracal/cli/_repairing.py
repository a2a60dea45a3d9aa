"""A map fitted to a file of predictions: charged or not private, with figures of both sides."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from veracal.calibration.curves import ReliabilityCurve
from veracal.calibration.maps import Identity, Map
from veracal.calibration.measuring import measure
from veracal.calibration.methods import Settings
from veracal.calibration.private import (
    Guarded,
    PrivateMeasurement,
    guard_event,
    measure_private,
    never_worse,
    plan_measurement,
)
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.planning import Figure
from veracal.calibration.queries import BrierGain
from veracal.cli import _methods, _paying, _places, _show
from veracal.cli._internal import replicates_for
from veracal.data import Estimate, Scores
from veracal.privacy import Budget, Composed, Holder, Item, Ledger, Repeated, Statement

RUN, FIGURES = "recalibration", "figures of a recalibration"
FITTED_ON = "the records that the map was fitted to"
_FIGURES = ("accuracy", "nll", "brier", "ece", "smooth_ece", "confidence_gap")
_MICRO = 1_000_000


@dataclass(frozen=True)
class Spending:
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

    map: Map
    method: str
    statement: Statement | None = None
    spending: Spending | None = None
    temperatures: Mapping[str, Estimate] = field(default_factory=dict)
    guarded: Guarded | None = None
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
        """Arguments of :meth:`veracal.privacy.Ledger.begin_run`, but for the items."""
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


def is_run(place: Path, spending: Spending) -> bool:
    """Whether a ledger that exists is charged a recalibration as one run.

    A delta is spent by the run as a whole. Pure answers are charged one by one, and those of a
    plan are paid for already.
    """
    return bool(spending.delta) and Ledger(place).opening.rule.kind == "open"


def require_recalibration(
    place: Path,
    fitter: PrivateFitter,
    spending: Spending,
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
    spending: Spending,
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
        holder = Holder(scores, paid, part=part, version=version)
        beside = Holder(scores, more, part=part, version=version)
    else:
        holder.require(holder.unpaid(items, request=request))
    covers = ["the map, and every answer that led to it"]
    covers += ["whether it was kept, and the noisy gain"] if spending.guard else []
    covers += ["figures before and after"] if spending.measure else []
    with _show.progress_bar("Fitting the map"):
        fitter.fit(holder, request=f"{request}: fit")
        kept, guarded = fitter.map_, None
        if spending.guard:
            guarded = never_worse(
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
    spending: Spending,
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
    holder: Holder, scores: Scores, map_: Map, spending: Spending, request: str, bins: int
) -> Sides | None:
    """Figures before and after with noise, each for half of what measuring may cost."""
    if not spending.measure:
        return None
    mapped = Holder(
        map_.transform(scores),
        holder.ledger,
        part=holder.part,
        version=f"{holder.version}, mapped",  # other records than those before
    )
    half = spending.measure // 2
    how = f"for {half}, {bins} bins" + (", curve" if spending.curve else "")

    def side(source: Holder, when: str) -> PrivateMeasurement:
        return measure_private(
            source,
            micro_epsilon=half,
            bins=bins,
            figures=spending.figures,
            request=f"{request}: {when}, {how}",
        )

    return Sides(side(holder, "before"), side(mapped, map_.kind))


def internal_sides(scores: Scores, map_: Map, bins: int, replicates: int | None) -> Sides:
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
