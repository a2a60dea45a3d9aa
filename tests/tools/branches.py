"""Measure which branches of the release path the tests take, at almost no cost.

    python -m pytest -p tests.tools.branches     # measure: writes build/branches.npz
    python -m tests.tools.branches               # the table, compared with its floors
    python -m tests.tools.branches --missed      # branches that no test takes

The release path is the code that decides what leaves the records and what is charged for it:
the files that ``[tool.veracal.release-path]`` in ``pyproject.toml`` lists. While the tests run,
these files are compiled with one assignment at the start of every function and of every outcome
of a decision; it sets a byte. A tracer would measure the same, but slows the whole interpreter:
with coverage.py on Python 3.11 the tests of the accountant took half as long again.

A *branch* is one outcome of a decision: the body and the other side of an ``if``; the body and
the end of a loop; each case of a ``match`` and the lack of one; each ``except``. Conditional
expressions and boolean operators are not divided further. Processes that a test starts count
nothing, nor do children that it forks.

The result names, for each test, the branches and functions that it entered. So one run says
what the full suite reaches, what ``make test`` reaches of it, and which tests can notice that a
line changes (``tests/tools/mutate.py``). What a shared fixture enters is attributed to the test
that was the first to request it, which makes the share of ``make test`` smaller, never larger.
"""

import argparse
import ast
import hashlib
import importlib.abc
import importlib.machinery
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "build" / "branches.npz"
NAME = "__entered__"


# ---------------------------------------------------------------- instrumentation


@dataclass(frozen=True)
class Block:
    """Statements that are entered together: a function, or one outcome of a decision."""

    line: int
    what: str
    first: int  # lines of its body; an outcome without statements has none
    last: int

    @property
    def is_branch(self) -> bool:
        return self.what != "def"


class Instrument(ast.NodeTransformer):
    """Begin every function and every outcome of a decision with an assignment."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.blocks: list[Block] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Visit statements; expressions contain none."""
        return node if isinstance(node, ast.expr) else super().visit(node)

    def probe(self, line: int, what: str, body: Sequence[ast.stmt], at: ast.AST) -> ast.stmt:
        """An assignment that says that a new block was entered."""
        first, last = (body[0].lineno, body[-1].end_lineno) if body else (1, 0)
        number = self.start + len(self.blocks)
        self.blocks.append(Block(line, what, first, last or first))
        where = dict(lineno=at.lineno, col_offset=at.col_offset)
        where |= dict(end_lineno=at.lineno, end_col_offset=at.col_offset)
        entered = ast.Name(NAME, ast.Load(), **where)
        index = ast.Constant(number, **where)
        item = ast.Subscript(entered, index, ast.Store(), **where)
        return ast.Assign([item], ast.Constant(1, **where), **where)

    def outcome(self, node: ast.AST, what: str, body: list[ast.stmt]) -> list[ast.stmt]:
        """One outcome of a decision."""
        at = body[0] if body else node
        return [self.probe(node.lineno, what, body, at), *body]

    def visit_FunctionDef(self, node):
        documented = ast.get_docstring(node, clean=False) is not None
        probe = self.probe(node.lineno, "def", node.body, node.body[0])
        self.generic_visit(node)
        node.body.insert(int(documented), probe)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_If(self, node):
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node
        body = self.outcome(node, "if true", node.body)
        other = self.outcome(node, "if false", node.orelse)
        node = self.generic_visit(node)
        node.body.insert(0, body[0])
        node.orelse.insert(0, other[0])
        return node

    def _loop(self, node, *, ends=True):
        body = self.outcome(node, "loop body", node.body)
        end = self.outcome(node, "loop end", node.orelse) if ends else []
        node = self.generic_visit(node)
        node.body.insert(0, body[0])
        node.orelse[:0] = end[:1]
        return node

    def visit_For(self, node):
        return self._loop(node)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_While(self, node):
        return self._loop(node, ends=not isinstance(node.test, ast.Constant))

    def visit_Match(self, node):
        probes = [self.outcome(case.pattern, "case", case.body)[0] for case in node.cases]
        last = node.cases[-1]
        caught = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
        none = [] if caught and not last.guard else self.outcome(node, "no case", [])
        self.generic_visit(node)
        for case, probe in zip(node.cases, probes, strict=True):
            case.body.insert(0, probe)
        if none:
            case = ast.match_case(pattern=ast.MatchAs(), guard=None, body=none)
            node.cases.append(ast.copy_location(ast.fix_missing_locations(case), node))
        return node

    def visit_ExceptHandler(self, node):
        probe = self.outcome(node, "except", node.body)[0]
        self.generic_visit(node)
        node.body.insert(0, probe)
        return node


