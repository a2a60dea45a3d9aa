"""Run a function in a fork of a process that has imported everything and run nothing.

A new interpreter for each call would import the library each time. A fork of the gate's own
process would inherit its memory, and possibly a lock that a thread of Arrow holds. The forked
process uses the system's entropy, not a repeatable one.
"""

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PATIENCE = 600  # seconds, which only a deadlock takes


def run_in_fork(work: Callable[..., Any], *arguments: Any, cpu: int | None = None) -> Any:
    """What a function of a module returns there; it may take so many seconds of CPU.

    Raises
    ------
    ChildProcessError
        If the process ended without a result, or ended itself to keep the limit.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, cpu, work, *arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(PATIENCE):
            process.kill()
            raise ChildProcessError(f"no result after {PATIENCE} s")
        return receiver.recv()
    except EOFError as error:
        process.join()
        raise ChildProcessError(f"died with code {process.exitcode}") from error
    finally:
        process.join()
        receiver.close()


def stop() -> None:
    """End the process that forks, if there is one: its seconds of CPU are counted only then."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def peak_memory() -> int:
    """Most bytes this process has had resident; getrusage would start from its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _work(
    sender: Connection, cpu: int | None, work: Callable[..., Any], *arguments: Any
) -> None:
    if cpu is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    sender.send(work(*arguments))
