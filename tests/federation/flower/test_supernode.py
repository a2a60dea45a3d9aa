"""Whatever a SuperLink sends, a node answers requests, and does nothing else."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.federation.flower.conftest import until
from tests.federation.flower.hostile import hostile_class, served
from veracal.errors import DataError, TransportError
from veracal.federation.flower.superlink import make_server_files
from veracal.federation.flower.supernode import serve_node
from veracal.federation.flower.wire import make_node_key, metadata, pack_message

pytestmark = pytest.mark.full

ALLOWED = {
    "activate-node",
    "deactivate-node",
    "pull-messages",
    "pull-object",
    "confirm-message-received",
    "push-messages",
    "push-object",
    "send-node-heartbeat",
}


class Node:
    """A node in a thread of this process, and what it did."""

    def __init__(self, folder, address, ca, answer) -> None:
        self.lines, self.calls, self.stop = [], [], threading.Event()
        self.problem: BaseException | None = None
        self._answer, self._place = answer, (folder, address, ca)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        folder, address, ca = self._place
        try:
            serve_node(
                self._answered,
                address=address,
                ca=ca,
                node_key=folder / "node.key",
                home=folder / "home",
                stop=self.stop,
                log=self.lines.append,
                poll=0.01,
            )
        except BaseException as problem:
            self.problem = problem

    def _answered(self, request: bytes) -> bytes:
        self.calls.append(request)
        return self._answer(request)


@contextmanager
def running(folder, address, ca, answer=lambda request: b"answer to " + request):
    """A node that runs while the block lasts."""
    node = Node(folder, address, ca, answer)
    node.thread.start()
    try:
        yield node
    finally:
        node.stop.set()
        node.thread.join(240)
        assert not node.thread.is_alive()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    make_node_key(tmp_path / "node.key")
    return make_server_files(tmp_path)


@pytest.fixture
def link(files) -> Iterator[tuple[str, type]]:
    handler = hostile_class()
    for address in served(files, handler):
        yield address, handler


def letter(body: bytes, lasts: float = 60.0):
    return pack_message(body, metadata(1, sender=1, receiver=7, ttl=lasts))


def test_a_request_is_answered_and_no_app_is_fetched(tmp_path, files, link):
    address, handler = link
    handler.letters += [letter(b"one"), letter(b"two")]
    with running(tmp_path, address, files.authority) as node:
        until(lambda: len(handler.pushed) == 2)
    assert node.calls == [b"one", b"two"] and node.problem is None
    assert node.lines == [f"Connected to {address}. Requests are answered."]
    assert set(handler.visits) <= ALLOWED
    assert handler.visits[-1] == "deactivate-node"


def test_the_time_of_an_answer_is_not_reported(tmp_path, files, link):
    address, handler = link
    handler.letters.append(letter(b"one"))
    with running(tmp_path, address, files.authority):
        until(lambda: handler.pushed)
    assert list(handler.pushed[0].clientapp_runtime_list) == [0.0]


def test_a_reply_expires_with_its_request(tmp_path, files, link):
    # A SuperLink drops a reply that outlasts its request by a tenth of a second, and says so
    # to nobody: a machine that is busy between two looks at the clock would lose its answer.
    address, handler = link
    handler.letters.append(requested := letter(b"one"))
    with running(tmp_path, address, files.authority):
        until(lambda: handler.pushed)
    request, reply = requested[0].metadata, handler.pushed[0].messages_list[0].metadata
    assert reply.created_at + reply.ttl == pytest.approx(
        request.created_at + request.ttl, rel=0, abs=1e-6
    )


@pytest.mark.parametrize("mode", ["astray", "bomb", "flood", "noise", "failure", "hang_up"])
@pytest.mark.parametrize(
    "call",
    [
        "pull-messages",
        "pull-object",
        pytest.param("push-messages", marks=pytest.mark.long),
        pytest.param("confirm", marks=pytest.mark.long),
    ],
)
def test_a_node_survives_errors_of_a_superlink(tmp_path, files, link, mode, call):
    address, handler = link
    handler.mode, handler.only, handler.elsewhere = mode, call, f"https://{address}/inner"
    handler.letters += [letter(b"first"), letter(b"second")]
    with running(tmp_path, address, files.authority) as node:
        until(lambda: len([visit for visit in handler.visits if visit.startswith(call)]) >= 2)
        handler.mode = "proper"
        handler.letters.append(letter(b"last"))
        until(lambda: handler.pushed and node.calls[-1] == b"last")
    assert node.problem is None
    assert set(handler.visits) <= ALLOWED  # no redirect was followed
    assert "essay" not in "".join(node.lines)


def too_many_pieces():
    proto, tree, pieces = letter(b"many")
    tree.children.append(tree.children[0])
    return proto, tree, pieces


def other_bytes():
    proto, tree, pieces = letter(b"spoiled")
    return proto, tree, {name: b"\xff" + piece for name, piece in pieces.items()}


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda: letter(bytes(4_097)),
        lambda: letter(bytes(60_000)),
        lambda: letter(bytes(200_000)),
        too_many_pieces,
        other_bytes,
        lambda: (letter(b"bare")[0], None, {}),
        lambda: (*letter(b"gone")[:2], {}),
    ],
    ids=["long", "longer", "longest", "pieces", "bytes", "bare", "gone"],
)
def test_an_invalid_message_is_dropped(tmp_path, files, link, spoiled):
    address, handler = link
    handler.letters += [spoiled(), letter(b"proper")]
    with running(tmp_path, address, files.authority) as node:
        until(lambda: handler.pushed)
    assert node.calls == [b"proper"] and node.problem is None
    assert [line for line in node.lines if line.startswith("A message was dropped.")]


@pytest.mark.parametrize("lasts", [float("nan"), float("-inf"), -1e300, 0.0])
def test_an_invalid_expiry_is_harmless(tmp_path, files, link, lasts):
    address, handler = link
    handler.letters += [letter(b"odd", lasts), letter(b"proper")]
    with running(tmp_path, address, files.authority) as node:
        until(lambda: b"proper" in node.calls and handler.pushed)
    assert node.problem is None


def test_a_rejected_signature_is_explained_once(tmp_path, files, link):
    address, handler = link
    handler.mode = "unsigned"
    with running(tmp_path, address, files.authority) as node:
        until(lambda: handler.visits.count("activate-node") >= 2)
    (line,) = node.lines
    assert "rejects this node's signature: its clock may be wrong" in line


def test_an_unreachable_superlink_is_retried(tmp_path, files):
    with running(tmp_path, "127.0.0.1:1", files.authority) as node:
        until(lambda: node.lines)
    assert node.lines == ["127.0.0.1:1 cannot be reached. Trying again."]


def test_nothing_is_sent_to_a_superlink_of_another_authority(tmp_path, files, link):
    address, handler = link
    other = tmp_path / "other"
    other.mkdir()
    with running(tmp_path, address, make_server_files(other).authority) as node:
        node.thread.join(240)
    assert isinstance(node.problem, TransportError)
    assert f"The certificate of {address} is not signed by" in str(node.problem)
    assert handler.visits == []


@pytest.mark.parametrize("missing", ["node.key", "ca.crt"])
def test_a_file_that_is_missing_is_named(tmp_path, files, missing):
    (tmp_path / missing).unlink()
    with running(tmp_path, "127.0.0.1:1", files.authority) as node:
        node.thread.join(240)
    assert isinstance(node.problem, DataError) and missing in str(node.problem)
