"""The coordinator's transport over a Flower SuperLink.

Nodes are registered by their keys. A run of Flower serves as a channel: the coordinator's own
process takes the run, sends requests to nodes and receives their replies.
"""

import io
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from veracal import _checks
from veracal.errors import DataError, TransportError
from veracal.federation.flower.wire import (
    MAX_REPLY_BYTES,
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
    metadata,
    pack_message,
    read_public_node_key,
    switch_off,
)

_MAX_LIST_BYTES = 64 * OVERHEAD_BYTES  # some thousands of nodes


def register_nodes(
    address: str, *, ca: Path, nodes: Mapping[str, Path], home: Path
) -> dict[str, int]:
    """Register nodes at a SuperLink. Nodes that it knows are not changed.

    Flower does not restrict this call: every client that reaches the SuperLink can register
    nodes. A registration allows a connection and does not make a node a source.

    Parameters
    ----------
    address : str
        Address of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that signed its certificate.
    nodes : mapping of str to path
        Public keys of nodes, by name.
    home : path
        A folder that Flower may write to.

    Returns
    -------
    dict of str to int
        Node ids at the SuperLink.

    Raises
    ------
    TransportError
        If the SuperLink cannot be reached, is not trusted, or rejects a key.
    """
    keys = {name: read_public_node_key(path) for name, path in nodes.items()}
    if len(set(keys.values())) < len(keys):
        raise ValueError("Expected a different key for each node, got one key twice.")
    switch_off(home)
    with closing(
        Connection(flower().ControlClient, address, ca, max_bytes=_MAX_LIST_BYTES)
    ) as link:
        try:
            return _register(link, keys)
        except http_error() as problem:
            raise TransportError(
                f"The SuperLink at {address} rejects a node's key. A removed key cannot be "
                "registered again: create a new key for that node."
            ) from problem
        except (connection_error(), MessageError) as problem:
            raise certificate_error(problem, address, ca) or TransportError(
                f"There is no SuperLink at {address}. Check that it runs, and its address."
            ) from problem


def _register(link: Connection, keys: Mapping[str, bytes]) -> dict[str, int]:
    """Register nodes that are not known, and return all node ids by name."""
    control = flower().control
    nodes = link.call("ListNodes", control.ListNodesRequest()).nodes_info
    node_ids = {bytes(node.public_key): node.node_id for node in nodes}
    for key in keys.values():
        if key not in node_ids:
            request = control.RegisterNodeRequest(public_key=key)  # without a name
            node_ids[key] = link.call("RegisterNode", request).node_id
    return {name: node_ids[key] for name, key in keys.items()}


_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_TASK = "flwr-serverapp"
_TAKE_TIMEOUT = 5.0  # seconds to wait for a run that another client may have taken
_TAKE_POLL = 0.1
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
class IncomingReply:
    """A message in reply to a request.

    Parameters
    ----------
    reply_to : str
        Id of the request message.
    sender : int
        Id of the node.
    message : ChunkedMessage or None
        The message; None if it is invalid.
    """

    reply_to: str
    sender: int
    message: ChunkedMessage | None


class SuperLinkConnection:
    """The coordinator's connection to its SuperLink.

    Parameters
    ----------
    address : str
        As ``host:port``.
    ca, secret : path
        Certificate of the authority, and the secret that authorizes taking runs.
    """

    def __init__(self, address: str, *, ca: Path, secret: Path) -> None:
        library = flower()
        self._address, self._ca = address, ca
        self._control = Connection(library.ControlClient, address, ca, max_bytes=OVERHEAD_BYTES)
        signature = library.SecretSignature(
            master_secret=_read_secret(secret), protected_methods=[_ACQUIRE]
        )
        self._runtime = Connection(
            library.RuntimeClient, address, ca, [signature], max_bytes=OVERHEAD_BYTES
        )

    def close(self) -> None:
        """Close the connections."""
        self._control.close()
        self._runtime.close()

    def open_run(self) -> "FlowerRun":
        """Start a run and take it immediately."""
        control = flower().control
        request = control.StartRunRequest(fab=flower().fab.Fab(content=_bundle()))
        run_id = self._control.call("StartRun", request).run_id
        return FlowerRun(self._address, self._ca, self._take(run_id))

    def _take(self, run_id: int) -> str:
        """Take a run and return its token. Other waiting runs are ignored, and expire."""
        end = time.monotonic() + _TAKE_TIMEOUT
        request = flower().runtime.AcquireTaskRequest(supported_task_types=[_TASK])
        while time.monotonic() < end:
            response = self._runtime.call("AcquireTask", request)
            if response.HasField("task") and response.task.run_id == run_id:
                token: str = response.token
                return token
            if not response.HasField("task"):
                time.sleep(_TAKE_POLL)
        raise TransportError(
            "Another coordinator took this run of the SuperLink. Run one coordinator at a time."
        )


