"""Running a recalibration: the fit, the guard and the figures of a plan.

:func:`recalibrate` is the one call for scores with a ledger, a source, or several sources. The
modes of the command line call :func:`~veracal.calibration.plan_recalibration` and
:func:`run_recalibration` directly.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sklearn.base import clone

from veracal import _checks
from veracal.calibration.fitters import MapFitter
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.parametric import Form
from veracal.calibration.methods import AUTO, NOISE, NOISE_AND_SAMPLING, NONE
from veracal.calibration.private.guard import (
    GuardResult,
    InferredGuardResult,
    guard_map,
    infer_guard,
)
from veracal.calibration.private.measurement import PrivateMeasurement, measure_planned
from veracal.calibration.private.session import (
    Cohort,
    PrivateFitter,
    combined_statement,
    dropouts,
    find_unaffordable,
    ledger_total_of,
    restrict_release,
    sub_request,
    unit_of,
)
from veracal.calibration.recalibration.budget import BudgetDivision, Share
from veracal.calibration.recalibration.plan import (
    COUNTS,
    RecalibrationPlan,
    SideMeasurements,
    plan_recalibration,
    query_comparison,
)
from veracal.calibration.recalibration.result import Recalibration
from veracal.calibration.recalibration.sources import profile_source, source_of
from veracal.data import Estimate, Scores
from veracal.ledger import Ledger
from veracal.queries import MultiSource, Public, QueryRequest, Release, Source

FITTED_ON = "the records that the map was fitted to"
_COVERS = {"noise and sampling": NOISE_AND_SAMPLING, "noise": NOISE}
_TEMPERATURES = {"temperature": "temperature_", "unsure": "unsure_", "sure": "sure_"}


def run_recalibration(
    source: Source,
    plan: RecalibrationPlan,
    *,
    request: str | None = None,
    at_sources: int = 1,
    extras: Source | None = None,
    mapped: Callable[[CalibrationMap], Source] | None = None,
) -> Recalibration:
    """Make all queries of a plan.

    Parameters
    ----------
    source : Source
    plan : RecalibrationPlan
    request : str, optional
        Request id of the whole, for fresh answers. Without one every query is its own id.
    at_sources : int
        Largest number of sources at which one unit has records.
    extras : Source, optional
        Source of the same records that is charged for the guard and the figures. Both sources
        must have been charged for their part of the plan already.
    mapped : callable, optional
        From a map to a source of the mapped scores, for a plan that measures each side
        separately.

    Guarantees
    ----------
    Unless ``extras`` is given, it is checked that the ledgers can pay for the whole plan before
    the first query.
    """
    unaffordable = {} if extras is not None else find_unaffordable(source, plan.items, request)
    cohort = Cohort(source, unaffordable) if isinstance(source, MultiSource) else source
    charged = cohort if extras is None else extras

    # The calibration map.
    map_: CalibrationMap
    temperatures, interval_covers, improved = dict[str, Estimate](), "", None
    releases: tuple[Release, ...] = ()
    if isinstance(plan.fitter, MapFitter):
        assert isinstance(source, Public)
        assert isinstance(source.records, Scores)
        map_ = plan.fitter.fit(source.records).map_
    else:
        fitter: Any = clone(plan.fitter)
        fitter.fit(cohort, request=sub_request(request, "fit"))
        map_, releases = fitter.map_, fitter.releases_
        temperatures = fitted_temperatures(fitter)
        improved = getattr(fitter, "improved_", None)
        covered = getattr(fitter, "interval_covers_", "")
        interval_covers = _COVERS.get(covered, plan.interval_covers)

    # The guard.
    guard: GuardResult | InferredGuardResult | None = None
    if plan.infers_guard and improved is not None:
        guard = infer_guard(map_, improved)
    elif plan.budget.guard:
        guard = guard_map(
            map_,
            charged,
            micro_epsilon=plan.budget.guard,
            records=FITTED_ON,
            request=sub_request(request, f"guard for {plan.budget.guard}"),
        )
        releases += (guard.release,)
    if guard is not None:
        map_ = guard.map

    # Figures before and after.
    before = after = measurements = None
    unused: tuple[QueryRequest, ...] = ()
    if isinstance(plan.comparison, SideMeasurements):
        assert mapped is not None
        sides = ("before", charged), (map_.kind, mapped(map_))
        measurements = _measure_sides(sides, plan, request)
        before, after = (side.overall for side in measurements)
        releases += tuple(r for side in measurements for r in side.releases.values())
    elif plan.comparison is not None:

        def ask(query: QueryRequest, name: str) -> Release:
            return query.ask(cohort, sub_request(request, f"figures: {name}"))

        answers = query_comparison(plan.comparison, ask, map_)
        counts = [release for release in releases if release.query == COUNTS.name]
        known = {"counts": counts[0], **answers} if counts else answers
        same = {name: restrict_release(cohort, release) for name, release in known.items()}
        before, after = plan.comparison.figures(same, plan.level)
        releases += tuple(answers.values())
        unused = tuple(q for name, q in plan.comparison.queries.items() if name not in answers)

    statement = None
    if releases:
        statement = combined_statement(
            releases,
            unit_of(source),
            covers=plan.covers(),
            delta=plan.delta,
            at_sources=at_sources,
            unused=unused,
            ledger_total=ledger_total_of(source),
        )
    return Recalibration(
        method=plan.method,
        map=map_,
        temperatures=temperatures,
        interval_covers=interval_covers,
        guard=guard,
        before=before,
        after=after,
        budget=plan.budget,
        statement=statement,
        releases=releases,
        dropouts=dropouts(cohort),
        private=bool(releases) and all(release.private for release in releases),
        measurements=measurements,
    )


def _measure_sides(
    sides: tuple[tuple[str, Source], tuple[str, Source]],
    plan: RecalibrationPlan,
    request: str | None,
) -> tuple[PrivateMeasurement, PrivateMeasurement]:
    """Full measurements of the scores before and after a map, by names for the request ids."""
    assert isinstance(plan.comparison, SideMeasurements)
    measurement = plan.comparison.plan
    cost, bins = measurement.micro_epsilon, measurement.bins.count
    settings = f"for {cost}, {bins} bins, {', '.join(measurement.figures)}"
    before, after = (
        measure_planned(
            source,
            measurement,
            level=plan.level,
            request=sub_request(request, f"{name}, {settings}"),
        )
        for name, source in sides
    )
    return before, after


def fitted_temperatures(fitter: PrivateFitter) -> dict[str, Estimate]:
    """Fitted temperatures with intervals; empty for fitters of other maps."""
    return {
        name: getattr(fitter, attribute)
        for name, attribute in _TEMPERATURES.items()
        if hasattr(fitter, attribute)
    }


def recalibrate(
    source: Source | Iterable[Source] | Scores,
    method: str | PrivateFitter = AUTO,
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    delta: float | None = None,
    temperatures: tuple[float, float] | None = None,
    classes: int | None = None,
    size: int | None = None,
    bins: int | None = None,
    form: Form = "vector",
    guard: Share = "auto",
    measure: Share = "auto",
    level: float = 0.95,
    at_sources: int = 1,
    min_sources: int | None = None,
    max_records: int | None = None,
    ledger: Ledger | str | Path | None = None,
    private: bool = True,
    request: str | None = None,
) -> Recalibration:
    r"""Fit a calibration map to noisy answers of a source, of several, or of scores.

    The call is the same for scores with a ledger, for one source and for many. Three parts
    share the budget: the map; a guard, which keeps the map only if it improves calibration
    significantly; and accuracy and calibration error before and after.

    Parameters
    ----------
    source : Source, iterable of Source, or Scores
        Several sources are pooled. Scores need a ledger, or ``private=False``.
    method : str or PrivateFitter
        One of :data:`veracal.calibration.METHODS`, ``"auto"`` (the best according to public
        facts) or ``"none"``, which makes no query. A custom fitter keeps its settings except
        for its cost.
    epsilon, micro_epsilon : float or int
        Total cost for each privacy unit at each source; one of the two. Exact answers cost
        nothing and need neither.
    delta : float, optional
        For methods with Gaussian noise.
    temperatures : pair of float, optional
        Public range to search; by default that of the method.
    classes, size : int, optional
        Declared number of classes, and of records at all sources together.
    bins : int, optional
        Number of bins of binning and of the calibration error; 15, or as remote sources have
        declared.
    form : {"scalar", "vector", "matrix"}
        Shape of the weights of a Platt map.
    guard : float, "auto" or None
        Share of the budget for the guard's query. ``"auto"``: none if the answers of the fit
        tell whether the map improves calibration
        (:class:`veracal.calibration.InferredGuardResult`); otherwise a tenth, if it can be
        significant under the noise
        (:func:`veracal.calibration.recalibration.budget.guard_share`).
    measure : float, "auto" or None
        Share of the budget for figures. ``"auto"``: at most a quarter, and only if the figures
        are informative under the noise
        (:func:`veracal.calibration.recalibration.budget.measure_share`).
    level : float
        Confidence level of all intervals.
    at_sources : int
        Largest number of sources at which one individual has records; the statement multiplies
        the cost.
    min_sources, max_records : int, optional
        Of several sources: how many must answer, and a bound on the number of records of each
        (by default the declared size). Without the bound a source with wrong answers can change
        the map arbitrarily.
    ledger : Ledger or path, optional
        Ledger to charge for scores.
    private : bool
        False: the scores are public, answers are exact, and the result is marked as not
        private. Methods without a private fitter require this.
    request : str, optional
        Request id of the whole, for fresh answers. Without one every query is its own id.

    Returns
    -------
    Recalibration

    Raises
    ------
    ValueError
        If the settings are invalid.
    BudgetError
        If a source cannot pay for everything; nothing was charged.

    Guarantees
    ----------
    Everything learned from private records passes :meth:`Source.answer`, which charges before
    it reads. The total cost is known, and checked against the ledgers of all sources, before
    the first query. The statement composes *all* answers, source by source. The guarantee holds
    for each source, and over all of them for individuals with records at no more than
    ``at_sources``. If a source fails midway, its error is raised; with the same arguments a
    second call repeats the answers that were charged and continues.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> overconfident = Scores.from_logits(3 * np.log(p / (1 - p)), labels)
    >>> result = recalibrate(overconfident, "temperature", private=False)
    >>> round(result.temperature.value), result.private, result.guard.kept
    (3, False, True)
    """
    if max_records is None and not isinstance(source, Source | Scores):
        max_records = size  # no source has more records than all sources together
    one = source_of(
        source, ledger=ledger, private=private, min_sources=min_sources, max_records=max_records
    )
    _checks.whole(at_sources=at_sources)
    if method == NONE:
        return _unchanged(one)
    plan = plan_recalibration(
        one,
        method,
        epsilon=epsilon,
        micro_epsilon=micro_epsilon,
        guard=guard,
        measure=measure,
        delta=delta,
        temperatures=temperatures,
        classes=classes,
        size=size,
        bins=bins,
        form=form,
        level=level,
    )
    return run_recalibration(one, plan, request=request, at_sources=at_sources)


def _unchanged(source: Source) -> Recalibration:
    """The result of the method "none": no query and no cost."""
    return Recalibration(
        method=NONE,
        map=Identity(),
        temperatures={},
        interval_covers="",
        guard=None,
        before=None,
        after=None,
        budget=BudgetDivision(0),
        statement=None,
        releases=(),
        dropouts=(None,) * profile_source(source).sources,
        private=True,
    )
