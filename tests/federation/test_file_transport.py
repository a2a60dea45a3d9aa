"""Requests and answers as files, carried by untrusted parties and whatever else lies there."""

import os
import threading
from pathlib import Path

import pytest

from veracal.accounting import Unit
from veracal.errors import DataError, PendingError
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Head, Refusal, Request
from veracal.federation.protocol.terms import Terms
from veracal.federation.transports import (
    SETTLED,
    FilesTransport,
    deliver_file,
    file_stem,
    read_untrusted_file,
    serve_folder,
    slug,
)

COORDINATOR = PrivateKey.new()
STRANGER = PrivateKey.new()


class SourceServer:
    """Answers what the coordinator signed, refuses the rest, and counts both."""

    def __init__(self, name: str, digits: str) -> None:
        self.key = PrivateKey.new()
        self.requests: list[bytes] = []
        self.terms = Terms(
            digits * 32,
            name,
            self.key.public,
            COORDINATOR.public,
            "0" * 64,
            "1" * 32,
            2,
            "logits",
            "add-remove",
            Unit(),
            1_000_000,
            0.0,
            1_000_000,
            ("counts",),
        )

    def request(self, micro_epsilon: int = 1, key: PrivateKey = COORDINATOR) -> bytes:
        terms = self.terms
        requested = Request(terms.source, terms.data, terms.model, "counts", {}, micro_epsilon)
        return requested.seal(key)

    def answer(self, raw: bytes) -> bytes:
        self.requests.append(raw)
        try:
            requested = Request.unseal(raw, COORDINATOR.public)
        except ValueError:
            return Refusal(self.terms.source).seal(self.key)
        head = Head.sign(self.terms.source, 1, "2" * 64, "3" * 64, self.key)
        return Answer(requested.id, (requested.micro_epsilon or 0,), head).seal(self.key)


@pytest.fixture
def server() -> SourceServer:
    return SourceServer("Clinic North", "a")


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def old(path: Path) -> None:
    """As if a file was not written to for a while."""
    then = path.stat().st_mtime - 2 * SETTLED
    os.utime(path, (then, then))


def carry(here: Path, there: Path) -> None:
    """Move every file."""
    for path in sorted(here.iterdir()):
        path.replace(there / path.name)


def test_requests_and_answers_can_be_carried_by_hand(tmp_path, inbox, outbox):
    servers = [SourceServer("north", "a"), SourceServer("south", "b")]
    requested = {server.terms.source: server.request() for server in servers}
    places = tmp_path / "requests", tmp_path / "answers"

    def ask() -> dict[str, bytes]:
        return dict(
            FilesTransport(*places, [d.terms for d in servers]).exchange(requested, timeout=1)
        )

    with pytest.raises(PendingError, match="Waiting for answers of north, south: carry") as no:
        ask()
    assert no.value.sources == ("north", "south")
    for server in servers:
        for path in places[0].glob(f"{server.terms.name}-*"):
            (inbox / path.name).write_bytes(path.read_bytes())
        assert serve_folder(server, inbox, outbox, once=True) == 1
    assert not list(inbox.iterdir())
    carry(outbox, places[1])

    assert ask() == {server.terms.source: server.answer(server.request()) for server in servers}
    assert not list(places[0].iterdir())  # nothing is left to be carried


def test_an_answer_is_yielded_before_the_wait_for_others_ends(tmp_path, inbox):
    servers = [SourceServer("north", "a"), SourceServer("south", "b")]
    requested = {server.terms.source: server.request() for server in servers}
    folder = tmp_path / "both"
    transport = FilesTransport(folder, folder, [server.terms for server in servers])
    with pytest.raises(PendingError):
        list(transport.exchange(requested, timeout=1))
    (north,) = folder.glob("north-*")
    (inbox / north.name).write_bytes(north.read_bytes())
    serve_folder(servers[0], inbox, folder, once=True)

    came = transport.exchange(requested, timeout=1)
    assert next(came)[0] == servers[0].terms.source
    with pytest.raises(PendingError, match="answers of south") as no:
        next(came)
    assert no.value.sources == ("south",)


def test_sources_that_were_given_up_are_not_awaited(tmp_path, server):
    transport = FilesTransport(tmp_path, tmp_path, [server.terms], given_up=["Clinic North"])
    assert list(transport.exchange({server.terms.source: server.request()}, timeout=1)) == []
    with pytest.raises(ValueError, match="Expected to give up sources of the list, got Norht"):
        FilesTransport(tmp_path, tmp_path, [server.terms], given_up=["Norht"])


def test_a_coordinator_that_waits_gets_the_answer_when_it_appears(tmp_path, server, outbox):
    requested = {server.terms.source: server.request()}
    (tmp_path / "requests").mkdir()
    source = threading.Thread(target=_serve_one, args=(server, tmp_path / "requests", outbox))
    source.start()
    transport = FilesTransport(
        tmp_path / "requests", outbox, [server.terms], wait=60, poll=0.01
    )
    values = dict(transport.exchange(requested, timeout=1))
    source.join()
    assert values == {server.terms.source: server.answer(server.request())}


