"""Accuracy and calibration error before and after a map, through the sources that fitted it.

What a map does not change is asked for once: a map that keeps all predictions keeps the numbers
of right and wrong ones, and a fit that has asked for these leaves nothing to ask. Sums of one
source are asked for as the one number that the calibration error is made of; several sources
are asked for the sums of every bin. Both sides get the same noise.

The steps of a recalibration, planned as a whole and then carried out.

One call that recalibrates, whoever holds the records.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sklearn.base import clone

from veracal import _checks
from veracal._types import Frozen
from veracal.accounting import MICRO, Composed, Relation, Repeated, Statement, Unit, epsilon_for
from veracal.calibration.bins import Bins
from veracal.calibration.fitters import MapFitter
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.parametric import Form
from veracal.calibration.methods import (
    AUTO,
    METHODS,
    NOISE,
    NOISE_AND_SAMPLING,
    NONE,
    Method,
    Settings,
    auto,
    check_method,
)
from veracal.calibration.private.estimates import noisy_numbers
from veracal.calibration.private.guard import (
    GuardResult,
    InferredGuardResult,
    guard_event,
    guard_map,
    infer_guard,
)
from veracal.calibration.private.measurement import (
    Figure,
    MeasurementPlan,
    PrivateFigures,
    figures_of,
)
from veracal.calibration.private.session import (
    Cohort,
    PricedQuery,
    PrivateFitter,
    added_over,
    find_unaffordable,
    named,
    planned,
    price,
    silences,
    split,
    stated,
    total_of,
    unit_of,
)
from veracal.calibration.queries.binned import AbsoluteGaps, BinnedGap, CorrectWrong
from veracal.calibration.queries.scalars import BrierGain, of_mapped
from veracal.calibration.recalibration.result import Recalibration
from veracal.calibration.recalibration.sources import (
    BINS,
    BudgetDivision,
    Share,
    SourceProfile,
    divide_budget,
    profile_source,
    source_of,
)
from veracal.data import Estimate, Scores
from veracal.ledger import Item, Ledger
from veracal.queries import Public, Query, Release, Source, is_multi_source

COUNTS = CorrectWrong(Bins(1))
FIGURES: tuple[Figure, ...] = ("accuracy", "ece")
_AFTER = "after", "counts after"
_ONCE, _EACH = 1, 2  # shares of numbers of predictions, and of a calibration error


@dataclass(frozen=True)
class Comparison:
    """Questions about both sides of a map, fixed before the map is known.

    Attributes
    ----------
    bins : Bins
    by_bins : bool
        Whether the calibration error is made of sums by bin.
    asks : mapping of str to Ask
        ``counts`` if nobody has asked for them, ``before``, ``counts after`` if the map may
        change predictions, ``after``. Those after it have the identity in place of the map.
    """

    bins: Bins
    by_bins: bool
    asks: Mapping[str, PricedQuery]

    def items(
        self, relation: Relation, unit: Unit | None = None, part: str | None = None
    ) -> list[Item]:
        """Lines of a plan for a ledger."""
        return planned(self.asks.values(), relation, unit, part)

    def figures(self, counts: Release, errors: Release, level: float) -> PrivateFigures:
        """Figures of one side."""
        name = "gaps" if self.by_bins else "ece"
        plan = MeasurementPlan(FIGURES, self.bins, None, self.by_bins, self.asks)
        answers = {"counts": noisy_numbers(counts), name: noisy_numbers(errors)}
        return figures_of(plan, answers, level)


@dataclass(frozen=True)
class ComparisonResult:
    """Figures of both sides, the answers that were asked for, and what was not asked after all.

    The latter is asked about other maps, and which map it is depends on answers.
    """

    before: PrivateFigures
    after: PrivateFigures
    releases: tuple[Release, ...]
    unasked: tuple[PricedQuery, ...] = ()


def plan_comparison(
    micro_epsilon: int, *, bins: int, by_bins: bool, counted: bool, keeps: bool
) -> Comparison:
    """Split a budget over the questions.

    Parameters
    ----------
    micro_epsilon : int
    bins : int
    by_bins : bool
        Whether only sums can be asked for.
    counted : bool
        Whether right and wrong predictions are known already.
    keeps : bool
        Whether the map is known to keep all predictions.

    Examples
    --------
    >>> plan = plan_comparison(1_000, bins=15, by_bins=True, counted=False, keeps=True)
    >>> {name: ask.micro_epsilon for name, ask in plan.asks.items()}
    {'counts': 200, 'before': 400, 'after': 400}
    """
    made = Bins(bins)
    error: Query = BinnedGap(made) if by_bins else AbsoluteGaps(made)
    wanted: dict[str, tuple[Query, int]] = {} if counted else {"counts": (COUNTS, _ONCE)}
    wanted["before"] = error, _EACH
    if not keeps:
        wanted["counts after"] = of_mapped(COUNTS, Identity()), _ONCE
    wanted["after"] = of_mapped(error, Identity()), _EACH
    parts = split(micro_epsilon, [share for _, share in wanted.values()])
    asks = {
        name: PricedQuery(query, part)
        for (name, (query, _)), part in zip(wanted.items(), parts, strict=True)
    }
    return Comparison(made, by_bins, Frozen(asks))


def asked_about(
    plan: Comparison, ask: Callable[[PricedQuery, str], Release], map_: CalibrationMap
) -> dict[str, Release]:
    """Ask about both sides; where nothing is mapped, there is one side only.

    Parameters
    ----------
    plan : Comparison
    ask : callable
        ``ask(question, name)`` is an answer.
    map_ : Map
        What is used in the end.
    """
    given = {}
    for name, question in plan.asks.items():
        if name not in _AFTER:
            given[name] = ask(question, name)
        elif map_ != Identity():
            given[name] = ask(_about(question, map_), name)
    return given


def both_sides(
    plan: Comparison, answers: Mapping[str, Release], level: float
) -> tuple[PrivateFigures, PrivateFigures]:
    """Figures before and after, from answers under the names of the plan."""
    counts = answers["counts"]
    before = plan.figures(counts, answers["before"], level)
    if "after" not in answers:
        return before, before
    counts_after = answers.get("counts after", counts)
    return before, plan.figures(counts_after, answers["after"], level)


def _about(question: PricedQuery, map_: CalibrationMap) -> PricedQuery:
    """A question about what a map makes of the scores."""
    query = of_mapped(question.query.query, map_)  # type: ignore[attr-defined]
    return PricedQuery(query, question.micro_epsilon)


FITTED_ON = "the records that the map was fitted to"
# What a fitter may say of its interval, in words.
_COUNTED = {"noise and sampling": NOISE_AND_SAMPLING, "noise": NOISE}
_TRIES = 4  # to keep a total under a delta; one does, or two
_TEMPERATURES = {"temperature": "temperature_", "unsure": "unsure_", "sure": "sure_"}


@dataclass(frozen=True, eq=False)
class RecalibrationSteps:
    """Everything that will be asked, before anything is.

    Attributes
    ----------
    method : str
    fitter : PrivateFitter or MapFitter
        The latter reads public records as they are.
    counted : str
        What intervals of temperatures count.
    spending : Spending
    comparison : Comparison or None
    delta : float
        Of the statement; 0 unless noise is Gaussian.
    level : float
    infers : bool
        Whether to keep the map only if the answers that led to it say that it helps.
    """

    method: str
    fitter: PrivateFitter | MapFitter
    counted: str
    spending: BudgetDivision
    comparison: Comparison | None
    delta: float
    level: float
    infers: bool = False

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this."""
        items = []
        if isinstance(self.fitter, PrivateFitter):
            items += self.fitter.items(relation, unit, part)
        if self.spending.guard:
            event = guard_event(
                Identity(), micro_epsilon=self.spending.guard, relation=relation, unit=unit
            )
            items.append(Item(BrierGain.name, event, 1, part))
        if self.comparison is not None:
            items += self.comparison.items(relation, unit, part)
        return items


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fitter found."""

    map: CalibrationMap
    temperatures: Mapping[str, Estimate]
    counted: str
    releases: tuple[Release, ...]
    improved: float | None = None


def plan_steps(
    known: Method, settings: Settings, spent: BudgetDivision, about: SourceProfile
) -> RecalibrationSteps:
    """Make the fitter, and plan the questions about both sides of its map.

    With a delta, the accountant's bound on everything may be above the sum of the parts, by
    rounding; the map then gets that much less, so that the total is kept.

    Parameters
    ----------
    known : Method
    settings : Settings
    spent : Spending
        How the budget is divided.
    about : Asked
        What is public about the sources.
    """
    steps = _steps(known, settings, spent, about)
    for _ in range(_TRIES if steps.delta else 0):
        over = _excess(steps, spent.total, about)
        if over <= 0:
            break
        left = steps.spending.map - over
        spending = replace(steps.spending, map=left)
        steps = _steps(known, replace(settings, micro_epsilon=left), spending, about)
    return steps


def _steps(
    known: Method, settings: Settings, spent: BudgetDivision, about: SourceProfile
) -> RecalibrationSteps:
    """The steps at one division of the budget."""
    # Public records are read as they are where asking would only take a delta more.
    direct = about.exact and not about.sums_only and (known.needs or not known.asking)
    fitter: PrivateFitter | MapFitter
    fitter = known.openly(settings) if direct and known.openly else known.fitter(settings)
    return RecalibrationSteps(
        known.name,
        fitter,
        known.counted,
        spent,
        _comparison(fitter, known, settings, spent, about),
        _delta(fitter),
        settings.level,
    )


def _delta(fitter: PrivateFitter | MapFitter) -> float:
    """The delta of a fitter with Gaussian noise; 0 for others."""
    settings = fitter.get_params() if isinstance(fitter, PrivateFitter) else {}
    return settings.get("delta") or 0.0


def _excess(steps: RecalibrationSteps, total: int, about: SourceProfile) -> int:
    """By how many millionths of epsilon everything together is above the total."""
    items = steps.items(about.relation, about.unit)
    event = Composed(tuple(Repeated(item.event, item.times) for item in items))
    return math.ceil(epsilon_for(event, steps.delta, about.unit) * MICRO) - total


def run_steps(
    source: Source,
    steps: RecalibrationSteps,
    *,
    request: str | None = None,
    at_sources: int = 1,
) -> Recalibration:
    """Ask everything, once it is known that everything can be paid for."""
    silent = find_unaffordable(source, steps.items, request)
    cohort = Cohort(source, silent) if is_multi_source(source) else source
    fitted = _fitted(cohort, steps, named(request, "fit"))
    guarded = _guarded(cohort, steps, fitted, named(request, "guard"))
    kept = fitted.map if guarded is None else guarded.map
    compared = _compared(cohort, steps, fitted.releases, kept, named(request, "figures"))
    releases = fitted.releases
    releases += (guarded.release,) if isinstance(guarded, GuardResult) else ()
    releases += () if compared is None else compared.releases
    return Recalibration(
        method=steps.method,
        map=kept,
        temperatures=fitted.temperatures,
        counted=fitted.counted,
        guarded=guarded,
        before=None if compared is None else compared.before,
        after=None if compared is None else compared.after,
        spending=steps.spending,
        statement=_stated(
            source, steps, releases, at_sources, () if compared is None else compared.unasked
        ),
        releases=releases,
        silences=silences(cohort),
        private=bool(releases) and all(release.private for release in releases),
    )


def _stated(
    source: Source,
    steps: RecalibrationSteps,
    releases: Sequence[Release],
    at_sources: int,
    unasked: Sequence[PricedQuery],
) -> Statement | None:
    """What all answers promise together, with what others might have led to ask."""
    if not releases:
        return None
    return stated(
        releases,
        unit_of(source),
        covers=_covers(steps),
        delta=steps.delta,
        at_sources=at_sources,
        unasked=unasked,
        ledger_total=total_of(source),
    )


def nothing_done(source: Source) -> Recalibration:
    """What "none" does: nothing is asked, and nothing charged."""
    return Recalibration(
        method=NONE,
        map=Identity(),
        temperatures={},
        counted="",
        guarded=None,
        before=None,
        after=None,
        spending=BudgetDivision(0),
        statement=None,
        releases=(),
        silences=(None,) * profile_source(source).sources,
        private=True,
    )


def choose_method(
    method: str | PrivateFitter, settings: Settings, about: SourceProfile
) -> Method:
    """The method of that name, the one that "auto" stands for, or a fitter of one's own."""
    if isinstance(method, PrivateFitter):
        return _own(method)
    check_method(method, private=not about.exact)
    name = auto(settings, about.relation, about.unit) if method == AUTO else method
    if about.enrolled is not None and method == AUTO:
        name = about.enrolled.method(name)
    elif about.enrolled is not None:
        about.enrolled.check_method(name)
    return METHODS[name]


