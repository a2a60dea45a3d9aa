"""Figures of results.json, read with care: whatever is no finite number was not told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veracal.data import Estimate
from veracal.report.results import Measured, Results

WIDE = 0.2  # an interval of shares that is wider than this answers no question
FIGURES = ("accuracy", "ece", "brier")


@dataclass(frozen=True)
class Bin:
    """One bin of a released reliability curve.

    Attributes
    ----------
    low, high : float
        Ends of confidence.
    confidence : float or None
        Its mean in the bin.
    count, accuracy : Estimate
    """

    low: float
    high: float
    confidence: float | None
    count: Estimate
    accuracy: Estimate


def number(found: object) -> float | None:
    """A finite number, or None.

    Examples
    --------
    >>> number(1), number(float("nan")), number("1"), number(True)
    (1.0, None, None, None)
    """
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def mapping(found: object) -> Mapping[str, Any]:
    """A mapping, or an empty one."""
    return found if isinstance(found, Mapping) else {}


def estimate(found: object) -> Estimate:
    """A figure as it was written; without a value where it was not told."""
    entry = mapping(found)
    value, low, high, level = (number(entry.get(k)) for k in ("value", "low", "high", "level"))
    if low is None or high is None or level is None:
        low = high = None
    return Estimate(value, low, high, level or 0.0, int(number(entry.get("n")) or 0))


def figure(measured: Measured | None, name: str, group: str | None = None) -> Estimate | None:
    """A figure of all records or of a group, or None where it was not asked for."""
    if measured is None:
        return None
    found = mapping(measured.figures)
    where = found.get("overall") if group is None else mapping(found.get("groups")).get(group)
    entry = mapping(where).get(name)
    return None if entry is None else estimate(entry)


def single(measured: Measured | None, name: str) -> float | None:
    """A number of all records that has no interval."""
    found = {} if measured is None else mapping(measured.figures)
    return number(mapping(found.get("overall")).get(name))


def cost(measured: Measured) -> float | None:
    """Epsilon of one measurement."""
    micro = number(mapping(measured.figures).get("micro_epsilon"))
    return None if micro is None else micro / 1_000_000


def curve(measured: Measured | None) -> tuple[Bin, ...]:
    """Bins of the released curve, from the least sure; none where there is no curve."""
    found = {} if measured is None else mapping(measured.figures)
    entry = mapping(mapping(found.get("overall")).get("curve"))
    parts = [entry.get(name) for name in ("confidences", "counts", "accuracies")]
    columns = [part if isinstance(part, list | tuple) else [] for part in parts]
    count = min(len(column) for column in columns)
    return tuple(
        Bin(b / count, (b + 1) / count, number(mean), estimate(n), estimate(right))
        for b, (mean, n, right) in enumerate(zip(*columns, strict=False))
    )


def possible(results: Results, when: str) -> tuple[Bin, ...]:
    """Bins of a released curve in which a record can be at all.

    The surest of k classes has a probability of 1/k at least. What is counted below is noise,
    and looks like records that cannot be.
    """
    classes = results.data.get("classes")
    least = 1 / len(classes) if isinstance(classes, list | tuple) and classes else 0.0
    return tuple(each for each in curve(results.when(when)) if each.high >= least - 1e-9)


def group_names(results: Results) -> tuple[str, ...]:
    """Groups that were told apart in any measurement, in their order."""
    names: dict[str, None] = {}
    for one in results.measured:
        names.update(dict.fromkeys(mapping(mapping(one.figures).get("groups"))))
    return tuple(names)


def is_wide(found: Estimate | None) -> bool:
    """Whether too little is known of a share to say anything about it."""
    if found is None or found.value is None or found.low is None or found.high is None:
        return True
    return found.high - found.low > WIDE


def gap(found: Mapping[str, Estimate]) -> Estimate | None:
    r"""Largest difference of a figure between groups.

    If the interval of each group holds its figure, :math:`l_g \le x_g \le h_g`, then

    .. math:: \max(0, \max_g l_g - \min_g h_g) \le \max_g x_g - \min_g x_g
              \le \max_g h_g - \min_g l_g.

    Returns
    -------
    Estimate or None
        At a level of :math:`1 - m(1 - \text{level})` for m groups, by the union bound; None for
        fewer than two groups of which there is a figure.
    """
    told = [e for e in found.values() if None not in (e.value, e.low, e.high)]
    if len(told) < 2:
        return None
    values, lows, highs = zip(*((e.value, e.low, e.high) for e in told), strict=True)
    level = max(0.0, 1 - sum(1 - e.level for e in told))
    return Estimate(
        max(values) - min(values),
        max(0.0, max(lows) - min(highs)),
        max(highs) - min(lows),
        level,
        sum(e.n for e in told),
    )