def _serve_one(server: SourceServer, inbox: Path, outbox: Path) -> None:
    """Serve until one answer was written."""
    while not serve_folder(server, inbox, outbox, once=True):
        pass


def test_incomplete_and_wrong_answers_are_not_accepted(tmp_path, server):
    requested, answer = {server.terms.source: server.request()}, server.answer(server.request())
    transport = FilesTransport(tmp_path, tmp_path, [server.terms])
    place = tmp_path / (file_stem("Clinic North", server.request()) + ".answer")
    forged = Refusal(server.terms.source).seal(STRANGER)
    for content in (b"", answer[:-1], forged, answer + b"\n", bytes(2**20 + 1)):
        place.write_bytes(content)
        with pytest.raises(PendingError, match="again: it is not what the source signed"):
            list(transport.exchange(requested, timeout=1))
    place.unlink()
    (tmp_path / "elsewhere").write_bytes(answer)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PendingError):
        list(transport.exchange(requested, timeout=1))
    place.unlink()
    place.write_bytes(answer)
    assert dict(transport.exchange(requested, timeout=1)) == {server.terms.source: answer}


def test_an_answer_to_another_query_is_not_accepted(tmp_path, server):
    """It was renamed in transit; the right file may still arrive."""
    raw, other = server.request(1), server.request(2)
    transport = FilesTransport(tmp_path, tmp_path, [server.terms])
    place = tmp_path / f"{file_stem(server.terms.name, raw)}.answer"
    elsewhere = Refusal("b" * 32).seal(server.key)  # of another enrollment of the same source
    for wrong in (server.answer(other), elsewhere):
        place.write_bytes(wrong)
        with pytest.raises(PendingError, match="Bring clinic-north-.*answer again"):
            list(transport.exchange({server.terms.source: raw}, timeout=1))
    place.write_bytes(server.answer(raw))
    assert list(transport.exchange({server.terms.source: raw}, timeout=1)) == [
        (server.terms.source, server.answer(raw))
    ]


def test_a_request_is_written_once_and_overwrites_nothing(tmp_path, server):
    transport = FilesTransport(tmp_path, tmp_path, [server.terms])
    for _ in range(2):
        with pytest.raises(PendingError):
            list(transport.exchange({server.terms.source: server.request()}, timeout=1))
    (path,) = tmp_path.glob("*.request")
    assert path.read_bytes() == server.request()
    assert path.name.startswith("clinic-north-") and path.stat().st_mode & 0o777 == 0o600

    path.write_bytes(b"another")
    with pytest.raises(DataError, match="Nothing was overwritten"):
        list(transport.exchange({server.terms.source: server.request()}, timeout=1))
    assert path.read_bytes() == b"another"


def test_a_repeated_request_file_gets_the_same_bytes(server, inbox, outbox):
    kept = set()
    for name in ("a.request", "a.request", "other name (1).request"):
        (inbox / name).write_bytes(server.request())
        serve_folder(server, inbox, outbox, once=True)
        (answer,) = outbox.iterdir()
        kept.add((answer.name, answer.read_bytes()))
        answer.unlink()
    assert len(kept) == 1


def test_repeated_requests_do_not_delay_new_ones(server, inbox, outbox):
    """As if a folder is copied repeatedly, with answered requests."""
    first, *others = (server.request(micro_epsilon) for micro_epsilon in range(1, 5))
    (inbox / "0.request").write_bytes(first)
    serve_folder(server, inbox, outbox, once=True)
    for i, raw in enumerate((first, *others)):
        (inbox / f"{i}.request").write_bytes(raw)
    serve_folder(server, inbox, outbox, once=True)
    assert server.requests == [first, *others, first]


def test_an_answer_replaces_an_earlier_refusal(server, inbox, outbox):
    answer = server.answer
    server.answer = lambda raw: Refusal(server.terms.source).seal(server.key)
    (inbox / "a.request").write_bytes(server.request())
    serve_folder(server, inbox, outbox, once=True)
    server.answer = answer
    (inbox / "a.request").write_bytes(server.request())
    serve_folder(server, inbox, outbox, once=True)
    (path,) = outbox.iterdir()
    assert path.read_bytes() == answer(server.request())


def test_an_incomplete_request_waits_until_it_is_complete(server, inbox, outbox):
    place, whole = inbox / "a.request", server.request()
    for length in (0, 1, 100, len(whole) - 1):
        place.write_bytes(whole[:length])
        assert serve_folder(server, inbox, outbox, once=True) == 0
    assert server.requests == [] and place.exists()

    place.write_bytes(whole)
    assert serve_folder(server, inbox, outbox, once=True) == 1
    assert server.requests == [whole] and not place.exists()


