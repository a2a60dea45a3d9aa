"""A proper request is answered once; everything else gets the one refusal, uncharged."""

import json
import resource
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.federation.source.enrolled import (
    COORDINATOR,
    STRANGER,
    EnrolledSource,
    make_source,
    scores,
)
from veracal.accounting import Budget, Unit
from veracal.calibration import CorrectWrong
from veracal.calibration.bins import Bins
from veracal.errors import DataError
from veracal.federation.protocol.envelopes import REQUEST, seal
from veracal.federation.protocol.messages import Answer, Refusal, unseal_reply
from veracal.federation.protocol.queries import KINDS
from veracal.federation.source.enrolling import example_arguments
from veracal.federation.source.enrollment import read_enrollment
from veracal.federation.source.folder import read_source
from veracal.federation.source.serving import open_source

USED_BY_ALL = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=200,
)


def signed(content: bytes) -> bytes:
    """Any bytes as the body of a request, signed by a hostile coordinator."""
    signature = COORDINATOR.sign(REQUEST.encode() + b"\n" + content)
    return f"{REQUEST}\n{signature}\n".encode() + content


def test_an_answer_is_the_exact_sum_with_noise(tmp_path: Path):
    records = scores(2_000)
    north = make_source(
        tmp_path / "north", records, epsilon=100.0, max_per_answer=100.0, budget=Budget(100)
    )
    result = north.ask(micro_epsilon=100_000_000)
    exact = CorrectWrong(Bins(1)).evaluate(records)
    assert np.abs(np.array(result.units) - exact).max() <= 2
    assert north.ledger.remaining().epsilon == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_answered(tmp_path: Path, kind: str):
    north = make_source(
        tmp_path / "north", kinds=tuple(KINDS), delta=1e-5, budget=Budget(3.0, 1e-4)
    )
    for argument in example_arguments(kind, north.terms):
        noise = {"noise_multiplier": 40.0, "micro_epsilon": None}
        more = noise if KINDS[kind].gaussian else {"micro_epsilon": 10_000}
        assert north.ask(kind, argument=argument, **more).units


def test_a_repeated_request_gets_the_same_bytes_at_no_cost(north: EnrolledSource):
    first = north.server.reply(north.raw())
    left = north.ledger.remaining()
    head = north.ask().head
    for raw in (north.raw(), north.raw(round=7), north.raw(head=head)):
        assert north.server.reply(raw) == first
        assert north.reopened().server.reply(raw) == first
    assert north.ledger.remaining() == left and len(north.ledger.entries()) == 1


def test_another_query_gets_another_entry_and_the_next_head(north: EnrolledSource):
    one, two = north.ask(), north.ask("bins")
    assert (one.head.index, two.head.index) == (1, 2)
    assert two.head.previous == one.head.hash
    assert two.head.verify(north.terms.key)
    lines = (north.folder / "heads").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [1, 2]


def refused(north: EnrolledSource, raw: bytes, why: str) -> None:
    """The one refusal leaves, nothing is charged, and the owner reads why."""
    spent = north.ledger.spent()
    assert north.server.reply(raw) == north.server.refusal
    assert north.ledger.spent() == spent
    assert why in north.why


def test_every_refusal_has_the_same_bytes(north: EnrolledSource):
    assert unseal_reply(north.server.refusal, north.terms.key) == Refusal(north.terms.source)
    inverse = {"inverse": 1 << 16}
    wrong = {
        "signature": north.raw(key=STRANGER),
        "longer than": b"x" * 5_000,
        "does not begin with": b"",
        "'source' is not": north.raw(source="0" * 32),
        "'data' is not": north.raw(data="0" * 32),
        "'model' is not": north.raw(model="0" * 64),
        "not enrolled": north.raw("platt-curvature", argument=inverse),
        "kind of query that is not": north.raw("weights"),
        "'inverse' of the argument": north.raw("gap", argument={"inverse": 1}),
        "missing or unknown fields": north.raw("gap", argument={**inverse, "clip": 1e9}),
        "more than the maximum": north.raw(micro_epsilon=500_001),
        "no delta": north.raw(micro_epsilon=None, noise_multiplier=1.0),
    }
    replies = set()
    for why, raw in wrong.items():
        refused(north, raw, why)
        replies.add(north.server.reply(raw))
    assert replies == {north.server.refusal}


