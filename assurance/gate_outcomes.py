"""Whether a fit is charged, and whether it ends or stops, does not depend on a record.

Every private fit is charged to a ledger for a data set and for the same with one unusual record
more: huge, tiny, zero, the only one of its class, the only one at all; for a network, one that
its module raises an error for; for Hugging Face's trainer, one with an undeclared label or
token, one that cannot be read, and one row more of a unit than it may have. What was charged,
the type of an error and the warnings must be the same. The old trainer charged and then raised
an error for each of its eight unusual records.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor, nn

from assurance.gate_network_trainer import LENGTH, WORDS, texts, trainer
from assurance.networks import DEEP, SUMS, Patches
from veracal.accounting import Budget, Unit
from veracal.calibration import PrivateCalibratedClassifier
from veracal.data import Dataset
from veracal.errors import DataError
from veracal.ledger import Ledger, open_ledger
from veracal.neural import PrivateNetwork
from veracal.neural.huggingface import data as reading
from veracal.queries import Curator
from veracal.training import (
    NormClipper,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateChannelStandardizer,
    PrivateLogisticRegression,
    PrivateSearch,
    PrivateStandardizer,
    make_private_pipeline,
)
from veracal.training.base import add_labels

NAME = "outcomes"
SECONDS = 15
READING = DEEP + "huggingface.data."
SIZE, PATIENT = 30, Unit("patient", max_contributions=2)
Outcome = tuple[list[Any], str, list[str]]


# ---------------------------------------------------------------- mutants


def range_refused(values: Any, end: int) -> Any:
    """Stop at an undeclared number."""
    found = in_range(values, end)
    if not found.all():
        raise DataError("labels", f"numbers below {end}", "others", "Correct them.")
    return found


def limit_refused(dataset: Any, unit: Unit, column: str) -> Any:
    """Stop at a unit with too many rows."""
    found = within_limit(dataset, unit, column)
    if not found.all():
        raise DataError("train_dataset", "fewer rows of a unit", "more", "Leave some out.")
    return found


def unread_refused(dataset: Any, form: Any) -> Any:
    """Stop at a row that cannot be read."""
    arrays, labels, fits = gathered(dataset, form)
    if not fits.all():
        raise DataError("train_dataset", "rows of whole numbers", "others", "Correct them.")
    return arrays, labels, fits


def failing(sums: Any, engine: Any, rows: Any, clip: Any, total: Any, counts: Any) -> None:
    """Stop where a module fails for a record."""
    counts.examples += len(engine.add(sums._records.block(rows), clip, total).norms)


def every_class_needed(facts: Any, dataset: Dataset) -> Any:
    """Stop if a class has no record, as scikit-learn's classifiers do."""
    found = add_labels(facts, dataset)
    if len(dataset) and len(np.unique(found.codes)) < len(found.classes):
        raise ValueError("Expected records of all classes.")
    return found


in_range, within_limit, gathered = (
    reading._in_range,
    reading._within_unit_limit,
    reading._gather_rows,
)
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "a label that there is not stops a training": {READING + "_in_range": range_refused},
    "a unit with too many rows stops a training": {
        READING + "_within_unit_limit": limit_refused
    },
    "a row that cannot be read stops a training": {READING + "_gather_rows": unread_refused},
    "a module that fails for a record stops a fit": {SUMS + "_add_block": failing},
    "a class that nobody has stops a fit": {
        "veracal.training.base.add_labels": every_class_needed
    },
}


# ---------------------------------------------------------------- what is fitted


