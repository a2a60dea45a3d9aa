"""Programs that are started end with those who started them, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from veracal.federation.flower import superlink as children

PARENT = """
import os, sys, time
from pathlib import Path
from veracal.federation.flower import superlink as children
child = children.start_process(sys.argv[2:], log=Path(sys.argv[1]), environment=os.environ)
print(child.pid, flush=True)
time.sleep(600)
"""
THERE = "import time; print('there', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(15, signal.SIG_IGN); {THERE}"


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(said: str, log: Path) -> None:
    end = time.monotonic() + 240
    while said not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log"), "/bin/sleep", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        end = time.monotonic() + 240
        while "sleep" not in Path(f"/proc/{child}/cmdline").read_text():
            assert time.monotonic() < end
        assert is_alive(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        while is_alive(child):
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "patience", "ended_by"),
    [(THERE, 240, 15), (DEAF, 0.5, 9)],
    ids=["kindly", "by force"],
)
def test_a_stopped_child_has_ended(tmp_path, code, patience, ended_by):
    log = tmp_path / "log"
    child = children.start_process(
        [sys.executable, "-c", code], log=log, environment=os.environ
    )
    wait_for("there", log)
    children.stop_process(child, timeout=patience)
    assert child.returncode == -ended_by
    assert not Path(f"/proc/{child.pid}").exists()
    children.stop_process(child)  # once more does no harm


def test_the_output_of_a_child_is_logged_for_its_owner_only(tmp_path):
    log = tmp_path / "log"
    assert children.last_line(log) == "no output"
    code = "import sys; print('out'); print('the last', file=sys.stderr); print()"
    for _ in range(2):
        child = children.start_process(
            [sys.executable, "-uc", code], log=log, environment={"PATH": "/bin"}
        )
        assert child.wait(240) == 0
    assert log.read_text().count("out") == 2
    assert children.last_line(log) == "the last"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_child_has_exactly_the_given_environment(tmp_path):
    child = children.start_process(
        ["/bin/sleep", "600"], log=tmp_path / "log", environment={"A": "1"}
    )
    end = time.monotonic() + 240
    while b"sleep" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
        assert time.monotonic() < end
    assert Path(f"/proc/{child.pid}/environ").read_bytes().strip(b"\0") == b"A=1"
    children.stop_process(child)
