"""No artifact runs code, reads outside its folder, or exhausts memory.

Artifacts are attacked: pickles in place of weights, headers that claim terabytes, sparse files,
links and pipes, names that leave the folder, flipped bytes with and without new hashes, unknown
maps and schemas. Each is rejected with a Veracal error, quickly and with little memory. Writing
is interrupted at every step: the previous folder stays, and nothing else. A folder with foreign
files is never replaced.
"""

import json
import os
import pickle
import resource
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load, save

from assurance.ledgers import Patches, patched
from tests.artifact.examples import changed, classifier, replaced
from veracal.artifact import PrivateClassifier
from veracal.artifact import storage as manifest
from veracal.artifact.storage import read_file, write_folder
from veracal.errors import VeracalError

NAME = "artifact"
ALLOWED, BYTES = 2.0, 200 * 2**20  # seconds of CPU, and of memory
PATIENCE = 300  # seconds until a wait counts as endless
WEIGHTS, MODEL = "model.safetensors", "model.json"
ARTIFACT = "veracal.artifact"
READ, WRITE = read_file, write_folder


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.place, "w")


# ---------------------------------------------------------------- mutants


def followed(folder: Path, name: str, most: int) -> bytes:
    """Follow links."""
    try:
        content = (folder / name).read_bytes()
    except OSError as cause:
        raise VeracalError(str(cause)) from cause
    if len(content) > most:
        raise VeracalError("too large")
    return content


def unlimited(folder: Path, name: str, most: int) -> bytes:
    """Check the size only after reading."""
    if (folder / name).is_symlink() or not (folder / name).is_file():
        raise VeracalError("no file")
    return READ(folder, name, 2**62)


def or_pickle(content: bytes, shapes: Any, where: str) -> dict[str, Any]:
    """Fall back to an older format."""
    try:
        return dict(load(content))
    except Exception:
        arrays = pickle.loads(content)
        if not isinstance(arrays, dict):
            raise VeracalError("no weights") from None
        return arrays


def trusting(content: bytes, shapes: Any, where: str) -> dict[str, Any]:
    """Skip the checks of the arrays."""
    try:
        arrays = dict(load(content))
        return {name: arrays[name] for name in shapes}
    except Exception as cause:
        raise VeracalError(str(cause)) from cause


def write_in_place(path: Path, files: Any, *, force: bool = False) -> Path:
    """Write one file after the other under the final name."""
    path.mkdir(exist_ok=force)
    for name, content in files.items():
        (path / name).write_bytes(content)
        with (path / name).open("rb") as file:
            os.fsync(file.fileno())
    return path


def emptied_first(path: Path, files: Any, *, force: bool = False) -> Path:
    """Remove the old folder, then write."""
    if force and path.is_dir():
        for old in path.iterdir():
            old.unlink()
        path.rmdir()
    return WRITE(path, files, force=force)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "links followed": {"veracal.artifact.storage.read_file": followed},
    "size unchecked": {"veracal.artifact.storage.read_file": unlimited},
    "pickle as a fallback": {"veracal.artifact.weights.decode_arrays": or_pickle},
    "arrays not compared with what is expected": {
        "veracal.artifact.weights.decode_arrays": trusting
    },
    "hash of a file unchecked": {
        "veracal.artifact.storage.verify_content": lambda content, name, listed, where: content
    },
    "hash of the description unchecked": {
        "veracal.artifact.storage._canonical": lambda body: b"",
        "veracal.artifact.storage._sha": lambda content: "" if content == b"" else SHA(content),
    },
    "names that climb out": {
        "veracal.artifact.storage._validate_files": lambda files, where: files
    },
    "partial write": {"veracal.artifact.classifier.write_folder": write_in_place},
    "old folder removed first": {"veracal.artifact.classifier.write_folder": emptied_first},
    "any folder replaced": {
        "veracal.artifact.storage.check_output_folder": lambda path, **settings: None
    },
}
SHA = manifest._sha


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Attack reading, then interrupt writing."""
    with patched(subject) as folder:
        tried = attack_all(folder)
        flipped = flip_bytes(folder, 2_000 if long else 60)
        stopped = interrupt_writing(folder)
        keep_foreign_files(folder)
    return (
        f"{tried} attacks and {flipped} changed bytes refused, each within {ALLOWED:g} s of "
        f"CPU and {BYTES >> 20} MiB, none ran code; {stopped} interrupted writes left nothing"
    )


def attacks(outside: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """Named ways to corrupt an artifact."""
    bomb = pickle.dumps(Bomb(str(outside / "pwned")))
    nan = save({"coef": np.full((1, 30), np.nan), "intercept": np.zeros(1)})
    wide = save({"coef": np.zeros((7, 30)), "intercept": np.zeros(7)})
    yield "a pickle for weights", lambda f: replaced(f, bomb)
    yield "a pickle for the description", lambda f: (f / MODEL).write_bytes(bomb)
    yield "a header of exabytes", lambda f: replaced(f, struct.pack("<Q", 2**62) + b"{}")
    yield "NaN for weights", lambda f: replaced(f, nan)
    yield "weights of another shape", lambda f: replaced(f, wide)
    for name in (WEIGHTS, MODEL):
        yield f"a hole of a terabyte in {name}", lambda f, n=name: os.truncate(f / n, 2**40)
        yield f"a link for {name}", lambda f, n=name: replace_by_link(f / n, outside / n)
        yield f"a pipe for {name}", lambda f, n=name: replace_by_pipe(f / n)
    climb = {"../../x": {"bytes": 1, "sha256": "0"}}
    yield "names that climb out", lambda f: changed(f, lambda m: m["files"].update(climb))
    for key, value in {
        "map": {"kind": "eval", "version": 1},
        "model": {"kind": "torch", "one_vs_rest": False},
        "schema": "format = 1",
        "features": 10**12,
        "version": 9,
        "classes": ["a"],
    }.items():
        yield f"another {key}", lambda f, k=key, v=value: changed(f, lambda m: m.update({k: v}))
    deep = b"[" * 10**6
    yield "a million brackets", lambda f: (f / MODEL).write_bytes(deep)


def replace_by_link(path: Path, target: Path) -> None:
    """Put a link to a good copy of the file in its place."""
    path.rename(target)
    path.symlink_to(target)


def replace_by_pipe(path: Path) -> None:
    """Replace a file by a pipe without a writer."""
    path.unlink()
    os.mkfifo(path)


def attack_all(folder: Path) -> int:
    """Load every corrupted artifact; return their number."""
    count = 0
    for count, (name, spoil) in enumerate(attacks(folder), 1):
        spoil(fresh_artifact(folder, str(count)))
        expect_error(lambda n=str(count): PrivateClassifier.load(folder / n), name)
        assert not (folder / "pwned").exists(), f"{name} ran code"
    return count


class EndlessError(Exception):
    """Loading did not return in time."""


def raise_endless(number: int, frame: object) -> None:
    """Interrupt a wait on a pipe without a writer."""
    raise EndlessError


def expect_error(work: Callable[[], object], name: str) -> None:
    """Expect a Veracal error, soon and with little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 4 * BYTES, limits[1]))
    start = time.process_time()
    signal.signal(signal.SIGALRM, raise_endless)
    signal.alarm(PATIENCE)
    try:
        work()
    except VeracalError:
        pass
    except EndlessError as cause:
        raise AssertionError(f"{name}: loading waits for something") from cause
    except (MemoryError, OverflowError) as cause:
        raise AssertionError(f"{name}: took too much memory") from cause
    except Exception as cause:
        raise AssertionError(f"{name}: {type(cause).__name__} instead of a refusal") from cause
    else:
        raise AssertionError(f"{name} was accepted")
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - start < ALLOWED, f"{name} took too long"
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < BYTES, f"{name} took {grown >> 20} MiB"


