"""One remote source: its requests, accepted answers, and records."""

import dataclasses

import pytest

from tests.federation.coordinator.stand_in import COORDINATOR, StandIn, scores
from veracal.calibration import BinnedGap, CorrectWrong, Gap
from veracal.calibration.bins import Bins
from veracal.errors import BudgetError, DataError, DropoutError
from veracal.federation.coordinator.history import FORKED, RequestHistory
from veracal.federation.coordinator.remote import LATE, REFUSED, Remote
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, unseal_reply
from veracal.ledger import open_ledger
from veracal.queries import Count, Curator, PayingSource
from veracal.queries.sources import GaussianSource, is_declared
from veracal.testing import check_source

COUNTS = CorrectWrong(Bins(1))


@pytest.fixture
def server(tmp_path):
    return StandIn(tmp_path, scores())


def remote(server, reply=None, **settings):
    return Remote(server.terms, COORDINATOR, reply or server.reply, **settings)


def changed(server, change):
    """A source that sends something else than its answer."""

    def reply(raw):
        answer = unseal_reply(server.reply(raw), server.key.public)
        return change(answer).seal(server.key)

    return reply


def test_a_remote_source_fulfills_the_source_contract(tmp_path):
    def make(micro_epsilon):
        return remote(StandIn(tmp_path, scores(20), micro_epsilon=micro_epsilon))

    check_source(make, COUNTS, local=False)
    check_source(make, Gap(0.5, 2), local=False)


def test_a_remote_source_declares_its_unit_and_budget(server):
    one = remote(server)
    assert is_declared(one)
    assert isinstance(one, PayingSource)
    assert isinstance(one, GaussianSource)


def test_an_answer_equals_a_local_release(server, tmp_path):
    release = remote(server).answer(COUNTS, micro_epsilon=500_000)
    holder = Curator(server.records, open_ledger(tmp_path / "x.ledger", server.terms.budget))
    beside = holder.answer(COUNTS, micro_epsilon=500_000)
    same = dataclasses.replace(release, units=beside.units)
    assert same == beside
    assert release.head == server.ledger.head
    assert abs(sum(release.values) - 400) < 100


def test_a_query_is_sent_once_across_processes(server, tmp_path):
    def kept():
        return RequestHistory(tmp_path / "history", COORDINATOR.public)

    with kept() as history:
        first = remote(server, history=history).answer(COUNTS, micro_epsilon=500_000)
    with kept() as history:
        assert remote(server, history=history).answer(COUNTS, micro_epsilon=500_000) == first
    assert len(server.seen) == 1


def test_a_request_with_a_lost_reply_is_repeated_in_the_same_bytes(server):
    sent = list[bytes]()

    def loses(raw):
        sent.append(raw)
        if len(sent) == 1:
            server.reply(raw)
            raise TimeoutError
        return server.reply(raw)

    one = remote(server, loses)
    with pytest.raises(DropoutError, match=LATE):
        one.answer(COUNTS, micro_epsilon=500_000)
    one.answer(COUNTS, micro_epsilon=500_000)
    assert sent[0] == sent[1]
    assert len(list(server.ledger.entries())) == 1


def test_after_a_refusal_the_same_query_has_other_bytes(server):
    sent = list[bytes]()

    def refuses(raw):
        sent.append(raw)
        return server.reply(raw if len(sent) > 1 else b"something else")

    one = remote(server, refuses)
    with pytest.raises(DropoutError, match=REFUSED):
        one.answer(COUNTS, micro_epsilon=500_000)
    one.answer(COUNTS, micro_epsilon=500_000)
    assert sent[0] != sent[1]
    assert [request.round for request in server.seen] == [1]


def test_an_undeclared_query_is_never_sent(tmp_path):
    server = StandIn(tmp_path, scores(), kinds=("counts",))
    one = remote(server, lambda raw: pytest.fail("it was sent"))
    for query in (Gap(0.5, 2), Count(), BinnedGap(Bins(7))):
        with pytest.raises(ValueError, match="Expected (a query|.* with the bounds)"):
            one.answer(query, micro_epsilon=1)
    with pytest.raises(ValueError, match="multiple of 2"):
        remote(StandIn(tmp_path, scores())).answer(Gap(1 / 3, 2), micro_epsilon=1)


