"""A source as a Flower node that answers messages and runs no foreign code.

Flower's own SuperNode fetches an app from the client that started a run, and executes it. This
node uses the same protocol and keys, but fetches messages only.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.federation.flower.wire import (
    MAX_REQUEST_BYTES,
    OVERHEAD_BYTES,
    SUPERLINK,
    ChunkedMessage,
    Connection,
    MessageError,
    certificate_error,
    connection_error,
    flower,
    http_error,
    http_status,
    metadata,
    pack_message,
    public_form,
    read_node_key,
    switch_off,
)

_INTERVAL = 30.0  # seconds; after twice that without a heartbeat a node is disconnected
_HEARTBEAT = 10.0
_PIECE_POLL = 0.1


@dataclass(frozen=True)
class ReceivedRequest:
    """A request that a node received.

    Parameters
    ----------
    body : bytes
    run, id : int, str
        Ids of the run and the message, for the reply.
    expires : float
        When the reply is no longer expected, in seconds since 1970.
    """

    body: bytes
    run: int
    id: str
    expires: float


class NodeConnection:
    """A node's connection to a SuperLink. It fetches messages and never an app.

    Parameters
    ----------
    address : str
        As ``host:port``.
    ca, node_key : path
        Certificate of the authority, and the node's private key.
    state : path
        File that stores the node id, to disconnect an earlier process that was killed.
    """

    def __init__(self, address: str, *, ca: Path, node_key: Path, state: Path) -> None:
        key = read_node_key(node_key)
        self._public = public_form(key.public_key())
        self._state = state
        library = flower()
        signature = library.NodeSignature(key, key.public_key())
        self._connection = Connection(
            library.FleetClient,
            address,
            ca,
            [signature],
            max_bytes=MAX_REQUEST_BYTES + OVERHEAD_BYTES,
        )
        self._node: Any = None

    def connect(self) -> None:
        """Connect, after disconnecting an earlier process with the same key."""
        with suppress(OSError, ValueError, http_error()):  # no state, or unknown there
            self._deactivate(int(self._state.read_text(encoding="ascii")))
        response = self._connection.call(
            "ActivateNode",
            flower().fleet.ActivateNodeRequest(
                public_key=self._public, heartbeat_interval=_INTERVAL
            ),
        )
        self._node = flower().node.Node(node_id=response.node_id)
        with suppress(OSError):  # a full disk only delays the connection after the next crash
            self._state.write_text(str(response.node_id), encoding="ascii")

    def next(self) -> ReceivedRequest | None:
        """Fetch the next request; None if there is none.

        Raises
        ------
        ParcelError
            If the message is invalid. It is dropped then.
        """
        response = self._connection.call(
            "PullMessages", flower().fleet.PullMessagesRequest(node=self._node)
        )
        if not response.messages_list:
            return None
        if not response.message_object_trees:
            raise MessageError("A message has no pieces.")
        message = ChunkedMessage(response.messages_list[0], response.message_object_trees[0])
        return self._fetch(message)

    def reply(self, request: ReceivedRequest, body: bytes) -> None:
        """Send the reply to a request."""
        library = flower()
        now = time.time()  # read once: a reply that expires after its request is dropped
        envelope = metadata(
            request.run,
            sender=self._node.node_id,
            receiver=SUPERLINK,
            ttl=max(request.expires - now, 0.001),
            reply_to=request.id,
            created=now,
        )
        proto, tree, pieces = pack_message(body, envelope)
        response = self._connection.call(
            "PushMessages",
            library.fleet.PushMessagesRequest(
                node=self._node,
                messages_list=[proto],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],  # do not reveal how long an answer took
            ),
        )
        for name in response.objects_to_push:
            if name in pieces:  # the SuperLink may only request pieces of this reply
                self._connection.call(
                    "PushObject",
                    library.message.PushObjectRequest(
                        node=self._node,
                        run_id=request.run,
                        object_id=name,
                        object_content=pieces[name],
                        session_id=response.session_id,
                    ),
                )

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        node = self._node
        if node is not None:
            self._connection.call(
                "SendNodeHeartbeat",
                flower().heartbeat.SendNodeHeartbeatRequest(
                    node=node, heartbeat_interval=_INTERVAL
                ),
            )

    def close(self) -> None:
        """Disconnect if possible, and close the connection."""
        with (
            closing(self._connection),
            suppress(connection_error(), http_error(), MessageError),
        ):
            if self._node is not None:
                self._deactivate(self._node.node_id)

    def _fetch(self, message: ChunkedMessage) -> ReceivedRequest:
        """Fetch the pieces of a message and confirm it."""
        envelope, library = message.metadata, flower()

        def pull(name: str) -> Any:
            return self._connection.call(
                "PullObject",
                library.message.PullObjectRequest(
                    node=self._node, run_id=envelope.run_id, object_id=name
                ),
            )

        expires = envelope.created_at + envelope.ttl
        while (body := message.fetch(pull)) is None:
            if not time.time() < expires:
                raise MessageError("A message expired before it was complete.")
            time.sleep(_PIECE_POLL)
        self._connection.call(
            "ConfirmMessageReceived",
            library.message.ConfirmMessageReceivedRequest(
                node=self._node, run_id=envelope.run_id, message_object_id=envelope.message_id
            ),
        )
        if len(body) > MAX_REQUEST_BYTES:
            raise MessageError(f"A request has more than {MAX_REQUEST_BYTES} bytes.")
        return ReceivedRequest(body, envelope.run_id, envelope.message_id, expires)

    def _deactivate(self, node_id: int) -> None:
        """Disconnect a node from the SuperLink."""
        self._connection.call(
            "DeactivateNode", flower().fleet.DeactivateNodeRequest(node_id=node_id)
        )


class Heartbeat:
    """Sends heartbeats in a thread, so that a busy node stays connected."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(_HEARTBEAT)  # a call that hangs ends with its own timeout

    def _run(self) -> None:
        """Send heartbeats until the end."""
        while not self._over.wait(_HEARTBEAT):
            # The loop that fetches messages has the same error, and connects again.
            with suppress(connection_error(), http_error(), MessageError):
                self._send()


