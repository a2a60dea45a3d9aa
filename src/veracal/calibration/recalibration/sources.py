"""The sources of a recalibration: public facts about them, and how these divide a budget.

Guard and figures get a share of epsilon only if they can be significant under the noise, by
rules on public facts (:func:`guard_share`, :func:`measure_share`). No function here queries a
source.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from veracal import _checks
from veracal.accounting import MICRO, Relation, Unit, format_up
from veracal.calibration.methods import CalibrationMethod, MethodSettings
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private.session import unit_of
from veracal.calibration.queries.platt import ParameterGrid, weight_shape
from veracal.data import Kind, Scores
from veracal.ledger import Ledger
from veracal.queries import Curator, MultiSource, Pool, Public, Source, is_declared

Share = float | Literal["auto"] | None
BINS = 15  # default number of bins
GUARD_SHARE = 0.1
DEFAULT_RECORDS = 20  # assumed records of a source without a declared size
MAX_MEASURE_SHARE = 0.25  # of the budget, for figures that were not requested explicitly
MAX_NOISE = 0.02  # in a calibration error, above which the figure is not informative
FINE_NOISE = 0.005  # in a calibration error, below which less noise has no use
ERROR_SHARE = 1 / 3  # smallest share of a calibration error in the budget of the figures
# Methods that replace the default if not all sources answer its queries, best first.
_FALLBACKS = ("pooled", "temperature", "acc-t", "ece-t", "nll-t", "binning", "binning-paper")
_CHOICES = (
    "Pass the ledger to charge, as in ledger=open_ledger('study.ledger', Budget(1.0)); or, if "
    "the records are public, private=False."
)


@dataclass(frozen=True)
class EnrolledBounds:
    """Declarations of a source that were fixed at enrollment and bound every query.

    A source with declarations has them in an attribute of this type named ``enrolled``.

    Attributes
    ----------
    classes, temperatures, bins, clamp, grid
        As in :class:`~veracal.calibration.MethodSettings`.
    reads : {"logits", "probabilities"} or None
        Kind of the scores; None if sources differ.
    methods : tuple of str
        Methods whose queries are all answered.
    guards, measures, recounts : bool
        Whether the query of the guard is answered, and the queries for figures before and
        after, for maps that keep all predictions and for others.
    parameters : int
        Largest number of parameters of a map in a query.
    """

    classes: int
    reads: Kind | None
    temperatures: tuple[float, float]
    bins: int
    clamp: float
    grid: ParameterGrid
    methods: tuple[str, ...]
    guards: bool = True
    measures: bool = True
    recounts: bool = True
    parameters: int = 1_000

    def intersect(self, other: "EnrolledBounds") -> "EnrolledBounds":
        """The queries that both of two sources answer; an error if their answers do not add up."""
        for name in ("classes", "bins", "clamp", "grid"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(
                    f"Expected sources that have declared the same {name}, got {mine!r} and "
                    f"{others!r}, whose answers do not add up. One of them must enroll again."
                )
        low = max(self.temperatures[0], other.temperatures[0])
        high = min(self.temperatures[1], other.temperatures[1])
        if low >= high:
            raise ValueError(
                "Expected sources with overlapping ranges of temperatures, got "
                f"{self.temperatures!r} and {other.temperatures!r}."
            )
        return replace(
            self,
            reads=self.reads if self.reads == other.reads else None,
            temperatures=(low, high),
            methods=tuple(name for name in self.methods if name in other.methods),
            guards=self.guards and other.guards,
            measures=self.measures and other.measures,
            recounts=self.recounts and other.recounts,
            parameters=min(self.parameters, other.parameters),
        )

    @classmethod
    def of_all(cls, each: Iterable["EnrolledBounds"]) -> "EnrolledBounds":
        """The queries that all sources answer."""
        return reduce(cls.intersect, each)

    def apply_to(
        self, settings: MethodSettings, method: CalibrationMethod, *, bins: int | None
    ) -> MethodSettings:
        """Settings completed by the declarations; contradicting ones are rejected.

        ``bins`` is the number that the caller named, or None.
        """
        weights = math.prod(weight_shape(settings.form, self.classes))
        if method.name == "platt" and weights + self.classes > self.parameters:
            raise ValueError(
                f"Expected an affine map of at most {self.parameters} parameters, the limit of "
                f"a request, got a {settings.form} of {self.classes} classes. Use another "
                "form, or one temperature."
            )
        searched = settings.temperatures
        low, high = self.temperatures
        if searched is None and method.searches_temperature:
            settings = replace(settings, temperatures=self.temperatures)
        elif searched is not None and not low <= searched[0] < searched[1] <= high:
            raise ValueError(
                f"Expected temperatures within {low:g} to {high:g}, as the sources have "
                f"declared, got {searched!r}. Search within that range."
            )
        for name, value, declared in (
            ("classes", settings.classes, self.classes),
            ("bins", bins, self.bins),
        ):
            if value is not None and value != declared:
                raise ValueError(
                    f"Expected {name}={declared}, as the sources have declared, got "
                    f"{name}={value!r}. Omit it."
                )
        return replace(
            settings,
            classes=self.classes,
            bins=self.bins,
            clamp=self.clamp,
            grid=self.grid,
            reads=self.reads,
        )

    def limit_shares(
        self, guard: Share, measure: Share, method: CalibrationMethod
    ) -> tuple[Share, Share]:
        """Shares for guard and figures, None where not all sources answer their queries.

        A share that was requested explicitly for such queries is rejected.
        """
        measures = self.measures and (method.keeps_predictions or self.recounts)
        for name, share, possible in (
            ("guard", guard, self.guards),
            ("measure", measure, measures),
        ):
            if not possible and share not in ("auto", None, 0):
                raise ValueError(
                    f"Expected no {name}, because not all sources have enrolled its queries "
                    f"(or not at a temperature of 1), got {name}={share!r}. Omit it, or let "
                    "the sources enroll for it."
                )
        return guard if self.guards else None, measure if measures else None

    def default_method(self, preferred: str) -> str:
        """The preferred method, or the best one whose queries are answered."""
        for name in (preferred, *_FALLBACKS):
            if name in self.methods:
                return name
        raise ValueError(
            "Expected sources that answer the queries of a method, got sources without common "
            "enrolled queries. Let them enroll for counts and gap."
        )

    def check_method(self, name: str) -> None:
        """Reject a method whose queries are not answered by all sources."""
        if name not in self.methods:
            known = ", ".join(self.methods) or "none"
            raise ValueError(
                f"Expected a method whose queries all sources have enrolled ({known}), got "
                f"{name!r}. Use another method, or let the sources enroll for it."
            )


@dataclass(frozen=True)
class SourceProfile:
    """Public facts about a source or a pool.

    Attributes
    ----------
    sources : int
        Number of single sources.
    relation, unit
        Of the answers; if sources differ, the relation with more noise.
    sums_only : bool
        Whether only sums over records are answered, as for several sources.
    exact : bool
        Whether answers are exact and protect no one.
    enrolled : EnrolledBounds or None
    """

    sources: int
    relation: Relation
    unit: Unit
    sums_only: bool
    exact: bool
    enrolled: EnrolledBounds | None = None

    @property
    def count_sensitivity(self) -> int:
        """Sensitivity of a count for one privacy unit."""
        return (2 if self.relation == "replace-one" else 1) * self.unit.max_contributions


def source_of(
    given: Any,
    *,
    ledger: Ledger | str | Path | None = None,
    private: bool = True,
    min_sources: int | None = None,
    max_records: int | None = None,
) -> Source:
    """A source as it is, a pool of several sources, or scores with the ledger to charge.

    Scores are public only with ``private=False``.
    """
    if isinstance(given, Scores):
        _require_unset(
            "an iterable of sources", min_sources=min_sources, max_records=max_records
        )
        if (ledger is None) == private:
            actual = "neither" if private else "both"
            raise ValueError(
                f"Expected a ledger for scores, or private=False, got {actual}. {_CHOICES}"
            )
        if ledger is None:
            return Public(given)
        return Curator(given, ledger if isinstance(ledger, Ledger) else Ledger(Path(ledger)))
    _require_unset("scores", ledger=ledger)
    if isinstance(given, Source):
        _require_unset(
            "an iterable of sources", min_sources=min_sources, max_records=max_records
        )
        source: Source = given
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        source = Pool(given, min_sources=min_sources, max_records=max_records)
    else:
        raise ValueError(
            "Expected scores, a source or several sources, got "
            f"{type(given).__name__}. Create scores with Scores.from_logits or load_scores."
        )
    if not private and not profile_source(source).exact:
        raise ValueError(
            "Expected public records with private=False, got a source that protects its "
            "records. Omit private=False, or pass Public(scores)."
        )
    return source


def profile_source(source: Any) -> SourceProfile:
    """Public facts about a source, without querying it."""
    several = isinstance(source, MultiSource)
    members = source.sources if isinstance(source, Pool) else ()
    profiles = [profile_source(member) for member in members]
    relations = {source.relation} if is_declared(source) else {p.relation for p in profiles}
    # An unknown kind of source is assumed to answer sums only.
    sums_only = several or not isinstance(source, Curator | Public | PrepaidSource)
    exact = all(p.exact for p in profiles) if profiles else isinstance(source, Public)
    declared = [p.enrolled for p in profiles if p.enrolled is not None]
    enrolled = (
        EnrolledBounds.of_all(declared) if declared else getattr(source, "enrolled", None)
    )
    return SourceProfile(
        len(source.paths()) if several else 1,
        "replace-one" if "replace-one" in relations else "add-remove",
        unit_of(source),
        sums_only,
        exact,
        enrolled if isinstance(enrolled, EnrolledBounds) else None,
    )


def _require_unset(kind: str, **settings: object) -> None:
    """Reject settings that apply to another kind of source."""
    for name, value in settings.items():
        if value is not None:
            raise ValueError(
                f"Expected {name} with {kind} only, got {name}={value!r}. An existing source "
                "has its own setting: omit it here."
            )


@dataclass(frozen=True)
class BudgetDivision:
    """Cost of each part for each privacy unit, in millionths of epsilon.

    Attributes
    ----------
    map, guard, measure : int
        Costs of the calibration map, of the guard and of figures before and after; 0 if absent.
    """

    map: int
    guard: int = 0
    measure: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.map + self.guard + self.measure

    def text(self) -> str:
        """The division in words."""
        parts = {"the map": self.map, "the guard": self.guard, "figures": self.measure}
        return ", ".join(
            f"{format_up(micro / MICRO, 6)} for {part}"
            for part, micro in parts.items()
            if micro
        )


def divide_budget(
    micro_epsilon: int,
    guard: Share,
    measure: Share,
    *,
    profile: SourceProfile,
    size: int | None,
    bins: int,
    infers_guard: bool = False,
) -> BudgetDivision:
    """Divide a total by shares, rounded down; the map gets the rest.

    ``size`` is the declared number of records at all sources together. With ``infers_guard``
    the answers of the fit replace the query of the guard.

    Examples
    --------
    >>> one = SourceProfile(1, "add-remove", Unit(), sums_only=False, exact=False)
    >>> divide_budget(1_000_000, 0.1, "auto", profile=one, size=2_000, bins=15)
    BudgetDivision(map=650000, guard=100000, measure=250000)
    >>> divide_budget(1_000_000, 0.1, "auto", profile=one, size=500, bins=15)
    BudgetDivision(map=900000, guard=100000, measure=0)
    """
    epsilon = micro_epsilon / MICRO
    shares = {
        "guard": guard_share(epsilon, profile, size, infers_guard=infers_guard)
        if guard == "auto"
        else _check_share(guard=guard),
        "measure": measure_share(epsilon, profile, size, bins)
        if measure == "auto"
        else _check_share(measure=measure),
    }
    if sum(shares.values()) >= 1:
        raise ValueError(
            "Expected guard and measure to leave a share of the budget for the map, got "
            f"guard={guard!r}, measure={measure!r}."
        )
    costs = {
        name: max(math.floor(micro_epsilon * share), 1) if share else 0
        for name, share in shares.items()
    }
    return BudgetDivision(micro_epsilon - sum(costs.values()), **costs)


def guard_share(
    epsilon: float, profile: SourceProfile, size: int | None, *, infers_guard: bool
) -> float:
    r"""Default share of the guard.

    It is 0 if the answers of the fit replace the query of the guard, and a tenth for a single
    source or exact answers. The noise of m sources exceeds about
    :math:`1.64 \Delta \sqrt{2m} / \varepsilon_q` with probability 0.05; if this is above 0.02
    per record, hardly any improvement would be significant, and the share is 0. Without a
    declared size, 20 records per source are assumed.
    """
    if infers_guard:
        return 0.0
    if profile.exact or profile.sources == 1:
        return GUARD_SHARE
    sensitivity = profile.count_sensitivity
    noise = 1.64 * sensitivity * math.sqrt(2 * profile.sources) / (GUARD_SHARE * epsilon)
    return (
        GUARD_SHARE if noise <= MAX_NOISE * (size or DEFAULT_RECORDS * profile.sources) else 0.0
    )


def measure_share(epsilon: float, profile: SourceProfile, size: int | None, bins: int) -> float:
    r"""Default share of the figures before and after.

    The calibration error of n records has a mean absolute noise of at most
    :math:`r / (\varepsilon_q n)` for a query of cost :math:`\varepsilon_q`, where r is

    * :math:`\Delta` for one source, which answers a single number;
    * :math:`B \Delta \sqrt{4 m / \pi}` for m sources, which answer the sums of B bins: each
      source adds Laplace noise, and the mean absolute value of a sum of m of them is at most
      :math:`\sqrt{2/\pi}` of its standard deviation :math:`\Delta \sqrt{2m} / \varepsilon_q`;
      :math:`B \Delta` for a single source that answers sums only.

    Each of the two calibration errors gets at least a third of the figures' budget. If a
    quarter of the total does not reduce the noise to 0.02, the figures are not informative, and
    the share is 0. If less than a quarter reduces it to 0.005, the share is smaller. Without a
    declared size the share is 0, because n is private. Exact answers cost nothing and are
    always measured.
    """
    if profile.exact:
        return MAX_MEASURE_SHARE
    if size is None:
        return 0.0
    _checks.whole(size=size)
    numbers = 1.0
    if profile.sums_only:
        several = profile.sources > 1
        numbers = bins * (math.sqrt(4 * profile.sources / math.pi) if several else 1.0)
    # The share at which the mean absolute noise is 1.
    unit_share = profile.count_sensitivity * numbers / (ERROR_SHARE * epsilon * size)
    if unit_share / MAX_NOISE > MAX_MEASURE_SHARE:
        return 0.0
    return min(unit_share / FINE_NOISE, MAX_MEASURE_SHARE)


def _check_share(**named: object) -> float:
    """An explicit share as a number; None is 0."""
    ((name, value),) = named.items()
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
        raise ValueError(
            f"Expected {name} to be a share between 0 and 1, None or 'auto', got "
            f"{name}={value!r}."
        )
    return float(value)
