"""Where does the time of a whole run go: how much of it is not training?

The goal is a fifth at most, for a table of 100,000 rows of 50 numbers as text.
"""

import time
from pathlib import Path

import numpy as np
import polars as pl

from veracal.pipeline import Config, run
from veracal.pipeline.config import DataConfig

ROWS, COLUMNS = 100_000, 50


def test_share_of_training(tmp_path: Path, tables: list[str]):
    config, best = Config(table(tmp_path)), {}
    for turn in range(3):
        spent = timed(config, tmp_path / str(turn))
        if not best or sum(spent.values()) < sum(best.values()):
            best = spent
    whole = sum(best.values())
    lines = [
        f"  {step:18} {seconds:7.2f} s {seconds / whole:7.0%}" for step, seconds in best.items()
    ]
    outside = 1 - best["training"] / whole
    title = f"a run on {ROWS:,} × {COLUMNS} as CSV: {whole:.1f} s, {outside:.0%} not training"
    tables.append("\n".join([f"{title} (goal: 20 %)", *lines]))
    assert best["training"] > 0


def table(folder: Path) -> DataConfig:
    """A table whose label follows a line, and its schema."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (ROWS, COLUMNS))
    y = (X @ rng.normal(size=COLUMNS) + rng.logistic(size=ROWS) > 0).astype(int)
    names = [f"x{i}" for i in range(COLUMNS)]
    frame = pl.DataFrame({**dict(zip(names, X.T, strict=True)), "y": y})
    frame.write_csv(folder / "t.csv", float_precision=6)
    column = '[columns.{}]\nkind = "number"\nlower = -1\nupper = 1\n'
    target = '[columns.y]\nkind = "target"\nclasses = [0, 1]\n'
    head = f"format = 1\nsize = {ROWS}\n"
    (folder / "t.toml").write_text(head + "".join(map(column.format, names)) + target)
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
