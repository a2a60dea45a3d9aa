"""Closed schemas: what a body may say, field by field, and nothing else.

Checks are of exact types: a truth value is no number, a float no integer. What is wrong is
told to whoever received the body; the words name fields and never values of records.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.keys import is_hexadecimal

Check = Callable[[object], bool]


def closed(body: object, checks: Mapping[str, Check], what: str) -> dict[str, Any]:
    """A body with exactly these fields, each of which passes its check."""
    if not isinstance(body, dict):
        raise EnvelopeError(f"{what} is no object")
    if body.keys() != checks.keys():
        odd = sorted(str(name)[:40] for name in body.keys() ^ checks.keys())
        raise EnvelopeError(f"{what} has other fields than it should: {', '.join(odd[:5])}")
    for name, check in checks.items():
        if not check(body[name]):
            raise EnvelopeError(f"{name!r} of {what} is not what it may be")
    return body


def integer(low: int, high: int) -> Check:
    """An integer within bounds, both included."""
    return lambda value: type(value) is int and low <= value <= high


def number(low: float, high: float) -> Check:
    """A finite float within bounds, both included."""
    return lambda value: type(value) is float and math.isfinite(value) and low <= value <= high


def hexadecimal(digits: int) -> Check:
    """So many hexadecimal digits."""
    return lambda value: is_hexadecimal(value, digits)


def text(most: int, *, least: int = 1) -> Check:
    """Printable text of bounded length, without line breaks."""
    return lambda value: (
        isinstance(value, str) and least <= len(value) <= most and value.isprintable()
    )


def one_of(words: Iterable[str]) -> Check:
    """One of some words."""
    known = frozenset(words)
    return lambda value: isinstance(value, str) and value in known


def listed(check: Check, low: int, high: int) -> Check:
    """A list of bounded length, every item of which passes a check."""
    return lambda value: (
        isinstance(value, list) and low <= len(value) <= high and all(map(check, value))
    )


def optional(check: Check) -> Check:
    """Null, or what passes a check."""
    return lambda value: value is None or check(value)


def is_object(value: object) -> bool:
    """An object, whose fields are checked by whoever knows them."""
    return isinstance(value, dict)
