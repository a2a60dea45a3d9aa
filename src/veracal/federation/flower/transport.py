"""Nodes whose keys a SuperLink lets in.

A run of Flower's, taken as a channel: the coordinator's own process sends and receives.

Requests to sources and their replies, carried by a SuperLink of Flower's.
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
    OVERHEAD_BYTES,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    SUPERLINK,
    ChunkedMessage,
    Connection,
    MessageError,
    certificate_error,
    flower,
    metadata,
    pack_message,
    read_public_node_key,
    http_error,
    switch_off,
    connection_error,
)

_LIST = 64 * OVERHEAD_BYTES  # bytes: some thousands of nodes


def register_nodes(
    address: str, *, ca: Path, nodes: Mapping[str, Path], home: Path
) -> dict[str, int]:
    """Have a SuperLink let nodes in; those it knows already stay as they are.

    Flower asks nobody who may do this: whoever reaches the SuperLink can. It decides who is
    connected, and not who is asked.

    Parameters
    ----------
    address : str
        Of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that vouches for it.
    nodes : mapping of str to path
        Public keys of nodes, by name.
    home : path
        A folder in which Flower may write.

    Returns
    -------
    dict of str to int
        The numbers that the nodes have at the SuperLink.

    Raises
    ------
    TransportError
        If the SuperLink is not there, not who it should be, or does not take a key.
    """
    keys = {name: read_public_node_key(path) for name, path in nodes.items()}
    if len(set(keys.values())) < len(keys):
        raise ValueError("Expected a key of its own for each node, got one key twice.")
    switch_off(home)
    with closing(Connection(flower().ControlClient, address, ca, most=_LIST)) as link:
        try:
            return _register(link, keys)
        except http_error() as problem:
            raise TransportError(
                f"The SuperLink at {address} does not take a node's key. One that was removed "
                "once is never taken again: make a new key for that node."
            ) from problem
        except (connection_error(), MessageError) as problem:
            raise certificate_error(problem, address, ca) or TransportError(
                f"There is no SuperLink at {address}. Check that it runs, and its address."
            ) from problem


def _register(link: Connection, keys: Mapping[str, bytes]) -> dict[str, int]:
    """Numbers of nodes by name, once all of them are known."""
    control = flower().control
    listed = link.call("ListNodes", control.ListNodesRequest()).nodes_info
    numbers = {bytes(node.public_key): node.node_id for node in listed}
    for key in keys.values():
        if key not in numbers:
            request = control.RegisterNodeRequest(public_key=key)  # its name is for us
            numbers[key] = link.call("RegisterNode", request).node_id
    return {name: numbers[key] for name, key in keys.items()}


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
    parcel: ChunkedMessage | None


class SuperLinkConnection:
    """A coordinator's way to its SuperLink.

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
        self._control = Connection(library.ControlClient, address, ca, most=OVERHEAD_BYTES)
        signature = library.SecretSignature(
            master_secret=_read_secret(secret), protected_methods=[_ACQUIRE]
        )
        self._taking = Connection(
            library.RuntimeClient, address, ca, [signature], most=OVERHEAD_BYTES
        )

    def close(self) -> None:
        """Close its connections."""
        self._control.close()
        self._taking.close()

    def open_run(self) -> "FlowerRun":
        """Start a run and take it at once."""
        control = flower().control
        request = control.StartRunRequest(fab=flower().fab.Fab(content=_bundle()))
        number = self._control.call("StartRun", request).run_id
        return FlowerRun(self._address, self._ca, self._taken(number))

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
            "Another coordinator took this one's run of the SuperLink. FlowerRun one at a time."
        )


class FlowerRun:
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
            library.RuntimeClient, address, ca, tokens, most=MAX_REPLY_BYTES + OVERHEAD_BYTES
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
        proto, tree, pieces = pack_message(body, outside)
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
                parcel = ChunkedMessage(proto, tree)
            except MessageError:
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

    def confirm(self, parcel: ChunkedMessage) -> None:
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


_POLL = 0.2  # seconds
_BEAT = 10.0
_AGAIN = 1.0


