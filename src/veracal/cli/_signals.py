"""Commands that run until they are stopped, and the order in which they end.

An exception that a signal handler raises can surface anywhere: between two lines, inside an
import, in a destructor that swallows it. And a handler in Python runs only when the main thread
gets to its next instruction, which may wait on a lock. So the work is done in a thread of its
own, and the main thread reads from a pipe into which the interpreter itself writes the number
of a signal, whichever thread the system gave it to.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from veracal.cli import _output as _show

Log = Callable[[str], None]
Work = Callable[[threading.Event, Log], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FINISHED = b"\0"  # the number of no signal


def until_stopped(work: Work, closing: str, *, patience: float) -> None:
    """Do some work until it ends, or until Ctrl-C or SIGTERM.

    Call it in the main thread.

    Parameters
    ----------
    work : callable
        Is given an event that is set when it is time to stop, and a function that prints a line
        on stderr. It runs in a thread of its own.
    closing : str
        Line to print on stderr after a signal.
    patience : float
        Seconds to wait for the work after a signal. Work that takes longer, or is waited for
        when a second signal comes, ends with the process.

    Raises
    ------
    Whatever the work raises, unless it was stopped.

    Guarantees
    ----------
    From the call on, one of the signals leads to the closing line and a normal return, wherever
    the work is. Nothing that the work tells is printed after the closing line. Both signals are
    ignored afterwards, so that a late one does not change the exit code.
    """
    stop, printing, failures = threading.Event(), threading.Lock(), list[BaseException]()

    def tell(line: str) -> None:
        with printing:
            if not stop.is_set():
                _show.status(line)

    with _pipe() as (reader, writer):

        def run() -> None:
            try:
                work(stop, tell)
            except BaseException as error:  # raised again where it can be handled
                failures.append(error)
            finally:
                os.write(writer, _FINISHED)

        threading.Thread(target=run, name="work", daemon=True).start()
        if _next(reader) != _FINISHED:
            stop.set()
            _next(reader, patience)
            # Who prints right now finishes first, or the process could end in its midst.
            if printing.acquire(timeout=patience):
                printing.release()
            _show.status(closing)
        elif failures:
            raise failures[0]


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe that receives the numbers of signals, which are handled in no other way.

    It stays open: a thread that outlives the block may still write into it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wanted = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in wanted:
        signal.signal(number, lambda number, frame: None)
    try:
        yield reader, writer
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(before)


def _next(reader: int, seconds: float | None = None) -> bytes:
    """Wait for the work to end or for one of the signals; nothing after so many seconds."""
    known = {_FINISHED, *(bytes([number]) for number in _SIGNALS)}
    while select.select([reader], [], [], seconds)[0]:
        heard = os.read(reader, 1)
        if heard in known:  # other signals are handled elsewhere
            return heard
    return b""
