"""A process killed during the opening leaves a complete ledger or none."""

import os
import signal
import sys
from pathlib import Path

import pytest

from veracal.accounting.events import Budget, Pure
from veracal.ledger import storage as store
from veracal.ledger.ledger import Ledger, open_ledger


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.long), 7])
def test_a_killed_opening_leaves_a_complete_ledger_or_none(tmp_path, stride):
    """A child opens a ledger and is killed at its n-th line, for one n after another."""
    folder, lines = str(Path(store.__file__).parent), 0
    while True:
        path = tmp_path / f"{lines}.ledger"
        if not open_and_kill(path, folder, after=lines):
            break
        beside = [file.name for file in tmp_path.glob(f"{path.name}-*")]
        assert path.exists() or not beside, beside  # no log without its ledger
        ledger = Ledger(path) if path.exists() else open_ledger(path, Budget(1.0))
        ledger.verify()
        ledger.charge(Pure(0.5), "x")
        lines += stride
    assert lines > 50  # it did stop at many of them
    assert Ledger(path).remaining().epsilon == 1.0


def open_and_kill(path: Path, folder: str, *, after: int) -> bool:
    """Open a ledger in a child that is killed after some lines; tell whether it was."""
    child = os.fork()
    if child == 0:
        left = after

        def trace(frame, event, _):
            nonlocal left
            if not frame.f_code.co_filename.startswith(folder):
                return None  # skip its lines, but trace its callees
            if event == "line":
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return trace

        sys.settrace(trace)
        try:
            open_ledger(path, Budget(1.0))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
