"""A reservation is charged first, settled once, and never refunded."""

import multiprocessing
import os
import signal

import pytest

from veracal.accounting.events import Budget, Pure
from veracal.errors import AnswerError, BudgetError, ConflictError, LedgerError
from veracal.ledger.ledger import Ledger, open_ledger

EVENT = Pure(0.25)


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "ledger", Budget(1.0))


def reserve(ledger, request="r", body=b"?"):
    return ledger.reserve(EVENT, "training", request=request, body=body)


def compute(ledger, work, request="r", **settings):
    return ledger.compute_once(EVENT, "training", work, request=request, body=b"?", **settings)


def fail():
    raise RuntimeError("about a record")


def test_a_reservation_is_charged_once_and_settled_at_no_cost(ledger):
    entry = reserve(ledger)
    assert entry.outcome == "reserved" and ledger.spent().epsilon == 0.25
    assert reserve(ledger) == entry and ledger.pending() == (entry,)
    settled, answer = ledger.record("r", b"?", b"model")
    assert (settled.outcome, settled.settles, settled.cost) == ("answered", entry.index, 0)
    assert answer == b"model" and ledger.pending() == ()
    assert reserve(ledger) == entry
    assert ledger.spent().epsilon == 0.25 and ledger.verify() == ledger.head


def test_the_first_recorded_answer_is_final(ledger):
    reserve(ledger)
    first = ledger.record("r", b"?", b"first")
    assert ledger.record("r", b"?", b"second") == first == (first[0], b"first")
    assert ledger.record("r", b"?", None) == first
    assert len(ledger.entries()) == 2


def test_a_failure_is_recorded_and_repeated(ledger):
    with pytest.raises(AnswerError) as refusal:
        compute(ledger, fail)
    assert "record" not in str(refusal.value) and refusal.value.__context__ is None
    for again in (lambda: compute(ledger, lambda: b"fine"), lambda: reserve(ledger)):
        with pytest.raises(AnswerError):
            again()
    assert ledger.record("r", b"?", b"late")[1] is None
    assert ledger.spent().epsilon == 0.25 and len(ledger.entries()) == 2


def test_recording_requires_a_reservation(ledger):
    with pytest.raises(LedgerError, match="reserve first"):
        ledger.record("r", b"?", b"model")
    reserve(ledger)
    for body in (b"!", b""):
        with pytest.raises(ConflictError):
            ledger.record("r", body, b"model")
        with pytest.raises(ConflictError):
            reserve(ledger, body=body)
    ledger.charge(EVENT, "x", request="charged")
    ledger.answer(EVENT, "training", lambda: b"a", request="asked", body=b"?")
    for request in ("charged", "asked"):
        with pytest.raises(ConflictError):
            reserve(ledger, request)
        with pytest.raises(ConflictError):
            ledger.record(request, b"?", b"model")
    with pytest.raises(ConflictError):
        ledger.answer(EVENT, "training", lambda: b"a", request="r", body=b"?")
    assert ledger.spent().epsilon == 0.75


def test_requests_beyond_the_budget_are_rejected_before_computing(ledger):
    ledger.charge(Pure(0.9), "x")
    with pytest.raises(BudgetError):
        compute(ledger, lambda: pytest.fail("computed"))
    assert len(ledger.entries()) == 1


def test_an_abandoned_request_is_always_rejected(ledger):
    reserve(ledger)
    assert ledger.abandon("r").outcome == "abandoned"
    for again in (lambda: compute(ledger, lambda: b"m"), lambda: reserve(ledger)):
        with pytest.raises(AnswerError, match=r"was abandoned.*another --version \(in Python"):
            again()
    assert ledger.record("r", b"?", b"late")[1] is None  # a process that was still at it
    with pytest.raises(LedgerError, match="not pending: it was abandoned"):
        ledger.abandon("r")
    with pytest.raises(LedgerError, match="Nothing is reserved"):
        ledger.abandon("other")
    assert ledger.spent().epsilon == 0.25 and ledger.verify() == ledger.head


def test_an_interrupted_computation_leaves_its_reservation(ledger):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(ledger, stop)
    assert len(ledger.pending()) == 1
    assert compute(ledger, lambda: b"model") == b"model" == compute(ledger, fail)
    assert ledger.spent().epsilon == 0.25


def test_a_killed_process_leaves_a_reservation_under_which_the_request_is_repeated(ledger):
    context = multiprocessing.get_context("fork")
    child = context.Process(
        target=lambda: compute(ledger, lambda: os.kill(os.getpid(), signal.SIGKILL))
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL and len(ledger.pending()) == 1
    assert compute(ledger, lambda: b"model") == b"model"
    assert ledger.spent().epsilon == 0.25 and ledger.verify() == ledger.head


def test_every_attempt_is_charged_if_something_may_have_been_released(ledger):
    def stop():
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            compute(ledger, stop, every_attempt=True)
    assert compute(ledger, lambda: b"model", every_attempt=True) == b"model"
    assert compute(ledger, fail, every_attempt=True) == b"model"
    assert ledger.spent().epsilon == 0.75 and ledger.pending() == ()
    assert [entry.outcome for entry in ledger.entries()] == [
        "reserved",
        "superseded",
        "reserved",
        "superseded",
        "reserved",
        "answered",
    ]
    assert ledger.verify() == ledger.head


def test_a_superseded_attempt_releases_nothing(ledger):
    def overtaken():
        assert compute(ledger, lambda: b"later", every_attempt=True) == b"later"
        return b"earlier"

    with pytest.raises(AnswerError, match="superseded"):
        compute(ledger, overtaken, every_attempt=True)
    assert compute(ledger, fail, every_attempt=True) == b"later"


def test_an_answer_must_be_bytes(ledger):
    with pytest.raises(AnswerError):
        compute(ledger, lambda: "text")
    with pytest.raises(ValueError, match="to be bytes"):
        ledger.reserve(EVENT, "x", request="x", body="text")
    reserve(ledger, "s")
    with pytest.raises(ValueError, match="an answer of at most"):
        ledger.record("s", b"?", "text")
    assert [entry.request for entry in ledger.pending()] == ["s"]


def test_pending_reservations_of_a_view_are_those_of_its_run(ledger):
    from veracal.ledger.policies import Item

    run = ledger.begin_run([Item("training", EVENT)], name="a", request="a", body=b"")
    reserve(ledger)
    reserve(run)
    assert len(ledger.pending()) == 2 and [e.run for e in run.pending()] == [1]
    run.abandon("r")
    assert [e.run for e in ledger.pending()] == [None]
    assert Ledger(ledger.path, run=1).pending() == ()
