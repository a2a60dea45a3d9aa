"""Folders that appear whole or not at all, and files in them that are what they say.

Arrays in the safetensors format, checked before any memory is taken for them.

model.json: what an artifact is, and the hashes of the files beside it.
"""

import hashlib
import json
import math
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load, save

from veracal._types import Floats, Frozen
from veracal.data import Label, check_classes, new_file, no_surprises, parse_json
from veracal.errors import DataError, LimitError

# Names of the files that runs write. A folder with others in it is somebody's own.
OURS = frozenset(
    {
        "model.json",
        "model.safetensors",
        "results.json",
        "report.html",
        "MODEL_CARD.md",
        "report-internal.html",
    }
)


def check_place(path: Path, *, force: bool, more: Collection[str] = ()) -> None:
    """Refuse a place where a folder could not be put, before the work and not after it.

    Parameters
    ----------
    path : path
    force : bool
        Whether a folder that is there may be replaced: one of ours, or an empty one.
    more : collection of str
        Names of other files that are ours.
    """
    if path.name in ("", ".."):
        raise DataError(str(path), "a folder with a name of its own", "none", "Name another.")
    with no_surprises(path):
        replaceable = force and path.is_dir() and not path.is_symlink()
        there = {each.name for each in path.iterdir()} if replaceable else set()
        inside = replaceable and Path.cwd().is_relative_to(path.resolve())
    if inside:
        raise DataError(
            str(path),
            "another folder than the one this command runs in",
            "that one",
            "Go to the folder above, or name another.",
        )
    if others := there - OURS - set(more):
        raise DataError(
            str(path),
            "nothing but a model in a folder that is to be replaced",
            f"{min(others)!r} in it",
            "Move that elsewhere, or name another folder.",
        )
    if not replaceable:
        new_file(path, "folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DataError(
            str(path),
            "a folder that can be written to",
            "no permission",
            "Name another place.",
        )