def test_a_query_beyond_the_budget_is_never_sent(tmp_path):
    server = StandIn(tmp_path, scores(), micro_epsilon=100, max_per_answer=60)
    one = remote(server)
    with pytest.raises(BudgetError, match="for one answer"):
        one.answer(COUNTS, micro_epsilon=61)
    one.answer(COUNTS, micro_epsilon=60)
    with pytest.raises(BudgetError, match=r"0\.00004 of 0\.0001 is left"):
        one.answer(COUNTS, micro_epsilon=41)
    assert len(server.seen) == 1


def test_a_source_with_expired_terms_is_not_queried(tmp_path):
    server = StandIn(tmp_path, scores(), expires="2020-01-01")
    with pytest.raises(BudgetError, match="2020-01-01"):
        remote(server).answer(COUNTS, micro_epsilon=60)
    assert not server.seen


def test_terms_for_another_coordinator_are_rejected(server):
    with pytest.raises(ValueError, match="enrolled for"):
        Remote(server.terms, PrivateKey.new(), server.reply)


def test_other_terms_with_a_known_id_are_rejected(server):
    one = remote(server)
    other = dataclasses.replace(server.terms, max_records=5)
    with pytest.raises(DataError, match="other terms with the same id"):
        Remote(other, COORDINATOR, server.reply, one.history)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b'"units":[', b'"units":[1'),
        lambda raw: raw + b" " * 2**20,
    ],
    ids=["nothing", "cut off", "changed", "huge"],
)
def test_a_reply_without_valid_signature_is_rejected_and_not_stored(server, spoil):
    one = remote(server, lambda raw: spoil(server.reply(raw)))
    with pytest.raises(DropoutError, match="invalid"):
        one.answer(COUNTS, micro_epsilon=500_000)
    assert one.history.head(server.terms.source) is None


def test_an_answer_of_another_source_is_rejected(server, tmp_path):
    other = StandIn(tmp_path, scores())
    one = Remote(server.terms, COORDINATOR, lambda raw: other.reply(raw))
    with pytest.raises(DropoutError, match="invalid"):
        one.answer(COUNTS, micro_epsilon=500_000)


@pytest.mark.parametrize("units", [(2**62, 0), (-(2**62), 0), (1,), (1, 2, 3), (900, 900)])
def test_answers_beyond_the_declared_records_are_rejected(server, units):
    lies = changed(server, lambda answer: Answer(answer.request, units, answer.head))
    with pytest.raises(DropoutError, match="invalid"):
        remote(server, lies).answer(COUNTS, micro_epsilon=1_000_000)


def test_answers_beyond_the_claimed_records_are_rejected(server):
    def lies(answer):
        units = answer.units if len(answer.units) == 2 else (600 * 2**20,)
        return Answer(answer.request, units, answer.head)

    fields = remote(server, changed(server, lies))
    alone = remote(server, changed(server, lies))
    gap = Gap(0.5, 2)
    assert alone.answer(gap, micro_epsilon=1_000_000).value == 600.0  # of 1,000 declared
    fields.answer(COUNTS, micro_epsilon=1_000_000)
    with pytest.raises(DropoutError, match="larger than the declared number"):
        fields.answer(gap, micro_epsilon=1_000_000)


def test_a_rollback_of_a_sources_ledger_is_detected(server, tmp_path):
    twin = StandIn(tmp_path, scores())  # the same source, as it was before its first answer
    twin.terms, twin.key = server.terms, server.key
    one = remote(server)
    one.answer(COUNTS, micro_epsilon=500_000)
    restored = Remote(server.terms, COORDINATOR, twin.reply, one.history)
    with pytest.raises(DropoutError, match=FORKED):
        restored.answer(Gap(0.5, 2), micro_epsilon=500_000)
    with pytest.raises(DropoutError, match=FORKED):  # and stays so
        one.answer(Gap(0.25, 2), micro_epsilon=500_000)


def test_two_answers_for_one_entry_are_rejected(server):
    first = list[Answer]()

    def same(answer):
        first.append(answer)
        return Answer(answer.request, answer.units, first[0].head)

    one = remote(server, changed(server, same))
    one.answer(COUNTS, micro_epsilon=500_000)
    with pytest.raises(DropoutError, match=FORKED):
        one.answer(COUNTS, micro_epsilon=400_000)


def test_a_request_quotes_the_last_head(server):
    one = remote(server)
    one.answer(COUNTS, micro_epsilon=500_000)
    one.answer(Gap(0.5, 2), micro_epsilon=500_000)
    assert server.seen[0].head is None
    assert server.seen[1].head.hash == one.answer(COUNTS, micro_epsilon=500_000).head
