"""Long-running commands that stop cleanly on Ctrl-C and SIGTERM.

An exception from a signal handler can be raised anywhere: between two lines, inside an import,
or in a destructor that suppresses it. A Python handler also runs only when the main thread
executes its next instruction, which may wait on a lock. So the work runs in another thread, and
the main thread reads from a pipe into which the interpreter writes the number of each signal.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from veracal.cli import _output

Log = Callable[[str], None]
Work = Callable[[threading.Event, Log], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FINISHED = b"\0"  # not the number of a signal


def until_stopped(work: Work, closing: str, *, timeout: float) -> None:
    """Run a function until it returns, or until Ctrl-C or SIGTERM.

    Call it in the main thread.

    Parameters
    ----------
    work : callable
        ``work(stop, log)``, with an event that is set to stop it, and a function that prints
        a line on stderr. It runs in a separate thread.
    closing : str
        Line to print on stderr after a signal.
    timeout : float
        Seconds to wait for the work after a signal. If it takes longer, or a second signal
        arrives, it ends with the process.

    Raises
    ------
    Exceptions of the work, unless it was stopped.

    Guarantees
    ----------
    During the call, either signal leads to the closing line and a normal return, whatever the
    work is doing. Nothing is printed after the closing line. Both signals are ignored
    afterwards, so that a late one does not change the exit code.
    """
    stop, printing, failures = threading.Event(), threading.Lock(), list[BaseException]()

    def log(line: str) -> None:
        with printing:
            if not stop.is_set():
                _output.print_status(line)

    with _pipe() as (reader, writer):

        def run() -> None:
            try:
                work(stop, log)
            except BaseException as error:  # raised again in the main thread
                failures.append(error)
            finally:
                os.write(writer, _FINISHED)

        threading.Thread(target=run, name="work", daemon=True).start()
        if _next(reader) != _FINISHED:
            stop.set()
            _next(reader, timeout)
            # Let a line that is being printed finish before the process ends.
            if printing.acquire(timeout=timeout):
                printing.release()
            _output.print_status(closing)
        elif failures:
            raise failures[0]


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe that receives the numbers of signals, instead of other handlers.

    It stays open: a thread that outlives the block may still write to it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handled = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in handled:
        signal.signal(number, lambda number, frame: None)
    try:
        yield reader, writer
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(before)


def _next(reader: int, seconds: float | None = None) -> bytes:
    """Wait for the end of the work or for a signal; return nothing after a timeout."""
    known = {_FINISHED, *(bytes([number]) for number in _SIGNALS)}
    while select.select([reader], [], [], seconds)[0]:
        received = os.read(reader, 1)
        if received in known:  # other signals are handled elsewhere
            return received
    return b""
