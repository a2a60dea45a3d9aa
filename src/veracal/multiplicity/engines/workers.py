"""Tasks on the workers of one machine or of a cluster, with results as they finish.

Workers receive the data that all tasks share once.
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

RESUME_HINT = "With keep, finished runs are saved, and the same audit resumes from them."
_COMMON: dict[str, Any] = {}  # shared data of the current tasks, by key
_WATCHED_PARENTS: set[int] = set()


def run_task(
    task: Callable[[Any, Any], Any],
    item: Any,
    key: str,
    payload: Any,
    parent: int | None,
    threads: int,
) -> Any:
    """Result of a task, in a worker process."""
    try:
        if key not in _COMMON:  # the first task that needs the shared data
            if parent is not None and parent == os.getppid() and parent not in _WATCHED_PARENTS:
                _WATCHED_PARENTS.add(parent)
                threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
            if not isinstance(payload, np.ndarray):
                payload = extra("ray", "cluster").get(payload)
            common = cloudpickle.loads(memoryview(payload))
            _COMMON.clear()
            _COMMON[key] = common
        common = _COMMON[key]
    except Exception as cause:
        return WorkerError(
            f"A worker cannot load the model: {one_line(cause)}. Install on every worker the "
            f"packages of this process, or define the model in the main program. {RESUME_HINT}"
        )
    with one_core(threads):
        return task(common, item)


@contextmanager
def one_core(threads: int) -> Iterator[None]:
    """Limit the threads of linear algebra, and keep nested parallelism in this process.

    The number of threads can change the last bits of a product: with a fixed number, a task has
    the same result on every worker.
    """
    with parallel_config(backend="sequential"), threadpool_limits(threads):
        yield


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, even during a task."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def release_common(key: str) -> None:
    """Free the shared data."""
    _COMMON.pop(key, None)


def one_line(cause: BaseException) -> str:
    """Class and message of an error on one line, without a final period."""
    words = " ".join(str(cause).split())[:300].rstrip(".")
    return f"{type(cause).__name__}: {words}" if words else type(cause).__name__


BACKENDS = ("loky", "ray", "dask")
_IDLE = 10  # seconds before an idle process exits: it holds records
_START = 60  # seconds to wait for workers of a cluster
_PATIENCE = 5.0  # seconds until a silent cluster counts as unreachable
_CLASSES = {"RayBackend": "ray", "DaskDistributedBackend": "dask", "LokyBackend": "loky"}


@dataclass(frozen=True)
class TaskExecutor:
    """Where and how tasks are executed."""

    backend: str | None = None  # None: the active joblib.parallel_config, or else loky
    jobs: int | None = None  # None: one for each core; Dask uses all of its workers
    address: str | None = None  # of a cluster; None: the one this process is connected to
    threads: int = 1  # of linear algebra within a task

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
    def in_process(self) -> bool:
        """Whether tasks run one after the other in this process."""
        if (self.backend or _active_backend()) != "loky":
            return False
        return bool(effective_n_jobs(_job_count(self.jobs)) == 1)


def run_tasks(
    task: Callable[[Any, Any], Any],
    common: Any,
    items: Iterable[Any],
    executor: TaskExecutor,
    *,
    max_pending: int,
) -> Generator[Any, None, None]:
    """Results of a task for each item, in any order, as they finish.

    ``common`` is pickled once and unpickled once per worker: it travels as one array, which
    joblib memory-maps for local processes, and which is broadcast on Dask and put into Ray's
    object store.

    The task, a function of (common, item), is defined in a module that workers can import. The
    thread that reads the results consumes the items, at most ``max_pending`` ahead. Ray returns
    the results of a block together, so that its blocks are twice as long as it has workers.

    Raises
    ------
    WorkerError
        If a worker dies, if ``common`` cannot be sent, or if the cluster cannot be reached. An
        exception raised by a task becomes one too; tasks should return errors instead.

    Notes
    -----
    Closing the generator kills the local workers; if it is exhausted, they stay alive for some
    seconds, since they are slow to start. On a cluster, tasks in progress finish, and the
    others are dropped. Loky has one set of workers per process, so that of two concurrent
    generators neither must be closed early.
    """
    rest = iter(items)
    chunk = list(islice(rest, 1))
    if not chunk:
        return
    try:
        payload = np.frombuffer(cloudpickle.dumps(common), dtype=np.uint8)
    except Exception as cause:
        raise WorkerError(
            f"The model cannot be sent to workers: {one_line(cause)}. Remove what cannot be "
            "pickled (open files, locks, connections), create it inside a training function, "
            "or run with jobs=1."
        ) from cause
    with _start_workers(executor, payload) as pool:
        prefetch = max(1, min(max_pending, (64 if pool.streams_results else 2) * pool.size))
        chunk += islice(rest, prefetch - 1)
        while chunk:
            yield from _chunk_results(pool, task, chunk)
            chunk = list(islice(rest, prefetch))


# ---------------------------------------------------------------- workers


@dataclass(frozen=True, eq=False)
class _WorkerPool:
    """Workers, and the payload that each of them loads once."""

    parallel: Any
    size: int
    streams_results: bool  # whether results arrive one by one
    payload: Any
    key: str
    threads: int
    parent: int | None  # the process whose end also ends local workers


@contextmanager
def _start_workers(executor: TaskExecutor, payload: Any) -> Iterator[_WorkerPool]:
    """A context with running workers."""
    with ExitStack() as stack:
        try:
            name = executor.backend or _active_backend()
            key = uuid.uuid4().hex
            settings: dict[str, Any] = {}
            if name == "loky":
                stack.push(_kill_workers)
                settings = {
                    "backend": "loky",
                    "inner_max_num_threads": executor.threads,
                    "idle_worker_timeout": _IDLE,
                }
            elif name == "dask":
                client = stack.enter_context(_dask(executor, key))
                settings = {"backend": "dask", "client": client, "scatter": [payload]}
            elif name == "ray":
                ray = stack.enter_context(_ray(executor))
                settings, payload = {"backend": "ray"}, ray.put(payload)
            jobs = _job_count(executor.jobs)
            # This configuration is left before a result is awaited.
            with parallel_config(**settings):
                if name == "ray" and jobs > 0:
                    # More jobs than the cluster has would wait forever.
                    jobs = min(jobs, effective_n_jobs(-1))
                streams_results = bool(get_active_backend()[0].supports_return_generator)
                size = effective_n_jobs(jobs)
                parallel = Parallel(
                    n_jobs=jobs,
                    return_as="generator_unordered" if streams_results else "list",
                    # A batch cannot be stopped once a cluster has started it.
                    batch_size="auto" if name == "loky" else 1,
                )
            stack.enter_context(parallel)
        except WorkerError:
            raise
        except (OSError, RuntimeError, ValueError) as cause:
            raise WorkerError(f"No workers: {one_line(cause)}. {RESUME_HINT}") from cause
        parent = os.getpid() if name == "loky" else None
        yield _WorkerPool(
            parallel, size, streams_results, payload, key, executor.threads, parent
        )


@contextmanager
def _dask(executor: TaskExecutor, key: str) -> Iterator[Any]:
    """A Dask client of our own, so that closing it cancels everything pending."""
    distributed = extra("distributed", "cluster")
    address, security = executor.address, None
    if address is None:
        try:
            current = (
                get_active_backend()[0].client
                if executor.backend is None
                else distributed.get_client(timeout=_PATIENCE)
            )
        except ValueError as cause:
            raise WorkerError(
                "No Dask cluster: connect to one with dask.distributed.Client('ADDRESS:8786'), "
                "or start one on this machine with dask.distributed.Client()."
            ) from cause
        address, security = current.scheduler_info()["address"], current.security
    _check_reachable(address)
    client = distributed.Client(
        address, security=security, timeout=_PATIENCE, set_as_default=False, name="veracal"
    )
    try:
        client.wait_for_workers(1, timeout=_START)
        yield client
    finally:
        with suppress(Exception):  # the cluster may be gone
            client.run(release_common, key, on_error="ignore")
        client.close(timeout=_PATIENCE)


@contextmanager
def _ray(executor: TaskExecutor) -> Iterator[Any]:
    """Ray, connected, as a joblib backend."""
    ray = extra("ray", "cluster")
    must_connect = not ray.is_initialized()
    if must_connect and executor.address is None:
        raise WorkerError(
            "No Ray cluster: connect to one with ray.init(address='ADDRESS:6379'), or start "
            "one on this machine with ray.init()."
        )
    if must_connect:
        _check_reachable(str(executor.address))
        ray.init(address=executor.address, log_to_driver=False)
    try:
        extra("ray.util.joblib", "cluster").register_ray()
        yield ray
    finally:
        if must_connect:
            ray.shutdown()


def _active_backend() -> str:
    """Name of joblib's active backend."""
    backend_name = type(get_active_backend()[0]).__name__
    return _CLASSES.get(backend_name, backend_name)


