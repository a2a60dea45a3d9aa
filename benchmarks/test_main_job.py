"""How much of the time of a whole run is not training?

The goal is a fifth at most, for a table of 100,000 rows of 50 numbers as text. Next to each step
is its smallest possible time, measured in the same run: polars and Arrow at their
best on the same file, which check no bounds and name no wrong record; the bare hashes of a
keyed split. The command itself is timed in a process of its
own, with everything that has to be imported and made first. Every turn has a folder of ledgers
of its own: with the ledger of an earlier turn a run would return the model that was stored.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest

from veracal.data import Dataset, load, split
from veracal.workflow import Config, run
from veracal.workflow.config import DataConfig, PrivacyConfig

ROWS, COLUMNS, EPSILON = 100_000, 50, 3.0
NAMES = [f"x{i}" for i in range(COLUMNS)]
FRACTIONS = (0.8, 0.0, 0.2)
FIT = "import sys; sys.argv[0] = 'veracal'; from veracal.cli import main; main()"
BUNDLE = "import vl_convert; vl_convert.javascript_bundle()"


def test_share_of_training(tmp_path: Path, tables: list[str], monkeypatch: pytest.MonkeyPatch):
    config, best = Config(table(tmp_path), PrivacyConfig(EPSILON)), dict[str, float]()
    for turn in range(5):
        monkeypatch.setenv("VERACAL_LEDGERS", str(tmp_path / f"ledgers-{turn}"))
        for step, seconds in timed(config, tmp_path / str(turn)).items():
            best[step] = min(seconds, best.get(step, seconds))
    whole = sum(best.values())
    lines = [
        f"  {step:18} {seconds:7.2f} s {seconds / whole:7.0%}" for step, seconds in best.items()
    ]
    outside = 1 - best["training"] / whole
    title = f"a run on {ROWS:,} × {COLUMNS} as CSV: {whole:.1f} s, {outside:.0%} not training"
    tables.append("\n".join([f"{title} (goal: 20 %)", *lines]))
    assert best["training"] > 0


def test_steps_beside_their_limits(tmp_path: Path, tables: list[str]):
    chosen = table(tmp_path)
    path, schema = Path(chosen.source), chosen.schema
    data = load(path, schema=schema, row_digests=True)
    test = split(data, FRACTIONS, key="veracal").test
    assert test is not None
    megabytes = path.stat().st_size / 2**20
    rows = {
        "load": (
            least(lambda: load(path, schema=schema)),
            {
                "polars": least(lambda: with_polars(path)),
                "Arrow": least(lambda: with_arrow(path)),
                "bytes alone": least(path.read_bytes),
            },
        ),
        "with digests": (
            least(lambda: load(path, schema=schema, row_digests=True)),
            {"without": least(lambda: load(path, schema=schema))},
        ),
        "keyed split": (
            least(lambda: split(data, FRACTIONS, key="veracal")),
            {"bare hashes": least(lambda: bare_hashes(data))},
        ),
    }
    lines = []
    for step, (ours, limits) in rows.items():
        beside = ", ".join(f"{n} {s:.3f} s ({ours / s:.1f}×)" for n, s in limits.items())
        lines.append(f"  {step:12} {ours:7.3f} s   {beside}")
    tables.append(
        f"steps of a run beside their limits, {megabytes:.0f} MB of CSV\n" + "\n".join(lines)
    )
    np.testing.assert_allclose(data.X, with_polars(path), atol=1e-12)


def test_the_command(tmp_path: Path, tables: list[str]):
    """The real thing: a process that imports, runs, reports and ends."""
    chosen = table(tmp_path)
    arguments = [
        chosen.source,
        "--schema",
        str(chosen.schema),
        "--epsilon",
        str(EPSILON),
        "--out",
    ]
    spent = {
        "veracal fit": [
            process(
                FIT,
                "fit",
                *arguments,
                str(tmp_path / f"{turn}"),
                ledgers=tmp_path / f"ledgers-{turn}",
            )
            for turn in range(2)
        ],
        "of which: import veracal.workflow": processes("import veracal.workflow"),
        "  beside: import sklearn.linear_model, polars": processes(
            "import sklearn.linear_model, polars"
        ),
        "once on a machine: vega bundle for the report": processes(BUNDLE),
    }
    lines = [f"  {name:46} {min(seconds):6.2f} s" for name, seconds in spent.items()]
    tables.append("the command as a process of its own\n" + "\n".join(lines))
    assert (tmp_path / "0" / "report.html").exists()


# ---------------------------------------------------------------- peers and limits


def with_polars(path: Path) -> np.ndarray:
    """Read numbers with declared types, on all cores, and nothing else."""
    types = {**dict.fromkeys(NAMES, pl.Float64), "y": pl.Int64}
    return pl.read_csv(path, schema=types).select(NAMES).to_numpy()


def with_arrow(path: Path) -> pa.Table:
    """The same with Arrow, which stays in columns."""
    types = {**dict.fromkeys(NAMES, pa.float64()), "y": pa.int64()}
    return pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(column_types=types))


def bare_hashes(data: Dataset) -> None:
    """One hash of each record and one of that under a key, and nothing done with them."""
    content, width, blake2b = data.X.tobytes(), data.X[:1].nbytes, hashlib.blake2b
    keyed = blake2b(key=bytes(64), digest_size=8)
    for start in range(0, len(content), width):
        coin = keyed.copy()
        coin.update(blake2b(content[start : start + width]).digest())
        coin.digest()


# ---------------------------------------------------------------- timing


def least(work: Callable[[], Any], turns: int = 5) -> float:
    """Seconds of the quickest of several turns."""
    found = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def process(code: str, *arguments: str, ledgers: Path | None = None) -> float:
    """Seconds that a new interpreter takes for some code, with ledgers in a folder."""
    command = [sys.executable, "-c", code, *arguments]
    settings = (
        dict(os.environ) if ledgers is None else {**os.environ, "VERACAL_LEDGERS": str(ledgers)}
    )
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=settings)
    return time.perf_counter() - start


def processes(code: str, turns: int = 3) -> list[float]:
    """Seconds of several."""
    return [process(code) for _ in range(turns)]


def table(folder: Path) -> DataConfig:
    """A table whose label follows a line, and its schema."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (ROWS, COLUMNS))
    y = (X @ rng.normal(size=COLUMNS) + rng.logistic(size=ROWS) > 0).astype(int)
    frame = pl.DataFrame({**dict(zip(NAMES, X.T, strict=True)), "y": y})
    frame.write_csv(folder / "t.csv", float_precision=6)
    column = '[columns.{}]\nkind = "number"\nlower = -1\nupper = 1\n'
    target = '[columns.y]\nkind = "target"\nclasses = [0, 1]\n'
    head = f"format = 1\nsize = {ROWS}\n"
    (folder / "t.toml").write_text(head + "".join(map(column.format, NAMES)) + target)
    return DataConfig(str(folder / "t.csv"), str(folder / "t.toml"))


def timed(config: Config, out: Path) -> dict[str, float]:
    """Seconds of each step of a run."""
    spent: dict[str, float] = {}
    last = ["loading", time.perf_counter()]

    def tell(step: str, done: float, total: float | None) -> None:
        if step != last[0]:
            now = time.perf_counter()
            spent[last[0]] = spent.get(last[0], 0.0) + now - last[1]
            last[:] = [step, now]

    run(config, out, on_progress=tell)
    tell("", 0, None)
    return spent
