"""A pass over a file of any size stays small.

A matrix on disk and a Parquet file are read from end to end by a process of its own, whose
peak resident memory is compared with a bound: with ``--long``, 10 million rows and 5 GB
against 500 MB in all; otherwise files of some 400 MB against their own size.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NAME = "memory"
SECONDS = 25
WIDTH = 32
NAMES = [f"x{i}" for i in range(20)]

# What the child runs. It prints the records it saw, and its peak memory in MB at the start
# and at the end.
PROGRAM = """
import sys
from pathlib import Path
from veracal.data import Category, Grouping, Number, Schema, Target, Unit, Vector, load, scan

def peak():  # not getrusage: its figure starts from the parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

MATRIX = Schema({{"X": Vector({width}, -1, 1, center=0, spread=1), "y": Target((0, 1))}})
TABLE = Schema(
    {{**{{name: Number(0, 1) for name in {names}}}, "sex": Category(("f", "m")),
      "patient": Unit(), "y": Target(("no", "yes"))}},
    groups={{"sex": Grouping("sex")}},
)
path = Path(sys.argv[1])
schema, start, n = (MATRIX if path.is_dir() else TABLE), peak(), 0
for batch in {loop}:
    n += len(batch)
print(n, start, peak())
"""

CORRECT = "scan(path, schema)"
MUTANTS = {
    "the whole file at once": (
        "[load(path, schema=schema)] if path.is_file() else scan(path, schema)"
    ),
    "batches kept": "list(scan(path, schema))",
    "rows mapped and never let go": (
        "scan(path, schema) if path.is_file() else "
        "[__import__('numpy').load(path / 'X.npy', mmap_mode='r').copy()]"
    ),
}


def run(subject: str, *, long: bool) -> str:
    """Measure a pass over each file."""
    figures = []
    with files(10_000_000 if long else 3_000_000, 5_000 if long else 400) as paths:
        for path, n in paths.items():
            size = sum(f.stat().st_size for f in (path.iterdir() if path.is_dir() else [path]))
            size //= 2**20
            seen, start, peak = measured(subject, path)
            assert seen == n, f"{path.name}: {seen} of {n} records"
            bound = 500 if long else start + 0.6 * size
            assert peak < bound, f"{path.name} of {size} MB took {peak:.0f} MB"
            figures.append(f"{path.name} of {size:,} MB in {peak:.0f} MB")
    return ", ".join(figures)


def measured(subject: str, path: Path) -> tuple[int, float, float]:
    """Run a pass in a process of its own."""
    program = PROGRAM.format(width=WIDTH, names=NAMES, loop=subject)
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    n, start, peak = done.stdout.split()
    return int(n), float(start), float(peak)


@contextmanager
def files(rows: int, megabytes: int) -> Iterator[dict[Path, int]]:
    """Write a matrix of so many rows, and a Parquet file of so many MB."""
    with tempfile.TemporaryDirectory() as folder:
        matrix, table = Path(folder) / "matrix", Path(folder) / "table.parquet"
        write_matrix(matrix, rows)
        yield {matrix: rows, table: write_table(table, megabytes)}


def write_matrix(folder: Path, rows: int) -> None:
    """Write X.npy and y.npy, block by block."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (rows, WIDTH))
    block = rng.uniform(-1, 1, (100_000, WIDTH)).astype(np.float32)
    for start in range(0, rows, len(block)):
        X[start : start + len(block)] = block[: rows - start]
    X.flush()
    np.save(folder / "y.npy", (np.arange(rows) % 2).astype(np.int8))


def write_table(path: Path, megabytes: int) -> int:
    """Write row groups until the file is large enough, and return its number of rows."""
    rng, n, block = np.random.default_rng(0), 0, 200_000
    columns = {name: rng.uniform(0, 1, block) for name in NAMES}
    columns["sex"] = rng.choice(["f", "m"], block)
    columns["patient"] = rng.integers(10**7, size=block)
    columns["y"] = rng.choice(["no", "yes"], block)
    table = pa.table(columns)
    with pq.ParquetWriter(
        path, table.schema, compression="none", use_dictionary=False
    ) as writer:
        while path.stat().st_size < megabytes * 2**20:
            writer.write_table(table)
            n += block
    return n
