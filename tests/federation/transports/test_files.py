"""Files carry requests and answers, whoever carries the files and whatever else lies there."""

import os
import threading
from pathlib import Path

import pytest

from veracal.accounting import Unit
from veracal.errors import DataError, WaitingError
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, Head, Refusal, Request
from veracal.federation.protocol.terms import Terms
from veracal.federation.transports.files import (
    SETTLED,
    FilesTransport,
    look,
    put,
    serve_folder,
    slug,
    stem,
)

CALIBRATOR = PrivateKey.new()
STRANGER = PrivateKey.new()


class SourceServer:
    """Answers what the calibrator signed, refuses the rest, and counts both."""

    def __init__(self, name: str, digits: str) -> None:
        self.key = PrivateKey.new()
        self.asked: list[bytes] = []
        self.terms = Terms(
            digits * 32,
            name,
            self.key.public,
            CALIBRATOR.public,
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

    def request(self, micro_epsilon: int = 1, key: PrivateKey = CALIBRATOR) -> bytes:
        terms = self.terms
        asked = Request(terms.source, terms.data, terms.model, "counts", {}, micro_epsilon)
        return asked.sealed(key)

    def answer(self, raw: bytes) -> bytes:
        self.asked.append(raw)
        try:
            asked = Request.unsealed(raw, CALIBRATOR.public)
        except ValueError:
            return Refusal(self.terms.source).sealed(self.key)
        head = Head.signed(self.terms.source, 1, "2" * 64, "3" * 64, self.key)
        return Answer(asked.id, (asked.micro_epsilon or 0,), head).sealed(self.key)


@pytest.fixture
def desk() -> SourceServer:
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
    """As if nobody had written to a file for a while."""
    then = path.stat().st_mtime - 2 * SETTLED
    os.utime(path, (then, then))


def carry(here: Path, there: Path) -> None:
    """Move every file."""
    for path in sorted(here.iterdir()):
        path.replace(there / path.name)


def test_requests_and_answers_are_carried_by_hand(tmp_path, inbox, outbox):
    desks = [SourceServer("north", "a"), SourceServer("south", "b")]
    asked = {desk.terms.source: desk.request() for desk in desks}
    places = tmp_path / "requests", tmp_path / "answers"

    def ask() -> dict[str, bytes]:
        return dict(
            FilesTransport(*places, [d.terms for d in desks]).exchange(asked, timeout=1)
        )

    with pytest.raises(WaitingError, match="Waiting for answers of north, south: carry") as no:
        ask()
    assert no.value.sources == ("north", "south")
    for desk in desks:
        for path in places[0].glob(f"{desk.terms.name}-*"):
            (inbox / path.name).write_bytes(path.read_bytes())
        assert serve_folder(desk, inbox, outbox, once=True) == 1
    assert not list(inbox.iterdir())
    carry(outbox, places[1])

    assert ask() == {desk.terms.source: desk.answer(desk.request()) for desk in desks}
    assert not list(places[0].iterdir())  # nothing is left to be carried


def test_an_answer_that_came_is_handed_on_before_the_wait_for_others_ends(tmp_path, inbox):
    desks = [SourceServer("north", "a"), SourceServer("south", "b")]
    asked = {desk.terms.source: desk.request() for desk in desks}
    folder = tmp_path / "both"
    transport = FilesTransport(folder, folder, [desk.terms for desk in desks])
    with pytest.raises(WaitingError):
        list(transport.exchange(asked, timeout=1))
    (north,) = folder.glob("north-*")
    (inbox / north.name).write_bytes(north.read_bytes())
    serve_folder(desks[0], inbox, folder, once=True)

    came = transport.exchange(asked, timeout=1)
    assert next(came)[0] == desks[0].terms.source
    with pytest.raises(WaitingError, match="answers of south") as no:
        next(came)
    assert no.value.sources == ("south",)


def test_nobody_waits_for_who_was_given_up(tmp_path, desk):
    transport = FilesTransport(tmp_path, tmp_path, [desk.terms], given_up=["Clinic North"])
    assert list(transport.exchange({desk.terms.source: desk.request()}, timeout=1)) == []
    with pytest.raises(ValueError, match="Expected to give up sources of the list, got Norht"):
        FilesTransport(tmp_path, tmp_path, [desk.terms], given_up=["Norht"])


def test_a_calibrator_that_waits_gets_the_answer_when_it_appears(tmp_path, desk, outbox):
    asked = {desk.terms.source: desk.request()}
    (tmp_path / "requests").mkdir()
    source = threading.Thread(target=_serve_one, args=(desk, tmp_path / "requests", outbox))
    source.start()
    transport = FilesTransport(tmp_path / "requests", outbox, [desk.terms], wait=60, poll=0.01)
    found = dict(transport.exchange(asked, timeout=1))
    source.join()
    assert found == {desk.terms.source: desk.answer(desk.request())}


def _serve_one(desk: SourceServer, inbox: Path, outbox: Path) -> None:
    """Serve until one answer was written."""
    while not serve_folder(desk, inbox, outbox, once=True):
        pass


def test_half_an_answer_is_waited_for_and_another_one_too(tmp_path, desk):
    asked, answer = {desk.terms.source: desk.request()}, desk.answer(desk.request())
    transport = FilesTransport(tmp_path, tmp_path, [desk.terms])
    place = tmp_path / (stem("Clinic North", desk.request()) + ".answer")
    forged = Refusal(desk.terms.source).sealed(STRANGER)
    for content in (b"", answer[:-1], forged, answer + b"\n", bytes(2**20 + 1)):
        place.write_bytes(content)
        with pytest.raises(WaitingError, match="again: it is not what the source signed"):
            list(transport.exchange(asked, timeout=1))
    place.unlink()
    (tmp_path / "elsewhere").write_bytes(answer)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WaitingError):
        list(transport.exchange(asked, timeout=1))
    place.unlink()
    place.write_bytes(answer)
    assert dict(transport.exchange(asked, timeout=1)) == {desk.terms.source: answer}


