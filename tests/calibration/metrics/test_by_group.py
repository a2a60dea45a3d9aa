"""Every metric can be told apart by group."""

import numpy as np
import pytest

from tests.calibration.metrics.made import scores
from veracal.calibration import metrics
from veracal.data import by_group


@pytest.mark.parametrize("name", metrics.__all__)
def test_by_group(name, rng):
    made, metric = scores(60, 2), getattr(metrics, name)
    found = by_group(metric, made, "site", replicates=20, rng=rng)
    for code, group in enumerate(("a", "b")):
        part = made.take(made.groups["site"].codes == code)
        assert found.values[group].value == metric(part)
        assert np.isfinite([found.values[group].low, found.values[group].high]).all()
    assert found.values["nobody"].value is None
