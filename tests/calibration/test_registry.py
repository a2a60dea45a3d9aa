"""The registry of calibration methods, and a method that is added to it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from veracal.accounting import Budget
from veracal.calibration import (
    METHODS,
    BudgetDivision,
    CalibrationMap,
    CalibrationMethod,
    PrivateFitter,
    SourceProfile,
    method_names,
    plan_recalibration,
    recalibrate,
    register_method,
    training_methods,
    unregister_method,
)
from veracal.cli._artifacts import map_summary
from veracal.cli.recalibrate import check_method, method_choices
from veracal.data import Scores
from veracal.ledger import open_ledger
from veracal.queries import Count, QueryRequest


@dataclass(frozen=True, eq=False)
class Constant(CalibrationMap):
    """Uniform probabilities, as an example of a new map."""

    kind: ClassVar[str] = "constant"

    def _map_scores(self, scores):
        shape = (len(scores), scores.n_classes)
        return Scores.from_probabilities(np.full(shape, 1 / scores.n_classes), scores.labels)


class PrivateConstant(PrivateFitter):
    """A fitter that counts records and returns the constant map, as an example."""

    covers = "a count"

    def __init__(self, *, epsilon=None, micro_epsilon=None):
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon

    def _queries(self):
        return [QueryRequest(Count(), self.micro_epsilon)]

    def _fit(self, session, queries):
        session.ask(queries[0], "count")
        return Constant()


@pytest.fixture
def constant():
    """The example, registered during a test."""
    register_method(
        CalibrationMethod(
            "constant",
            "uniform probabilities",
            lambda settings: PrivateConstant(micro_epsilon=settings.micro_epsilon),
        )
    )
    yield METHODS["constant"]
    unregister_method("constant")


def test_a_registered_method_recalibrates_and_is_a_choice_of_the_command_line(
    constant, tmp_path
):
    scores = Scores.from_logits([[2.0, 0.0], [0.0, 3.0]], [0, 1])
    ledger = open_ledger(tmp_path / "a.ledger", Budget(1.0))
    result = recalibrate(scores, "constant", epsilon=0.5, guard=None, ledger=ledger)
    assert result.method == "constant" and result.private
    assert result.statement.epsilon == ledger.spent().epsilon == 0.5
    assert result.transform(scores).probabilities.tolist() == [[0.5, 0.5]] * 2
    assert "constant" in method_names() and "constant" in method_choices(private=True)
    check_method("constant", "vector", private=True)
    assert map_summary(result.map) == "constant" and "'constant'" in result.text()


def test_the_command_line_plans_a_registered_method_like_any_other(constant):
    from veracal.accounting import Unit

    profile = SourceProfile(1, "add-remove", Unit(), sums_only=False, exact=False)
    plan = plan_recalibration(profile, "constant", budget=BudgetDivision(300_000, 100_000))
    purposes = [item.purpose for item in plan.items()]
    assert purposes == ["count", "Brier gain of a map"] and plan.budget.total == 400_000


def test_a_removed_method_is_unknown_again():
    assert "constant" not in METHODS and "constant" not in method_choices(private=True)


def test_names_are_unique_and_built_in_methods_stay(constant):
    for name in ("constant", "temperature", "auto", "none"):
        with pytest.raises(ValueError, match="new name"):
            register_method(CalibrationMethod(name, "", constant.private))
    with pytest.raises(ValueError, match="built-in"):
        unregister_method("temperature")
    with pytest.raises(ValueError, match="Expected a fitter"):
        register_method(CalibrationMethod("empty", ""))


def test_methods_of_a_training_run_have_a_fitter_without_a_cost():
    assert training_methods() == ("auto", "temperature", "two-temperatures", "none")
    for name in training_methods()[1:-1]:
        fitter = METHODS[name].unpriced_fitter()
        assert fitter.epsilon is None and fitter.micro_epsilon is None
