"""What a worker does: it opens what all tasks have in common, once, and works on them.

Tasks on the workers of one machine or of a cluster, their results as they come in.
"""

import os
import re
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import cloudpickle
import numpy as np
from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from joblib.externals.loky import get_reusable_executor
from joblib.parallel import get_active_backend

from veracal import _checks
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


BACKENDS = ("loky", "ray", "dask")
_IDLE = 10  # seconds that a process waits for more to do: it holds records
_START = 60  # that workers of a cluster may take to come up
_PATIENCE = 5.0  # seconds until a cluster that does not answer is not there
_CLASSES = {"RayBackend": "ray", "DaskDistributedBackend": "dask", "LokyBackend": "loky"}


@dataclass(frozen=True)
class TaskExecutor:
    """Where tasks are worked on.

    Attributes
    ----------
    backend : {"loky", "ray", "dask"}, optional
        None: what the active ``joblib.parallel_config`` says, and loky where there is none.
    jobs : int, optional
        Tasks at a time. None: as many as there are cores. Dask uses all of its workers.
    address : str, optional
        Of a cluster of Ray or Dask. None: the one that this process is connected to.
    threads : int
        Of linear algebra, within a task.
    """

    backend: str | None = None
    jobs: int | None = None
    address: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.backend is not None:
            _checks.one_of(BACKENDS, backend=self.backend)
        _checks.whole(threads=self.threads)
        if self.jobs is not None:
            _checks.whole(jobs=self.jobs)
        if self.address is not None and self.backend not in ("ray", "dask"):
            raise ValueError(
                f"Expected backend='ray' or 'dask' with an address, got {self.backend!r}."
            )

    @property
    def here(self) -> bool:
        """Whether tasks are worked on in this process, one after the other."""
        if (self.backend or _active()) != "loky":
            return False
        return bool(effective_n_jobs(_wanted(self.jobs)) == 1)


def outcomes(
    task: Callable[[Any, Any], Any],
    common: Any,
    items: Iterable[Any],
    place: TaskExecutor,
    *,
    most: int,
) -> Generator[Any, None, None]:
    """Results of a task for each item, in whatever order they come in.

    ``common`` is pickled once and unpickled once by each worker: it travels as one array,
    which joblib maps into the memory of processes on this machine, and which is broadcast on
    Dask and put into the store of Ray.

    Parameters
    ----------
    task : function of (common, item)
        Defined in a module that workers have.
    common : object
        What all tasks need.
    items : iterable
        Taken by the thread that asks for results, at most ``most`` ahead.
    place : Place
    most : int
        Results that may wait for their reader. Ray gives no result of a block before its
        last one, so that its blocks are twice as long as it has workers.

    Raises
    ------
    WorkerError
        If a worker dies, if ``common`` cannot be sent, or if the cluster is not there. What
        a task raises is one, too; tasks should rather return it.

    Notes
    -----
    Closing the generator kills the workers of this machine; if it runs to its end, they wait
    some seconds for another one, since they are slow to start. On a cluster, tasks that have
    begun end by themselves, and the others are dropped. Loky has one set of workers for
    each process, so that a second generator at the same time must not be closed early.
    """
    rest = iter(items)
    chunk = list(islice(rest, 1))
    if not chunk:
        return
    with _crew(place, packed(common)) as crew:
        ahead = max(1, min(most, (64 if crew.gradual else 2) * crew.size))
        chunk += islice(rest, ahead - 1)
        while chunk:
            yield from _answered(crew, task, chunk)
            chunk = list(islice(rest, ahead))


# ---------------------------------------------------------------- workers


@dataclass(frozen=True, eq=False)
class _Crew:
    """Workers, and the parcel that each of them opens once."""

    parallel: Any
    size: int
    gradual: bool  # whether results come in one by one
    parcel: Any
    key: str
    threads: int
    parent: int | None  # process without which its workers have nobody to work for


@contextmanager
def _crew(place: TaskExecutor, parcel: Any) -> Iterator[_Crew]:
    """Workers, for as long as they are needed."""
    with ExitStack() as stack:
        try:
            name = place.backend or _active()
            key = uuid.uuid4().hex
            settings: dict[str, Any] = {}
            if name == "loky":
                stack.push(_dismiss)
                settings = {
                    "backend": "loky",
                    "inner_max_num_threads": place.threads,
                    "idle_worker_timeout": _IDLE,
                }
            elif name == "dask":
                client = stack.enter_context(_dask(place, key))
                settings = {"backend": "dask", "client": client, "scatter": [parcel]}
            elif name == "ray":
                ray = stack.enter_context(_ray(place))
                settings, parcel = {"backend": "ray"}, ray.put(parcel)
            crew = stack.enter_context(_joined(place, settings, parcel, key))
        except WorkerError:
            raise
        except (OSError, RuntimeError, ValueError) as cause:
            raise WorkerError(f"No workers: {one_line(cause)}. {KEPT}") from cause
        yield crew


