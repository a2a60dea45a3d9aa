"""How much time and memory does a calibration error take, compared with netcal, torchmetrics,
relplot, and the sum of the same numbers?
"""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.calibration_peers import (
    Best,
    Problem,
    netcal_ece,
    problem,
    relplot_smooth,
    take_turns,
    threads,
    torchmetrics_ece,
)
from veracal.calibration import binary_smooth_ece, ece
from veracal.data import Scores

ROWS, CLASSES = 1_000_000, 10


@pytest.fixture(scope="module")
def ten() -> Problem:
    """A million records of ten classes."""
    return problem(ROWS, CLASSES)


@pytest.mark.parametrize("count", [1, 2])
def test_ece(ten: Problem, count: int, tables: list[str]):
    contenders = {
        "Veracal": lambda: ece(ten.scores),
        "Veracal, checks of the array included": lambda: ece(
            Scores.from_probabilities(ten.probabilities, ten.labels)
        ),
        "torchmetrics": lambda: torchmetrics_ece(ten),
        "netcal": lambda: netcal_ece(ten),
        "sum of the array": lambda: float(ten.probabilities.sum()),
    }
    with threads(count):
        best, answers = take_turns(contenders)
    tables.append(table(f"ECE, {ROWS:,} × {CLASSES} float32, 15 bins", count, best))
    expected = float(np.abs(by_hand(ten)).sum() / ROWS)
    assert answers["Veracal"] == pytest.approx(expected, abs=1e-9)
    assert answers["netcal"] == pytest.approx(expected, abs=1e-5)
    assert answers["torchmetrics"] == pytest.approx(expected, abs=1e-3)  # sums in float32


def by_hand(given: Problem) -> np.ndarray:
    """Gaps of fifteen bins, the obvious way."""
    confidence = given.probabilities.max(axis=1).astype(float)
    right = given.probabilities.argmax(axis=1) == given.labels
    return np.bincount(np.ceil(confidence * 15).astype(int), confidence - right)


@pytest.mark.parametrize("count", [1, 2])
def test_smooth_ece(count: int, tables: list[str]):
    two = problem(ROWS, 2)
    contenders = {
        "Veracal": lambda: binary_smooth_ece(two.scores),
        "relplot": lambda: relplot_smooth(two),
        "sum of the array": lambda: float(two.probabilities.sum()),
    }
    with threads(count):
        best, answers = take_turns(contenders)
    tables.append(table(f"smooth ECE, {ROWS:,} × 2 float32", count, best))
    assert answers["Veracal"] == pytest.approx(answers["relplot"], abs=1e-3)


def test_memory(ten: Problem, tables: list[str]):
    size = ten.probabilities.nbytes
    peaks = {}
    for name, work in {
        "ECE": lambda: ece(ten.scores),
        "ECE, checks of the array included": lambda: ece(
            Scores.from_probabilities(ten.probabilities, ten.labels)
        ),
    }.items():
        tracemalloc.start()
        work()
        peaks[name] = 1 + tracemalloc.get_traced_memory()[1] / size
        tracemalloc.stop()
    shown = ", ".join(f"{name} {times:.2f}×" for name, times in peaks.items())
    tables.append(f"peak memory as a multiple of the {size // 10**6} MB of input: {shown}")
    assert peaks["ECE"] < 1.3


PROGRAM = """
import json, sys, time
from veracal.calibration.measurement import stream_totals
from veracal.data.score_files import scan_scores

def peak():
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

before, start = peak(), time.perf_counter()
found = stream_totals(scan_scores(sys.argv[1]))
seconds = time.perf_counter() - start
print(json.dumps({"n": found.n, "ece": found.ece, "before": before, "peak": peak(),
                  "seconds": seconds}))
"""


@pytest.mark.parametrize("rows", [5_000_000, pytest.param(100_000_000, marks=pytest.mark.long)])
def test_stream(rows: int, tmp_path: Path, tables: list[str]):
    if shutil.disk_usage(tmp_path).free < 20 * rows:
        pytest.skip(f"{20 * rows / 1e9:.0f} GB of free disk are needed")
    path = tmp_path / "p.parquet"
    try:
        write(path, rows)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "POLARS_MAX_THREADS": "2"},
        )
        size = path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
    found = json.loads(done.stdout)
    tables.append(
        f"stream of {rows:,} rows in a Parquet file of {size / 1e9:.2f} GB: peak of "
        f"{found['peak'] / 1e6:.0f} MB ({found['before'] / 1e6:.0f} before), to be below 300; "
        f"{found['seconds']:.1f} s, {rows / found['seconds'] / 1e6:.1f} million rows a second"
    )
    assert found["n"] == rows and found["ece"] == pytest.approx(0.05, abs=0.005)


def write(path: Path, rows: int) -> None:
    """Two classes; the second happens with a tenth less than its probability."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("probabilities", pa.float32()), ("labels", pa.int8())])
    with pq.ParquetWriter(path, schema, compression="snappy") as file:
        for start in range(0, rows, 1_000_000):
            n = min(1_000_000, rows - start)
            p = rng.random(n, dtype=np.float32) / 2 + np.float32(0.5)
            labels = (rng.random(n) < p - 0.05).astype(np.int8)
            file.write_table(pa.table([p, labels], schema=schema))


def table(title: str, count: int, best: dict[str, Best]) -> str:
    """Times, and ratios to ours; on a busy machine those of processor time tell more."""
    ours = best["Veracal"]
    rows = [
        f"  {name:40}{one.clock:9.1f} ms{one.clock / ours.clock:8.2f}×"
        f"{one.processors:12.1f} ms{one.processors / ours.processors:8.2f}×"
        for name, one in best.items()
    ]
    title = f"{title}, {count} thread{'s' * (count > 1)}, best of five"
    load = f"load of the machine {os.getloadavg()[0]:.1f}"
    return "\n".join([f"{title}; {load}", f"{'clock':>51}{'processors':>23}", *rows])
