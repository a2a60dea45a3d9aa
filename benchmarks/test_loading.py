"""How long do schema checks of every field take, compared with the same sum by polars?

The peer is polars at its best for each form: it reads the file with declared types, scales the
numbers, makes the 0/1 columns and hands a matrix to numpy. It checks no bounds, names no wrong
record and knows no missing marks beyond null. The limit is the bare read of the file's bytes.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from veracal.data import Category, Number, Schema, Target, load

ROWS, NUMBERS = 500_000, 16
NAMES = [f"x{i}" for i in range(NUMBERS)]
WARDS = ("a", "b", "c", "d")
SCHEMA = Schema(
    {
        **{name: Number(0, 10) for name in NAMES},
        "ward": Category(WARDS),
        "y": Target(("no", "yes")),
    }
)
TYPES = {
    **dict.fromkeys(NAMES, pl.Float64),
    "ward": pl.Enum(WARDS),
    "y": pl.Enum(["no", "yes"]),
}


def ours(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Load through the schema."""
    data = load(path, schema=SCHEMA)
    return data.X[:], data.y


def polars(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read and encode with polars, which uses all cores."""
    read = pl.scan_csv(path, schema=TYPES) if path.suffix == ".csv" else pl.scan_parquet(path)
    frame = read.select(
        *(((pl.col(name) - 5) / 5).alias(name) for name in NAMES),
        *((pl.col("ward") == ward).cast(pl.Float64).alias(ward) for ward in WARDS),
        (pl.col("y") == "yes").alias("y"),
    ).collect()
    return frame.select(*NAMES, *WARDS).to_numpy(), frame["y"].to_numpy()


def bare_read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the bytes and do nothing with them: the limit."""
    path.read_bytes()
    return _EXPECTED[path]


_EXPECTED: dict[Path, tuple[np.ndarray, np.ndarray]] = {}


@pytest.fixture(scope="module", params=["csv", "parquet"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of half a million records."""
    rng = np.random.default_rng(0)
    columns: dict[str, np.ndarray] = {n: rng.uniform(0, 10, ROWS).round(4) for n in NAMES}
    columns["ward"], columns["y"] = rng.choice(WARDS, ROWS), rng.choice(["no", "yes"], ROWS)
    frame = pl.DataFrame(columns)
    path: Path = tmp_path_factory.mktemp("tables") / f"t.{request.param}"
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    _EXPECTED[path] = polars(path)
    return path


@pytest.mark.parametrize("method", [ours, polars, bare_read])
def test_loading(
    benchmark, path: Path, method: Callable[[Path], tuple[np.ndarray, np.ndarray]]
) -> None:  # type: ignore[no-untyped-def]
    benchmark.group = f"load {path.suffix[1:]} of {path.stat().st_size // 2**20} MB"

    X, y = benchmark.pedantic(method, (path,), rounds=5, warmup_rounds=1)

    np.testing.assert_allclose(X, _EXPECTED[path][0], atol=1e-12)
    np.testing.assert_array_equal(y, _EXPECTED[path][1])
