"""What terms say in plain words is all there is to say."""

from tests.federation.protocol.example_terms import terms
from veracal.federation.protocol.queries import KINDS, describe_terms


def test_the_description_contains_all_queries_and_the_budget():
    created = terms(micro_epsilon=2_500_000, max_per_answer=300_000)
    words = dict(describe_terms(created))
    assert words["budget"].startswith("epsilon 2.5")
    assert "at most 0.3 for one answer" in words["budget"]
    assert words["its key"] == created.key.fingerprint
    assert created.coordinator.fingerprint in words["answers only"]
    lines = [text for _, text in describe_terms(created)]
    assert all(KINDS[kind].description in lines for kind in created.kinds)


def test_the_description_contains_delta_and_last_day_if_declared():
    words = dict(describe_terms(terms(delta=1e-5, expires="2030-01-31")))
    assert "delta 0.00001" in words["budget"] and words["until"] == "2030-01-31"
    words = dict(describe_terms(terms(delta=0.0)))
    assert "delta" not in words["budget"] and words["until"] == "it is revoked"
