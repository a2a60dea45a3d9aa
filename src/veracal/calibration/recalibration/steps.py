"""The steps of a recalibration, planned as a whole and then carried out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sklearn.base import clone

from veracal.calibration.fitters import MapFitter
from veracal.calibration.maps import Identity, Map
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
from veracal.calibration.private import (
    Guarded,
    Inferred,
    guard_event,
    inferred,
    never_worse,
)
from veracal.calibration.private.asking import (
    Ask,
    named,
    stated,
    total_of,
    unaffordable,
    unit_of,
)
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.same_sources import SameSources, added_over, silences
from veracal.calibration.queries import BrierGain
from veracal.calibration.recalibration.budget import Spending
from veracal.calibration.recalibration.figures import (
    COUNTS,
    Compared,
    Comparison,
    asked_about,
    both_sides,
    plan_comparison,
)
from veracal.calibration.recalibration.result import Recalibration
from veracal.calibration.recalibration.sources import Asked, asked
from veracal.data import Estimate, Scores
from veracal.privacy import (
    Composed,
    Item,
    Public,
    Relation,
    Release,
    Repeated,
    Source,
    Statement,
    Unit,
    epsilon_for,
)
from veracal.privacy.answers.pooling import is_several
from veracal.privacy.costs.pure import MICRO

FITTED_ON = "the records that the map was fitted to"
# What a fitter may say of its interval, in words.
_COUNTED = {"noise and sampling": NOISE_AND_SAMPLING, "noise": NOISE}
_TRIES = 4  # to keep a total under a delta; one does, or two
_TEMPERATURES = {"temperature": "temperature_", "unsure": "unsure_", "sure": "sure_"}


@dataclass(frozen=True, eq=False)
class Steps:
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
    spending: Spending
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

    map: Map
    temperatures: Mapping[str, Estimate]
    counted: str
    releases: tuple[Release, ...]
    improved: float | None = None


def plan_steps(known: Method, settings: Settings, spent: Spending, about: Asked) -> Steps:
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


def _steps(known: Method, settings: Settings, spent: Spending, about: Asked) -> Steps:
    """The steps at one division of the budget."""
    # Public records are read as they are where asking would only take a delta more.
    direct = about.exact and not about.sums_only and (known.needs or not known.asking)
    fitter: PrivateFitter | MapFitter
    fitter = known.openly(settings) if direct and known.openly else known.fitter(settings)
    return Steps(
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


def _excess(steps: Steps, total: int, about: Asked) -> int:
    """By how many millionths of epsilon everything together is above the total."""
    items = steps.items(about.relation, about.unit)
    event = Composed(tuple(Repeated(item.event, item.times) for item in items))
    return math.ceil(epsilon_for(event, steps.delta, about.unit) * MICRO) - total


def carried_out(
    source: Source, steps: Steps, *, request: str | None = None, at_sources: int = 1
) -> Recalibration:
    """Ask everything, once it is known that everything can be paid for."""
    silent = unaffordable(source, steps.items, request)
    cohort = SameSources(source, silent) if is_several(source) else source
    fitted = _fitted(cohort, steps, named(request, "fit"))
    guarded = _guarded(cohort, steps, fitted, named(request, "guard"))
    kept = fitted.map if guarded is None else guarded.map
    compared = _compared(cohort, steps, fitted.releases, kept, named(request, "figures"))
    releases = fitted.releases
    releases += (guarded.release,) if isinstance(guarded, Guarded) else ()
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
    steps: Steps,
    releases: Sequence[Release],
    at_sources: int,
    unasked: Sequence[Ask],
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
        spending=Spending(0),
        statement=None,
        releases=(),
        silences=(None,) * asked(source).sources,
        private=True,
    )


def chosen(method: str | PrivateFitter, settings: Settings, about: Asked) -> Method:
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
    spent: Spending,
    about: Asked,
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


def _fitted(source: Source, steps: Steps, request: str | None) -> Fitted:
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
    source: Source, steps: Steps, fitted: Fitted, request: str | None
) -> Guarded | Inferred | None:
    """Ask whether the map helps, or infer it from what was answered."""
    if steps.infers and fitted.improved is not None:
        return inferred(fitted.map, fitted.improved)
    if not steps.spending.guard:
        return None
    return never_worse(
        fitted.map,
        source,
        micro_epsilon=steps.spending.guard,
        records=FITTED_ON,
        request=request,
    )


def _compared(
    source: Source,
    steps: Steps,
    releases: tuple[Release, ...],
    map_: Map,
    request: str | None,
) -> Compared | None:
    """Measure both sides, if there is something to pay for that with."""
    if steps.comparison is None:
        return None

    def ask(question: Ask, what: str) -> Release:
        return question.of(source, named(request, what))

    given = asked_about(steps.comparison, ask, map_)
    counts = [release for release in releases if release.query == COUNTS.name]
    known = {"counts": counts[0], **given} if counts else given
    same = {name: added_over(source, release) for name, release in known.items()}
    before, after = both_sides(steps.comparison, same, steps.level)
    asks = steps.comparison.asks.items()
    unasked = tuple(question for name, question in asks if name not in given)
    return Compared(before, after, tuple(given.values()), unasked)


def _covers(steps: Steps) -> str:
    """What the statement is about, in words."""
    parts = ["the map"]
    parts += ["whether it was kept"] if steps.spending.guard or steps.infers else []
    parts += ["figures before and after"] if steps.comparison is not None else []
    return f"{', '.join(parts)}, and every answer that they were made of"
