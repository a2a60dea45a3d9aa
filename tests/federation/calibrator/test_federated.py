"""Several sources elsewhere, asked together."""

import threading
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

from tests.federation.calibrator.standing import CALIBRATOR, StandIn, federated, scores
from veracal.accounting import Unit
from veracal.calibration import recalibrate
from veracal.calibration.bins import Bins
from veracal.calibration.private.temperature_grid import TemperatureGrid
from veracal.calibration.queries import AbsoluteGaps, CorrectWrong, Gap
from veracal.errors import BudgetError, ConflictError, SilentError
from veracal.federation.coordinator.federated import RemotePool, RoundEvent
from veracal.federation.coordinator.history import RequestHistory
from veracal.federation.coordinator.remote import ASKS
from veracal.federation.protocol.messages import Answer, Refusal, unsealed_reply
from veracal.federation.protocol.questions import KINDS
from veracal.federation.transports import base as local
from veracal.federation.transports.base import LocalTransport
from veracal.queries import Pool
from veracal.queries.response_checks import ExpectedResponse

COUNTS = CorrectWrong(Bins(1))


@pytest.fixture
def three(tmp_path):
    return [StandIn(tmp_path, scores(400, seed=i)) for i in range(3)]


def lying(desk, change):
    """A source that signs something else than its answer."""

    def reply(raw):
        answer = unsealed_reply(desk.reply(raw), desk.key.public)
        return Answer(answer.request, change(answer.units), answer.head).sealed(desk.key)

    return reply


def refusing(desk):
    return lambda raw: Refusal(desk.terms.source).sealed(desk.key)


def test_the_sum_is_that_of_a_pool(three):
    release = federated(three).answer(COUNTS, micro_epsilon=1_000_000)
    assert release.units == tuple(np.sum([part.units for part in release.parts], axis=0))
    assert release.silences == (None, None, None)
    assert release.noise_std == pytest.approx(np.sqrt(3) * release.parts[0].noise_std)
    assert set(release.asked) == {(0,), (1,), (2,)}


@pytest.mark.parametrize("method", [*ASKS])
def test_every_method_asks_the_kinds_that_are_listed_for_it(tmp_path, method):
    more = {"delta": 1e-5} if method == "platt" else {}
    desks = [StandIn(tmp_path, scores(400, seed=i), **more) for i in range(2)]
    told = {"size": 800, **more} if more else {}
    found = recalibrate(federated(desks), method, epsilon=4.0, guard=None, measure=None, **told)
    assert found.method == method
    assert {request.kind for request in desks[0].seen} == set(ASKS[method])
    assert [r.question | {"source": "", "data": ""} for r in desks[0].seen] == [
        r.question | {"source": "", "data": ""} for r in desks[1].seen
    ]


@pytest.mark.parametrize("method", [*ASKS])
def test_guard_and_figures_of_every_method_are_on_public_grids(tmp_path, method):
    more = {"delta": 1e-5} if method == "platt" else {}
    desks = [StandIn(tmp_path, scores(400, seed=i), **more) for i in range(2)]
    told = {"size": 800, **more} if more else {}
    found = recalibrate(federated(desks), method, epsilon=6.0, guard=0.3, measure=0.3, **told)
    assert found.before is not None
    assert "map-gain" in {request.kind for request in desks[0].seen}
    assert found.statement.epsilon <= 6.0 + 1e-9


def test_auto_takes_a_method_that_all_sources_have_enrolled(tmp_path):
    kinds = [("loss", "bins", "counts", "gap"), ("loss", "bins"), ("bins", "loss", "gap")]
    desks = [StandIn(tmp_path, scores(seed=i), kinds=one) for i, one in enumerate(kinds)]
    assert recalibrate(federated(desks), epsilon=2.0).method == "nll-t"
    assert recalibrate(federated(desks[:1]), epsilon=1.0).method == "temperature"
    with pytest.raises(ValueError, match="Expected no guard"):
        recalibrate(federated(desks), "nll-t", epsilon=1.0, guard=0.1)
    with pytest.raises(ValueError, match="nll-t, binning"):
        recalibrate(federated(desks), "pooled", epsilon=1.0)


