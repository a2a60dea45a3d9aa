"""Statements about answers name the total of the ledger that paid for them."""

import numpy as np
import pytest

from veracal.accounting import Budget, Pure
from veracal.calibration import (
    PrivateTemperature,
    Temperature,
    guard_map,
    measure_private,
    recalibrate,
)
from veracal.data import Scores
from veracal.ledger import open_ledger
from veracal.queries import Curator, Pool

RAISED = "costs at most epsilon = 21 (cap raised after releases)."
MADE = {
    "measurement": lambda source: measure_private(source, epsilon=1.0).statement,
    "fitter": lambda source: PrivateTemperature(epsilon=1.0).fit(source).statement_,
    "guard": lambda source: guard_map(Temperature(2.0), source, epsilon=1.0).statement,
    "recalibration": lambda source: recalibrate(source, epsilon=4.0).statement,
}


@pytest.fixture
def holder(tmp_path):
    logits = np.random.default_rng(0).normal(size=(50, 2))
    ledger = open_ledger(tmp_path / "ledger", Budget(20.0))
    ledger.charge(Pure(1.0), "an earlier release")
    ledger.extend(epsilon=1.0)
    return Curator(Scores.from_logits(logits, (logits[:, 1] > 0).astype(int)), ledger)


@pytest.mark.parametrize("kind", MADE)
def test_a_statement_after_a_raise_says_so(kind, holder):
    said = MADE[kind](holder)
    assert RAISED in said.text()
    assert RAISED in said.summary()
    assert said.to_json()["ledger_total"].endswith(RAISED)


def test_the_text_of_a_recalibration_says_so(holder):
    assert RAISED in recalibrate(holder, epsilon=4.0).text()


def test_a_pool_names_no_total(holder):
    assert measure_private(Pool([holder]), epsilon=1.0).statement.ledger_total is None
