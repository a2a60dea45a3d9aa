"""Training on a matrix larger than memory uses little memory.

The real classifier is fitted to a matrix on disk, as a numpy map and as a data set, by a fresh
process, whose peak resident memory is compared with a bound: with ``--long``, 10 million rows
of 128 numbers against 1.5 GB in all; otherwise 400 MB against their own size.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from assurance import servers
from assurance.linear import FACTS, Patches, patched
from veracal.data import Dataset
from veracal.training.base import TrainingData, add_labels, infer_training_data, row_norms
from veracal.training.logistic import PrivateLogisticRegression

NAME = "linear_memory"
SECONDS = 40
WIDTH, BOUND, STEPS = 128, 1_500, 20  # MB, of everything
NORMS = "veracal.training.logistic.row_norms"
ARRAYS = "veracal.training.base.infer_training_data"


def read_at_once(public: TrainingData, dataset: Dataset) -> TrainingData:
    """Read the whole matrix."""
    return replace(add_labels(public, dataset), X=np.array(public.X))


def read_from_map(X: Any, *rest: Any, **declared: Any) -> Any:
    """Read the whole matrix."""
    return infer_training_data(np.array(X), *rest, **declared)


def norms_of_copy(X: Any) -> Any:
    """Convert the whole matrix to float64."""
    whole = np.asarray(X, dtype=np.float64)
    return np.sqrt(np.einsum("ij,ij->i", whole, whole))


def norms_of_map(X: Any) -> Any:
    """Take rows from one map, which keeps every page it has touched."""
    return row_norms(np.load(X.path, mmap_mode="r"))


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "a data set read at once": {FACTS: read_at_once},
    "a map read at once": {ARRAYS: read_from_map},
    "norms from a copy in float64": {NORMS: norms_of_copy},
    "rows mapped and never let go": {NORMS: norms_of_map},
}
SUBJECTS = {"correct": CORRECT, **MUTANTS}


def run(subject: Patches, *, long: bool) -> str:
    """Measure a fit from each form of the matrix."""
    figures = []
    path = matrix(10_000_000 if long else 800_000)[1]
    size = path.stat().st_size // 2**20
    for name in FORMS:
        start, peak = measured(subject, name, path)
        bound = BOUND if long else start + 0.6 * size
        assert peak < bound, f"a {name} of {size} MB took {peak - start:.0f} MB"
        figures.append(f"{name} of {size:,} MB in {peak - start:.0f} MB")
    return ", ".join(figures)


def fit_map(model: PrivateLogisticRegression, X: Any, y: Any) -> Any:
    """As scikit-learn does."""
    return model.fit(X, y)


def fit_dataset(model: PrivateLogisticRegression, X: Any, y: Any) -> Any:
    """As the curator does."""
    return model.fit_records(Dataset(X, y, (0, 1)))


FORMS = {"map": fit_map, "data set": fit_dataset}


def measured(subject: Patches, name: str, path: Path) -> tuple[float, float]:
    """Memory in MB before and at the peak of a fit, in a process that has run nothing else."""
    # Not a fork of this process, whose freed but unreturned memory would distort the result.
    (mutant,) = (key for key, one in SUBJECTS.items() if one is subject)
    try:
        start, peak = servers.run_in_fork(fit, mutant, name, path)
    except ChildProcessError as error:
        raise RuntimeError(f"the child that was to fit the matrix {error}") from error
    return start, peak


def fit(mutant: str, name: str, path: Path) -> tuple[float, float]:
    """Fit, and return the memory in MB before and at the peak.

    What is drawn here is not repeatable. It decides about rows of batches, some 1,600 of 128
    numbers, hence about a few MB at most: no verdict depends on it.
    """
    X = np.load(path, mmap_mode="r")
    y = (np.arange(len(X)) % 2).astype(np.int8)
    model = PrivateLogisticRegression(
        None,
        1e-9,
        noise_multiplier=1.0,
        steps=STEPS,
        sampling_rate=0.002,
        classes=(0, 1),
        size=len(X),
    )
    start = servers.peak_memory()
    with patched(SUBJECTS[mutant]):
        FORMS[name](model, X, y)
    done = model.private_ and model.n_iter_ == STEPS and np.isfinite(model.coef_).all()
    return start / 2**20, servers.peak_memory() / 2**20 if done else np.inf


@cache
def matrix(rows: int) -> tuple[Any, Path]:
    """Write a matrix of so many rows, block by block; its folder goes with this process."""
    block = np.random.default_rng(0).standard_normal((50_000, WIDTH)).astype(np.float32)
    folder = TemporaryDirectory()
    path = Path(folder.name) / "X.npy"
    X = np.lib.format.open_memmap(path, "w+", np.float32, (rows, WIDTH))
    for start in range(0, rows, len(block)):
        X[start : start + len(block)] = block[: rows - start]
    X.flush()
    return folder, path
