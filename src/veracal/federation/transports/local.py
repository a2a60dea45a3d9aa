"""Sources in the same process: for tests, for studies, and for a first look."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from veracal._types import Frozen

Answers = Callable[[bytes], bytes]


class LocalTransport:
    """Carries bytes to whoever answers in this process, each in a thread of its own.

    Parameters
    ----------
    desks : mapping of str to callable
        ``answers(request) -> reply``, by the id of the source, such as
        ``veracal.federation.source.serving.Desk.answer``.
    """

    by_hand = False

    def __init__(self, desks: Mapping[str, Answers]) -> None:
        self.desks = Frozen(dict(desks))

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Ask all at once, and yield replies as they are made; whoever fails is silent."""
        arrived: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        known = [(source, raw) for source, raw in requests.items() if source in self.desks]
        for source, raw in known:
            threading.Thread(
                target=_ask, args=(self.desks[source], source, raw, arrived), daemon=True
            ).start()
        until = time.monotonic() + timeout
        for _ in known:
            try:
                source, reply = arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if reply is not None:
                yield source, reply


def _ask(
    answers: Answers,
    source: str,
    raw: bytes,
    arrived: "queue.SimpleQueue[tuple[str, bytes | None]]",
) -> None:
    """Let one source answer; whatever goes wrong there is silence here."""
    reply = None
    try:
        reply = answers(raw)
    except Exception:  # noqa: S110 - it is another party's, and told to that party
        pass
    finally:
        arrived.put((source, reply))
