"""One source elsewhere: what is asked, what is believed, what is kept."""

import dataclasses

import pytest

from tests.federation.calibrator.standing import CALIBRATOR, StandIn, scores
from veracal.calibration.bins import Bins
from veracal.calibration.queries import BinnedGap, CorrectWrong, Gap
from veracal.errors import BudgetError, DataError, SilentError
from veracal.federation.coordinator.history import FORKED, RequestHistory
from veracal.federation.coordinator.remote import LATE, REFUSED, Remote
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.federation.protocol.messages import Answer, unsealed_reply
from veracal.ledger import open_ledger
from veracal.queries import Count, Curator, PayingSource
from veracal.queries.sources import GaussianSource, is_declared
from veracal.testing import check_source

COUNTS = CorrectWrong(Bins(1))


@pytest.fixture
def desk(tmp_path):
    return StandIn(tmp_path, scores())


def remote(desk, reply=None, **settings):
    return Remote(desk.terms, CALIBRATOR, reply or desk.reply, **settings)


def changed(desk, change):
    """A source that sends something else than its answer."""

    def reply(raw):
        answer = unsealed_reply(desk.reply(raw), desk.key.public)
        return change(answer).sealed(desk.key)

    return reply


def test_it_keeps_the_contract_of_sources(tmp_path):
    def make(micro_epsilon):
        return remote(StandIn(tmp_path, scores(20), micro_epsilon=micro_epsilon))

    check_source(make, COUNTS, local=False)
    check_source(make, Gap(0.5, 2), local=False)


def test_it_says_whom_it_protects_and_what_it_can_pay(desk):
    one = remote(desk)
    assert is_declared(one)
    assert isinstance(one, PayingSource)
    assert isinstance(one, GaussianSource)


def test_an_answer_is_what_the_holder_would_have_released(desk, tmp_path):
    release = remote(desk).answer(COUNTS, micro_epsilon=500_000)
    holder = Curator(desk.records, open_ledger(tmp_path / "x.ledger", desk.terms.budget))
    beside = holder.answer(COUNTS, micro_epsilon=500_000)
    same = dataclasses.replace(release, units=beside.units)
    assert same == beside
    assert release.head == desk.ledger.head
    assert abs(sum(release.values) - 400) < 100


def test_a_question_is_asked_once_though_the_process_ends(desk, tmp_path):
    def kept():
        return RequestHistory(tmp_path / "book", CALIBRATOR.public)

    with kept() as book:
        first = remote(desk, book=book).answer(COUNTS, micro_epsilon=500_000)
    with kept() as book:
        assert remote(desk, book=book).answer(COUNTS, micro_epsilon=500_000) == first
    assert len(desk.seen) == 1


def test_a_request_whose_reply_was_lost_is_sent_again_in_the_same_bytes(desk):
    sent = list[bytes]()

    def loses(raw):
        sent.append(raw)
        if len(sent) == 1:
            desk.reply(raw)
            raise TimeoutError
        return desk.reply(raw)

    one = remote(desk, loses)
    with pytest.raises(SilentError, match=LATE):
        one.answer(COUNTS, micro_epsilon=500_000)
    one.answer(COUNTS, micro_epsilon=500_000)
    assert sent[0] == sent[1]
    assert len(list(desk.ledger.entries())) == 1


def test_after_a_refusal_the_same_question_has_other_bytes(desk):
    sent = list[bytes]()

    def refuses(raw):
        sent.append(raw)
        return desk.reply(raw if len(sent) > 1 else b"something else")

    one = remote(desk, refuses)
    with pytest.raises(SilentError, match=REFUSED):
        one.answer(COUNTS, micro_epsilon=500_000)
    one.answer(COUNTS, micro_epsilon=500_000)
    assert sent[0] != sent[1]
    assert [request.round for request in desk.seen] == [1]


def test_what_was_not_declared_is_never_sent(tmp_path):
    desk = StandIn(tmp_path, scores(), kinds=("counts",))
    one = remote(desk, lambda raw: pytest.fail("it was sent"))
    for query in (Gap(0.5, 2), Count(), BinnedGap(Bins(7))):
        with pytest.raises(ValueError, match="Expected (a question|.* with the bounds)"):
            one.answer(query, micro_epsilon=1)
    with pytest.raises(ValueError, match="multiple of 2"):
        remote(StandIn(tmp_path, scores())).answer(Gap(1 / 3, 2), micro_epsilon=1)


