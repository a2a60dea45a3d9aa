"""Run the gates, each on its mutants first.

A gate is a module ``assurance/gate_<something>.py`` with

``NAME``
    what the gate is called (by default, the end of the module's name);
``CORRECT``
    the subject it protects: a function, a class, whatever ``run`` understands;
``MUTANTS``
    a dict from a short description to a subject that is broken in that way;
``run(subject, *, long)``
    raises ``AssertionError`` when the subject breaks the promise, otherwise returns one line
    with the figure it measured;
``LONG``
    true for a gate that only runs with ``--long`` (by default it always runs);
``SECONDS``
    about how many it takes, if they are many: with several jobs the slowest start first, so
    that none is left alone at the end.

``REAL_NOISE``
    true for a gate about the distribution of discrete noise, which OpenDP then draws: it states
    how rarely the correct subject fails, and each mutant survives, by chance.

Every subject draws repeatable entropy and noise, named after the gate and the mutant: what is
caught in one run is caught in the next. With ``--fresh-entropy``, and in long runs, the
system's entropy and OpenDP's noise are drawn instead.
"""

import argparse
import importlib.util
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from unittest import mock

from assurance import servers
from assurance.entropy import ENTROPY, seed_global_generators
from assurance.repeatable_noise import NOISE

HERE = Path(__file__).parent
MEMORY, ROOM = "/dev/shm", 4 * 2**30  # a folder in memory, and bytes that must be free there


@dataclass(frozen=True)
class Verdict:
    """What one gate found."""

    name: str
    caught: int
    mutants: int
    figure: str
    problems: tuple[str, ...]
    seconds: float
    cpu: float


def main(arguments: Sequence[str] | None = None, *, folder: Path = HERE) -> int:
    """Run the gates of ``folder`` and return the exit code: 0 only if every one passed."""
    options = parser().parse_args(arguments)
    if not __debug__:
        print("Python runs with -O, which removes assertions: run the gates without it.")
        return 2
    paths = sorted(folder.glob("gate_*.py"))
    gates = {name_of(gate): gate for gate in discover(paths, options.gate)}
    if options.list:
        print(listing(gates), end="")
        return 0
    options.fresh_entropy |= options.long
    if not options.fresh_entropy:
        ENTROPY.install()
        NOISE.install(importlib.import_module("veracal.mechanisms.discrete_noise"))
    chosen = options.gate or [
        name for name, gate in gates.items() if is_selected(gate, options.long)
    ]
    if unknown := [name for name in chosen if name not in gates]:
        print(
            f"No gate is called {', '.join(unknown)}. There are: {', '.join(gates) or 'none'}."
        )
        return 2

    # Files of long runs may be larger than memory.
    with nullcontext() if options.long else files_in_memory():
        failed = judge_all({name: gates[name] for name in chosen}, options)
    if waiting := len(paths) - len(chosen):
        print(f"Not run: {waiting} (ask for long gates with --long).")
    if not chosen:
        print("No gate ran, and a run that checks nothing does not pass.")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return int(failed > 0 or not chosen)


def judge_all(gates: dict[str, ModuleType], options: argparse.Namespace) -> int:
    """Print what the gates find, and return how many failed."""
    failed = caught = mutants = 0
    cpu = 0.0
    print(row("gate", "mutants", "seconds", "CPU", "figure"), flush=True)
    for verdict in verdicts(gates, options):
        failed += bool(verdict.problems)
        caught, mutants = caught + verdict.caught, mutants + verdict.mutants
        cpu += verdict.cpu
        show(verdict)
    print(f"{cpu:.0f} seconds of CPU")
    print(f"{caught} of {mutants} mutants caught")
    return failed


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(prog="python -m assurance", description="Run the gates.")
    result.add_argument("--long", action="store_true", help="long gates and long settings")
    result.add_argument(
        "--gate", action="append", metavar="NAME", help="only this one; repeats"
    )
    result.add_argument("--jobs", type=int, default=1, metavar="N", help="gates at a time")
    result.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the gates in an order drawn by this seed",
    )
    result.add_argument(
        "--fresh-entropy",
        action="store_true",
        help="draw the system's entropy and OpenDP's noise, as --long does",
    )
    result.add_argument(
        "--list", action="store_true", help="print every gate and mutant as Markdown, run none"
    )
    return result


@contextmanager
def files_in_memory() -> Iterator[None]:
    """Let temporary files, also of processes that gates start, lie where no disk is waited for.

    Gates sync thousands of times, which takes minutes on a busy disk and proves nothing. Those
    about a disk name theirs.
    """
    before = tempfile.tempdir
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        yield
        return
    with mock.patch.dict(os.environ, TMPDIR=MEMORY):
        tempfile.tempdir = MEMORY
        try:
            yield
        finally:
            tempfile.tempdir = before


def discover(paths: Sequence[Path], chosen: Sequence[str] | None) -> Iterator[ModuleType]:
    """Import gate modules in the order of their names: the chosen ones, if files say which."""
    named = {path.stem.removeprefix("gate_"): path for path in paths}
    if chosen and all(name in named for name in chosen):
        paths = [named[name] for name in dict.fromkeys(chosen)]
    for path in paths:
        # Under its usual name, so that a gate may be imported elsewhere and stay one module.
        name = f"{path.parent.name}.{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        yield module


