"""Tables, schemas and models that tests of several commands share."""

from pathlib import Path

import numpy as np
import polars as pl

SCHEMA = """\
format = 1
name = "visits"
size = 600
missing = [""]

[columns.age]
kind = "number"
lower = 0
upper = 100

[columns.ward]
kind = "category"
values = ["a", "b"]

[columns.sex]
kind = "category"
values = ["f", "m"]
feature = false

[columns.stay]
kind = "number"
lower = 0
upper = 30
missing = "drop"

[columns.back]
kind = "target"
classes = ["no", "yes"]

[groups.sex]
column = "sex"
"""


def table(n: int = 600) -> pl.DataFrame:
    """Visits that an older age and a longer stay make likelier to be repeated."""
    rng = np.random.default_rng(0)
    age, stay = rng.integers(0, 101, n), rng.integers(0, 31, n)
    back = age / 100 + stay / 30 + rng.normal(0, 0.2, n) > 1
    return pl.DataFrame(
        {
            "age": age,
            "ward": np.array(["a", "b"])[rng.integers(0, 2, n)].tolist(),
            "sex": np.array(["f", "m"])[rng.integers(0, 2, n)].tolist(),
            "stay": stay,
            "back": np.array(["no", "yes"])[back.astype(int)].tolist(),
        }
    )


def write(folder: Path) -> None:
    """Put the table and its schema into a folder."""
    table().write_csv(folder / "visits.csv")
    (folder / "visits.toml").write_text(SCHEMA)


def write_model(folder: Path, out: str = "model", **choices: object) -> None:
    """Put a model of them into it as well."""
    from veracal.workflow import Config, run
    from veracal.workflow.config import DataConfig, ModelConfig, PrivacyConfig

    write(folder)
    data = DataConfig(str(folder / "visits.csv"), str(folder / "visits.toml"), **choices)  # type: ignore[arg-type]
    config = Config(data, PrivacyConfig(8.0), "visits", ModelConfig(epochs=5.0))
    run(config, folder / out, ledger=folder / f"{out}.ledger")
