"""Change single lines of the release path at random and see whether a test notices.

    python -m tests.tools.mutate --minutes 60   # continue where the last run stopped
    python -m tests.tools.mutate --summary      # score and survivors so far, in Markdown

Every place where an operator can be changed is a mutant: comparisons, arithmetic, constants,
``and`` and ``or``, conditions negated, statements dropped, ``return None`` instead of a value.
They are tested in an order shuffled by a fixed seed, so the first ones are a random sample of
all, and their score estimates that of all, with Wilson's interval.

A mutant is written into a copy of the repository. The tests that entered the block of the
changed line in the last ``make check`` (``build/branches.npz``) run there, those of the
nearest module that enter little else first; a mutant that survives the first ``--most`` meets
up to ten times as many. A mutant is killed by the first failure, or by not ending in time. In
the end the tests that killed run on the unchanged copy, so that no test is counted that fails
anyway.

Outcomes are lines of ``build/mutants.jsonl``; a line is used as long as its file is the same.
"""

import argparse
import ast
import copy
import hashlib
import importlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.tools.branches import RESULT, ROOT, Result, files, sources

NOTES = ROOT / "build" / "mutants.jsonl"
COPIED = ["src", "tests", "assurance", "examples", "docs", "benchmarks"]
# Imported once, before each mutant is tried in a fork of this process. Not polars or pyarrow:
# their threads do not survive a fork.
PRELOADED = ["dp_accounting", "numpy", "opendp.prelude", "scipy.optimize"]
PRELOADED += ["scipy.stats", "sklearn.linear_model", "torch", "torch.func", "typer", "rich"]

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
SWAPPED = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all"}
SWAPPED |= {"all": "any", "minimum": "maximum", "maximum": "minimum"}
FURTHER = 10  # so many times as many tests run on a mutant that the nearest ones do not kill
BROKEN, NO_TESTS = 70, 5  # exit codes, the second of pytest


# ---------------------------------------------------------------- mutants


@dataclass(frozen=True)
class Mutant:
    """One change of one file, by offsets into its bytes."""

    file: str
    digest: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.file, self.digest, self.start, self.new

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}:{self.line}: {self.kind}: `{old}` → `{new}`"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """The ways to change a node: a name, what is replaced, and by what."""
    match node:
        case ast.Compare(ops=[only]) if type(only) in COMPARISONS:
            yield "comparison", node, _with(node, ops=[COMPARISONS[type(only)]()])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", node, _with(node, op=ARITHMETIC[type(op)]())
        case ast.AugAssign(op=op):
            yield "dropped", node, ast.Pass()
            if type(op) in ARITHMETIC:
                yield "arithmetic", node, _with(node, op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            other = ast.And() if isinstance(op, ast.Or) else ast.Or()
            yield "boolean", node, _with(node, op=other)
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", node, node.operand
        case ast.UnaryOp(op=ast.USub()):
            yield "arithmetic", node, node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", node, ast.Constant(2 * value if value else 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield "function", node, _with(node, func=ast.Name(SWAPPED[name]))
        case ast.Call(func=ast.Attribute(attr=name)) if name in SWAPPED:
            other = ast.Attribute(node.func.value, SWAPPED[name])
            yield "function", node, _with(node, func=other)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp | ast.Constant):
                yield "boolean", test, ast.UnaryOp(ast.Not(), test)
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield "dropped", node, ast.Pass()
        case ast.Return(value=ast.expr(value=value)) if value is not None:
            yield "return", node, ast.Return(ast.Constant(None))
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield "return", node, ast.Return(ast.Constant(None))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that compute: neither annotations nor decorators, nor the text of an error."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(tree, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from statements(child)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    text = path.read_bytes()
    digest = hashlib.sha256(text).hexdigest()[:16]
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in statements(ast.parse(text)):
        for kind, place, other in changes(node):
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            new = ast.unparse(ast.fix_missing_locations(other))
            new = f"({new})" if isinstance(other, ast.expr) else new
            yield Mutant(
                str(path.relative_to(ROOT)),
                digest,
                place.lineno,
                kind,
                start,
                end,
                text[start:end].decode(),
                new,
            )


@cache
def every_mutant(seed: int) -> list[Mutant]:
    """All mutants in the order in which they are tried."""
    found = [mutant for path in files() for mutant in mutants_of(path)]
    random.Random(seed).shuffle(found)
    return found


# ---------------------------------------------------------------- tests


def nearest_tests(mutant: Mutant, result: Result, most: int) -> list[str]:
    """Tests that enter the block of a line; first those nearby that enter little else."""
    source = sources()[str(ROOT / mutant.file)]
    around = [
        (block.last - block.first, number)
        for number, block in enumerate(source.blocks, source.start)
        if block.first <= mutant.line <= block.last
    ]
    inside = set(range(source.start, source.start + len(source.blocks)))
    wanted = {min(around)[1]} if around else inside
    entered = {name: set(found.tolist()) for name, found in result.tests.items()}
    # Blocks that are entered during imports and parametrization concern every test of a file.
    imported = entered.pop("", set())
    early = not around or bool(wanted & imported)
    place = set(Path(mutant.file).with_suffix("").parts)

    def distance(name: str) -> tuple[bool, int, int, str]:
        parts = Path(name.split("::")[0]).with_suffix("").parts
        shared = place & {part.removeprefix("test_") for part in parts}
        return not wanted & entered[name], -len(shared), len(entered[name]), name

    names = [name for name, found in entered.items() if (inside if early else wanted) & found]
    return sorted(names, key=distance)[:most]


class FirstFailure:
    """Remembers which test failed first."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.name:
            self.name = f"{report.nodeid} (collection)"


