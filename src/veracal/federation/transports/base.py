"""What carries bytes between a calibrator and its sources, and is trusted with nothing."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable


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
