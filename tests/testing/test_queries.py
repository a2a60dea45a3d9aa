"""The contract of queries holds for ours and fails for broken ones."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from veracal.data import Dataset
from veracal.mechanisms.grid import Bounds, clip_to_grid
from veracal.queries.query import BinnedSum, BoundedSum, DenseSum
from veracal.queries.score_queries import Brier, Correct, Count, NegativeLogLikelihood
from veracal.testing import adversarial_scores, check_query


def confidence(scores):
    return scores.confidence


def gap(scores):
    return scores.correct - scores.confidence.astype(float)


def ones(scores):
    return np.ones(len(scores))


def bins(scores):
    return np.clip(np.ceil(scores.confidence * 15) - 1, 0, 14)


OURS = [
    Count(),
    Correct(),
    Brier(),
    Brier(top_label=True),
    NegativeLogLikelihood(),
    NegativeLogLikelihood(centered=True),
    BoundedSum("gap", gap, -1, 1),
    BinnedSum("gaps", gap, bins, 15, -1, 1),
    BinnedSum("histogram", ones, lambda s: bins(s) + 15 * s.correct, 30, 0, 1),
    DenseSum("probabilities", lambda s: s.probabilities, 10, 1.0, power=1),
    DenseSum("logits", lambda s: s.logits, 10, 1.0, power=2),
    BoundedSum("logit", lambda s: s.logits[:, 0], 1, 2),
]


@pytest.mark.parametrize("query", OURS, ids=lambda q: q.name)
def test_built_in_rules_pass(query):
    check_query(query, trials=60)


def numbers(n, rng):
    X = rng.choice([0.0, 1.0, -1e300, 1e300, 0.5, 5e-324], size=(n, 1))
    return Dataset(X, np.zeros(n, dtype=int), ("a", "b"))


def test_records_of_other_kinds_can_be_checked():
    check_query(Count(), numbers, trials=20)
    check_query(BoundedSum("x", lambda d: d.X[:, 0], -2, 7), numbers, trials=60)


def test_records_that_must_not_contribute_are_checked():
    empty = Dataset(np.zeros((2, 1)), np.zeros(2, dtype=int), ("a", "b"))
    check_query(
        BoundedSum("log", lambda d: np.log(d.X[:, 0]), 0, 1), numbers, zero_records=empty
    )
    one = BoundedSum("one", lambda d: np.ones(len(d)), 0, 1)
    with pytest.raises(AssertionError, match="must be zero on the record"):
        check_query(one, numbers, zero_records=empty)


@dataclass(frozen=True)
class Broken:
    """A query of ours, with something else in place of one of its methods."""

    query: object
    other: dict

    def __getattr__(self, name):
        return self.other[name] if name in self.other else getattr(self.query, name)


def raw_sum(scores):
    """Rounded as a whole."""
    return np.array([round(float(confidence(scores).sum()) * 2**20)])


def clip_unused(scores):
    """The clip is computed and the raw numbers are used."""
    clip_to_grid(scores.logits[:, 0], Bounds(-1, 1), Brier().grid)
    return np.array([int(np.clip(scores.logits[:, 0], -1e9, 1e9).sum())])


def centered(scores):
    return gap(scores) - gap(scores).mean() if len(scores) else gap(scores)


def refuses(scores):
    if len(scores) == 1:
        raise ValueError("too few records")
    return Correct().evaluate(scores)


def warns(scores):
    np.log(np.zeros(len(scores)))
    return Correct().evaluate(scores)


BROKEN = {
    "sensitivity halved": Broken(Brier(), {"sensitivity": lambda r: 2**20}),
    "replace-one as add-remove": Broken(
        OURS[6], {"sensitivity": lambda r: 2**20, "sensitivity_l2": lambda r: 2.0**20}
    ),
    "sum rounded": Broken(BoundedSum("c", confidence, 0, 1), {"evaluate": raw_sum}),
    "clip unused": Broken(
        BoundedSum("z", confidence, -1, 1, bits=0), {"evaluate": clip_unused}
    ),
    "bound from the records": Broken(
        Correct(), {"evaluate": lambda s: Correct().evaluate(s) * max(len(s), 1)}
    ),
    "uses other records": BoundedSum("centered", centered, -1, 1),
    "an error tells of the records": Broken(Correct(), {"evaluate": refuses}),
    "a warning": Broken(Correct(), {"evaluate": warns}),
    "floats": Broken(Correct(), {"evaluate": lambda s: Correct().evaluate(s) + 0.0}),
    "another shape": Broken(Correct(), {"evaluate": lambda s: Correct().evaluate(s)[0]}),
    "float sensitivity": Broken(Correct(), {"sensitivity": lambda r: 1.0}),
    "no sensitivity": Broken(Correct(), {"sensitivity": lambda r: 0}),
    "no name": Broken(Correct(), {"name": " "}),
    "not zero on nothing": Broken(Correct(), {"evaluate": lambda s: Correct().evaluate(s) + 1}),
    "L2 above L1": Broken(Correct(), {"sensitivity_l2": lambda r: 2.0}),
    "L2 too small": Broken(OURS[7], {"sensitivity_l2": lambda r: 0.5 * 2**20}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_faulty_ones_fail(name):
    with pytest.raises(AssertionError):
        check_query(BROKEN[name], trials=60)


def test_a_statement_that_moves_is_caught():
    class Learns(Broken):
        def evaluate(self, scores):
            self.other["sensitivity"] = lambda r: 5 + len(scores)
            return Correct().evaluate(scores)

    with pytest.raises(AssertionError, match="changed"):
        check_query(Learns(Correct(), {}), trials=3)


@pytest.mark.parametrize("n", [0, 1, 30])
def test_adversarial_scores_are_of_the_right_form(n):
    for seed in range(20):
        scores = adversarial_scores(n, np.random.default_rng(seed), classes=4)
        assert len(scores) == n and scores.n_classes == 4 and scores.labels is not None


def test_settings_are_part_of_a_query():
    query = BoundedSum("x", confidence, 0, 1, settings={"temperature": 2.0})
    assert replace(query, low=-1).settings["temperature"] == 2.0