class FlowerTransport:
    """Carries requests to nodes, and their replies back. Use it in a ``with`` block.

    Parameters
    ----------
    address : str
        Of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that vouches for the SuperLink.
    secret : path
        The SuperLink's secret, by which the coordinator takes runs.
    nodes : mapping of str to path
        For each source the public key of its node.
    home : path
        A folder in which Flower may write.

    Guarantees
    ----------
    A request goes to the node that holds the source's key, and to no other. The same bytes
    are sent again when a node was away; none are made here.
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
        """Send each source its bytes; yield replies as they come, until all did or time is up.

        Parameters
        ----------
        requests : mapping of str to bytes
            For each source a request of at most 4 KiB.
        timeout : float
            Seconds to wait.

        Yields
        ------
        name, reply : str, bytes
            Whoever is silent, or replies with more than 1 MiB, is not named.

        Raises
        ------
        TransportError
            If, when the time is up, the SuperLink has not been reached once.
        """
        link = self._checked(requests, timeout)
        end = time.monotonic() + timeout
        waiting = dict(requests)
        failure: TransportError | None = None
        while waiting and time.monotonic() < end:
            try:
                yield from self._attempt(link, waiting, end)
                failure = None
            except (connection_error(), http_error(), MessageError) as problem:
                # Gone, or somebody stopped the run: what was asked is asked again in another.
                failure = self._failure(problem)
                time.sleep(max(0.0, min(_AGAIN, end - time.monotonic())))
        if failure is not None and waiting.keys() == requests.keys():
            raise failure

    def _attempt(
        self, link: SuperLinkConnection, waiting: dict[str, bytes], end: float
    ) -> Iterator[tuple[str, bytes]]:
        """Ask those who have not answered, in a run of its own."""
        run = link.open_run()
        try:
            yield from _Round(run, self._nodes, waiting, end).replies()
        finally:
            with suppress(connection_error(), http_error(), MessageError):
                run.finish()
            run.close()

    def _checked(self, requests: Mapping[str, bytes], timeout: float) -> SuperLinkConnection:
        """The link, if the request can be carried."""
        if self._link is None:
            raise RuntimeError("Expected a transport that was opened. Use it in a with block.")
        _checks.positive(timeout=timeout)
        for name, body in requests.items():
            if name not in self._nodes:
                raise ValueError(f"Expected a source with a node, got {name!r}.")
            if len(body) > MAX_REQUEST_BYTES:
                raise ValueError(
                    f"Expected a request of at most {MAX_REQUEST_BYTES} bytes, got {len(body)} bytes "
                    f"for {name!r}."
                )
        return self._link

    def _failure(self, problem: Exception) -> TransportError:
        """What went wrong with the SuperLink, in a line."""
        mistrust = certificate_error(problem, self._address, self._ca)
        if mistrust is not None:
            return mistrust
        if isinstance(problem, http_error()):
            what = "refuses this coordinator: its secret may be another"
        else:
            what = "cannot be reached, or is no SuperLink"
        return TransportError(
            f"The SuperLink at {self._address} {what}. Check that it runs, its address and "
            f"{self._secret}."
        )


class _Round:
    """One run: who was sent what, and whose reply is on its way."""

    def __init__(
        self, run: FlowerRun, nodes: Mapping[str, int], waiting: dict[str, bytes], end: float
    ) -> None:
        self._run, self._nodes, self._waiting, self._end = run, nodes, waiting, end
        self._signed_on: dict[str, str] = {}  # when, of the node that was sent the request
        self._sent: dict[str, str] = {}  # names by message
        self._coming: dict[str, ChunkedMessage] = {}  # by name
        self._beaten = self._looked = float("-inf")
        now = time.monotonic()
        self._again = now + (end - now) / 2  # when whoever is still silent is sent it once more

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """Send, and send again, and yield what comes."""
        while self._waiting and time.monotonic() < self._end:
            self._keep_up()
            if self._sent:
                for incoming in self._run.replies(list(self._sent)):
                    self._sort(incoming)
            for name in list(self._coming):
                body = self._fetched(name)
                if body is not None:
                    yield name, body
            if self._waiting:
                time.sleep(_POLL)

    def _keep_up(self) -> None:
        """From time to time, say that we are there and see who came (back)."""
        now = time.monotonic()
        if now - self._beaten >= _BEAT:
            self._beaten = now
            self._run.beat()
        if now - self._looked >= _AGAIN:
            self._looked = now
            if now >= self._again:  # a message may be lost without a word; repeats are free
                self._again = float("inf")
                self._signed_on.clear()
            self._send(self._run.present())

    def _send(self, present: Mapping[int, str]) -> None:
        """Send to nodes that signed on since they were last sent their request.

        What a node was handed before it was killed is never handed out again, so a node that
        signs on anew is sent the same bytes anew.
        """
        for name, body in self._waiting.items():
            since = present.get(self._nodes[name])
            if since is not None and since != self._signed_on.get(name):
                lasts = max(self._end - time.monotonic(), 1.0)
                message = self._run.send(self._nodes[name], body, lasts=lasts)
                if message is not None:
                    self._signed_on[name] = since
                    self._sent[message] = name

    def _sort(self, incoming: Incoming) -> None:
        """Note a reply that has to be fetched; anything else is dropped."""
        name = self._sent.pop(incoming.reply_to, None)
        if name is None or name not in self._waiting or incoming.parcel is None:
            return  # also what the SuperLink says of nodes that are gone
        if incoming.sender == self._nodes[name]:
            self._coming[name] = incoming.parcel

    def _fetched(self, name: str) -> bytes | None:
        """A reply, once it is complete. One that is not ours, or too large, is dropped."""
        parcel = self._coming[name]
        try:
            body = parcel.fetch(self._run.pull)
        except MessageError:
            del self._coming[name], self._waiting[name]
            return None
        if body is None:
            return None
        del self._coming[name], self._waiting[name]
        self._run.confirm(parcel)
        return body if len(body) <= MAX_REPLY_BYTES else None
