"""Maps written down, and read back from strangers."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from veracal.calibration.bins import Bins
from veracal.calibration.maps.base import CalibrationMap, Identity
from veracal.calibration.maps.nonparametric import Binned, Isotonic
from veracal.calibration.maps.parametric import (
    Beta,
    Platt,
    Temperature,
    TwoTemperatures,
    UniformMixing,
)
from veracal.data import Limits, opened, parse_json, write_new
from veracal.errors import DataError

_LIMITS = Limits(file_bytes=128 * 2**20)  # four million numbers take about 80 MiB

KINDS: dict[str, type[CalibrationMap]] = {
    record.kind: record
    for record in (
        Identity,
        Temperature,
        TwoTemperatures,
        UniformMixing,
        Platt,
        Binned,
        Isotonic,
        Beta,
    )
}


def from_json(written: Mapping[str, Any], where: str = "map") -> CalibrationMap:
    """Make a map from what :meth:`CalibrationMap.to_json` gave.

    Raises
    ------
    DataError
        For anything that is not exactly one: another kind or version, a field that is
        missing or not known, a number that is not finite, too large or given as text, shapes
        that do not agree, too many numbers.

    Examples
    --------
    >>> from_json(Temperature(0.5).to_json())
    Temperature(inverse=0.5)
    """
    kind = written.get("kind") if isinstance(written, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise _no_map(where, f"a map of kind {', '.join(KINDS)}", repr(kind))
    record = KINDS[kind]
    expected = {"kind", "version", *(known.name for known in fields(record))}
    if set(written) != expected:
        raise _no_map(
            where, f"exactly the fields {', '.join(sorted(expected))}", repr(sorted(written))
        )
    if type(written["version"]) is not int or written["version"] != 1:
        raise _no_map(where, "version 1", repr(written["version"]))
    values = {known.name: written[known.name] for known in fields(record)}
    try:
        for value in values.values():
            _check_numbers(value)
        if "bins" in values:
            values["bins"] = Bins(values["bins"])
        return record(**values)
    except (TypeError, ValueError) as cause:
        raise _no_map(where, f"the parameters of a {kind} map", str(cause)) from cause


def save_map(map_: CalibrationMap, path: str | Path) -> Path:
    """Write a map to a new JSON file, whole or not at all."""
    path = Path(path)
    write_new(path, json.dumps(map_.to_json(), allow_nan=False) + "\n")
    return path


def load_map(path: str | Path) -> CalibrationMap:
    """Read the map of a JSON file, which anybody may have written.

    Raises
    ------
    DataError
        As :func:`from_json`, and for a file that is too large, is not strict JSON, or has a
        key twice.
    """
    path = Path(path)
    with opened(path, _LIMITS) as file:
        content = file.read(_LIMITS.file_bytes + 1)  # it may have grown since it was checked
    _LIMITS.check("file_bytes", len(content), path)
    try:
        text = content.decode()
    except UnicodeDecodeError as cause:
        raise _no_map(str(path), "text in UTF-8", "other bytes") from cause
    return from_json(parse_json(text, str(path)), str(path))


def _check_numbers(value: Any) -> None:
    """Refuse lists that hold anything but numbers and lists: an array would convert it."""
    if isinstance(value, list) and not {type(v) for v in value} <= {int, float, list}:
        raise ValueError("Expected numbers in every list.")
    for inner in value if isinstance(value, list) else ():
        if isinstance(inner, list):
            _check_numbers(inner)


def _no_map(where: str, expected: str, found: str) -> DataError:
    """Error for what is not a map."""
    return DataError(where, expected, found[:300], "Write it with save_map, or to_json.")
