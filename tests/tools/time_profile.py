"""Where the time of the test suite goes: a pytest plugin, and a command that sums it up.

    python -m pytest -n 2 -p tests.tools.time_profile --time-profile build/profile ...
    python -m tests.tools.time_profile build/profile

Time is processor time, of the test and of the processes it started and waited for, so that the
table of a busy machine is that of a quiet one. Processes that are started are counted by
Python's audit events; modules that a test is the first to import are counted, too.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest


def processor_seconds() -> float:
    """User and system time of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Profile:
    """Costs of the tests and fixtures of one pytest process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tests: dict[str, dict[str, float]] = {}
        self.fixtures: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.starts = 0
        self.began = processor_seconds(), time.perf_counter(), len(sys.modules)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        # Popen and fork cover what the others do on their behalf.
        if event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
            self.starts += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Record the time of a test, with the fixtures that it is the first to request."""
        cpu, wall, starts = processor_seconds(), time.perf_counter(), self.starts
        modules = len(sys.modules)
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] = {
                "cpu": processor_seconds() - cpu,
                "wall": time.perf_counter() - wall,
                "processes": self.starts - starts,
                "modules": len(sys.modules) - modules,
            }

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        """Note what a fixture costs."""
        cpu = processor_seconds()
        try:
            return (yield)
        finally:
            entry = self.fixtures[f"{fixturedef.baseid}::{fixturedef.argname}"]
            entry[0] += processor_seconds() - cpu
            entry[1] += 1

    def pytest_sessionfinish(self) -> None:
        """Write what was noted."""
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {
            "tests": self.tests,
            "fixtures": self.fixtures,
            "total": {
                "cpu": processor_seconds(),
                "before": self.began[0],
                "wall": time.perf_counter() - self.began[1],
            },
        }
        (self.folder / f"{worker}.json").write_text(json.dumps(told))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the folder."""
    parser.addoption("--time-profile", metavar="FOLDER", help="where to write costs of tests")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to note costs, if a folder is given."""
    if folder := config.getoption("--time-profile"):
        config.pluginmanager.register(Profile(Path(folder)))


def summarize(folder: Path, rows: int) -> str:
    """Tables of the costliest files and fixtures, in Markdown."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    fixtures: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    outside = 0.0
    for path in sorted(folder.glob("*.json")):
        noted = json.loads(path.read_text())
        inside = 0.0
        for name, cost in noted["tests"].items():
            files[name.partition("::")[0]].update({**cost, "tests": 1})
            inside += cost["cpu"]
        for name, (cpu, times) in noted["fixtures"].items():
            fixtures[name][0] += cpu
            fixtures[name][1] += times
        if path.stem != "main" or noted["tests"]:
            outside += noted["total"]["cpu"] - inside
    total = sum(files.values(), Counter())
    lines = ["| file | tests | CPU s | processes | modules |", "|---|---:|---:|---:|---:|"]
    ranked = sorted(files.items(), key=lambda pair: -pair[1]["cpu"])
    rest = sum((cost for _, cost in ranked[rows:]), Counter())
    shown = [*ranked[:rows], (f"{len(ranked[rows:])} other files", rest), ("**all**", total)]
    for name, cost in shown:
        lines.append(
            f"| {name} | {cost['tests']:.0f} | {cost['cpu']:.1f} | {cost['processes']:.0f} "
            f"| {cost['modules']:.0f} |"
        )
    lines.append(f"| collection and start of the workers | | {outside:.1f} | | |")
    lines += ["", "| fixture | times | CPU s |", "|---|---:|---:|"]
    for name, (cpu, times) in sorted(fixtures.items(), key=lambda pair: -pair[1][0])[:rows]:
        lines.append(f"| {name} | {times:.0f} | {cpu:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Sum up what tests cost.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=15)
    options = parser.parse_args()
    print(summarize(options.folder, options.rows))


if __name__ == "__main__":
    main()
