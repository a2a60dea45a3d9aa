"""All that we use of Flower, in one place.

Most of it is not Flower's public interface, which knows no way to answer without running
code from outside: a new release of Flower is to be read against this list.

What Flower is told before it starts: call nobody, install nothing, stay in your folder.

Keys by which a SuperLink tells its nodes apart.

Flower takes keys on the curves of NIST only, in OpenSSH's form. They say who is connected;
what is asked and answered is signed by other keys, inside the bytes.

Bytes into Flower's messages and out of them, over connections that keep their limits.
"""

import ipaddress
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from veracal._checks import extra
from veracal.data import new_file, placed
from veracal.errors import DataError, TransportError, VeracalError

# Name here: where it lives in flwr 1.41, and what it is called there.
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
    """Flower's parts by the names above, and its protobuf messages by their own.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    """
    found = {
        name: getattr(_module(where), what) for name, (where, what) in _FLOWER_NAMES.items()
    }
    messages = {name: _module(f"proto.{name}_pb2") for name in _MESSAGES}
    return SimpleNamespace(**found, **messages)


def _module(where: str) -> Any:
    """A module of Flower."""
    return extra(f"flwr.{where}", "flower")


OFF = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def environment(home: Path) -> dict[str, str]:
    """Variables for a program of Flower's.

    Whatever the caller's environment says to Flower is left out: some of its variables open
    further ports.

    Parameters
    ----------
    home : path
        Where Flower may write. Even with telemetry off it keeps an identity there.

    Returns
    -------
    dict
        The caller's variables without Flower's own, and ours.
    """
    kept = {name: value for name, value in os.environ.items() if not _is_flowers(name)}
    return kept | OFF | {"FLWR_HOME": str(home.absolute())}


def switch_off(home: Path) -> None:
    """Tell Flower the same in this program, before the first of its modules is imported."""
    for name in [name for name in os.environ if _is_flowers(name)]:
        del os.environ[name]
    os.environ.update(OFF, FLWR_HOME=str(home.absolute()))


def _is_flowers(name: str) -> bool:
    """Whether a variable speaks to Flower."""
    return name.startswith("FLWR_")


_MOST = 16_384  # bytes of a key file
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def make_node_key(path: Path) -> Path:
    """Write a new key for a node, and beside it the half that the SuperLink is given.

    Parameters
    ----------
    path : path
        Of the private half, which its owner alone can read.

    Returns
    -------
    path
        Of the public half: the same name with ``.pub`` behind it.
    """
    public = path.with_name(f"{path.name}.pub")
    for new in (path, public):
        new_file(new, "key")
    curves, forms = _curves(), _serialization()
    key = curves.generate_private_key(curves.SECP384R1())
    pem, ssh = forms.Encoding.PEM, forms.Encoding.OpenSSH
    secret = key.private_bytes(pem, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    with placed(path) as file:
        file.write(secret)
    with placed(public) as file:
        file.write(key.public_key().public_bytes(ssh, forms.PublicFormat.OpenSSH) + b"\n")
    return public


def read_node_key(path: Path) -> Any:
    """Read the private half, if nobody else can.

    Raises
    ------
    DataError
        If it is not there, is no such key, or is open to others.
    """
    content = _read(path)
    if path.stat().st_mode & 0o077:
        expected = "a key that its owner alone can read"
        remedy = "Change its mode to 600; if others may have read it, make a new key."
        raise DataError(str(path), expected, "a file that others can read or write", remedy)
    try:
        key = _serialization().load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, _unsupported()) as cause:
        raise _no_key(path, "private", "something else") from cause
    if not isinstance(key, _curves().EllipticCurvePrivateKey) or key.curve.name not in _CURVES:
        raise _no_key(path, "private", "a key of another kind")
    return key


