"""The coordinator's transport over a Flower SuperLink.

Nodes are registered by their keys. A run of Flower serves as a channel: the coordinator's own
process takes the run, sends requests to nodes and receives their replies.
"""

import io
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Self

from veracal import _checks
from veracal.errors import DataError, TransportError
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
    metadata,
    read_public_node_key,
    switch_off,
)
from veracal.federation.protocol.envelopes import MAX_REPLY_BYTES, MAX_REQUEST_BYTES

_MAX_LIST_BYTES = 64 * OVERHEAD_BYTES  # some thousands of nodes


def register_nodes(
    address: str, *, ca: Path, nodes: Mapping[str, Path], home: Path
) -> dict[str, int]:
    """Register nodes at a SuperLink. Nodes that it knows are not changed.

    Flower does not restrict this call: every client that reaches the SuperLink can register
    nodes. A registration allows a connection and does not make a node a source.

    Parameters
    ----------
    address, ca, home
        As of :class:`FlowerTransport`.
    nodes : mapping of str to path
        Public keys of nodes, by name.

    Returns
    -------
    dict of str to int
        Node ids at the SuperLink.
    """
    keys = {name: read_public_node_key(path) for name, path in nodes.items()}
    if len(set(keys.values())) < len(keys):
        raise ValueError("Expected a different key for each node, got one key twice.")
    switch_off(home)
    control = flower().control
    with closing(
        Connection(flower().ControlClient, address, ca, max_bytes=_MAX_LIST_BYTES)
    ) as link:
        try:
            known = link.call("ListNodes", control.ListNodesRequest()).nodes_info
            node_ids = {bytes(node.public_key): node.node_id for node in known}
            for key in keys.values():
                if key not in node_ids:
                    request = control.RegisterNodeRequest(public_key=key)  # without a name
                    node_ids[key] = link.call("RegisterNode", request).node_id
        except http_error() as problem:
            raise TransportError(
                f"The SuperLink at {address} rejects a node's key. A removed key cannot be "
                "registered again: create a new key for that node."
            ) from problem
        except (connection_error(), MessageError) as problem:
            raise certificate_error(problem, address, ca) or TransportError(
                f"There is no SuperLink at {address}. Check that it runs, and its address."
            ) from problem
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


