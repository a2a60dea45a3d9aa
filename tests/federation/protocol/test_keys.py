"""Keys sign, verify, and stay with their owners."""

import copy
import pickle

import pytest

from veracal.errors import DataError
from veracal.federation.protocol.envelopes import PrivateKey, PublicKey


def test_a_signature_is_valid_only_for_its_key_and_bytes():
    one, other = PrivateKey.new(), PrivateKey.new()
    signature = one.sign(b"content")

    assert one.public.verify(signature, b"content")
    assert not one.public.verify(signature, b"Content")
    assert not other.public.verify(signature, b"content")


def test_the_same_bytes_get_the_same_signature():
    key = PrivateKey.new()

    assert key.sign(b"content") == key.sign(b"content")


@pytest.mark.parametrize("signature", ["", "0" * 127, "0" * 129, "G" * 128, "A" * 128, None, 7])
def test_an_invalid_signature_is_rejected(signature):
    assert not PrivateKey.new().public.verify(signature, b"content")


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "A" * 64, None])
def test_an_invalid_public_key_is_rejected(text):
    with pytest.raises(ValueError, match="Expected a public key of 64"):
        PublicKey(text)


def test_a_key_of_small_order_verifies_nothing():
    assert not PublicKey("00" * 32).verify("00" * 64, b"content")


def test_a_saved_key_is_read_back_and_readable_only_by_its_owner(tmp_path):
    key, path = PrivateKey.new(), tmp_path / "key.pem"
    key.save(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.read(path).public == key.public


def test_a_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "key.pem"
    PrivateKey.new().save(path)
    before = path.read_bytes()

    with pytest.raises(DataError, match="a new key"):
        PrivateKey.new().save(path)
    assert path.read_bytes() == before


def test_a_key_file_that_others_can_read_is_rejected(tmp_path):
    path = tmp_path / "key.pem"
    PrivateKey.new().save(path)
    path.chmod(0o640)

    with pytest.raises(DataError, match=r"only its owner can read.*mode 640"):
        PrivateKey.read(path)


@pytest.mark.parametrize("content", [b"", b"no key", b"\0" * 9_000])
def test_an_invalid_key_file_is_rejected(tmp_path, content):
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(DataError, match="a private key that `init` wrote"):
        PrivateKey.read(path)


def test_a_missing_key_file_is_rejected(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        PrivateKey.read(tmp_path / "none.pem")


def test_a_private_key_is_not_printed_copied_or_pickled():
    key = PrivateKey.new()

    assert key.public.text not in repr(key)
    with pytest.raises(TypeError, match="cannot be copied"):
        pickle.dumps(key)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(key)
