"""Sources in the same process."""

import threading
import time

from veracal.federation.transports.base import Transport
from veracal.federation.transports.local import LocalTransport


def test_every_source_gets_its_own_request_and_replies_are_yielded_as_they_come():
    first = threading.Event()

    def slow(raw):
        first.wait(10)
        return b"slow " + raw

    transport = LocalTransport({"a": slow, "b": lambda raw: b"quick " + raw})
    arriving = transport.exchange({"a": b"1", "b": b"2"}, timeout=10)
    assert next(arriving) == ("b", b"quick 2")
    first.set()
    assert list(arriving) == [("a", b"slow 1")]
    assert isinstance(transport, Transport)


def test_who_fails_is_unknown_or_too_slow_is_not_yielded():
    def fails(raw):
        raise RuntimeError("something of its own")

    released = threading.Event()
    transport = LocalTransport(
        {"fails": fails, "slow": lambda raw: released.wait(10) and b"", "well": lambda raw: raw}
    )
    started = time.monotonic()
    requests = dict.fromkeys(("fails", "slow", "well", "nobody"), b"?")
    assert list(transport.exchange(requests, timeout=0.2)) == [("well", b"?")]
    assert time.monotonic() - started >= 0.2
    released.set()
