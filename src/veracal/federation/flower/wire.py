"""Everything used of Flower: its parts, settings, node keys, messages and bounded connections.

Most of these parts are not Flower's public interface, which cannot answer messages without
running foreign code. Compare this module with each new release of Flower.

Flower is configured to send no telemetry, install nothing and write only to its folder. Node
keys (NIST curves, in OpenSSH format) identify connections. Requests and answers are signed with
other keys, inside of the messages.
"""

import ipaddress
import os
import ssl
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from veracal._checks import extra
from veracal.data import atomic_file, new_file
from veracal.errors import DataError, TransportError, VeracalError
from veracal.federation.protocol.envelopes import read_secret

# Name here: module in flwr 1.41, and name there.
_FLOWER_NAMES = {
    "FleetClient": ("supernode.fleet_http_client", "FleetHttpClient"),
    "ControlClient": ("supercore.control", "ControlHttpClient"),
    "RuntimeClient": ("supercore.runtime", "RuntimeHttpClient"),
    "NodeSignature": ("supernode.node_auth_http_interceptor", "NodeAuthHttpInterceptor"),
    "SecretSignature": ("supercore.interceptors", "SuperExecAuthHttpInterceptor"),
    "TaskToken": ("supercore.interceptors", "RuntimeTokenHttpInterceptor"),
    "ConfigRecord": ("app", "ConfigRecord"),
    "Metadata": ("app", "Metadata"),
    "RecordDict": ("app", "RecordDict"),
    "make_message": ("app.message", "make_message"),
    "without_content": ("app.message", "remove_content_from_message"),
    "message_to_proto": ("common.serde", "message_to_proto"),
    "all_objects": ("supercore.inflatable.inflatable_object", "get_all_nested_objects"),
    "object_tree": ("supercore.inflatable.inflatable_object", "get_object_tree"),
    "walk_tree": ("supercore.inflatable.inflatable_object", "iterate_object_tree"),
    "inflate": ("supercore.inflatable.inflatable_utils", "inflate_object_from_contents"),
}
_MESSAGES = ("control", "fab", "fleet", "heartbeat", "message", "node", "runtime")


@cache
def flower() -> Any:
    """Flower's parts by the names above, and its protobuf modules by their own names."""

    def module(path: str) -> Any:
        return extra(f"flwr.{path}", "flower")

    parts = {name: getattr(module(path), part) for name, (path, part) in _FLOWER_NAMES.items()}
    messages = {name: module(f"proto.{name}_pb2") for name in _MESSAGES}
    return SimpleNamespace(**parts, **messages)


def crypto(name: str) -> Any:
    """A module of the ``cryptography`` library, which Flower requires."""
    return extra(f"cryptography.{name}", "flower")


OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def environment(home: Path) -> dict[str, str]:
    """Environment for a program of Flower: our settings, and the caller's other variables.

    Flower's variables in the caller's environment are removed: some of them open ports. It may
    write to ``home``, where it stores an identity even without telemetry.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return others | OFF | {"FLWR_HOME": str(home.absolute())}


def switch_off(home: Path) -> None:
    """Apply the same settings to this process, before Flower is imported."""
    for name in [name for name in os.environ if name.startswith("FLWR_")]:
        del os.environ[name]
    os.environ.update(OFF, FLWR_HOME=str(home.absolute()))


_MAX_KEY_BYTES = 16_384
_EXPECTED = "a {} key on a NIST curve (OpenSSH)"
_NEW_KEY = "Create one with  ssh-keygen -t ecdsa -b 384 -N '' -f node.key"
_CURVE_MODULE = "hazmat.primitives.asymmetric.ec"
_FORMS = "hazmat.primitives.serialization"
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def make_node_key(path: Path) -> Path:
    """Write a new private key of a node, which only its owner can read, and its public key.

    The public key has the same name with the suffix ``.pub``, and its path is returned.
    """
    public = path.with_name(f"{path.name}.pub")
    for new in (path, public):
        new_file(new, "key")
    curves, forms = crypto(_CURVE_MODULE), crypto(_FORMS)
    key = curves.generate_private_key(curves.SECP384R1())
    pem, ssh = forms.Encoding.PEM, forms.Encoding.OpenSSH
    secret = key.private_bytes(pem, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    with atomic_file(path) as file:
        file.write(secret)
    with atomic_file(public) as file:
        file.write(key.public_key().public_bytes(ssh, forms.PublicFormat.OpenSSH) + b"\n")
    return public


def read_node_key(path: Path) -> Any:
    """Read a private key that only its owner can access."""
    content = read_secret(path, _EXPECTED.format("private"), _NEW_KEY)
    load = crypto(_FORMS).load_ssh_private_key
    return _load_key(path, "private", lambda: load(content, password=None))


def read_public_node_key(path: Path) -> bytes:
    """Read a public key, in the PEM form that a SuperLink stores."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_BYTES)  # another party may have written it
    except OSError as cause:
        expected, actual = _EXPECTED.format("public"), cause.strerror or "nothing"
        raise DataError(str(path), expected, actual, _NEW_KEY) from cause
    load = crypto(_FORMS).load_ssh_public_key
    return public_form(_load_key(path, "public", lambda: load(content)))


