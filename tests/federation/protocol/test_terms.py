"""Terms come back as they were signed, and nothing else is terms."""

import datetime

import pytest

from tests.federation.protocol.example_terms import COORDINATOR, SOURCE, STRANGER, terms
from veracal.accounting import Budget, Unit
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.errors import DataError
from veracal.federation.protocol.envelopes import TERMS, EnvelopeError, seal
from veracal.federation.protocol.terms import Terms


def test_terms_are_read_back_unchanged():
    created = terms(
        unit=Unit("patient", 3),
        temperatures=TemperatureGrid(0.25, 8.0, 12),
        expires="2030-01-31",
        relation="replace-one",
    )

    assert Terms.unseal(created.seal(SOURCE)) == created
    assert created.budget == Budget(1.0, 1e-5, "replace-one", Unit("patient", 3))


def test_terms_signed_by_another_key_are_rejected():
    with pytest.raises(DataError, match="signature is not valid"):
        Terms.unseal(terms().seal(STRANGER))


@pytest.mark.parametrize("raw", [b"", b"veracal terms 1\n", b"\0" * 70_000])
def test_invalid_terms_are_rejected(raw):
    with pytest.raises(DataError, match="terms that `veracal source enroll` wrote"):
        Terms.unseal(raw)


@pytest.mark.parametrize(
    "changed",
    [
        {"classes": 1},
        {"classes": 2.0},
        {"classes": True},
        {"reads": "numbers"},
        {"relation": "swap"},
        {"unit": {"name": "patient"}},
        {"unit": {"name": "", "max_contributions": 1}},
        {"unit": [1]},
        {"micro_epsilon": 0},
        {"micro_epsilon": 10**12},
        {"max_per_answer": 2_000_000},
        {"delta": 0},
        {"delta": 0.5},
        {"kinds": []},
        {"temperatures": [6.0, 0.5, 16]},
        {"temperatures": [0.5, 6.0]},
        {"temperatures": [0.5, "6", 16]},
        {"bins": 0},
        {"bins": 10**6},
        {"clamp": 1e9},
        {"parameters": [12, 16]},
        {"parameters": [99, 16, 16]},
        {"min_records": 0},
        {"min_records": 2_000_000},
        {"deadline": 0.0},
        {"expires": "tomorrow!!"},
        {"name": "two\nlines"},
        {"name": "x" * 101},
        {"source": "A" * 32},
        {"key": "0" * 63},
        {"more": 1},
    ],
    ids=repr,
)
def test_terms_out_of_bounds_are_rejected(changed):
    body = {**terms().to_json(), **changed}

    with pytest.raises((EnvelopeError, ValueError)):
        Terms.from_json(body)
    with pytest.raises(DataError):
        Terms.unseal(seal(TERMS, body, SOURCE))


def test_every_field_is_required():
    for name in terms().to_json():
        body = {k: v for k, v in terms().to_json().items() if k != name}
        with pytest.raises(EnvelopeError, match=name):
            Terms.from_json(body)


def test_terms_are_valid_through_their_last_day():
    created = terms(expires="2027-12-31")

    assert not created.is_expired(datetime.date(2027, 12, 31))
    assert created.is_expired(datetime.date(2028, 1, 1))
    assert not terms().is_expired(datetime.date(9999, 1, 1))


def test_an_answer_cannot_cost_more_than_the_budget():
    with pytest.raises(ValueError, match="at most the whole budget, got 2 of 1"):
        terms(max_per_answer=2_000_000)


def test_terms_name_both_keys():
    assert terms().key == SOURCE.public
    assert terms().coordinator == COORDINATOR.public
