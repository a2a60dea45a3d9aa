"""Planning a recalibration: the method, the division of the budget, and every query.

:func:`plan_recalibration` serves :func:`veracal.calibration.recalibrate` and all modes of the
command line. It depends on public facts only, so the cost is known before a record is read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sklearn.base import clone

from veracal import _checks
from veracal.accounting import MICRO, Composed, Relation, Repeated, Unit, epsilon_for
from veracal.calibration.bins import Bins
from veracal.calibration.fitters import MapFitter
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.parametric import Form
from veracal.calibration.methods import (
    AUTO,
    METHODS,
    CalibrationMethod,
    MethodSettings,
    default_method,
    method_names,
)
from veracal.calibration.private.estimates import noisy_values
from veracal.calibration.private.guard import guard_event
from veracal.calibration.private.measurement import (
    Figure,
    MeasurementPlan,
    PrivateFigures,
    plan_measurement,
    private_figures,
)
from veracal.calibration.private.session import (
    PlannedQueries,
    PrivateFitter,
    divide_over_queries,
    micro_epsilon_of,
)
from veracal.calibration.queries.binned import AbsoluteGaps, BinnedGap, CorrectWrong
from veracal.calibration.queries.scalars import BrierGain, on_mapped_scores
from veracal.calibration.recalibration.sources import (
    BINS,
    BudgetDivision,
    Share,
    SourceProfile,
    divide_budget,
    profile_source,
)
from veracal.ledger import Item
from veracal.queries import Query, QueryRequest, Release, Source

COUNTS = CorrectWrong(Bins(1))
COMPARED: tuple[Figure, ...] = ("accuracy", "ece")
_COUNT_SHARE, _ERROR_SHARE = 1, 2  # of counts and of a calibration error
_MAX_TRIES = 4  # to keep a total at a delta; one or two suffice


@dataclass(frozen=True)
class Comparison(PlannedQueries):
    """Queries for accuracy and calibration error before and after a map.

    They are fixed before the map is known, and both sides have the same noise. Counts that the
    map cannot change, or that the fit has already queried, are not queried again. A single
    source answers the calibration error as one number; several sources answer the sums of all
    bins.

    Attributes
    ----------
    bins : Bins
    by_bins : bool
        Whether the calibration error is computed from sums by bin.
    queries : mapping of str to QueryRequest
        ``counts`` unless the fit queries them, ``before``, ``counts after`` if the map may
        change predictions, and ``after``. The last two have the identity in place of the map.
    """

    bins: Bins
    by_bins: bool
    queries: Mapping[str, QueryRequest]

    def _plan(self, unit: Unit) -> list[tuple[QueryRequest, int]]:
        return [(request, 1) for request in self.queries.values()]

    def figures(
        self, answers: Mapping[str, Release], level: float
    ) -> tuple[PrivateFigures, PrivateFigures]:
        """Figures before and after, from answers by the names of the plan."""
        plan = MeasurementPlan(COMPARED, self.bins, None, self.by_bins, self.queries)
        error = "gaps" if self.by_bins else "ece"

        def side(counts: str, errors: str) -> PrivateFigures:
            named = {"counts": answers[counts], error: answers[errors]}
            return private_figures(plan, {k: noisy_values(a) for k, a in named.items()}, level)

        before = side("counts", "before")
        if "after" not in answers:
            return before, before
        return before, side("counts after" if "counts after" in answers else "counts", "after")


def plan_comparison(
    micro_epsilon: int, *, bins: int, by_bins: bool, has_counts: bool, keeps_predictions: bool
) -> Comparison:
    """Divide a budget over the queries of a comparison.

    ``by_bins``: only sums are answered. ``has_counts``: the fit queries the counts anyway.

    Examples
    --------
    >>> plan = plan_comparison(
    ...     1_000, bins=15, by_bins=True, has_counts=False, keeps_predictions=True
    ... )
    >>> {name: query.micro_epsilon for name, query in plan.queries.items()}
    {'counts': 200, 'before': 400, 'after': 400}
    """
    edges = Bins(bins)
    error: Query = BinnedGap(edges) if by_bins else AbsoluteGaps(edges)
    shares: dict[str, tuple[Query, int]] = {}
    if not has_counts:
        shares["counts"] = COUNTS, _COUNT_SHARE
    shares["before"] = error, _ERROR_SHARE
    if not keeps_predictions:
        shares["counts after"] = on_mapped_scores(COUNTS, Identity()), _COUNT_SHARE
    shares["after"] = on_mapped_scores(error, Identity()), _ERROR_SHARE
    return Comparison(edges, by_bins, divide_over_queries(micro_epsilon, shares))


def query_comparison(
    plan: Comparison, ask: Callable[[QueryRequest, str], Release], map_: CalibrationMap
) -> dict[str, Release]:
    """Query both sides of the map in use by ``ask(query, name)``; only one for the identity."""
    answers = {}
    for name, planned in plan.queries.items():
        if name not in ("after", "counts after"):
            answers[name] = ask(planned, name)
        elif map_ != Identity():
            query = on_mapped_scores(planned.query.query, map_)  # type: ignore[attr-defined]
            answers[name] = ask(QueryRequest(query, planned.micro_epsilon), name)
    return answers


@dataclass(frozen=True, eq=False)
class RecalibrationPlan:
    """All queries of a recalibration, fixed before the first of them.

    Attributes
    ----------
    method : str
    fitter : PrivateFitter or MapFitter
        The latter reads public records directly.
    interval_covers : str
        Errors that the intervals of temperatures cover, in words.
    budget : BudgetDivision
    comparison : Comparison, MeasurementPlan or None
        Figures before and after: shared queries, or for a single curator the measurement of
        one side, which is made on each.
    delta : float
        Delta of the statement; 0 unless noise is Gaussian.
    level : float
        Confidence level.
    infers_guard : bool
        Whether the map is kept only if the answers of the fit show an improvement.
    """

    method: str
    fitter: PrivateFitter | MapFitter
    interval_covers: str
    budget: BudgetDivision
    comparison: Comparison | MeasurementPlan | None
    delta: float
    level: float
    infers_guard: bool = False

    def fit_items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        partition: str | None = None,
    ) -> list[Item]:
        """Ledger items of the fit."""
        if isinstance(self.fitter, MapFitter):
            return []
        return self.fitter.items(relation, unit, partition)

    def extra_items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        partition: str | None = None,
    ) -> list[Item]:
        """Ledger items of the guard and the figures."""
        items = []
        if self.budget.guard:
            event = guard_event(
                Identity(), micro_epsilon=self.budget.guard, relation=relation, unit=unit
            )
            items.append(Item(BrierGain.name, event, 1, partition))
        if self.comparison is not None:
            sides = 2 if isinstance(self.comparison, MeasurementPlan) else 1
            items += sides * self.comparison.items(relation, unit, partition)
        return items

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        partition: str | None = None,
    ) -> list[Item]:
        """Ledger items of everything."""
        return self.fit_items(relation, unit, partition) + self.extra_items(
            relation, unit, partition
        )

    @property
    def covers(self) -> str:
        """What the statement covers, in words."""
        parts = ["the calibration map"]
        parts += ["the guard's decision"] if self.budget.guard or self.infers_guard else []
        parts += ["figures before and after"] if self.comparison is not None else []
        return f"{', '.join(parts)}, and all answers used for them"


def plan_recalibration(
    source: Source | SourceProfile,
    method: str | PrivateFitter = AUTO,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    budget: BudgetDivision | None = None,
    guard: Share = "auto",
    measure: Share = "auto",
    delta: float | None = None,
    temperatures: tuple[float, float] | None = None,
    classes: int | None = None,
    size: int | None = None,
    reads: Literal["logits", "probabilities"] | None = None,
    bins: int | None = None,
    form: Form = "vector",
    level: float = 0.95,
    figures: Sequence[Figure] | None = None,
    read_public: bool = False,
    keep_total: bool = True,
) -> RecalibrationPlan:
    """Plan a recalibration from public facts: method, division of the budget and all queries.

    Parameters
    ----------
    source : Source or SourceProfile
        Only public facts about it are used.
    epsilon, micro_epsilon : float or int
        Total cost for each privacy unit, which ``guard`` and ``measure`` divide; or
    budget : BudgetDivision
        the cost of each part. Exactly one of the three is given; exact answers need none.
    method, guard, measure, delta, temperatures, classes, size, bins, form, level
        As in :func:`~veracal.calibration.recalibrate`.
    reads : "logits", "probabilities" or None
        Kind of the scores, if known.
    figures : sequence of {"accuracy", "ece", "brier", "curve"}, optional
        Measure these figures separately before and after, for half the cost each; only for a
        single curator. None: accuracy and calibration error, sharing counts.
    read_public : bool
        Whether a method reads public records directly if it has a public fitter. By default it
        does so only if it has no private fitter or would need a delta.
    keep_total : bool
        Whether the map gets less if, with a delta, the accountant's bound on everything exceeds
        the sum of the parts.

    Raises
    ------
    ValueError
        If the settings are invalid, contradictory or not declared by the sources.

    Examples
    --------
    >>> from veracal.calibration import SourceProfile
    >>> one = SourceProfile(1, "add-remove", Unit(), sums_only=False, exact=False)
    >>> plan = plan_recalibration(one, "temperature", epsilon=1.0)
    >>> [item.purpose for item in plan.items()], plan.budget.text()
    (['correct and wrong', 'gap', 'gap', 'gap', 'Brier gain of a map'], '0.9 for the map, 0.1
    for the guard')
    """
    profile = source if isinstance(source, SourceProfile) else profile_source(source)
    if budget is None:
        free = profile.exact and epsilon is None and micro_epsilon is None
        total = MICRO if free else micro_epsilon_of(epsilon, micro_epsilon)
    elif epsilon is not None or micro_epsilon is not None:
        raise ValueError("Expected one of epsilon, micro_epsilon and budget, got several.")
    else:
        total = budget.map
    settings = MethodSettings(
        total,
        delta=delta,
        temperatures=temperatures,
        classes=classes,
        size=size,
        bins=BINS if bins is None else bins,
        level=level,
        form=form,
        reads=reads,
        sources=profile.sources,
    )
    chosen = _choose_method(method, settings, profile)
    infers_guard = chosen.infers_guard
    infers_guard &= guard == "auto" if budget is None else not budget.guard
    if profile.enrolled is not None:
        settings = profile.enrolled.apply_to(settings, chosen, bins=bins)
        if budget is not None:
            guard, measure = budget.guard or None, budget.measure or None
        guard, measure = profile.enrolled.limit_shares(guard, measure, chosen)
    division = budget or divide_budget(
        total,
        guard,
        measure,
        profile=profile,
        size=size,
        bins=settings.bins,
        infers_guard=infers_guard,
    )
    direct = bool(chosen.requires) or chosen.private is None
    if read_public:
        direct = settings.temperatures is None
    direct &= profile.exact and not profile.sums_only and chosen.public is not None
    limit = division.total
    for _ in range(1 + _MAX_TRIES):
        settings = replace(settings, micro_epsilon=division.map)
        plan = _plan_queries(chosen, settings, division, profile, figures, direct=direct)
        if not plan.delta or not keep_total:
            break
        items = plan.items(profile.relation, profile.unit)
        event = Composed(tuple(Repeated(item.event, item.times) for item in items))
        cost = math.ceil(epsilon_for(event, plan.delta, profile.unit) * MICRO)
        if cost <= limit:
            break
        division = replace(division, map=division.map - (cost - limit))
    return replace(plan, infers_guard=infers_guard)


def _choose_method(
    method: str | PrivateFitter, settings: MethodSettings, profile: SourceProfile
) -> CalibrationMethod:
    """The record of a method by name, of the default method, or of a custom fitter."""
    if isinstance(method, PrivateFitter):
        fitter, kind = method, type(method)

        def build(settings: MethodSettings) -> PrivateFitter:
            cost = {"epsilon": None, "micro_epsilon": settings.micro_epsilon}
            priced: PrivateFitter = clone(fitter).set_params(**cost)
            return priced

        return CalibrationMethod(
            kind.__name__,
            "a custom fitter",
            build,
            keeps_predictions=kind.keeps_predictions,
            infers_guard=kind.infers_guard,
        )
    _checks.one_of(method_names(private=not profile.exact), method=method)
    if method == AUTO:
        name = default_method(settings, profile.relation, profile.unit)
        return METHODS[
            name if profile.enrolled is None else profile.enrolled.default_method(name)
        ]
    if profile.enrolled is not None:
        profile.enrolled.check_method(method)
    return METHODS[method]


def _plan_queries(
    method: CalibrationMethod,
    settings: MethodSettings,
    budget: BudgetDivision,
    profile: SourceProfile,
    figures: Sequence[Figure] | None,
    *,
    direct: bool,
) -> RecalibrationPlan:
    """The plan for one division of the budget; ``direct`` reads public records."""
    fitter: PrivateFitter | MapFitter
    if direct:
        assert method.public is not None
        fitter, delta, queries = method.public(settings), 0.0, set[str]()
    else:
        fitter = method.fitter(settings)
        delta = fitter.get_params().get("delta") or 0.0
        queries = {item.purpose for item in fitter.items()}
    comparison: Comparison | MeasurementPlan | None = None
    if budget.measure and figures is not None:
        comparison = plan_measurement(
            micro_epsilon=budget.measure // 2, bins=settings.bins, figures=figures
        )
    elif budget.measure:
        comparison = plan_comparison(
            budget.measure,
            bins=settings.bins,
            by_bins=profile.sums_only,
            has_counts=COUNTS.name in queries,
            keeps_predictions=method.keeps_predictions,
        )
    return RecalibrationPlan(
        method.name,
        fitter,
        method.interval_covers,
        budget,
        comparison,
        delta,
        settings.level,
    )