def _own(fitter: PrivateFitter) -> Method:
    """A fitter of one's own, with its settings but for its epsilon."""

    def asking(settings: Settings) -> PrivateFitter:
        paid = {"epsilon": None, "micro_epsilon": settings.micro_epsilon}
        made: PrivateFitter = clone(fitter).set_params(**paid)
        return made

    kind = type(fitter)
    return Method(kind.__name__, "", asking, keeps=kind.keeps, infers=kind.infers)


def _comparison(
    fitter: PrivateFitter | MapFitter,
    known: Method,
    settings: Settings,
    spent: BudgetDivision,
    about: SourceProfile,
) -> Comparison | None:
    """Questions about both sides, without those that the fit asks."""
    if not spent.measure:
        return None
    counted = isinstance(fitter, PrivateFitter) and any(
        item.purpose == COUNTS.name for item in fitter.items()
    )
    return plan_comparison(
        spent.measure,
        bins=settings.bins,
        by_bins=about.sums_only,
        counted=counted,
        keeps=known.keeps,
    )


def _fitted(source: Source, steps: RecalibrationSteps, request: str | None) -> Fitted:
    """Fit the map."""
    if isinstance(steps.fitter, MapFitter):
        return Fitted(steps.fitter.fit(_scores(source)).map_, {}, "", ())
    fitter: Any = clone(steps.fitter)
    fitter.fit(source, request=request)
    counted = _COUNTED.get(getattr(fitter, "counted_", ""), steps.counted)
    improved = getattr(fitter, "improved_", None)
    return Fitted(fitter.map_, temperatures_of(fitter), counted, fitter.releases_, improved)


