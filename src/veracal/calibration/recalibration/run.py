"""Running a recalibration: the fit, the guard and the figures of a plan, and their result.

:func:`recalibrate` is the one call for scores with a ledger, a source, or several sources. The
modes of the command line call :func:`~veracal.calibration.plan_recalibration` and
:func:`run_recalibration` directly.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sklearn.base import clone

from veracal import _checks
from veracal.accounting import MICRO, Statement, format_up
from veracal.calibration.fitters import MapFitter
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.parametric import (
    Form,
    Temperature,
    TwoTemperatures,
    UniformMixing,
)
from veracal.calibration.methods import AUTO, NOISE, NOISE_AND_SAMPLING, NONE
from veracal.calibration.private.guard import (
    GuardResult,
    InferredGuardResult,
    guard_map,
    infer_guard,
)
from veracal.calibration.private.measurement import (
    MeasurementPlan,
    PrivateFigures,
    PrivateMeasurement,
    measure_planned,
)
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
from veracal.calibration.recalibration.plan import (
    COUNTS,
    RecalibrationPlan,
    plan_recalibration,
    query_comparison,
)
from veracal.calibration.recalibration.sources import (
    BudgetDivision,
    Share,
    profile_source,
    source_of,
)
from veracal.data import Estimate, Scores
from veracal.ledger import Ledger
from veracal.queries import MultiSource, Public, QueryRequest, Release, Source

FITTED_ON = "the records that the map was fitted to"
_COVERS = {"noise and sampling": NOISE_AND_SAMPLING, "noise": NOISE}
_TEMPERATURES = {
    "temperature": "Temperature",
    "unsure": "Temperature at low confidence",
    "sure": "Temperature at high confidence",
}
_NO_COST = BudgetDivision(0)
_MAX_NAMED = 5  # sources that dropped out and are listed one by one


@dataclass(frozen=True, eq=False, kw_only=True)
class Recalibration:
    """A calibration map fitted to noisy answers, with everything that was released for it.

    Attributes
    ----------
    method : str
        The method; never ``"auto"``, but the method that it selected.
    map : CalibrationMap
        The map to use: the identity if the guard rejected the fitted map.
    temperatures : mapping of str to Estimate
        Fitted temperatures with intervals, whether or not the map was kept: ``temperature``, or
        ``unsure`` and ``sure``; empty for other maps.
    interval_covers : str
        Errors that these intervals cover, in words.
    guard : GuardResult, InferredGuardResult or None
        Decision of the guard; None without a guard.
    before, after : PrivateFigures or None
        Accuracy and calibration error on the same records; None if not measured.
    budget : BudgetDivision
        Division of the budget.
    statement : Statement or None
        Privacy guarantee of all answers together; None without private answers.
    releases : tuple of Release
        All answers in order.
    dropouts : tuple of (str or None)
        For each source the reason why it dropped out; None if it answered every query.
    private : bool
        Whether the result may be published: it depends on private answers only.
    measurements : pair of PrivateMeasurement, or None
        Both sides in full, if each was measured separately.
    """

    method: str
    map: CalibrationMap
    dropouts: tuple[str | None, ...]
    private: bool
    temperatures: Mapping[str, Estimate] = field(default_factory=dict)
    interval_covers: str = ""
    guard: GuardResult | InferredGuardResult | None = None
    before: PrivateFigures | None = None
    after: PrivateFigures | None = None
    budget: BudgetDivision = _NO_COST
    statement: Statement | None = None
    releases: tuple[Release, ...] = ()
    measurements: tuple[PrivateMeasurement, PrivateMeasurement] | None = None

    @property
    def temperature(self) -> Estimate | None:
        """The fitted temperature, if the method fits a single one."""
        return self.temperatures.get("temperature")

    @property
    def n_sources(self) -> int:
        """Number of sources."""
        return len(self.dropouts)

    @property
    def n_answered(self) -> int:
        """Number of sources that answered every query."""
        return self.dropouts.count(None)

    def transform(self, scores: Scores) -> Scores:
        """Map any scores; they are only read."""
        return self.map.transform(scores)

    def text(self) -> str:
        """The queries, their cost and the result in words, for decision makers."""
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """All attributes except the releases as JSON values."""

        def plain(record: Any) -> Any:
            return None if record is None else record.to_json()

        return {
            "method": self.method,
            "private": self.private,
            "map": self.map.to_json(),
            "temperatures": {name: asdict(one) for name, one in self.temperatures.items()},
            "guard": plain(self.guard),
            "before": plain(self.before),
            "after": plain(self.after),
            "epsilon": {name: micro / MICRO for name, micro in asdict(self.budget).items()},
            "statement": plain(self.statement),
            "sources": {
                "number": self.n_sources,
                "answered": self.n_answered,
                "dropouts": list(self.dropouts),
            },
            "queries": [release.query for release in self.releases],
        }


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
        for name in _TEMPERATURES:
            if hasattr(fitter, f"{name}_"):
                temperatures[name] = getattr(fitter, f"{name}_")
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
    if isinstance(plan.comparison, MeasurementPlan):
        assert mapped is not None
        cost, bins = plan.comparison.micro_epsilon, plan.comparison.bins.count
        settings = f"for {cost}, {bins} bins, {', '.join(plan.comparison.figures)}"
        first, second = (
            measure_planned(
                side,
                plan.comparison,
                level=plan.level,
                request=sub_request(request, f"{name}, {settings}"),
            )
            for name, side in (("before", charged), (map_.kind, mapped(map_)))
        )
        measurements, before, after = (first, second), first.overall, second.overall
        releases += (*first.releases.values(), *second.releases.values())
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
            covers=plan.covers,
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
        (:func:`veracal.calibration.recalibration.sources.guard_share`).
    measure : float, "auto" or None
        Share of the budget for figures. ``"auto"``: at most a quarter, and only if the figures
        are informative under the noise
        (:func:`veracal.calibration.recalibration.sources.measure_share`).
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
    >>> overconfident = Scores.from_probabilities([0.9] * 4_000, [1, 1, 1, 0] * 1_000)
    >>> result = recalibrate(overconfident, "temperature", private=False)
    >>> round(result.temperature.value), result.private, result.guard.kept
    (2, False, True)
    """
    if max_records is None and not isinstance(source, Source | Scores):
        max_records = size  # no source has more records than all sources together
    one = source_of(
        source, ledger=ledger, private=private, min_sources=min_sources, max_records=max_records
    )
    _checks.whole(at_sources=at_sources)
    if method == NONE:
        everyone = (None,) * profile_source(one).sources
        return Recalibration(method=NONE, map=Identity(), dropouts=everyone, private=True)
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