def name_of(gate: ModuleType) -> str:
    """The gate's own name, or the end of its module's."""
    return getattr(gate, "NAME", gate.__name__.rpartition("gate_")[2])


def is_selected(gate: ModuleType, long: bool) -> bool:
    """Whether a run that names no gate includes this one."""
    return long or not getattr(gate, "LONG", False)


def listing(gates: dict[str, ModuleType]) -> str:
    """Every gate with the names of its mutants, sorted, as a page of Markdown."""
    total = sum(len(gate.MUTANTS) for gate in gates.values())
    text = "# Gates and their mutants\n\n"
    text += "Written by `python -m assurance --list > assurance/MUTANTS.md`.\n\n"
    text += f"{total} mutants of {len(gates)} gates.\n"
    for name in sorted(gates):
        long = ", long runs only" if getattr(gates[name], "LONG", False) else ""
        text += f"\n## `{name}`: {len(gates[name].MUTANTS)}{long}\n\n"
        text += "".join(f"- {which}\n" for which in sorted(gates[name].MUTANTS))
    return text


def verdicts(gates: dict[str, ModuleType], options: argparse.Namespace) -> Iterator[Verdict]:
    """Yield the verdicts of the gates in their order, or as they end if run in parallel.

    Parallel gates start with the slowest, each in its own process: memory that one gate
    leaves or frees would otherwise be measured by the next.
    """
    waiting = list(gates)
    if options.jobs > 1:
        waiting.sort(key=lambda name: -getattr(gates[name], "SECONDS", 0))
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(waiting)
    if options.jobs <= 1:
        for name in waiting:
            yield judge(name, gates[name], options)
        return
    running: dict[Connection, str] = {}
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name = waiting.pop(0)
            running[judge_in_child(name, gates[name], options)] = name
        for pipe in wait(list(running)):
            assert isinstance(pipe, Connection)
            name = running.pop(pipe)
            try:
                yield pipe.recv()
            except EOFError:
                yield Verdict(
                    name, 0, len(gates[name].MUTANTS), "", ("its process died",), 0, 0
                )


def judge_in_child(name: str, gate: ModuleType, options: argparse.Namespace) -> Connection:
    """Judge a gate in a child; what its verdict is read from."""

    def tell() -> None:
        theirs.send(judge(name, gate, options))

    context = multiprocessing.get_context("fork")  # modules cannot be sent
    ours, theirs = context.Pipe(duplex=False)
    context.Process(target=tell).start()
    theirs.close()
    return ours


def judge(name: str, gate: ModuleType, options: argparse.Namespace) -> Verdict:
    """Run one gate on its mutants, then on the correct subject."""
    start, start_cpu = time.perf_counter(), cpu_seconds()
    outcomes = {
        which: attempt(gate, mutant, f"{name}: {which}", options)
        for which, mutant in gate.MUTANTS.items()
    }
    problems = [] if outcomes else ["it has no mutants, so nothing shows that it can fail"]
    for which, (held, said) in outcomes.items():
        if held is None:
            problems.append(f"on the mutant '{which}' it broke down instead of judging: {said}")
        elif held:
            problems.append(f"the mutant '{which}' survived: {said}")
    held, figure = attempt(gate, gate.CORRECT, name, options)
    if not held:
        problems.append(
            f"the correct subject {'broke' if held is False else 'crashed'}: {figure}"
        )
    servers.stop()
    caught = sum(verdict is False for verdict, _ in outcomes.values())
    seconds = time.perf_counter() - start
    cpu = cpu_seconds() - start_cpu
    return Verdict(name, caught, len(outcomes), figure, tuple(problems), seconds, cpu)


def cpu_seconds() -> float:
    """What this process and its children that have ended took: the same on a busy machine."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def attempt(
    gate: ModuleType, subject: object, label: str, options: argparse.Namespace
) -> tuple[bool | None, str]:
    """Whether the subject kept its promise (None: no verdict), and what was said."""
    seed_global_generators()
    real = options.fresh_entropy or getattr(gate, "REAL_NOISE", False)
    try:
        with (
            nullcontext() if options.fresh_entropy else ENTROPY.named(label),
            NOISE.named(label, real=real),
        ):
            return True, str(gate.run(subject, long=options.long))
    except AssertionError as broken:
        return False, one_line(broken) or "a bare assertion"
    except Exception as crash:  # a crash is no verdict: report it and go on to the next
        return None, f"{type(crash).__name__}: {one_line(crash)}"


def one_line(error: Exception) -> str:
    """The first line of what the error says."""
    return str(error).strip().partition("\n")[0]


def row(gate: str, mutants: str, seconds: str, cpu: str, figure: str) -> str:
    """One line of the table."""
    return f"{gate:<28} {mutants:>8} {seconds:>8} {cpu:>8}  {figure}"


def show(verdict: Verdict) -> None:
    """Print a gate's line, and below it whatever went wrong."""
    caught = f"{verdict.caught}/{verdict.mutants}"
    figure = verdict.figure if not verdict.problems else "FAILED"
    print(
        row(verdict.name, caught, f"{verdict.seconds:.1f}", f"{verdict.cpu:.1f}", figure),
        flush=True,
    )
    for problem in verdict.problems:
        print(f"    {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
