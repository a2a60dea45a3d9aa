r"""How one budget is divided over the map, the guard and the figures before and after.

The guard gets a tenth, unless the answers that lead to a map say for nothing whether it helps.
Guard and figures get something only where they can be told through the noise, by rules that
read nothing but public facts (:func:`guarding_share`, :func:`measuring_share`).
"""

import math
from dataclasses import dataclass

from veracal import _checks
from veracal.calibration.recalibration.enrolled import Share as Share
from veracal.calibration.recalibration.sources import Asked
from veracal.privacy.costs.pure import MICRO
from veracal.privacy.costs.statement import rounded_up

GUARD = 0.1
USUAL = 20  # records of a source of which nothing is declared
MOST = 0.25  # of the budget, for figures that nobody insisted on
WORTH = 0.02  # noise in a calibration error, above which nobody would look at it
FINE = 0.005  # and below which more is of no use
LAST = 1 / 3  # of what figures get, for each calibration error: the least of all plans


@dataclass(frozen=True)
class Spending:
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


def spending(
    micro_epsilon: int,
    guard: Share,
    measure: Share,
    *,
    asked: Asked,
    size: int | None,
    bins: int,
    infers: bool = False,
) -> Spending:
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
    >>> from veracal.privacy import Unit
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
    return Spending(micro_epsilon - sum(parts), *parts)


def guarding_share(epsilon: float, asked: Asked, size: int | None, *, infers: bool) -> float:
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


def measuring_share(epsilon: float, asked: Asked, size: int | None, bins: int) -> float:
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
