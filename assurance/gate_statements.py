"""A statement claims no more than was charged, for the units that the records name.

Every private fit is made with and without a ledger: without one, its statement says that other
fits of the records are not counted. A fit that begins with the weights of an earlier one names
it. Every statement that a ledger paid for names the ledger's total, and that its cap was raised
after releases: the old code said so in the statement of a whole run alone, in 0 of 14 here. A
ledger that protects patients rejects records without patient ids: two rows of
one unidentified patient move a count by two where one was charged.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch import nn

from assurance.gate_outcomes import MODELS, SIZE, linear, network
from assurance.ledgers import Patches
from veracal.accounting import Budget, Pure, Unit
from veracal.calibration import (
    PrivateTemperature,
    Temperature,
    guard_map,
    measure_private,
    recalibrate,
)
from veracal.data import Dataset, Scores
from veracal.errors import DataError
from veracal.ledger import Ledger, ledger_total, open_ledger
from veracal.queries import Count, Curator
from veracal.queries import curator as holder
from veracal.queries import curator as models

NAME = "statements"
SECONDS = 15
RAISED = "cap raised after releases"
SAID = "not charged to a ledger; other fits of these records are not counted"
rng = np.random.default_rng(0)
X = rng.standard_normal((20, 3)).astype(np.float32)
RECORDS = Dataset(X, (X[:, 0] > 0).astype(int), (0, 1), size=SIZE, name="patients")


# ---------------------------------------------------------------- mutants


@contextmanager
def unnoticed(ledger: Ledger) -> Any:
    """Omit that a ledger was charged."""
    yield


def without_note(ledger: Ledger) -> str:
    """State the total, and not that the cap was raised."""
    return ledger_total(ledger).partition(" (")[0] + "."


def terms_without_reasons(model: Any, *parts: Any) -> Any:
    """State the total alone."""
    return {**charge_terms(model, *parts), "not_covered": ()}


def uncharged_terms(model: Any, *parts: Any) -> Any:
    """State the total of no ledger."""
    return {**charge_terms(model, *parts), "ledger_total": None}


def without_ids(records: Any, unit: Unit) -> None:
    """Treat every row without an id as a separate unit."""
    if records.units is not None:
        check_units(records, unit)


check_units, charge_terms = holder.check_units, models.charge_terms
MODELS_AT = "veracal.queries.curator."
ASKING = "veracal.calibration.private.session."
TERMS = tuple(
    f"veracal.{module}.charge_terms"
    for module in (
        "training.base",
        "training.pipeline",
        "calibration.private_classifier",
    )
)
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "what was not charged is not said": {one: terms_without_reasons for one in TERMS},
    "every fit is said to be charged": {"veracal.queries.curator.is_charged": lambda: True},
    "statements of models leave out the total": {one: uncharged_terms for one in TERMS},
    "statements of answers leave out the total": {
        "veracal.calibration.private.session.ledger_total": lambda ledger: None
    },
    "models do not say that a cap was raised": {
        "veracal.queries.curator.ledger_total": without_note
    },
    "answers do not say that a cap was raised": {
        "veracal.calibration.private.session.ledger_total": without_note
    },
    "a charge is not noticed": {"veracal.queries.curator.mark_charged": unnoticed},
    "first weights of logistic models are not named": {
        "veracal.training.logistic.record_trained_weights": lambda weights, name: None
    },
    "first weights of networks are not named": {
        "veracal.neural.network.describe_initial_weights": lambda weights: ()
    },
    "rows without ids are units of their own": {
        "veracal.queries.curator.check_units": without_ids
    },
}


# ---------------------------------------------------------------- promises


def run(subject: Patches, *, long: bool) -> str:
    """Fit, and read what is stated."""
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        for name, instead in subject.items():
            stack.enter_context(mock.patch(name, instead))
        folder = Path(made)
        check_ids(folder)
        check_first_weights()
        for name, make in MODELS.items():
            check_charge(name, make, folder)
        for name, said in answers(folder):
            check_total(name, said)
    return f"{2 * len(MODELS)} statements of models say what was charged, and the totals"


def check_charge(name: str, make: Callable[[], Any], folder: Path) -> None:
    """Compare a statement with the ledger."""
    ledger = open_ledger(folder / f"{name}.ledger", Budget(1e3, 1e-2), kind="open")
    free = make().fit_records(RECORDS).statement_
    ledger.charge(Pure(1.0), "an earlier release")
    ledger.extend(epsilon=1.0)
    paid = Curator(RECORDS, ledger).fit(make()).statement_
    assert free.ledger_total is None, f"{name}: a fit without a ledger names a total"
    check_total(name, paid)
    for how, said in (("text", free.text()), ("JSON", str(free.to_json()))):
        assert SAID in said, f"{name}: a fit without a ledger does not say so ({how})"
    for how, said in (("text", paid.text()), ("JSON", str(paid.to_json()))):
        assert SAID not in said, f"{name}: a fit that was charged denies it ({how})"


def answers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Make each kind of statement about answers, after the cap was raised."""
    ledger = open_ledger(folder / "answers.ledger", Budget(1e3))
    ledger.charge(Pure(1.0), "an earlier release")
    ledger.extend(epsilon=1.0)
    logits = 2.0 * X[:, :2]
    held = Curator(Scores.from_logits(logits, (X[:, 0] < 0).astype(int)), ledger)
    yield "measurement", measure_private(held, epsilon=1.0).statement
    yield "fitter", PrivateTemperature(epsilon=1.0).fit(held).statement_
    yield "guard", guard_map(Temperature(2.0), held, epsilon=1.0).statement
    yield "recalibration", recalibrate(held, epsilon=4.0).statement


def check_total(name: str, said: Any) -> None:
    """Look for the ledger's total, and for what was done to its cap."""
    for how, words in (
        ("text", said.text()),
        ("summary", said.summary()),
        ("JSON", str(said.to_json())),
    ):
        assert "epsilon = 1001" in words, f"{name}: the total is left out ({how})"
        assert RAISED in words, f"{name}: the raised cap is left out ({how})"


def check_first_weights() -> None:
    """Begin where another fit has ended."""
    first = linear().fit_records(RECORDS)
    again = linear(initial=(first.coef_, first.intercept_)).fit_records(RECORDS)
    before = network(nn.Linear(3, 2)).fit_records(RECORDS)
    more = network(before.module_).fit_records(RECORDS)
    for name, model in (("logistic", again), ("network", more)):
        named = [one for one in model.statement_.not_covered if "'patients'" in one]
        assert named, f"{name}: weights of an earlier fit are not named"


def check_ids(folder: Path) -> None:
    """Count rows of patients, one of whom has two."""
    budget = Budget(1e6, unit=Unit("patient"))
    ledger = open_ledger(folder / "units.ledger", budget)
    counts = []
    for n in (5, 3):  # with a patient of two rows, and without
        scores = Scores.from_logits(np.zeros((n, 2)), np.zeros(n, int))
        try:
            held = Curator(scores, ledger, version=str(n))
        except DataError:
            continue
        counts.append(held.answer(Count(), micro_epsilon=400_000_000_000).value)
    moved = abs(float(np.diff(np.ravel(counts))[0])) if counts else 0.0
    assert moved <= 1, f"a patient moves a count by {moved:g} where 1 is charged"