def test_an_unsigned_file_is_refused_once_and_stays(server, inbox, outbox):
    place = inbox / "a.request"
    place.write_bytes(server.request(key=STRANGER))
    old(place)
    assert serve_folder(server, inbox, outbox, once=True) == 1
    assert serve_folder(server, inbox, outbox, once=True) == 0
    (answer,) = outbox.iterdir()
    assert answer.read_bytes() == Refusal(server.terms.source).seal(server.key)
    assert place.exists()


def test_unsigned_files_do_not_delay_the_coordinator(server, inbox, outbox):
    for i in range(5):
        (inbox / f"{i}.request").write_bytes(server.request(i + 1, key=STRANGER))
        old(inbox / f"{i}.request")
    (inbox / "z.request").write_bytes(server.request())
    assert serve_folder(server, inbox, outbox, once=True) == 6
    assert server.requests[0] == server.request()


@pytest.mark.parametrize("kind", ["huge", "link", "dangling", "folder", "pipe", "unreadable"])
def test_only_small_regular_files_are_read(kind, server, inbox, outbox):
    place, secret = inbox / "a.request", inbox / "secret"
    secret.write_bytes(server.request())
    match kind:
        case "huge":
            with place.open("wb") as file:
                file.truncate(10 * 2**40)  # ten terabytes of nothing
        case "link":
            place.symlink_to(secret)
        case "dangling":
            place.symlink_to(inbox / "nowhere")
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "unreadable":
            place.write_bytes(server.request())
            place.chmod(0)
            if os.access(place, os.R_OK):
                place.unlink()  # root can read every file: use a socket instead
                place.symlink_to("/dev/zero")
    lines: list[str] = []
    assert serve_folder(server, inbox, outbox, once=True, log=lines.append) == 0
    assert server.requests == [] and not list(outbox.iterdir())
    assert os.path.lexists(place)
    (line,) = lines
    assert line.startswith("a.request: ignored: it ")


@pytest.mark.parametrize(
    "name", ["..request", "-rf.request", "a\nb.request", "\x1b[2J.request", "%s{0}.request"]
)
def test_unusual_file_names_are_harmless(name, server, inbox, outbox, tmp_path):
    (inbox / name).write_bytes(server.request())
    before = sorted(tmp_path.rglob("*"))
    lines: list[str] = []
    served = serve_folder(server, inbox, outbox, once=True, log=lines.append)
    new = {path for path in tmp_path.rglob("*") if path not in before}
    assert new == (
        {outbox / (file_stem("Clinic North", server.request()) + ".answer")}
        if served
        else set()
    )
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("name", ["../out.request", "/etc/passwd", "..", ""])
def test_a_name_that_is_a_path_is_not_opened(name, inbox):
    result = read_untrusted_file(inbox, name, 10_000)
    assert result is not None and result.content is None


def test_a_full_outbox_loses_no_answer(server, inbox, outbox):
    (inbox / "a.request").write_bytes(server.request())
    place = outbox / (file_stem("Clinic North", server.request()) + ".answer")
    place.mkdir()  # simulates any failure of a write
    lines: list[str] = []
    assert serve_folder(server, inbox, outbox, once=True, log=lines.append) == 0
    assert "answered, but not written" in lines[0]
    place.rmdir()
    assert serve_folder(server, inbox, outbox, once=True) == 1
    assert place.read_bytes() == server.answer(server.request())


def test_a_read_only_inbox_is_served(server, inbox, outbox, monkeypatch):
    (inbox / "a.request").write_bytes(server.request())

    remove = Path.unlink

    def read_only(path: Path, missing_ok: bool = False) -> None:
        if path.parent == inbox:
            raise OSError(30, "Read-only file system")
        remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", read_only)
    lines: list[str] = []
    assert serve_folder(server, inbox, outbox, once=True, log=lines.append) == 1
    assert any("stays in the inbox: Read-only file system" in line for line in lines)


def test_inbox_and_outbox_must_exist_and_differ(server, inbox, tmp_path):
    with pytest.raises(DataError, match="Create it first"):
        serve_folder(server, inbox, tmp_path / "none", once=True)
    with pytest.raises(DataError, match="only you to the outbox"):
        serve_folder(server, inbox, inbox / "." / "", once=True)


def test_delivering_a_file_again_changes_nothing(tmp_path):
    assert deliver_file(tmp_path, "a", b"x") and not deliver_file(tmp_path, "a", b"x")
    with pytest.raises(DataError, match="Move it away"):
        deliver_file(tmp_path, "a", b"y")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("North", "north"),
        ("../../etc", "etc"),
        ("…", "source"),
        ("ß Ä" + "x" * 99, "a" + "x" * 38),
    ],
)
def test_source_names_are_converted_to_file_names(name, expected):
    assert slug(name).startswith(expected[:1]) and len(slug(name)) <= 40
    assert set(slug(name)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
