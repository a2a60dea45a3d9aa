"""Plans in files, as TOML or JSON."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veracal.data.limits import opened
from veracal.data.readers.strict_json import parse_json
from veracal.errors import DataError
from veracal.privacy.ledger.plan import Item

_KEYS = {"purpose", "event", "times", "part"}
_MOST_BYTES = 2**20


def read_plan(path: Path) -> tuple[Item, ...]:
    """Read a plan: a list ``items``, each with a purpose, an event and how many times.

    In TOML an item looks like this, with ``times`` and ``part`` optional::

        [[items]]
        purpose = "count"
        event = {kind = "Gaussian", noise = 20.0}
        times = 10

    Raises
    ------
    DataError
        If the file is not such a list.
    """
    with opened(path) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise _wrong(path, f"more than {_MOST_BYTES:,} bytes")
    written = _parsed(path, text)
    items = written.get("items") if isinstance(written, Mapping) else None
    if not isinstance(items, list) or not items or set(written) != {"items"}:
        raise _wrong(path, "another structure")
    return tuple(_item(path, number, item) for number, item in enumerate(items, start=1))


def _parsed(path: Path, content: bytes) -> Any:
    """Parse by the suffix."""
    try:
        text = content.decode()
        return parse_json(text, str(path)) if path.suffix == ".json" else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise _wrong(path, str(cause)) from cause


def _item(path: Path, number: int, written: object) -> Item:
    """Read one item."""
    where = f"{path}, item {number}"
    if not isinstance(written, dict) or not {"purpose", "event"} <= set(written) <= _KEYS:
        raise DataError(
            where, "purpose and event, times and part", repr(written)[:80], "Correct it."
        )
    try:
        return Item.from_json(written)
    except DataError as cause:
        raise DataError(
            f"{where}, event", cause.expected, cause.found, "Correct the event."
        ) from cause
    except (TypeError, ValueError) as cause:
        raise DataError(where, "an item of a plan", str(cause), "Correct the item.") from cause


def _wrong(path: Path, found: str) -> DataError:
    """Error for a file that is no plan."""
    return DataError(
        str(path),
        "a plan in TOML or JSON: a list of items",
        found,
        "Give each item a purpose, an event and how many times.",
    )