class Picky(nn.Module):
    """Takes no long rows."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Any:
        """Logits."""
        if float(x.abs().max()) > 50:
            raise RuntimeError("too long")
        return self.line(x)


def linear(**more: Any) -> PrivateLogisticRegression:
    """A short descent."""
    return PrivateLogisticRegression(**{"steps": 2, "size": SIZE, **more})


def network(module: nn.Module) -> PrivateNetwork:
    """The same for a network."""
    return PrivateNetwork(module, steps=2, size=SIZE, sampling_rate=1.0, gradients="ghost")


def searched() -> PrivateSearch:
    """A search of two trials or so."""
    return PrivateSearch(
        linear(sampling_rate=1.0), {"optimizer": [0.3, 1.0]}, mean=2.0, holdout=0.2, size=SIZE
    )


def standardized() -> Any:
    """Steps that have a cost."""
    scaler = PrivateStandardizer(bounds=(-1, 1), noise_multiplier=12.0, size=SIZE)
    return make_private_pipeline(scaler, NormClipper(norm=6.0), linear())


def channels() -> Any:
    """The same for channels."""
    scaler = PrivateChannelStandardizer(1.0, 1.0, noise_multiplier=8.0, size=SIZE)
    return make_private_pipeline(scaler, network(nn.Linear(3, 2)))


def calibrated(how: Any) -> PrivateCalibratedClassifier:
    """A classifier and its map."""
    told: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "size": SIZE}
    return PrivateCalibratedClassifier(linear(), recalibrate=how, **told)


MODELS: dict[str, Callable[[], Any]] = {
    "logistic": linear,
    "objective": lambda: ObjectivePerturbation(norm=2.0, size=SIZE),
    "output": lambda: OutputPerturbation(norm=2.0, size=SIZE),
    "pipeline": standardized,
    "channels": channels,
    "search": searched,
    "calibrated, reuse": lambda: calibrated("reuse"),
    "calibrated, split": lambda: calibrated("split"),
    "network": lambda: network(nn.Linear(3, 2)),
    "network that fails": lambda: network(Picky()),
}
ODD = ([3e38, 3e38, -3e38], [1e-45, 0.0, 0.0], [0.0, 0.0, 0.0])
ODD_TEXTS: dict[str, dict[str, Any]] = {
    "label": {"labels": 2},
    "no label": {"labels": -100},
    "text for a label": {"labels": "positive"},
    "token": {"input_ids": [WORDS]},
    "text for tokens": {"input_ids": "a text"},
    "no tokens": {"input_ids": None},
    "whose": {"patient": None},
    "too many rows": {"patient": 0},
}


# ---------------------------------------------------------------- neighbors


def outcome(fit: Callable[[Ledger], Any], ledger: Ledger) -> Outcome:
    """What a fit was charged, how it ended, and of what was warned."""
    before, ended = ledger.length(), "a model"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            fit(ledger)
        except Exception as error:
            ended = type(error).__name__
    # What is said of the noisy sums follows from what is released.
    released = ("did not change", "almost nothing", "same logits")
    said = {str(one.message) for one in seen}
    left = sorted(one for one in said if not any(word in one for word in released))
    return [one.event for one in ledger.entries()[before:]], ended, left


def rows_of(n: int, rng: np.random.Generator) -> Iterator[tuple[str, Any, Any]]:
    """Records of one class, and the same with an additional unusual one."""
    X, y = rng.standard_normal((n, 3)).astype(np.float32), np.zeros(n, int)
    yield "", X, y
    if n:
        yield "fewer", X[:0], y[:0]
    for i, odd in enumerate(ODD):
        yield f"record {i}", np.vstack([X, np.array([odd], np.float32)]), np.append(y, i != 1)


def fit_model(name: str, dataset: Dataset, ledger: Ledger) -> None:
    """Fit a model that the ledger pays for."""
    Curator(dataset, ledger).fit(MODELS[name]())


def check_model(name: str, n: int, ledger: Ledger, rng: np.random.Generator) -> int:
    """Fit a model to all neighbors of n records."""
    found: dict[str, Outcome] = {}
    for odd, X, y in rows_of(n, rng):
        dataset = Dataset(X, y.astype(int), (0, 1), size=SIZE)
        found[odd] = outcome(partial(fit_model, name, dataset), ledger)
        same(f"{name}, {n} records and {odd}", found[odd], found[""])
    return len(found)


def check_trainer(folder: Path, ledger: Ledger, rng: np.random.Generator) -> int:
    """Train on texts, and on the same with an additional unusual one."""
    rows = [{**row, "patient": i // 2} for i, row in enumerate(texts(8, rng))]
    odd = {"input_ids": [1] * LENGTH, "labels": 0, "patient": 9}
    told: dict[str, Any] = {"unit": PATIENT, "unit_column": "patient", "delta": 1e-5}
    told |= {"gradients": None}

    def fit(some: Any, paid: Ledger) -> None:
        trainer(folder, some, ledger=paid, **told).train()

    usual = outcome(partial(fit, rows), ledger)
    for name, change in ODD_TEXTS.items():
        found = outcome(partial(fit, [*rows, {**odd, **change}]), ledger)
        same(f"trainer, {name}", found, usual)
    return 1 + len(ODD_TEXTS)


def same(what: str, found: Outcome, usual: Outcome) -> None:
    """Compare two outcomes."""
    assert usual[1] == "a model", f"{what}: even without it the fit stops with {usual[1]}"
    assert found[0] == usual[0], f"{what}: another charge"
    assert found[1] == usual[1], f"{what}: it ends with {found[1]} after the charge"
    assert found[2] == usual[2], f"{what}: it warns of {found[2]}"


def run(subject: Patches, *, long: bool) -> str:
    """Fit everything to neighbors."""
    rng, fits = np.random.default_rng(0), 0
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        for name, instead in subject.items():
            stack.enter_context(mock.patch(name, instead))
        folder = Path(made)
        budget = Budget(1e4, 1e-2)
        ledger = open_ledger(folder / "ledger", budget, kind="open")
        units = open_ledger(folder / "units", Budget(1e4, 1e-2, unit=PATIENT), kind="open")
        fits += check_trainer(folder, units, rng)
        for name in MODELS:
            for n in (0, 1, 20) if long else (5,):
                fits += check_model(name, n, ledger, rng)
    return f"{fits} fits of {len(MODELS) + 1} kinds, each as its neighbor"