def flip_bytes(folder: Path, rounds: int) -> int:
    """Change one byte at a time, without new hashes."""
    rng = np.random.default_rng(0)
    place = fresh_artifact(folder, "flipped")
    for _ in range(rounds):
        path = place / (WEIGHTS, MODEL)[int(rng.integers(2))]
        content = bytearray(path.read_bytes())
        at = int(rng.integers(len(content)))
        original = bytes(content)
        content[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(content))
        try:
            same = path.name == MODEL and json.loads(content) == json.loads(original)
        except ValueError:
            same = False
        if not same:  # white space may change, and nothing else
            expect_error(lambda: PrivateClassifier.load(place), f"byte {at} of {path.name}")
        path.write_bytes(original)
    return rounds


def interrupt_writing(folder: Path) -> int:
    """Interrupt writing at every call that flushes to disk."""
    model, count = classifier(), 0
    for force in (False, True):
        for at in range(6):
            place = folder / f"stopped {force} {at}"
            if force:
                place.mkdir()
                (place / "report.html").write_text("old")
            if fails_at(lambda p=place, f=force: model.save(p, force=f), at):
                count += 1
                left = {p.name for p in place.iterdir()} if place.exists() else set()
                whole = {"report.html"} if force else set()
                assert left in (whole, {WEIGHTS, MODEL}), f"half an artifact: {left}"
                hidden = [p.name for p in folder.iterdir() if p.name.startswith(".")]
                assert not hidden, f"left behind: {hidden}"
    return count


def keep_foreign_files(folder: Path) -> None:
    """Try to replace a folder that contains a foreign file."""
    place = folder / "foreign"
    classifier().save(place)
    (place / "run.ledger").write_text("precious")
    with suppress(VeracalError):
        classifier().save(place, force=True)
    left = place / "run.ledger"
    assert left.exists() and left.read_text() == "precious", "a foreign file is gone"


def fails_at(work: Callable[[], object], at: int) -> bool:
    """Simulate a full disk from some call on; return whether writing failed."""
    calls = iter(range(10**6))
    fsync = os.fsync

    def full(handle: int) -> None:
        if next(calls) >= at:
            raise OSError(28, "No space left on device")
        fsync(handle)

    with mock.patch("os.fsync", full):
        try:
            work()
        except VeracalError:
            return True
        except OSError as cause:
            raise AssertionError(f"{cause} instead of an error of ours") from cause
    return False


def fresh_artifact(folder: Path, name: str) -> Path:
    """A fresh artifact, written without the code under test."""
    place = folder / name
    place.mkdir()
    for file, content in classifier().files().items():
        (place / file).write_bytes(content)
    return place