def _lines(result: Recalibration) -> Iterator[str]:
    """The lines of the text."""
    yield f"Method: {result.method}. {_map_text(result.map)}"
    if result.releases:
        counts = Counter(release.query for release in result.releases)
        listed = ", ".join(
            name if n == 1 else f"{name} ({n} times)" for name, n in counts.items()
        )
        several = "one source" if result.n_sources == 1 else f"{result.n_sources} sources"
        yield f"Queries to {several}: {listed}."
    else:
        yield "No queries were made."
    reasons = [(i, why) for i, why in enumerate(result.dropouts, 1) if why is not None]
    if reasons:
        yield (
            f"{result.n_answered} of {result.n_sources} sources answered every query; the "
            "result is about their records."
        )
    for i, why in reasons[:_MAX_NAMED]:
        yield f"Source {i} dropped out: {why}."
    if len(reasons) > _MAX_NAMED:
        yield f"{len(reasons) - _MAX_NAMED} more sources dropped out."
    yield _cost_text(result)
    for name, estimate in result.temperatures.items():
        covers = result.interval_covers
        yield f"{_TEMPERATURES[name]}: {_estimate_text(estimate)}; the interval covers {covers}."
    if result.guard is not None:
        yield result.guard.text()
    before, after = result.before, result.after
    if before is None or after is None:
        yield "No figures before and after: not requested, or too noisy for the budget."
    else:
        for name, label in (("accuracy", "Accuracy"), ("ece", "Calibration error")):
            first, second = (_estimate_text(getattr(side, name)) for side in (before, after))
            yield f"{label} before: {first}; after: {second}."
        if before.ece_noise_bias:
            bias = f"{before.ece_noise_bias:.2g}"
            yield f"Noise increases the calibration errors by at most {bias}."
    if result.statement is not None:
        yield from result.statement.summary().split("\n\n")
        if result.n_sources > 1:
            yield f"Covered: {'; '.join(result.statement.covers)}."


def _map_text(map_: CalibrationMap) -> str:
    """A calibration map in one sentence."""
    match map_:
        case Identity():
            return "No map: the scores are not changed."
        case Temperature():
            return f"Logits are divided by {map_.value:.5g}."
        case UniformMixing():
            return (
                f"Logits are divided by {map_.value:.5g}, and the probabilities are mixed with "
                f"{map_.uniform_weight:.1%} of the uniform distribution."
            )
        case TwoTemperatures():
            return (
                f"Logits are divided by a temperature between {1 / map_.unsure:.5g} (low "
                f"confidence) and {1 / map_.sure:.5g} (high confidence)."
            )
        case _:
            return f"The scores pass through a map of kind {map_.kind!r}."


def _cost_text(result: Recalibration) -> str:
    """The cost for one privacy unit."""
    if not result.private:
        return (
            "NOT private: the records are not protected. Publish this only if they are public."
        )
    if result.statement is None:
        return "Cost: nothing."
    cost = f"epsilon {format_up(result.statement.epsilon, 6)}"
    if result.statement.delta:
        cost += f" at delta {format_up(result.statement.delta)}"
    budget = f"{format_up(result.budget.total / MICRO, 6)}: {result.budget.text()}"
    return f"Cost for one {result.statement.unit}: {cost}. The budget was {budget}."


def _estimate_text(estimate: Estimate) -> str:
    """An estimate with its interval."""
    if estimate.value is None:
        return "not significant under the noise"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g}"
    interval = f"{estimate.level:.0%} interval {estimate.low:.4g} to {estimate.high:.4g}"
    return f"{estimate.value:.4g} ({interval})"
