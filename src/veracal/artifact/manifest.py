"""model.json: what an artifact is, and the hashes of the files beside it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veracal._types import Frozen
from veracal.artifact.folder import read_file
from veracal.data.labels import Label, check_classes
from veracal.data.readers.strict_json import parse_json
from veracal.errors import DataError

NAME = "model.json"
FORMAT, VERSION = "veracal classifier", 2
_FIRST = 1  # without a federation; still written where there is none, for older readers
_MOST = 64 * 2**20  # bytes of model.json
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "classes": list,
    "features": int,
    "feature_names": list,
    "schema": (str, type(None)),
    "model": dict,
    "map": dict,
    "guarantee": dict,
    "ledger": (dict, type(None)),
    "versions": dict,
    "files": dict,
}
_SECOND: Mapping[str, type | tuple[type, ...]] = {**_TYPES, "federation": dict}


@dataclass(frozen=True)
class Manifest:
    """Everything about a saved classifier but its numbers.

    Attributes
    ----------
    name : str
    classes : tuple of str or int
    features : int
        Numbers in a row of X.
    feature_names : tuple of str
        Empty where they have none.
    schema : str or None
        The declared schema of the table, as TOML: how a table becomes rows of X.
    model : mapping
        Kind of the classifier and what else is needed to compute with its weights.
    map : mapping
        The recalibration map, as :meth:`veracal.calibration.Map.to_json` writes it.
    guarantee : mapping
        The statement, as :meth:`veracal.privacy.Statement.to_json` writes it, and its text.
    ledger : mapping or None
        Name and head of the ledger that was charged.
    versions : mapping
        Of the libraries it was made with.
    federation : mapping or None
        Who has recalibrated it since, and what that cost whom
        (:func:`veracal.federation.calibrator.running.record`).
    """

    name: str
    classes: tuple[Label, ...]
    features: int
    feature_names: tuple[str, ...]
    schema: str | None
    model: Mapping[str, Any]
    map: Mapping[str, Any]
    guarantee: Mapping[str, Any]
    ledger: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=Frozen)
    federation: Mapping[str, Any] | None = None

    def to_bytes(self, files: Mapping[str, bytes]) -> bytes:
        """Write it, with sizes and hashes of the files, and a hash of the whole."""
        listed = {n: {"bytes": len(c), "sha256": _sha(c)} for n, c in sorted(files.items())}
        body = {
            "format": FORMAT,
            "version": _FIRST if self.federation is None else VERSION,
            "name": self.name,
            "classes": list(self.classes),
            "features": self.features,
            "feature_names": list(self.feature_names),
            "schema": self.schema,
            "model": dict(self.model),
            "map": dict(self.map),
            "guarantee": dict(self.guarantee),
            "ledger": None if self.ledger is None else dict(self.ledger),
            "versions": dict(self.versions),
            "files": listed,
        }
        if self.federation is not None:
            body["federation"] = dict(self.federation)
        whole = {**body, "sha256": _sha(_canonical(body))}
        return (
            json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode()


def read_manifest(folder: Path) -> tuple[Manifest, dict[str, dict[str, Any]]]:
    """Read model.json, and what it says of the files beside it.

    Raises
    ------
    DataError
        For a folder without one, another format, a newer version, a field that is missing or
        unknown or of another type, and where a byte of it was changed.
    """
    if not folder.is_dir():
        raise DataError(
            str(folder), "the folder of an artifact", "no folder", "Check the spelling."
        )
    return parse_manifest(read_file(folder, NAME, _MOST), str(folder / NAME))


def parse_manifest(content: bytes, where: str) -> tuple[Manifest, dict[str, dict[str, Any]]]:
    """Make a record of the bytes of model.json."""
    try:
        found = parse_json(content.decode(), where)
    except UnicodeDecodeError as cause:
        raise _not_ours(where, "text in UTF-8", "other bytes") from cause
    _check_kind(found, where)
    told = found.pop("sha256", None)
    if told != _sha(_canonical(found)):
        raise _not_ours(where, "the file as it was written", "one that was changed")
    types = _TYPES if found["version"] == _FIRST else _SECOND
    del found["format"], found["version"]
    if set(found) != set(types):
        odd = sorted(set(found) ^ set(types))
        raise _not_ours(where, f"exactly the fields {', '.join(types)}", f"not {odd}"[:200])
    for name, kind in types.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise _not_ours(where, f"another kind of {name}", type(found[name]).__name__)
    files = _checked_files(found.pop("files"), where)
    found["classes"] = check_classes(found["classes"], where)
    found["feature_names"] = tuple(found["feature_names"])
    return Manifest(**found), files


def read_listed(
    folder: Path, name: str, listed: Mapping[str, dict[str, Any]], most: int
) -> bytes:
    """Read a file that model.json lists, of at most so many bytes, and compare its hash."""
    if name not in listed:
        raise _not_ours(str(folder / NAME), f"a hash of {name}", "none")
    content = read_file(folder, name, min(listed[name]["bytes"], most))
    return check_listed(content, name, listed, str(folder))


def check_listed(
    content: bytes, name: str, listed: Mapping[str, dict[str, Any]], where: str
) -> bytes:
    """Compare a file with what model.json says of it."""
    if name not in listed:
        raise _not_ours(f"{where}/{NAME}", f"a hash of {name}", "none")
    if len(content) != listed[name]["bytes"] or _sha(content) != listed[name]["sha256"]:
        raise DataError(
            f"{where}/{name}",
            "the file as it was written",
            "one that was changed or cut off",
            "Get the artifact again from whoever made it.",
        )
    return content


def _check_kind(found: Any, where: str) -> None:
    """Refuse another format, and a version of ours that does not exist yet."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _not_ours(where, f"format {FORMAT!r}", "another")
    version = found.get("version")
    if type(version) is int and version > VERSION:
        raise DataError(
            where, f"version {VERSION} or older", f"version {version}", "Update Veracal."
        )
    if type(version) is not int or not _FIRST <= version <= VERSION:
        raise _not_ours(where, f"version {_FIRST} or {VERSION}", repr(version)[:80])


def _checked_files(files: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Refuse names that lead elsewhere, and anything but sizes and hashes."""
    for name, told in files.items():
        plain = name not in ("", ".", "..") and "/" not in name and "\0" not in name
        right = isinstance(told, dict) and set(told) == {"bytes", "sha256"}
        if not plain or not right or type(told["bytes"]) is not int or told["bytes"] < 0:
            raise _not_ours(where, "a name, a size and a hash of each file", repr(name)[:80])
    return files


def _canonical(body: Mapping[str, Any]) -> bytes:
    """The same bytes for the same content."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sha(content: bytes) -> str:
    """Hash in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _not_ours(where: str, expected: str, found: str) -> DataError:
    """Error for a file that is not a model.json of ours."""
    return DataError(where, expected, found, "Get the artifact again from whoever made it.")
