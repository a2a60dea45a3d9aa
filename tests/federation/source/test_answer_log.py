"""What the books say is what was sent, and changes of them are noticed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.federation.source.enrolled import EnrolledSource, make_source
from veracal.accounting import Budget
from veracal.federation.protocol.queries import KINDS
from veracal.federation.source.enrolling import example_arguments
from veracal.federation.source.enrollment import (
    AnswerLog,
    find_share_problems,
    read_answer_log,
    read_enrollment,
)
from veracal.federation.source.folder import read_source


def read(north: EnrolledSource) -> AnswerLog:
    source = read_source(north.path)
    return read_answer_log(source, read_enrollment(source, north.terms.source))


def test_the_log_contains_all_answers_in_order(north: EnrolledSource):
    answers = [north.ask(), north.ask("bins"), north.ask("loss", argument={"inverse": 40_000})]
    north.server.reply(b"rubbish")
    log = read(north)
    assert not log.problems
    assert [one.kind for one in log.answers] == ["counts", "bins", "loss"]
    assert log.answers[0].values == tuple(map(float, answers[0].units))
    assert log.answers[2].argument == {"inverse": 40_000}
    assert [one.epsilon for one in log.answers] == [0.1, 0.1, 0.1]
    assert log.answers[2].spent.epsilon == pytest.approx(0.3)
    assert log.answers[2].left == north.ledger.remaining()
    assert [why for _, why in log.refusals] == ["it does not begin with 'veracal request 1'"]


def test_the_log_contains_gaussian_answers(tmp_path: Path):
    budget = Budget(3.0, 1e-4)
    north = make_source(tmp_path / "n", kinds=tuple(KINDS), delta=1e-5, budget=budget)
    argument = next(example_arguments("platt-equations", north.terms))
    noise = {"micro_epsilon": None, "noise_multiplier": 40.0}
    answer = north.ask("platt-equations", argument=argument, **noise)
    (one,) = read(north).answers
    assert len(one.values) == len(answer.units)
    assert 0 < one.epsilon < 0.5 and one.noise_std > 0
    assert one.left.epsilon == pytest.approx(north.ledger.remaining().epsilon)


def test_the_log_contains_failed_answers(
    north: EnrolledSource, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        patched.delattr("veracal.federation.source.serving.evaluate_query")
        north.server.reply(north.raw())
    (one,) = read(north).answers
    assert one.kind == "counts" and one.values == () and one.epsilon == 0.1


def test_a_changed_answer_is_detected(north: EnrolledSource):
    north.ask()
    with closing(sqlite3.connect(north.folder / "spent.ledger")) as connection:
        connection.execute("DROP TRIGGER entries_stay")
        connection.execute("UPDATE entries SET answer = replace(answer, '0', '1')")
        connection.commit()
    assert any("spent.ledger" in problem for problem in read(north).problems)


def test_an_enrollment_that_was_not_charged_is_detected(tmp_path: Path):
    north, south = make_source(tmp_path / "n"), make_source(tmp_path / "s")
    source = read_source(north.path)
    assert list(find_share_problems(source)) == []
    south.folder.rename(north.path / "enrolled" / south.terms.source)
    (problem,) = find_share_problems(source)
    assert "was not charged" in problem


def test_a_leftover_copy_of_records_is_detected(tmp_path: Path):
    north = make_source(tmp_path / "n")
    (north.path / "enrolled" / ".new.abc").mkdir()
    (problem,) = find_share_problems(read_source(north.path))
    assert ".new.abc holds a copy of records" in problem
