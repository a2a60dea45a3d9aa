"""Workers that run objective perturbation by diffprivlib and by Veracal.

A worker is a process with one thread that answers requests line by line. diffprivlib 0.6.2,
the version of the paper, needs scikit-learn 1.2.0 and an environment of its own, which is made
below build/ when it is first asked for; ``VERACAL_DIFFPRIVLIB`` may name a Python that has it.
Its interpreter runs this file, so that nothing of Veracal is imported up here.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BUILD = Path(__file__).parents[1] / "build" / "diffprivlib-0.6.2"
NEEDED = ("diffprivlib==0.6.2", "scikit-learn==1.2.0", "numpy<2", "setuptools<70")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Answer = dict[str, Any]


class MissingError(Exception):
    """There is no diffprivlib to be had."""


def peer_python() -> str:
    """Path of a Python that has diffprivlib 0.6.2, installed on first use."""
    named = os.environ.get("VERACAL_DIFFPRIVLIB")
    if named:
        return named
    python, done = BUILD / "bin" / "python", BUILD / ".installed"
    if not done.exists():
        newer = sys.version_info[:2] != (3, 11)
        base = shutil.which("python3.11") if newer else sys.executable
        if base is None:
            raise MissingError("diffprivlib 0.6.2 needs Python 3.11, and none was found")
        steps = (
            [base, "-m", "venv", str(BUILD)],
            [str(python), "-m", "pip", "install", *NEEDED],
        )
        for step in steps:
            result = subprocess.run(step, capture_output=True, text=True, check=False)
            if result.returncode:
                last = result.stderr.strip().splitlines()[-1:] or ["no reason given"]
                raise MissingError(f"diffprivlib 0.6.2 could not be installed: {last[0]}")
        done.touch()
    return str(python)


class Worker:
    """A process that performs runs on request."""

    def __init__(self, python: str, which: str) -> None:
        settings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | ONE_THREAD
        if which == "ours":
            settings["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [python, "-W", "ignore", __file__, which],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=settings,
        )

    def ask(self, **question: Any) -> None:
        """Put a question; :meth:`answer` waits for what comes back."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        """Wait for the answer to the last question."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with code {self._process.wait()}")
        found: Answer = json.loads(line)
        return found

    def close(self) -> None:
        """Let it end."""
        self._process.communicate()


def all_answers(workers: list[Worker], questions: list[dict[str, Any]]) -> list[Answer]:
    """Answers of workers that work at the same time."""
    for worker, question in zip(workers, questions, strict=True):
        worker.ask(**question)
    return [worker.answer() for worker in workers]


def diffprivlib_runs(data: Any, question: dict[str, Any]) -> Answer:
    """Sequential fits with the paper's settings, and how often individuals are positive."""
    from diffprivlib.models import LogisticRegression

    norm, epsilon, counts = float(data["norm"]), question["epsilon"], 0
    start = time.perf_counter()
    for seed in range(question["first"], question["first"] + question["runs"]):
        model = LogisticRegression(epsilon=epsilon, data_norm=norm, random_state=seed)
        counts = counts + model.fit(data["X"], data["y"]).predict(data["people"])
    return {"seconds": time.perf_counter() - start, "positive": np.asarray(counts).tolist()}


def our_runs(data: Any, question: dict[str, Any]) -> Answer:
    """The same from an engine; with statistics, or with the whole audit that they are for."""
    from veracal.data import Dataset
    from veracal.multiplicity.auditing import AuditSettings, audit_engine
    from veracal.multiplicity.engines.base import Seed
    from veracal.multiplicity.engines.linear import ObjectiveEngine
    from veracal.multiplicity.runs import Runs
    from veracal.training import ObjectivePerturbation

    train, test = (
        Dataset(data[rows], data[labels], ("no", "yes"), size=len(data["y"]))
        for rows, labels in (("X", "y"), ("people", "answers"))
    )
    norm, seed, count = (
        float(data["norm"]),
        Seed.from_random_state(question["first"]),
        question["runs"],
    )
    model = ObjectivePerturbation(question["epsilon"], rule=question["rule"], norm=norm)
    start = time.perf_counter()
    engine = ObjectiveEngine(model, train, data["people"])  # including one-time preparation
    if question["whole"]:
        audit_engine(engine, test, AuditSettings(runs=count), random_state=question["first"])
        return {"seconds": time.perf_counter() - start}
    runs = Runs(engine.individuals)
    for at in range(0, count, engine.runs_per_call):
        some = min(engine.runs_per_call, count - at)
        runs.add_scores(engine.scores(some, seed.streams(at)), kind="logit", first=at)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "positive": runs.counts_by_block.sum(axis=0)[:, 1].tolist()}


WHICH: dict[str, Callable[[Any, dict[str, Any]], Answer]] = {
    "diffprivlib": diffprivlib_runs,
    "ours": our_runs,
}


def serve(which: str) -> None:
    """Answer questions until there are no more."""
    for line in sys.stdin:
        question = json.loads(line)
        with np.load(question["data"], allow_pickle=False) as data:
            print(json.dumps(WHICH[which](dict(data), question)), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
