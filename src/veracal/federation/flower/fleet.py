"""What a node says to its SuperLink, call by call."""

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.federation.flower.borrowed import flower
from veracal.federation.flower.node_keys import public_form, read_node_key
from veracal.federation.flower.wire import (
    AROUND,
    REQUEST,
    SUPERLINK,
    Connection,
    Parcel,
    ParcelError,
    metadata,
    packed,
    refused,
    unreachable,
)

_INTERVAL = 30.0  # seconds; after twice that without a beat a node counts as gone
_BEAT = 10.0
_PIECES = 0.1


@dataclass(frozen=True)
class Letter:
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


class Fleet:
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
            library.FleetClient, address, ca, [signature], most=REQUEST + AROUND
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

    def next(self) -> Letter | None:
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
            raise ParcelError("A message has no pieces.")
        parcel = Parcel(response.messages_list[0], response.message_object_trees[0])
        return self._opened(parcel)

    def reply(self, letter: Letter, body: bytes) -> None:
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
        proto, tree, pieces = packed(body, outside)
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
        with closing(self._connection), suppress(unreachable(), refused(), ParcelError):
            if self._node is not None:
                self._sign_off(self._node.node_id)

    def _opened(self, parcel: Parcel) -> Letter:
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
                raise ParcelError("A message expired before it was complete.")
            time.sleep(_PIECES)
        self._connection.call(
            "ConfirmMessageReceived",
            library.message.ConfirmMessageReceivedRequest(
                node=self._node, run_id=outside.run_id, message_object_id=outside.message_id
            ),
        )
        if len(body) > REQUEST:
            raise ParcelError(f"A request has more than {REQUEST} bytes.")
        return Letter(body, outside.run_id, outside.message_id, expires)

    def _sign_off_earlier_self(self) -> None:
        """Sign off whoever signed on with this key before; a second one is not let in."""
        with suppress(OSError, ValueError, refused()):  # nobody is remembered, or known there
            self._sign_off(int(self._remembered.read_text(encoding="ascii")))

    def _sign_off(self, number: int) -> None:
        """Tell the SuperLink that a node is gone."""
        self._connection.call(
            "DeactivateNode", flower().fleet.DeactivateNodeRequest(node_id=number)
        )


class Pulse:
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
            with suppress(unreachable(), refused(), ParcelError):
                self._beat()
