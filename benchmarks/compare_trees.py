"""Is this tree slower than another one? Both run the same benchmarks, in turns.

    python -m benchmarks.compare_trees ../before --files benchmarks/test_ledger.py -k charge
    python -m benchmarks.compare_trees ../before --command "fit digits --epsilon 8 --out model"

Each round runs the files and commands once in each tree, in alternating order, with the
interpreter and the libraries of this process. A benchmark contributes the processor time of its
fastest repetition, and a command its whole processor time, which other processes on the machine
disturb least. For everything that both trees have, the table shows the ratio of the times, this
tree's to the other's: the geometric mean over rounds, and Student's 95% interval of the mean of
the logarithms. An interval above 1 is a slowdown.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[1]


def run_benchmarks(tree: Path, files: Sequence[str], select: str) -> dict[str, float]:
    """Seconds of processor time of each benchmark of a tree."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "pytest", "-q", *files, "-k", select]
        command += ["-p", "no:xdist", "-p", "no:cacheprovider", "--timeout", "3600"]
        command += [f"--benchmark-json={result}", "--benchmark-timer=time.process_time"]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(tree / "src")}
        ended = subprocess.run(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if not result.exists():
            raise SystemExit(f"No benchmark ran in {tree}:\n{ended.stdout[-2000:]}")
        content = json.loads(result.read_text())
    return {each["fullname"]: each["stats"]["min"] for each in content["benchmarks"]}


def run_command(tree: Path, command: str) -> float:
    """Seconds of processor time of one command of a tree, in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "VERACAL_LEDGERS": folder}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "veracal", *shlex.split(command)],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(tree / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def compare(rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[str]:
    """Rows of a Markdown table, from (this tree, other tree) of each round."""
    shared = set.intersection(*(set(here) & set(there) for here, there in rounds))
    lines = ["| benchmark | ms | ratio | 95% interval |", "|---|---:|---:|---|"]
    for name in sorted(shared):
        here, there = np.array([[each[name] for each in pair] for pair in rounds]).T
        logs = np.log(here / there)
        error = stats.sem(logs) * stats.t.ppf(0.975, len(logs) - 1) if len(logs) > 1 else np.inf
        low, mean, high = np.exp([logs.mean() - error, logs.mean(), logs.mean() + error])
        slow = " slower" if low > 1 else ""
        time = 1000 * np.median(here)
        lines.append(f"| {name} | {time:.3g} | {mean:.2f} | {low:.2f} to {high:.2f}{slow} |")
    only = sorted(set.union(*(set(here) ^ set(there) for here, there in rounds)))
    return [*lines, "", f"In one tree only: {', '.join(only) or 'none'}."]


def main() -> None:
    """Run both trees in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="root of the other tree")
    parser.add_argument("--files", nargs="*", default=[], help="benchmarks of both trees")
    parser.add_argument("-k", default="", help="pytest's expression that selects benchmarks")
    parser.add_argument("--command", action="append", default=[], help="arguments of veracal")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        trees = [ROOT, options.other.resolve()]
        times = {}
        for tree in trees if number % 2 == 0 else reversed(trees):
            times[tree] = (
                run_benchmarks(tree, options.files, options.k) if options.files else {}
            )
            times[tree] |= {each: run_command(tree, each) for each in options.command}
        rounds.append(tuple(times[tree] for tree in trees))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    print(*compare(rounds), sep="\n")


if __name__ == "__main__":
    main()
