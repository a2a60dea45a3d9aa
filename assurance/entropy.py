"""Repeatable entropy for tests and gates: what the system would draw follows from a label.

Noise, batches, keys of splits and marks of sources all begin with the operating system's
entropy, so replacing it decides every draw without opening a second way into the library.

Not reached are OpenDP's discrete noise, which draws from OpenSSL (see ``repeatable_noise.py``),
and interpreters that a test or a gate starts. What several threads draw is repeatable only as a
whole: which of them draws first is not decided.
"""

import hashlib
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class RepeatableEntropy:
    """SHAKE-256 of a label and a counter, in place of the system's entropy.

    Every drawing module has its own counter, so that what is drawn once a process
    (by the first import of ``multiprocessing``, say) changes no other draw. Threads have
    counters separate from the main thread's. A forked child continues under a label that says
    which fork it is: it repeats neither its parent's bytes nor those of another child.
    """

    def __init__(self) -> None:
        self._label, self._forks = "outside of tests", 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def install(self) -> None:
        """Replace the system's entropy in this process and its forks, for good."""
        os.urandom = self.draw
        random._urandom = self.draw  # type: ignore[attr-defined]

    @contextmanager
    def named(self, label: str) -> Iterator[None]:
        """Begin a stream at its start, and go back to the one before at the end."""
        before = self._label, self._forks, self._counts
        self._label, self._forks, self._counts = label, 0, Counter()
        try:
            yield
        finally:
            self._label, self._forks, self._counts = before

    def draw(self, size: int) -> bytes:
        """The next bytes; called in place of ``os.urandom``."""
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__") in ("random", "secrets", "uuid"):
            frame = frame.f_back
        main = threading.current_thread() is threading.main_thread()
        key = frame.f_globals.get("__name__", ""), "main" if main else "other"
        with self._lock:
            self._counts[key] += 1
            count = self._counts[key]
        text = "\0".join((self._label, *key, str(count)))
        return hashlib.shake_256(text.encode()).digest(size)

    def _before_fork(self) -> None:
        self._forks += 1

    def _after_fork(self) -> None:
        self._label += f"\0fork {self._forks}"
        self._forks, self._counts = 0, Counter()
        self._lock = threading.Lock()  # another thread may have held it


def seed_global_generators() -> None:
    """Start the generators of Python, NumPy and torch at one place, if they are there."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        # What torch itself begins with, so that an import within a test changes nothing.
        torch.manual_seed(67280421310721)


ENTROPY = RepeatableEntropy()
