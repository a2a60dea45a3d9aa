"""A substitute for a real source: python stand_in.py MODE ADDRESS CA KEY HOME."""

import signal
import sys
import threading
import time
from pathlib import Path

from veracal.federation.flower.supernode import serve_node

STOP, HEARD = threading.Event(), threading.Event()


def echo(request: bytes) -> bytes:
    return b"answer to " + request


def slow(request: bytes) -> bytes:
    print("queried", flush=True)
    time.sleep(2)
    return echo(request)


def huge(request: bytes) -> bytes:
    return bytes(int(request))


def broken(request: bytes) -> bytes:
    if b"break" in request:
        raise ValueError("a record")
    return echo(request)


def deaf(request: bytes) -> bytes:
    """Miss the first request."""
    if not HEARD.is_set():
        HEARD.set()
        raise ValueError("not heard")
    return echo(request)


def log(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    mode, address, ca, key, home = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    serve_node(
        {"echo": echo, "slow": slow, "huge": huge, "broken": broken, "deaf": deaf}[mode],
        address=address,
        ca=Path(ca),
        node_key=Path(key),
        home=Path(home),
        stop=STOP,
        log=log,
        poll=0.2,
    )