@contextmanager
def _joined(
    place: TaskExecutor, settings: dict[str, Any], parcel: Any, key: str
) -> Iterator[_Crew]:
    """Workers by joblib. Its settings are left before a result is waited for."""
    jobs = _wanted(place.jobs)
    with parallel_config(**settings):
        if settings.get("backend") == "ray":
            jobs = min(jobs, effective_n_jobs(-1)) if jobs > 0 else jobs  # or it waits forever
        gradual = bool(get_active_backend()[0].supports_return_generator)
        size = effective_n_jobs(jobs)
        parallel = Parallel(
            n_jobs=jobs,
            return_as="generator_unordered" if gradual else "list",
            # A batch that a cluster has begun cannot be stopped.
            batch_size="auto" if settings.get("backend") == "loky" else 1,
        )
    with parallel:
        parent = os.getpid() if settings.get("backend") == "loky" else None
        yield _Crew(parallel, size, gradual, parcel, key, place.threads, parent)


@contextmanager
def _dask(place: TaskExecutor, key: str) -> Iterator[Any]:
    """A client of Dask of our own, with which all that is pending ends."""
    distributed = extra("distributed", "cluster")
    address, security = place.address, None
    if address is None:
        theirs = _client_of_dask(place, distributed)
        address, security = theirs.scheduler_info()["address"], theirs.security
    _reach(address)
    client = distributed.Client(
        address, security=security, timeout=_PATIENCE, set_as_default=False, name="veracal"
    )
    try:
        client.wait_for_workers(1, timeout=_START)
        yield client
    finally:
        with suppress(Exception):  # of a cluster that is gone
            client.run(forget, key, on_error="ignore")
        client.close(timeout=_PATIENCE)


def _client_of_dask(place: TaskExecutor, distributed: Any) -> Any:
    """The client that this process is connected by."""
    if place.backend is None:
        return get_active_backend()[0].client
    try:
        return distributed.get_client(timeout=_PATIENCE)
    except ValueError as cause:
        raise WorkerError(
            "No Dask cluster: connect to one with dask.distributed.Client('ADDRESS:8786'), or "
            "start one on this machine with dask.distributed.Client()."
        ) from cause


@contextmanager
def _ray(place: TaskExecutor) -> Iterator[Any]:
    """Ray, connected, as a backend of joblib."""
    ray = extra("ray", "cluster")
    started = not ray.is_initialized()
    if started and place.address is None:
        raise WorkerError(
            "No Ray cluster: connect to one with ray.init(address='ADDRESS:6379'), or start "
            "one on this machine with ray.init()."
        )
    if started:
        _reach(str(place.address))
        ray.init(address=place.address, log_to_driver=False)
    try:
        extra("ray.util.joblib", "cluster").register_ray()
        yield ray
    finally:
        if started:
            ray.shutdown()


def _active() -> str:
    """Name of the backend that joblib would use now."""
    found = type(get_active_backend()[0]).__name__
    return _CLASSES.get(found, found)


def _wanted(jobs: int | None) -> int:
    """How many tasks at a time, -1 being one for each core."""
    return int(jobs or get_active_backend()[1] or -1)


def _dismiss(kind: type[BaseException] | None, *_: object) -> None:
    """End loky's workers at once, unless they did all that was asked for.

    Those that did may soon be asked again; unless they are, they end by themselves.
    """
    if kind is not None:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _reach(address: str) -> None:
    """Raise within seconds if nobody listens at an address."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return  # a name that the cluster's own library knows, such as "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except OSError as cause:
        raise WorkerError(
            f"Nobody answers at {address} ({cause}). Start the cluster, or correct the address."
        ) from cause


# ---------------------------------------------------------------- tasks


def _answered(
    crew: _Crew, task: Callable[[Any, Any], Any], chunk: list[Any]
) -> Generator[Any, None, None]:
    """Results of some items."""
    common = crew.key, crew.parcel, crew.parent, crew.threads
    calls = [delayed(worked)(task, item, *common) for item in chunk]
    try:
        results = crew.parallel(calls)
    except Exception as cause:
        raise _lost(cause) from cause
    try:
        yield from _until_lost(iter(results))
    finally:
        if crew.gradual:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it ends early is what was asked for
                results.close()


def _until_lost(results: Iterator[Any]) -> Iterator[Any]:
    """Results, until one cannot be had."""
    while True:
        try:
            result = next(results)
        except StopIteration:
            return
        except Exception as cause:
            raise _lost(cause) from cause
        if isinstance(result, WorkerError):
            raise result
        yield result


def _lost(cause: Exception) -> WorkerError:
    """What happened to a worker, in words."""
    text = str(cause)
    signal = re.search(r"(SIG[A-Z]+)\(-\d+\)", text)
    left = re.search(r"EXIT\((\d+)\)", text)
    if signal is not None and signal[1] == "SIGKILL":
        what = (
            "A worker was killed (SIGKILL), as the system does when memory runs out. "
            "Fewer jobs need less of it"
        )
    elif signal is not None:
        what = f"A worker crashed ({signal[1]}) in the model or in a library that it uses"
    elif left is not None:
        what = f"A worker ended its process (exit code {left[1]}) in the middle of a run"
    elif type(cause).__name__ in {"ActorDiedError", "WorkerCrashedError", "OutOfMemoryError"}:
        what = "A worker of Ray died: it was killed, ran out of memory, or ended its process"
    elif type(cause).__name__ in {"KilledWorker", "FutureCancelledError", "CancelledError"}:
        what = "Workers of Dask died: killed, out of memory, or ended by the model itself"
    else:
        what = f"The workers gave no result: {one_line(cause)}"
    return WorkerError(f"{what}. {KEPT}")
