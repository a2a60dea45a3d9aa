"""A power failure loses no sent answer of a source, and a lying disk is detected.

A source serves under ``strace``, which records every byte written to the ledger, its log and
the files of heads, every fsync, and every sent reply. The power then fails after each of these
steps: what was not synced is lost, survives in part, or is torn. After a restart the source
must have every sent reply and its head, and continue from there.

Then a disk loses synced data: the end of the ledger's log from a random byte on. A source whose
heads prove a later state must refuse.

Covered are the bytes of files, in any subset and truncated anywhere. File names are assumed to
be ordered, as journaling file systems do; controllers that ignore syncs are the second part.
The kernel and its file systems are not tested with a real loss of power.
"""

import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assurance import ledgers, sources
from assurance.gate_torn_wal import cut, flipped, overwritten
from assurance.sources import EnrolledSource, Patches, unchecked
from veracal.errors import VeracalError
from veracal.federation.protocol.messages import Answer, unseal_reply
from veracal.federation.source.serving import open_source
from veracal.ledger import storage as ledger_store

NAME = "source_power"
LONG = True
COST = 1_000  # of the first answer, in millionths
ANSWERS = 12
STORE = "veracal.ledger.storage."
CALLS = "pwrite64,pwritev,write,writev,fsync,fdatasync,ftruncate,unlink,rename"
LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(?:<.*>)?$")
FILE = re.compile(r'\d+<([^>]*)>(?:, (?:"((?:\\x[0-9a-f]{2})*)", )?(\d+)(?:, (\d+))?)?$')


# ---------------------------------------------------------------- mutants


def synchronous(level: str) -> Patches:
    """A ledger whose commits do not wait for the disk."""

    @contextmanager
    def connect(path: Path, *settings: str) -> Iterator[sqlite3.Connection]:
        with CONNECT(path, *settings) as connection:
            connection.execute(f"PRAGMA synchronous = {level}")
            yield connection

    return {
        "veracal.ledger.storage.connect": connect,
        "veracal.ledger.storage._FULL": {"OFF": 0, "NORMAL": 1}[level],
    }