def _scores(source: Source) -> Scores:
    """Public scores, as they are."""
    assert isinstance(source, Public)
    assert isinstance(source.records, Scores)
    return source.records


def temperatures_of(fitter: PrivateFitter) -> dict[str, Estimate]:
    """Temperatures that were fitted, with intervals; none of other maps."""
    return {
        name: getattr(fitter, at) for name, at in _TEMPERATURES.items() if hasattr(fitter, at)
    }


def _guarded(
    source: Source, steps: RecalibrationSteps, fitted: Fitted, request: str | None
) -> GuardResult | InferredGuardResult | None:
    """Ask whether the map helps, or infer it from what was answered."""
    if steps.infers and fitted.improved is not None:
        return infer_guard(fitted.map, fitted.improved)
    if not steps.spending.guard:
        return None
    return guard_map(
        fitted.map,
        source,
        micro_epsilon=steps.spending.guard,
        records=FITTED_ON,
        request=request,
    )


def _compared(
    source: Source,
    steps: RecalibrationSteps,
    releases: tuple[Release, ...],
    map_: CalibrationMap,
    request: str | None,
) -> ComparisonResult | None:
    """Measure both sides, if there is something to pay for that with."""
    if steps.comparison is None:
        return None

    def ask(question: PricedQuery, what: str) -> Release:
        return question.of(source, named(request, what))

    given = asked_about(steps.comparison, ask, map_)
    counts = [release for release in releases if release.query == COUNTS.name]
    known = {"counts": counts[0], **given} if counts else given
    same = {name: added_over(source, release) for name, release in known.items()}
    before, after = both_sides(steps.comparison, same, steps.level)
    asks = steps.comparison.asks.items()
    unasked = tuple(question for name, question in asks if name not in given)
    return ComparisonResult(before, after, tuple(given.values()), unasked)


