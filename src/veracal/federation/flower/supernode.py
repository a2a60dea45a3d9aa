"""What a node says to its SuperLink, call by call.

A source as a node of Flower's: it answers with its own code, and runs no other.

Flower's own SuperNode fetches an app from whoever started a run, and executes it. This one
speaks to the SuperLink in the same way, with the same keys, and asks for messages only.
"""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.federation.flower.wire import (
    OVERHEAD_BYTES,
    MAX_REQUEST_BYTES,
    SUPERLINK,
    ChunkedMessage,
    Connection,
    MessageError,
    certificate_error,
    flower,
    metadata,
    pack_message,
    public_form,
    read_node_key,
    http_error,
    http_status,
    switch_off,
    connection_error,
)

_INTERVAL = 30.0  # seconds; after twice that without a beat a node counts as gone
_BEAT = 10.0
_PIECES = 0.1


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as it was received.

    Parameters
    ----------
    body : bytes
    run, id : int, str
        What its answer refers to.
    expires : float
        Until when an answer is waited for, in seconds since 1970.
    """

    body: bytes
    run: int
    id: str
    expires: float


class NodeConnection:
    """A node's connection to a SuperLink. It fetches messages, and never an app.

    Parameters
    ----------
    address : str
        As ``host:port``.
    ca, node_key : path
        The authority's certificate, and the node's private key.
    remembered : path
        Where the node keeps the number it was given: by it, it can sign off an earlier self
        that was killed and still counts as present.
    """

    def __init__(self, address: str, *, ca: Path, node_key: Path, remembered: Path) -> None:
        key = read_node_key(node_key)
        self._public = public_form(key.public_key())
        self._remembered = remembered
        library = flower()
        signature = library.NodeSignature(key, key.public_key())
        self._connection = Connection(
            library.FleetClient,
            address,
            ca,
            [signature],
            most=MAX_REQUEST_BYTES + OVERHEAD_BYTES,
        )
        self._node: Any = None

    def join(self) -> None:
        """Sign on, so that messages are handed out; those handed out before are sent again."""
        self._sign_off_earlier_self()
        response = self._connection.call(
            "ActivateNode",
            flower().fleet.ActivateNodeRequest(
                public_key=self._public, heartbeat_interval=_INTERVAL
            ),
        )
        self._node = flower().node.Node(node_id=response.node_id)
        with suppress(OSError):  # a full disk costs a minute after the next crash, no more
            self._remembered.write_text(str(response.node_id), encoding="ascii")

    def next(self) -> ReceivedRequest | None:
        """Fetch the next request, if there is one.

        Raises
        ------
        ParcelError
            If what came is not one of ours. It is gone then.
        """
        response = self._connection.call(
            "PullMessages", flower().fleet.PullMessagesRequest(node=self._node)
        )
        if not response.messages_list:
            return None
        if not response.message_object_trees:
            raise MessageError("A message has no pieces.")
        parcel = ChunkedMessage(response.messages_list[0], response.message_object_trees[0])
        return self._opened(parcel)

    def reply(self, letter: ReceivedRequest, body: bytes) -> None:
        """Send the answer to a request."""
        library = flower()
        now = time.time()  # once: a reply that seems to outlast its request is dropped
        outside = metadata(
            letter.run,
            sender=self._node.node_id,
            receiver=SUPERLINK,
            lasts=max(letter.expires - now, 0.001),
            reply_to=letter.id,
            created=now,
        )
        proto, tree, pieces = pack_message(body, outside)
        response = self._connection.call(
            "PushMessages",
            library.fleet.PushMessagesRequest(
                node=self._node,
                messages_list=[proto],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],  # how long an answer took is nobody's business
            ),
        )
        for name in response.objects_to_push:
            if name in pieces:  # the SuperLink names pieces; it gets none but this answer's
                self._connection.call(
                    "PushObject",
                    library.message.PushObjectRequest(
                        node=self._node,
                        run_id=letter.run,
                        object_id=name,
                        object_content=pieces[name],
                        session_id=response.session_id,
                    ),
                )

    def beat(self) -> None:
        """Say that the node is there."""
        node = self._node
        if node is not None:
            self._connection.call(
                "SendNodeHeartbeat",
                flower().heartbeat.SendNodeHeartbeatRequest(
                    node=node, heartbeat_interval=_INTERVAL
                ),
            )

    def leave(self) -> None:
        """Sign off, if that can be said, and close."""
        with (
            closing(self._connection),
            suppress(connection_error(), http_error(), MessageError),
        ):
            if self._node is not None:
                self._sign_off(self._node.node_id)

    def _opened(self, parcel: ChunkedMessage) -> ReceivedRequest:
        """Fetch the pieces of a message, and say that they arrived."""
        outside, library = parcel.metadata, flower()

        def pull(name: str) -> Any:
            return self._connection.call(
                "PullObject",
                library.message.PullObjectRequest(
                    node=self._node, run_id=outside.run_id, object_id=name
                ),
            )

        expires = outside.created_at + outside.ttl
        while (body := parcel.fetch(pull)) is None:
            if not time.time() < expires:
                raise MessageError("A message expired before it was complete.")
            time.sleep(_PIECES)
        self._connection.call(
            "ConfirmMessageReceived",
            library.message.ConfirmMessageReceivedRequest(
                node=self._node, run_id=outside.run_id, message_object_id=outside.message_id
            ),
        )
        if len(body) > MAX_REQUEST_BYTES:
            raise MessageError(f"A request has more than {MAX_REQUEST_BYTES} bytes.")
        return ReceivedRequest(body, outside.run_id, outside.message_id, expires)

    def _sign_off_earlier_self(self) -> None:
        """Sign off whoever signed on with this key before; a second one is not let in."""
        with suppress(
            OSError, ValueError, http_error()
        ):  # nobody is remembered, or known there
            self._sign_off(int(self._remembered.read_text(encoding="ascii")))

    def _sign_off(self, number: int) -> None:
        """Tell the SuperLink that a node is gone."""
        self._connection.call(
            "DeactivateNode", flower().fleet.DeactivateNodeRequest(node_id=number)
        )


class Heartbeat:
    """Beats from time to time, so that a node that takes its time still counts as present."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node's pulse", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join(_BEAT)  # a call that hangs is left to end by itself

    def _run(self) -> None:
        """Beat until told to stop."""
        while not self._over.wait(_BEAT):
            # Whoever fetches messages notices, too, and signs on again.
            with suppress(connection_error(), http_error(), MessageError):
                self._beat()