@pytest.mark.parametrize(
    ("number", "why"),
    [
        ("NaN", "not a JSON object"),
        ("1e999", "not finite"),
        ("Infinity", "not a JSON object"),
        ("1" + "0" * 400, "invalid value"),
        ("0.5", "invalid value"),
        ("true", "invalid value"),
        ("-5", "invalid value"),
        ("0", "invalid value"),
        ('"1"', "invalid value"),
        ("[[[[[[1]]]]]]", "nested too deep"),
        ("[" * 900 + "]" * 900, "nested too deep"),
        ('1,"micro_epsilon":2', "canonical"),
    ],
)
def test_invalid_numbers_are_refused_even_if_signed(
    north: EnrolledSource, number: str, why: str
):
    body = north.raw().split(b"\n", 2)[2]
    content = body.replace(b'"micro_epsilon":100000', f'"micro_epsilon":{number}'.encode())
    assert content != body
    refused(north, signed(content), why)


def test_an_id_of_another_query_is_refused(north: EnrolledSource):
    body = json.loads(north.raw().split(b"\n", 2)[2])
    body["kind"] = "bins"
    refused(north, seal(REQUEST, body, COORDINATOR), "id of the request")


def test_an_exhausted_budget_refuses_new_queries_and_keeps_answers(north: EnrolledSource):
    first = north.server.reply(north.raw(micro_epsilon=500_000))
    north.ask("bins", micro_epsilon=400_000)
    refused(north, north.raw("bins-paper", micro_epsilon=100_001), "which is epsilon 0.1;")
    north.ask("bins-paper", micro_epsilon=100_000)
    refused(
        north, north.raw("gap", argument={"inverse": 1 << 16}, micro_epsilon=1), "remaining"
    )
    assert north.server.reply(north.raw(micro_epsilon=500_000)) == first


def test_the_number_of_stored_answers_is_bounded(
    north: EnrolledSource, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("veracal.federation.source.serving.MAX_ANSWERS", 2)
    first = north.server.reply(north.raw(micro_epsilon=1))
    north.ask(micro_epsilon=2)
    refused(north, north.raw(micro_epsilon=3), "2 answers, the maximum")
    assert north.server.reply(north.raw(micro_epsilon=1)) == first


def test_a_revoked_enrollment_refuses_all_requests(north: EnrolledSource):
    north.ask()
    (north.folder / "revoked").touch()
    refused(north, north.raw(), "revoked")


def test_expired_terms_refuse_all_requests(north: EnrolledSource):
    north.server.terms = replace(north.terms, expires="2020-01-31")
    refused(north, north.raw(), "expired on 2020-01-31")


def test_requests_are_refused_while_the_data_file_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = tmp_path / "data.csv"
    data.write_text("a,b\n1,2\n")
    north = make_source(tmp_path / "north", data=data)
    first = north.server.reply(north.raw())
    data.write_text("a,b\n1,3\n")
    refused(north, north.raw(), "has changed since it was enrolled")
    refused(north.reopened(), north.raw("bins"), "has changed")
    data.unlink()
    refused(north, north.raw(), "is missing")
    data.write_text("a,b\n1,2\n")  # at another time, but the same bytes
    assert north.server.reply(north.raw()) == first
    monkeypatch.delattr("veracal.federation.source.folder.DigestKey.of_file")
    assert north.server.reply(north.raw()) == first  # and they are not read again


def test_changed_records_are_refused(north: EnrolledSource):
    path = north.folder / "records.npz"
    path.write_bytes(path.read_bytes() + b"\0")
    refused(north, north.raw(), "a file that differs")


def test_a_damaged_or_missing_ledger_is_refused(north: EnrolledSource):
    north.ask()
    path = north.folder / "spent.ledger"
    kept = path.read_bytes()
    path.write_bytes(b"x" * 4_096)
    assert north.server.reply(north.raw()) == north.server.refusal
    path.unlink()
    assert north.server.reply(north.raw()) == north.server.refusal
    assert "does not exist" in north.why
    path.write_bytes(kept)
    assert north.ask("bins").head.index == 2


def test_a_full_disk_gives_a_refusal_and_the_answer_later(
    north: EnrolledSource, monkeypatch: pytest.MonkeyPatch
):
    def full(handle: int, line: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("veracal.federation.source.folder.os.write", full)
        assert north.server.reply(north.raw()) == north.server.refusal
    assert (north.folder / "heads").read_bytes() == b""
    assert isinstance(unseal_reply(north.server.reply(north.raw()), north.terms.key), Answer)
    assert len(north.ledger.entries()) == 1
    assert len((north.folder / "heads").read_text().splitlines()) == 1


def test_a_ledger_that_cannot_grow_charges_nothing_and_loses_nothing(north: EnrolledSource):
    first = north.server.reply(north.raw())
    raw, sizes = north.raw("bins"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, sizes[1]))  # as on a disk that is full
    try:
        reply = north.server.reply(raw)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, sizes)
    assert reply == north.server.refusal
    assert len(north.ledger.entries()) == 1 and north.ledger.verify()
    assert north.server.reply(north.raw()) == first
    assert north.server.reply(raw) != north.server.refusal


