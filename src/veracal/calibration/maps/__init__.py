"""Calibration maps with public parameters, and their JSON files, also of untrusted sources."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from veracal.calibration.bins import Bins
from veracal.calibration.maps import base, nonparametric, parametric
from veracal.calibration.maps.base import CalibrationMap
from veracal.data import Limits, open_file, parse_json, write_new_text
from veracal.errors import DataError

_LIMITS = Limits(file_bytes=128 * 2**20)  # four million numbers take about 80 MiB
_KINDS = {  # the maps of these modules, and no user's subclass
    kind.kind: kind
    for module in (base, nonparametric, parametric)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, CalibrationMap) and hasattr(kind, "kind")
}


def from_json(data: Mapping[str, Any], where: str = "map") -> CalibrationMap:
    """Read a map from the JSON object of :meth:`CalibrationMap.to_json`.

    Raises
    ------
    DataError
        For any other object: an unknown kind or version, a missing or unknown field, a number
        that is not finite, too large or given as text, inconsistent shapes, or too many
        numbers.

    Examples
    --------
    >>> from_json({"kind": "temperature", "version": 1, "inverse": 0.5})
    Temperature(inverse=0.5)
    """
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _no_map(where, f"a map of kind {', '.join(_KINDS)}", repr(kind))
    names = [known.name for known in fields(_KINDS[kind])]
    expected = {"kind", "version", *names}
    if set(data) != expected:
        raise _no_map(
            where, f"exactly the fields {', '.join(sorted(expected))}", repr(sorted(data))
        )
    if type(data["version"]) is not int or data["version"] != 1:
        raise _no_map(where, "version 1", repr(data["version"]))
    values = {name: data[name] for name in names}
    try:
        for value in values.values():
            _check_lists(value)
        if "bins" in values:
            values["bins"] = Bins(values["bins"])
        return _KINDS[kind](**values)
    except (TypeError, ValueError) as cause:
        raise _no_map(where, f"the parameters of a {kind} map", str(cause)) from cause


def save_map(map_: CalibrationMap, path: str | Path) -> Path:
    """Write a map to a new JSON file, atomically."""
    path = Path(path)
    write_new_text(path, json.dumps(map_.to_json(), allow_nan=False) + "\n")
    return path


def load_map(path: str | Path) -> CalibrationMap:
    """Read a map from a JSON file of an untrusted source.

    Raises
    ------
    DataError
        As :func:`from_json`, and for a file that is too large, is not strict JSON, or has a
        key twice.
    """
    path = Path(path)
    with open_file(path, _LIMITS) as file:
        content = file.read(_LIMITS.file_bytes + 1)  # the file may have grown since the check
    _LIMITS.check("file_bytes", len(content), path)
    try:
        text = content.decode()
    except UnicodeDecodeError as cause:
        raise _no_map(str(path), "text in UTF-8", "other bytes") from cause
    return from_json(parse_json(text, str(path)), str(path))


def _check_lists(value: Any) -> None:
    """Reject lists with other items than numbers and lists, which an array would convert."""
    if isinstance(value, list):
        if not {type(each) for each in value} <= {int, float, list}:
            raise ValueError("Expected numbers in every list.")
        for inner in value:
            _check_lists(inner)


def _no_map(where: str, expected: str, actual: str) -> DataError:
    """Error for an object that is not a calibration map."""
    return DataError(where, expected, actual[:300], "Write the map with save_map or to_json.")