def test_an_answer_to_another_question_is_no_answer_to_this_one(tmp_path, desk):
    """Somebody has renamed it on its way; the right one may still come."""
    raw, other = desk.request(1), desk.request(2)
    transport = FilesTransport(tmp_path, tmp_path, [desk.terms])
    place = tmp_path / f"{stem(desk.terms.name, raw)}.answer"
    elsewhere = Refusal("b" * 32).sealed(desk.key)  # of another enrolment of the same source
    for wrong in (desk.answer(other), elsewhere):
        place.write_bytes(wrong)
        with pytest.raises(WaitingError, match="Bring clinic-north-.*answer again"):
            list(transport.exchange({desk.terms.source: raw}, timeout=1))
    place.write_bytes(desk.answer(raw))
    assert list(transport.exchange({desk.terms.source: raw}, timeout=1)) == [
        (desk.terms.source, desk.answer(raw))
    ]


def test_a_request_is_written_once_and_nothing_is_written_over(tmp_path, desk):
    transport = FilesTransport(tmp_path, tmp_path, [desk.terms])
    for _ in range(2):
        with pytest.raises(WaitingError):
            list(transport.exchange({desk.terms.source: desk.request()}, timeout=1))
    (path,) = tmp_path.glob("*.request")
    assert path.read_bytes() == desk.request()
    assert path.name.startswith("clinic-north-") and path.stat().st_mode & 0o777 == 0o600

    path.write_bytes(b"another")
    with pytest.raises(DataError, match="nothing was written over"):
        list(transport.exchange({desk.terms.source: desk.request()}, timeout=1))
    assert path.read_bytes() == b"another"


def test_a_request_that_comes_again_gets_the_same_bytes(desk, inbox, outbox):
    kept = set()
    for name in ("a.request", "a.request", "other name (1).request"):
        (inbox / name).write_bytes(desk.request())
        serve_folder(desk, inbox, outbox, once=True)
        (answer,) = outbox.iterdir()
        kept.add((answer.name, answer.read_bytes()))
        answer.unlink()
    assert len(kept) == 1


def test_requests_that_come_again_do_not_keep_new_ones_waiting(desk, inbox, outbox):
    """As where a folder is copied time and again, and nobody removes what was answered."""
    first, *others = (desk.request(micro_epsilon) for micro_epsilon in range(1, 5))
    (inbox / "0.request").write_bytes(first)
    serve_folder(desk, inbox, outbox, once=True)
    for i, raw in enumerate((first, *others)):
        (inbox / f"{i}.request").write_bytes(raw)
    serve_folder(desk, inbox, outbox, once=True)
    assert desk.asked == [first, *others, first]


def test_what_was_refused_once_and_is_answered_now_is_written_anew(desk, inbox, outbox):
    answer = desk.answer
    desk.answer = lambda raw: Refusal(desk.terms.source).sealed(desk.key)
    (inbox / "a.request").write_bytes(desk.request())
    serve_folder(desk, inbox, outbox, once=True)
    desk.answer = answer
    (inbox / "a.request").write_bytes(desk.request())
    serve_folder(desk, inbox, outbox, once=True)
    (path,) = outbox.iterdir()
    assert path.read_bytes() == answer(desk.request())


def test_half_a_request_is_left_until_it_is_whole(desk, inbox, outbox):
    place, whole = inbox / "a.request", desk.request()
    for length in (0, 1, 100, len(whole) - 1):
        place.write_bytes(whole[:length])
        assert serve_folder(desk, inbox, outbox, once=True) == 0
    assert desk.asked == [] and place.exists()

    place.write_bytes(whole)
    assert serve_folder(desk, inbox, outbox, once=True) == 1
    assert desk.asked == [whole] and not place.exists()


