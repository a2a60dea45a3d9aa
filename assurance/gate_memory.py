"""A pass over a file of any size uses little memory.

A matrix on disk and a Parquet file are read completely by a separate process, whose
peak resident memory is compared with a bound: with ``--long``, 10 million rows and 5 GB
against 500 MB in all; otherwise files of some 400 MB against their own size.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from assurance import servers
from veracal.data import (
    Category,
    Grouping,
    Number,
    Schema,
    Target,
    UnitColumn,
    Vector,
    load,
    scan,
)

NAME = "memory"
SECONDS = 10
WIDTH = 32
NAMES = [f"x{i}" for i in range(20)]

MATRIX = Schema({"X": Vector(WIDTH, -1, 1, center=0, spread=1), "y": Target((0, 1))})
TABLE = Schema(
    {
        **{name: Number(0, 1) for name in NAMES},
        "sex": Category(("f", "m")),
        "patient": UnitColumn(),
        "y": Target(("no", "yes")),
    },
    groups={"sex": Grouping("sex")},
)
Pass = Callable[[Path, Schema], Iterator[Any]]


def whole_file(path: Path, schema: Schema) -> Iterator[Any]:
    """Read a table at once."""
    return iter([load(path, schema=schema)]) if path.is_file() else scan(path, schema)


def keep_batches(path: Path, schema: Schema) -> Iterator[Any]:
    """Keep every batch."""
    return iter(list(scan(path, schema)))


def never_let_go(path: Path, schema: Schema) -> Iterator[Any]:
    """Read a matrix by one map, which keeps every page it has touched."""
    if path.is_file():
        return scan(path, schema)
    return iter([np.load(path / "X.npy", mmap_mode="r").copy()])


CORRECT: Pass = scan
MUTANTS: dict[str, Pass] = {
    "the whole file at once": whole_file,
    "batches kept": keep_batches,
    "rows mapped and never let go": never_let_go,
}


def run(subject: Pass, *, long: bool) -> str:
    """Measure a pass over each file."""
    figures = []
    _, paths = files(10_000_000 if long else 3_000_000, 5_000 if long else 400)
    for path, n in paths.items():
        size = sum(f.stat().st_size for f in (path.iterdir() if path.is_dir() else [path]))
        size //= 2**20
        try:
            seen, start, peak = servers.run_in_fork(measured, subject, path)
        except ChildProcessError as error:
            raise RuntimeError(f"the child that was to read the file {error}") from error
        assert seen == n, f"{path.name}: {seen} of {n} records"
        bound = 500 if long else start + 0.6 * size
        assert peak < bound, f"{path.name} of {size} MB took {peak:.0f} MB"
        figures.append(f"{path.name} of {size:,} MB in {peak:.0f} MB")
    return ", ".join(figures)


def measured(subject: Pass, path: Path) -> tuple[int, float, float]:
    """Records of a pass, and memory in MB before and at its peak; run in a fresh process."""
    start, n = servers.peak_memory(), 0
    for batch in subject(path, MATRIX if path.is_dir() else TABLE):
        n += len(batch)
    return n, start / 2**20, servers.peak_memory() / 2**20


@cache
def files(rows: int, megabytes: int) -> tuple[Any, dict[Path, int]]:
    """Write a matrix of so many rows, and a Parquet file of so many MB, for every subject."""
    folder = TemporaryDirectory()
    matrix, table = Path(folder.name) / "matrix", Path(folder.name) / "table.parquet"
    write_matrix(matrix, rows)
    return folder, {matrix: rows, table: write_table(table, megabytes)}


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
