"""A source as a Flower node that answers messages and runs no foreign code.

Flower's own SuperNode fetches an app from the client that started a run, and executes it. This
node uses the same protocol and keys, but fetches messages only.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from veracal.federation.flower.wire import (
    OVERHEAD_BYTES,
    SUPERLINK,
    ChunkedMessage,
    Connection,
    MessageError,
    call_errors,
    certificate_error,
    connection_error,
    flower,
    http_error,
    http_status,
    metadata,
    public_form,
    read_node_key,
    switch_off,
)
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES

_INTERVAL = 30.0  # seconds; after twice that without a heartbeat a node is disconnected
_HEARTBEAT = 10.0
_PIECE_POLL = 0.1
_POLL = 0.5
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
    node = _Node(answer, address, ca, node_key, home / "node", stop, log)
    over = threading.Event()

    heartbeats = threading.Thread(
        target=node.send_heartbeats, args=(over,), name="heartbeat", daemon=True
    )
    heartbeats.start()
    try:
        node.run(poll)
    finally:
        over.set()
        heartbeats.join(_HEARTBEAT)  # a call that hangs ends with its own timeout
        node.close()


class _Node:
    """A node of a SuperLink, which fetches messages and never an app.

    The file ``state`` stores the id of the node, to disconnect an earlier process that was
    killed.
    """

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        address: str,
        ca: Path,
        node_key: Path,
        state: Path,
        stop: threading.Event,
        log: Callable[[str], None],
    ) -> None:
        self._answer, self._stop, self._log = answer, stop, log
        self._address, self._ca, self._state = address, ca, state
        key = read_node_key(node_key)
        self._public = public_form(key.public_key())
        self._connection = Connection(
            flower().FleetClient,
            address,
            ca,
            [flower().NodeSignature(key, key.public_key())],
            max_bytes=MAX_REQUEST_BYTES + OVERHEAD_BYTES,
        )
        self._node: Any = None
        self._connected = f"Connected to {address}. Requests are answered."
        self._last_line = ""
        self._was_connected = False

    def run(self, poll: float) -> None:
        """Connect, answer requests, and connect again after errors."""
        wait = _MIN_WAIT
        while not self._stop.is_set():
            try:
                self._connect()
                self._log_change(self._connected)
                self._was_connected, wait = True, _MIN_WAIT
                while not self._stop.is_set():
                    if not self._answer_next():
                        self._stop.wait(poll)
            except call_errors() as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MAX_WAIT)

    def send_heartbeats(self, over: threading.Event) -> None:
        """Send heartbeats until the end, so that a busy node stays connected."""
        request = flower().heartbeat.SendNodeHeartbeatRequest
        while not over.wait(_HEARTBEAT):
            node = self._node
            if node is not None:
                # The loop that fetches messages has the same error, and connects again.
                with suppress(*call_errors()):
                    beat = request(node=node, heartbeat_interval=_INTERVAL)
                    self._connection.call("SendNodeHeartbeat", beat)

    def close(self) -> None:
        """Disconnect if possible, and close the connection."""
        with (
            closing(self._connection),
            suppress(*call_errors()),
        ):
            if self._node is not None:
                self._deactivate(self._node.node_id)

    def _connect(self) -> None:
        """Connect, after disconnecting an earlier process with the same key."""
        with suppress(OSError, ValueError, http_error()):  # no state, or unknown there
            self._deactivate(int(self._state.read_text(encoding="ascii")))
        request = flower().fleet.ActivateNodeRequest
        response = self._connection.call(
            "ActivateNode", request(public_key=self._public, heartbeat_interval=_INTERVAL)
        )
        self._node = flower().node.Node(node_id=response.node_id)
        with suppress(OSError):  # a full disk only delays the connection after the next crash
            self._state.write_text(str(response.node_id), encoding="ascii")

    def _deactivate(self, node_id: int) -> None:
        """Disconnect a node from the SuperLink."""
        request = flower().fleet.DeactivateNodeRequest
        self._connection.call("DeactivateNode", request(node_id=node_id))

    def _answer_next(self) -> bool:
        """Answer the next request; False if there is none."""
        try:
            fetched = self._fetch()
        except MessageError as problem:
            self._log_change(f"A message was dropped. {problem}")
            return False
        except http_error() as problem:
            if http_status(problem) == _INVALID_SIGNATURE:
                raise
            return False  # the run of the request is over
        if fetched is None:
            return False
        request, body = fetched
        try:
            reply = self._answer(body)
        except Exception as problem:  # answer() should not raise; the node continues if it does
            self._log_change(f"A request was not answered ({type(problem).__name__}).")
            return True
        expires, wait = request.created_at + request.ttl, _MIN_WAIT
        while time.time() < expires and not self._stop.is_set():
            try:
                self._send(request, reply)
                self._log_change(self._connected)  # after an error
                break
            except (http_error(), MessageError):
                break  # the reply is no longer expected
            except connection_error() as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MAX_WAIT)
        return True

    def _fetch(self) -> tuple[Any, bytes] | None:
        """Metadata and body of the next request, or None.

        Raises
        ------
        MessageError
            If the message is invalid. It is dropped then.
        """
        request = flower().fleet.PullMessagesRequest(node=self._node)
        response = self._connection.call("PullMessages", request)
        if not response.messages_list:
            return None
        if not response.message_object_trees:
            raise MessageError("A message has no pieces.")
        message = ChunkedMessage(response.messages_list[0], response.message_object_trees[0])
        envelope = message.metadata
        while (body := self._connection.receive(message, envelope.run_id, self._node)) is None:
            if not time.time() < envelope.created_at + envelope.ttl:
                raise MessageError("A message expired before it was complete.")
            time.sleep(_PIECE_POLL)
        if len(body) > MAX_REQUEST_BYTES:
            raise MessageError(f"A request has more than {MAX_REQUEST_BYTES} bytes.")
        return envelope, body

    def _send(self, request: Any, reply: bytes) -> None:
        """Send the reply to a request with this metadata."""
        now = time.time()  # read once: a reply that expires after its request is dropped
        envelope = metadata(
            request.run_id,
            sender=self._node.node_id,
            receiver=SUPERLINK,
            ttl=max(request.created_at + request.ttl - now, 0.001),
            reply_to=request.message_id,
            created=now,
        )
        self._connection.push(
            flower().fleet.PushMessagesRequest,
            reply,
            envelope,
            self._node,
            node=self._node,
            clientapp_runtime_list=[0.0],  # do not reveal how long an answer took
        )

    def _explain(self, problem: Exception) -> None:
        """Log a problem in one line, or raise if retrying cannot help."""
        untrusted = certificate_error(problem, self._address, self._ca)
        if untrusted is not None and not self._was_connected:
            raise untrusted from problem
        code = http_status(problem)
        if untrusted is not None:
            line = str(untrusted)
        elif code == _UNKNOWN_KEY:
            line = (
                f"{self._address} rejects this node: its key is not registered there, or "
                "another node uses it (for a minute after a crash). Trying again."
            )
        elif code == _INVALID_SIGNATURE:
            line = (
                f"{self._address} rejects this node's signature: its clock may be wrong, or "
                "its key is no longer registered. Trying again."
            )
        else:
            what = f"responds with error {code}" if code else "cannot be reached"
            line = f"{self._address} {what}. Trying again."
        self._log_change(line)

    def _log_change(self, line: str) -> None:
        """Log a line unless it repeats the previous one."""
        if line != self._last_line:
            self._last_line = line
            self._log(line)
