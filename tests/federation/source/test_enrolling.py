"""Records are checked when they are enrolled; a share is taken once, or nothing is left."""

import hashlib
import json
import os
import stat
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.federation.source.enrolled import COORDINATOR, declaration, make_source, scores
from veracal.accounting import Budget, Unit
from veracal.data import Scores
from veracal.errors import BudgetError, DataError
from veracal.federation.protocol.queries import KINDS, build_query
from veracal.federation.protocol.terms import Terms
from veracal.federation.source import enrolling
from veracal.federation.source import enrolling as rehearsal
from veracal.federation.source.enrolling import (
    check_deadline,
    enroll,
    example_arguments,
    propose,
)
from veracal.federation.source.enrollment import read_enrollment
from veracal.federation.source.folder import create_source, read_source
from veracal.ledger import Ledger


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_source(tmp_path / "north", "North", Budget(2.0))
    return tmp_path / "north"


def test_only_the_owner_can_read_a_source(tmp_path: Path):
    north = make_source(tmp_path / "north")
    old = os.umask(0)
    try:
        make_source(tmp_path / "open")
    finally:
        os.umask(old)
    for root in (north.path, tmp_path / "open"):
        for path in (root, *root.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode & 0o077 == 0, (path, oct(mode))


def test_only_keyed_digests_of_the_data_file_are_stored(tmp_path: Path):
    data = tmp_path / "data.csv"
    data.write_text("a,b\n" + "1,2\n" * 1_000)
    lines = []
    for name in ("north", "south"):
        enrolled = make_source(tmp_path / name, data=data)
        lines.append(json.loads((enrolled.folder / "private.json").read_bytes()))
    plain = hashlib.sha256(data.read_bytes()).hexdigest()
    for private in lines:
        assert set(private["data"]) == {"content", "path", "state"}
        assert plain not in json.dumps(private)
    assert lines[0]["data"]["content"] != lines[1]["data"]["content"]  # each has its own key


def test_without_the_digest_key_all_requests_are_refused(tmp_path: Path):
    north = make_source(tmp_path / "north")
    (north.path / "digest.key").write_bytes(b"short")
    with pytest.raises(DataError, match="Restore the file"):
        north.reopened()
    (north.path / "digest.key").write_bytes(bytes(32))
    assert north.reopened().server.reply(north.raw()) == north.server.refusal
    assert not north.ledger.entries()


def test_terms_are_signed_and_contain_the_declaration(folder: Path):
    terms = enroll(folder, scores(), declaration(bins=7, min_records=50, deadline=3.0))
    raw = (folder / "enrolled" / terms.source / "terms").read_bytes()
    assert Terms.unseal(raw) == terms
    assert (terms.name, terms.coordinator, terms.bins) == ("North", COORDINATOR.public, 7)
    assert (terms.classes, terms.reads, terms.deadline) == (3, "logits", 3.0)
    assert terms.key == read_source(folder).public


def test_each_enrollment_is_charged_its_whole_budget_permanently(folder: Path):
    source = read_source(folder)
    for _ in range(2):
        enroll(folder, scores(), declaration())
    assert source.shares.remaining().epsilon == 0
    with pytest.raises(BudgetError):
        enroll(folder, scores(), declaration(epsilon=0.000001, max_per_answer=0.000001))
    enrolling.revoke(source, read_enrollment(source, source.enrollment_ids()[0]))
    assert source.shares.remaining().epsilon == 0
    assert len(list((folder / "enrolled").iterdir())) == 2


def test_shares_with_a_delta_add_up_exactly(tmp_path: Path):
    folder = tmp_path / "north"
    create_source(folder, "North", Budget(0.3, 3e-6))
    for _ in range(3):
        enroll(folder, scores(), declaration(epsilon=0.1, max_per_answer=0.1, delta=1e-6))
    with pytest.raises(BudgetError):
        propose(folder, scores(), declaration(epsilon=0.1, max_per_answer=0.1, delta=1e-6))


def test_a_delta_requires_an_institution_with_a_delta(folder: Path):
    with pytest.raises(ValueError, match="pure cost"):
        propose(folder, scores(), declaration(delta=1e-6))


def test_a_share_covers_all_rows_of_a_unit(tmp_path: Path):
    budget = Budget(1.0, unit=Unit("patient", 3))
    north = make_source(tmp_path / "n", scores(6, units=[0, 0, 0, 1, 1, 2]), budget=budget)
    assert read_source(north.path).shares.remaining().epsilon == 0
    assert north.terms.unit == Unit("patient", 3)
    assert north.terms.budget == budget


PATIENTS = Budget(2.0, unit=Unit("patient", 2))


@pytest.mark.parametrize(
    ("budget", "records", "changed", "why"),
    [
        (None, Scores.from_logits(np.zeros((9, 3))), {}, "a label for every record"),
        (None, scores(9), {"min_records": 10}, "from 10 to 1,000,000, as declared, found 9"),
        (None, scores(9), {"max_records": 8}, "from 1 to 8, as declared, found 9"),
        (None, scores(9, units=range(9)), {}, "protects single records"),
        (PATIENTS, scores(9), {}, "the patient that each row belongs to"),
        (PATIENTS, scores(9, units=[0] * 9), {}, "at most 2 rows of patient"),
        (None, scores(0), {}, "from 1 to"),
    ],
)
def test_records_that_do_not_match_the_declaration_are_rejected_without_trace(
    tmp_path: Path, budget: Budget | None, records: Scores, changed: dict, why: str
):
    folder = tmp_path / "north"
    create_source(folder, "North", budget or Budget(2.0))
    with pytest.raises(DataError, match=why):
        enroll(folder, records, declaration(**changed))
    assert not list((folder / "enrolled").iterdir())
    assert not read_source(folder).shares.entries()


def test_invalid_scores_are_rejected():
    with pytest.raises(DataError, match="finite logits"):
        Scores.from_logits([[np.nan, 0.0]], [0])
    with pytest.raises(DataError, match="labels"):
        Scores.from_logits([[1.0, 0.0]], [2])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"kinds": ()}, "different kinds"),
        ({"kinds": ("counts", "counts")}, "different kinds"),
        ({"kinds": ("weights",)}, "different kinds"),
        ({"kinds": ("platt-equations",)}, "delta above 0"),
        ({"max_per_answer": 2.0}, "at most the whole budget"),
        ({"deadline": 0.0}, "deadline > 0"),
        ({"model": "x"}, "64 hexadecimal"),
        ({"expires": "tomorrow"}, "Expected a date"),
        ({"expires": "2020-01-01"}, "in the future"),
        ({"epsilon": -1.0}, "epsilon > 0"),
    ],
)
def test_an_invalid_declaration_is_rejected(folder: Path, changed: dict, why: str):
    with pytest.raises(ValueError, match=why):
        enroll(folder, scores(), declaration(**changed))
    assert not read_source(folder).shares.entries()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_example_arguments_that_fit_into_a_request(tmp_path: Path, kind: str):
    terms = make_source(tmp_path / "n", scores(20, 27)).terms
    terms = Terms(**{**vars(terms), "kinds": tuple(KINDS)})
    values = list(example_arguments(kind, terms))
    assert values and all(build_query(kind, argument, terms).entries for argument in values)
    if kind.startswith("map-"):
        assert len(values) >= 5


