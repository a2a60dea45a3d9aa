"""Several remote sources, queried together."""

import threading
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from tests.federation.coordinator.stand_in import COORDINATOR, StandIn, federated, scores
from veracal.accounting import Unit
from veracal.calibration import AbsoluteGaps, CorrectWrong, Gap, recalibrate
from veracal.calibration.bins import Bins
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.errors import BudgetError, ConflictError, DropoutError
from veracal.federation import transports as local
from veracal.federation.coordinator.history import RequestHistory
from veracal.federation.coordinator.pool import RemotePool, RoundEvent
from veracal.federation.coordinator.remote import METHOD_KINDS
from veracal.federation.protocol.messages import Answer, Refusal, unseal_reply
from veracal.federation.protocol.queries import KINDS
from veracal.federation.transports import LocalTransport
from veracal.queries import Pool, QueryRequest

COUNTS = CorrectWrong(Bins(1))


@pytest.fixture
def three(tmp_path):
    return [StandIn(tmp_path, scores(400, seed=i)) for i in range(3)]


def lying_source(server, change):
    """A source that signs a changed answer."""

    def reply(raw):
        answer = unseal_reply(server.reply(raw), server.key.public)
        return Answer(answer.request, change(answer.units), answer.head).seal(server.key)

    return reply


def refusing(server):
    return lambda raw: Refusal(server.terms.source).seal(server.key)


def test_the_sum_is_that_of_a_pool(three):
    release = federated(three).answer(COUNTS, micro_epsilon=1_000_000)
    assert release.units == tuple(np.sum([part.units for part in release.parts], axis=0))
    assert release.dropouts == (None, None, None)
    assert release.noise_std == pytest.approx(np.sqrt(3) * release.parts[0].noise_std)
    assert set(release.requested) == {(0,), (1,), (2,)}


@pytest.mark.parametrize("method", [*METHOD_KINDS])
def test_every_method_uses_the_kinds_listed_for_it(tmp_path, method):
    more = {"delta": 1e-5} if method == "platt" else {}
    servers = [StandIn(tmp_path, scores(400, seed=i), **more) for i in range(2)]
    fields = {"size": 800, **more} if more else {}
    result = recalibrate(
        federated(servers), method, epsilon=4.0, guard=None, measure=None, **fields
    )
    assert result.method == method
    assert {request.kind for request in servers[0].seen} == set(METHOD_KINDS[method])
    assert [r.query | {"source": "", "data": ""} for r in servers[0].seen] == [
        r.query | {"source": "", "data": ""} for r in servers[1].seen
    ]


@pytest.mark.parametrize("method", [*METHOD_KINDS])
def test_guard_and_measurement_of_every_method_use_public_grids(tmp_path, method):
    more = {"delta": 1e-5} if method == "platt" else {}
    servers = [StandIn(tmp_path, scores(400, seed=i), **more) for i in range(2)]
    fields = {"size": 800, **more} if more else {}
    result = recalibrate(
        federated(servers), method, epsilon=6.0, guard=0.3, measure=0.3, **fields
    )
    assert result.before is not None
    assert "map-gain" in {request.kind for request in servers[0].seen}
    assert result.statement.epsilon <= 6.0 + 1e-9


def test_auto_chooses_a_method_that_all_sources_support(tmp_path):
    kinds = [("loss", "bins", "counts", "gap"), ("loss", "bins"), ("bins", "loss", "gap")]
    servers = [StandIn(tmp_path, scores(seed=i), kinds=one) for i, one in enumerate(kinds)]
    assert recalibrate(federated(servers), epsilon=2.0).method == "nll-t"
    assert recalibrate(federated(servers[:1]), epsilon=1.0).method == "temperature"
    with pytest.raises(ValueError, match="Expected no guard"):
        recalibrate(federated(servers), "nll-t", epsilon=1.0, guard=0.1)
    with pytest.raises(ValueError, match="nll-t, binning"):
        recalibrate(federated(servers), "pooled", epsilon=1.0)


def test_temperatures_bins_and_classes_are_those_of_the_terms(tmp_path):
    fields = {"bins": 7, "temperatures": TemperatureGrid(1.5, 2.5)}
    servers = [StandIn(tmp_path, scores(800, seed=i), **fields) for i in range(2)]
    result = recalibrate(federated(servers), "acc-t", epsilon=9.0)
    assert 2.3 < result.map.value <= 2.5  # the right one is beyond
    assert result.before is None  # a temperature of 1 is not allowed
    fresh = [StandIn(tmp_path, scores(800, seed=i), **fields) for i in range(2)]
    assert recalibrate(federated(fresh), "binning", epsilon=9.0, guard=None).map.bins.count == 7
    for wrong in ({"bins": 15}, {"classes": 3}, {"temperatures": (0.5, 6.0)}):
        with pytest.raises(ValueError, match="as the sources have declared"):
            recalibrate(federated(servers), "acc-t", epsilon=1.0, **wrong)


