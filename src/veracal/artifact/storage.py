"""Atomic folders, safetensors checked before allocation, and the manifest model.json."""

import hashlib
import json
import math
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors.numpy import load, save

from veracal._types import Floats
from veracal.data import check_classes, new_file, parse_json, translate_os_errors
from veracal.errors import DataError, LimitError

if TYPE_CHECKING:
    from veracal.artifact.records import Manifest

# Files that runs write. A folder with other files is never replaced.
KNOWN_FILES = frozenset(
    {
        "model.json",
        "model.safetensors",
        "results.json",
        "report.html",
        "MODEL_CARD.md",
        "report-internal.html",
    }
)


def check_output_folder(path: Path, *, force: bool, other_files: Collection[str] = ()) -> None:
    """Reject an output folder before the work starts.

    With ``force`` an existing folder may be replaced: an artifact, or an empty one.
    ``other_files`` are further names of files that it may contain.
    """
    if path.name in ("", ".."):
        raise DataError(
            str(path), "a path that ends in a folder name", "none", "Choose another."
        )
    with translate_os_errors(path):
        replaceable = force and path.is_dir() and not path.is_symlink()
        present = {each.name for each in path.iterdir()} if replaceable else set()
        inside = replaceable and Path.cwd().is_relative_to(path.resolve())
    if inside:
        raise DataError(
            str(path),
            "a folder other than the current one",
            "the current folder",
            "Change to the parent folder, or choose another path.",
        )
    if others := present - KNOWN_FILES - set(other_files):
        raise DataError(
            str(path),
            "only files of a model in a folder that is to be replaced",
            f"{min(others)!r} in it",
            "Move that file elsewhere, or choose another folder.",
        )
    if not replaceable:
        new_file(path, "folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DataError(str(path), "a writable folder", "no permission", "Choose another path.")


def write_folder(
    path: Path, files: Mapping[str, bytes], *, force: bool = False, shared: bool = True
) -> Path:
    """Write files into a folder that appears under its name once all of them are on disk.

    With ``force`` an existing folder is replaced, if it contains only known files; it is removed
    after the new folder is in place. ``shared``: whether other users may read it.
    """
    check_output_folder(path, force=force, other_files=files)
    try:
        staged = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            for name, content in files.items():
                with (staged / name).open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                if not shared:
                    (staged / name).chmod(0o600)
            staged.chmod(0o755 if shared else 0o700)
            sync_folder(staged)
            _rename_into_place(staged, path, force=force)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as cause:
        raise DataError(
            str(path), "a writable folder", cause.strerror or str(cause), "Choose another path."
        ) from cause
    return path


def read_file(folder: Path, name: str, max_bytes: int) -> bytes:
    """Read a file of an untrusted folder: no link, and no larger than a limit.

    Raises
    ------
    DataError
        If it is missing, is a link, a folder or a device, or changes while it is read.
    LimitError
        If it is larger than ``max_bytes``; nothing is read then.
    """
    path = folder / name
    try:
        # Links are not followed: one could point to a file that its author cannot read.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as cause:
        raise DataError(
            str(folder), f"a file {name}", "none", "Get the complete artifact again."
        ) from cause
    except OSError as cause:
        reason = "a link" if path.is_symlink() else cause.strerror or str(cause)
        raise DataError(str(path), "a file", reason, "Get the artifact again.") from cause
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise DataError(str(path), "a file", "something else", "Get the artifact again.")
    with os.fdopen(handle, "rb") as file:
        if status.st_size > max_bytes:
            raise LimitError(
                str(path),
                f"at most {max_bytes:,} bytes",
                f"{status.st_size:,}",
                "Do not trust it.",
            )
        content = file.read(max_bytes + 1)
    if len(content) != status.st_size:
        raise DataError(str(path), f"{status.st_size} bytes", "others", "Read it again.")
    return content


def _rename_into_place(staged: Path, path: Path, *, force: bool) -> None:
    """Rename a folder; an existing one is moved aside first, and back on failure."""
    if not (force and path.is_dir()):
        staged.rename(path)
        return
    previous = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        path.rename(previous)  # an empty folder
    except BaseException:
        previous.rmdir()
        raise
    try:
        staged.rename(path)
    except BaseException:
        previous.rename(path)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_LENGTH = 8  # bytes with the length of the header
_LONGEST_HEADER = 2**20
_TYPES = {"F64": (8, "doubles"), "F32": (4, "single precision")}
Precision = Literal["F64", "F32"]

Shapes = Mapping[str, tuple[int, ...]]


def encode_arrays(arrays: Mapping[str, Floats], precision: Precision = "F64") -> bytes:
    """Encode arrays as safetensors, all in double or in single precision."""
    dtype = np.dtype(f"f{_TYPES[precision][0]}")
    plain = {name: np.ascontiguousarray(a, dtype=dtype) for name, a in arrays.items()}
    return bytes(save(plain))


def decode_arrays(
    content: bytes, shapes: Shapes, where: str, precision: Precision = "F64"
) -> dict[str, Floats]:
    """Decode finite numbers with known names and shapes.

    The header gives the position of each array; it is checked against the expected layout, to
    the byte, before the arrays are read.

    Raises
    ------
    DataError
        For other names, shapes or types, missing or extra bytes, or a number that is not
        finite.
    """
    header = _header(content, where)
    header.pop("__metadata__", None)
    if set(header) != set(shapes):
        raise invalid(where, f"arrays {', '.join(shapes)}", ", ".join(header)[:200])
    start = _LENGTH + struct.unpack("<Q", content[:_LENGTH])[0]
    spans, (width, precision_name) = list[list[int]](), _TYPES[precision]
    for name, shape in shapes.items():
        entry, size = header[name], width * math.prod(shape)
        offsets: Any = entry.get("data_offsets") if isinstance(entry, dict) else None
        is_pair = isinstance(offsets, list) and [type(x) for x in offsets] == [int, int]
        is_span = is_pair and offsets[0] >= 0 and offsets[1] - offsets[0] == size
        if not is_span or entry != {
            "dtype": precision,
            "shape": list(shape),
            "data_offsets": offsets,
        }:
            expected = f"{name} of shape {shape}, in {precision_name}"
            raise invalid(where, expected, repr(entry)[:200])
        spans.append(offsets)
    # No byte may belong to no array, or to two.
    edges = [0, *(edge for span in sorted(spans) for edge in span), len(content) - start]
    if edges[::2] != edges[1::2]:
        raise invalid(
            where, "arrays one after the other", f"{sorted(spans)} of {edges[-1]} bytes"
        )
    arrays = load(content)
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise invalid(where, f"finite numbers in {name}", "NaN or infinity")
        array.flags.writeable = False
    return dict(arrays)


def _header(content: bytes, where: str) -> dict[str, Any]:
    """Parse the header of a safetensors file."""
    if len(content) < _LENGTH:
        raise invalid(where, "a safetensors file", f"{len(content)} bytes")
    length = struct.unpack("<Q", content[:_LENGTH])[0]
    if length > min(_LONGEST_HEADER, len(content) - _LENGTH):
        raise invalid(where, "a header inside the file", f"one of {length} bytes")
    try:
        text = content[_LENGTH : _LENGTH + length].decode()
    except UnicodeDecodeError as cause:
        raise invalid(where, "a header in UTF-8", "other bytes") from cause
    header = parse_json(text, where)
    if not isinstance(header, dict):
        raise invalid(where, "a header with the names of arrays", type(header).__name__)
    return header


MANIFEST = "model.json"
FORMAT, VERSION = "veracal classifier", 1
_MOST = 64 * 2**20  # bytes of model.json


def encode_manifest(manifest: "Manifest", files: Mapping[str, bytes]) -> bytes:
    """Content of model.json: the manifest, sizes and hashes of the files, and its own hash."""
    from veracal.artifact.records import encode

    listed = {
        name: {"bytes": len(content), "sha256": _sha(content)}
        for name, content in sorted(files.items())
    }
    body = {"format": FORMAT, "version": VERSION, **encode(manifest), "files": listed}
    whole = {**body, "sha256": _sha(_canonical(body))}
    text = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def read_manifest(folder: Path) -> tuple["Manifest", dict[str, dict[str, Any]]]:
    """Read model.json, and what it says about the files beside it.

    Raises
    ------
    DataError
        For a folder without one, another format, a newer version, a missing, unknown or
        mistyped field, or an altered byte.
    """
    if not folder.is_dir():
        raise DataError(
            str(folder), "the folder of an artifact", "no folder", "Check the spelling."
        )
    return parse_manifest(read_file(folder, MANIFEST, _MOST), str(folder / MANIFEST))


def parse_manifest(content: bytes, where: str) -> tuple["Manifest", dict[str, dict[str, Any]]]:
    """Parse the content of model.json."""
    try:
        body = parse_json(content.decode(), where)
    except UnicodeDecodeError as cause:
        raise invalid(where, "text in UTF-8", "other bytes") from cause
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise invalid(where, f"format {FORMAT!r}", "another")
    version = body.get("version")
    if type(version) is int and version > VERSION:
        raise DataError(where, f"version {VERSION}", f"version {version}", "Update Veracal.")
    if type(version) is not int or version != VERSION:
        raise invalid(where, f"version {VERSION}", repr(version)[:80])
    digest = body.pop("sha256", None)
    if digest != _sha(_canonical(body)):
        raise invalid(where, "the file as it was written", "an altered file")
    del body["format"], body["version"]
    files = _validate_files(body.pop("files", None), where)
    from veracal.artifact.records import Manifest, decode  # slow, after errors about the file

    manifest: Manifest = decode(Manifest, body, where)
    check_classes(manifest.classes, where)
    return manifest, files


def read_verified(
    folder: Path, name: str, listed: Mapping[str, dict[str, Any]], max_bytes: int
) -> bytes:
    """Read a file that model.json lists, up to a size limit, and verify its hash."""
    if name not in listed:
        raise invalid(str(folder / MANIFEST), f"a hash of {name}", "none")
    content = read_file(folder, name, min(listed[name]["bytes"], max_bytes))
    return verify_content(content, name, listed, str(folder))


def verify_content(
    content: bytes, name: str, listed: Mapping[str, dict[str, Any]], where: str
) -> bytes:
    """Compare a file with its size and hash in model.json."""
    if name not in listed:
        raise invalid(f"{where}/{MANIFEST}", f"a hash of {name}", "none")
    if len(content) != listed[name]["bytes"] or _sha(content) != listed[name]["sha256"]:
        raise DataError(
            f"{where}/{name}",
            "the file as it was written",
            "an altered or truncated file",
            "Get the artifact again from its source.",
        )
    return content


def _validate_files(files: Any, where: str) -> dict[str, dict[str, Any]]:
    """Reject names that lead outside the folder, and anything but sizes and hashes."""
    if not isinstance(files, dict):
        raise invalid(where, "sizes and hashes of the files", type(files).__name__)
    for name, entry in files.items():
        plain = name not in ("", ".", "..") and "/" not in name and "\0" not in name
        right = isinstance(entry, dict) and set(entry) == {"bytes", "sha256"}
        if not plain or not right or type(entry["bytes"]) is not int or entry["bytes"] < 0:
            raise invalid(where, "a name, a size and a hash of each file", repr(name)[:80])
    return files


def _canonical(body: Mapping[str, Any]) -> bytes:
    """Canonical JSON: equal content gives equal bytes."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sha(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def invalid(where: str, expected: str, actual: str) -> DataError:
    """The error for an invalid file of an artifact."""
    return DataError(where, expected, actual, "Get the artifact again from its source.")