class FlowerRun:
    """A run that the coordinator took.

    Parameters
    ----------
    address : str
    ca : path
    token : str
        Token that authorizes calls for the run.
    """

    def __init__(self, address: str, ca: Path, token: str) -> None:
        library = flower()
        tokens = [library.TaskToken(token)]
        self._connection = Connection(
            library.RuntimeClient,
            address,
            ca,
            tokens,
            max_bytes=MAX_REPLY_BYTES + OVERHEAD_BYTES,
        )
        started = self._connection.call("PullTaskInput", library.runtime.PullTaskInputRequest())
        self._run_id = started.run.run_id
        self._node = library.node.Node(node_id=SUPERLINK)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def list_nodes(self) -> dict[int, str]:
        """Ids of the connected nodes, and when each of them connected."""
        nodes = self._connection.call("GetNodes", flower().runtime.GetNodesRequest()).nodes
        return {node.node_id: node.last_activated_at for node in nodes}

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        self._connection.call("SendTaskHeartbeat", flower().runtime.SendTaskHeartbeatRequest())

    def finish(self) -> None:
        """Report the end of the run."""
        output = flower().runtime.PushTaskOutputRequest(sub_status="completed", details="")
        self._connection.call("PushTaskOutput", output)

    def send(self, node: int, body: bytes, *, ttl: float) -> str | None:
        """Send bytes to a node; return the id of the message, or None if it was rejected."""
        library = flower()
        envelope = metadata(self._run_id, sender=SUPERLINK, receiver=node, ttl=ttl)
        proto, tree, pieces = pack_message(body, envelope)
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
                    run_id=self._run_id,
                    object_id=name,
                    object_content=pieces[name],
                    session_id=response.session_id,
                ),
            )
        return response.message_ids[0] or None

    def replies(self, sent: list[str]) -> Iterator[IncomingReply]:
        """Replies to sent messages. Each reply is returned once."""
        response = self._connection.call(
            "PullMessages", flower().runtime.PullAppMessagesRequest(message_ids=sent)
        )
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        for proto, tree in pairs:
            try:
                message = ChunkedMessage(proto, tree)
            except MessageError:
                message = None
            yield IncomingReply(
                proto.metadata.reply_to_message_id, proto.metadata.src_node_id, message
            )

    def pull(self, name: str) -> Any:
        """Fetch a piece of a message."""
        return self._connection.call(
            "PullObject",
            flower().message.PullObjectRequest(
                node=self._node, run_id=self._run_id, object_id=name
            ),
        )

    def confirm(self, message: ChunkedMessage) -> None:
        """Confirm a message, so that the SuperLink deletes it."""
        self._connection.call(
            "ConfirmMessageReceived",
            flower().message.ConfirmMessageReceivedRequest(
                node=self._node,
                run_id=self._run_id,
                message_object_id=message.metadata.message_id,
            ),
        )


def _read_secret(path: Path) -> bytes:
    """Read the secret of a SuperLink."""
    try:
        secret = path.read_bytes()
    except OSError as cause:
        remedy = "Give the path of the file superlink.secret of the SuperLink."
        raise DataError(str(path), "a secret", cause.strerror or "nothing", remedy) from cause
    return secret