def test_an_unexpected_error_becomes_a_refusal_without_details(
    north: EnrolledSource, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("record 17 of patient 4")

    monkeypatch.setattr("veracal.federation.source.serving.price_request", broken)
    refused(north, north.raw(), "an unexpected error (ZeroDivisionError)")
    assert "patient" not in (north.folder / "refusals.log").read_text()


def test_an_answer_that_cannot_be_computed_is_charged_and_refused(
    north: EnrolledSource, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("record 17 of patient 4")

    with monkeypatch.context() as patched:
        patched.setattr("veracal.federation.source.serving.evaluate_query", broken)
        assert north.server.reply(north.raw()) == north.server.refusal
    assert north.server.reply(north.raw()) == north.server.refusal
    assert north.ledger.spent().epsilon == pytest.approx(0.1)
    assert "patient" not in (north.folder / "refusals.log").read_text()


@USED_BY_ALL
@given(st.binary(max_size=5_000))
def test_arbitrary_bytes_are_refused(north: EnrolledSource, raw: bytes):
    assert north.server.reply(raw) == north.server.refusal
    assert not north.ledger.entries()


@USED_BY_ALL
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_changed_bit_of_a_valid_request_is_refused(
    north: EnrolledSource, place: int, bit: int
):
    raw = bytearray(north.raw())
    raw[place % len(raw)] ^= 1 << bit
    assert north.server.reply(bytes(raw)) == north.server.refusal
    assert not north.ledger.entries()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@USED_BY_ALL
@given(st.data())
def test_requests_of_a_hostile_coordinator_are_charged_only_if_valid(
    north: EnrolledSource, data: st.DataObject
):
    body = json.loads(north.raw().split(b"\n", 2)[2])
    proper, name = dict(body), data.draw(st.sampled_from([*body, "clip"]))
    body[name] = data.draw(_JSON)
    raw = signed(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    before = len(north.ledger.entries())
    reply = north.server.reply(raw)
    answered = reply != north.server.refusal
    same = all(body[key] == proper.get(key) for key in body if key not in ("round", "head"))
    assert same or not answered
    assert len(north.ledger.entries()) <= max(before, int(answered))


@pytest.mark.parametrize("raw", [None, "text", 5, bytearray(b"x"), memoryview(b"x")])
def test_input_that_is_not_bytes_is_refused(north: EnrolledSource, raw: object):
    assert north.server.reply(raw) == north.server.refusal  # type: ignore[arg-type]


def test_every_reply_is_sent_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By a clock that stops while a reply is computed."""
    from veracal.federation.source import serving

    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(serving, "time", clock)
    north = make_source(tmp_path / "north", deadline=240.0)
    for number, raw in enumerate((north.raw(), north.raw(), b"rubbish"), start=1):
        reply = north.server.answer(raw)
        assert now[0] == 240.0 * number
        assert (reply == north.server.refusal) == (raw == b"rubbish")


def test_a_late_answer_is_stored_and_a_repeat_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from veracal.federation.source import serving

    north, gate, quick = (
        make_source(tmp_path / "north", deadline=0.4),
        threading.Event(),
        serving.compute_answer,
    )

    def slow(*fields: object) -> bytes:
        gate.wait(240)
        return quick(*fields)  # type: ignore[arg-type]

    monkeypatch.setattr(serving, "compute_answer", slow)
    assert north.server.answer(north.raw()) == north.server.refusal
    assert "not ready at the deadline" in north.why
    gate.set()
    assert north.ask().units
    assert len(north.ledger.entries()) == 1


def test_a_slot_is_occupied_until_the_deadline_and_not_until_the_reply(north: EnrolledSource):
    from veracal.federation.source import serving

    deadline, now = north.terms.deadline, time.monotonic()

    def reply_to(start: float, micro: int) -> bytes:
        done = Future()
        north.server._start(north.raw(micro_epsilon=micro), start, done)
        return done.result(240)

    for number in range(serving.MAX_IN_FLIGHT):  # each reply is ready when the next one comes
        assert reply_to(now, 1_000 + number) != north.server.refusal
    assert reply_to(now + 0.9 * deadline, 2_000) == north.server.refusal
    assert "too many requests at once" in north.why
    assert reply_to(now + deadline, 2_000) != north.server.refusal


def test_admission_is_a_function_of_arrival_times():
    from veracal.federation.source.serving import InFlight

    places = InFlight(2)
    admitted = [places.admit(now, now + 10) for now in (0, 1, 2, 9.9, 10, 10.5, 11, 12)]
    assert admitted == [True, True, False, False, True, False, True, False]


def test_concurrent_repeats_are_charged_once(north: EnrolledSource):
    raws = [north.raw(), north.raw("bins")] * 6
    replies: list[bytes] = []
    threads = [
        threading.Thread(target=lambda raw=raw: replies.append(north.server.reply(raw)))
        for raw in raws
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(replies)) == 2 and north.server.refusal not in replies
    assert len(north.ledger.entries()) == 2


def test_the_noise_covers_all_rows_of_a_unit(tmp_path: Path):
    records = scores(60, units=np.arange(60) // 3)
    unit = Unit("patient", max_contributions=3)
    north = make_source(tmp_path / "north", records, budget=Budget(3.0, unit=unit))
    north.ask(micro_epsilon=500_000)
    (entry,) = north.ledger.entries()
    assert entry.cost == 500_000 and entry.event.noise == 6.0  # type: ignore[union-attr]


def test_one_of_several_enrollments_must_be_chosen(tmp_path: Path):
    from veracal.federation.source.enrolling import enroll

    north = make_source(tmp_path / "north")
    other = enroll(north.path, scores(), replace_declaration())
    with pytest.raises(DataError, match="one enrollment that is not revoked, found 2"):
        open_source(north.path)
    assert open_source(north.path, other.source[:8]).terms == other
    (north.folder / "revoked").touch()
    assert open_source(north.path).terms == other
    with pytest.raises(DataError, match="begins with ''"):
        open_source(north.path, "")


def replace_declaration():
    """For another coordinator."""
    from tests.federation.source.enrolled import declaration

    return declaration(coordinator=STRANGER.public)


def test_a_request_of_another_coordinator_is_refused(tmp_path: Path):
    from veracal.federation.source.enrolling import enroll

    north = make_source(tmp_path / "north")
    other = enroll(north.path, scores(), replace_declaration())
    server = open_source(north.path, other.source)
    assert server.reply(north.raw()) == server.refusal
    enrollment = read_enrollment(read_source(north.path), other.source)
    assert "signature" in enrollment.refusals.lines()[-1][1]


@pytest.mark.parametrize("gone", [BrokenPipeError(), ValueError("I/O on a closed file")])
def test_a_closed_terminal_does_not_prevent_replies(north, gone):
    def log(line):
        raise gone

    server = open_source(north.path, log=log)
    assert server.reply(b"junk") == server.refusal
    assert server.reply(north.raw()) == north.server.reply(north.raw()) != server.refusal
