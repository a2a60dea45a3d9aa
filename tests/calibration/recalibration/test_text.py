"""The result as text and as JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest

from veracal.accounting import Budget, Unit
from veracal.calibration import from_json, recalibrate


def test_the_result_goes_through_json(holders):
    estimate = recalibrate(holders(2), epsilon=0.5, measure=0.2)
    written = json.dumps(estimate.to_json(), allow_nan=False)
    read = json.loads(written)
    assert read == estimate.to_json() and from_json(read["map"]) == estimate.map
    assert read["sources"] == {"number": 2, "answered": 2, "dropouts": [None, None]}
    assert sum(read["epsilon"].values()) == pytest.approx(0.5)
    assert "records" not in read and "releases" not in read


def test_the_text_has_what_an_officer_needs(holders, scores):
    unit = Unit("patient", max_contributions=2)
    mine = replace(scores, units=np.arange(len(scores)))
    two = holders(2, Budget(1.0, unit=unit), records=mine)
    estimate = recalibrate(two, "temperature", epsilon=1.0, guard=0.1)
    text = estimate.text()
    for said in (
        "Queries to 2 sources: correct and wrong, gap (3 times), Brier gain of a map.",
        "Cost for one patient: epsilon 1",
        "The budget was 1: 0.9 for the map, 0.1 for the guard.",
        "95% interval",
        "the interval covers the noise of the answers and the sampling of the records",
        "The map was",
        "No figures before and after",
        "differentially private for one patient",
        "records at one source only",
    ):
        assert said in text, said
