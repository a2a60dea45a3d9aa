"""The files of a source, except its records and secret keys, confirm no guess of the records.

An attacker knows a hospital's table except for one row, and obtains every file of the source
except the records and the two secret keys: settings, terms, ledgers, heads, logs, and the
output of ``veracal source status`` and ``log``. Each of two candidates for the table is hashed
in every usual way, and the hashes and sizes are searched for. An earlier version stored the
SHA-256 and the size of the table, which identified the candidate immediately.
"""

import base64
import hashlib
import json
import re
from pathlib import Path

import numpy as np

from assurance import sources
from assurance.sources import Patches
from veracal.data import Scores, save_scores
from veracal.federation.source.enrollment import (
    RECORDS,
    UNIT,
    list_enrollments,
    read_answer_log,
)
from veracal.federation.source.folder import KEY, MARK_KEY, FileMarkKey, read_source

NAME = "source_marks"
SECRET = {KEY, MARK_KEY, RECORDS}
HASHES = (
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "blake2b",
    "blake2s",
    "sha3_256",
)
ROWS = 4_321  # of the table: its size is a number that is nowhere else


# ---------------------------------------------------------------- mutants


def plain_file(self: FileMarkKey, path: Path) -> str:
    """The former code: SHA-256 of the bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def plain_state(self: FileMarkKey, path: Path) -> str:
    """Hash a size and a time without a key."""
    status = path.stat()
    return hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def key_for_all(cls: type[FileMarkKey], folder: Path) -> FileMarkKey:
    """A public key in place of the secret."""
    return cls(bytes(32))


MARKS = sources.SOURCE + "folder.FileMarkKey."
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "a plain hash of a file": {MARKS + "of_file": plain_file},
    "a plain hash of size and time": {MARKS + "of_state": plain_state},
    "one key for all sources": {MARKS + "read": classmethod(key_for_all)},
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Look for either candidate in what leaked."""
    leaked, looked = leak(subject)
    values = [what for what, needle in looked if re.search(needle, leaked)]
    assert not values, f"what leaked confirms a guess by {', '.join(sorted(set(values)))}"
    return f"{len(looked)} hashes and sizes looked for in {len(leaked):,} bytes: none found"


def leak(subject: Patches) -> tuple[bytes, list[tuple[str, bytes]]]:
    """What is in the folder and printed, and what gives a candidate away."""
    rng = np.random.default_rng(0)
    rows = [f"{value:.9f}" for value in rng.normal(size=ROWS)]
    with sources.enrolled(subject, heads=False) as north:
        place = north.path.parent
        table, other = place / "visits.csv", place / "other.csv"
        table.write_text("\n".join(rows))
        other.write_text("\n".join(rows[:-1]))
        south = sources.make_source(place / "south", sources.scores(), data=table, name="South")
        south.ask()
        source = read_source(south.path)
        (result,) = list_enrollments(source)
        leaked = b"\n".join(
            path.read_bytes()
            for path in sources.every_file(south.path)
            if path.name not in SECRET
        )
        leaked += repr((source, result, read_answer_log(source, result))).encode()
        looked = [pair for one in (table, other) for pair in signs(one.read_bytes(), "table")]
        looked += times(table)
        looked += signs((result.path / RECORDS).read_bytes(), "records")
        looked += signs(saved(place / "again.npz", sources.scores()), "records")
        looked += keyed(south.path.name, [table, result.path / RECORDS])
    return leaked, looked


def signs(content: bytes, what: str) -> list[tuple[str, bytes]]:
    """Patterns of the hashes of bytes in hexadecimal, base64 and raw, and of their number.

    A number counts only as a separate word: among the digits of keyed marks it would be found
    by chance. So, the chance of a false alarm is below 1e-8.
    """
    alone = rb"""[\s:,=\[("']%d[\s,\])}"']""" % len(content)
    result = [(f"the size of the {what}", alone)]
    for name in HASHES:
        raw = hashlib.new(name, content).digest()
        forms = (raw, raw.hex().encode(), base64.b64encode(raw).rstrip(b"="))
        result += [(f"the {name} of the {what}", re.escape(form)) for form in forms]
    return result


def times(path: Path) -> list[tuple[str, bytes]]:
    """Hashes of what a listing of the folder shows of a file."""
    result = path.stat()
    text = f"{result.st_size} {result.st_mtime_ns}"
    return [("size and time", hashlib.sha256(text.encode()).hexdigest().encode())]


def keyed(name: str, paths: list[Path]) -> list[tuple[str, bytes]]:
    """Digests under a fixed key, and under public strings."""
    keys = [bytes(32), name.encode(), json.dumps(name).encode()]
    marks = [FileMarkKey(key) for key in keys]
    return [("a public key", one.of_file(path).encode()) for one in marks for path in paths]


def saved(path: Path, scores: Scores) -> bytes:
    """Scored records as an enrollment writes them."""
    save_scores(scores, path, unit=UNIT)
    return path.read_bytes()