def test_temperatures_bins_and_classes_are_the_declared_ones(tmp_path):
    told = {"bins": 7, "temperatures": TemperatureGrid(1.5, 2.5)}
    desks = [StandIn(tmp_path, scores(800, seed=i), **told) for i in range(2)]
    found = recalibrate(federated(desks), "acc-t", epsilon=9.0)
    assert 2.3 < found.map.value <= 2.5  # the right one is beyond
    assert found.before is None  # at a temperature of 1 nobody may ask
    fresh = [StandIn(tmp_path, scores(800, seed=i), **told) for i in range(2)]
    assert recalibrate(federated(fresh), "binning", epsilon=9.0, guard=None).map.bins.count == 7
    for wrong in ({"bins": 15}, {"classes": 3}, {"temperatures": (0.5, 6.0)}):
        with pytest.raises(ValueError, match="as the sources have declared"):
            recalibrate(federated(desks), "acc-t", epsilon=1.0, **wrong)


@pytest.mark.parametrize("silent", [s for n in range(4) for s in combinations(range(3), n)])
def test_whoever_is_silent_is_left_out_and_named(three, silent):
    replies = {i: refusing(three[i]) for i in silent}
    if len(silent) == 3:
        with pytest.raises(SilentError, match=f"{three[0].terms.name}, .*: it refused"):
            recalibrate(federated(three, replies, least=1), epsilon=2.0)
        return
    found = recalibrate(federated(three, replies, least=1), epsilon=2.0)
    assert [why is not None for why in found.dropouts] == [i in silent for i in range(3)]
    assert found.statement.epsilon == pytest.approx(2.0)


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
def test_a_liar_is_silent_and_the_others_find_the_map(three, change):
    found = recalibrate(federated(three, {1: lying(three[1], change)}, least=2), epsilon=4.0)
    assert found.dropouts[0] is found.dropouts[2] is None
    assert "nonsense" in found.dropouts[1]
    assert 2.0 < found.temperature.value < 5.0


def test_a_silent_source_ends_it_where_all_must_answer_and_it_goes_on_later(three):
    book = RequestHistory(None, CALIBRATOR.public)
    with pytest.raises(SilentError, match="it refused"):
        federated(three, {2: refusing(three[2])}, book=book).answer(COUNTS, micro_epsilon=100)
    release = federated(three, book=book).answer(COUNTS, micro_epsilon=100)
    assert release.silences == (None, None, None)
    assert [len(one.seen) for one in three] == [1, 1, 1]


def test_who_was_silent_in_a_round_that_ended_stays_silent_in_the_run(three):
    book = RequestHistory(None, CALIBRATOR.public)
    first = federated(three, {2: refusing(three[2])}, book=book, least=2)
    release = first.answer(COUNTS, micro_epsilon=100)
    again = federated(three, book=book, least=2).answer(COUNTS, micro_epsilon=100)
    assert again == release
    assert not three[2].seen
    other = federated(three, book=book, least=2, run="another")
    assert other.answer(COUNTS, micro_epsilon=100).silences == (None, None, None)
    assert len(three[0].seen) == 1  # what was answered is known in every run


def test_two_that_run_at_once_go_on_from_the_round_that_ended_first(tmp_path, three):
    """Else they would ask on from different sums, and sources would pay for both."""
    terms, place = [desk.terms for desk in three], tmp_path / "book"
    replies = {desk.terms.source: desk.reply for desk in three}

    def run(answers, book):
        return RemotePool(terms, CALIBRATOR, LocalTransport(answers), book, least=2)

    def overtaken(raw):
        """The third answers this one only once another process has closed without it."""
        with RequestHistory(place, CALIBRATOR.public) as other:
            late = {**replies, terms[2].source: refusing(three[2])}
            run(late, other).answer(COUNTS, micro_epsilon=1_000)
        return three[2].reply(raw)

    with RequestHistory(place, CALIBRATOR.public) as book:
        release = run({**replies, terms[2].source: overtaken}, book).answer(
            COUNTS, micro_epsilon=1_000
        )
    assert release.silences == (None, None, "it refused; its owner can see why")
    assert set(release.asked) == {(0,), (1,), (2,)}


def late_once(desk):
    """A source whose answer is not ready at its deadline; asked again, it is."""
    times = []

    def reply(raw):
        times.append(desk.reply(raw))
        return times[-1] if len(times) > 1 else Refusal(desk.terms.source).sealed(desk.key)

    return reply


def test_whoever_refuses_is_asked_once_more_at_no_cost(three):
    heard = []
    replies = {1: late_once(three[1]), 2: refusing(three[2])}
    asked = federated(three, replies, least=2, watch=heard.append)
    release = asked.answer(COUNTS, micro_epsilon=1_000)
    assert release.silences == (None, None, "it refused; its owner can see why")
    assert [one.fate for one in heard if one.source == 1] == [
        "asked", "refused", "asked again", "answered"
    ]  # fmt: skip
    assert [one.fate for one in heard if one.source == 2] == [
        "asked", "refused", "asked again", "refused"
    ]  # fmt: skip
    assert len(list(three[1].ledger.entries())) == 1