def _job_count(jobs: int | None) -> int:
    """Number of concurrent tasks; -1 means one per core."""
    return int(jobs or get_active_backend()[1] or -1)


def _kill_workers(kind: type[BaseException] | None, *_: object) -> None:
    """Kill loky's workers at once, unless all tasks finished.

    After a normal end the workers may soon be needed again; otherwise they exit after a
    timeout.
    """
    if kind is not None:
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _check_reachable(address: str) -> None:
    """Raise within seconds if nothing listens at an address."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return  # a name for the cluster's own library, such as "auto"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except OSError as cause:
        raise WorkerError(
            f"Nothing answers at {address} ({cause}). Start the cluster, or correct the "
            "address."
        ) from cause


# ---------------------------------------------------------------- tasks


def _chunk_results(
    pool: _WorkerPool, task: Callable[[Any, Any], Any], chunk: list[Any]
) -> Generator[Any, None, None]:
    """Results of some items."""
    common = pool.key, pool.payload, pool.parent, pool.threads
    calls = [delayed(run_task)(task, item, *common) for item in chunk]
    try:
        results = pool.parallel(calls)
    except Exception as cause:
        raise _describe_loss(cause) from cause
    arriving = iter(results)
    try:
        while True:
            try:
                result = next(arriving)
            except StopIteration:
                return
            except Exception as cause:
                raise _describe_loss(cause) from cause
            if isinstance(result, WorkerError):
                raise result
            yield result
    finally:
        if pool.streams_results:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ending early is intended
                results.close()


def _describe_loss(cause: Exception) -> WorkerError:
    """Describe what happened to a worker."""
    text = str(cause)
    signal = re.search(r"(SIG[A-Z]+)\(-\d+\)", text)
    exit_code = re.search(r"EXIT\((\d+)\)", text)
    if signal is not None and signal[1] == "SIGKILL":
        description = (
            "A worker was killed (SIGKILL), probably because memory ran out. Use fewer jobs"
        )
    elif signal is not None:
        description = (
            f"A worker crashed ({signal[1]}) in the model or in a library that it uses"
        )
    elif exit_code is not None:
        description = (
            f"A worker ended its process (exit code {exit_code[1]}) in the middle of a run"
        )
    elif type(cause).__name__ in {"ActorDiedError", "WorkerCrashedError", "OutOfMemoryError"}:
        description = (
            "A worker of Ray died: it was killed, ran out of memory, or ended its process"
        )
    elif type(cause).__name__ in {"KilledWorker", "FutureCancelledError", "CancelledError"}:
        description = (
            "Workers of Dask died: killed, out of memory, or ended by the model itself"
        )
    else:
        description = f"The workers gave no result: {one_line(cause)}"
    return WorkerError(f"{description}. {RESUME_HINT}")
