"""No bytes are answered or charged by a source unless they are a valid request.

Bytes that the enrolled coordinator did not sign must be refused before anything is parsed.
Signed bytes of a hostile coordinator come from a grammar: fields missing, unknown, duplicated,
of other types or out of range; NaN, 1e999 and 10^400; other spellings of a valid body; nested
bombs; bits flipped and signed again. Every reply is the one refusal, no exception is
unexpected, and neither memory nor the log of refusals grows without bound.
"""

import ctypes
import gc
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from assurance import sources
from assurance.sources import EnrolledSource, Patches
from tests.federation.source.enrolled import COORDINATOR, LAPLACE, STRANGER
from veracal.federation.protocol import envelopes
from veracal.federation.protocol import messages as requests
from veracal.federation.protocol.envelopes import MAX_REQUEST_BYTES, REQUEST, EnvelopeError
from veracal.federation.protocol.messages import Request
from veracal.federation.source import folder as refusals
from veracal.federation.source.enrolling import example_arguments
from veracal.ledger.chain import canonical, digest

NAME = "source_fuzz"
MOST_MEMORY = 10_000_000  # bytes
LONGEST_LOG = 1_300 * 450  # bytes
WARM = 1_000  # requests before memory is measured
Body = dict[str, Any]
PROTOCOL = "veracal.federation.protocol."


# ---------------------------------------------------------------- mutants


def unsigned(purpose: str, raw: bytes, key: Any, *, max_bytes: int) -> Body:
    """Read a body without verifying its signature."""
    body = envelopes.parse_object(envelopes._split(purpose, raw, max_bytes)[1])
    return check_spelling(body, raw)


def parse_first(purpose: str, raw: bytes, key: Any, *, max_bytes: int) -> Body:
    """Parse a body before its signature is verified."""
    envelopes.parse_object(envelopes._split(purpose, raw, max_bytes)[1])
    return UNSEAL(purpose, raw, key, max_bytes=max_bytes)


def any_spelling(purpose: str, raw: bytes, key: Any, *, max_bytes: int) -> Body:
    """Read a signed body that may not be canonical."""
    signature, content = envelopes._split(purpose, raw, max_bytes)
    if not key.verify(signature, purpose.encode() + b"\n" + content):
        raise EnvelopeError("its signature is not valid for the enrolled key")
    return envelopes.parse_object(content)


def check_spelling(body: Body, raw: bytes) -> Body:
    """Refuse a body that is not canonical."""
    try:
        written = canonical(body).encode()
    except ValueError as cause:
        raise EnvelopeError("not a finite number") from cause
    if not raw.endswith(b"\n" + written):
        raise EnvelopeError("another spelling")
    return body


def open_schema(body: Any, checks: Any, what: str) -> Body:
    """Check the fields that are known, and pass over the others."""
    if not isinstance(body, dict) or not body.keys() >= checks.keys():
        raise EnvelopeError(f"{what} has missing fields")
    for name, check in checks.items():
        if not check(body[name]):
            raise EnvelopeError(f"{name!r} of {what} has an invalid value")
    return {name: body[name] for name in checks}


def keep_error(self: EnvelopeError, *words: str) -> None:
    """Keep every error with its input, as a debugging aid."""
    # As much as a request may have: less would fit into what earlier gates have freed.
    ERRORS.append((self, bytearray(MAX_REQUEST_BYTES)))


def price(check: Callable[[Any], bool]) -> Patches:
    """Another check of the price."""
    checks = {**requests._REQUEST_CHECKS, "micro_epsilon": lambda v: v is None or check(v)}
    return {"veracal.federation.protocol.messages._REQUEST_CHECKS": checks}


