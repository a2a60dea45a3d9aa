"""The sources of a recalibration: what is public about them, and what they have declared."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from veracal.accounting import Relation, Unit
from veracal.calibration.methods import CalibrationMethod, MethodSettings
from veracal.calibration.prepaid import PrepaidSource
from veracal.calibration.private.session import unit_of
from veracal.calibration.queries.platt import ParameterGrid, weight_shape
from veracal.calibration.recalibration.budget import Share
from veracal.data import Kind, Scores
from veracal.ledger import Ledger
from veracal.queries import Curator, MultiSource, Pool, Public, Source, is_declared

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
    classes : int
    reads : {"logits", "probabilities"} or None
        Kind of the scores; None if sources differ.
    temperatures : pair of float
    bins : int
    clamp : float
        Largest loss of one record.
    grid : ParameterGrid
        Grid of affine maps.
    methods : tuple of str
        Methods whose queries are all answered.
    guards : bool
        Whether the query of the guard is answered.
    measures, recounts : bool
        Whether the queries for figures before and after are answered, for maps that keep all
        predictions and for others.
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
        """The queries that both of two sources answer.

        Raises
        ------
        ValueError
            If there are none.
        """
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
        """Settings completed by the declarations; contradicting settings are rejected.

        Parameters
        ----------
        settings : MethodSettings
        method : CalibrationMethod
        bins : int or None
            Number of bins from the caller; None if the caller left it open.
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
        """Shares of the budget for guard and figures, None where the queries are not answered.

        Raises
        ------
        ValueError
            If a share was requested explicitly for queries that are not answered.
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
        """The preferred method, or the best one whose queries are answered.

        Raises
        ------
        ValueError
            If there is none.
        """
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
    relation : {"add-remove", "replace-one"}
        Neighboring relation of the answers; the one with more noise if sources differ.
    unit : Unit
        Privacy unit.
    sums_only : bool
        Whether only sums over records are answered, as for several sources.
    exact : bool
        Whether answers are exact and protect no one.
    enrolled : EnrolledBounds or None
        Declarations from enrollment, if any.
    """

    sources: int
    relation: Relation
    unit: Unit
    sums_only: bool
    exact: bool
    enrolled: EnrolledBounds | None = None


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
    return SourceProfile(
        len(source.paths()) if several else 1,
        "replace-one" if "replace-one" in relations else "add-remove",
        unit_of(source),
        sums_only,
        exact,
        _enrolled(source, profiles),
    )


def _enrolled(source: Any, members: Sequence[SourceProfile]) -> EnrolledBounds | None:
    """Declarations of a source, or those common to the members of a pool."""
    declared = [member.enrolled for member in members if member.enrolled is not None]
    if declared:
        return EnrolledBounds.of_all(declared)
    enrolled = getattr(source, "enrolled", None)
    return enrolled if isinstance(enrolled, EnrolledBounds) else None


def _require_unset(kind: str, **settings: object) -> None:
    """Reject settings that apply to another kind of source."""
    for name, value in settings.items():
        if value is not None:
            raise ValueError(
                f"Expected {name} with {kind} only, got {name}={value!r}. An existing source "
                "has its own setting: omit it here."
            )
