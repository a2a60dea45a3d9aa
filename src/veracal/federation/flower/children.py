"""Programs that we start: they log to a file, end with us, and leave nothing behind."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from veracal.federation.flower import bound

_PATIENCE = 10.0  # seconds from a kind request to an order


def start(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a program that ends when this one does.

    Call it in a thread that lives as long as the program should: Linux ends the program
    with the thread.

    Parameters
    ----------
    command : sequence of str
        Path of the program, and its arguments.
    log : path
        Where what it prints is appended, for its owner's eyes only.
    environment : mapping
        All its variables.
    """
    wrapped = [sys.executable, "-I", bound.__file__, str(os.getpid()), *command]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            wrapped,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=dict(environment),
            umask=0o077,  # what it writes is for its owner, too
            start_new_session=True,  # what is typed at the terminal is for us to pass on
        )
    finally:
        os.close(handle)


def stop(process: "subprocess.Popen[bytes]", patience: float = _PATIENCE) -> None:
    """End a program, kindly if it listens, and wait until it is gone."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(log: Path) -> str:
    """What a program said last, in one line of bounded length."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "nothing was said"
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "nothing was said"
