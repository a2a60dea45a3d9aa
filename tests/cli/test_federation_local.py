"""A federation on this machine: real processes, which end with the command that began them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from veracal.errors import DataError
from veracal.federation.coordinator.source_list import read_source_list
from veracal.workflow.local_federation import LocalFederation, make_local

pytestmark = pytest.mark.full

LOCAL = [sys.executable, "-m", "veracal", "federation", "local", "trial"]


def until(true: Callable[[], object], seconds: float = 240) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


@contextmanager
def started(*options: str) -> Iterator["subprocess.Popen[str]"]:
    """A federation that runs; whatever is left of it at the end is killed."""
    with Path("err").open("w+") as err, Path("out").open("w+") as out:
        process = subprocess.Popen([*LOCAL, *options], stdout=out, stderr=err, text=True)
        try:
            until(lambda: process.poll() is not None or lines("err", "served by process") >= 2)
            assert process.poll() is None, Path("err").read_text()
            yield process
        finally:
            process.kill()
            process.wait()


def lines(file: str, text: str) -> int:
    """How many lines of a file have a text."""
    return sum(text in line for line in Path(file).read_text().splitlines())


def children(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Processes that a process has started, and those they have."""
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def federation(tmp_path) -> LocalFederation:
    return make_local(tmp_path / "trial", 2, transport="files")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_hospitals_end_with_the_command_however_it_ends(federation, number):
    with started() as process:
        there = children(process)
        assert len(there) == 2
        process.send_signal(number)
        code = process.wait(240)
        _, alive = psutil.wait_procs(there, timeout=240)
    assert not alive
    assert code == (-number if number == signal.SIGKILL else 0)
    assert lines("err", "Stopped. All answers stay charged.") == (number != signal.SIGKILL)


def test_instructions_and_killed_servers_are_printed(federation):
    with started() as process:
        until(lambda: lines("out", "hospitals again"))
        text = Path("out").read_text()
        north = next(p for p in children(process) if "north" in " ".join(p.cmdline()))
        assert f"kill -9 {north.pid}" in text
        assert f"veracal recalibrate {Path('trial/model')} --sources" in text
        north.kill()
        until(lambda: lines("err", "north: killed"))


def test_another_federation_than_the_one_that_is_there_is_refused(federation, run):
    for words in (["--sources", "3"], ["--transport", "flower"]):
        code, _, err = run("federation", "local", "trial", *words)
        assert code == 1 and "or choose another folder" in err
    code, _, err = run("federation", "local", "trial", "--by-hand", "--then-recalibrate")
    assert code == 2 and "must be carried" in err


def test_wrong_usage_makes_nothing(run):
    for words in (["--transport", "pigeon"], ["--sources", "0"], ["--sources", "21"]):
        assert run("federation", "local", "trial", *words)[0] == 2
    Path("trial").mkdir()
    Path("trial/mine").touch()
    code, _, err = run("federation", "local", "trial", "--transport", "files")
    assert code == 1 and "a new or empty folder" in err
    assert [path.name for path in Path("trial").iterdir()] == ["mine"]


def test_a_port_in_use_is_named_before_anything_is_created(run):
    pytest.importorskip("flwr")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, err = run("federation", "local", "trial", "--port", port)
    assert code == 1 and f"Port {port} of 127.0.0.1 is in use" in err
    assert not Path("trial").exists()


def test_three_hospitals_are_the_usual_number(run, monkeypatch):
    requested = []

    def make(folder, sources, **about):
        requested.append((sources, about["transport"]))
        raise DataError("here", "a query", "its answer", "PricedQuery no more.")

    monkeypatch.setattr("veracal.workflow.make_local", make)
    for words in ((), ("--sources", "2")):
        assert run("federation", "local", "trial", *words)[0] == 1
    assert requested == [(3, "flower"), (2, "flower")]


@pytest.mark.parametrize(
    ("transport", "names"),
    [
        pytest.param("files", ["north", "south", "west"], marks=pytest.mark.long),
        pytest.param("flower", ["north", "south", "west"], marks=pytest.mark.long),
        ("flower", ["north", "south"]),
    ],
)
def test_one_command_makes_a_federation_and_recalibrates(transport, names):
    many = () if len(names) == 3 else ("--sources", str(len(names)))  # 3 are the usual number
    done = subprocess.run(
        [*LOCAL, "--transport", transport, *many, "--then-recalibrate"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    fields = json.loads(Path("trial/recalibrated/model.json").read_text())
    (fields,) = fields["recalibrations"]
    assert [one["name"] for one in fields["sources"]] == names
    assert all(one["epsilon"] == 0.5 and one["answered"] for one in fields["sources"])
    assert 1.5 < fields["temperatures"]["temperature"]["value"] < 3.5
    listing = read_source_list(Path("trial/study/federation.toml"))
    assert listing.transport["kind"] == transport
