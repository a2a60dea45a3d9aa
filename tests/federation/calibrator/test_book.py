"""A calibrator's book: every step on the disk, nothing believed that was not signed."""

import sqlite3
import stat

import pytest

from tests.federation.calibrator.standing import CALIBRATOR, StandIn, scores
from veracal.accounting import Pure
from veracal.calibration.bins import Bins
from veracal.calibration.queries import CorrectWrong, Gap
from veracal.errors import ConflictError, DataError
from veracal.federation.coordinator.history import Closed, RequestHistory, Sent
from veracal.federation.coordinator.remote import Remote
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.queries.response_checks import ExpectedResponse

COUNTS = CorrectWrong(Bins(1))
SENT = Sent("sent", "gap", Pure(0.5), b"bytes")


@pytest.fixture
def book(tmp_path):
    with RequestHistory(tmp_path / "book", CALIBRATOR.public) as made:
        yield made


def test_it_is_for_its_owners_eyes_and_for_one_calibrator(book):
    assert stat.S_IMODE(book.path.stat().st_mode) == 0o600
    with pytest.raises(DataError, match="whose key this is"):
        RequestHistory(book.path, PrivateKey.new().public)


@pytest.mark.parametrize("content", [b"something else" * 100, b""], ids=["text", "empty"])
def test_another_file_is_refused_and_an_empty_one_filled(tmp_path, content):
    place = tmp_path / "other"
    place.write_bytes(content)
    if content:
        with pytest.raises(DataError, match="book of a calibrator"):
            RequestHistory(place, CALIBRATOR.public)
        assert place.read_bytes() == content
    else:
        RequestHistory(place, CALIBRATOR.public).close()


def test_another_database_and_a_later_format_are_refused(book, tmp_path):
    connection = sqlite3.connect(tmp_path / "mine.db")
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    with pytest.raises(DataError, match="another file"):
        RequestHistory(tmp_path / "mine.db", CALIBRATOR.public)
    book._connection.execute("PRAGMA user_version = 9")
    with pytest.raises(DataError, match="format 9"):
        RequestHistory(book.path, CALIBRATOR.public)
    with pytest.raises(DataError, match="a place for a book"):
        RequestHistory(tmp_path / "nowhere" / "book", CALIBRATOR.public)


def test_what_was_sent_is_known_by_whoever_opens_it_next(book):
    book.send("run", "a", "1", SENT)
    with RequestHistory(book.path, CALIBRATOR.public) as again:
        assert again.sent("a", "1") == SENT
        assert again.sent("a", "2") is None
        assert again.charges("a", "run") == [SENT]
        assert again.charges("a", "another") == []
        assert again.charges("b") == []


def test_a_refused_request_counts_no_more_until_it_is_sent_again(book):
    book.send("run", "a", "1", SENT)
    book.failed("a", "1", "refused")
    assert book.charges("a") == []
    other = Sent("sent", "gap", Pure(0.5), b"other bytes")
    book.send("run", "a", "1", other)
    assert book.charges("a") == [other]
    book.send("run", "a", "1", SENT)  # on its way already: the bytes stay
    assert book.sent("a", "1") == other
    book.failed("a", "1", "unusable")
    assert [one.state for one in book.charges("a")] == ["unusable"]


def test_a_round_that_is_over_stays_as_it_was(book):
    first = Closed(("a", "b"), {"b": "it refused"})
    book.close_round("run", "question", first)
    book.close_round("run", "question", Closed(("a",), {}))
    found = book.closed("run", "question")
    assert (found.asked, dict(found.silences)) == (first.asked, first.silences)
    assert book.closed("other", "question") is None


def test_a_label_stands_for_one_request(book):
    book.label("run", "a", "mine", "1")
    book.label("run", "a", "mine", "1")
    book.label("run", "b", "mine", "2")
    with pytest.raises(ConflictError):
        book.label("run", "a", "mine", "2")


def test_an_answer_that_somebody_wrote_into_the_file_is_not_believed(book, tmp_path):
    desk = StandIn(tmp_path, scores())
    one = Remote(desk.terms, CALIBRATOR, desk.reply, book)
    one.answer(COUNTS, micro_epsilon=500_000)
    forged = book._all("SELECT reply FROM requests")[0][0].replace(b'"units":[', b'"units":[1')
    book._connection.execute("UPDATE requests SET reply = ?", (forged,))
    with pytest.raises(DataError, match="was changed since"):
        one.answer(COUNTS, micro_epsilon=500_000)


def test_links_of_the_chain_are_checked_in_any_order(book, tmp_path):
    desk = StandIn(tmp_path, scores())
    one = Remote(desk.terms, CALIBRATOR, desk.reply, book)
    late = one.prepared(wanted(100), 1)
    reply = desk.reply(late)  # is on its way
    one.answer(Gap(0.5, 2), micro_epsilon=100)
    assert book.head(desk.terms.source).index == 2
    assert one.heard(wanted(100), reply).micro_epsilon == 100
    assert book.fault(desk.terms.source) is None


def wanted(micro_epsilon):
    return ExpectedResponse(COUNTS, micro_epsilon=micro_epsilon)