ERRORS: list[tuple[EnvelopeError, bytearray]] = []
NUMBERED = {1, 100_000}
UNSEAL, PARSED = envelopes.unseal, envelopes.parse_object
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "unsigned accepted": {"veracal.federation.protocol.messages.unseal": unsigned},
    "parsed before verified": {"veracal.federation.protocol.messages.unseal": parse_first},
    "canonical form not required": {
        "veracal.federation.protocol.messages.unseal": any_spelling
    },
    "open schema": {"veracal.federation.protocol.envelopes.check_fields": open_schema},
    "1.0 passes for 1": price(lambda v: type(v) in (int, float) and v in NUMBERED),
    "numbers compared as floats": price(lambda v: type(v) is int and 1 <= float(v) <= 1e9),
    "log not cut": {sources.SOURCE + "folder.RefusalLog._truncate": sources.unchecked},
    "errors kept": {"veracal.federation.protocol.envelopes.EnvelopeError.__init__": keep_error},
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Send forged bytes, then signed ones."""
    many = 100_000 if long else 4_000
    pick = random.Random(0)
    ERRORS.clear()
    with sources.enrolled(subject, heads=False, epsilon=1.0) as north:
        bodies = [body(request) for request in proper(north)]
        first = many if subject is CORRECT else many // 10  # a mutant mostly fails at the rest
        grown = refused(north, forged(bodies, pick), first, parses=False)
        grown += refused(north, malformed(bodies, pick), many, parses=True)
        assert not north.ledger.entries(), "something was charged"
        assert north.ask().units, "a proper request is refused afterwards"
    ERRORS.clear()
    return (
        f"{many:,} forged and {many:,} signed requests: 0 answered, 0 charged, 0 unexpected "
        f"errors, {max(grown, 0) / 1e6:.1f} MB more"
    )


def refused(north: EnrolledSource, sent: Iterator[bytes], many: int, *, parses: bool) -> int:
    """Send requests that must all be refused; by how much memory grew."""
    reads: list[bytes] = []

    def noted(content: bytes) -> Any:
        reads.append(content)
        return PARSED(content)

    start = grown = 0
    with mock.patch("veracal.federation.protocol.envelopes.parse_object", noted):
        for number in range(1, many + 1):
            raw = next(sent)
            reply = north.server.reply(raw)
            assert reply == north.server.refusal, f"answered: {raw[-200:]!r}"
            assert parses or not reads, f"parsed without a signature: {reads[0][:80]!r}"
            reads.clear()
            if number % 500 == 0:
                quiet(north)
                start = start if number > WARM else memory()
                grown = memory() - start
                assert grown < MOST_MEMORY, f"{grown / 1e6:.0f} MB more in {number:,} requests"
    return grown


def quiet(north: EnrolledSource) -> None:
    """No refusal was unexpected, and the log of them is bounded."""
    log = north.folder / "refusals.log"
    assert log.stat().st_size < LONGEST_LOG, "the log of refusals grows"
    content = log.read_bytes()
    assert content.count(b"\n") <= refusals.MAX_LINES + 201, "the log of refusals grows"
    odd = [line for line in content.splitlines() if b"unexpected" in line]
    assert not odd, f"an error was unexpected: {odd[0]!r}"


def memory() -> int:
    """Bytes that this process holds, without files, which the system may take out of memory."""
    # Collect garbage first: a leak could fill freed memory without being noticed.
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1_024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


# ---------------------------------------------------------------- what is sent


def proper(north: EnrolledSource) -> Iterator[Request]:
    """One proper request of every form."""
    for kind in LAPLACE:
        for argument in example_arguments(kind, north.terms):
            yield north.request(kind, argument=argument)


def body(request: Request) -> Body:
    """What a request says."""
    return {**request.query, "head": None, "id": request.id, "round": request.round}


def forged(bodies: list[Body], pick: random.Random) -> Iterator[bytes]:
    """Bytes that the coordinator has not signed."""
    good = [sources.signed(canonical(one).encode(), COORDINATOR) for one in bodies]
    strange = [sources.signed(canonical(one).encode(), STRANGER) for one in bodies]
    ways = [
        lambda: pick.randbytes(pick.randrange(200)),
        lambda: f"{REQUEST}\n{'0' * 128}\n".encode() + pick.randbytes(pick.randrange(100)),
        lambda: pick.choice(strange),
        lambda: flipped(pick.choice(good), pick),
        lambda: cut(pick.choice(good), pick),
        lambda: swapped(*pick.sample(good, 2)),
        lambda: pick.choice(good) + b"x" * MAX_REQUEST_BYTES,
        lambda: pick.choice(good).replace(b"request 1", b"answer 1"),
    ]
    while True:
        yield pick.choice(ways)()


def flipped(raw: bytes, pick: random.Random) -> bytes:
    """One bit changed."""
    place = pick.randrange(len(raw))
    return raw[:place] + bytes([raw[place] ^ (1 << pick.randrange(8))]) + raw[place + 1 :]


def cut(raw: bytes, pick: random.Random) -> bytes:
    """An end missing."""
    return raw[: pick.randrange(len(raw))]


def swapped(one: bytes, other: bytes) -> bytes:
    """The signature of one request over the body of another."""
    return one[:147] + other[147:]


def malformed(bodies: list[Body], pick: random.Random) -> Iterator[bytes]:
    """Bytes that the coordinator has signed, and that are no proper request."""
    while True:
        fields = dict(pick.choice(bodies))
        way = pick.choice((of_fields, of_values, of_arguments, of_text, of_bits))
        content = way(fields, pick)
        if content is not None:
            yield sources.signed(content, COORDINATOR)


def of_fields(fields: Body, pick: random.Random) -> bytes:
    """Fields that are missing, unknown, or called otherwise."""
    name = pick.choice(list(fields))
    way = pick.randrange(3)
    if way != 1:
        value = fields.pop(name)
    if way == 1:
        fields[pick.choice(("clip", "seed", "bins", "sensitivity", "", "ID"))] = odd(pick)
    if way == 2:
        fields[name.upper()] = value
    return canonical(fields).encode()


def of_values(fields: Body, pick: random.Random) -> bytes:
    """A value of another type or out of range, under an id that fits it."""
    name = pick.choice([name for name in fields if name != "argument"])
    wrong = odd(pick)
    if name == "round":
        wrong = pick.choice((-1, 10**6 + 1, True, 0.0, None, "0", [], 10**400))
    if name == "head":
        wrong = pick.choice((0, "", [], {}, {"index": 1}, True))
    if name == "micro_epsilon":
        wrong = pick.choice((0, -1, 500_001, 10**400, True, 1.0, "1", [1], {"a": 1}, None))
    fields[name] = wrong
    return named(fields) if name != "id" else canonical(fields).encode()


def of_arguments(fields: Body, pick: random.Random) -> bytes:
    """An argument that is not within the terms, under an id that fits it."""
    argument = dict(fields["argument"])
    way = pick.randrange(4)
    if way == 0 or not argument:
        argument[pick.choice(("clamp", "bins", "records", "x"))] = odd(pick)
    elif way == 1:
        argument.pop(pick.choice(list(argument)))
    elif way == 2:
        argument[pick.choice(list(argument))] = pick.choice(
            (None, True, -1, 0, 10**400, 1.5, "1", [], [[1]], {}, {"inverse": 0}, {"units": []})
        )
    else:
        argument = {"inverse": pick.choice((1, 2**40, -(2**16), 0.5, "1", None, True))}
    fields["argument"] = argument
    return named(fields)


def of_text(fields: Body, pick: random.Random) -> bytes:
    """Another spelling, a not finite, a key twice, brackets without end."""
    text = canonical(fields)
    price = '"micro_epsilon":100000'
    return pick.choice(
        [
            lambda: text.replace(":", ": ", 1),
            lambda: json.dumps(dict(reversed(fields.items())), separators=(",", ":")),
            lambda: text.replace("100000", pick.choice(NUMBERS)),
            lambda: text.replace(price, f"{price},{price}"),
            lambda: text.replace(price, f'"micro_epsilon":1,{price}'),
            lambda: text.replace("{}", "[" * pick.randrange(5, 900), 1) + "]",
            lambda: text.replace("100000", "[" * 300 + "]" * 300),
            lambda: text.replace("counts", "c\\u006funts").replace("gap", "\\u0067ap") + " ",
            lambda: text + pick.choice(("\n", " ", "\0", "{}", ",")),
            lambda: "\ufeff" + text,
            lambda: f"[{text}]",
            lambda: pick.choice(("", "null", "1", "[]", "{}", '""', "nan", "{" * 2_000)),
        ]
    )().encode()


def of_bits(fields: Body, pick: random.Random) -> bytes | None:
    """A proper body with a bit flipped, unless only the round has changed."""
    content = flipped(canonical(fields).encode(), pick)
    try:
        body = json.loads(content)
        same = {**body, "round": 0} == fields and type(body["round"]) is int
    except (ValueError, TypeError, LookupError):
        return content
    return None if same else content


NUMBERS = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "1e5", "1E5"),
    *("100000.0", "-100000", "+100000", "0100000", "0x186a0", "1_0", "true", '"100000"', "-0"),
)


def odd(pick: random.Random) -> Any:
    """A value that no field may have."""
    return pick.choice((True, -1, 0.5, "", "x" * 200, [], [[[1]]], {"a": {"b": 1}}, 10**400))


def named(fields: Body) -> bytes:
    """A body under the id that fits it."""
    query = {name: fields[name] for name in fields if name not in ("head", "id", "round")}
    return canonical({**fields, "id": digest(canonical(query))}).encode()
