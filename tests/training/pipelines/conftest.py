"""Records and a ledger for pipelines."""

import numpy as np
import pytest

from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.ledger import open_ledger


@pytest.fixture
def data(rng):
    X = np.column_stack([rng.normal(size=(300, 2)), rng.integers(0, 4, 300)])
    return Dataset(X, (X[:, 0] > 0).astype(int), ("no", "yes"), size=300)


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "a.ledger", Budget(20.0, 1e-5), kind="open")
