"""Shared by the gates of sources: small sources, restored files, mutants.

A subject is a set of patches, as in the gates of the ledger (:mod:`assurance.ledgers`). The
sources are real: a folder, an enrollment, a ledger, signed heads and a server.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from assurance import ledgers
from assurance.ledgers import Patches
from tests.federation.source.enrolled import EnrolledSource, make_source, scores
from veracal.data import Scores, save_scores
from veracal.federation.protocol.envelopes import REQUEST, EnvelopeError
from veracal.federation.protocol.messages import Answer, Head, unseal_reply
from veracal.federation.source.enrollment import UNIT
from veracal.federation.source.folder import SignedHeads, read_source
from veracal.ledger import charging as ledger_charge
from veracal.ledger.chain import Entry
from veracal.ledger.charging import ChargeRequest

SOURCE = "veracal.federation.source."
KEEP = "veracal.federation.source.folder.SignedHeads.keep"
CHARGED = "veracal.federation.source.serving.SourceServer._charge_and_answer"
EVALUATED = "veracal.federation.source.serving.evaluate_query"
LAPLACE = "veracal.federation.source.serving.add_discrete_laplace"
Contents = Mapping[Path, bytes]
__all__ = ["EnrolledSource", "Patches", "make_source", "scores"]


# ---------------------------------------------------------------- sources


@contextmanager
def enrolled(
    patches: Patches, *, heads: bool = True, **changed: Any
) -> Iterator[EnrolledSource]:
    """A source under patches, with a second file of heads elsewhere unless none is wanted.

    Its deadline is one that no query comes near, however busy the machine is: enrolling
    measures how long queries take.
    """
    changed = {"deadline": 600.0, **changed}
    with ledgers.patched(patches) as folder:
        also = folder / "elsewhere" if heads else None
        yield make_source(folder / "north", heads=also, **changed)


def is_answer(source: EnrolledSource, reply: bytes) -> bool:
    """Whether a reply is an answer; it must be one, or the one refusal there is."""
    if reply == source.server.refusal:
        return False
    try:
        result = unseal_reply(reply, source.terms.key)
    except EnvelopeError as error:
        raise AssertionError(f"a reply is neither answer nor refusal: {error}") from error
    assert isinstance(result, Answer), "there is more than one refusal"
    return True


def signed(content: bytes, key: Any) -> bytes:
    """Any bytes as the body of a request."""
    signature = key.sign(REQUEST.encode() + b"\n" + content)
    return f"{REQUEST}\n{signature}\n".encode() + content


def verified(source: EnrolledSource) -> tuple[Entry, ...]:
    """The entries of a source's ledger, which holds together and adds up."""
    entries = ledgers.verified(source.ledger)
    spent = source.ledger.spent().epsilon
    assert spent == sum(entry.cost for entry in entries) / 10**6, "not all answers are paid"
    return entries


def put_records(source: EnrolledSource, records: Scores) -> None:
    """Let other records lie where the enrolled ones do, as if they had been enrolled."""
    place = source.folder / "records.npz"
    place.unlink()
    save_scores(records, place, unit=UNIT)
    fields = source.folder / "private.json"
    private = json.loads(fields.read_bytes())
    private["records"] = read_source(source.path).digest_key.of_file(place)
    fields.write_text(json.dumps(private, sort_keys=True, separators=(",", ":")) + "\n")


# ---------------------------------------------------------------- files


def heads_files(source: EnrolledSource) -> list[Path]:
    """Every file that keeps the heads of an enrollment."""
    elsewhere = read_source(source.path).heads
    return [source.folder / "heads", *([] if elsewhere is None else [elsewhere])]


def ledger_files(source: EnrolledSource) -> list[Path]:
    """A ledger and its log; the third file is derived from these."""
    return [source.folder / "spent.ledger", source.folder / "spent.ledger-wal"]


def contents(paths: Iterable[Path]) -> dict[Path, bytes]:
    """What files hold, of those that are there."""
    values = {}
    for path in paths:
        try:
            values[path] = path.read_bytes()
        except FileNotFoundError:
            continue
    return values


def put_back(kept: Contents, paths: Iterable[Path]) -> None:
    """Let files hold what they held, and remove those that were not there."""
    for path in paths:
        path.unlink(missing_ok=True)
        Path(f"{path}-shm").unlink(missing_ok=True)
    for path, content in kept.items():
        path.write_bytes(content)
        path.chmod(0o600)


def every_file(folder: Path) -> list[Path]:
    """All files of a folder but those that a ledger recreates."""
    return [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith("-shm")]


def heads_in(path: Path, source: EnrolledSource) -> set[Head]:
    """The heads of an enrollment in a file of whole lines."""
    values = set()
    for line in path.read_bytes().split(b"\n")[:-1]:
        fields = json.loads(line)
        if fields.pop("source") == source.terms.source:
            values.add(Head.from_json(fields, source.terms.source))
    return values


# ---------------------------------------------------------------- noise that is known


@dataclass
class Tape:
    """Noise that is a function of nothing but how much is drawn, and notes what it is for."""

    drawn: list[tuple[int, float]]

    def add_noise(self, exact: Any, noise: float) -> np.ndarray:
        """Numbers that are independent of the values that they are added to."""
        self.drawn.append((len(exact), noise))
        rng = np.random.default_rng(len(self.drawn))
        return rng.integers(-1_000, 1_000, size=len(exact))


@contextmanager
def taped() -> Iterator[Tape]:
    """Replace every draw of noise by what a tape holds."""
    tape = Tape([])
    with (
        mock.patch(LAPLACE, tape.add_noise),
        mock.patch("veracal.federation.source.serving.add_discrete_gaussian", tape.add_noise),
    ):
        yield tape


# ---------------------------------------------------------------- mutants


def unchecked(*_: object) -> None:
    """Check nothing."""


def redraw_answer(connection: Any, pending: ChargeRequest) -> Any:
    """Find the earlier entry, and answer with other noise."""
    result = FIND(connection, pending)
    if result is None or result[1] is None:
        return result
    fields = json.loads(result[1])
    fields["units"] = [unit + secrets.randbelow(10**6) for unit in fields["units"]]
    return result[0], json.dumps(fields).encode()


FIND = ledger_charge._find_previous
REDRAWN: Patches = {ledgers.KEPT: redraw_answer}
KEPT_HEAD: Callable[[SignedHeads, Head], None] = SignedHeads.keep