def _covers(steps: RecalibrationSteps) -> str:
    """What the statement is about, in words."""
    parts = ["the map"]
    parts += ["whether it was kept"] if steps.spending.guard or steps.infers else []
    parts += ["figures before and after"] if steps.comparison is not None else []
    return f"{', '.join(parts)}, and every answer that they were made of"


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
    least: int | None = None,
    most_records: int | None = None,
    ledger: Ledger | str | Path | None = None,
    private: bool = True,
    request: str | None = None,
) -> Recalibration:
    r"""Fit a map that brings confidence to accuracy, by noisy answers of whoever is asked.

    It reads the same for scores with a ledger, for one source and for many. Three things share
    the budget: the map; a guard, which keeps the map only if the records say, through noise,
    that it helps; and accuracy and calibration error before and after it.

    Parameters
    ----------
    source : Source, iterable of Source, or Scores
        A source answers for itself; several are pooled. Scores need a ledger, or
        ``private=False``.
    method : str or PrivateFitter
        One of :data:`veracal.calibration.methods.METHODS`, ``"auto"`` (the best by what is
        public) or ``"none"``, which asks for nothing. A fitter is used with its own settings,
        but for its epsilon.
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for everything, at each source; one of the two.
        Exact answers cost nothing, and need neither.
    delta : float, optional
        For methods with Gaussian noise.
    temperatures : pair of float, optional
        Public range to search; by default the method's own.
    classes, size : int, optional
        Declared number of classes, and of records at all sources together.
    bins : int, optional
        Of binning and of the calibration error; 15, or as sources elsewhere have declared.
    form : {"scalar", "vector", "matrix"}
        Of a Platt map.
    guard : float, "auto" or None
        Share of the budget for the guard's question. ``"auto"``: nothing where the answers
        that led to the map also say whether it helps
        (:class:`veracal.calibration.InferredGuardResult`); else a tenth, where noise leaves it
        a chance (:func:`veracal.calibration.recalibration.sources.guarding_share`).
    measure : float, "auto" or None
        Share of the budget for figures. ``"auto"`` takes a quarter or less, and only where
        figures can then be told through the noise, by the public rule of
        :func:`veracal.calibration.recalibration.sources.measuring_share`.
    level : float
        Of all intervals.
    at_sources : int
        At how many sources one person may have records: the statement multiplies the cost.
    least, most_records : int, optional
        Of the pool that is made of several sources: how many must answer, and how many records
        none of them exceeds (by default the declared size). Without that bound a source that
        lies can move the map as far as it likes.
    ledger : Ledger or path, optional
        Pays for scores.
    private : bool
        False: the scores are public, answers are exact, and the result says so. Methods that
        read records as they are work on these only.
    request : str, optional
        Id of the whole, to ask a source anew. Without one every question is its own id.

    Returns
    -------
    Recalibration

    Raises
    ------
    ValueError
        If the settings make no sense.
    BudgetError
        If a source could not pay for everything; nothing was charged.

    Guarantees
    ----------
    Everything learnt from private records passes :meth:`Source.answer`, which charges before
    it reads. What the whole costs is known, and checked against the ledgers of all sources,
    before the first question. The statement composes *all* answers, source by source. The
    guarantee holds for each source; over all of them for whoever has records at no more than
    ``at_sources``. If a source fails midway its error is raised and nothing is lost: asked
    again in the same words, sources repeat the answers that were paid for.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(0.5, 1, size=4_000)
    >>> labels = (rng.uniform(size=4_000) < p).astype(int)
    >>> overconfident = Scores.from_logits(3 * np.log(p / (1 - p)), labels)
    >>> found = recalibrate(overconfident, "temperature", private=False)
    >>> round(found.temperature.value), found.private, found.guarded.kept
    (3, False, True)
    """
    several = not isinstance(source, Source | Scores)
    if several and most_records is None:
        most_records = size  # no source has more records than all of them
    one = source_of(
        source, ledger=ledger, private=private, least=least, most_records=most_records
    )
    _checks.whole(at_sources=at_sources)
    if method == NONE:
        return nothing_done(one)
    about = profile_source(one)
    total = _price(about, epsilon, micro_epsilon)
    settings = Settings(
        total,
        delta=delta,
        temperatures=temperatures,
        classes=classes,
        size=size,
        bins=BINS if bins is None else bins,
        level=level,
        form=form,
        sources=about.sources,
    )
    known = choose_method(method, settings, about)
    infers = known.infers and guard == "auto"
    if about.enrolled is not None:
        settings = about.enrolled.adopted(settings, known, bins=bins)
        guard, measure = about.enrolled.shares(guard, measure, known)
    spent = divide_budget(
        total, guard, measure, asked=about, size=size, bins=settings.bins, infers=infers
    )
    steps = plan_steps(known, replace(settings, micro_epsilon=spent.map), spent, about)
    steps = replace(steps, infers=infers)
    return run_steps(one, steps, request=request, at_sources=at_sources)


def _price(about: SourceProfile, epsilon: float | None, micro_epsilon: int | None) -> int:
    """What everything may cost; of exact answers anything, for they cost nothing."""
    if about.exact and epsilon is None and micro_epsilon is None:
        return MICRO
    return price(epsilon, micro_epsilon)
