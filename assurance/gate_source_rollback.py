"""A source whose ledger was rolled back answers nothing until the right one is restored.

A source answers fifty queries, and all of its files are copied after each. Then every copy is
restored in every way that is detectable: only the ledger; the ledger and its heads, or the
whole folder, with external heads; the whole folder, while the coordinator quotes the last head;
and a ledger of the same length that continued from an older one. If a rollback restores every
trace of later entries, one machine cannot detect it: the gate does not claim this.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from assurance import sources
from assurance.sources import Contents, EnrolledSource, Patches, unchecked
from veracal.federation.protocol.messages import Head, Request
from veracal.federation.source.folder import RollbackError, SignedHeads, SourceFolder
from veracal.federation.source.serving import SourceServer
from veracal.ledger.ledger import Ledger

NAME = "source_rollback"
ANSWERS, FEW = 50, 10  # copies to put back: of the real source, of a mutant
COST = 10_000  # of every answer, in millionths


# ---------------------------------------------------------------- mutants


def own_file_alone(self: SourceFolder, source: str, folder: Path) -> SignedHeads:
    """The heads next to the ledger, and none elsewhere."""
    return SignedHeads(source, self.public, [folder / "heads"])


def quote_ignored(self: SourceServer, request: Request) -> None:
    """Check the files of heads, but not the head that the coordinator quotes."""
    self._heads.check(self._enrollment.ledger)


def quote_forgotten(self: SourceServer, request: Request) -> None:
    """Refuse a request that quotes a missing head, and the next one no more."""
    with mock.patch.object(self._heads, "add", unchecked):
        CHECK_HEADS(self, request)


def accept_unsigned_quote(self: SourceServer, request: Request) -> None:
    """Believe whatever head is quoted, signed or not."""
    with mock.patch.object(Head, "verify", return_value=True):
        CHECK_HEADS(self, request)


def by_number(self: SignedHeads, ledger: Ledger, quoted: Head | None = None) -> None:
    """Compare how long the ledger is, not what it holds."""
    heads = [head for file in self._files for head in file.read_new()]
    own = [head.index for head in heads if head.source == self.source]
    if max(own, default=0) > len(ledger.entries()):
        raise RollbackError("An older copy was restored.")


CHECK_HEADS = SourceServer._check_heads
SERVER, SIGNED = (
    sources.SOURCE + "serving.SourceServer.",
    sources.SOURCE + "folder.SignedHeads.",
)
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "heads not checked": {SIGNED + "check": unchecked},
    "heads elsewhere ignored": {
        sources.SOURCE + "folder.SourceFolder.signed_heads": own_file_alone
    },
    "quoted head not checked": {SERVER + "_check_heads": quote_ignored},
    "quoted head not kept": {SERVER + "_check_heads": quote_forgotten},
    "length compared, not content": {SIGNED + "check": by_number},
    "quoted head believed unsigned": {SERVER + "_check_heads": accept_unsigned_quote},
}


# ---------------------------------------------------------------- the gate


@dataclass(frozen=True)
class Past:
    """What a source had on the disk after some answers, and where it signed it was."""

    folder: Contents
    elsewhere: Contents
    head: Head


def run(subject: Patches, *, long: bool) -> str:
    """Put every copy back, in every way."""
    refused, answers = 0, ANSWERS if subject is CORRECT else FEW
    for elsewhere in (False, True):
        with sources.enrolled(subject, heads=elsewhere, epsilon=1.0) as north:
            past = list(history(north, answers))
            for name, restore in (WITH_HEADS if elsewhere else ALONE).items():
                for before in past[-6:-1] if restore is another_future else past[:-1]:
                    noticed(name, north, restore, before, past[-1])
                    refused += 1
            if not elsewhere:
                forged_quote(north)
    return f"{refused} times an older copy was put back, in 5 ways: all refused, none charged"


def history(north: EnrolledSource, answers: int) -> Iterator[Past]:
    """Answer, and copy everything after each answer."""
    for number in range(answers + 1):
        head = north.ask(micro_epsilon=COST + number).head
        beside = sources.heads_files(north)[1:]
        yield Past(
            sources.contents(sources.every_file(north.path)), sources.contents(beside), head
        )


def noticed(
    name: str,
    north: EnrolledSource,
    restore: Callable[[EnrolledSource, Past, Past], Head | None],
    before: Past,
    now: Past,
) -> None:
    """An older copy is refused, by a server that was open or by a new one, and ever after."""
    where = f"{name}, {before.head.index} of {now.head.index} answers"
    quoted = restore(north, before, now)
    held = len(north.ledger.entries())
    server = (north if before.head.index % 4 == 2 else north.reopened()).server
    new = north.raw("bins", micro_epsilon=COST, head=quoted)
    assert server.reply(new) == server.refusal, f"{where}: an older ledger answers"
    again = north.reopened().server if before.head.index % 2 else server
    old = north.raw(micro_epsilon=COST)  # and the next request need not quote
    assert again.reply(old) == server.refusal, f"{where}: an older ledger repeats itself"
    assert len(north.ledger.entries()) == held, f"{where}: an older ledger is charged"
    if before.head.index % 10 == 1:
        check_recovery(where, north, now)
    put(north, now)


def check_recovery(where: str, north: EnrolledSource, now: Past) -> None:
    """The owner reads what happened, and the right ledger is served again."""
    assert "older copy" in north.why, f"{where}: its owner is not informed"
    put(north, now)
    for server in (north.server, north.reopened().server):
        reply = server.reply(north.raw(micro_epsilon=COST))
        assert sources.is_answer(north, reply), f"{where}: refused though it is as it was"


def put(north: EnrolledSource, past: Past) -> None:
    """Let everything lie as it did."""
    sources.put_back(past.folder, sources.every_file(north.path))
    sources.put_back(past.elsewhere, past.elsewhere)


def ledger_alone(north: EnrolledSource, before: Past, now: Past) -> None:
    """The ledger, as from a backup of databases."""
    files = sources.ledger_files(north)
    sources.put_back({p: before.folder[p] for p in files if p in before.folder}, files)


def ledger_and_heads(north: EnrolledSource, before: Past, now: Past) -> None:
    """The ledger, and the heads next to it."""
    ledger_alone(north, before, now)
    beside = north.folder / "heads"
    sources.put_back({beside: before.folder[beside]}, [beside])


def whole_folder(north: EnrolledSource, before: Past, now: Past) -> None:
    """The whole folder of the source."""
    sources.put_back(before.folder, sources.every_file(north.path))


def everything_but_a_quote(north: EnrolledSource, before: Past, now: Past) -> Head:
    """All that the source has; the coordinator quotes what it was signed last."""
    put(north, before)
    return now.head


def another_future(north: EnrolledSource, before: Past, now: Past) -> None:
    """A ledger that continued from an older one to the same length, with the old heads."""
    put(north, before)
    with mock.patch(SIGNED + "check", unchecked):
        going_on = north.reopened()
        for number in range(now.head.index - before.head.index):
            going_on.ask("bins-paper", micro_epsilon=COST + number)
    for path, content in (*now.folder.items(), *now.elsewhere.items()):
        if path.name in ("heads", "elsewhere"):
            path.write_bytes(content)


def forged_quote(north: EnrolledSource) -> None:
    """A head without a valid signature neither answers nor blocks a source."""
    real = north.ask(micro_epsilon=COST).head
    forged = Head(real.source, 10**6, "0" * 64, "0" * 64, "0" * 128)
    raw = north.raw("bins", micro_epsilon=COST, head=forged)
    assert north.server.reply(raw) == north.server.refusal, "a forged head was believed"
    reply = north.server.reply(north.raw("bins", micro_epsilon=COST))
    assert sources.is_answer(north, reply), "a forged head shut the source"


WITH_HEADS: dict[str, Any] = {
    "ledger and heads": ledger_and_heads,
    "whole folder": whole_folder,
}
ALONE: dict[str, Any] = {
    "whole folder, quoted": everything_but_a_quote,
    "ledger alone": ledger_alone,
    "another future": another_future,
}
