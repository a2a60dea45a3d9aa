"""A fit is charged before a row is read, and a wrong fit is rejected without a charge.

The curator fits the real classifier to a data set on disk that records, at every read, what has
been charged so far. Wrong settings and records of the wrong form are rejected without a charge
or a read.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from assurance.linear import Patches, patched
from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.data.rows import MappedRows
from veracal.errors import BudgetError
from veracal.ledger import Ledger, open_ledger
from veracal.queries import Curator
from veracal.training.base import row_norms
from veracal.training.logistic import PrivateLogisticRegression

NAME = "linear_charge"
FIT = "veracal.queries.curator.Curator.fit"
SETTINGS: dict[str, Any] = {
    "epsilon": None,
    "noise_multiplier": 4.0,
    "steps": 3,
    "size": 20,
    "delta": 1e-5,
}
WRONG_SETTINGS: tuple[dict[str, Any], ...] = (
    {"steps": 0},
    {"steps": 2.5},
    {"steps": None, "epochs": 0},
    {"epochs": 1},
    {"epsilon": 1.0},
    {"epsilon": -1.0, "noise_multiplier": None},
    {"epsilon": float("nan"), "noise_multiplier": None},
    {"noise_multiplier": None},
    {"noise_multiplier": 0.0},
    {"noise_multiplier": float("inf")},
    {"delta": 0.0},
    {"delta": 1.0},
    {"delta": 0.06},  # above 1 / size
    {"sampling_rate": 0.0},
    {"sampling_rate": 1.01},
    {"clip": 0.0},
    {"clip": "flat"},
    {"optimizer": -0.1},
    {"weight_decay": -1.0},
    {"average": 1.5},
    {"dtype": "float16"},
    {"size": 0},
    {"size": 20.5},
    {"relation": "swap"},
    {"not_private": "noise only"},
    {"classes": ["a"]},
)
WRONG_FORM: tuple[dict[str, Any], ...] = (
    {"classes": ["a", "b", "c"]},
    {"size": None},
    {"relation": "replace-one", "size": 19},
    {"initial": (np.zeros((1, 2)), np.zeros(1))},
    {"initial": (np.zeros((2, 3)), np.zeros(2))},
    {"initial": (np.full((1, 3), np.nan), np.zeros(1))},
)

CHECK_FORM = "veracal.training.logistic.PrivateLogisticRegression._check_form"


# ---------------------------------------------------------------- mutants

check_records = PrivateLogisticRegression.check_records


def free(holder: Curator, model: Any, *, purpose: str = "training") -> Any:
    """Forget to charge."""
    return model.fit_records(holder._records)


def charged_late(holder: Curator, model: Any, *, purpose: str = "training") -> Any:
    """Charge after the fit."""
    model.fit_records(holder._records)
    holder.ledger.charge(model.event(), purpose)
    return model


def checked_late(holder: Curator, model: Any, *, purpose: str = "training") -> Any:
    """Charge for data that cannot be fitted."""
    holder.ledger.charge(model.event(), purpose)
    return model.fit_records(holder._records)


def reading_check(model: PrivateLogisticRegression, dataset: Dataset) -> None:
    """Read the rows to check whether they fit."""
    row_norms(dataset.X)
    check_records(model, dataset)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M17 forget to charge": {FIT: free},
    "M18 charge after the fit": {FIT: charged_late},
    "form checked after the charge": {FIT: checked_late},
    "form of the start not checked": {CHECK_FORM: lambda model, facts: None},
    "settings not checked": {
        "veracal.training.logistic.PrivateLogisticRegression._check_settings": lambda model: (
            None
        )
    },
    "rows read to check their form": {
        "veracal.training.logistic.PrivateLogisticRegression.check_records": reading_check
    },
}


class RecordingRows(MappedRows):
    """Rows on disk that record the charges before each read."""

    ledger: Ledger | None = None
    charged: list[int]

    def __getitem__(self, key: Any) -> Any:
        if self.ledger is not None:
            self.charged.append(len(self.ledger.entries()))
        return super().__getitem__(key)


def run(subject: Patches, *, long: bool) -> str:
    """Run valid fits, and attempt invalid ones."""
    refused = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        patched(subject),
        make_curator(folder) as both,
    ):
        holder, rows = both
        check_charge(holder, rows)
        for wrong in (*WRONG_SETTINGS, *WRONG_FORM):
            check_refused(holder, rows, {**SETTINGS, **wrong}, wrong)
            refused += 1
        check_too_dear(holder, rows)
    return f"paid before each of {len(rows.charged)} readings; {refused} refused for nothing"


@contextmanager
def make_curator(folder: str) -> Iterator[tuple[Curator, RecordingRows]]:
    """Records on disk, with a ledger in front of them."""
    rng = np.random.default_rng(0)
    path = Path(folder) / "X.npy"
    np.save(path, rng.standard_normal((20, 3)))
    plain = np.load(path, mmap_mode="r")
    rows = RecordingRows(path, plain.dtype, plain.shape, offset=plain.offset)
    rows.charged = []
    dataset = Dataset(rows, rng.integers(2, size=20), ("a", "b"))
    ledger = open_ledger(Path(folder) / "ledger", Budget(20.0, 1e-5), kind="open")
    rows.ledger = ledger
    assert dataset.X is rows, "the gate does not see what is read"
    yield Curator(dataset, ledger), rows


def check_charge(holder: Curator, rows: RecordingRows) -> None:
    """A valid fit is charged once, at its stated cost, before it reads."""
    before = len(holder.ledger.entries())
    for fits in (1, 2, 3):
        rows.charged.clear()
        model = holder.fit(PrivateLogisticRegression(**SETTINGS))
        entries = holder.ledger.entries()
        assert len(entries) == before + fits, f"{len(entries) - before} charges for {fits} fits"
        assert rows.charged, "the gate does not see what is read"
        early = min(rows.charged)
        assert early == before + fits, "rows were read before the fit was paid"
        assert model.event_ == PrivateLogisticRegression(**SETTINGS).event()


def check_refused(
    holder: Curator, rows: RecordingRows, settings: dict[str, Any], wrong: dict[str, Any]
) -> None:
    """An invalid fit raises an error, without a charge or a read."""
    before, read = len(holder.ledger.entries()), len(rows.charged)
    try:
        holder.fit(PrivateLogisticRegression(**settings))
    except (ValueError, TypeError, AttributeError) as error:
        said = str(error)
    else:
        raise AssertionError(f"accepted: {wrong}")
    charged = len(holder.ledger.entries()) - before
    assert not charged, f"{wrong} was charged, and then refused: {said}"
    assert len(rows.charged) == read, f"rows were read to refuse {wrong}"
    assert said.startswith("Expected") or ": expected" in said.lower(), f"{wrong}: {said}"


def check_too_dear(holder: Curator, rows: RecordingRows) -> None:
    """A fit beyond the budget is rejected without a read."""
    read = len(rows.charged)
    dear = {**SETTINGS, "noise_multiplier": 0.05, "steps": 50}
    try:
        holder.fit(PrivateLogisticRegression(**dear))
    except BudgetError:
        assert len(rows.charged) == read, "rows were read for a fit that was not granted"
    else:
        raise AssertionError("a fit beyond the budget was granted")