_POLL = 0.2
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
        self._nodes: dict[str, int] = {}
        self._connections = ExitStack()
        self._control: Connection | None = None  # starts runs
        self._runtime: Connection | None = None  # takes them

    def __enter__(self) -> Self:
        switch_off(self._home)
        address, ca, library = self._address, self._ca, flower()
        self._nodes = register_nodes(address, ca=ca, nodes=self._keys, home=self._home)
        try:
            secret = self._secret.read_bytes()
        except OSError as cause:
            remedy = "Give the path of the file superlink.secret of the SuperLink."
            actual = cause.strerror or "nothing"
            raise DataError(str(self._secret), "a secret", actual, remedy) from cause
        signature = library.SecretSignature(master_secret=secret, protected_methods=[_ACQUIRE])
        with ExitStack() as stack:
            self._control, self._runtime = (
                stack.enter_context(
                    closing(Connection(client, address, ca, signers, max_bytes=OVERHEAD_BYTES))
                )
                for client, signers in (
                    (library.ControlClient, []),
                    (library.RuntimeClient, [signature]),
                )
            )
            self._connections = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._connections.close()
        self._control = self._runtime = None

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send every request, and yield replies until all arrived or the time is over.

        Sources without a reply, or with a reply above 1 MiB, are omitted.
        """
        if self._control is None:
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
        end = time.monotonic() + timeout
        waiting = dict(requests)
        failure: TransportError | None = None
        while waiting and time.monotonic() < end:
            try:
                with closing(self._open_run(waiting, end)) as run:
                    yield from run.replies()
                failure = None
            except call_errors() as problem:
                # Disconnected, or the run was stopped: repeat the requests in another run.
                failure = certificate_error(problem, self._address, self._ca)
                if failure is None:
                    is_refused = isinstance(problem, http_error())
                    what = "refuses this coordinator: the secret may be wrong"
                    if not is_refused:
                        what = "cannot be reached, or is not a SuperLink"
                    failure = TransportError(
                        f"The SuperLink at {self._address} {what}. Check that it runs, its "
                        f"address and {self._secret}."
                    )
                time.sleep(max(0.0, min(_RETRY, end - time.monotonic())))
        if failure is not None and waiting.keys() == requests.keys():
            raise failure

    def _open_run(self, waiting: dict[str, bytes], end: float) -> "_Run":
        """Start a run and take it immediately. Other waiting runs are ignored, and expire."""
        assert self._control is not None
        assert self._runtime is not None
        library, bundle = flower(), io.BytesIO()
        with zipfile.ZipFile(bundle, "w") as archive:  # the same bytes each time
            archive.writestr(zipfile.ZipInfo("pyproject.toml"), _BUNDLE)
        start = library.control.StartRunRequest(fab=library.fab.Fab(content=bundle.getvalue()))
        run_id = self._control.call("StartRun", start).run_id
        acquire = library.runtime.AcquireTaskRequest(supported_task_types=[_TASK])
        give_up = time.monotonic() + _TAKE_TIMEOUT
        while time.monotonic() < give_up:
            response = self._runtime.call("AcquireTask", acquire)
            if response.HasField("task") and response.task.run_id == run_id:
                connection = Connection(
                    library.RuntimeClient,
                    self._address,
                    self._ca,
                    [library.TaskToken(response.token)],
                    max_bytes=MAX_REPLY_BYTES + OVERHEAD_BYTES,
                )
                return _Run(connection, self._nodes, waiting, end)
            if not response.HasField("task"):
                time.sleep(_TAKE_POLL)
        raise TransportError(
            "Another coordinator took this run of the SuperLink. Run one coordinator at a time."
        )


class _Run:
    """A run that the coordinator took: the requests in it, and replies that are being fetched.

    Requests are removed from ``waiting`` when their reply has arrived.
    """

    def __init__(
        self,
        connection: Connection,
        nodes: Mapping[str, int],
        waiting: dict[str, bytes],
        end: float,
    ) -> None:
        self._connection, self._nodes = connection, nodes
        self._waiting, self._end = waiting, end
        self._self = flower().node.Node(node_id=SUPERLINK)
        started = connection.call("PullTaskInput", flower().runtime.PullTaskInputRequest())
        self._id = started.run.run_id
        self._connected_at: dict[str, str] = {}  # of the node when it was sent the request
        self._sent: dict[str, str] = {}  # sources by message id
        self._incoming: dict[str, ChunkedMessage] = {}  # by source

    def close(self) -> None:
        """Report the end of the run, and close the connection."""
        output = flower().runtime.PushTaskOutputRequest(sub_status="completed", details="")
        with (
            closing(self._connection),
            suppress(*call_errors()),
        ):
            self._connection.call("PushTaskOutput", output)

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """Send requests, repeat those without reply once, and yield replies."""
        runtime = flower().runtime
        last_heartbeat = last_listing = float("-inf")
        now = time.monotonic()
        repeat_at = now + (self._end - now) / 2
        while self._waiting and (now := time.monotonic()) < self._end:
            if now - last_heartbeat >= _HEARTBEAT:
                last_heartbeat = now
                self._connection.call("SendTaskHeartbeat", runtime.SendTaskHeartbeatRequest())
            if now - last_listing >= _RETRY:
                last_listing = now
                if now >= repeat_at:  # messages may be lost silently; repeats are free
                    repeat_at = float("inf")
                    self._connected_at.clear()
                self._send_requests()
            if self._sent:
                self._accept_replies()
            for name, message in list(self._incoming.items()):
                try:
                    body = self._connection.receive(message, self._id, self._self)
                except MessageError:
                    del self._incoming[name], self._waiting[name]
                    continue
                if body is not None:
                    del self._incoming[name], self._waiting[name]
                    if len(body) <= MAX_REPLY_BYTES:
                        yield name, body
            if self._waiting:
                time.sleep(_POLL)

    def _send_requests(self) -> None:
        """Send requests to nodes that connected since their request was last sent.

        The SuperLink delivers a message once, even if the node was killed before it answered.
        So the same bytes are sent to a node that connects again.
        """
        runtime = flower().runtime
        nodes = self._connection.call("GetNodes", runtime.GetNodesRequest()).nodes
        present = {node.node_id: node.last_activated_at for node in nodes}
        for name, body in self._waiting.items():
            node = self._nodes[name]
            since = present.get(node)
            if since is not None and since != self._connected_at.get(name):
                ttl = max(self._end - time.monotonic(), 1.0)
                envelope = metadata(self._id, sender=SUPERLINK, receiver=node, ttl=ttl)
                request = runtime.PushAppMessagesRequest
                response = self._connection.push(request, body, envelope, self._self)
                if response.message_ids[0]:  # otherwise it was rejected
                    self._connected_at[name] = since
                    self._sent[response.message_ids[0]] = name

    def _accept_replies(self) -> None:
        """Note replies that can be fetched; drop everything else.

        The rest includes messages of the SuperLink about disconnected nodes.
        """
        request = flower().runtime.PullAppMessagesRequest(message_ids=list(self._sent))
        response = self._connection.call("PullMessages", request)
        pairs = zip(response.messages_list, response.message_object_trees, strict=True)
        for proto, tree in pairs:
            name = self._sent.pop(proto.metadata.reply_to_message_id, None)
            if name in self._waiting and proto.metadata.src_node_id == self._nodes[name]:
                with suppress(MessageError):
                    self._incoming[name] = ChunkedMessage(proto, tree)
