"""NumPy's error settings in the calling code do not change how a fit ends."""

import numpy as np
import pytest

from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.ledger import open_ledger
from veracal.queries import Curator
from veracal.training import (
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateLogisticRegression,
    PrivateStandardizer,
)

MODELS = {
    "output": OutputPerturbation(1.0, norm=1.0, classes=(0, 1)),
    "objective": ObjectivePerturbation(1.0, norm=1.0, classes=(0, 1)),
    "descent": PrivateLogisticRegression(
        epsilon=1.0, delta=1e-5, classes=(0, 1), size=50, epochs=2
    ),
    "standardizer": PrivateStandardizer((-3.0, 3.0), epsilon=1.0, size=50),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("extreme", [1e-320, 1e308, 0.0])
@pytest.mark.parametrize("charged", [False, True])
def test_extreme_records_raise_nothing_when_numpy_is_set_to_raise(
    name, extreme, charged, tmp_path
):
    """Without a record of 1e-320 the same fit would not raise."""
    X = np.random.default_rng(0).normal(size=(50, 3))
    X[0] = extreme
    y = (X[:, 1] > 0).astype(int)
    model = MODELS[name]
    with np.errstate(all="raise"):
        if charged:
            ledger = open_ledger(tmp_path / "l", Budget(2.0, 1e-4), kind="open")
            Curator(Dataset(X, y, (0, 1), size=50), ledger).fit(model)
        else:
            model.fit(X, y)
    assert model.private_
