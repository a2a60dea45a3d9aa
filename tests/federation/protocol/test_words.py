"""What terms say in plain words is all there is to say."""

from tests.federation.protocol.example_terms import terms
from veracal.federation.protocol.queries import KINDS, describe_terms


def test_everything_that_may_be_asked_and_spent_is_told():
    made = terms(micro_epsilon=2_500_000, max_per_answer=300_000)
    words = dict(describe_terms(made))
    assert words["budget"].startswith("epsilon 2.5")
    assert "at most 0.3 for one answer" in words["budget"]
    assert words["its key"] == made.key.fingerprint
    assert made.coordinator.fingerprint in words["answers only to"]
    told = [text for _, text in describe_terms(made)]
    assert all(KINDS[kind].words in told for kind in made.kinds)


def test_a_delta_and_an_end_are_told_where_there_are_some():
    words = dict(describe_terms(terms(delta=1e-5, expires="2030-01-31")))
    assert "delta 0.00001" in words["budget"] and words["until"] == "2030-01-31"
    words = dict(describe_terms(terms(delta=0.0)))
    assert "delta" not in words["budget"] and words["until"] == "it is revoked"