_POLL = 0.5  # seconds
_MIN_WAIT, _MAX_WAIT = 0.5, 5.0  # before a retry
_UNKNOWN_KEY, _INVALID_SIGNATURE = 412, 401  # status codes of a SuperLink


def serve_node(
    answer: Callable[[bytes], bytes],
    *,
    address: str,
    ca: Path,
    node_key: Path,
    home: Path,
    stop: threading.Event,
    log: Callable[[str], None],
    poll: float = _POLL,
) -> None:
    """Answer requests from a SuperLink until stopped.

    While a SuperLink cannot be reached, or does not know the key, connecting is repeated. The
    problem is logged once.

    Parameters
    ----------
    answer : function
        ``answer(request) -> reply``, for requests of at most 4 KiB.
    address : str
        Address of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that signed the SuperLink's certificate.
    node_key : path
        The node's private key.
    home : path
        A folder for the state of the node.
    stop : threading.Event
        Another thread sets it to end the function.
    log : function
        Receives lines for the owner.
    poll : float
        Seconds between two polls.

    Raises
    ------
    TransportError
        If the SuperLink's certificate is not signed by ``ca`` at the first connection.

    Guarantees
    ----------
    No code comes from the SuperLink: apps are never fetched. Messages are bounded in size
    before they are read, and reach ``answer`` as bytes.
    """
    switch_off(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    fleet = NodeConnection(address, ca=ca, node_key=node_key, state=home / "node")
    node = _Node(fleet, answer, address, ca, stop, log)
    try:
        with Heartbeat(fleet.send_heartbeat):
            node.run(poll)
    finally:
        fleet.close()


class _Node:
    """The loop of a node."""

    def __init__(
        self,
        fleet: NodeConnection,
        answer: Callable[[bytes], bytes],
        address: str,
        ca: Path,
        stop: threading.Event,
        log: Callable[[str], None],
    ) -> None:
        self._fleet, self._answer, self._stop, self._log = fleet, answer, stop, log
        self._address, self._ca = address, ca
        self._connected = f"Connected to {address}. Requests are answered."
        self._last_line = ""
        self._was_connected = False

    def run(self, poll: float) -> None:
        """Connect, answer requests, and connect again after errors."""
        wait = _MIN_WAIT
        while not self._stop.is_set():
            try:
                self._fleet.connect()
                self._log_change(self._connected)
                self._was_connected, wait = True, _MIN_WAIT
                self._answer_requests(poll)
            except (connection_error(), http_error(), MessageError) as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MAX_WAIT)

    def _answer_requests(self, poll: float) -> None:
        """Answer requests as they come."""
        while not self._stop.is_set():
            request = self._next()
            if request is None:
                self._stop.wait(poll)
            else:
                self._handle(request)

    def _next(self) -> ReceivedRequest | None:
        """The next valid request, or None."""
        try:
            return self._fleet.next()
        except MessageError as problem:
            self._log_change(f"A message was dropped. {problem}")
        except http_error() as problem:
            if http_status(problem) == _INVALID_SIGNATURE:
                raise
            # Otherwise the run of the request is over.
        return None

    def _handle(self, request: ReceivedRequest) -> None:
        """Answer one request, and try to deliver the reply until it expires."""
        try:
            body = self._answer(request.body)
        except Exception as problem:  # answer() should not raise; the node continues if it does
            self._log_change(f"A request was not answered ({type(problem).__name__}).")
            return
        wait = _MIN_WAIT
        while time.time() < request.expires and not self._stop.is_set():
            try:
                self._fleet.reply(request, body)
                self._log_change(self._connected)  # after an error
                return
            except (http_error(), MessageError):
                return  # the reply is no longer expected
            except connection_error() as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MAX_WAIT)

    def _explain(self, problem: Exception) -> None:
        """Log a problem, or raise if retrying cannot help."""
        untrusted = certificate_error(problem, self._address, self._ca)
        if untrusted is not None and not self._was_connected:
            raise untrusted from problem
        self._log_change(str(untrusted) if untrusted else self._reason(problem))

    def _reason(self, problem: Exception) -> str:
        """Describe a problem in one line."""
        code = http_status(problem)
        if code == _UNKNOWN_KEY:
            return (
                f"{self._address} rejects this node: its key is not registered there, or "
                "another node uses it (for a minute after a crash). Trying again."
            )
        if code == _INVALID_SIGNATURE:
            return (
                f"{self._address} rejects this node's signature: its clock may be wrong, or "
                "its key is no longer registered. Trying again."
            )
        what = f"responds with error {code}" if code else "cannot be reached"
        return f"{self._address} {what}. Trying again."

    def _log_change(self, line: str) -> None:
        """Log a line unless it repeats the previous one."""
        if line != self._last_line:
            self._last_line = line
            self._log(line)
