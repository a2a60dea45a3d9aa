"""JSON from strangers: one meaning, real numbers, bounded depth."""

import json
from typing import Any, NoReturn

from veracal.errors import DataError


def parse_json(text: str, where: str) -> Any:
    """Parse one JSON value, refusing what parsers disagree about.

    Raises
    ------
    DataError
        For anything that is not JSON, for a key that occurs twice in an object, NaN and
        infinity, nesting too deep to read, and text with halves of characters in it.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
        if "\\ud" in text.lower():  # may be half of a character, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as cause:
        raise _not_json(where, "values nested too deep") from cause
    except ValueError as cause:
        raise _not_json(where, str(cause)) from cause
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object whose keys are all different."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key[:60]!r} twice")
        result[key] = value
    return result


def _no_constant(word: str) -> NoReturn:
    """Refuse NaN and infinity by name."""
    raise ValueError(f"the constant {word}")


def _finite(digits: str) -> float:
    """Refuse numbers too large for a float, which would become infinity."""
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:20]}")
    return value


def _not_json(where: str, found: str) -> DataError:
    """Error for text that is not the JSON we read."""
    return DataError(
        where, "strict JSON (RFC 8259), each key once", found, "Write the file again as JSON."
    )
