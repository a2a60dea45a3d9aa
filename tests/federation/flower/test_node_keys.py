"""Keys of nodes, in the form in which OpenSSH and Flower write them."""

import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from veracal.errors import DataError
from veracal.federation.flower.wire import (
    make_node_key,
    public_form,
    read_node_key,
    read_public_node_key,
)

pytestmark = pytest.mark.full


def ssh(key) -> bytes:
    """A private key as OpenSSH writes it."""
    form = serialization.PrivateFormat.OpenSSH
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def test_the_keys_match_and_the_private_key_is_secret(tmp_path):
    path = tmp_path / "node.key"
    public = make_node_key(path)
    assert public == tmp_path / "node.key.pub"
    assert public_form(read_node_key(path).public_key()) == read_public_node_key(public)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_public_key_has_the_form_that_flower_stores(tmp_path):
    asymmetric = pytest.importorskip("flwr.supercore.primitives.asymmetric")
    public = make_node_key(tmp_path / "node.key")
    key = serialization.load_ssh_public_key(public.read_bytes())
    assert read_public_node_key(public) == asymmetric.public_key_to_bytes(key)


@pytest.mark.parametrize("taken", ["node.key", "node.key.pub"])
def test_no_key_is_overwritten(tmp_path, taken):
    (tmp_path / taken).write_text("mine")
    with pytest.raises(DataError, match="a new key, found one that exists"):
        make_node_key(tmp_path / "node.key")
    assert [path.name for path in tmp_path.iterdir()] == [taken]


def test_a_key_file_that_others_can_read_is_rejected(tmp_path):
    path = tmp_path / "node.key"
    make_node_key(path)
    path.chmod(0o640)
    with pytest.raises(DataError, match="only its owner can read"):
        read_node_key(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"nothing", bytes(100_000), ssh(ed25519.Ed25519PrivateKey.generate())],
    ids=["empty", "words", "long", "Ed25519"],
)
def test_an_invalid_node_key_is_rejected(tmp_path, content):
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    for read in (read_node_key, read_public_node_key):
        with pytest.raises(DataError, match="key on a NIST curve"):
            read(path)


def test_a_missing_key_is_named(tmp_path):
    for read in (read_node_key, read_public_node_key):
        with pytest.raises(DataError, match="No such file"):
            read(tmp_path / "node.key")


def test_keys_of_openssh_are_accepted(tmp_path):
    """The form in which ssh-keygen -t ecdsa -b 384 writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    path = tmp_path / "node.key"
    path.write_bytes(ssh(key))
    path.chmod(0o600)
    assert public_form(read_node_key(path).public_key()) == public_form(key.public_key())
