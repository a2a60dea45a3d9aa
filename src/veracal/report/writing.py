"""Numbers and names from results, as people read them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from veracal.data import Estimate
from veracal.privacy.costs.statement import rounded_up

_JOINERS = "\u200c\u200d"  # which scripts and emoji need, and which reorder nothing
UNTOLD = "too few records to tell"


def visible(text: str, keep: str = _JOINERS) -> str:
    r"""Write characters that are obeyed, hidden or reorder others as escapes.

    Examples
    --------
    >>> print(visible("a\u202eb"))
    a\u202eb
    """
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    """Escape of one character; kinds of blank become a blank."""
    code = ord(character)
    if character in "\n\r\t" or (character.isspace() and code > 127):
        return " "
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"


def percent(share: float) -> str:
    """A share in percent, without decimals.

    Examples
    --------
    >>> percent(0.9516)
    '95%'
    """
    return f"{100 * share:.0f}%"


def between(found: Estimate) -> str:
    """Ends of an interval in percent, rounded outward.

    Examples
    --------
    >>> between(Estimate(0.95, 0.8605, 0.99, 0.95, 372))
    '86 to 99%'
    """
    if found.low is None or found.high is None:
        return ""
    # A hair of rounding is no reason to say 91 for 0.9 * 100.
    low, high = math.floor(100 * found.low + 1e-9), math.ceil(100 * found.high - 1e-9)
    return f"{low} to {high}%"


def decimals(value: float | None) -> str:
    """A figure with three decimals; words where it is not known."""
    if value is None:
        return UNTOLD
    return f"{value + 0.0:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def interval(found: Estimate | None) -> str:
    """Ends of an interval with three decimals."""
    if found is None or found.low is None or found.high is None:
        return "none"
    return f"{decimals(found.low)} to {decimals(found.high)}"


def count(found: Estimate) -> str:
    """A noisy number of records."""
    return UNTOLD if found.value is None else f"about {found.value:,.0f}"


def epsilon(value: float | None, digits: int = 4) -> str:
    """Epsilon or delta with few digits, never below what it is."""
    return "unbounded" if value is None else rounded_up(value, digits)


def listed(values: Iterable[object], most: int = 12) -> str:
    """Some values, and how many there are if not all are shown."""
    words = [visible(str(value)) for value in values]
    more = f", … ({len(words):,} in all)" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested settings as pairs of a dotted name and a value in words."""
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{before}{name}.")
        else:
            rows.append((f"{before}{name}", _setting(value)))
    return rows


def _setting(value: object) -> str:
    """One setting in words."""
    if value is None:
        return "by default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        # All digits: a delta among them may not shrink.
        return repr(float(value)) if math.isfinite(value) else "not a number that is finite"
    if isinstance(value, list | tuple):
        return listed(map(_setting, value)) or "none"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {said}" for name, said in flat(value)) or "none"
    return visible(str(value)) or "none"