def read_public_node_key(path: Path) -> bytes:
    """Read the public half, in the form (PEM) in which a SuperLink keeps it.

    Raises
    ------
    DataError
        If it is not there, or is no such key.
    """
    content = _read(path)
    try:
        key = _serialization().load_ssh_public_key(content)
    except (ValueError, TypeError, _unsupported()) as cause:
        raise _no_key(path, "public", "something else") from cause
    if not isinstance(key, _curves().EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise _no_key(path, "public", "a key of another kind")
    return public_form(key)


def public_form(public: Any) -> bytes:
    """A public key as a SuperLink keeps it."""
    forms = _serialization()
    form = forms.PublicFormat.SubjectPublicKeyInfo
    content: bytes = public.public_bytes(forms.Encoding.PEM, form)
    return content


def _read(path: Path) -> bytes:
    """Read a small file."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST)
    except OSError as cause:
        raise _no_key(path, "node's", cause.strerror or "nothing") from cause


def _no_key(path: Path, half: str, found: str) -> DataError:
    """Error for a file that is no key of a node."""
    remedy = "Make one with  ssh-keygen -t ecdsa -b 384 -N '' -f node.key"
    return DataError(str(path), f"a {half} key on a NIST curve (OpenSSH)", found, remedy)


def _curves() -> Any:
    """Elliptic curves."""
    return extra("cryptography.hazmat.primitives.asymmetric.ec", "flower")


def _serialization() -> Any:
    """How keys are written."""
    return extra("cryptography.hazmat.primitives.serialization", "flower")


def _unsupported() -> type[Exception]:
    """What is raised for a kind of key that is not known."""
    kind: type[Exception] = extra("cryptography.exceptions", "flower").UnsupportedAlgorithm
    return kind


MAX_REQUEST_BYTES = 4_096  # bytes, at most
MAX_REPLY_BYTES = 1_048_576
OVERHEAD_BYTES = 65_536  # what Flower puts around them
SUPERLINK = 1  # the number of the SuperLink among its nodes
_SECONDS = 30.0
_RECORD, _BODY = "veracal", "body"
_OBJECTS = 3  # a message, its records, the one record with the bytes


class MessageError(VeracalError):
    """A message is not one of ours, or is too large; it is dropped."""


class LimitedClient:
    """Sends requests for Flower's clients, in the place of their own way.

    Parameters
    ----------
    address : str
        As ``host:port``.
    authority : ssl.SSLContext
        Whose certificates are believed.
    most : int
        Bytes of a response, at most.

    Guarantees
    ----------
    Nobody at the other end can lead a request to another place (redirects are not followed),
    have a small response grow when it is unpacked, or fill the memory with a large one.
    """

    def __init__(self, address: str, authority: ssl.SSLContext, most: int) -> None:
        self._most = most
        self._http = _httpx().Client(
            verify=authority,
            timeout=_SECONDS,
            follow_redirects=False,
            trust_env=not _is_local(address),  # a proxy of the caller's own, to the outside
        )

    def intercept(self, context: Any, call_next: object) -> Any:
        """Send a request and read the response, as far as the limit."""
        context.request.headers["accept-encoding"] = "identity"
        response = self._http.send(context.request, stream=True)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise MessageError("A response was packed, and nobody asked for that.")
            content = bytearray()
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > self._most:
                    raise MessageError(f"A response has more than {self._most} bytes.")
        finally:
            response.close()
        return _httpx().Response(
            response.status_code, content=bytes(content), request=context.request
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


class Connection:
    """One of Flower's clients, over TLS, within limits.

    Parameters
    ----------
    client : class
        Of Flower.
    address : str
        As ``host:port``.
    ca : path
        Certificate of the federation's authority.
    signers : sequence
        What is added to each request: signatures and tokens.
    most : int
        Bytes of a response, at most.
    """

    def __init__(
        self, client: Any, address: str, ca: Path, signers: Sequence[Any] = (), *, most: int
    ) -> None:
        authority = tls_context(ca)
        self._bounded = LimitedClient(check_address(address), authority, most)
        interceptors = (*signers, self._bounded)
        self._client = client(f"https://{address}", interceptors=interceptors, verify=authority)

    def call(self, name: str, request: Any) -> Any:
        """Make a call, by the name it has at Flower.

        Raises
        ------
        ParcelError
            If what comes back cannot be read.
        """
        try:
            return getattr(self._client, name)(request)
        except ValueError as cause:
            raise MessageError("A response cannot be read.") from cause

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
        self._bounded.close()


class ChunkedMessage:
    """A message that is being fetched, piece by piece.

    Parameters
    ----------
    proto : protobuf message
        The message without its content.
    tree : protobuf message
        What pieces there are.

    Raises
    ------
    ParcelError
        If no message of ours has such pieces.
    """

    def __init__(self, proto: Any, tree: Any) -> None:
        self.metadata = proto.metadata
        self._names = [piece.object_id for piece in flower().walk_tree(tree)]
        if len(self._names) != _OBJECTS or proto.HasField("error"):
            raise MessageError("A message has other pieces than ours have.")
        self._root: str = tree.object_id
        self._pieces: dict[str, bytes] = {}

    def fetch(self, pull: Callable[[str], Any]) -> bytes | None:
        """Fetch what is still missing; return the bytes once everything is there.

        Parameters
        ----------
        pull : function
            From the name of a piece to Flower's response.

        Raises
        ------
        ParcelError
            If a piece is gone, or the message is not one of ours.
        """
        for name in self._names:
            if name not in self._pieces:
                response = pull(name)
                if not response.object_found:
                    raise MessageError("A piece of a message is gone.")
                if not response.object_available:
                    return None
                self._pieces[name] = response.object_content
        return _body(self._root, dict(self._pieces))


def pack_message(body: bytes, metadata: Any) -> tuple[Any, Any, dict[str, bytes]]:
    """Bytes as a message of Flower's: the message, the tree of its pieces, and the pieces."""
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
    lasts: float,
    reply_to: str = "",
    created: float | None = None,
) -> Any:
    """What is written on the outside of a message, which was created now or at a given time."""
    return flower().Metadata(
        run_id=run,
        message_id="",
        src_node_id=sender,
        dst_node_id=receiver,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=time.time() if created is None else created,
        ttl=lasts,
        message_type="query",
    )


