"""Keys sign, verify, and stay with their owners."""

import copy
import pickle

import pytest

from veracal.errors import DataError
from veracal.federation.protocol.envelopes import PrivateKey, PublicKey


def test_a_signature_holds_for_its_key_and_its_bytes_alone():
    one, other = PrivateKey.new(), PrivateKey.new()
    signature = one.sign(b"content")

    assert one.public.verify(signature, b"content")
    assert not one.public.verify(signature, b"Content")
    assert not other.public.verify(signature, b"content")


def test_the_same_bytes_get_the_same_signature():
    key = PrivateKey.new()

    assert key.sign(b"content") == key.sign(b"content")


@pytest.mark.parametrize("signature", ["", "0" * 127, "0" * 129, "G" * 128, "A" * 128, None, 7])
def test_what_is_no_signature_does_not_hold(signature):
    assert not PrivateKey.new().public.verify(signature, b"content")


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "A" * 64, None])
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(ValueError, match="Expected a public key of 64"):
        PublicKey(text)


def test_a_key_of_small_order_verifies_nothing():
    assert not PublicKey("00" * 32).verify("00" * 64, b"content")


def test_a_key_is_read_back_from_its_file_which_its_owner_alone_can_read(tmp_path):
    key, path = PrivateKey.new(), tmp_path / "key.pem"
    key.save(path)

    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.read(path).public == key.public


def test_a_key_file_is_never_written_over(tmp_path):
    path = tmp_path / "key.pem"
    PrivateKey.new().save(path)
    before = path.read_bytes()

    with pytest.raises(DataError, match="a new key"):
        PrivateKey.new().save(path)
    assert path.read_bytes() == before


def test_a_key_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "key.pem"
    PrivateKey.new().save(path)
    path.chmod(0o640)

    with pytest.raises(DataError, match=r"its owner alone can read.*mode 640"):
        PrivateKey.read(path)


@pytest.mark.parametrize("content", [b"", b"no key", b"\0" * 9_000])
def test_what_is_no_key_file_is_refused(tmp_path, content):
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(DataError, match="a private key as `init` makes it"):
        PrivateKey.read(path)


def test_a_key_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        PrivateKey.read(tmp_path / "none.pem")


def test_a_private_key_is_not_shown_copied_or_pickled():
    key = PrivateKey.new()

    assert key.public.text not in repr(key)
    with pytest.raises(TypeError, match="copy a private key"):
        pickle.dumps(key)
    with pytest.raises(TypeError, match="copy a private key"):
        copy.copy(key)
