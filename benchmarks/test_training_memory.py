"""How much memory does training on a file of ten million rows take?

The file is a memory map of 10 million × 128 float32, 5.1 GB; the goal is a peak below 1.5 GB.
The peak is that of a fresh process, as the system counts it, pages of the file included.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROWS, FEATURES, STEPS = 10_000_000, 128, 200
PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy as np
from veracal.training import PrivateLogisticRegression

def peak():
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

folder = Path(sys.argv[1])
X, y = np.load(folder / "X.npy", mmap_mode="r"), np.load(folder / "y.npy")
before, times = peak(), []
model = PrivateLogisticRegression(
    None, 1e-8, noise_multiplier=1.0, steps=int(sys.argv[2]), sampling_rate=1e-4,
    classes=[0, 1], size=len(X), on_step=lambda model, step: times.append(time.perf_counter()),
)
start = time.perf_counter()
model.fit(X, y)
result = {
    "before": before, "peak": peak(), "seconds": time.perf_counter() - start,
    "step": float(np.median(np.diff(times))), "score": model.score(X[-10_000:], y[-10_000:]),
}
print(json.dumps(result))
"""


def write(folder: Path) -> int:
    """Ten million rows whose label is the sign of one direction, with noise."""
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(FEATURES, dtype=np.float32)
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (ROWS, FEATURES))
    y = np.empty(ROWS, dtype=np.int8)
    for start in range(0, ROWS, 100_000):
        rows = rng.standard_normal((100_000, FEATURES), dtype=np.float32) / FEATURES**0.5
        noisy = rows @ direction + 0.2 * rng.standard_normal(len(rows))
        X[start : start + len(rows)], y[start : start + len(rows)] = rows, noisy > 0
    np.save(folder / "y.npy", y)
    return X.nbytes


def test_memory(tmp_path: Path, tables: list[str]):
    if shutil.disk_usage(tmp_path).free < 8e9:
        pytest.skip("8 GB of free disk are needed")
    try:
        size = write(tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(STEPS)],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        (tmp_path / "X.npy").unlink(missing_ok=True)
    found = json.loads(done.stdout)
    tables.append(
        f"{ROWS:,} × {FEATURES} float32 in a file of {size / 1e9:.1f} GB, {STEPS} steps of "
        f"1,000 rows: peak of {found['peak'] / 1e9:.2f} GB ({found['before'] / 1e9:.2f} before "
        f"training; {size / found['peak']:.0f} times less than the file), to be below 1.5; "
        f"{found['seconds']:.0f} s, {found['step'] * 1e3:.1f} ms a step"
    )
    assert found["score"] > 0.8
    assert found["peak"] < size / 2  # it was not read whole
