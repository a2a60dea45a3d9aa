r"""What sources elsewhere have declared: questions to them can be about nothing else.

Who is asked when something is recalibrated: scores with a ledger, a source, or several.

How one budget is divided over the map, the guard and the figures before and after.

The guard gets a tenth, unless the answers that lead to a map say for nothing whether it helps.
Guard and figures get something only where they can be told through the noise, by rules that
read nothing but public facts (:func:`guarding_share`, :func:`measuring_share`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from veracal import _checks
from veracal.accounting import MICRO, Relation, Unit, rounded_up
from veracal.calibration.methods import Method, Settings
from veracal.calibration.prepaid import PrepaidSource
from veracal.calibration.private.session import unit_of
from veracal.calibration.queries.platt import ParameterGrid, weight_shape
from veracal.data import Kind, Scores
from veracal.ledger import Ledger
from veracal.queries import Curator, Pool, Public, Source, is_declared, is_multi_source

Share = float | Literal["auto"] | None
BINS = 15  # where nobody says how many
# What "auto" falls back on, best first.
_NEXT = ("pooled", "temperature", "acc-t", "ece-t", "nll-t", "binning", "binning-paper")


@dataclass(frozen=True)
class EnrolledBounds:
    """Bounds that whoever holds the records has set, before anybody asked.

    A source that has some says so by an attribute of this type, called ``enrolled``.

    Attributes
    ----------
    classes : int
    reads : {"logits", "probabilities"} or None
        Kind of the scores; None where sources differ.
    temperatures : pair of float
    bins : int
    clamp : float
        Largest loss of one record.
    grid : ParameterGrid
        Of affine maps.
    methods : tuple of str
        Those whose questions are all answered.
    guards : bool
        Whether it is answered by how much a map helps.
    measures, recounts : bool
        Whether what figures before and after need is answered, for maps that keep all
        predictions and for others.
    parameters : int
        Of the longest map that can be asked about.
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

    def both(self, other: "EnrolledBounds") -> "EnrolledBounds":
        """What can be asked of two sources alike.

        Raises
        ------
        ValueError
            If nothing can.
        """
        for name in ("classes", "bins", "clamp", "grid"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(
                    f"Expected sources that have declared the same {name}, got {mine!r} and "
                    f"{others!r}: their answers do not add up. Ask one of them to enroll again."
                )
        low = max(self.temperatures[0], other.temperatures[0])
        high = min(self.temperatures[1], other.temperatures[1])
        if low >= high:
            raise ValueError(
                "Expected sources whose ranges of temperatures overlap, got "
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
        """What can be asked of all of them."""
        return reduce(cls.both, each)

    def adopted(self, settings: Settings, known: Method, *, bins: int | None) -> Settings:
        """Settings with what was declared, where they say nothing; others are refused.

        Parameters
        ----------
        settings : Settings
        known : Method
            That they are for.
        bins : int or None
            As the caller said, who may have said nothing.
        """
        self._check_form(settings, known)
        wanted = settings.temperatures
        low, high = self.temperatures
        if wanted is None and known.searches:
            settings = replace(settings, temperatures=self.temperatures)
        elif wanted is not None and not low <= wanted[0] < wanted[1] <= high:
            raise ValueError(
                f"Expected temperatures within {low:g} to {high:g}, as the sources have "
                f"declared, got {wanted!r}. Search within that range."
            )
        for name, value, declared in (
            ("classes", settings.classes, self.classes),
            ("bins", bins, self.bins),
        ):
            if value is not None and value != declared:
                raise ValueError(
                    f"Expected {name}={declared}, as the sources have declared, got "
                    f"{name}={value!r}. Leave it out."
                )
        return replace(
            settings,
            classes=self.classes,
            bins=self.bins,
            clamp=self.clamp,
            grid=self.grid,
            reads=self.reads,
        )

    def shares(self, guard: Share, measure: Share, known: Method) -> tuple[Share, Share]:
        """Shares of the budget for the guard and for figures, as far as they are answered.

        Raises
        ------
        ValueError
            If somebody insists on one that is not.
        """
        measures = self.measures and (known.keeps or self.recounts)
        for name, share, possible in (
            ("guard", guard, self.guards),
            ("measure", measure, measures),
        ):
            if not possible and share not in ("auto", None, 0):
                raise ValueError(
                    f"Expected no {name}, which not all sources have enrolled the questions of "
                    f"(or not at a temperature of 1), got {name}={share!r}. Leave it out, or "
                    "ask the sources to enroll for it."
                )
        return guard if self.guards else None, measure if measures else None

    def method(self, wanted: str) -> str:
        """The method that "auto" stands for, or the next best that can be asked.

        Raises
        ------
        ValueError
            If there is none.
        """
        found = next((name for name in (wanted, *_NEXT) if name in self.methods), None)
        if found is None:
            raise ValueError(
                "Expected sources that answer the questions of a method, got sources that have "
                "enrolled no such questions in common. Ask them to enroll for counts and gap."
            )
        return found

    def _check_form(self, settings: Settings, known: Method) -> None:
        """Refuse an affine map of which a question would be too long, before the first."""
        weights = math.prod(weight_shape(settings.form, self.classes))
        if known.name == "platt" and weights + self.classes > self.parameters:
            raise ValueError(
                f"Expected an affine map of at most {self.parameters} parameters, which a "
                f"request has room for, got a {settings.form} of {self.classes} classes. Use "
                "another form, or one temperature."
            )

    def check_method(self, name: str) -> None:
        """Refuse a method whose questions not all of the sources answer."""
        if name not in self.methods:
            known = ", ".join(self.methods) or "no method at all"
            raise ValueError(
                f"Expected a method whose questions all sources have enrolled ({known}), got "
                f"{name!r}. Use another, or ask the sources to enroll for it."
            )


_WAYS = (
    "Say who pays, as in ledger=open_ledger('study.ledger', Budget(1.0)); or, if the records "
    "are public, say private=False."
)


@dataclass(frozen=True)
class SourceProfile:
    """What is public about whoever is asked.

    Attributes
    ----------
    sources : int
        How many there are.
    relation : {"add-remove", "replace-one"}
        Under which they answer; the one that takes more noise, where they differ.
    unit : Unit
        Whom they protect.
    sums_only : bool
        Whether only sums over records can be asked for, as of several sources.
    exact : bool
        Whether answers are exact and protect nobody.
    enrolled : Enrolled or None
        What they have declared that they can be asked, where they have.
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
    least: int | None = None,
    most_records: int | None = None,
) -> Source:
    """The source that was meant: one as it is, a pool of several, scores behind a ledger.

    Never guessed: scores are public only where ``private=False`` says so.
    """
    if isinstance(given, Scores):
        _refuse(least=least, most_records=most_records)
        return _scores_source(given, ledger, private)
    _refuse(ledger=ledger)
    if isinstance(given, Source):
        _refuse(least=least, most_records=most_records)
        source: Source = given
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
        source = Pool(given, least=least, most_records=most_records)
    else:
        raise ValueError(
            "Expected scores, a source or several sources, got "
            f"{type(given).__name__}. Make scores with Scores.from_logits or load_scores."
        )
    if not private and not profile_source(source).exact:
        raise ValueError(
            "Expected public records with private=False, got a source that protects its own. "
            "Leave private=False out, or pass Public(scores)."
        )
    return source


def profile_source(source: Any) -> SourceProfile:
    """What is public about a source."""
    several = is_multi_source(source)
    each = [profile_source(one) for one in source.sources] if isinstance(source, Pool) else []
    relations = {source.relation} if is_declared(source) else {one.relation for one in each}
    return SourceProfile(
        len(source.paths()) if several else 1,
        "replace-one" if "replace-one" in relations else "add-remove",
        unit_of(source),
        several
        or not isinstance(
            source, Curator | Public | PrepaidSource
        ),  # of others nothing is known
        all(one.exact for one in each) if each else isinstance(source, Public),
        _enrolled(source, each),
    )


def _enrolled(source: Any, each: Sequence[SourceProfile]) -> EnrolledBounds | None:
    """What a source has declared, or those of a pool have, as far as any of them has."""
    declared = [one.enrolled for one in each if one.enrolled is not None]
    if declared:
        return EnrolledBounds.of_all(declared)
    found = getattr(source, "enrolled", None)
    return found if isinstance(found, EnrolledBounds) else None


def _scores_source(
    scores: Scores, ledger: Ledger | str | Path | None, private: bool
) -> Curator | Public:
    """Scores behind a ledger, or public ones."""
    if (ledger is None) == private:
        found = "neither" if private else "both"
        raise ValueError(
            f"Expected a ledger for scores, or private=False, got {found}. {_WAYS}"
        )
    if ledger is None:
        return Public(scores)
    return Curator(scores, ledger if isinstance(ledger, Ledger) else Ledger(Path(ledger)))


def _refuse(**settings: object) -> None:
    """Refuse what is meant for another kind of source."""
    for name, value in settings.items():
        if value is not None:
            kind = "scores" if name == "ledger" else "an iterable of sources"
            raise ValueError(
                f"Expected {name} with {kind} only, got {name}={value!r}. A source that is "
                "made already has its own: leave it out here."
            )


GUARD = 0.1
USUAL = 20  # records of a source of which nothing is declared
MOST = 0.25  # of the budget, for figures that nobody insisted on
WORTH = 0.02  # noise in a calibration error, above which nobody would look at it
FINE = 0.005  # and below which more is of no use
LAST = 1 / 3  # of what figures get, for each calibration error: the least of all plans


@dataclass(frozen=True)
class BudgetDivision:
    """What one unit of the records pays for what, in millionths of epsilon.

    Attributes
    ----------
    map, guard, measure : int
        The last two may be 0: not asked for.
    """

    map: int
    guard: int = 0
    measure: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.map + self.guard + self.measure

    def text(self) -> str:
        """The split, for people."""
        parts = {"the map": self.map, "the guard": self.guard, "figures": self.measure}
        told = [
            f"{rounded_up(micro / MICRO, 6)} for {what}"
            for what, micro in parts.items()
            if micro
        ]
        return ", ".join(told)


def divide_budget(
    micro_epsilon: int,
    guard: Share,
    measure: Share,
    *,
    asked: SourceProfile,
    size: int | None,
    bins: int,
    infers: bool = False,
) -> BudgetDivision:
    """Divide a total: shares rounded down, and the rest for the map.

    Parameters
    ----------
    micro_epsilon : int
        The total.
    guard, measure : float, "auto" or None
        Shares of it; None is none.
    asked : Asked
        What is public about the sources.
    size : int or None
        Declared number of records of all sources together.
    bins : int
    infers : bool
        Whether the method says by itself whether its map helps.

    Examples
    --------
    >>> from veracal.accounting import Unit
    >>> one = Asked(1, "add-remove", Unit(), sums_only=False, exact=False)
    >>> spending(1_000_000, 0.1, "auto", asked=one, size=2_000, bins=15)
    Spending(map=650000, guard=100000, measure=250000)
    >>> spending(1_000_000, 0.1, "auto", asked=one, size=500, bins=15)
    Spending(map=900000, guard=100000, measure=0)
    """
    if measure == "auto":
        figures = measuring_share(micro_epsilon / MICRO, asked, size, bins)
    else:
        figures = _share("measure", measure)
    if guard == "auto":
        guarding = guarding_share(micro_epsilon / MICRO, asked, size, infers=infers)
    else:
        guarding = _share("guard", guard)
    if guarding + figures >= 1:
        raise ValueError(
            "Expected guard and measure to leave a share of the budget for the map, got "
            f"guard={guard!r}, measure={measure!r}."
        )
    parts = [_part(micro_epsilon, share) for share in (guarding, figures)]
    return BudgetDivision(micro_epsilon - sum(parts), *parts)


def guarding_share(
    epsilon: float, asked: SourceProfile, size: int | None, *, infers: bool
) -> float:
    r"""Share of a budget that the guard gets by itself.

    Nothing where the method says for nothing whether its map helps. Otherwise a tenth, if
    there is one source, or answers are exact. Of m sources the noise of the guard's question
    is exceeded with probability 0.05 by about
    :math:`1.64 \Delta \sqrt{2m} / \varepsilon_q`; unless that is at most 0.02 for each of the
    records, no map would be kept but by luck, and the map gets all. Where no size is declared,
    20 records at each source are taken for it.
    """
    if infers:
        return 0.0
    if asked.exact or asked.sources == 1:
        return GUARD
    row = (2 if asked.relation == "replace-one" else 1) * asked.unit.at_most
    reach = 1.64 * row * math.sqrt(2 * asked.sources) / (GUARD * epsilon)
    return GUARD if reach <= WORTH * (size or USUAL * asked.sources) else 0.0


def measuring_share(epsilon: float, asked: SourceProfile, size: int | None, bins: int) -> float:
    r"""Share of a budget that figures before and after get by themselves.

    A calibration error of n records is told with a mean absolute noise of at most
    :math:`r / (\varepsilon_q n)`, for a question that costs :math:`\varepsilon_q`, where r is

    * :math:`\Delta` for one source, which is asked for the one number;
    * :math:`B \Delta \sqrt{4 m / \pi}` for m sources, which are asked for the sums of B bins:
      each source adds Laplace noise, and a sum of m of them is in the mean at most
      :math:`\sqrt{2/\pi}` of its standard deviation :math:`\Delta \sqrt{2m} / \varepsilon_q`
      away from zero; :math:`B \Delta` if there is but one.

    A third of what figures get pays for each of the two calibration errors, or more. If a
    quarter of the budget does not bring the noise down to 0.02, nobody learns from the figures
    whether the map helped, and the map gets all of it. If less than a quarter brings it down
    to 0.005, less is taken. Without a declared size nothing is known of n, which is private:
    nothing is measured. Exact answers cost nothing, so there is always room for them.
    """
    if asked.exact:
        return MOST
    if size is None:
        return 0.0
    _checks.whole(size=size)
    row = (2 if asked.relation == "replace-one" else 1) * asked.unit.at_most
    numbers = 1.0
    if asked.sums_only:
        numbers = bins * (math.sqrt(4 * asked.sources / math.pi) if asked.sources > 1 else 1.0)
    needed = row * numbers / (LAST * epsilon * size)  # divided by the noise that is allowed
    return min(needed / FINE, MOST) if needed / WORTH <= MOST else 0.0


def _share(name: str, value: object) -> float:
    """A share of the budget; None is none of it."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
        raise ValueError(
            f"Expected {name} to be a share between 0 and 1, None or 'auto', got "
            f"{name}={value!r}."
        )
    return float(value)


def _part(micro_epsilon: int, share: float) -> int:
    """A share in whole millionths; one at least, where there is a share."""
    return max(math.floor(micro_epsilon * share), 1) if share else 0