def _load_key(path: Path, half: str, load: Callable[[], Any]) -> Any:
    """Half of a key on one of Flower's curves."""
    expected = _EXPECTED.format(half)
    try:
        key = load()
    except (ValueError, TypeError, crypto("exceptions").UnsupportedAlgorithm) as cause:
        raise DataError(str(path), expected, "something else", _NEW_KEY) from cause
    kind = getattr(crypto(_CURVE_MODULE), f"EllipticCurve{half.title()}Key")
    if not isinstance(key, kind) or key.curve.name not in _CURVES:
        raise DataError(str(path), expected, "another type of key", _NEW_KEY)
    return key


def public_form(public: Any) -> bytes:
    """Encode a public key in the form that a SuperLink stores."""
    forms = crypto(_FORMS)
    form = forms.PublicFormat.SubjectPublicKeyInfo
    content: bytes = public.public_bytes(forms.Encoding.PEM, form)
    return content


OVERHEAD_BYTES = 65_536  # of Flower's messages around them
SUPERLINK = 1  # node id of the SuperLink
_TIMEOUT = 30.0  # seconds
_RECORD, _BODY = "veracal", "body"
_OBJECTS = 3  # a message, its records, the one record with the bytes


class MessageError(VeracalError):
    """A message is not one of Veracal's, or is too large. It is dropped."""


