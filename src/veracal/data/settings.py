"""Records made of what a TOML file says, word by word."""

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from veracal.errors import SchemaError


def construct(kind: Any, settings: Mapping[str, Any], where: str) -> Any:
    """Make a record from settings, naming the first one that is unknown or lacking."""
    known = {known.name: known for known in fields(kind)}
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "Remove it."
            words = ", ".join(known) or "no settings"
            raise SchemaError(where, f"only {words}", repr(name), hint)
    for name, entry in known.items():
        required = entry.default is MISSING and entry.default_factory is MISSING
        if required and name not in settings:
            raise SchemaError(
                where,
                f"{name!r} to be declared",
                "no such entry",
                "Declare it: nothing is inferred.",
            )
    return kind(**settings)


def table(entry: object, where: str) -> dict[str, Any]:
    """Return a TOML table, or raise."""
    if not isinstance(entry, dict):
        raise SchemaError(where, "a table", repr(entry)[:40], "Write it as [section.name].")
    return entry
