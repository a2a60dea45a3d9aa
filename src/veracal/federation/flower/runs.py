"""A run of Flower's, taken as a channel: the calibrator's own process sends and receives."""

import io
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veracal.errors import DataError, TransportError
from veracal.federation.flower.borrowed import flower
from veracal.federation.flower.wire import (
    AROUND,
    REPLY,
    SUPERLINK,
    Connection,
    Parcel,
    ParcelError,
    metadata,
    packed,
)

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_TASK = "flwr-serverapp"
_CLAIM = 5.0  # seconds until a run that somebody else took is given up
_LOOK = 0.1
_BUNDLE = """\
[project]
name = "channel"
version = "1.0.0"
description = "No code: a run that carries messages."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "veracal"

[tool.flwr.app.components]
serverapp = "none:none"
clientapp = "none:none"
"""


@dataclass(frozen=True)
class Incoming:
    """A message that answers one of ours.

    Parameters
    ----------
    reply_to : str
        Which.
    sender : int
        Number of the node.
    parcel : Parcel or None
        Its pieces; None if it is not one of ours.
    """

    reply_to: str
    sender: int
    parcel: Parcel | None


class Link:
    """A calibrator's way to its SuperLink.

    Parameters
    ----------
    address : str
        As ``host:port``.
    ca, secret : path
        The authority's certificate, and the secret by which runs are taken.
    """

    def __init__(self, address: str, *, ca: Path, secret: Path) -> None:
        library = flower()
        self._address, self._ca = address, ca
        self._control = Connection(library.ControlClient, address, ca, most=AROUND)
        signature = library.SecretSignature(
            master_secret=_read_secret(secret), protected_methods=[_ACQUIRE]
        )
        self._taking = Connection(library.RuntimeClient, address, ca, [signature], most=AROUND)

    def close(self) -> None:
        """Close its connections."""
        self._control.close()
        self._taking.close()

    def open_run(self) -> "Run":
        """Start a run and take it at once."""
        control = flower().control
        request = control.StartRunRequest(fab=flower().fab.Fab(content=_bundle()))
        number = self._control.call("StartRun", request).run_id
        return Run(self._address, self._ca, self._taken(number))

    def _taken(self, number: int) -> str:
        """Token of a run. Whatever else waits to be taken is not ours, and expires."""
        end = time.monotonic() + _CLAIM
        request = flower().runtime.AcquireTaskRequest(supported_task_types=[_TASK])
        while time.monotonic() < end:
            response = self._taking.call("AcquireTask", request)
            if response.HasField("task") and response.task.run_id == number:
                token: str = response.token
                return token
            if not response.HasField("task"):
                time.sleep(_LOOK)
        raise TransportError(
            "Another calibrator took this one's run of the SuperLink. Run one at a time."
        )


class Run:
    """A run that is ours.

    Parameters
    ----------
    address : str
    ca : path
    token : str
        By which the SuperLink knows us.
    """

    def __init__(self, address: str, ca: Path, token: str) -> None:
        library = flower()
        tokens = [library.TaskToken(token)]
        self._connection = Connection(
            library.RuntimeClient, address, ca, tokens, most=REPLY + AROUND
        )
        started = self._connection.call("PullTaskInput", library.runtime.PullTaskInputRequest())
        self._number = started.run.run_id
        self._node = library.node.Node(node_id=SUPERLINK)

    def close(self) -> None:
        """Close its connections."""
        self._connection.close()

    def present(self) -> dict[int, str]:
        """The nodes that are there, by number, and when each of them signed on."""
        nodes = self._connection.call("GetNodes", flower().runtime.GetNodesRequest()).nodes
        return {node.node_id: node.last_activated_at for node in nodes}

    def beat(self) -> None:
        """Say that we are there."""
        self._connection.call("SendTaskHeartbeat", flower().runtime.SendTaskHeartbeatRequest())

    def finish(self) -> None:
        """Say that we are done."""
        done = flower().runtime.PushTaskOutputRequest(sub_status="completed", details="")
        self._connection.call("PushTaskOutput", done)

    def send(self, node: int, body: bytes, *, lasts: float) -> str | None:
        """Send bytes to a node; return the name of the message, or None if it is not taken."""
        library = flower()
        outside = metadata(self._number, sender=SUPERLINK, receiver=node, lasts=lasts)
        proto, tree, pieces = packed(body, outside)
        response = self._connection.call(
            "PushMessages",
            library.runtime.PushAppMessagesRequest(
                messages_list=[proto], message_object_trees=[tree]
            ),
        )
        for name in response.objects_to_push:
            self._connection.call(
                "PushObject",
                library.message.PushObjectRequest(
                    node=self._node,
                    run_id=self._number,
                    object_id=name,
                    object_content=pieces[name],
                    session_id=response.session_id,
                ),
            )
        return response.message_ids[0] or None

    def replies(self, sent: list[str]) -> Iterator[Incoming]:
        """What has come for messages that were sent. Each reply is handed out once."""
        response = self._connection.call(
            "PullMessages", flower().runtime.PullAppMessagesRequest(message_ids=sent)
        )
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        for proto, tree in pairs:
            try:
                parcel = Parcel(proto, tree)
            except ParcelError:
                parcel = None
            outside = proto.metadata
            yield Incoming(outside.reply_to_message_id, outside.src_node_id, parcel)

    def pull(self, name: str) -> Any:
        """Fetch a piece of a message."""
        return self._connection.call(
            "PullObject",
            flower().message.PullObjectRequest(
                node=self._node, run_id=self._number, object_id=name
            ),
        )

    def confirm(self, parcel: Parcel) -> None:
        """Say that a message arrived, so that the SuperLink forgets it."""
        self._connection.call(
            "ConfirmMessageReceived",
            flower().message.ConfirmMessageReceivedRequest(
                node=self._node,
                run_id=self._number,
                message_object_id=parcel.metadata.message_id,
            ),
        )


def _read_secret(path: Path) -> bytes:
    """Read the secret of a SuperLink."""
    try:
        secret = path.read_bytes()
    except OSError as cause:
        remedy = "Name the file superlink.secret of the SuperLink."
        raise DataError(str(path), "a secret", cause.strerror or "nothing", remedy) from cause
    return secret


def _bundle() -> bytes:
    """An app with no code in it, as a run needs one; the same bytes each time."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _BUNDLE)
    return content.getvalue()
