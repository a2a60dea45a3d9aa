"""Admission of a request depends on arrival times and not on the records.

A source computes a bounded number of requests at a time and refuses others. A coordinator
occupies every slot, sends one more request before the deadline, and observes whether it is
refused. On one of two neighbors an extreme record makes every computation slow. If a slot
became free as soon as its reply is ready, the last request would be answered on one neighbor
and refused on the other, with certainty and at no cost. Slots that are occupied until the
deadline reveal nothing. The gate ends the computations and passes the times in, so nothing
here waits for a clock.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import numpy as np

from assurance import sources
from assurance.sources import EnrolledSource, Patches
from veracal.data import Scores
from veracal.federation.source import serving
from veracal.federation.source.serving import SourceServer

NAME = "source_in_flight"
DEADLINE = 600.0  # seconds, without real waiting
PATIENCE = 500.0  # seconds after which the gate itself gives up: only a deadlock takes them
TRIALS = 4  # of the attack, each on both neighbors
EXTREME = 1e300


# ---------------------------------------------------------------- mutants


def slots_of(server: SourceServer) -> threading.BoundedSemaphore:
    """Places of the former code."""
    return server.__dict__.setdefault("places", threading.BoundedSemaphore(8))


def until_it_is_ready(self: SourceServer, raw: bytes, start: float, done: Any) -> None:
    """The former code: a place is free once the reply is ready."""
    places = slots_of(self)

    def work() -> None:
        try:
            done.set_result(self.reply(raw))
        finally:
            places.release()

    if not places.acquire(blocking=False):
        done.set_result(self._refuse("too many requests at once"))
        return
    threading.Thread(target=work, daemon=True).start()


def until_both(self: SourceServer, raw: bytes, start: float, done: Any) -> None:
    """A place is held until the deadline, and longer if the reply is late."""
    waiting = self.__dict__.setdefault("waiting", [])
    waiting[:] = [one for one in waiting if one[0] > start or not one[1].done()]
    if len(waiting) >= serving.MAX_IN_FLIGHT:
        done.set_result(self._refuse("too many requests at once"))
        return
    waiting.append((start + self.terms.deadline, done))
    threading.Thread(target=lambda: done.set_result(self.reply(raw)), daemon=True).start()


START = sources.SOURCE + "serving.SourceServer._start"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "a place is free when its reply is ready": {START: until_it_is_ready},
    "a place is held while its reply is late": {START: until_both},
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Attack both neighbors, several times."""
    usual = sources.scores()
    odd = Scores.from_logits(
        np.concatenate([usual.values, [[EXTREME, 0.0, 0.0]]]),
        np.append(usual.known_labels, 0),
    )
    seen = [(attacked(subject, usual), attacked(subject, odd)) for _ in range(TRIALS)]
    fields = sum(one != other for one, other in seen)
    assert not fields, (
        f"{fields} of {TRIALS} attacks tell the neighbors apart by what is refused: {seen[0]}"
    )
    assert seen[0][0] == (False, True), f"{seen[0][0]}: places are not held, or not given back"
    return f"refusals tell neighbors apart in {fields} of {TRIALS} attacks (1 of 2 by guessing)"


def attacked(subject: Patches, records: Scores) -> tuple[bool, bool]:
    """Whether a request is answered that comes before the others' deadline, or just after."""
    finish = threading.Event()

    def slow_where_odd(query: Any, records: Scores) -> Any:
        if len(records) and np.abs(records.values).max() >= EXTREME:
            finish.wait(PATIENCE)
        return EVALUATED(query, records)

    terms = {"kinds": ("counts",), "deadline": DEADLINE, "records": records}
    with (
        sources.enrolled({**subject, sources.EVALUATED: slow_where_odd}, **terms) as north,
        ending_threads(finish),
    ):
        start = time.monotonic()
        fill(north, start, slow=len(records) > len(sources.scores()))
        before = reply_to(north, start + DEADLINE / 2, 2_000, finish=None)
        after = reply_to(north, start + DEADLINE, 3_000, finish=finish)
    return before, after


def fill(north: EnrolledSource, start: float, *, slow: bool) -> None:
    """Send as many requests as there are slots; where replies are quick, until they are ready."""
    there = set(threading.enumerate())
    for number in range(max(serving.MAX_IN_FLIGHT, 8)):
        north.server._start(north.raw(micro_epsilon=1_000 + number), start, Future())
    if not slow:
        for thread in set(threading.enumerate()) - there:
            thread.join(PATIENCE)


def reply_to(
    north: EnrolledSource, start: float, micro: int, finish: threading.Event | None
) -> bool:
    """Whether a request that arrives at a time is answered, if computations end then."""
    done: Future[bytes] = Future()
    north.server._start(north.raw(micro_epsilon=micro), start, done)
    if finish is not None:
        finish.set()
    assert wait([done], PATIENCE).done, "a request was neither answered nor refused"
    return sources.is_answer(north, done.result())


@contextmanager
def ending_threads(finish: threading.Event) -> Iterator[None]:
    """Let no computation outlast its source."""
    there = set(threading.enumerate())
    try:
        yield
    finally:
        finish.set()
        for thread in set(threading.enumerate()) - there:
            thread.join(PATIENCE)


EVALUATED = serving.evaluate_query
