"""Run the full suite and the gates many times, with and without load, and report failures.

    python -m tests.tools.repeat_runs            # the missing ones of 10 suites, 5 gates
    python -m tests.tools.repeat_runs --summary  # the results so far, in Markdown

The first five of ten runs of the suite are as ``make check`` runs it. The other five have a
shuffled order and run beside a busy loop on each core; a run of the gates, shuffled as well, is
made at the same time, so that each is disturbed by the other, too. Every run that ended is one
line of ``build/repeat_runs.jsonl`` with its commit, and the command continues where it was
stopped. ``--any-commit`` counts runs of other commits, too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "build" / "repeat_runs.jsonl"
BUSY = "while True: pass"


@dataclass(frozen=True)
class Run:
    """One run of the suite or of the gates."""

    what: str
    number: int
    busy: bool

    def command(self, workers: int) -> list[str]:
        """The command line; a busy run is shuffled by its number."""
        if self.what == "suite":
            command = ["-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal"]
            command += ["-p", "no:benchmark", "-p", "no:cacheprovider"]
            command += ["-p", "tests.tools.branches"]
        else:
            command = ["-m", "assurance", "--jobs", str(workers)]
        return [
            sys.executable,
            *command,
            *(["--shuffle", str(self.number)] if self.busy else ()),
        ]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    what: str
    number: int
    busy: bool
    commit: str
    code: int
    seconds: float
    closing: str
    failures: tuple[str, ...]


def list_runs(suites: int, gates: int) -> list[list[Run]]:
    """Runs that are made at the same time: a quiet suite alone, a busy one with the gates."""
    quiet = suites - suites // 2
    pairs = [
        [
            *([Run("suite", quiet + number, busy=True)] if number <= suites // 2 else []),
            *([Run("gates", number, busy=True)] if number <= gates else []),
        ]
        for number in range(1, max(suites // 2, gates) + 1)
    ]
    return [*([Run("suite", number, busy=False)] for number in range(1, quiet + 1)), *pairs]


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep cores busy with loops that end with this process."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def make_runs(runs: Sequence[Run], commit: str, workers: int) -> Iterator[Outcome]:
    """Make runs at the same time; their outcomes in the order in which they end."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "VERACAL_NO_SKIPS": "1"}
    start = time.monotonic()
    with busy_cores(os.cpu_count() or 1 if runs[0].busy else 0):
        started = {}
        for run in runs:
            with log_path(run).open("wb") as log:
                started[run] = subprocess.Popen(
                    run.command(workers),
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        while started:
            time.sleep(0.5)
            for run in [run for run, process in started.items() if process.poll() is not None]:
                seconds = round(time.monotonic() - start, 1)
                yield read_outcome(run, commit, started.pop(run).returncode, seconds)


def log_path(run: Run) -> Path:
    """File of what a run prints."""
    return NOTES.parent / f"repeat_{run.what}_{run.number}.log"


def read_outcome(run: Run, commit: str, code: int, seconds: float) -> Outcome:
    """The outcome of a run that has ended, from its log."""
    lines = log_path(run).read_text(encoding="utf-8", errors="replace").splitlines()
    failures = [
        line for line in lines if re.match(r"(FAILED|ERROR) |    the (mutant|correct)", line)
    ]
    closing = next((line.strip("= ") for line in reversed(lines) if " passed" in line), "")
    return Outcome(
        **asdict(run),
        commit=commit,
        code=code,
        seconds=seconds,
        closing=closing,
        failures=tuple(failures),
    )


def read_outcomes(commit: str | None) -> list[Outcome]:
    """Recorded outcomes, of one commit or of all."""
    if not NOTES.exists():
        return []
    outcomes = [Outcome(**json.loads(line)) for line in NOTES.read_text().splitlines()]
    return [one for one in outcomes if commit is None or is_same(one.commit, commit)]


def is_same(noted: str, commit: str) -> bool:
    """Whether two abbreviations are of one commit: git adds digits as commits are added."""
    dirty = "-dirty"
    return noted.endswith(dirty) == commit.endswith(dirty) and commit.startswith(
        noted.removesuffix(dirty)
    )


def summarize(outcomes: Sequence[Outcome]) -> str:
    """A table in Markdown, with the number of failures below it."""
    lines = [
        "| run | busy loop on each core | commit | seconds | result |",
        "|---|---|---|---:|---|",
    ]
    for one in sorted(outcomes, key=lambda one: (one.what != "suite", one.number)):
        busy = "yes, shuffled" if one.busy else "no"
        result = one.closing or f"exit code {one.code}"
        which = f"{one.what} {one.number}"
        lines.append(f"| {which} | {busy} | {one.commit} | {one.seconds:.0f} | {result} |")
    failed = [one for one in outcomes if one.code]
    lines += ["", f"{len(outcomes)} runs, {len(failed)} with failures."]
    lines += [
        f"- {one.what} {one.number}: {failure}" for one in failed for failure in one.failures
    ]
    return "\n".join(lines)


def main() -> int:
    """Make the runs that are missing, and print the summary."""
    parser = argparse.ArgumentParser(description="Repeat the suite and the gates.")
    parser.add_argument("--suites", type=int, default=10)
    parser.add_argument("--gates", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--any-commit", action="store_true")
    parser.add_argument(
        "--summary", action="store_true", help="print what is recorded, run nothing"
    )
    options = parser.parse_args()
    NOTES.parent.mkdir(exist_ok=True)
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.check_output(describe, cwd=ROOT, text=True).strip()
    of = None if options.any_commit else commit
    for runs in [] if options.summary else list_runs(options.suites, options.gates):
        done = {(one.what, one.number) for one in read_outcomes(of)}
        missing = [run for run in runs if (run.what, run.number) not in done]
        for outcome in make_runs(missing, commit, options.workers) if missing else ():
            with NOTES.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            ended = f"{outcome.what} {outcome.number}: {outcome.closing or outcome.code}"
            print(ended, file=sys.stderr, flush=True)
    outcomes = read_outcomes(of)
    print(summarize(outcomes))
    return int(any(one.code for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