def _bundle() -> bytes:
    """An app bundle without code, which a run requires. It has the same bytes each time."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _BUNDLE)
    return content.getvalue()


_POLL = 0.2  # seconds
_HEARTBEAT = 10.0
_RETRY = 1.0


class FlowerTransport:
    """Carries requests to nodes and their replies back. Use it in a ``with`` block.

    Parameters
    ----------
    address : str
        Address of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that signed the SuperLink's certificate.
    secret : path
        The SuperLink's secret, which authorizes the coordinator to take runs.
    nodes : mapping of str to path
        Public key of each source's node.
    home : path
        A folder that Flower may write to.

    Guarantees
    ----------
    A request is sent only to the node with the source's key. The same bytes are sent again
    after a node was disconnected. No message is created here.
    """

    by_hand = False

    def __init__(
        self, address: str, *, ca: Path, secret: Path, nodes: Mapping[str, Path], home: Path
    ) -> None:
        self._address, self._ca, self._secret, self._home = address, ca, secret, home
        self._keys = dict(nodes)
        self._link: SuperLinkConnection | None = None
        self._nodes: dict[str, int] = {}

    def __enter__(self) -> Self:
        switch_off(self._home)
        self._nodes = register_nodes(
            self._address, ca=self._ca, nodes=self._keys, home=self._home
        )
        self._link = SuperLinkConnection(self._address, ca=self._ca, secret=self._secret)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send every request, and yield replies until all arrived or the time is over.

        Parameters
        ----------
        requests : mapping of str to bytes
            Request of each source, at most 4 KiB.
        timeout : float
            Seconds to wait.

        Yields
        ------
        name, reply : str, bytes
            Sources without a reply, or with a reply above 1 MiB, are omitted.

        Raises
        ------
        TransportError
            If the SuperLink was not reached before the time is over.
        """
        link = self._check(requests, timeout)
        end = time.monotonic() + timeout
        waiting = dict(requests)
        failure: TransportError | None = None
        while waiting and time.monotonic() < end:
            try:
                yield from self._attempt(link, waiting, end)
                failure = None
            except (connection_error(), http_error(), MessageError) as problem:
                # Disconnected, or the run was stopped: repeat the requests in another run.
                failure = self._failure(problem)
                time.sleep(max(0.0, min(_RETRY, end - time.monotonic())))
        if failure is not None and waiting.keys() == requests.keys():
            raise failure

    def _attempt(
        self, link: SuperLinkConnection, waiting: dict[str, bytes], end: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send the requests without reply in a new run."""
        run = link.open_run()
        try:
            yield from _Round(run, self._nodes, waiting, end).replies()
        finally:
            with suppress(connection_error(), http_error(), MessageError):
                run.finish()
            run.close()

    def _check(self, requests: Mapping[str, bytes], timeout: float) -> SuperLinkConnection:
        """Check that the requests can be carried, and return the connection."""
        if self._link is None:
            raise RuntimeError("The transport is not open. Use it in a with block.")
        _checks.positive(timeout=timeout)
        for name, body in requests.items():
            if name not in self._nodes:
                raise ValueError(f"Expected a source with a node, got {name!r}.")
            if len(body) > MAX_REQUEST_BYTES:
                raise ValueError(
                    f"Expected a request of at most {MAX_REQUEST_BYTES} bytes, got {len(body)} "
                    f"bytes for {name!r}."
                )
        return self._link

    def _failure(self, problem: Exception) -> TransportError:
        """Describe a problem with the SuperLink."""
        untrusted = certificate_error(problem, self._address, self._ca)
        if untrusted is not None:
            return untrusted
        if isinstance(problem, http_error()):
            what = "refuses this coordinator: the secret may be wrong"
        else:
            what = "cannot be reached, or is not a SuperLink"
        return TransportError(
            f"The SuperLink at {self._address} {what}. Check that it runs, its address and "
            f"{self._secret}."
        )


class _Round:
    """State of one run: requests that were sent, and replies that are being fetched."""

    def __init__(
        self, run: FlowerRun, nodes: Mapping[str, int], waiting: dict[str, bytes], end: float
    ) -> None:
        self._run, self._nodes, self._waiting, self._end = run, nodes, waiting, end
        self._connected_at: dict[str, str] = {}  # of the node when it was sent the request
        self._sent: dict[str, str] = {}  # sources by message id
        self._incoming: dict[str, ChunkedMessage] = {}  # by source
        self._last_heartbeat = self._last_listing = float("-inf")
        now = time.monotonic()
        self._repeat_at = now + (end - now) / 2  # requests without reply are repeated once

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """Send and repeat requests, and yield replies."""
        while self._waiting and time.monotonic() < self._end:
            self._maintain()
            if self._sent:
                for incoming in self._run.replies(list(self._sent)):
                    self._accept(incoming)
            for name in list(self._incoming):
                body = self._fetch(name)
                if body is not None:
                    yield name, body
            if self._waiting:
                time.sleep(_POLL)

    def _maintain(self) -> None:
        """Periodically send a heartbeat, and requests to nodes that connected."""
        now = time.monotonic()
        if now - self._last_heartbeat >= _HEARTBEAT:
            self._last_heartbeat = now
            self._run.send_heartbeat()
        if now - self._last_listing >= _RETRY:
            self._last_listing = now
            if now >= self._repeat_at:  # messages may be lost silently; repeats are free
                self._repeat_at = float("inf")
                self._connected_at.clear()
            self._send(self._run.list_nodes())

    def _send(self, present: Mapping[int, str]) -> None:
        """Send requests to nodes that connected since their request was last sent.

        The SuperLink delivers a message once, even if the node was killed before it answered.
        So the same bytes are sent to a node that connects again.
        """
        for name, body in self._waiting.items():
            since = present.get(self._nodes[name])
            if since is not None and since != self._connected_at.get(name):
                ttl = max(self._end - time.monotonic(), 1.0)
                message = self._run.send(self._nodes[name], body, ttl=ttl)
                if message is not None:
                    self._connected_at[name] = since
                    self._sent[message] = name

    def _accept(self, incoming: IncomingReply) -> None:
        """Store a reply to be fetched; drop everything else."""
        name = self._sent.pop(incoming.reply_to, None)
        if name is None or name not in self._waiting or incoming.message is None:
            return  # includes messages of the SuperLink about disconnected nodes
        if incoming.sender == self._nodes[name]:
            self._incoming[name] = incoming.message

    def _fetch(self, name: str) -> bytes | None:
        """A complete reply, or None. Replies that are invalid or too large are dropped."""
        message = self._incoming[name]
        try:
            body = message.fetch(self._run.pull)
        except MessageError:
            del self._incoming[name], self._waiting[name]
            return None
        if body is None:
            return None
        del self._incoming[name], self._waiting[name]
        self._run.confirm(message)
        return body if len(body) <= MAX_REPLY_BYTES else None