@pytest.mark.parametrize("silent", [s for n in range(4) for s in combinations(range(3), n)])
def test_dropouts_are_skipped_and_named(three, silent):
    replies = {i: refusing(three[i]) for i in silent}
    if len(silent) == 3:
        with pytest.raises(DropoutError, match=f"{three[0].terms.name}, .*: it refused"):
            recalibrate(federated(three, replies, min_sources=1), epsilon=2.0)
        return
    result = recalibrate(federated(three, replies, min_sources=1), epsilon=2.0)
    assert [why is not None for why in result.dropouts] == [i in silent for i in range(3)]
    assert result.statement.epsilon == pytest.approx(2.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda units: tuple(2**62 for _ in units),
        lambda units: tuple(-(2**62) for _ in units),
        lambda units: (*units, 0),
        lambda units: tuple(10**6 for _ in units),
    ],
    ids=["huge", "minus huge", "too long", "more than declared"],
)
def test_invalid_answers_are_dropouts_and_the_map_is_still_fitted(three, change):
    result = recalibrate(
        federated(three, {1: lying_source(three[1], change)}, min_sources=2), epsilon=4.0
    )
    assert result.dropouts[0] is result.dropouts[2] is None
    assert "invalid" in result.dropouts[1]
    assert 2.0 < result.temperature.value < 5.0


def test_a_dropout_stops_a_pool_that_requires_all_until_it_answers(three):
    history = RequestHistory(None, COORDINATOR.public)
    with pytest.raises(DropoutError, match="it refused"):
        federated(three, {2: refusing(three[2])}, history=history).answer(
            COUNTS, micro_epsilon=100
        )
    release = federated(three, history=history).answer(COUNTS, micro_epsilon=100)
    assert release.dropouts == (None, None, None)
    assert [len(one.seen) for one in three] == [1, 1, 1]


def test_a_dropout_of_a_finished_round_stays_out_in_the_run(three):
    history = RequestHistory(None, COORDINATOR.public)
    first = federated(three, {2: refusing(three[2])}, history=history, min_sources=2)
    release = first.answer(COUNTS, micro_epsilon=100)
    again = federated(three, history=history, min_sources=2).answer(COUNTS, micro_epsilon=100)
    assert again == release
    assert not three[2].seen
    other = federated(three, history=history, min_sources=2, run="another")
    assert other.answer(COUNTS, micro_epsilon=100).dropouts == (None, None, None)
    assert len(three[0].seen) == 1  # what was answered is known in every run


def test_concurrent_runs_continue_from_the_round_that_finished_first(tmp_path, three):
    """Otherwise they would continue from different sums, and sources would pay for both."""
    terms, place = [server.terms for server in three], tmp_path / "history"
    replies = {server.terms.source: server.reply for server in three}

    def run(answers, history):
        return RemotePool(terms, COORDINATOR, LocalTransport(answers), history, min_sources=2)

    def overtaken(raw):
        """The third answers this one only once another process has closed without it."""
        with RequestHistory(place, COORDINATOR.public) as other:
            late = {**replies, terms[2].source: refusing(three[2])}
            run(late, other).answer(COUNTS, micro_epsilon=1_000)
        return three[2].reply(raw)

    with RequestHistory(place, COORDINATOR.public) as history:
        release = run({**replies, terms[2].source: overtaken}, history).answer(
            COUNTS, micro_epsilon=1_000
        )
    assert release.dropouts == (None, None, "it refused; its owner can see why")
    assert set(release.requested) == {(0,), (1,), (2,)}


def late_once(server):
    """A source whose answer is not ready at its deadline, but at a repeat."""
    times = []

    def reply(raw):
        times.append(server.reply(raw))
        return times[-1] if len(times) > 1 else Refusal(server.terms.source).seal(server.key)

    return reply


def test_a_source_that_refuses_is_queried_once_more_at_no_cost(three):
    heard = []
    replies = {1: late_once(three[1]), 2: refusing(three[2])}
    pool = federated(three, replies, min_sources=2, watch=heard.append)
    release = pool.answer(COUNTS, micro_epsilon=1_000)
    assert release.dropouts == (None, None, "it refused; its owner can see why")
    assert [one.status for one in heard if one.source == 1] == [
        "queried", "refused", "queried again", "answered"
    ]  # fmt: skip
    assert [one.status for one in heard if one.source == 2] == [
        "queried", "refused", "queried again", "refused"
    ]  # fmt: skip
    assert len(list(three[1].ledger.entries())) == 1


