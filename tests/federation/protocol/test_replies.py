"""Answers repeat to the last byte, and there is one refusal."""

import pytest

from tests.federation.protocol.example_terms import COORDINATOR, SOURCE
from veracal.federation.protocol.envelopes import ANSWER, EnvelopeError, seal
from veracal.federation.protocol.messages import Answer, Head, Refusal, unseal_reply

HEAD = Head.sign("a" * 32, 1, "1" * 64, "2" * 64, SOURCE)
REPLY = Answer("f" * 64, (3, -4, 2**62), HEAD)


def test_an_answer_is_read_back_and_has_the_same_bytes_each_time():
    assert unseal_reply(REPLY.seal(SOURCE), SOURCE.public) == REPLY
    assert REPLY.seal(SOURCE) == REPLY.seal(SOURCE)


def test_all_refusals_have_the_same_bytes():
    raw = Refusal("a" * 32).seal(SOURCE)

    assert raw == Refusal("a" * 32).seal(SOURCE)
    assert unseal_reply(raw, SOURCE.public) == Refusal("a" * 32)


def test_a_signature_of_another_key_is_rejected():
    with pytest.raises(EnvelopeError, match="signature"):
        unseal_reply(REPLY.seal(COORDINATOR), SOURCE.public)


@pytest.mark.parametrize(
    "changed",
    [
        {"units": []},
        {"units": [1.5]},
        {"units": [True]},
        {"units": ["1"]},
        {"units": [2**63]},
        {"units": [1] * 10_001},
        {"units": None},
        {"head": None},
        {"refused": True},
        {"refused": 0},
        {"request": "F" * 64},
        {"source": ""},
        {"more": 1},
    ],
    ids=lambda changed: repr(changed)[:40],
)
def test_an_invalid_reply_is_rejected(changed):
    body = {
        "head": HEAD.to_json(),
        "refused": False,
        "request": REPLY.request,
        "source": HEAD.source,
        "units": [1],
    }
    assert unseal_reply(seal(ANSWER, body, SOURCE), SOURCE.public).units == (1,)

    with pytest.raises(EnvelopeError):
        unseal_reply(seal(ANSWER, {**body, **changed}, SOURCE), SOURCE.public)
