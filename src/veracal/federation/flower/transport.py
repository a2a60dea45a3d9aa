"""Requests to sources and their replies, carried by a SuperLink of Flower's."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from veracal import _checks
from veracal.errors import TransportError
from veracal.federation.flower.environment import switch_off
from veracal.federation.flower.registering import register_nodes
from veracal.federation.flower.runs import Incoming, Link, Run
from veracal.federation.flower.wire import (
    REPLY,
    REQUEST,
    Parcel,
    ParcelError,
    distrust,
    refused,
    unreachable,
)

_POLL = 0.2  # seconds
_BEAT = 10.0
_AGAIN = 1.0


class FlowerTransport:
    """Carries requests to nodes, and their replies back. Use it in a ``with`` block.

    Parameters
    ----------
    address : str
        Of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that vouches for the SuperLink.
    secret : path
        The SuperLink's secret, by which the calibrator takes runs.
    nodes : mapping of str to path
        For each source the public key of its node.
    home : path
        A folder in which Flower may write.

    Guarantees
    ----------
    A request goes to the node that holds the source's key, and to no other. The same bytes
    are sent again when a node was away; none are made here.
    """

    by_hand = False

    def __init__(
        self, address: str, *, ca: Path, secret: Path, nodes: Mapping[str, Path], home: Path
    ) -> None:
        self._address, self._ca, self._secret, self._home = address, ca, secret, home
        self._keys = dict(nodes)
        self._link: Link | None = None
        self._nodes: dict[str, int] = {}

    def __enter__(self) -> Self:
        switch_off(self._home)
        self._nodes = register_nodes(
            self._address, ca=self._ca, nodes=self._keys, home=self._home
        )
        self._link = Link(self._address, ca=self._ca, secret=self._secret)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def exchange(
        self, requests: Mapping[str, bytes], *, timeout: float
    ) -> Iterator[tuple[str, bytes]]:
        """Send each source its bytes; yield replies as they come, until all did or time is up.

        Parameters
        ----------
        requests : mapping of str to bytes
            For each source a request of at most 4 KiB.
        timeout : float
            Seconds to wait.

        Yields
        ------
        name, reply : str, bytes
            Whoever is silent, or replies with more than 1 MiB, is not named.

        Raises
        ------
        TransportError
            If, when the time is up, the SuperLink has not been reached once.
        """
        link = self._checked(requests, timeout)
        end = time.monotonic() + timeout
        waiting = dict(requests)
        failure: TransportError | None = None
        while waiting and time.monotonic() < end:
            try:
                yield from self._attempt(link, waiting, end)
                failure = None
            except (unreachable(), refused(), ParcelError) as problem:
                # Gone, or somebody stopped the run: what was asked is asked again in another.
                failure = self._failure(problem)
                time.sleep(max(0.0, min(_AGAIN, end - time.monotonic())))
        if failure is not None and waiting.keys() == requests.keys():
            raise failure

    def _attempt(
        self, link: Link, waiting: dict[str, bytes], end: float
    ) -> Iterator[tuple[str, bytes]]:
        """Ask those who have not answered, in a run of its own."""
        run = link.open_run()
        try:
            yield from _Round(run, self._nodes, waiting, end).replies()
        finally:
            with suppress(unreachable(), refused(), ParcelError):
                run.finish()
            run.close()

    def _checked(self, requests: Mapping[str, bytes], timeout: float) -> Link:
        """The link, if the request can be carried."""
        if self._link is None:
            raise RuntimeError("Expected a transport that was opened. Use it in a with block.")
        _checks.positive(timeout=timeout)
        for name, body in requests.items():
            if name not in self._nodes:
                raise ValueError(f"Expected a source with a node, got {name!r}.")
            if len(body) > REQUEST:
                raise ValueError(
                    f"Expected a request of at most {REQUEST} bytes, got {len(body)} bytes "
                    f"for {name!r}."
                )
        return self._link

    def _failure(self, problem: Exception) -> TransportError:
        """What went wrong with the SuperLink, in a line."""
        mistrust = distrust(problem, self._address, self._ca)
        if mistrust is not None:
            return mistrust
        if isinstance(problem, refused()):
            what = "refuses this calibrator: its secret may be another"
        else:
            what = "cannot be reached, or is no SuperLink"
        return TransportError(
            f"The SuperLink at {self._address} {what}. Check that it runs, its address and "
            f"{self._secret}."
        )


class _Round:
    """One run: who was sent what, and whose reply is on its way."""

    def __init__(
        self, run: Run, nodes: Mapping[str, int], waiting: dict[str, bytes], end: float
    ) -> None:
        self._run, self._nodes, self._waiting, self._end = run, nodes, waiting, end
        self._signed_on: dict[str, str] = {}  # when, of the node that was sent the request
        self._sent: dict[str, str] = {}  # names by message
        self._coming: dict[str, Parcel] = {}  # by name
        self._beaten = self._looked = float("-inf")
        now = time.monotonic()
        self._again = now + (end - now) / 2  # when whoever is still silent is sent it once more

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """Send, and send again, and yield what comes."""
        while self._waiting and time.monotonic() < self._end:
            self._keep_up()
            if self._sent:
                for incoming in self._run.replies(list(self._sent)):
                    self._sort(incoming)
            for name in list(self._coming):
                body = self._fetched(name)
                if body is not None:
                    yield name, body
            if self._waiting:
                time.sleep(_POLL)

    def _keep_up(self) -> None:
        """From time to time, say that we are there and see who came (back)."""
        now = time.monotonic()
        if now - self._beaten >= _BEAT:
            self._beaten = now
            self._run.beat()
        if now - self._looked >= _AGAIN:
            self._looked = now
            if now >= self._again:  # a message may be lost without a word; repeats are free
                self._again = float("inf")
                self._signed_on.clear()
            self._send(self._run.present())

    def _send(self, present: Mapping[int, str]) -> None:
        """Send to nodes that signed on since they were last sent their request.

        What a node was handed before it was killed is never handed out again, so a node that
        signs on anew is sent the same bytes anew.
        """
        for name, body in self._waiting.items():
            since = present.get(self._nodes[name])
            if since is not None and since != self._signed_on.get(name):
                lasts = max(self._end - time.monotonic(), 1.0)
                message = self._run.send(self._nodes[name], body, lasts=lasts)
                if message is not None:
                    self._signed_on[name] = since
                    self._sent[message] = name

    def _sort(self, incoming: Incoming) -> None:
        """Note a reply that has to be fetched; anything else is dropped."""
        name = self._sent.pop(incoming.reply_to, None)
        if name is None or name not in self._waiting or incoming.parcel is None:
            return  # also what the SuperLink says of nodes that are gone
        if incoming.sender == self._nodes[name]:
            self._coming[name] = incoming.parcel

    def _fetched(self, name: str) -> bytes | None:
        """A reply, once it is complete. One that is not ours, or too large, is dropped."""
        parcel = self._coming[name]
        try:
            body = parcel.fetch(self._run.pull)
        except ParcelError:
            del self._coming[name], self._waiting[name]
            return None
        if body is None:
            return None
        del self._coming[name], self._waiting[name]
        self._run.confirm(parcel)
        return body if len(body) <= REPLY else None