_POLL = 0.5  # seconds
_FIRST, _MOST = 0.5, 5.0  # of waiting, after something went wrong
_UNKNOWN, _UNSIGNED = 412, 401  # how a SuperLink refuses a key, and a signature


def serve_node(
    answer: Callable[[bytes], bytes],
    *,
    address: str,
    ca: Path,
    node_key: Path,
    home: Path,
    stop: threading.Event,
    tell: Callable[[str], None],
    poll: float = _POLL,
) -> None:
    """Answer the requests that a SuperLink hands out, until told to stop.

    A SuperLink that cannot be reached, or does not know the key yet, is tried again until it
    does; the owner is told once.

    Parameters
    ----------
    answer : function
        From a request, of at most 4 KiB, to its answer.
    address : str
        Of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that vouches for the SuperLink.
    node_key : path
        The node's private key.
    home : path
        A folder for what the node remembers.
    stop : threading.Event
        Set when it is time to end.
    tell : function
        Is given lines for the owner.
    poll : float
        Seconds between two looks for requests.

    Raises
    ------
    TransportError
        If, at the start, the SuperLink's certificate is not one that ``ca`` vouches for.

    Guarantees
    ----------
    No code comes from the SuperLink: apps are never fetched. What it sends is bounded in
    size before it is read, and reaches ``answer`` as bytes.
    """
    switch_off(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    fleet = NodeConnection(address, ca=ca, node_key=node_key, remembered=home / "node")
    node = _Node(fleet, answer, address, ca, stop, tell)
    try:
        with Heartbeat(fleet.beat):
            node.run(poll)
    finally:
        fleet.leave()


class _Node:
    """The loop of a node, and what it has told its owner."""

    def __init__(
        self,
        fleet: NodeConnection,
        answer: Callable[[bytes], bytes],
        address: str,
        ca: Path,
        stop: threading.Event,
        tell: Callable[[str], None],
    ) -> None:
        self._fleet, self._answer, self._stop, self._tell = fleet, answer, stop, tell
        self._address, self._ca = address, ca
        self._connected = f"Connected to {address}; requests are answered."
        self._told = ""
        self._was_here = False

    def run(self, poll: float) -> None:
        """Sign on, answer, and after trouble sign on again."""
        wait = _FIRST
        while not self._stop.is_set():
            try:
                self._fleet.join()
                self._say(self._connected)
                self._was_here, wait = True, _FIRST
                self._attend(poll)
            except (connection_error(), http_error(), MessageError) as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MOST)

    def _attend(self, poll: float) -> None:
        """Answer requests as they come."""
        while not self._stop.is_set():
            letter = self._next()
            if letter is None:
                self._stop.wait(poll)
            else:
                self._handle(letter)

    def _next(self) -> ReceivedRequest | None:
        """The next request, if there is one that can be read."""
        try:
            return self._fleet.next()
        except MessageError as problem:
            self._say(f"A message was dropped. {problem}")
        except http_error() as problem:
            if http_status(problem) == _UNSIGNED:
                raise
            # Otherwise its run is over.
        return None

    def _handle(self, letter: ReceivedRequest) -> None:
        """Answer one request, and hold on to the answer until it is delivered or too late."""
        try:
            body = self._answer(letter.body)
        except Exception as problem:  # an answer is total; if not, the node goes on
            self._say(f"A request was not answered ({type(problem).__name__}).")
            return
        wait = _FIRST
        while time.time() < letter.expires and not self._stop.is_set():
            try:
                self._fleet.reply(letter, body)
                self._say(self._connected)  # if there was trouble
                return
            except (http_error(), MessageError):
                return  # nobody waits for it any more
            except connection_error() as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MOST)

    def _explain(self, problem: Exception) -> None:
        """Tell the owner what is wrong, or raise if it will not mend itself."""
        mistrust = certificate_error(problem, self._address, self._ca)
        if mistrust is not None and not self._was_here:
            raise mistrust from problem
        self._say(str(mistrust) if mistrust else self._reason(problem))

    def _reason(self, problem: Exception) -> str:
        """What is wrong, in a line."""
        number = http_status(problem)
        if number == _UNKNOWN:
            return (
                f"{self._address} does not let this node in: its key is not registered there, "
                "or another node uses it (after a crash, for a minute). Trying again."
            )
        if number == _UNSIGNED:
            return (
                f"{self._address} does not believe this node's signature: its clock may be "
                "wrong, or its key is no longer registered. Trying again."
            )
        what = f"answers with error {number}" if number else "cannot be reached"
        return f"{self._address} {what}. Trying again."

    def _say(self, line: str) -> None:
        """Tell the owner, unless it was the last thing told."""
        if line != self._told:
            self._told = line
            self._tell(line)
