"""The one place that divides epsilon over the calibration map, the guard and the figures.

A budget is either a total, which :func:`divide_budget` divides by shares, or a
:class:`BudgetDivision` with a cost for each part, as on the command line. By default the guard
gets a tenth of a total, unless the answers of the fit already tell whether the map improves
calibration. Guard and figures get a share only if they can be significant under the noise, by
rules on public facts (:func:`guard_share`, :func:`measure_share`).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from veracal import _checks
from veracal.accounting import MICRO, format_up

if TYPE_CHECKING:
    from veracal.calibration.recalibration.sources import SourceProfile

Share = float | Literal["auto"] | None
BINS = 15  # default number of bins
GUARD_SHARE = 0.1
DEFAULT_RECORDS = 20  # assumed records of a source without a declared size
MAX_MEASURE_SHARE = 0.25  # of the budget, for figures that were not requested explicitly
MAX_NOISE = 0.02  # in a calibration error, above which the figure is not informative
FINE_NOISE = 0.005  # in a calibration error, below which less noise has no use
ERROR_SHARE = 1 / 3  # smallest share of a calibration error in the budget of the figures


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
    profile: "SourceProfile",
    size: int | None,
    bins: int,
    infers_guard: bool = False,
) -> BudgetDivision:
    """Divide a total by shares, rounded down; the map gets the rest.

    Parameters
    ----------
    micro_epsilon : int
        The total, in millionths of epsilon.
    guard, measure : float, "auto" or None
        Shares of the total; None is none.
    profile : SourceProfile
    size : int or None
        Declared number of records at all sources together.
    bins : int
    infers_guard : bool
        Whether the answers of the fit replace the query of the guard.

    Examples
    --------
    >>> from veracal.accounting import Unit
    >>> from veracal.calibration import SourceProfile
    >>> one = SourceProfile(1, "add-remove", Unit(), sums_only=False, exact=False)
    >>> divide_budget(1_000_000, 0.1, "auto", profile=one, size=2_000, bins=15)
    BudgetDivision(map=650000, guard=100000, measure=250000)
    >>> divide_budget(1_000_000, 0.1, "auto", profile=one, size=500, bins=15)
    BudgetDivision(map=900000, guard=100000, measure=0)
    """
    epsilon = micro_epsilon / MICRO
    if measure == "auto":
        figures = measure_share(epsilon, profile, size, bins)
    else:
        figures = _check_share("measure", measure)
    if guard == "auto":
        guarding = guard_share(epsilon, profile, size, infers_guard=infers_guard)
    else:
        guarding = _check_share("guard", guard)
    if guarding + figures >= 1:
        raise ValueError(
            "Expected guard and measure to leave a share of the budget for the map, got "
            f"guard={guard!r}, measure={measure!r}."
        )
    parts = [
        max(math.floor(micro_epsilon * share), 1) if share else 0
        for share in (guarding, figures)
    ]
    return BudgetDivision(micro_epsilon - sum(parts), *parts)


def guard_share(
    epsilon: float, profile: "SourceProfile", size: int | None, *, infers_guard: bool
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
    sensitivity = _sensitivity(profile)
    noise = 1.64 * sensitivity * math.sqrt(2 * profile.sources) / (GUARD_SHARE * epsilon)
    return (
        GUARD_SHARE if noise <= MAX_NOISE * (size or DEFAULT_RECORDS * profile.sources) else 0.0
    )


def measure_share(
    epsilon: float, profile: "SourceProfile", size: int | None, bins: int
) -> float:
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
    unit_share = _sensitivity(profile) * numbers / (ERROR_SHARE * epsilon * size)
    if unit_share / MAX_NOISE > MAX_MEASURE_SHARE:
        return 0.0
    return min(unit_share / FINE_NOISE, MAX_MEASURE_SHARE)


def _sensitivity(profile: "SourceProfile") -> int:
    """Sensitivity of a count for one privacy unit."""
    return (2 if profile.relation == "replace-one" else 1) * profile.unit.max_contributions


def _check_share(name: str, value: object) -> float:
    """An explicit share as a number; None is 0."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
        raise ValueError(
            f"Expected {name} to be a share between 0 and 1, None or 'auto', got "
            f"{name}={value!r}."
        )
    return float(value)
