"""The time of a reply reveals nothing about its noise.

The time to draw exact noise depends slightly on its magnitude. Here it is made proportional to
the noise. A source that replies at a fixed deadline must hide even this: many answers are timed
as the coordinator would time them, and the rank correlation of time and noise must be zero. The
gate uses its own clock, which advances only when noise is drawn or a thread sleeps, so nothing
depends on the machine. On a real machine, only work after the deadline adds to the time, and it
does not depend on the noise.
"""

import threading
from typing import Any

import numpy as np
from scipy import stats

from assurance import sources
from assurance.sources import EnrolledSource, Patches
from veracal.accounting import Budget
from veracal.federation.protocol.messages import Answer, unseal_reply
from veracal.federation.protocol.queries import build_query
from veracal.federation.source.serving import SourceServer
from veracal.mechanisms.discrete_noise import add_discrete_laplace

NAME = "source_timing"
MOST = 0.05  # of a rank correlation
DEADLINE = 600.0  # seconds of the gate's clock, without real waiting
SLOW = 3.0  # of them for noise of one standard deviation
MICRO = 50_000  # of every answer, or a little more


class Clock:
    """Time as a source sees it, which advances when noise is drawn and when a thread sleeps."""

    def __init__(self) -> None:
        self._now, self._lock = 0.0, threading.Lock()

    def monotonic(self) -> float:
        """Now."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += seconds


CLOCK = Clock()


# ---------------------------------------------------------------- mutants


def at_once(self: SourceServer, raw: bytes) -> bytes:
    """Reply when the answer is ready."""
    return self.reply(raw)


def and_then_wait(self: SourceServer, raw: bytes) -> bytes:
    """Wait for a fixed time after the answer is ready, not until a fixed time."""
    reply = self.reply(raw)
    CLOCK.sleep(2.0)
    return reply


ANSWER = sources.SOURCE + "serving.SourceServer.answer"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "no deadline": {ANSWER: at_once},
    "a fixed wait after the answer": {ANSWER: and_then_wait},
}


# ---------------------------------------------------------------- the gate


def slowly(exact: Any, noise: float) -> np.ndarray:
    """Draw, and take the longer the larger the noise is."""
    drawn = add_discrete_laplace(exact, noise)
    size = float(np.abs(drawn - exact).sum()) / noise
    CLOCK.sleep(min(SLOW * size, DEADLINE / 4))
    return drawn


def run(subject: Patches, *, long: bool) -> str:
    """Time many answers."""
    many = 2_000 if long else 200
    terms = {"kinds": ("counts",), "deadline": DEADLINE, "max_per_answer": 1.0}
    terms |= {"epsilon": 900.0, "budget": Budget(900.0)}
    patches = {**subject, sources.LAPLACE: slowly, sources.SOURCE + "serving.time": CLOCK}
    with sources.enrolled(patches, heads=False, **terms) as north:
        seconds, noise = np.array(timed(north, many)).T
    varied = np.ptp(seconds) > 1e-6  # rounding of the clock
    rank = float(stats.spearmanr(seconds, noise).statistic) if varied else 0.0
    assert abs(rank) < MOST, f"time and noise have a rank correlation of {rank:.3f}"
    assert not varied, f"replies leave at times {np.ptp(seconds):.3g} s apart"
    return f"{many:,} answers leave at their deadline, whatever their noise"


def timed(north: EnrolledSource, many: int) -> list[tuple[float, float]]:
    """Seconds and size of the noise of each answer."""
    exact = build_query("counts", {}, north.terms).evaluate(sources.scores())

    def one(more: int) -> tuple[float, float]:
        raw = north.raw(micro_epsilon=MICRO + more)
        start = CLOCK.monotonic()
        reply = north.server.answer(raw)
        seconds = CLOCK.monotonic() - start
        answer = unseal_reply(reply, north.terms.key)
        assert isinstance(answer, Answer), f"a proper request was refused: {north.why}"
        size = np.abs(np.array(answer.units) - exact).sum() * (MICRO + more)
        return seconds, float(size)

    return [one(more) for more in range(many)]
