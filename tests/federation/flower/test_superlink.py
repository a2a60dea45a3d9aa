"""A SuperLink that starts says where; one that cannot says why, in a line."""

import dataclasses
import socket
from pathlib import Path

import pytest

from veracal.errors import DataError, TransportError
from veracal.federation.flower.superlink import (
    SuperLink,
    find_port,
    make_server_files,
    superlink_command,
)

pytestmark = pytest.mark.full


@pytest.fixture
def files(tmp_path):
    return make_server_files(tmp_path)


@pytest.fixture
def occupied_port():
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_port_in_use_is_named(tmp_path, files, occupied_port):
    with pytest.raises(TransportError) as caught:
        SuperLink(tmp_path, files, port=occupied_port).__enter__()
    assert str(caught.value) == (
        f"Port {occupied_port} of 127.0.0.1 is in use by another program. Stop it, or choose "
        "another port."
    )


def test_a_free_port_is_used(occupied_port):
    assert find_port("127.0.0.1") != occupied_port
    free = find_port("127.0.0.1")
    assert find_port("127.0.0.1", free) == free


def test_a_host_of_another_machine_is_rejected():
    with pytest.raises(TransportError, match="is not available"):
        find_port("192.0.2.1", 8000)


@pytest.mark.parametrize(
    ("host", "key", "problem"),
    [
        (
            "127.0.0.2",
            "server.key",
            "a certificate for 127.0.0.2, found a certificate for localhost",
        ),
        ("127.0.0.1", "ca.key", "found another key"),
    ],
)
def test_a_certificate_that_does_not_match_is_rejected(tmp_path, files, host, key, problem):
    wrong = dataclasses.replace(files, key=tmp_path / key)
    with pytest.raises(DataError, match=problem):
        SuperLink(tmp_path, wrong, host=host).__enter__()


def test_a_superlink_runs_no_code_and_requires_keys(tmp_path, files):
    command = superlink_command(tmp_path, files, "127.0.0.1", 8000)
    assert command[command.index("--isolation") + 1] == "process"
    assert "--enable-supernode-auth" in command
    assert "--superexec-auth-secret-file" in command
    assert "--disable-runtime-dependency-installation" in command
    assert "--insecure" not in command


def test_a_failed_superlink_reports_its_last_line(tmp_path, files):
    (tmp_path / "superlink.db").write_bytes(b"no database at all, not even a header of one")
    with pytest.raises(TransportError, match=r"The SuperLink stopped: .*superlink\.log"):
        SuperLink(tmp_path, files).__enter__()


def test_a_superlink_ends_with_its_block(tmp_path, files):
    link = SuperLink(tmp_path, files)
    with pytest.raises(RuntimeError, match="with block"):
        _ = link.address
    with link:
        pid = link.pid
        assert Path(f"/proc/{pid}").exists()
        assert link.address == f"127.0.0.1:{link.address.rpartition(':')[2]}"
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {"superlink.db", "superlink.log"} <= {path.name for path in written}
        assert all(path.stat().st_mode & 0o077 == 0 for path in written)
    assert not Path(f"/proc/{pid}").exists()
    link.__exit__()  # once more does no harm