def test_a_failing_query_is_rejected_at_enrollment_without_details(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise ZeroDivisionError("record 17")

    monkeypatch.setattr("veracal.federation.source.enrolling.evaluate_query", broken)
    with pytest.raises(DataError, match="can answer how many") as caught:
        enroll(folder, scores(), declaration())
    assert "17" not in str(caught.value)


def test_a_short_deadline_is_rejected_with_a_recommendation(tmp_path: Path):
    terms = make_source(tmp_path / "n", deadline=2.0).terms
    check_deadline(0.5, terms, "x")
    with pytest.raises(DataError, match="Declare a deadline of 5 seconds"):
        check_deadline(0.51, terms, "x")
    with pytest.raises(DataError, match="Declare a deadline of 86400 seconds"):
        check_deadline(10_000.0, terms, "x")


def test_the_deadline_is_compared_with_the_slowest_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Every query takes 3 seconds, and reading the records as long again."""
    clock = SimpleNamespace(perf_counter=count(0, 3.0).__next__)
    monkeypatch.setattr(rehearsal, "time", clock)
    with pytest.raises(DataError, match="4 times .* that takes 3 seconds.* of 20 seconds"):
        make_source(tmp_path / "a", deadline=11.9)
    with pytest.raises(DataError, match="4 times .* that takes 6 seconds.* of 60 seconds"):
        make_source(tmp_path / "b", deadline=23.9)
    make_source(tmp_path / "c", deadline=24.0)


def test_an_interrupted_enrollment_leaves_no_partial_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "charge", stop)
        with pytest.raises(KeyboardInterrupt):
            enroll(folder, scores(), declaration())
    assert not list((folder / "enrolled").iterdir())
    assert read_source(folder).shares.remaining().epsilon == 2.0


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_records_are_stored_unchanged(tmp_path: Path, kind: str):
    rng = np.random.default_rng(0)
    classes = ["no", "yes, perhaps"]
    labels = np.array(classes)[rng.integers(0, 2, 30)]
    shares = rng.dirichlet((1, 1), 30).astype(np.float64)
    make = Scores.from_logits if kind == "logits" else Scores.from_probabilities
    units = [f"p{i // 2}" for i in range(30)]
    given = make(shares, labels, classes=classes, units=units)
    north = make_source(tmp_path / "n", given, budget=Budget(1.0, unit=Unit("patient", 2)))
    kept = read_enrollment(read_source(north.path), north.terms.source).records()
    assert kept.kind == kind == north.terms.reads
    assert np.array_equal(kept.values, given.values) and kept.values.dtype == np.float64
    assert np.array_equal(kept.known_labels, given.known_labels)
    assert np.array_equal(kept.units, given.units)
