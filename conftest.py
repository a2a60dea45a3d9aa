"""Make tests and docstring examples repeatable: the system's entropy follows the test's name.

Training noise, batches, keys of splits and marks of sources all begin with the operating
system's entropy, so replacing it decides every draw of a test without opening a second way into
the library. The discrete noise of released statistics comes from OpenDP, which is replaced too;
tests of the noise itself are marked ``real_noise``. Processes that a test starts are not
reached: what they draw stays secret.
"""

import hashlib
import importlib
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, settings

from assurance.repeatable_noise import RepeatableNoise


class RepeatableEntropy:
    """SHAKE-256 of a label and a counter, in place of the system's entropy.

    Every module that draws has a counter of its own, so that what is drawn once a process
    (by the first import of ``multiprocessing``, say) changes no other draw. Threads have
    counters apart from the main thread's. A forked child goes on under a label that says
    which fork it is: it repeats neither its parent's bytes nor those of another child.
    """

    def __init__(self) -> None:
        self._label, self._forks = "outside of tests", 0
        self._counts: Counter[tuple[str, str]] = Counter()
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

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
        self._counts[key] += 1
        text = "\0".join((self._label, *key, str(self._counts[key])))
        return hashlib.shake_256(text.encode()).digest(size)

    def _before_fork(self) -> None:
        self._forks += 1

    def _after_fork(self) -> None:
        self._label += f"\0fork {self._forks}"
        self._forks, self._counts = 0, Counter()


ENTROPY = RepeatableEntropy()
NOISE = RepeatableNoise()


# Nothing that depends on how fast the machine is: neither deadlines nor too slow a strategy.
settings.register_profile(
    "veracal",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("veracal")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests run in another order, which must not matter to any of them."""
    parser.addoption(
        "--shuffle",
        metavar="SEED",
        help="shuffle the modules and the tests within each of them, by this seed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle; the tests of a module stay together, so that its fixtures are made once."""
    seed = config.getoption("shuffle")
    if seed is None:
        return
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.split("::")[0], []).append(item)
    order, chosen = random.Random(seed), list(modules.values())
    order.shuffle(chosen)
    for module in chosen:
        order.shuffle(module)
    items[:] = [item for module in chosen for item in module]


def pytest_configure() -> None:
    """Replace the entropy, and let children receive Ctrl-C even where a shell ignores it."""
    os.urandom = ENTROPY.draw
    random._urandom = ENTROPY.draw  # type: ignore[attr-defined]
    NOISE.install(importlib.import_module("veracal.privacy.answers.noise"))
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
    real = item.get_closest_marker("real_noise") is not None
    with ENTROPY.named(item.nodeid), NOISE.named(item.nodeid, real=real):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    """Give a shared fixture its own entropy, whichever test asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    parameter = getattr(request, "param_index", 0)
    label = f"{fixturedef.baseid}::{fixturedef.argname}[{parameter}]"
    with ENTROPY.named(label), NOISE.named(label):
        return (yield)