class Connection:
    """One of Flower's clients over TLS, with limits.

    Parameters
    ----------
    client : class
        Client class of Flower.
    address : str
        As ``host:port``.
    ca : path
        Certificate of the federation's authority.
    signers : sequence
        Interceptors that add signatures and tokens to each request.
    max_bytes : int
        Maximum size of a response.

    Guarantees
    ----------
    The other side cannot redirect a request, send a compressed response, or exhaust the memory
    with a large response. It is trusted only with a certificate of the authority.
    """

    def __init__(
        self,
        client: Any,
        address: str,
        ca: Path,
        signers: Sequence[Any] = (),
        *,
        max_bytes: int,
    ) -> None:
        try:
            authority = ssl.create_default_context(cafile=str(ca))
        except OSError as cause:  # includes SSLError
            actual = "something else" if isinstance(cause, ssl.SSLError) else cause.strerror
            remedy = "Ask the operator of the SuperLink for its ca.crt."
            raise DataError(str(ca), "a certificate (PEM)", str(actual), remedy) from cause
        host = check_address(address).rpartition(":")[0].strip("[]")
        try:
            is_local = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_local = host == "localhost"
        self._max_bytes = max_bytes
        self._http = _httpx().Client(
            verify=authority,
            timeout=_TIMEOUT,
            follow_redirects=False,
            trust_env=not is_local,  # the caller's proxy, for remote addresses
        )
        self._client = client(
            f"https://{address}", interceptors=(*signers, self), verify=authority
        )

    def intercept(self, context: Any, call_next: object) -> Any:
        """Send a request in place of Flower's client, and read the response up to the limit."""
        context.request.headers["accept-encoding"] = "identity"
        response = self._http.send(context.request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise MessageError("A response was compressed although that was not requested.")
            content = bytearray()
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > self._max_bytes:
                    raise MessageError(f"A response has more than {self._max_bytes} bytes.")
        finally:
            response.close()
        return _httpx().Response(
            response.status_code, content=bytes(content), request=context.request
        )

    def call(self, name: str, request: Any) -> Any:
        """Make a call by its name in Flower."""
        try:
            return getattr(self._client, name)(request)
        except ValueError as cause:
            raise MessageError("A response is invalid.") from cause

    def push(self, request: Any, body: bytes, envelope: Any, sender: Any, **fields: Any) -> Any:
        """Send bytes as a message in a request of this type, and return the response."""
        proto, tree, pieces = pack_message(body, envelope)
        response = self.call(
            "PushMessages",
            request(messages_list=[proto], message_object_trees=[tree], **fields),
        )
        for name in response.objects_to_push:
            if name in pieces:  # the SuperLink may only request pieces of this message
                self.call(
                    "PushObject",
                    flower().message.PushObjectRequest(
                        node=sender,
                        run_id=envelope.run_id,
                        object_id=name,
                        object_content=pieces[name],
                        session_id=response.session_id,
                    ),
                )
        return response

    def receive(self, message: "ChunkedMessage", run: int, node: Any) -> bytes | None:
        """Fetch the missing pieces of a message, and confirm it when it is complete."""
        request = flower().message.PullObjectRequest
        body = message.fetch(
            lambda name: self.call("PullObject", request(node=node, run_id=run, object_id=name))
        )
        if body is not None:
            name = message.metadata.message_id
            request = flower().message.ConfirmMessageReceivedRequest
            self.call(
                "ConfirmMessageReceived",
                request(node=node, run_id=run, message_object_id=name),
            )
        return body

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._http.close()


class ChunkedMessage:
    """A message that is fetched in pieces, given without its content and as the tree of pieces.

    A ``MessageError`` is raised if Veracal's messages do not have such pieces.
    """

    def __init__(self, proto: Any, tree: Any) -> None:
        self.metadata = proto.metadata
        self._names = [piece.object_id for piece in flower().walk_tree(tree)]
        if len(self._names) != _OBJECTS or proto.HasField("error"):
            raise MessageError("A message does not have the expected pieces.")
        self._root: str = tree.object_id
        self._pieces: dict[str, bytes] = {}

    def fetch(self, pull: Callable[[str], Any]) -> bytes | None:
        """Fetch the missing pieces; return the bytes when all are available, else None."""
        for name in self._names:
            if name not in self._pieces:
                response = pull(name)
                if not response.object_found:
                    raise MessageError("A piece of a message is lost.")
                if not response.object_available:
                    return None
                self._pieces[name] = response.object_content
        try:
            body = flower().inflate(self._root, dict(self._pieces)).content[_RECORD][_BODY]
        except Exception as cause:  # Flower documents no exceptions for malformed input
            raise MessageError("A message is invalid.") from cause
        if not isinstance(body, bytes):
            raise MessageError("A message contains no bytes.")
        return body


def pack_message(body: bytes, metadata: Any) -> tuple[Any, Any, dict[str, bytes]]:
    """Pack bytes into a Flower message: the message, the tree of its pieces, the pieces."""
    library = flower()
    record = library.ConfigRecord({_BODY: body})
    message = library.make_message(
        metadata=metadata, content=library.RecordDict({_RECORD: record})
    )
    metadata.__dict__["_message_id"] = message.object_id  # as Flower itself does
    pieces = {name: piece.deflate() for name, piece in library.all_objects(message).items()}
    proto = library.message_to_proto(library.without_content(message))
    return proto, library.object_tree(message), pieces


def metadata(
    run: int,
    *,
    sender: int,
    receiver: int,
    ttl: float,
    reply_to: str = "",
    created: float | None = None,
) -> Any:
    """Metadata of a message that was created now or at a given time."""
    return flower().Metadata(
        run_id=run,
        message_id="",
        src_node_id=sender,
        dst_node_id=receiver,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=time.time() if created is None else created,
        ttl=ttl,
        message_type="query",
    )


def check_address(address: str) -> str:
    """Return an address of the form ``host:port``; raise if it is invalid."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536) or "/" in host:
        raise ValueError(f"Expected an address like host:port, got {address[:80]!r}.")
    return address


def certificate_error(problem: BaseException, address: str, ca: Path) -> TransportError | None:
    """Error for a server with an untrusted certificate; None for other problems."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TransportError(
                f"The certificate of {address} is not signed by {ca}: {cause.verify_message}. "
                "Nothing was sent. Check the address, and ask the operator of the SuperLink "
                "for its ca.crt."
            )
        cause = cause.__cause__ or cause.__context__
    return None


def connection_error() -> type[Exception]:
    """Exception for a server that cannot be reached or closes the connection."""
    kind: type[Exception] = _httpx().TransportError
    return kind


def http_error() -> type[Exception]:
    """Exception for an HTTP error status."""
    kind: type[Exception] = _httpx().HTTPStatusError
    return kind


def call_errors() -> tuple[type[Exception], ...]:
    """Everything that a call to a SuperLink may raise."""
    return connection_error(), http_error(), MessageError


def http_status(problem: Any) -> int | None:
    """HTTP status of an exception, or None."""
    kind: Any = http_error()
    return int(problem.response.status_code) if isinstance(problem, kind) else None


def _httpx() -> Any:
    """The HTTP library of Flower."""
    return extra("httpx", "flower")