def run_tests(folder: Path, tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """Run tests in a fork of this process; the outcome, and which of them failed first."""
    note = folder / "first-failure"
    note.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = BROKEN
        try:
            os.setpgid(0, 0)
            code = _in_child(folder, tests, note)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    with suppress(OSError):
        os.setpgid(child, child)
    deadline = time.monotonic() + seconds
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # with whatever the tests have started
    if not ended:
        os.waitpid(child, 0)
        return "timed out", ""
    code = os.waitstatus_to_exitcode(status)
    first = note.read_text(encoding="utf-8") if note.exists() else ""
    if code in (BROKEN, NO_TESTS):
        text = (folder / "log").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"No test was run: {text[-2000:]}")
    return ("survived", "") if code == 0 else ("killed", first or f"exit code {code}")


def _in_child(folder: Path, tests: Sequence[str], note: Path) -> int:
    """Run tests against the copy."""
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": f"{folder / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    own = str(ROOT)
    sys.path[:] = [str(folder / "src"), str(folder)] + [
        entry
        for entry in sys.path
        if entry and not entry.startswith(own + os.sep + "src") and entry != own
    ]
    for name in [
        n for n in sys.modules if n.split(".")[0] in ("tests", "veracal", "assurance")
    ]:
        del sys.modules[name]
    with (folder / "log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    first = FirstFailure()
    options = ["-x", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    code = pytest.main([*options, "--tb=short", *tests], plugins=[first])
    note.write_text(first.name, encoding="utf-8")
    return int(code)


# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    by: str
    tests: int
    seconds: float


def read_outcomes() -> dict[tuple, Outcome]:
    """Outcomes that were noted, the last of each mutant."""
    if not NOTES.exists():
        return {}
    noted = [json.loads(line) for line in NOTES.read_text(encoding="utf-8").splitlines()]
    outcomes = [Outcome(**{**note, "mutant": Mutant(**note["mutant"])}) for note in noted]
    return {outcome.mutant.key: outcome for outcome in outcomes}


def note_outcome(outcome: Outcome) -> None:
    """Add a line to the file of outcomes."""
    NOTES.parent.mkdir(parents=True, exist_ok=True)
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")


def copy_repository(folder: Path) -> None:
    """Copy what tests read, without what was compiled."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy2(path, folder / path.name)


def try_mutant(
    mutant: Mutant, folder: Path, result: Result, most: int, limit: float
) -> Outcome:
    """Run the tests of one mutant."""
    start = time.monotonic()
    tests, tried = nearest_tests(mutant, result, FURTHER * most), 0
    if not tests:
        return Outcome(mutant, "survived", "", 0, 0.0)
    path = folder / mutant.file
    text = path.read_bytes()
    path.write_bytes(text[: mutant.start] + mutant.new.encode() + text[mutant.end :])
    try:
        for part in (tests[:most], tests[most:]):
            if part:
                outcome, by = run_tests(folder, part, limit)
                tried += len(part)
            if outcome != "survived":
                break
    finally:
        path.write_bytes(text)
    return Outcome(mutant, outcome, by, tried, round(time.monotonic() - start, 1))


def wilson(hits: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95% interval for a proportion."""
    middle = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return middle - half, middle + half


def summary(seed: int) -> Iterator[str]:
    """Score and survivors, in Markdown."""
    noted = read_outcomes()
    tried = [noted[mutant.key] for mutant in every_mutant(seed) if mutant.key in noted]
    if not tried:
        yield "No mutant of the present code was tried."
        return
    counts = Counter(outcome.outcome for outcome in tried)
    killed = counts["killed"] + counts["timed out"]
    low, high = wilson(killed, len(tried))
    yield (
        f"{killed} of {len(tried)} mutants killed ({counts['timed out']} of them by not ending"
        f" in time): {100 * killed / len(tried):.1f}%, 95% interval {100 * low:.1f}% to"
        f" {100 * high:.1f}%; {len(every_mutant(seed))} mutants exist."
    )
    for outcome in tried:
        if outcome.outcome not in ("killed", "timed out"):
            yield f"- {outcome.mutant} ({outcome.outcome}, {outcome.tests} tests)"


def main() -> int:
    """Try mutants for a while."""
    parser = argparse.ArgumentParser(description="mutation run over the release path")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="order of the mutants")
    parser.add_argument("--most", type=int, default=60, help="tests that run first")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one mutant")
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    parser.add_argument("--summary", action="store_true", help="print what is known")
    arguments = parser.parse_args()
    if not arguments.summary:
        run(arguments)
    print(*summary(arguments.seed), sep="\n")
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Try mutants until the time is over, then check the tests that killed."""
    result = Result.read(RESULT)
    sources()
    end = time.monotonic() + 60 * arguments.minutes
    done = read_outcomes()
    if arguments.again:
        done = {key: outcome for key, outcome in done.items() if outcome.outcome == "killed"}
    for name in PRELOADED:
        importlib.import_module(name)
    fresh: list[Outcome] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        copy_repository(folder)
        for mutant in every_mutant(arguments.seed):
            if time.monotonic() > end:
                break
            if mutant.key in done:
                continue
            outcome = try_mutant(mutant, folder, result, arguments.most, arguments.limit)
            note_outcome(outcome)
            fresh.append(outcome)
            print(f"{outcome.outcome:9} {outcome.seconds:6.1f} s  {mutant}", flush=True)
        check_killers(fresh, folder)


def check_killers(fresh: Sequence[Outcome], folder: Path) -> None:
    """Withdraw what was killed by a test that fails on the unchanged code, too."""
    names = {
        outcome.by for outcome in fresh if "::" in outcome.by and "(coll" not in outcome.by
    }
    while names:
        outcome, by = run_tests(folder, sorted(names), 3600)
        if outcome == "survived":
            return
        assert by in names, f"the tests that killed do not run on the unchanged code: {by}"
        names.remove(by)
        for one in fresh:
            if one.by == by:
                note_outcome(Outcome(one.mutant, "invalid", by, one.tests, one.seconds))


if __name__ == "__main__":
    sys.exit(main())