def test_a_refusal_by_files_is_not_repeated_in_the_round(three):
    heard = []
    pool = federated(three, {2: refusing(three[2])}, min_sources=2, watch=heard.append)
    pool._transport.by_hand = True
    pool.answer(COUNTS, micro_epsilon=1_000)
    assert "queried again" not in {one.status for one in heard}


def test_a_slow_source_drops_out_and_a_second_reply_is_ignored(three, monkeypatch):
    now, over = [0.0], threading.Event()
    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(raw):
        over.wait(240)
        return three[0].reply(raw)

    class Twice(LocalTransport):
        def exchange(self, requests, *, timeout):
            for number, (source, raw) in enumerate(super().exchange(requests, timeout=timeout)):
                yield source, raw
                yield source, b"something else"
                yield "unknown", raw
                now[0] = 1_000.0 * number  # with the second reply the time is up

    servers = {one.terms.source: one.reply for one in three} | {three[0].terms.source: slow}
    terms = [one.terms for one in three]
    pool = RemotePool(terms, COORDINATOR, Twice(servers), min_sources=2, timeout=240)
    release = pool.answer(COUNTS, micro_epsilon=100)
    over.set()
    assert release.dropouts == ("it did not answer in time", None, None)


def test_a_query_that_one_source_did_not_declare_is_not_sent(tmp_path, three):
    odd = StandIn(tmp_path, scores(), kinds=("counts",))
    with pytest.raises(ValueError, match=f"that '{odd.terms.name}' answers"):
        federated([*three, odd], min_sources=1).answer(Gap(0.5, 2), micro_epsilon=100)
    with pytest.raises(ValueError, match="sum over records"):
        federated(three).answer(AbsoluteGaps(), micro_epsilon=100)
    assert not any(one.seen for one in three)


def test_a_source_without_enough_budget_is_skipped_uncharged(tmp_path, three):
    poor = StandIn(tmp_path, scores(), micro_epsilon=500_000)
    result = recalibrate(federated([*three, poor], min_sources=3), epsilon=1.0)
    assert "cannot pay" in result.dropouts[3]
    assert not poor.seen
    with pytest.raises(BudgetError, match=poor.terms.name):
        recalibrate(federated([*three, poor]), epsilon=1.0)


def test_a_request_id_identifies_one_query(three):
    pool = federated(three)
    pool.answer(COUNTS, micro_epsilon=100, request="one")
    with pytest.raises(ConflictError):
        pool.answer(COUNTS, micro_epsilon=101, request="one")


def test_every_step_of_a_round_is_reported(three):
    lines = list[RoundEvent]()
    pool = federated(three, {1: refusing(three[1])}, min_sources=2, watch=lines.append)
    pool.answer(COUNTS, micro_epsilon=100)
    fates = {(one.source, one.status) for one in lines}
    assert fates == {
        *((i, "queried") for i in range(3)),
        (0, "answered"),
        (1, "refused"),
        (1, "queried again"),
        (2, "answered"),
    }
    assert {one.round for one in lines} == {1}


def test_incompatible_sources_are_rejected(tmp_path, three):
    odd = StandIn(tmp_path, scores(), model="c" * 64)
    with pytest.raises(ValueError, match=f"one model.*{odd.terms.name}: cccccccccccc"):
        federated([*three, odd])
    with pytest.raises(ValueError, match="one relation"):
        federated([*three, StandIn(tmp_path, scores(), relation="replace-one")])
    with pytest.raises(ValueError, match="different institutions"):
        federated([*three, three[0]])
    with pytest.raises(ValueError, match="same classes"):
        federated([*three, StandIn(tmp_path, scores(), classes=4)])
    for min_sources in (0, 4, True):
        with pytest.raises(ValueError, match="min_sources"):
            federated(three, min_sources=min_sources)


def test_each_source_is_charged_for_its_own_unit(tmp_path):
    unit = Unit("patient", 3)
    servers = [StandIn(tmp_path, scores(seed=1)), StandIn(tmp_path, scores(seed=2), unit=unit)]
    release = federated(servers).answer(COUNTS, micro_epsilon=1_000_000)
    assert release.parts[1].noise_std == pytest.approx(3 * release.parts[0].noise_std, rel=0.1)
    assert federated(servers).unit == unit


def test_a_pool_of_remote_sources_equals_a_remote_pool(three):
    whole = federated(three)
    for one in whole.sources:
        one._send = next(d.reply for d in three if d.terms == one.terms)
    wanted = QueryRequest(COUNTS, micro_epsilon=1_000)
    assert Pool(whole.sources).round(wanted).units == whole.round(wanted).units


def test_all_kinds_that_methods_need_exist():
    assert {kind for kinds in METHOD_KINDS.values() for kind in kinds} <= set(KINDS)
