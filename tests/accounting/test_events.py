"""Events and budgets say what they mean, and nothing else passes for one."""

import json
import math

import numpy as np
import pytest

from veracal.accounting.events import (
    Approximate,
    AsReplaceOne,
    Budget,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Parallel,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
    Unit,
    event_from_json,
    event_to_json,
)
from veracal.errors import DataError

EVENTS = [
    Gaussian(2.0, 1.5, "replace-one"),
    Laplace(0.5),
    DiscreteLaplace(3.0, 2**60 + 1),
    DiscreteGaussian(3.0, 2),
    DiscreteGaussian(3.0, 1.5, entries=7),
    PoissonGaussian(1.0, 0.1, rate=0.25),
    Pure(0.1),
    Approximate(0.5, 1e-6),
    Repeated(Pure(0.1), 3),
    Composed((Pure(0.1), Repeated(Gaussian(1.0), 5))),
    Parallel((Pure(0.1), Gaussian(1.0)), (0.75, 0.25)),
    Parallel((Pure(0.1), Gaussian(1.0))),
    Search(Composed((Gaussian(4.0), Laplace(3.0))), 10, "geometric"),
    AsReplaceOne(Gaussian(1.0)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_json_round_trip(event):
    assert (
        event_from_json(json.loads(json.dumps(event_to_json(event), allow_nan=False))) == event
    )


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"kind": "Pure"},
        {"kind": "Free", "epsilon": 0.0},
        {"kind": "Pure", "epsilon": 0.1, "discount": 0.5},
        {"kind": "Pure", "epsilon": -0.1},
        {"kind": "Pure", "epsilon": "0.1"},
        {"kind": "Pure", "epsilon": float("nan")},
        {"kind": "Gaussian", "noise": True},
        {"kind": "Repeated", "event": {}, "times": 1},
        {"kind": "Composed", "events": []},
        {"kind": ["Pure"], "epsilon": 1.0},
    ],
    ids=str,
)
def test_invalid_json_is_rejected(written):
    with pytest.raises(DataError, match="event: expected one of Gaussian"):
        event_from_json(written)


@pytest.mark.parametrize("number", [np.float32(2.0), np.int64(2), 2, np.float64(2.0)])
def test_numbers_become_plain_floats(number):
    # dp-accounting 0.6.0 counts Gaussians with int multipliers as one.
    assert type(Gaussian(number).noise) is float
    assert type(Pure(number).epsilon) is float
    assert type(PoissonGaussian(1.0, rate=np.float32(0.5)).rate) is float


def test_integers_beyond_floats_stay_exact():
    assert DiscreteLaplace(1.0, 2**60 + 1).sensitivity == 2**60 + 1


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, True, "1", None])
def test_noise_is_finite_and_nonnegative(value):
    with pytest.raises(ValueError, match="Expected a finite noise >= 0"):
        Gaussian(value)


def test_discrete_noise_has_an_integer_sensitivity():
    with pytest.raises(ValueError, match="Expected an integer sensitivity"):
        DiscreteLaplace(1.0, 0.5)
    assert DiscreteGaussian(1.0, 0.5, entries=2).sensitivity == 0.5


def test_relations_do_not_mix():
    with pytest.raises(ValueError, match="one neighboring relation, got add-remove and repl"):
        Composed((Pure(0.1), Pure(0.1, "replace-one")))
    mixed = Composed((AsReplaceOne(Pure(0.1)), Pure(0.1, "replace-one")))
    assert mixed.relation == "replace-one"
    with pytest.raises(ValueError, match="Expected an add-remove event"):
        AsReplaceOne(Pure(0.1, "replace-one"))


def test_only_events_compose():
    with pytest.raises(ValueError, match="Expected an event of veracal.accounting"):
        Composed((Pure(0.1), 0.1))
    with pytest.raises(ValueError, match="Expected one event or more"):
        Composed(())

    class Pure2(Pure):
        """An event that claims to be another."""

    Pure2.__name__ = "Pure"
    with pytest.raises(ValueError, match="Expected an event of veracal.accounting"):
        Repeated(Pure2(0.1), 2)


def test_weights_of_parallel_events_are_probabilities():
    with pytest.raises(ValueError, match="sum to 1"):
        Parallel((Pure(0.1), Pure(0.1)), (0.5, 0.4))
    with pytest.raises(ValueError, match="one weight for each of 2 partitions"):
        Parallel((Pure(0.1), Pure(0.1)), (1.0,))


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 0), (-1, 0), (math.inf, 0), (1, 1), (1, -0.1), (1, math.nan)]
)
def test_a_budget_is_finite_and_positive(epsilon, delta):
    with pytest.raises(ValueError, match="Expected"):
        Budget(epsilon, delta)


def test_a_unit_has_a_name_and_a_number_of_rows():
    assert str(Unit()) == "one record"
    with pytest.raises(ValueError, match="max_contributions"):
        Unit("patient", 0)
    with pytest.raises(ValueError, match="name"):
        Unit(" ")
    with pytest.raises(ValueError, match="relation"):
        Budget(1.0, relation="nearby")