def test_what_nobody_signed_is_refused_once_and_stays(desk, inbox, outbox):
    place = inbox / "a.request"
    place.write_bytes(desk.request(key=STRANGER))
    old(place)
    assert serve_folder(desk, inbox, outbox, once=True) == 1
    assert serve_folder(desk, inbox, outbox, once=True) == 0
    (answer,) = outbox.iterdir()
    assert answer.read_bytes() == Refusal(desk.terms.source).sealed(desk.key)
    assert place.exists()


def test_strangers_do_not_keep_the_calibrator_waiting(desk, inbox, outbox):
    for i in range(5):
        (inbox / f"{i}.request").write_bytes(desk.request(i + 1, key=STRANGER))
        old(inbox / f"{i}.request")
    (inbox / "z.request").write_bytes(desk.request())
    assert serve_folder(desk, inbox, outbox, once=True) == 6
    assert desk.asked[0] == desk.request()


@pytest.mark.parametrize("kind", ["huge", "link", "dangling", "folder", "pipe", "unreadable"])
def test_what_is_no_small_plain_file_is_neither_read_nor_removed(kind, desk, inbox, outbox):
    place, secret = inbox / "a.request", inbox / "secret"
    secret.write_bytes(desk.request())
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
            place.write_bytes(desk.request())
            place.chmod(0)
            if os.access(place, os.R_OK):
                place.unlink()  # whoever may read everything sees a socket instead
                place.symlink_to("/dev/zero")
    lines: list[str] = []
    assert serve_folder(desk, inbox, outbox, once=True, tell=lines.append) == 0
    assert desk.asked == [] and not list(outbox.iterdir())
    assert os.path.lexists(place)
    (line,) = lines
    assert line.startswith("a.request: left alone: it ")


@pytest.mark.parametrize(
    "name", ["..request", "-rf.request", "a\nb.request", "\x1b[2J.request", "%s{0}.request"]
)
def test_odd_names_lead_nowhere(name, desk, inbox, outbox, tmp_path):
    (inbox / name).write_bytes(desk.request())
    before = sorted(tmp_path.rglob("*"))
    lines: list[str] = []
    served = serve_folder(desk, inbox, outbox, once=True, tell=lines.append)
    new = {path for path in tmp_path.rglob("*") if path not in before}
    assert new == (
        {outbox / (stem("Clinic North", desk.request()) + ".answer")} if served else set()
    )
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("name", ["../out.request", "/etc/passwd", "..", ""])
def test_a_name_that_is_a_path_is_not_opened(name, inbox):
    found = look(inbox, name, 10_000)
    assert found is not None and found.content is None


def test_a_full_outbox_loses_nothing(desk, inbox, outbox):
    (inbox / "a.request").write_bytes(desk.request())
    place = outbox / (stem("Clinic North", desk.request()) + ".answer")
    place.mkdir()  # stands for whatever keeps a file from being written
    lines: list[str] = []
    assert serve_folder(desk, inbox, outbox, once=True, tell=lines.append) == 0
    assert "answered, but not written" in lines[0]
    place.rmdir()
    assert serve_folder(desk, inbox, outbox, once=True) == 1
    assert place.read_bytes() == desk.answer(desk.request())


def test_an_inbox_that_cannot_be_written_to_is_served_as_well(desk, inbox, outbox, monkeypatch):
    (inbox / "a.request").write_bytes(desk.request())

    remove = Path.unlink

    def read_only(path: Path, missing_ok: bool = False) -> None:
        if path.parent == inbox:
            raise OSError(30, "Read-only file system")
        remove(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", read_only)
    lines: list[str] = []
    assert serve_folder(desk, inbox, outbox, once=True, tell=lines.append) == 1
    assert any("stays in the inbox: Read-only file system" in line for line in lines)


def test_folders_are_there_and_are_two(desk, inbox, tmp_path):
    with pytest.raises(DataError, match="Make it first"):
        serve_folder(desk, inbox, tmp_path / "none", once=True)
    with pytest.raises(DataError, match="only you to the outbox"):
        serve_folder(desk, inbox, inbox / "." / "", once=True)


def test_putting_a_file_again_changes_nothing(tmp_path):
    assert put(tmp_path, "a", b"x") and not put(tmp_path, "a", b"x")
    with pytest.raises(DataError, match="Move it away"):
        put(tmp_path, "a", b"y")
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
def test_names_of_sources_become_names_of_files(name, expected):
    assert slug(name).startswith(expected[:1]) and len(slug(name)) <= 40
    assert set(slug(name)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
