"""Correct and all predictions by bin: the counts, and their sensitivity."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from veracal.calibration import CorrectWrong
from veracal.calibration.bins import Bins
from veracal.calibration.queries.binned import CorrectTotal
from veracal.data import Scores
from veracal.testing import adversarial_scores, check_query

QUERIES = [CorrectTotal(), CorrectTotal(Bins(1)), CorrectTotal(Bins(3), 0.2)]
TWO = Scores.from_probabilities([[0.6, 0.4], [0.95, 0.05], [0.6, 0.4]], [0, 0, 1])


@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_it_keeps_its_contract(query):
    check_query(query, trials=20)


@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_it_counts_right_ones_and_all(query, rng):
    scores = adversarial_scores(500, rng)
    sides = CorrectWrong(query.bins, query.inverse).evaluate(scores)
    result = query.evaluate(scores)
    np.testing.assert_array_equal(result[0::2], sides[0::2])
    np.testing.assert_array_equal(result[1::2], sides[0::2] + sides[1::2])
    assert result[1::2].sum() == 500
    assert result[0::2].sum() == scores.correct.sum()


def test_one_record_moves_it_as_far_as_is_stated_and_no_less():
    query = CorrectTotal(Bins(5))
    whole, without = (query.evaluate(TWO.take(np.array(i))) for i in ([0, 1], [0]))
    assert np.abs(whole - without).sum() == query.sensitivity("add-remove") == 2
    assert np.linalg.norm(whole - without) == pytest.approx(math.sqrt(2))
    assert query.sensitivity_l2("add-remove") >= math.sqrt(2)
    assert query.sensitivity_l2("add-remove") == pytest.approx(math.sqrt(2), rel=1e-15)
    other = query.evaluate(TWO.take(np.array([0, 0])))
    assert np.abs(whole - other).sum() == query.sensitivity("replace-one") == 4
    assert np.linalg.norm(whole - other) == query.sensitivity_l2("replace-one") == 2


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_contract_sees_the_sensitivity_of_the_other_form_or_relation(relation):
    @dataclass(frozen=True)
    class TooSmall(CorrectTotal):
        def sensitivity(self, asked):
            right = super().sensitivity(asked)
            return right // 2 if asked == relation else right

    with pytest.raises(AssertionError):
        check_query(TooSmall(), trials=40)


def test_settings_distinguish_queries():
    settings = [dict(query.settings) for query in QUERIES]
    assert settings[0] == {"bins": 15, "inverse": 1.0}
    assert settings[2] == {"bins": 3, "inverse": 0.2}
    with pytest.raises(ValueError, match="inverse"):
        CorrectTotal(inverse=-1.0)
