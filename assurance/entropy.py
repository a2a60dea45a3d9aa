"""Repeatable entropy for tests and gates: what the system would draw follows from a label.

Noise, batches, keys of splits and marks of sources all begin with the operating system's
entropy, so replacing it decides every draw without opening a second way into the library.

Not reached are OpenDP's discrete noise, which draws from OpenSSL, and interpreters that a test
or a gate starts; draws of several threads are repeatable together, not by thread.
"""

import hashlib
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class _Stream:
    label: str
    process: str = ""  # which fork of which fork, from the process that began the stream
    forks: int = 0
    main: int = 0
    other: int = 0


class RepeatableEntropy:
    """SHAKE-256 of a label and a counter, in place of the system's entropy.

    A forked child draws by its number among its parent's forks, and threads have a counter of
    their own: neither repeats the main thread's bytes nor changes them.
    """

    def __init__(self) -> None:
        self._streams = [_Stream("outside of tests")]

    def install(self) -> None:
        """Replace the system's entropy in this process and its forks, for good."""
        if os.urandom == self.draw:
            return
        os.urandom = self.draw
        random._urandom = self.draw  # type: ignore[attr-defined]
        os.register_at_fork(before=self._count_fork, after_in_child=self._enter_fork)

    @contextmanager
    def named(self, label: str) -> Iterator[None]:
        """Begin a stream at its start, and go back to the one before at the end."""
        self._streams.append(_Stream(label))
        try:
            yield
        finally:
            self._streams.pop()

    def draw(self, size: int) -> bytes:
        """The next bytes; called in place of ``os.urandom``."""
        stream = self._streams[-1]
        if threading.current_thread() is threading.main_thread():
            stream.main += 1
            place = f"main\0{stream.main}"
        else:
            stream.other += 1
            place = f"other\0{stream.other}"
        text = f"{stream.label}\0{place}\0{stream.process}"
        return hashlib.shake_256(text.encode()).digest(size)

    def _count_fork(self) -> None:
        for stream in self._streams:
            stream.forks += 1

    def _enter_fork(self) -> None:
        for stream in self._streams:
            stream.process += f"/{stream.forks}"
            stream.forks = 0


def seed_global_generators() -> None:
    """Start the generators of Python, NumPy and torch at one place, if they are there."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        # What torch itself begins with, so that an import within a test changes nothing.
        torch.manual_seed(67280421310721)


ENTROPY = RepeatableEntropy()
