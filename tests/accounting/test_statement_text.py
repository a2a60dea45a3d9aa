"""A statement contains the accountant's values, rounded up."""

import json
import math
import re
from dataclasses import replace

import pytest

from veracal.accounting.epsilon import clt_epsilon_not_a_bound, delta_for, epsilon_for
from veracal.accounting.events import (
    AsReplaceOne,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    PoissonGaussian,
    Pure,
    Repeated,
    Search,
    Unit,
)
from veracal.accounting.statement_text import format_down, format_up, statement

TRAINING = Repeated(PoissonGaussian(1.1, rate=0.01), 200)


@pytest.fixture(scope="module")
def guarantee():
    return statement(TRAINING, 1e-5, Unit("patient", 2), covers=("the weights",))


def test_it_contains_the_accountants_values(guarantee):
    unit = Unit("patient", 2)
    assert guarantee.epsilon == epsilon_for(TRAINING, 1e-5, unit)
    assert guarantee.advantage == delta_for(TRAINING, 0.0, unit)
    assert dict(guarantee.curve)[1e-6] == epsilon_for(TRAINING, 1e-6, unit)
    # Two uses of two rows each, without amplification.
    assert guarantee.epsilon_without_poisson == epsilon_for(
        Repeated(Gaussian(1.1, 2.0), 2), 1e-5
    )


def test_it_names_unit_relation_and_rows(guarantee):
    text = guarantee.text()
    for words in (
        "one patient with at most 2 rows",
        "add-remove",
        "delta = 0.00001",
        "Poisson",
    ):
        assert words in text
    assert "+ the weights" in text and "Not covered:" in text


def test_it_can_be_written_as_json(guarantee):
    written = json.loads(json.dumps(guarantee.to_json(), allow_nan=False))
    assert written["unit"] == "patient" and written["max_contributions"] == 2
    assert [point["delta"] for point in written["curve"]] == [d for d, _ in guarantee.curve]


def test_an_unbounded_epsilon_is_null_in_json_and_stated_in_text():
    guarantee = statement(Gaussian(0.0), 1e-5)
    assert guarantee.to_json()["epsilon"] is None
    json.dumps(guarantee.to_json(), allow_nan=False)
    assert "epsilon = unbounded" in guarantee.text()
    assert "Nothing bounds how well an observer" in guarantee.text()


@pytest.mark.parametrize("epsilon", [0.1, 60.0])
def test_it_claims_no_more_than_its_epsilon(guarantee, epsilon):
    """At epsilon 60 an observer may be able to tell."""
    text = replace(guarantee, epsilon=epsilon).text()
    assert "That bounds how well an observer" in text and "cannot" not in text


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Pure(0.5), "exact sum"),
        (Gaussian(1.0), "Gaussian mechanism"),
        (Search(Gaussian(5.0), 5), "a search or integer vectors by Rényi"),
        (DiscreteGaussian(5.0, 1.0, entries=3), "integer vectors by Rényi"),
        (AsReplaceOne(Gaussian(5.0)), "converted from add-remove"),
        (TRAINING, "privacy-loss distributions"),
    ],
)
def test_the_accountant_is_named(event, words):
    delta = 0.0 if isinstance(event, Pure) else 1e-5
    assert words in statement(event, delta).accountant


def test_sampling_and_noise_inside_wrappers_are_stated():
    guarantee = statement(Search(TRAINING, 3), 1e-5)
    assert (
        guarantee.sampler.startswith("Poisson")
        and guarantee.epsilon_without_poisson > guarantee.epsilon
    )
    exact = statement(AsReplaceOne(DiscreteLaplace(3.0, 1)), 1e-5)
    assert exact.numerics.startswith("exact, on integers")


