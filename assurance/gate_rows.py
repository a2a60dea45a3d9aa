"""The encoding of a record depends on that record and the schema, and on no other record.

Parallel composition, the declared sensitivity of every later mechanism and the meaning of
"neighboring data sets" all rest on this. Each table is encoded with and without one of its
individuals, and once with another in its place: all other rows must be the same, bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl

from veracal.data import (
    Category,
    Dataset,
    FillValue,
    Grouping,
    Number,
    Schema,
    Target,
    UnitColumn,
    Vector,
)
from veracal.data.encoding import encode

NAME = "rows"
Encoder = Callable[[pl.DataFrame, Schema], Dataset]

SCHEMA = Schema(
    {
        "age": Number(0, 120, missing="indicator"),
        "dose": Number(-5, 5, missing=FillValue(0), outside="clip"),
        "ward": Category(("a", "b", "c", "d"), missing="drop"),
        "scan": Vector(3, -1, 1),
        "patient": UnitColumn(),
        "y": Target(("no", "yes")),
    },
    groups={"ward": Grouping("ward"), "age": Grouping("age", (0, 18, 65, 120))},
    missing=("?",),
    norm=1.5,
    size=50,
)


def correct(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Encode as the library does."""
    return encode(frame, schema, where="gate")


def standardized(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Scale by the records' own mean and deviation."""
    data = correct(frame, schema)
    return data._changed(X=(data.X - data.X.mean(axis=0)) / (data.X.std(axis=0) + 1e-9))


def scaled_by_extremes(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Take bounds from the records."""
    data = correct(frame, schema)
    return data._changed(X=data.X / (np.abs(data.X).max(axis=0) + 1e-9))


def mean_imputed(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Put the mean of the others in place of a missing value."""
    data = correct(frame, schema)
    X = np.array(data.X)
    missing = X[:, 1] > 0
    X[missing, 0] = X[~missing, 0].mean() if (~missing).any() else 0
    return data._changed(X=X)


def observed_categories(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Give a column only to categories that occur."""
    data = correct(frame, schema)
    return data._changed(X=data.X[:, (data.X != 0).any(axis=0)])


def counted_size(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Declare the number of records that there are."""
    data = correct(frame, schema)
    return data._changed(size=len(data))


def without_duplicates(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Keep one of each kind of row."""
    return correct(frame.unique(subset=["age", "ward"], maintain_order=True), schema)


def clipped_to_median(frame: pl.DataFrame, schema: Schema) -> Dataset:
    """Take the norm bound from the records."""
    data = correct(frame, replace(schema, norm=None))
    norms = np.linalg.norm(data.X, axis=1, keepdims=True)
    return data._changed(X=data.X * np.minimum(1, np.median(norms) / norms), norm=schema.norm)


CORRECT: Encoder = correct
MUTANTS: dict[str, Encoder] = {
    "standardized by the records": standardized,
    "bounds from the records": scaled_by_extremes,
    "missing values get the mean": mean_imputed,
    "categories from the records": observed_categories,
    "size counted": counted_size,
    "duplicates dropped": without_duplicates,
    "norm bound from the records": clipped_to_median,
}


def run(subject: Encoder, *, long: bool) -> str:
    """Replay the encoding on neighbors."""
    rng, neighbors = np.random.default_rng(0), 0
    for _ in range(400 if long else 60):
        frame = table(int(rng.integers(3, 40)), rng)
        whole = subject(frame, SCHEMA)
        for row in rng.permutation(frame.height)[:10]:
            person = frame[int(row), "patient"]
            rest = frame.filter(pl.col("patient") != person)
            stranger = table(1, rng).with_columns(patient=pl.lit("stranger"))
            for neighbor in (rest, pl.concat([rest, stranger])):
                compare(whole, subject(neighbor, SCHEMA), gone=person)
                neighbors += 1
    return f"{neighbors:,} neighbors, 0 rows moved"


def table(n: int, rng: np.random.Generator) -> pl.DataFrame:
    """Draw records with missing values, duplicates and values at the bounds."""
    ages = rng.choice(["?", "0", "17", "18", "64.5", "120"], n)
    return pl.DataFrame(
        {
            "age": ages,
            "dose": rng.choice(["?", "-9", "0.1", "5", "77"], n),
            "ward": rng.choice(["a", "b", "c", "d", "?"], n, p=[0.5, 0.3, 0.1, 0.05, 0.05]),
            "scan": rng.uniform(-1, 1, (n, 3)),
            "patient": [f"p{i}" for i in range(n)],
            "y": rng.choice(["no", "yes"], n),
        }
    )


def compare(whole: Dataset, neighbor: Dataset, *, gone: str) -> None:
    """Rows of individuals in both must agree, and so must all public facts."""
    assert whole.units is not None and neighbor.units is not None
    public = [
        (d.classes, d.feature_names, d.size, d.norm, d.X.shape[1:]) for d in (whole, neighbor)
    ]
    assert public[0] == public[1], f"public facts changed: {public}"
    there = {str(unit): i for i, unit in enumerate(neighbor.units)}
    kept = [str(unit) for unit in whole.units if unit != gone]
    assert kept == [unit for unit in there if unit != "stranger"], "other records came or went"
    mine = np.array([i for i, unit in enumerate(whole.units) if unit != gone], dtype=int)
    theirs = np.array([there[unit] for unit in kept], dtype=int)
    assert (whole.X[mine] == neighbor.X[theirs]).all(), "another record's features moved"
    assert (whole.y[mine] == neighbor.y[theirs]).all(), "another record's label moved"
    for name, group in whole.groups.items():
        same = group.codes[mine] == neighbor.groups[name].codes[theirs]
        assert same.all(), "another record's group moved"
