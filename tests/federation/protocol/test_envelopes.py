"""Nothing is read before its signature holds, and only one spelling is accepted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.federation.protocol.example_terms import COORDINATOR, STRANGER
from veracal.federation.protocol import envelopes
from veracal.federation.protocol.envelopes import (
    ANSWER,
    REQUEST,
    EnvelopeError,
    parse_object,
    seal,
    unseal,
)

BODY = {"kind": "gap", "numbers": [1, 2.5, None], "text": "é"}


def signed(content: bytes, purpose: str = REQUEST) -> bytes:
    """An envelope around any bytes, signed by the coordinator: a hostile one."""
    signature = COORDINATOR.sign(purpose.encode() + b"\n" + content).encode()
    return b"\n".join((purpose.encode(), signature, content))


def opened(raw: bytes, max_bytes: int = 4_096) -> dict:
    return unseal(REQUEST, raw, COORDINATOR.public, max_bytes=max_bytes)


def test_a_body_is_read_back_unchanged():
    assert opened(seal(REQUEST, BODY, COORDINATOR)) == BODY


def test_a_signature_of_another_key_is_rejected():
    with pytest.raises(EnvelopeError, match="signature is not valid"):
        opened(seal(REQUEST, BODY, STRANGER))


def test_a_signature_for_another_purpose_is_rejected():
    with pytest.raises(EnvelopeError, match="does not begin with"):
        opened(seal(ANSWER, BODY, COORDINATOR))
    renamed = seal(ANSWER, BODY, COORDINATOR).replace(ANSWER.encode(), REQUEST.encode())
    with pytest.raises(EnvelopeError, match="signature is not valid"):
        opened(renamed)


def test_every_changed_bit_is_rejected():
    raw = seal(REQUEST, {"n": 1}, COORDINATOR)
    for place in range(len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[place] ^= 1 << bit
            with pytest.raises(EnvelopeError):
                opened(bytes(changed))


def test_a_signed_envelope_that_is_too_long_is_rejected():
    raw = seal(REQUEST, {"text": "x" * 5_000}, COORDINATOR)

    with pytest.raises(EnvelopeError, match="longer than 4096 bytes"):
        opened(raw)
    assert opened(raw, max_bytes=6_000) == {"text": "x" * 5_000}


def test_nothing_is_parsed_before_the_signature_is_verified(monkeypatch):
    monkeypatch.setattr(envelopes, "parse_object", lambda _: pytest.fail("parsed"))
    with pytest.raises(EnvelopeError, match="signature is not valid"):
        opened(seal(REQUEST, BODY, STRANGER))


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1}',
        b'{"a":1.0e0}',
        b'{"a":1}\n',
        b' {"a":1}',
        b'{"b":1,"a":1}',
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":01}',
        b'{"a":"\xc3\xa9"}',
        b'{"a":"\\u0061"}',
        b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a":' * 400 + b"1" + b"}" * 400,
        b"[" * 1_000,
        b"[1]",
        b"1",
        b"null",
        b"",
        b"{",
        b'{"a":' + b"9" * 3_000 + b"e9}",
        b"\xff\xfe",
        b'\xef\xbb\xbf{"a":1}',
    ],
)
def test_a_signed_body_that_is_not_canonical_is_rejected(content):
    with pytest.raises(EnvelopeError):
        opened(signed(content))


def test_huge_integers_are_parsed_exactly_for_the_schema_to_reject():
    assert opened(signed(b'{"a":1' + b"0" * 400 + b"}")) == {"a": 10**400}


def test_an_integer_with_too_many_digits_is_rejected():
    with pytest.raises(EnvelopeError, match="not a JSON object"):
        opened(signed(b'{"a":' + b"1" * 6_000 + b"}"), max_bytes=10_000)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_an_envelope_error(raw):
    with pytest.raises(EnvelopeError):
        opened(raw)


@given(st.binary(max_size=200))
def test_arbitrary_signed_bytes_are_rejected_or_canonical(content):
    try:
        body = opened(signed(content))
    except EnvelopeError:
        return
    assert json.dumps(body, sort_keys=True, separators=(",", ":")).encode() == content


def test_a_body_must_be_an_object():
    assert parse_object(b'{"a":[{"b":[1]}]}') == {"a": [{"b": [1]}]}
    with pytest.raises(EnvelopeError, match="nested too deep"):
        parse_object(b'{"a":[{"b":[[1]]}]}')
