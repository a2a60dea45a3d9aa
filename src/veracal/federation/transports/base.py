"""The transport protocol, which is untrusted, and a transport within one process."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from veracal._types import Frozen


@runtime_checkable
class Transport(Protocol):
    """A carrier of bytes.

    It may lose, delay, repeat or change messages: both ends validate every byte. A transport
    that holds processes or connections is also a context manager.
    """

    @property
    def by_hand(self) -> bool:
        """Whether a person carries each request, so that a repeat is expensive."""

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Carry requests to their sources, and yield replies as they arrive.

        Parameters
        ----------
        requests : mapping of str to bytes
            By the id of the source (:attr:`~veracal.federation.protocol.terms.Terms.source`).
        timeout : float
            Seconds to wait. Sources without a reply are not yielded.

        Raises
        ------
        PendingError
            If replies are still on their way and need action by a person. Replies that were
            yielded are valid, and a later exchange continues.
        """


Answerer = Callable[[bytes], bytes]


class LocalTransport:
    """Carries requests to servers in this process, each in a separate thread.

    Parameters
    ----------
    servers : mapping of str to callable
        ``answer(request) -> reply``, by the id of the source, such as
        ``veracal.federation.source.serving.SourceServer.answer``.
    """

    by_hand = False

    def __init__(self, servers: Mapping[str, Answerer]) -> None:
        self.servers = Frozen(dict(servers))

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send all requests at once, and yield replies in the order of completion."""
        arrived: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()
        known = [(source, raw) for source, raw in requests.items() if source in self.servers]
        for source, raw in known:
            threading.Thread(
                target=_answer, args=(self.servers[source], source, raw, arrived), daemon=True
            ).start()
        until = time.monotonic() + timeout
        for _ in known:
            try:
                source, reply = arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return
            if reply is not None:
                yield source, reply


def _answer(
    answer: Answerer,
    source: str,
    raw: bytes,
    arrived: "queue.SimpleQueue[tuple[str, bytes | None]]",
) -> None:
    """Get the reply of one source; an error there is a missing reply here."""
    reply = None
    try:
        reply = answer(raw)
    except Exception:  # noqa: S110 - an error of the other party, which it logs
        pass
    finally:
        arrived.put((source, reply))
