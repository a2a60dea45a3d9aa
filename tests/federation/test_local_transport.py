"""Sources in the same process."""

import threading
import time
from types import SimpleNamespace

from veracal.federation import transports as local
from veracal.federation.transports import LocalTransport, Transport


def test_every_source_gets_its_request_and_replies_are_yielded_on_arrival():
    first = threading.Event()

    def slow(raw):
        first.wait(240)
        return b"slow " + raw

    transport = LocalTransport({"a": slow, "b": lambda raw: b"quick " + raw})
    arriving = transport.exchange({"a": b"1", "b": b"2"}, timeout=240)
    assert next(arriving) == ("b", b"quick 2")
    first.set()
    assert list(arriving) == [("a", b"slow 1")]
    assert isinstance(transport, Transport)


def test_failing_unknown_and_slow_sources_are_not_yielded(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def fails(raw):
        raise RuntimeError("something of its own")

    released = threading.Event()
    transport = LocalTransport(
        {
            "fails": fails,
            "slow": lambda raw: released.wait(240) and b"",
            "well": lambda raw: raw,
        }
    )
    requests = dict.fromkeys(("fails", "slow", "well", "unknown"), b"?")
    arriving = transport.exchange(requests, timeout=240)
    assert next(arriving) == ("well", b"?")
    now[0], started = 239.8, time.monotonic()  # the rest of the time is waited for
    assert list(arriving) == []
    assert time.monotonic() - started >= 0.2
    released.set()
