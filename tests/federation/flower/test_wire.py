"""A hostile server cannot exhaust the memory or redirect requests."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.federation.flower.hostile import Hostile, hostile_class, served
from veracal.errors import DataError, TransportError
from veracal.federation.flower.superlink import make_server_files
from veracal.federation.flower.wire import (
    ChunkedMessage,
    Connection,
    MessageError,
    certificate_error,
    check_address,
    connection_error,
    flower,
    http_error,
    http_status,
    metadata,
    pack_message,
)

pytestmark = pytest.mark.full


@pytest.fixture
def files(tmp_path):
    return make_server_files(tmp_path)


@pytest.fixture
def hostile(files) -> Iterator[tuple[str, type[Hostile]]]:
    handler = hostile_class()
    for address in served(files, handler):
        yield address, handler


def ask(address: str, ca: Path):
    """Make a call of a node's."""
    request = flower().fleet.ActivateNodeRequest(public_key=b"k", heartbeat_interval=30)
    with closing(Connection(flower().FleetClient, address, ca, max_bytes=70_000)) as connection:
        return connection.call("ActivateNode", request)


def test_a_valid_response_is_read(hostile, files):
    address, handler = hostile
    handler.mode = "proper"
    assert ask(address, files.authority).node_id == 7


def test_redirects_are_not_followed(hostile, files):
    address, handler = hostile
    handler.mode, handler.elsewhere = "astray", f"https://{address}/inner"
    with pytest.raises(http_error()) as caught:
        ask(address, files.authority)
    assert http_status(caught.value) == 307
    assert handler.visits == ["activate-node"]


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("bomb", "was compressed"),
        ("flood", "more than 70000 bytes"),
        ("noise", "is invalid"),
    ],
)
def test_responses_are_limited(hostile, files, mode, problem):
    address, handler = hostile
    handler.mode = mode
    with pytest.raises(MessageError, match=problem):
        ask(address, files.authority)
    assert sum(handler.flooded) < 20_000_000  # what was on its way, and no more


def test_an_untrusted_certificate_is_explained(hostile, files, tmp_path):
    address, handler = hostile
    handler.mode = "proper"
    other = tmp_path / "other"
    other.mkdir()
    ca = make_server_files(other).authority
    with pytest.raises(connection_error()) as caught:
        ask(address, ca)
    explained = certificate_error(caught.value, address, ca)
    assert isinstance(explained, TransportError)
    assert f"The certificate of {address} is not signed by {ca}" in str(explained)
    assert handler.visits == []


def test_a_certificate_for_another_host_is_explained(tmp_path):
    files = make_server_files(tmp_path, ["elsewhere.example"])
    for address in served(files, hostile_class()):
        with pytest.raises(connection_error()) as caught:
            ask(address, files.authority)
    assert "IP address mismatch" in str(
        certificate_error(caught.value, address, files.authority)
    )


def test_an_unreachable_server_is_not_a_certificate_error(files):
    with pytest.raises(connection_error()) as caught:
        ask("127.0.0.1:1", files.authority)
    assert certificate_error(caught.value, "127.0.0.1:1", files.authority) is None


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_an_invalid_authority_file_is_named(tmp_path, content):
    ca = tmp_path / "ca.crt"
    if content is not None:
        ca.write_bytes(content)
    with pytest.raises(DataError, match="a certificate"):
        Connection(flower().FleetClient, "127.0.0.1:1", ca, max_bytes=1)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":80", "host:0", "host:70000", "https://host:80", "a:b"]
)
def test_an_address_must_be_a_host_and_a_port(address):
    with pytest.raises(ValueError, match="Expected an address like host:port"):
        check_address(address)


# ---------------------------------------------------------------- messages


def message(body: bytes):
    outside = metadata(1, sender=1, receiver=2, ttl=60.0)
    return pack_message(body, outside)


def fetched(content: bytes, *, there: bool = True, complete: bool = True):
    response = flower().message.PullObjectResponse
    return response(object_found=there, object_available=complete, object_content=content)


@pytest.mark.parametrize("body", [b"", b"\0\xff", bytes(range(256)) * 4_096])
def test_bytes_are_unpacked_unchanged(body):
    proto, tree, pieces = message(body)
    assert ChunkedMessage(proto, tree).fetch(lambda name: fetched(pieces[name])) == body


def test_a_message_is_returned_when_it_is_complete():
    proto, tree, pieces = message(b"body")
    parcel, requested = ChunkedMessage(proto, tree), []

    def pull(name):
        requested.append(name)
        return fetched(pieces[name], complete=len(requested) != 2)

    assert parcel.fetch(pull) is None
    assert parcel.fetch(pull) == b"body"
    assert len(requested) == 4  # no piece is fetched twice


def test_a_lost_piece_is_detected():
    proto, tree, _ = message(b"body")
    with pytest.raises(MessageError, match="lost"):
        ChunkedMessage(proto, tree).fetch(lambda _: fetched(b"", there=False))


def test_messages_with_other_pieces_are_rejected():
    proto, tree, _ = message(b"body")
    tree.children.append(tree.children[0])
    with pytest.raises(MessageError, match="expected pieces"):
        ChunkedMessage(proto, tree)


def test_error_messages_of_flower_are_rejected():
    proto, tree, _ = message(b"body")
    proto.error.code = 1
    with pytest.raises(MessageError, match="expected pieces"):
        ChunkedMessage(proto, tree)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda piece: b"",
        lambda piece: b"\xff" * 50,
        lambda piece: piece[:-1],
        lambda piece: piece.replace(b"ConfigRecord", b"MetricRecord"),
        lambda piece: piece.replace(b"RecordDict", b"Message"),
        lambda piece: piece.replace(b"body", b"busy"),
        lambda piece: b"Message  0\0",
    ],
)
def test_every_message_is_read_or_dropped(spoil):
    proto, tree, pieces = message(b"the bytes")
    with pytest.raises(MessageError):
        ChunkedMessage(proto, tree).fetch(lambda name: fetched(spoil(pieces[name])))


def test_text_is_not_accepted_as_bytes():
    library = flower()
    outside = metadata(1, sender=1, receiver=2, ttl=60.0)
    records = library.RecordDict({"veracal": library.ConfigRecord({"body": "text"})})
    created = library.make_message(metadata=outside, content=records)
    pieces = {name: piece.deflate() for name, piece in library.all_objects(created).items()}
    proto = library.message_to_proto(library.without_content(created))
    with pytest.raises(MessageError, match="no bytes"):
        ChunkedMessage(proto, library.object_tree(created)).fetch(
            lambda name: fetched(pieces[name])
        )
