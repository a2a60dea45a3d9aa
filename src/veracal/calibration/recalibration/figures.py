"""Accuracy and calibration error before and after a map, through the sources that fitted it.

What a map does not change is asked for once: a map that keeps all predictions keeps the numbers
of right and wrong ones, and a fit that has asked for these leaves nothing to ask. Sums of one
source are asked for as the one number that the calibration error is made of; several sources
are asked for the sums of every bin. Both sides get the same noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from veracal._types import Frozen
from veracal.calibration.bins import Bins
from veracal.calibration.maps import Identity, Map
from veracal.calibration.private.asking import Ask, planned, split
from veracal.calibration.private.figures import PrivateFigures, figures_of
from veracal.calibration.private.noises import noisy_numbers
from veracal.calibration.private.planning import Figure, MeasurementPlan
from veracal.calibration.queries import AbsoluteGaps, BinnedGap, CorrectWrong
from veracal.calibration.queries.mapped import of_mapped
from veracal.privacy import Item, Query, Relation, Release, Unit

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
    asks: Mapping[str, Ask]

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
class Compared:
    """Figures of both sides, the answers that were asked for, and what was not asked after all.

    The latter is asked about other maps, and which map it is depends on answers.
    """

    before: PrivateFigures
    after: PrivateFigures
    releases: tuple[Release, ...]
    unasked: tuple[Ask, ...] = ()


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
        name: Ask(query, part)
        for (name, (query, _)), part in zip(wanted.items(), parts, strict=True)
    }
    return Comparison(made, by_bins, Frozen(asks))


def asked_about(
    plan: Comparison, ask: Callable[[Ask, str], Release], map_: Map
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


def _about(question: Ask, map_: Map) -> Ask:
    """A question about what a map makes of the scores."""
    query = of_mapped(question.query.query, map_)  # type: ignore[attr-defined]
    return Ask(query, question.micro_epsilon)
