"""A source as a node of Flower's: it answers with its own code, and runs no other.

Flower's own SuperNode fetches an app from whoever started a run, and executes it. This one
speaks to the SuperLink in the same way, with the same keys, and asks for messages only.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from veracal.federation.flower.environment import switch_off
from veracal.federation.flower.fleet import Fleet, Letter, Pulse
from veracal.federation.flower.wire import ParcelError, distrust, refused, status, unreachable

_POLL = 0.5  # seconds
_FIRST, _MOST = 0.5, 5.0  # of waiting, after something went wrong
_UNKNOWN, _UNSIGNED = 412, 401  # how a SuperLink refuses a key, and a signature


def serve_node(
    answer: Callable[[bytes], bytes],
    *,
    address: str,
    ca: Path,
    node_key: Path,
    home: Path,
    stop: threading.Event,
    tell: Callable[[str], None],
    poll: float = _POLL,
) -> None:
    """Answer the requests that a SuperLink hands out, until told to stop.

    A SuperLink that cannot be reached, or does not know the key yet, is tried again until it
    does; the owner is told once.

    Parameters
    ----------
    answer : function
        From a request, of at most 4 KiB, to its answer.
    address : str
        Of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that vouches for the SuperLink.
    node_key : path
        The node's private key.
    home : path
        A folder for what the node remembers.
    stop : threading.Event
        Set when it is time to end.
    tell : function
        Is given lines for the owner.
    poll : float
        Seconds between two looks for requests.

    Raises
    ------
    TransportError
        If, at the start, the SuperLink's certificate is not one that ``ca`` vouches for.

    Guarantees
    ----------
    No code comes from the SuperLink: apps are never fetched. What it sends is bounded in
    size before it is read, and reaches ``answer`` as bytes.
    """
    switch_off(home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    fleet = Fleet(address, ca=ca, node_key=node_key, remembered=home / "node")
    node = _Node(fleet, answer, address, ca, stop, tell)
    try:
        with Pulse(fleet.beat):
            node.run(poll)
    finally:
        fleet.leave()


class _Node:
    """The loop of a node, and what it has told its owner."""

    def __init__(
        self,
        fleet: Fleet,
        answer: Callable[[bytes], bytes],
        address: str,
        ca: Path,
        stop: threading.Event,
        tell: Callable[[str], None],
    ) -> None:
        self._fleet, self._answer, self._stop, self._tell = fleet, answer, stop, tell
        self._address, self._ca = address, ca
        self._connected = f"Connected to {address}; requests are answered."
        self._told = ""
        self._was_here = False

    def run(self, poll: float) -> None:
        """Sign on, answer, and after trouble sign on again."""
        wait = _FIRST
        while not self._stop.is_set():
            try:
                self._fleet.join()
                self._say(self._connected)
                self._was_here, wait = True, _FIRST
                self._attend(poll)
            except (unreachable(), refused(), ParcelError) as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MOST)

    def _attend(self, poll: float) -> None:
        """Answer requests as they come."""
        while not self._stop.is_set():
            letter = self._next()
            if letter is None:
                self._stop.wait(poll)
            else:
                self._handle(letter)

    def _next(self) -> Letter | None:
        """The next request, if there is one that can be read."""
        try:
            return self._fleet.next()
        except ParcelError as problem:
            self._say(f"A message was dropped. {problem}")
        except refused() as problem:
            if status(problem) == _UNSIGNED:
                raise
            # Otherwise its run is over.
        return None

    def _handle(self, letter: Letter) -> None:
        """Answer one request, and hold on to the answer until it is delivered or too late."""
        try:
            body = self._answer(letter.body)
        except Exception as problem:  # an answer is total; if not, the node goes on
            self._say(f"A request was not answered ({type(problem).__name__}).")
            return
        wait = _FIRST
        while time.time() < letter.expires and not self._stop.is_set():
            try:
                self._fleet.reply(letter, body)
                self._say(self._connected)  # if there was trouble
                return
            except (refused(), ParcelError):
                return  # nobody waits for it any more
            except unreachable() as problem:
                self._explain(problem)
                self._stop.wait(wait)
                wait = min(2 * wait, _MOST)

    def _explain(self, problem: Exception) -> None:
        """Tell the owner what is wrong, or raise if it will not mend itself."""
        mistrust = distrust(problem, self._address, self._ca)
        if mistrust is not None and not self._was_here:
            raise mistrust from problem
        self._say(str(mistrust) if mistrust else self._reason(problem))

    def _reason(self, problem: Exception) -> str:
        """What is wrong, in a line."""
        number = status(problem)
        if number == _UNKNOWN:
            return (
                f"{self._address} does not let this node in: its key is not registered there, "
                "or another node uses it (after a crash, for a minute). Trying again."
            )
        if number == _UNSIGNED:
            return (
                f"{self._address} does not believe this node's signature: its clock may be "
                "wrong, or its key is no longer registered. Trying again."
            )
        what = f"answers with error {number}" if number else "cannot be reached"
        return f"{self._address} {what}. Trying again."

    def _say(self, line: str) -> None:
        """Tell the owner, unless it was the last thing told."""
        if line != self._told:
            self._told = line
            self._tell(line)
