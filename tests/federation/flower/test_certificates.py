"""Certificates belong to one authority, one key, some hosts and a time."""

import dataclasses
import stat
from datetime import timedelta

import pytest

from veracal.errors import DataError
from veracal.federation.flower import superlink as certificates
from veracal.federation.flower.superlink import check_server, make_server_files


@pytest.fixture
def files(tmp_path):
    return make_server_files(tmp_path)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_files_that_were_created_together_match(files, host):
    check_server(files, host)


def test_a_new_certificate_keeps_the_authority(files, tmp_path):
    authority, certificate = files.authority.read_bytes(), files.certificate.read_bytes()
    again = make_server_files(tmp_path, ["hospital.example", "10.0.0.7", "::1"])
    assert again == files
    assert files.authority.read_bytes() == authority
    assert files.certificate.read_bytes() != certificate
    for host in ("hospital.example", "10.0.0.7", "::1"):
        check_server(files, host)


def test_only_the_owner_can_read_keys(files, tmp_path):
    for key in (files.key, tmp_path / "ca.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_another_host_does_not_match(files):
    with pytest.raises(
        DataError, match="a certificate for north.example, found a certificate for local"
    ):
        check_server(files, "north.example")


def test_another_key_does_not_match(files, tmp_path):
    wrong = dataclasses.replace(files, key=tmp_path / "ca.key")
    with pytest.raises(DataError, match="found another key"):
        check_server(wrong, "localhost")


def test_another_authority_does_not_match(files, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    wrong = dataclasses.replace(files, authority=make_server_files(other).authority)
    with pytest.raises(DataError, match="found a certificate of another authority"):
        check_server(wrong, "localhost")


def test_an_expired_certificate_does_not_match(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "_CERTIFICATE_LIFETIME", timedelta(minutes=-1))
    with pytest.raises(DataError, match="valid now, found a certificate for"):
        check_server(make_server_files(tmp_path), "localhost")


@pytest.mark.parametrize("field", ["authority", "certificate", "key"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN\xff", bytes(10_000)])
def test_invalid_files_are_named(files, field, content):
    path = getattr(files, field)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        check_server(files, "localhost")
    assert caught.value.where == str(path)


def test_a_certificate_requires_a_host(tmp_path):
    with pytest.raises(ValueError, match="at least one host"):
        make_server_files(tmp_path, [])