def test_exact_noise_is_distinguished_from_idealized():
    assert statement(DiscreteLaplace(3.0, 1), 0.0).numerics.startswith("exact, on integers")
    both = Composed((DiscreteLaplace(3.0, 1), Gaussian(1.0)))
    assert "otherwise in floating point" in statement(both, 1e-5).numerics
    assert statement(Gaussian(1.0), 1e-5).numerics.startswith("in floating point")
    rounded = statement(Gaussian(1.0), 1e-5, exact_noise=True)
    assert rounded.numerics.startswith("exact, on integers")


@pytest.mark.parametrize("value", [1.0, 0.123456, 9.99951, 1e-7, 12345.6, math.pi])
def test_formatted_costs_are_rounded_up(value):
    assert value <= float(format_up(value)) <= value * 1.0011


@pytest.mark.parametrize(
    ("noise", "rate", "times", "figure"),
    [
        (1.0, 0.01, 1000, 1.618),
        (1.1, 256 / 60000, 14062, 2.324),
        (5.0, 1.0, 100, 9.997),
        (0.6, 0.005, 300, 1.284),
        (1.0, 0.01, 10, 0.130),
    ],
)
def test_the_central_limit_figure_is_the_published_one(noise, rate, times, figure):
    event = Repeated(PoissonGaussian(noise, rate=rate), times)
    assert clt_epsilon_not_a_bound(event, 1e-5) == pytest.approx(figure, abs=1e-3)


@pytest.mark.parametrize(
    ("start", "decay", "rate", "each", "figure"),
    [(1.5, 0.02, 0.01, 50, 1.181), (0.9, 0.014, 0.004, 250, 2.382)],
)
def test_the_central_limit_figure_of_decaying_noise(start, decay, rate, each, figure):
    event = Composed(
        tuple(
            Repeated(PoissonGaussian(start * math.exp(-decay * epoch), rate=rate), each)
            for epoch in range(20)
        )
    )
    assert clt_epsilon_not_a_bound(event, 1e-5) == pytest.approx(figure, abs=1e-3)


def test_the_central_limit_figure_is_no_bound():
    event = Repeated(PoissonGaussian(0.5, rate=0.001), 1000)
    assert clt_epsilon_not_a_bound(event, 1e-6) == pytest.approx(0.98, abs=0.01)
    assert epsilon_for(event, 1e-6) > 4 * clt_epsilon_not_a_bound(event, 1e-6)
    with pytest.raises(ValueError, match="Gaussian noise only"):
        clt_epsilon_not_a_bound(Pure(1.0), 1e-6)


@pytest.mark.parametrize(
    ("delta", "printed"),
    [
        (0.00017544, "0.000176"),  # to the nearest: 0.000175
        (5.561e-05, "0.0000557"),
        (1 / 17_970, "0.0000557"),
        (1 / 3, "0.334"),
        (1e-5, "0.00001"),
        (1.2344e-09, "1.24e-09"),
        (9.9901e-10, "1e-09"),
    ],
)
def test_delta_is_never_printed_below_what_it_is(guarantee, delta, printed):
    curve = ((delta, 1.00001),)
    text = replace(guarantee, delta=delta, epsilon=1.00001, curve=curve).text()
    assert f"epsilon = 1.001, delta = {printed}." in text
    assert float(printed) >= delta
    printed_delta, epsilon = text.splitlines()[-1].split()
    assert float(printed_delta) >= delta and float(epsilon) >= 1.00001
    assert re.fullmatch(r"\d+e-\d\d", printed_delta)


def test_formatting_rounds_in_one_direction(rng):
    values = 10.0 ** rng.uniform(-15, 6, 2_000)
    for digits in (1, 3, 4, 6):
        for value in values.tolist():
            low, high = (
                float(format_down(value, digits)),
                float(format_up(value, digits)),
            )
            assert low <= value <= high
            # By less than one step of the last digit, which is at most this share of it.
            assert high - low <= value * 10.0 ** (1 - digits) * (1 + 1e-9)
    assert format_down(math.inf) == "unbounded" and format_down(0.0) == "0"
