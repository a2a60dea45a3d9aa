"""Make tests and docstring examples repeatable: the system's entropy follows the test's name.

Noise, batches, keys of splits and marks of sources all begin with the operating system's
entropy, so replacing it decides every draw of a test without opening a second way into the
library. Processes that a test starts are not reached: what they draw stays secret.
"""

import hashlib
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class RepeatableEntropy:
    """SHAKE-256 of a label and a counter, in place of the system's entropy.

    A forked child mixes its process id in, and threads have a counter of their own: neither
    repeats the main thread's bytes nor changes them.
    """

    def __init__(self) -> None:
        self._home = os.getpid()
        self._streams = [self._stream("outside of tests")]

    @staticmethod
    def _stream(label: str) -> dict[str, object]:
        return {"label": label, "main": 0, "other": 0}

    @contextmanager
    def named(self, label: str) -> Iterator[None]:
        """Begin a stream at its start, and go back to the one before at the end."""
        self._streams.append(self._stream(label))
        try:
            yield
        finally:
            self._streams.pop()

    def draw(self, size: int) -> bytes:
        """The next bytes; called in place of ``os.urandom``."""
        stream = self._streams[-1]
        thread = "main" if threading.current_thread() is threading.main_thread() else "other"
        stream[thread] = count = int(stream[thread]) + 1  # type: ignore[call-overload]
        child = os.getpid() if os.getpid() != self._home else 0
        text = f"{stream['label']}\0{thread}\0{count}\0{child}"
        return hashlib.shake_256(text.encode()).digest(size)


ENTROPY = RepeatableEntropy()


def pytest_configure() -> None:
    """Replace the entropy, and let children receive Ctrl-C even where a shell ignores it."""
    os.urandom = ENTROPY.draw
    random._urandom = ENTROPY.draw  # type: ignore[attr-defined]
    # A shell starts what runs in its background with SIGINT ignored, which children inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    """Give a test its own entropy, and start the global generators at one place."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        # What torch itself begins with, so that an import within a test changes nothing.
        torch.manual_seed(67280421310721)
    with ENTROPY.named(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    """Give a shared fixture its own entropy, whichever test asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    parameter = getattr(request, "param_index", 0)
    with ENTROPY.named(f"{fixturedef.baseid}::{fixturedef.argname}[{parameter}]"):
        return (yield)