CONNECT = ledger_store.connect
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "synchronous = OFF": synchronous("OFF"),
    "synchronous = NORMAL": synchronous("NORMAL"),
    "heads not synced": {sources.SOURCE + "folder.os.fsync": unchecked},
    "heads not checked": {sources.SOURCE + "folder.SignedHeads.check": unchecked},
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Fail everywhere, then tear."""
    pick = random.Random(0)
    name = next((name for name, mutant in MUTANTS.items() if mutant is subject), "")
    with sources.enrolled(subject, epsilon=1.0) as north:
        failures = failed(north, recorded(north, name), pick, ways=8 if long else 3)
    with sources.enrolled(subject, epsilon=1.0) as north:
        torn, noticed = torn_logs(north, pick, 1_000 if long and subject is CORRECT else 100)
    return (
        f"power failed {failures:,} times: no reply that had left was lost; {torn:,} torn "
        f"logs, of which {noticed:,} lacked an answer that had left: all refused"
    )


def query(north: EnrolledSource, number: int) -> bytes:
    """The request of a number."""
    return north.raw(micro_epsilon=COST + number)


# ---------------------------------------------------------------- the tape of the disk


@dataclass
class File:
    """A file: what is surely on the disk, and what was written since."""

    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def with_writes(self, kept: list[tuple[int, bytes | None]]) -> bytes:
        """What the file holds if some of the writes have reached the disk."""
        content = bytearray(self.synced)
        for place, data in kept:
            if data is None:
                del content[place:]
                continue
            content.extend(bytes(max(0, place - len(content))))
            content[place : place + len(data)] = data
        return bytes(content)

    def sync(self) -> None:
        """Everything is on the disk."""
        self.synced, self.pending = self.with_writes(self.pending), []


@dataclass(frozen=True)
class Step:
    """What a process did: a call about a file, with bytes and a place."""

    call: str
    path: Path
    data: bytes
    place: int | None


def recorded(north: EnrolledSource, mutant: str) -> list[Step]:
    """Everything that a source did to its files while it served."""
    if shutil.which("strace") is None:
        raise RuntimeError("This gate needs strace, which is not installed.")
    folder = north.path.parent
    (folder / "requests").write_bytes(
        b"\0\n".join(query(north, number) for number in range(ANSWERS))
    )
    before = sources.contents([*sources.ledger_files(north), *sources.heads_files(north)])
    tape = folder / "tape"
    strace = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}"]
    child = [sys.executable, "-m", "assurance.gate_source_power", str(folder), mutant]
    subprocess.run([*strace, "-o", str(tape), *child], cwd=ROOT, check=True)
    sources.put_back(before, [*before, *sources.ledger_files(north)])
    return list(steps(tape, folder))


ROOT = Path(__file__).parents[1]


def steps(tape: Path, folder: Path) -> Iterator[Step]:
    """The calls that succeeded, about files of a folder, in order."""
    for line in tape.read_text("ascii", "replace").splitlines():
        result = LINE.search(line)
        if result is None or int(result[3]) < 0:
            continue
        call, about = result[1], result[2]
        if call in ("unlink", "rename"):
            path, data, place = Path(decoded(about.split('"')[1]).decode()), b"", None
        else:
            file = FILE.match(about)
            if file is None:
                continue
            path = Path(decoded(file[1]).decode())
            data = decoded(file[2] or "")
            where = file[3] if call == "ftruncate" else file[4]
            place = None if where is None else int(where)
        if path.is_relative_to(folder) and not path.name.endswith("-shm"):
            yield Step(call, path, data, place)


def decoded(text: str) -> bytes:
    """Bytes that may be written in hexadecimal digits."""
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()


def serve(folder: Path, mutant: str) -> None:
    """Reply to requests, one after the other; to be run under strace."""
    with ledgers.patched(MUTANTS[mutant] if mutant else CORRECT):
        server = open_source(folder / "north")
        left = os.open(folder / "left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        raws = (folder / "requests").read_bytes().split(b"\0\n")
        for raw in raws[: ANSWERS // 2]:
            os.write(left, server.reply(raw))
        with closing(sqlite3.connect(server._enrollment.ledger.path)) as other:
            # While another connection reads the ledger, its log is not truncated.
            other.execute("SELECT * FROM opening").fetchall()
            for raw in raws[ANSWERS // 2 :]:
                os.write(left, server.reply(raw))


# ---------------------------------------------------------------- failures


def failed(north: EnrolledSource, tape: list[Step], pick: random.Random, *, ways: int) -> int:
    """Let the power fail after every step; how often it did."""
    watched = [*sources.ledger_files(north), *sources.heads_files(north)]
    disk = {path: File(content) for path, content in sources.contents(watched).items()}
    left: list[bytes] = []
    failures, judged = 0, set[Any]()
    assert any(step.path.name == "left" for step in tape), "nothing was written down"
    for step in tape:
        if step.path.name == "left":
            left.append(step.data)
        elif step.path in watched:
            take(disk, step)
        else:
            continue
        for files in survivals(disk, pick, ways):
            failures += 1
            key = (tuple(files.items()), len(left))
            if key not in judged:  # equal files have one future
                judged.add(key)
                judge(north, files, left)
    assert len(left) == ANSWERS, f"{len(left)} of {ANSWERS} replies left"
    return failures


def take(disk: dict[Path, File], step: Step) -> None:
    """What a call does to a disk."""
    if step.call == "unlink":
        disk.pop(step.path, None)
        return
    file = disk.setdefault(step.path, File())
    if step.call in ("fsync", "fdatasync"):
        file.sync()
    elif step.call == "ftruncate":
        file.pending.append((step.place or 0, None))
    else:
        assert step.call in ("write", "pwrite64"), f"{step.call} is not understood"
        end = len(file.with_writes(file.pending))
        file.pending.append((end if step.place is None else step.place, step.data))


def survivals(
    disk: dict[Path, File], pick: random.Random, ways: int
) -> Iterator[dict[Path, bytes]]:
    """What may be on the disk: only what was synced, all, or some of it, the last one torn."""
    yield {path: file.synced for path, file in disk.items()}
    if not any(file.pending for file in disk.values()):
        return
    yield {path: file.with_writes(file.pending) for path, file in disk.items()}
    for _ in range(ways):
        yield {path: file.with_writes(some(file, pick)) for path, file in disk.items()}


def some(file: File, pick: random.Random) -> list[tuple[int, bytes | None]]:
    """Some of the writes since the last sync."""
    kept = [write for write in file.pending if pick.random() < 0.5]
    if kept and kept[-1][1]:
        place, data = kept[-1]
        kept[-1] = place, data[: pick.randrange(len(data) + 1)]
    return kept


def judge(north: EnrolledSource, files: dict[Path, bytes], left: list[bytes]) -> None:
    """Every sent reply is stored with its head, and the source continues."""
    where = f"after {len(left)} replies"
    sources.put_back(files, [*sources.ledger_files(north), *sources.heads_files(north)])
    try:
        result = sources.verified(north)
        assert len(left) <= len(result) <= len(left) + 1, f"{where}: {len(result)} entries"
        again = north.reopened()
        heads = b"".join(path.read_bytes() for path in sources.heads_files(north))
        for number, reply in enumerate(left):
            answer = unseal_reply(reply, north.terms.key)
            assert isinstance(answer, Answer), f"{where}: a proper request was refused"
            assert answer.head.signature.encode() in heads, f"{where}: a head is lost"
            if number >= len(left) - 2:
                same = again.server.reply(query(north, number))
                assert same == reply, f"{where}: reply {number + 1} is lost or changed"
        last = again.server.reply(query(north, len(left)))
        assert sources.is_answer(north, last), f"{where}: refused: {again.why}"
        assert len(sources.verified(north)) == len(left) + 1, f"{where}: charged twice"
    except VeracalError as error:
        raise AssertionError(f"{where}: {error}") from error


# ---------------------------------------------------------------- disks that lie


def torn_logs(north: EnrolledSource, pick: random.Random, trials: int) -> tuple[int, int]:
    """Tear the log of a ledger; how often, and how often that lost what had left."""
    place, log = sources.ledger_files(north)
    replies, ends = [], []
    with closing(sqlite3.connect(place)) as other:  # as long as it is open, the log stays
        other.execute("SELECT * FROM opening").fetchall()
        for number in range(ANSWERS):
            replies.append(north.server.reply(query(north, number)))
            ends.append(log.stat().st_size)
        content, whole = place.read_bytes(), log.read_bytes() + pick.randbytes(8_192)
        heads = sources.contents(sources.heads_files(north))
    lost = 0
    for trial in range(trials):
        damage = pick.randrange(len(whole) + 1)
        torn = (cut, overwritten, flipped)[trial % 3](whole, damage, pick)
        sources.put_back({place: content, log: torn, **heads}, [place, log, *heads])
        kept = sum(end <= damage for end in ends)
        lost += kept < ANSWERS
        reply = north.reopened().server.reply(query(north, 0))
        if kept < ANSWERS:
            assert reply == north.server.refusal, (
                f"{kept} of {ANSWERS} answers are left: answers"
            )
        else:
            assert reply == replies[0], "another reply, though nothing is lost"
    return trials, lost


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
