"""What carries bytes between a coordinator and its sources, and is trusted with nothing.

Sources in the same process: for tests, for studies, and for a first look.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from veracal._types import Frozen


@runtime_checkable
class Transport(Protocol):
    """A carrier of bytes.

    It may lose, delay, repeat or change what it carries: both ends check every byte. Whoever
    holds processes or connections is a context manager, too.
    """

    @property
    def by_hand(self) -> bool:
        """Whether somebody carries each request, so that asking again is no small thing."""

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Carry requests to their sources, and yield replies as they arrive.

        Parameters
        ----------
        requests : mapping of str to bytes
            By the id of the source (:attr:`~veracal.federation.protocol.terms.Terms.source`).
        timeout : float
            Seconds after which nobody is waited for any longer. Who did not reply is just not
            yielded.

        Raises
        ------
        WaitingError
            If replies are still on their way, and come only once somebody has done something:
            what was yielded counts, and the same exchange goes on later.
        """


Answerer = Callable[[bytes], bytes]


class LocalTransport:
    """Carries bytes to whoever answers in this process, each in a thread of its own.

    Parameters
    ----------
    servers : mapping of str to callable
        ``answers(request) -> reply``, by the id of the source, such as
        ``veracal.federation.source.serving.SourceServer.answer``.
    """

    by_hand = False

    def __init__(self, servers: Mapping[str, Answerer]) -> None:
        self.servers = Frozen(dict(servers))

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Ask all at once, and yield replies as they are made; whoever fails is silent."""
        arrived: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        known = [(source, raw) for source, raw in requests.items() if source in self.servers]
        for source, raw in known:
            threading.Thread(
                target=_ask, args=(self.servers[source], source, raw, arrived), daemon=True
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
    answers: Answerer,
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
