"""Interrupted work ends with its closing line, whenever the signal arrives."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from veracal.cli._signals import until_stopped
from veracal.errors import DataError

CLOSING = "Stopped. What was answered is kept."
LATE = """\
import os, signal
os.kill(os.getpid(), signal.SIGTERM)
from dataclasses import make_dataclass
for i in range(20):
    make_dataclass(f"A{i}", ["x"])
"""


@pytest.fixture(autouse=True)
def handlers():
    """Signals are handled afterwards as they were before."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def hog():
    """Another process that keeps the processor busy."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    yield
    process.kill()
    process.wait()


def send(number: int) -> None:
    """A signal for this process, as another process would send it."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_first_line_leads_to_the_closing_line(number, hog, capsys):
    def work(stop, tell):
        tell("first")
        send(number)
        assert stop.wait(240)
        tell("too late to be told")

    for _ in range(20):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        until_stopped(work, CLOSING, timeout=240)
        assert capsys.readouterr().err.splitlines() == ["first", CLOSING]


def test_a_signal_during_an_import_leads_to_the_closing_line(tmp_path, monkeypatch, capsys):
    """An exception would be raised in the code of a data class and change the exit code."""
    (tmp_path / "late_module.py").write_text(LATE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def work(stop, tell):
        tell("first")
        import late_module

        assert late_module and stop.wait(240)

    until_stopped(work, CLOSING, timeout=240)
    assert capsys.readouterr().err.splitlines() == ["first", CLOSING]


def test_who_is_stopped_need_not_listen(capsys):
    held = threading.Event()

    def work(stop, tell):
        tell("first")
        send(signal.SIGTERM)
        held.wait(240)

    until_stopped(work, CLOSING, timeout=0.01)
    assert capsys.readouterr().err.splitlines() == ["first", CLOSING]
    held.set()


def test_a_second_signal_ends_the_wait(capsys):
    held = threading.Event()

    def work(stop, tell):
        send(signal.SIGTERM)
        assert stop.wait(240)
        send(signal.SIGTERM)
        held.wait(240)

    until_stopped(work, CLOSING, timeout=3_600)
    assert capsys.readouterr().err.splitlines() == [CLOSING]
    held.set()


def test_work_that_ends_or_fails_by_itself_has_no_closing_line(capsys):
    until_stopped(lambda stop, tell: tell("done"), CLOSING, timeout=1)
    assert capsys.readouterr().err.splitlines() == ["done"]

    def work(stop, tell):
        raise DataError("x", "a file", "none", "Make it.")

    with pytest.raises(DataError, match="a file"):
        until_stopped(work, CLOSING, timeout=1)
    send(signal.SIGTERM)  # late: ignored
    assert not capsys.readouterr().err


def test_signals_that_are_ignored_stay_ignored(capsys):
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work(stop, tell):
        send(signal.SIGINT)
        tell("still here")
        send(signal.SIGTERM)
        assert stop.wait(240)

    until_stopped(work, CLOSING, timeout=240)
    assert capsys.readouterr().err.splitlines() == ["still here", CLOSING]
