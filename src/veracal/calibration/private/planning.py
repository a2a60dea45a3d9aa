"""Which questions a private measurement asks, and what each of them costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from veracal import _checks
from veracal._types import Frozen
from veracal.calibration.bins import Bins
from veracal.calibration.private.asking import Ask, composed, planned, price, split
from veracal.calibration.queries import (
    AbsoluteGaps,
    BinnedGap,
    BrierByGroup,
    CorrectWrong,
    Groups,
)
from veracal.privacy import Brier, Event, Item, Query, Relation, Unit
from veracal.privacy.costs.statement import rounded_up

Figure = Literal["accuracy", "ece", "brier", "curve"]
FIGURES: tuple[Figure, ...] = get_args(Figure)
QUESTIONS = ("counts", "ece", "gaps", "bins", "brier")


@dataclass(frozen=True)
class MeasurementPlan:
    """Questions of a private measurement, fixed before the first of them is asked.

    Attributes
    ----------
    figures : tuple of str
    bins : Bins
    groups : Groups or None
    by_bins : bool
        Whether the calibration error is made of noisy sums by bin, as it must be where several
        sources answer, instead of one noisy number.
    asks : mapping of str to Ask
        What is asked, under names.
    """

    figures: tuple[Figure, ...]
    bins: Bins
    groups: Groups | None
    by_bins: bool
    asks: Mapping[str, Ask]

    @property
    def micro_epsilon(self) -> int:
        """What one unit pays for all answers together, in millionths of epsilon."""
        return sum(ask.micro_epsilon for ask in self.asks.values())

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of the measurement, known before any record is read."""
        return composed(ask.event(relation, unit) for ask in self.asks.values())

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this measurement."""
        return planned(self.asks.values(), relation, unit, part)

    def text(self) -> str:
        """The split of the budget, for people."""
        lines = [
            f"  {rounded_up(ask.micro_epsilon / 1e6, 6):<9} {name} ({ask.query.name}, "
            f"{ask.query.entries} numbers)"
            for name, ask in self.asks.items()
        ]
        return "\n".join([f"epsilon = {rounded_up(self.micro_epsilon / 1e6, 6)}, for", *lines])


def plan_measurement(
    *,
    epsilon: float | None = None,
    micro_epsilon: int | None = None,
    figures: Sequence[Figure] = ("accuracy", "ece", "brier"),
    bins: int = 15,
    group: str | None = None,
    group_names: Sequence[str] = (),
    by_bins: bool = False,
) -> MeasurementPlan:
    """Split a budget over the questions of a measurement.

    Right and wrong predictions are always asked for: their sum is the number of records, which
    is private, too. Shares: 1 for these, 2 for the calibration error, 2 for the Brier score
    (which reaches to 2), 4 for a curve; by group the same again.

    Parameters
    ----------
    epsilon, micro_epsilon : float or int
        What one unit pays for everything; one of the two.
    figures : sequence of {"accuracy", "ece", "brier", "curve"}
    bins : int
    group : str, optional
        Attribute by which all figures are told apart, beside the overall ones.
    group_names : sequence of str
        Declared groups of it; they are public.
    by_bins : bool
        Ask for sums by bin instead of one number for the calibration error.

    Examples
    --------
    >>> plan = plan_measurement(epsilon=0.5, figures=["accuracy", "ece"])
    >>> {name: ask.micro_epsilon for name, ask in plan.asks.items()}
    {'counts': 166666, 'ece': 333333}
    """
    chosen = tuple(figures)
    if not chosen or isinstance(figures, str):
        raise ValueError(f"Expected one figure or more, got figures={figures!r}.")
    for figure in chosen:
        _checks.one_of(FIGURES, figures=figure)
    groups = None if group is None else Groups(group, tuple(group_names))
    made = Bins(bins)
    wanted: dict[str, tuple[Query, int]] = {}
    for told in (None,) if groups is None else (None, groups):
        wanted |= _questions(chosen, made, told, by_bins)
    parts = split(price(epsilon, micro_epsilon), [share for _, share in wanted.values()])
    asks = {
        name: Ask(query, part)
        for (name, (query, _)), part in zip(wanted.items(), parts, strict=True)
    }
    return MeasurementPlan(chosen, made, groups, by_bins, Frozen(asks))


def _questions(
    figures: Sequence[Figure], bins: Bins, groups: Groups | None, by_bins: bool
) -> dict[str, tuple[Query, int]]:
    """Questions about all records, or about every group, with their shares."""
    found: dict[str, tuple[Query, int]] = {"counts": (CorrectWrong(Bins(1), groups=groups), 1)}
    curve, ece = "curve" in figures, "ece" in figures
    if ece and not by_bins:
        found["ece"] = AbsoluteGaps(bins, groups=groups), 2
    if curve or (ece and by_bins):  # the curve's gaps serve for both
        found["gaps"] = BinnedGap(bins, groups=groups), 2
    if curve:
        found["bins"] = CorrectWrong(bins, groups=groups), 2
    if "brier" in figures:
        found["brier"] = (Brier() if groups is None else BrierByGroup(groups)), 2
    suffix = "" if groups is None else f" by {groups.name}"
    return {f"{name}{suffix}": value for name, value in found.items()}
