"""A whole recalibration: the plan, interruptions at any point, the charges of all sources."""

import json
import math

import pytest

from tests.federation.coordinator.stand_in import COORDINATOR, StandIn, federated, scores
from veracal.accounting import Unit
from veracal.artifact import LedgerHead, RecalibrationRecord, decode, encode
from veracal.calibration import BudgetDivision, plan_recalibration, run_recalibration
from veracal.errors import BudgetError, DropoutError, PendingError
from veracal.federation.coordinator.history import RequestHistory
from veracal.federation.coordinator.pool import (
    check_plan,
    plan_sources,
    recalibration_record,
    source_costs,
)
from veracal.federation.protocol.messages import Refusal
from veracal.federation.transports import LocalTransport


def steps_for(source, method="pooled", *, measure=0, delta=None, size=None):
    budget = BudgetDivision(2_000_000, 0, measure)
    return plan_recalibration(source, method, budget=budget, delta=delta, size=size)


@pytest.fixture
def three(tmp_path):
    return [StandIn(tmp_path, scores(seed=i)) for i in range(3)]


def test_the_plan_matches_what_is_requested_and_charged(three):
    source = federated(three)
    steps = steps_for(source, measure=1_000_000)
    plan = plan_sources(source, steps)
    assert [(one.answers, one.known, one.epsilon, one.left) for one in plan] == [
        (5, 0, 3.0, 10.0)
    ] * 3
    check_plan(source, steps, plan)
    assert not any(one.seen for one in three)
    result = run_recalibration(source, steps)
    for one, fields in zip(three, source_costs(source, result), strict=True):
        assert len(list(one.ledger.entries())) == 5
        assert one.ledger.spent().epsilon == fields.epsilon == 3.0
        assert fields.head == LedgerHead(5, one.ledger.head)
        assert fields.key == one.key.public.fingerprint
    after = plan_sources(source, steps)
    assert [(one.known, one.left) for one in after] == [(5, 7.0)] * 3


@pytest.mark.parametrize("method", ["pooled", "binning", "platt"])
def test_a_repeated_plan_knows_every_answer(tmp_path, method):
    more = {"delta": 1e-5} if method == "platt" else {}
    servers = [StandIn(tmp_path, scores(seed=i), **more) for i in range(2)]
    source = federated(servers)
    steps = steps_for(source, method, size=800 if more else None, **more)
    result = run_recalibration(source, steps)
    for one, server, fields in zip(
        plan_sources(source, steps), servers, source_costs(source, result), strict=True
    ):
        assert one.known == one.answers == len(list(server.ledger.entries()))
        spent, left = server.ledger.spent(), server.ledger.remaining()
        assert (fields.epsilon, fields.delta) == (spent.epsilon, spent.delta)
        assert (one.left, one.left_delta) == pytest.approx((left.epsilon, left.delta))


def test_a_source_without_enough_budget_is_named(three, tmp_path):
    poor = StandIn(tmp_path, scores(), micro_epsilon=1_000_000)
    for min_sources, match in ((None, poor.terms.name), (4, "4 of 4")):
        source = federated([*three, poor], min_sources=min_sources)
        steps = steps_for(source)
        plan = plan_sources(source, steps)
        assert plan[3].why is not None and plan[0].why is None
        with pytest.raises(BudgetError, match=match):
            check_plan(source, steps, plan)
    source = federated([*three, poor], min_sources=3)
    steps = steps_for(source)
    check_plan(source, steps, plan_sources(source, steps))
    fields = source_costs(source, run_recalibration(source, steps))[3]
    assert (fields.epsilon, fields.answered, fields.head) == (0.0, False, None)
    assert "nothing for each record" in fields.text()
    assert not poor.seen


class StoppedError(Exception):
    """Power loss."""


@pytest.mark.parametrize("where", ["watched", "carried"])
@pytest.mark.parametrize("method", ["pooled", "acc-t"])
def test_an_interrupted_recalibration_continues_without_double_charges(
    tmp_path, three, method, where
):
    """After every single thing that happens, one more each time, until it is done."""
    left = [0]

    def stop(_=None):
        left[0] -= 1
        if left[0] < 0:
            raise StoppedError

    class Cut(LocalTransport):
        def exchange(self, requests, *, timeout):
            for source, raw in super().exchange(requests, timeout=timeout):
                stop()
                yield source, raw

    tries, done = 0, None
    while done is None:
        left[0] = tries
        tries += 1
        with RequestHistory(tmp_path / "history", COORDINATOR.public) as history:
            watch = {"watch": stop} if where == "watched" else {}
            source = federated(three, history=history, **watch)
            if where == "carried":
                source._transport = Cut({one.terms.source: one.reply for one in three})
            steps = steps_for(source, method)
            try:
                done = run_recalibration(source, steps)
            except StoppedError:
                continue
    assert tries > 3
    rounds = len(done.releases)
    for one in three:
        assert one.ledger.spent().epsilon <= 2.0
        assert len(list(one.ledger.entries())) == rounds
    assert done.dropouts == (None, None, None)


def test_answers_on_their_way_leave_the_round_open(three):
    class Slow(LocalTransport):
        def exchange(self, requests, *, timeout):
            first, *others = super().exchange(requests, timeout=timeout)
            yield first
            if others:
                raise PendingError("carry them", ())

    source = federated(three)
    source._transport = Slow({one.terms.source: one.reply for one in three})
    steps = steps_for(source, "binning")
    for _ in range(2):
        with pytest.raises(PendingError):
            run_recalibration(source, steps)
    assert run_recalibration(source, steps).dropouts == (None, None, None)
    assert [len(one.seen) for one in three].count(1) >= 1
    assert all(len(list(one.ledger.entries())) == 1 for one in three)


def test_the_record_contains_dropouts_and_their_costs(three, tmp_path):
    unit = StandIn(tmp_path, scores(), unit=Unit("patient", 3))
    refusing = {1: lambda raw: Refusal(three[1].terms.source).seal(three[1].key)}
    source = federated([*three, unit], refusing, min_sources=2)
    result = run_recalibration(source, steps_for(source))
    record = recalibration_record(source, result, "study")
    written = json.loads(json.dumps(encode(record), allow_nan=False))
    assert decode(RecalibrationRecord, written, "here") == record
    silent, patients = record.sources[1], record.sources[3]
    assert (silent.answered, silent.head) == (False, None)
    assert silent.epsilon == 0.2  # asked for the first of three answers, and so counted
    assert (patients.unit, patients.max_contributions) == ("patient", 3)
    text = record.text()
    assert result.statement.text() in text
    for one in source_costs(source, result):
        assert f"- {one.name} ({one.key}): epsilon " in text
    assert "patient of up to 3 records" in text


def test_too_few_answers_in_a_later_round_raise_with_names(three):
    def once(server):
        refusal = Refusal(server.terms.source).seal(server.key)
        return lambda raw: refusal if server.seen else server.reply(raw)

    source = federated(three, {i: once(three[i]) for i in (1, 2)}, min_sources=2)
    with pytest.raises(DropoutError, match=f"{three[1].terms.name}, .*: it refused"):
        run_recalibration(source, steps_for(source))


def test_non_finite_numbers_are_null_in_the_record(three):
    source = federated(three)
    result = run_recalibration(source, steps_for(source))
    estimate = result.temperatures["temperature"]
    object.__setattr__(estimate, "high", math.inf)
    record = recalibration_record(source, result, "s")
    assert record.temperatures["temperature"].high is None
