"""Run a gate's measurement in a process that forks quickly.

Forking copies a process's tables of memory, and scientific packages make them ten times as
long. Costs of pure events need none of these packages, so this process puts empty ones in
their place, before anything imports them:

    python -m assurance.slim kill "M17 forget to charge" "" ""
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from assurance.entropy import ENTROPY

HEAVY = {"dp_accounting", "opendp", "polars", "pyarrow", "randomgen", "scipy", "sklearn"}


def nothing(name: str) -> type:
    """A class by that name, in which every name is such a class."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing(name, (), {})


class Nothing(type):
    """Metaclass of empty classes that return a class for any attribute."""

    def __getattr__(cls, name: str) -> type:
        return nothing(name)

    def __iter__(cls) -> Iterator[type]:
        return iter(())

    def __call__(cls, *_: object, **__: object) -> type:
        return cls


class Empty(MetaPathFinder, Loader):
    """Finds, in place of heavy packages, modules in which every name is an empty class."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for heavy packages and what is inside them."""
        heavy = fullname.partition(".")[0] in HEAVY
        return ModuleSpec(fullname, self, is_package=True) if heavy else None

    def exec_module(self, module: ModuleType) -> None:
        """Let every name be there."""
        module.__getattr__ = nothing  # type: ignore[method-assign]


def measured(gate: str, subject: str, *, long: bool) -> str:
    """Measure one subject of a gate in such a process; the correct one has no name."""
    fresh = "fresh" if os.urandom != ENTROPY.draw else ""
    settings = [gate, subject, "long" if long else "", fresh]
    command = [sys.executable, "-m", "assurance.slim", *settings]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or done.stderr:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    assert done.returncode == 0, done.stdout.strip()
    return done.stdout.strip()


def main(gate: str, subject: str, long: str = "", fresh: str = "") -> int:
    """Measure one subject of a gate: its figure, or what is broken, on stdout."""
    if not fresh:
        ENTROPY.install()
    sys.meta_path.insert(0, Empty())
    module = importlib.import_module(f"assurance.gate_{gate}")
    subjects = {"": module.CORRECT, **module.MUTANTS}
    try:
        with ENTROPY.named(f"{gate}: {subject}"):
            print(module.measure(subjects[subject], long=bool(long)))
    except AssertionError as broken:
        print(broken)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