def write_folder(
    path: Path, files: Mapping[str, bytes], *, force: bool = False, shared: bool = True
) -> Path:
    """Write files into a folder that appears under its name once all of them are on the disk.

    Parameters
    ----------
    path : path
    files : mapping of name to bytes
    force : bool
        Whether it may take the place of a folder that is there, if nothing but files of ours
        is in that one. It is removed once the new one stands.
    shared : bool
        Whether others may look into it.
    """
    check_place(path, force=force, more=files)
    try:
        made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            for name, content in files.items():
                _write(made / name, content)
                if not shared:
                    (made / name).chmod(0o600)
            made.chmod(0o755 if shared else 0o700)
            sync_folder(made)
            _put(made, path, force=force)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as cause:
        raise DataError(
            str(path), "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause
    return path


def read_file(folder: Path, name: str, most: int) -> bytes:
    """Read a file of a folder that anybody may have made: no link, and no larger than said.

    Raises
    ------
    DataError
        If it is not there, is a link, a folder or a device, or changes while it is read.
    LimitError
        If it is larger than ``most`` bytes; nothing of it is read then.
    """
    path = folder / name
    try:
        # Not through a link: it could lead to anything that its maker cannot read but we can.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as cause:
        raise DataError(
            str(folder), f"a file {name}", "none", "Get the artifact again, all of it."
        ) from cause
    except OSError as cause:
        reason = "a link" if path.is_symlink() else cause.strerror or str(cause)
        raise DataError(str(path), "a file", reason, "Get the artifact again.") from cause
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise DataError(str(path), "a file", "something else", "Get the artifact again.")
    with os.fdopen(handle, "rb") as file:
        if found.st_size > most:
            raise LimitError(
                str(path), f"at most {most:,} bytes", f"{found.st_size:,}", "Do not trust it."
            )
        content = file.read(most + 1)
    if len(content) != found.st_size:
        raise DataError(str(path), f"{found.st_size} bytes", "others", "Read it again.")
    return content


def _write(path: Path, content: bytes) -> None:
    """Write a new file and have it on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _put(made: Path, path: Path, *, force: bool) -> None:
    """Give a folder its name; one that is there steps aside first, and back on failure."""
    if not (force and path.is_dir()):
        made.rename(path)
        return
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        path.rename(aside)  # which is empty
    except BaseException:
        aside.rmdir()
        raise
    try:
        made.rename(path)
    except BaseException:
        aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_LENGTH = 8  # bytes that tell how long the header is
_LONGEST_HEADER = 2**20
_TYPES = {"F64": (8, "doubles"), "F32": (4, "single precision")}
Precision = Literal["F64", "F32"]

Shapes = Mapping[str, tuple[int, ...]]


def to_bytes(arrays: Mapping[str, Floats], precision: Precision = "F64") -> bytes:
    """Write arrays, all in doubles or in single precision."""
    dtype = np.dtype(f"f{_TYPES[precision][0]}")
    plain = {name: np.ascontiguousarray(a, dtype=dtype) for name, a in arrays.items()}
    return bytes(save(plain))


def from_bytes(
    content: bytes, shapes: Shapes, where: str, precision: Precision = "F64"
) -> dict[str, Floats]:
    """Read finite numbers of known names and shapes.

    The header says where each array lies; it is compared with what is expected, to the
    byte, before the arrays are read.

    Raises
    ------
    DataError
        For anything else: other names, shapes or types, bytes that are missing or too many, a
        number that is not finite.
    """
    found = _header(content, where)
    found.pop("__metadata__", None)
    if set(found) != set(shapes):
        raise _no_weights(where, f"arrays {', '.join(shapes)}", ", ".join(found)[:200])
    start = _LENGTH + struct.unpack("<Q", content[:_LENGTH])[0]
    spans, (width, words) = list[list[int]](), _TYPES[precision]
    for name, shape in shapes.items():
        size = width * math.prod(shape)
        offsets = found[name].get("data_offsets") if isinstance(found[name], dict) else None
        right = {"dtype": precision, "shape": list(shape), "data_offsets": offsets}
        if found[name] != right or not _span(offsets, size):
            expected = f"{name} of shape {shape}, in {words}"
            raise _no_weights(where, expected, repr(found[name])[:200])
        assert isinstance(offsets, list)
        spans.append(offsets)
    _check_cover(sorted(spans), len(content) - start, where)
    arrays = load(content)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise _no_weights(where, f"finite numbers in {name}", "NaN or infinity")
        array.flags.writeable = False
    return dict(arrays)


def _header(content: bytes, where: str) -> dict[str, Any]:
    """The description at the beginning of the file."""
    if len(content) < _LENGTH:
        raise _no_weights(where, "a safetensors file", f"{len(content)} bytes")
    length = struct.unpack("<Q", content[:_LENGTH])[0]
    if length > min(_LONGEST_HEADER, len(content) - _LENGTH):
        raise _no_weights(where, "a header inside the file", f"one of {length} bytes")
    try:
        text = content[_LENGTH : _LENGTH + length].decode()
    except UnicodeDecodeError as cause:
        raise _no_weights(where, "a header in UTF-8", "other bytes") from cause
    found = parse_json(text, where)
    if not isinstance(found, dict):
        raise _no_weights(where, "a header with the names of arrays", type(found).__name__)
    return found


def _span(offsets: Any, size: int) -> bool:
    """Whether offsets are two whole numbers that far apart."""
    whole = isinstance(offsets, list) and [type(x) for x in offsets] == [int, int]
    return whole and offsets[0] >= 0 and offsets[1] - offsets[0] == size


def _check_cover(spans: list[list[int]], size: int, where: str) -> None:
    """Refuse bytes that belong to no array, or to two."""
    edges = [0, *(edge for span in spans for edge in span), size]
    if edges[::2] != edges[1::2]:
        raise _no_weights(where, "arrays one after the other", f"{spans} of {size} bytes")


def _no_weights(where: str, expected: str, found: str) -> DataError:
    """Error for a file that is not what it should be."""
    return DataError(where, expected, found, "Get the artifact again from whoever made it.")


NAME = "model.json"
FORMAT, VERSION = "veracal classifier", 2
_FIRST = 1  # without a federation; still written where there is none, for older readers
_MOST = 64 * 2**20  # bytes of model.json
_MANIFEST_TYPES: Mapping[str, type | tuple[type, ...]] = {
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
_SECOND: Mapping[str, type | tuple[type, ...]] = {**_MANIFEST_TYPES, "federation": dict}


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
        The recalibration map, as :meth:`veracal.calibration.CalibrationMap.to_json` writes it.
    guarantee : mapping
        The statement, as :meth:`veracal.accounting.Statement.to_json` writes it, and its text.
    ledger : mapping or None
        Name and head of the ledger that was charged.
    versions : mapping
        Of the libraries it was made with.
    federation : mapping or None
        Who has recalibrated it since, and what that cost whom
        (:func:`veracal.federation.coordinator.pool.record`).
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
    types = _MANIFEST_TYPES if found["version"] == _FIRST else _SECOND
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