def tls_context(ca: Path) -> ssl.SSLContext:
    """Believe certificates by one authority and by no other."""
    try:
        return ssl.create_default_context(cafile=str(ca))
    except OSError as cause:  # an SSLError is one, too
        found = "something else" if isinstance(cause, ssl.SSLError) else cause.strerror
        remedy = "Ask whoever runs the SuperLink for its ca.crt."
        raise DataError(str(ca), "a certificate (PEM)", str(found), remedy) from cause


def check_address(address: str) -> str:
    """Return an address of the form ``host:port``, or raise."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536) or "/" in host:
        raise ValueError(f"Expected an address like host:port, got {address[:80]!r}.")
    return address


def certificate_error(problem: BaseException, address: str, ca: Path) -> TransportError | None:
    """The error for an address that shows a certificate we do not believe, if it is that."""
    for cause in _causes(problem):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TransportError(
                f"The certificate of {address} is not one that {ca} vouches for: "
                f"{cause.verify_message}. Nothing was sent. Check the address, and ask "
                "whoever runs the SuperLink for its ca.crt."
            )
    return None


def connection_error() -> type[Exception]:
    """What is raised if the other end cannot be reached, or is gone in the middle."""
    kind: type[Exception] = _httpx().TransportError
    return kind


def http_error() -> type[Exception]:
    """What is raised if the other end says no."""
    kind: type[Exception] = _httpx().HTTPStatusError
    return kind


def http_status(problem: Any) -> int | None:
    """Number by which the other end says no, if it is that."""
    kind: Any = http_error()
    return int(problem.response.status_code) if isinstance(problem, kind) else None


def _body(root: str, pieces: dict[str, bytes]) -> bytes:
    """The bytes in a message that may come from anyone."""
    try:
        body = flower().inflate(root, pieces).content[_RECORD][_BODY]
    except Exception as cause:  # Flower names no exceptions for what is malformed
        raise MessageError("A message cannot be read.") from cause
    if not isinstance(body, bytes):
        raise MessageError("A message holds no bytes.")
    return body


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """An exception and what led to it."""
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def _is_local(address: str) -> bool:
    """Whether an address is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _httpx() -> Any:
    """What Flower speaks HTTP with."""
    return extra("httpx", "flower")