def test_what_the_terms_have_no_room_for_is_never_sent(tmp_path):
    desk = StandIn(tmp_path, scores(), micro_epsilon=100, most_each=60)
    one = remote(desk)
    with pytest.raises(BudgetError, match="for one answer"):
        one.answer(COUNTS, micro_epsilon=61)
    one.answer(COUNTS, micro_epsilon=60)
    with pytest.raises(BudgetError, match=r"0\.00004 of 0\.0001 is left"):
        one.answer(COUNTS, micro_epsilon=41)
    assert len(desk.seen) == 1


def test_expired_terms_are_not_asked_but_what_was_answered_stays(tmp_path):
    desk = StandIn(tmp_path, scores(), expires="2020-01-01")
    with pytest.raises(BudgetError, match="2020-01-01"):
        remote(desk).answer(COUNTS, micro_epsilon=60)
    assert not desk.seen


def test_terms_for_another_calibrator_are_refused(desk):
    with pytest.raises(ValueError, match="enrolled for"):
        Remote(desk.terms, PrivateKey.new(), desk.reply)


def test_other_terms_under_a_known_id_are_refused(desk):
    one = remote(desk)
    other = dataclasses.replace(desk.terms, most_records=5)
    with pytest.raises(DataError, match="others under the same id"):
        Remote(other, CALIBRATOR, desk.reply, one.book)


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
def test_a_reply_that_the_source_did_not_sign_is_nonsense_and_nothing_is_kept(desk, spoil):
    one = remote(desk, lambda raw: spoil(desk.reply(raw)))
    with pytest.raises(SilentError, match="invalid"):
        one.answer(COUNTS, micro_epsilon=500_000)
    assert one.book.head(desk.terms.source) is None


def test_another_sources_answer_is_nonsense(desk, tmp_path):
    other = StandIn(tmp_path, scores())
    one = Remote(desk.terms, CALIBRATOR, lambda raw: other.reply(raw))
    with pytest.raises(SilentError, match="invalid"):
        one.answer(COUNTS, micro_epsilon=500_000)


@pytest.mark.parametrize("units", [(2**62, 0), (-(2**62), 0), (1,), (1, 2, 3), (900, 900)])
def test_more_than_the_declared_records_can_make_is_nonsense(desk, units):
    lies = changed(desk, lambda answer: Answer(answer.request, units, answer.head))
    with pytest.raises(SilentError, match="invalid"):
        remote(desk, lies).answer(COUNTS, micro_epsilon=1_000_000)


def test_no_answer_weighs_more_than_the_records_that_were_claimed(desk):
    def lies(answer):
        units = answer.units if len(answer.units) == 2 else (600 * 2**20,)
        return Answer(answer.request, units, answer.head)

    told = remote(desk, changed(desk, lies))
    alone = remote(desk, changed(desk, lies))
    gap = Gap(0.5, 2)
    assert alone.answer(gap, micro_epsilon=1_000_000).value == 600.0  # of 1,000 declared
    told.answer(COUNTS, micro_epsilon=1_000_000)
    with pytest.raises(SilentError, match="weighs more than the records"):
        told.answer(gap, micro_epsilon=1_000_000)


def test_a_ledger_that_was_set_back_is_found_out(desk, tmp_path):
    twin = StandIn(tmp_path, scores())  # the same source, as it was before its first answer
    twin.terms, twin.key = desk.terms, desk.key
    one = remote(desk)
    one.answer(COUNTS, micro_epsilon=500_000)
    restored = Remote(desk.terms, CALIBRATOR, twin.reply, one.book)
    with pytest.raises(SilentError, match=FORKED):
        restored.answer(Gap(0.5, 2), micro_epsilon=500_000)
    with pytest.raises(SilentError, match=FORKED):  # and stays so
        one.answer(Gap(0.25, 2), micro_epsilon=500_000)


def test_two_answers_for_one_entry_are_a_contradiction(desk):
    first = list[Answer]()

    def same(answer):
        first.append(answer)
        return Answer(answer.request, answer.units, first[0].head)

    one = remote(desk, changed(desk, same))
    one.answer(COUNTS, micro_epsilon=500_000)
    with pytest.raises(SilentError, match=FORKED):
        one.answer(COUNTS, micro_epsilon=400_000)


def test_a_request_quotes_the_last_head(desk):
    one = remote(desk)
    one.answer(COUNTS, micro_epsilon=500_000)
    one.answer(Gap(0.5, 2), micro_epsilon=500_000)
    assert desk.seen[0].head is None
    assert desk.seen[1].head.hash == one.answer(COUNTS, micro_epsilon=500_000).head
