"""A request is one query to one source, and nothing more."""

import pytest

from tests.federation.protocol.example_terms import COORDINATOR, SOURCE, STRANGER, terms
from veracal.federation.protocol.envelopes import REQUEST, EnvelopeError, seal
from veracal.federation.protocol.messages import Head, Request

HEAD = Head.sign("a" * 32, 7, "1" * 64, "2" * 64, SOURCE)


def request(**changed):
    fields = terms()
    given = {
        "source": fields.source,
        "data": fields.data,
        "model": fields.model,
        "kind": "gap",
        "argument": {"inverse": 32_768},
        "micro_epsilon": 100_000,
        "round": 2,
        "head": HEAD,
    }
    return Request(**{**given, **changed})


def body(**changed):
    """The body of a request, changed by a party that can sign."""
    one = request()
    whole = {**one.query, "head": HEAD.to_json(), "id": one.id, "round": 2}
    return {**whole, **changed}


def test_a_request_is_read_back_unchanged():
    for one in (
        request(),
        request(head=None, round=0),
        request(micro_epsilon=None, noise_multiplier=12.5),
    ):
        assert Request.unseal(one.seal(COORDINATOR), COORDINATOR.public) == one


def test_a_request_signed_by_another_key_is_rejected():
    with pytest.raises(EnvelopeError, match="signature"):
        Request.unseal(request().seal(STRANGER), COORDINATOR.public)


def test_the_id_depends_on_the_query_and_not_on_the_round():
    assert request().id == request(round=9, head=None).id
    others = [
        request(source="d" * 32),
        request(data="d" * 32),
        request(model="d" * 64),
        request(kind="loss"),
        request(argument={"inverse": 32_769}),
        request(micro_epsilon=100_001),
        request(micro_epsilon=None, noise_multiplier=1.0),
    ]
    assert len({request().id, *(one.id for one in others)}) == 8


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "0" * 64},
        {"kind": "loss"},  # under the id of another query
        {"argument": []},
        {"argument": None},
        {"micro_epsilon": 0},
        {"micro_epsilon": -1},
        {"micro_epsilon": 1.0},
        {"micro_epsilon": True},
        {"micro_epsilon": 10**400},
        {"micro_epsilon": "100000"},
        {"micro_epsilon": None},
        {"noise_multiplier": 1.0},
        {"noise_multiplier": 1},
        {"round": -1},
        {"round": 10**7},
        {"round": None},
        {"source": "A" * 32},
        {"data": 5},
        {"model": "b" * 63},
        {"head": []},
        {"head": {}},
        {"head": {**HEAD.to_json(), "index": 0}},
        {"head": {**HEAD.to_json(), "more": 0}},
        {"clip": 1.0},
        {"seed": 1},
        {"bins": 3},
        {"code": "x"},
    ],
    ids=lambda changed: repr(changed)[:40],  # keys are new in each process
)
def test_a_request_outside_of_the_closed_schema_is_rejected(changed):
    raw = seal(REQUEST, body(**changed), COORDINATOR)

    with pytest.raises(EnvelopeError):
        Request.unseal(raw, COORDINATOR.public)


def test_every_field_is_required():
    for name in body():
        less = {k: v for k, v in body().items() if k != name}
        with pytest.raises(EnvelopeError):
            Request.unseal(seal(REQUEST, less, COORDINATOR), COORDINATOR.public)


def test_a_request_that_is_too_long_is_not_created():
    long = request(argument={"map": {"units": list(range(2_000))}})

    with pytest.raises(ValueError, match="at most 4096 bytes"):
        long.seal(COORDINATOR)


def test_a_head_is_valid_only_for_its_source_and_key():
    assert HEAD.verify(SOURCE.public)
    assert not HEAD.verify(COORDINATOR.public)
    assert not Head("d" * 32, 7, HEAD.hash, HEAD.previous, HEAD.signature).verify(SOURCE.public)
    assert not Head("a" * 32, 8, HEAD.hash, HEAD.previous, HEAD.signature).verify(SOURCE.public)