def test_files_are_not_carried_twice_for_a_refusal(three):
    heard = []
    asked = federated(three, {2: refusing(three[2])}, least=2, watch=heard.append)
    asked._transport.by_hand = True
    asked.answer(COUNTS, micro_epsilon=1_000)
    assert "asked again" not in {one.fate for one in heard}


def test_a_slow_source_is_late_and_a_second_reply_changes_nothing(three, monkeypatch):
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
                yield "nobody", raw
                now[0] = 1_000.0 * number  # with the second reply the time is up

    desks = {one.terms.source: one.reply for one in three} | {three[0].terms.source: slow}
    terms = [one.terms for one in three]
    asked = RemotePool(terms, CALIBRATOR, Twice(desks), least=2, timeout=240)
    release = asked.answer(COUNTS, micro_epsilon=100)
    over.set()
    assert release.silences == ("it did not answer in time", None, None)


def test_nobody_is_asked_what_one_has_not_declared(tmp_path, three):
    odd = StandIn(tmp_path, scores(), kinds=("counts",))
    with pytest.raises(ValueError, match=f"that '{odd.terms.name}' answers"):
        federated([*three, odd], least=1).answer(Gap(0.5, 2), micro_epsilon=100)
    with pytest.raises(ValueError, match="sum over records"):
        federated(three).answer(AbsoluteGaps(), micro_epsilon=100)
    assert not any(one.seen for one in three)


def test_a_source_that_cannot_pay_for_everything_is_left_out_uncharged(tmp_path, three):
    poor = StandIn(tmp_path, scores(), micro_epsilon=500_000)
    found = recalibrate(federated([*three, poor], least=3), epsilon=1.0)
    assert "cannot pay" in found.dropouts[3]
    assert not poor.seen
    with pytest.raises(BudgetError, match=poor.terms.name):
        recalibrate(federated([*three, poor]), epsilon=1.0)


def test_a_request_id_stands_for_one_question(three):
    asked = federated(three)
    asked.answer(COUNTS, micro_epsilon=100, request="one")
    with pytest.raises(ConflictError):
        asked.answer(COUNTS, micro_epsilon=101, request="one")


def test_everything_that_happens_is_told(three):
    told = list[RoundEvent]()
    asked = federated(three, {1: refusing(three[1])}, least=2, watch=told.append)
    asked.answer(COUNTS, micro_epsilon=100)
    fates = {(one.source, one.fate) for one in told}
    assert fates == {
        *((i, "asked") for i in range(3)),
        (0, "answered"),
        (1, "refused"),
        (1, "asked again"),
        (2, "answered"),
    }
    assert {one.round for one in told} == {1}


def test_sources_that_do_not_belong_together_are_refused(tmp_path, three):
    odd = StandIn(tmp_path, scores(), model="c" * 64)
    with pytest.raises(ValueError, match=f"one model.*{odd.terms.name}: cccccccccccc"):
        federated([*three, odd])
    with pytest.raises(ValueError, match="one relation"):
        federated([*three, StandIn(tmp_path, scores(), relation="replace-one")])
    with pytest.raises(ValueError, match="different institutions"):
        federated([*three, three[0]])
    with pytest.raises(ValueError, match="same classes"):
        federated([*three, StandIn(tmp_path, scores(), classes=4)])
    for least in (0, 4, True):
        with pytest.raises(ValueError, match="least"):
            federated(three, least=least)


def test_units_differ_and_each_pays_its_own(tmp_path):
    unit = Unit("patient", 3)
    desks = [StandIn(tmp_path, scores(seed=1)), StandIn(tmp_path, scores(seed=2), unit=unit)]
    release = federated(desks).answer(COUNTS, micro_epsilon=1_000_000)
    assert release.parts[1].noise_std == pytest.approx(3 * release.parts[0].noise_std, rel=0.1)
    assert federated(desks).unit == unit


def test_a_pool_of_remotes_and_a_federation_ask_alike(three):
    whole = federated(three)
    for one in whole.sources:
        one._send = next(d.reply for d in three if d.terms == one.terms)
    wanted = ExpectedResponse(COUNTS, micro_epsilon=1_000)
    assert Pool(whole.sources).round(wanted).units == whole.round(wanted).units


def test_all_kinds_that_methods_need_exist():
    assert {kind for kinds in ASKS.values() for kind in kinds} <= set(KINDS)
