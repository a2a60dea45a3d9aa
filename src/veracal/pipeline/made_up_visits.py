"""Visits that nobody made to hospitals that are not there, to try a federation with.

A model learns from one hospital where readmission follows age, stay and pulse closely. At the
others it follows them less: there the model is right less often, and as sure as before.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

TABLE, SCHEMA = "visits.csv", "visits.toml"
AT_HOME, ELSEWHERE = 8.0, 1.3  # how closely readmission follows
_SEED = 20  # public: the table is made up
_COMPASS = ("north", "south", "west", "east", "hill", "lake", "port", "bridge")

SCHEMA_TEXT = """\
format = 1
name = "visits"
size = {size}

[columns.age]
kind = "number"
lower = 0
upper = 100

[columns.stay]
kind = "number"
lower = 0
upper = 30

[columns.pulse]
kind = "number"
lower = 40
upper = 160

[columns.back]
kind = "target"
classes = ["no", "yes"]
"""


def hospital_names(count: int) -> tuple[str, ...]:
    """What made-up hospitals are called."""
    more = tuple(f"hospital-{i}" for i in range(len(_COMPASS) + 1, count + 1))
    return (*_COMPASS, *more)[:count]


def visits(rows: int, *, closeness: float, which: int) -> pl.DataFrame:
    """Made-up visits to one hospital.

    Parameters
    ----------
    rows : int
    closeness : float
        How closely readmission follows age, stay and pulse.
    which : int
        Number of the hospital; patients of another are a little older, or younger.
    """
    rng = np.random.default_rng([_SEED, which])
    older = 6 * np.sin(which)
    age = np.clip(rng.normal(50 + older, 20, rows), 0, 100).round()
    stay = np.clip(rng.gamma(2, 4, rows), 0, 30).round()
    pulse = np.clip(rng.normal(80, 15, rows), 40, 160).round()
    logit = closeness * ((age - 50) / 20 + (stay - 8) / 6 + (pulse - 80) / 15)
    back = rng.random(rows) < 1 / (1 + np.exp(-logit))
    columns = {"age": age.astype(int), "stay": stay.astype(int), "pulse": pulse.astype(int)}
    labels: Sequence[str] = np.where(back, "yes", "no").tolist()
    return pl.DataFrame({**columns, "back": labels})
