"""When a reply leaves tells nothing of the noise in it.

How long exact noise takes to draw depends a little on how large it is. Here drawing is made to
depend on it a thousand times as much: it sleeps for milliseconds in proportion to the noise. A
source that replies at a fixed deadline must hide even that. Many answers are timed as the
calibrator would time them, and the rank correlation of time and noise must be none. Time is
measured in this process, without a network, which could only blur it.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from scipy import stats

from assurance import sources
from assurance.sources import Made, Patches
from veracal.federation.protocol.questions import built
from veracal.federation.protocol.replies import Answer, unsealed_reply
from veracal.federation.source.serving import MOST_IN_FLIGHT, Desk
from veracal.privacy import Budget
from veracal.privacy.answers.noise import add_discrete_laplace

NAME = "source_timing"
LONG = True
MOST = 0.05  # of a rank correlation
DEADLINE, SOURCES = 0.15, 2  # seconds, and sources that are asked side by side
SLOW = 0.003  # seconds for noise of one standard deviation
MICRO = 50_000  # of every answer, or a little more


# ---------------------------------------------------------------- mutants


def at_once(self: Desk, raw: bytes) -> bytes:
    """Reply when the answer is ready."""
    return self.reply(raw)


def and_then_wait(self: Desk, raw: bytes) -> bytes:
    """Wait for a fixed time after the answer is ready, not until a fixed time."""
    reply = self.reply(raw)
    time.sleep(0.002)
    return reply


ANSWER = sources.SOURCE + "serving.Desk.answer"
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
    time.sleep(min(SLOW * size, DEADLINE / 4))
    return drawn


def run(subject: Patches, *, long: bool) -> str:
    """Time many answers."""
    many = 500 if subject is not CORRECT else 10_000 if long else 2_000
    terms = {"kinds": ("counts",), "deadline": DEADLINE, "most_each": 1.0}
    terms |= {"epsilon": 900.0, "budget": Budget(900.0)}
    patches = {**subject, sources.LAPLACE: slowly}
    with ExitStack() as stack:
        several = [
            stack.enter_context(sources.enrolled(patches, heads=False, **terms))
            for _ in range(SOURCES)
        ]
        with ThreadPoolExecutor(SOURCES) as pool:
            parts = pool.map(lambda north: timed(north, many // SOURCES), several)
            found = [pair for part in parts for pair in part]
    late = many - len(found)
    assert late < many // 10, f"{late} of {many} answers were late: the machine is too busy"
    seconds, noise = np.array(found).T
    rank = float(stats.spearmanr(seconds, noise).statistic)
    assert abs(rank) < MOST, f"time and noise have a rank correlation of {rank:.3f}"
    return (
        f"rank correlation of time and noise {rank:+.3f} over {len(found):,} answers; {late} "
        "were late and refused"
    )


def timed(north: Made, many: int) -> list[tuple[float, float]]:
    """Seconds and size of the noise of each answer that was not late."""
    exact = built("counts", {}, north.terms).evaluate(sources.scores())

    def one(more: int) -> tuple[float, float] | None:
        raw = north.raw(micro_epsilon=MICRO + more)
        start = time.perf_counter()
        reply = north.desk.answer(raw)
        seconds = time.perf_counter() - start
        answer = unsealed_reply(reply, north.terms.key)
        if not isinstance(answer, Answer):
            return None
        size = np.abs(np.array(answer.units) - exact).sum() * (MICRO + more)
        return seconds, float(size)

    order = random.Random(0).sample(range(many), many)  # prices must not follow time
    with ThreadPoolExecutor(MOST_IN_FLIGHT) as pool:
        return [pair for pair in pool.map(one, order) if pair is not None]
