"""Answers repeat to the last byte, and there is one refusal."""

import pytest

from tests.federation.protocol.made import CALIBRATOR, SOURCE
from veracal.federation.protocol.envelopes import ANSWER, EnvelopeError, seal
from veracal.federation.protocol.messages import Answer, Head, Refusal, unsealed_reply

HEAD = Head.signed("a" * 32, 1, "1" * 64, "2" * 64, SOURCE)
REPLY = Answer("f" * 64, (3, -4, 2**62), HEAD)


def test_an_answer_comes_back_as_it_was_and_is_the_same_bytes_each_time():
    assert unsealed_reply(REPLY.sealed(SOURCE), SOURCE.public) == REPLY
    assert REPLY.sealed(SOURCE) == REPLY.sealed(SOURCE)


def test_there_is_one_refusal():
    raw = Refusal("a" * 32).sealed(SOURCE)

    assert raw == Refusal("a" * 32).sealed(SOURCE)
    assert unsealed_reply(raw, SOURCE.public) == Refusal("a" * 32)


def test_what_somebody_else_signed_is_refused():
    with pytest.raises(EnvelopeError, match="signature"):
        unsealed_reply(REPLY.sealed(CALIBRATOR), SOURCE.public)


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
def test_what_is_no_reply_is_refused(changed):
    body = {
        "head": HEAD.to_json(),
        "refused": False,
        "request": REPLY.request,
        "source": HEAD.source,
        "units": [1],
    }
    assert unsealed_reply(seal(ANSWER, body, SOURCE), SOURCE.public).units == (1,)

    with pytest.raises(EnvelopeError):
        unsealed_reply(seal(ANSWER, {**body, **changed}, SOURCE), SOURCE.public)
