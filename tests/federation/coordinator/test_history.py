"""A coordinator's history: every step on the disk, nothing believed that was not signed."""

import sqlite3
import stat

import pytest

from tests.federation.coordinator.stand_in import COORDINATOR, StandIn, scores
from veracal.accounting import Pure
from veracal.calibration import CorrectWrong, Gap
from veracal.calibration.bins import Bins
from veracal.errors import ConflictError, DataError
from veracal.federation.coordinator.history import ClosedRound, RequestHistory, SentRequest
from veracal.federation.coordinator.remote import Remote
from veracal.federation.protocol.envelopes import PrivateKey
from veracal.queries import QueryRequest

COUNTS = CorrectWrong(Bins(1))
SENT = SentRequest("sent", "gap", Pure(0.5), b"bytes")


@pytest.fixture
def history(tmp_path):
    with RequestHistory(tmp_path / "history", COORDINATOR.public) as created:
        yield created


def test_a_history_belongs_to_its_owner_and_one_coordinator(history):
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    with pytest.raises(DataError, match="with this key"):
        RequestHistory(history.path, PrivateKey.new().public)


@pytest.mark.parametrize("content", [b"something else" * 100, b""], ids=["text", "empty"])
def test_another_file_is_rejected_and_an_empty_one_is_initialized(tmp_path, content):
    place = tmp_path / "other"
    place.write_bytes(content)
    if content:
        with pytest.raises(DataError, match="coordinator's history"):
            RequestHistory(place, COORDINATOR.public)
        assert place.read_bytes() == content
    else:
        RequestHistory(place, COORDINATOR.public).close()


def test_another_database_and_a_later_format_are_rejected(history, tmp_path):
    connection = sqlite3.connect(tmp_path / "mine.db")
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    with pytest.raises(DataError, match="another file"):
        RequestHistory(tmp_path / "mine.db", COORDINATOR.public)
    history._connection.execute("PRAGMA user_version = 9")
    with pytest.raises(DataError, match="format 9"):
        RequestHistory(history.path, COORDINATOR.public)
    with pytest.raises(DataError, match="a path where a history"):
        RequestHistory(tmp_path / "nowhere" / "history", COORDINATOR.public)


def test_a_sent_request_is_known_after_reopening(history):
    history.record_request("run", "a", "1", SENT)
    with RequestHistory(history.path, COORDINATOR.public) as again:
        assert again.find_request("a", "1") == SENT
        assert again.find_request("a", "2") is None
        assert again.charges("a", "run") == [SENT]
        assert again.charges("a", "another") == []
        assert again.charges("b") == []


def test_a_refused_request_is_not_charged_until_it_is_sent_again(history):
    history.record_request("run", "a", "1", SENT)
    history.record_failure("a", "1", "refused")
    assert history.charges("a") == []
    other = SentRequest("sent", "gap", Pure(0.5), b"other bytes")
    history.record_request("run", "a", "1", other)
    assert history.charges("a") == [other]
    history.record_request("run", "a", "1", SENT)  # on its way already: the bytes stay
    assert history.find_request("a", "1") == other
    history.record_failure("a", "1", "unusable")
    assert [one.state for one in history.charges("a")] == ["unusable"]


def test_the_outcome_of_a_round_is_final(history):
    first = ClosedRound(("a", "b"), {"b": "it refused"})
    history.close_round("run", "query", first)
    history.close_round("run", "query", ClosedRound(("a",), {}))
    result = history.find_round("run", "query")
    assert (result.requested, dict(result.dropouts)) == (first.requested, first.dropouts)
    assert history.find_round("other", "query") is None


def test_a_label_identifies_one_request(history):
    history.label("run", "a", "mine", "1")
    history.label("run", "a", "mine", "1")
    history.label("run", "b", "mine", "2")
    with pytest.raises(ConflictError):
        history.label("run", "a", "mine", "2")


def test_a_modified_answer_in_the_file_is_rejected(history, tmp_path):
    server = StandIn(tmp_path, scores())
    one = Remote(server.terms, COORDINATOR, server.reply, history)
    one.answer(COUNTS, micro_epsilon=500_000)
    forged = history._fetch("SELECT reply FROM requests")[0][0].replace(
        b'"units":[', b'"units":[1'
    )
    history._connection.execute("UPDATE requests SET reply = ?", (forged,))
    with pytest.raises(DataError, match="was changed since"):
        one.answer(COUNTS, micro_epsilon=500_000)


def test_links_of_the_chain_are_verified_in_any_order(history, tmp_path):
    server = StandIn(tmp_path, scores())
    one = Remote(server.terms, COORDINATOR, server.reply, history)
    late = one.prepare_request(make_request(100), 1)
    reply = server.reply(late)  # is on its way
    one.answer(Gap(0.5, 2), micro_epsilon=100)
    assert history.head(server.terms.source).index == 2
    assert one.receive(make_request(100), reply).micro_epsilon == 100
    assert history.fault(server.terms.source) is None


def make_request(micro_epsilon):
    return QueryRequest(COUNTS, micro_epsilon=micro_epsilon)
