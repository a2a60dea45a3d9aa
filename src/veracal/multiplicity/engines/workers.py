"""What a worker does: it opens what all tasks have in common, once, and works on them."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np
from joblib import parallel_config

from veracal._checks import extra
from veracal._threads import threadpool_limits
from veracal.errors import WorkerError

KEPT = "With keep, runs that finished are kept: audit again, and it goes on where it stopped."
_HELD: dict[str, Any] = {}  # what the tasks at hand have in common
_WATCHED: set[int] = set()


def packed(common: Any) -> Any:
    """What all tasks need, as one array of bytes."""
    try:
        return np.frombuffer(cloudpickle.dumps(common), dtype=np.uint8)
    except Exception as cause:
        raise WorkerError(
            f"The model cannot be sent to workers: {one_line(cause)}. Leave out what cannot "
            "be pickled (open files, locks, connections), make it inside a training function, "
            "or run with jobs=1."
        ) from cause


def worked(
    task: Callable[[Any, Any], Any],
    item: Any,
    key: str,
    parcel: Any,
    parent: int | None,
    threads: int,
) -> Any:
    """Result of a task, in the process of a worker."""
    try:
        common = _opened(key, parcel, parent)
    except Exception as cause:
        return WorkerError(
            f"A worker cannot load the model: {one_line(cause)}. Install on every worker what "
            f"this process has, or define the model in the program itself. {KEPT}"
        )
    with one_core(threads):
        return task(common, item)


@contextmanager
def one_core(threads: int) -> Iterator[None]:
    """Keep what runs inside to some threads of linear algebra, and to this process.

    The number of threads can change the last bits of a product: with it fixed, a task has
    the same result wherever it runs.
    """
    with parallel_config(backend="sequential"), threadpool_limits(threads):
        yield


def _opened(key: str, parcel: Any, parent: int | None) -> Any:
    """What all tasks need, unpickled for the first of them alone."""
    if key not in _HELD:
        if parent is not None and parent == os.getppid() and parent not in _WATCHED:
            _WATCHED.add(parent)
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        if not isinstance(parcel, np.ndarray):
            parcel = extra("ray", "cluster").get(parcel)
        common = cloudpickle.loads(memoryview(parcel))
        _HELD.clear()
        _HELD[key] = common
    return _HELD[key]


def _end_with(parent: int) -> None:
    """End this process once the one that started it was killed, whatever it works on."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def forget(key: str) -> None:
    """Let go of what all tasks needed."""
    _HELD.pop(key, None)


def one_line(cause: BaseException) -> str:
    """Class and message of an error, without a full stop."""
    words = " ".join(str(cause).split())[:300].rstrip(".")
    return f"{type(cause).__name__}: {words}" if words else type(cause).__name__