@dataclass(frozen=True)
class Source:
    """A file of the release path: its blocks, and the number of the first."""

    path: Path
    start: int
    blocks: tuple[Block, ...]
    tree: ast.Module


def instrumented(path: Path, text: bytes, start: int) -> Source:
    """Instrument a file whose first block has the number ``start``."""
    instrument = Instrument(start)
    tree = instrument.visit(ast.parse(text))
    return Source(path, start, tuple(instrument.blocks), tree)


def settings() -> dict:
    """What pyproject.toml says about the release path."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["tool"]["veracal"]["release-path"]


def files() -> list[Path]:
    """Files of the release path."""
    found: set[Path] = set()
    for pattern in settings()["files"]:
        matches = {path for path in ROOT.glob(pattern) if path.suffix == ".py"}
        assert matches, f"{pattern} in pyproject.toml matches no file"
        found |= matches
    return sorted(found)


@cache
def sources() -> dict[str, Source]:
    """The release path with its blocks numbered, the same in every process."""
    known: dict[str, Source] = {}
    number = 0
    for path in files():
        source = instrumented(path, path.read_bytes(), number)
        known[str(path)] = source
        number += len(source.blocks)
    return known


def digest() -> str:
    """A hash of the release path, by which a result is known to be about the present code."""
    whole = hashlib.sha256()
    for path in files():
        whole.update(path.read_bytes())
    return whole.hexdigest()


class Loader(SourceFileLoader):
    """Loads the instrumented code, and keeps it out of the cache of compiled modules."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(sources()[self.path].tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, NAME, ENTERED)
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds what Python finds, and changes the loader for the release path."""

    def find_spec(self, fullname, path=None, target=None) -> ModuleSpec | None:
        if fullname.split(".")[0] != "veracal":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin in sources():
            spec.loader = Loader(fullname, spec.origin)
        return spec


# ---------------------------------------------------------------- pytest

ENTERED = bytearray()


class Recorder:
    """Notes in this process which blocks each test enters."""

    def __init__(self) -> None:
        self.tests: dict[str, bytes] = {}
        self.full: set[str] = set()

    def note(self, name: str) -> None:
        """Attribute what was entered since the last note."""
        found = np.flatnonzero(np.frombuffer(ENTERED, np.uint8)).astype(np.uint16)
        ENTERED[:] = bytes(len(ENTERED))
        earlier = np.frombuffer(self.tests.get(name, b""), np.uint16)
        self.tests[name] = np.union1d(earlier, found).astype(np.uint16).tobytes()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        """Attribute to a test what it enters; what was entered before is of all tests."""
        self.note("")
        if item.get_closest_marker("full"):
            self.full.add(item.nodeid)
        try:
            return (yield)
        finally:
            self.note(item.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the notes from a worker to the process that started it."""
        self.note("")
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["branches"] = (self.tests, sorted(self.full))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """Take in the notes of a worker."""
        tests, full = getattr(node, "workeroutput", {}).get("branches", ({}, ()))
        self.full.update(full)
        for name, found in tests.items():
            earlier = np.frombuffer(self.tests.get(name, b""), np.uint16)
            both = np.union1d(earlier, np.frombuffer(found, np.uint16))
            self.tests[name] = both.astype(np.uint16).tobytes()

    def pytest_terminal_summary(self, terminalreporter, config: pytest.Config) -> None:
        """Write the result."""
        path = Path(config.getoption("branches"))
        result = Result.of(self.tests, self.full)
        result.write(path)
        rate, share = result.rates()
        terminalreporter.write_line(
            f"{rate:.2f}% of the branches of the release path were taken, {share:.2f}% of them"
            f" by tests without the marker `full`; see {path}."
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Instrument what is imported from here on; pytest has loaded no conftest yet."""
    parser.addoption("--branches", metavar="FILE", default=str(RESULT), help="result file")
    install()


def pytest_configure(config: pytest.Config) -> None:
    """Record what this process enters."""
    config.pluginmanager.register(Recorder(), "branches-recorder")


def install() -> None:
    """Instrument what is imported from now on."""
    early = sorted(name for name in sys.modules if name.split(".")[0] == "veracal")
    assert not early, f"{early[0]} was imported before its branches could be counted"
    ENTERED.extend(bytes(sum(len(source.blocks) for source in sources().values())))
    assert len(ENTERED) < 2**16
    sys.meta_path.insert(0, Finder())


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class Result:
    """Blocks that each test entered."""

    digest: str
    tests: dict[str, np.ndarray]
    full: frozenset[str]

    @classmethod
    def of(cls, tests: dict[str, bytes], full: Iterable[str]) -> "Result":
        found = {name: np.frombuffer(found, np.uint16) for name, found in tests.items()}
        return cls(digest(), found, frozenset(full))

    def write(self, path: Path) -> None:
        """Write a file that ``read`` reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            digest=np.array(self.digest),
            names=np.array(list(self.tests)),
            full=np.array(sorted(self.full), dtype=str),
            ends=np.cumsum([len(found) for found in self.tests.values()]),
            entered=np.concatenate(list(self.tests.values())),
        )

    @classmethod
    def read(cls, path: Path) -> "Result":
        """Read what ``write`` wrote, and refuse results of other code."""
        with np.load(path, allow_pickle=False) as file:
            if str(file["digest"]) != digest():
                raise ValueError(f"{path} is about other code: run `make check` again.")
            parts = np.split(file["entered"], file["ends"][:-1])
            tests = dict(zip(file["names"].tolist(), parts, strict=True))
            return cls(str(file["digest"]), tests, frozenset(file["full"].tolist()))

    def entered(self, *, quick: bool = False) -> np.ndarray:
        """Whether any test entered each block, or any that is not marked ``full``."""
        hits = np.zeros(sum(len(source.blocks) for source in sources().values()), bool)
        for name, found in self.tests.items():
            if not (quick and name in self.full):
                hits[found] = True
        return hits

    def rates(self) -> tuple[float, float]:
        """Branches taken, in percent of all, and the share of them that `make test` takes."""
        branch = np.array([b.is_branch for s in sources().values() for b in s.blocks])
        everything = (self.entered() & branch).sum()
        quick = (self.entered(quick=True) & branch).sum()
        return 100 * everything / branch.sum(), 100 * quick / max(1, everything)

    def table(self) -> Iterator[str]:
        """Branches by package, then the figures that have a floor."""
        hits, quick = self.entered().tolist(), self.entered(quick=True).tolist()
        counts: dict[str, Counter] = {}
        for source in sources().values():
            inside = source.path.relative_to(ROOT / "src" / "veracal")
            name = "/".join(inside.parts[: min(2, len(inside.parts) - 1)]) or inside.name
            count = counts.setdefault(name, Counter())
            for number, block in enumerate(source.blocks, source.start):
                if block.is_branch:
                    count.update(branches=1, taken=hits[number], quick=quick[number])
        yield f"{'':28}{'branches':>10}{'taken':>10}{'make test':>12}"
        for name, count in sorted(counts.items()):
            of = count["branches"] or 1
            yield (
                f"{name:28}{count['branches']:10}{100 * count['taken'] / of:9.1f}%"
                f"{100 * count['quick'] / of:11.1f}%"
            )
        rate, share = self.rates()
        total = sum(count["branches"] for count in counts.values())
        yield f"{'all':28}{total:10}{rate:9.1f}%{rate * share / 100:11.1f}%"
        yield f"The tests without the marker `full` take {share:.1f}% of the branches taken."

    def missed(self) -> Iterator[str]:
        """Branches that no test takes."""
        hits = self.entered()
        for source in sources().values():
            for number, block in enumerate(source.blocks, source.start):
                if block.is_branch and not hits[number]:
                    yield f"{source.path.relative_to(ROOT)}:{block.line}: {block.what}"


def main() -> int:
    """Print a result, and compare it with the floors in pyproject.toml."""
    parser = argparse.ArgumentParser(description="branches that the tests of a run have taken")
    parser.add_argument("result", nargs="?", type=Path, default=RESULT)
    parser.add_argument("--missed", action="store_true", help="list branches never taken")
    arguments = parser.parse_args()
    result = Result.read(arguments.result)
    print(*(result.missed() if arguments.missed else result.table()), sep="\n")
    low = [
        f"{name} is {rate:.2f}%, below its floor of {settings()[name]}%"
        for name, rate in zip(("taken", "share-of-make-test"), result.rates(), strict=True)
        if rate < settings()[name]
    ]
    print(*low, sep="\n")
    return bool(low)


if __name__ == "__main__":
    sys.exit(main())
