"""A ledger is charged first, once, and never more than its budget."""

import copy
import multiprocessing
import os
import pickle
import threading
from fractions import Fraction

import pytest
import sklearn
from sklearn.base import BaseEstimator

from veracal.accounting.events import (
    Approximate,
    AsReplaceOne,
    Budget,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Repeated,
    Unit,
)
from veracal.errors import AnswerError, BudgetError, ConflictError, LedgerError
from veracal.ledger.ledger import Ledger, open_ledger

QUARTER = Pure(0.25)


@pytest.fixture
def ledger(tmp_path):
    return open_ledger(tmp_path / "ledger", Budget(1.0))


class Records:
    """Records that count how often they are read."""

    def __init__(self, error=None):
        self.read, self.error = 0, error

    def __call__(self):
        self.read += 1
        if self.error is not None:
            raise self.error
        return os.urandom(8)


def ask(ledger, records, request="r", body=b"?", event=QUARTER):
    return ledger.answer(event, "asking", records, request=request, body=body)[1]


# ---------------------------------------------------------------- charging


def test_charges_are_spent_and_the_rest_remains(ledger):
    entry = ledger.charge(Pure(0.25), "counting")
    assert (entry.index, entry.purpose, entry.cost, entry.outcome) == (
        1,
        "counting",
        250_000,
        "charged",
    )
    assert ledger.spent().epsilon == 0.25 and ledger.remaining().epsilon == 0.75
    assert ledger.entries() == (entry,)


def test_the_budget_can_be_spent_to_the_last_millionth(ledger):
    ledger.charge(Pure(0.999_999), "most")
    with pytest.raises(BudgetError, match="needs epsilon=0.000002, but 0.000001 of 1 is left"):
        ledger.charge(Pure(0.000_002), "more")
    ledger.charge(Pure(0.000_001), "the rest")
    with pytest.raises(BudgetError, match="'more' needs epsilon=0.000001, but 0 of 1 is left"):
        ledger.charge(Pure(1e-12), "more")  # the least that anything costs
    assert len(ledger.entries()) == 2


def test_budgets_are_read_as_decimal_numbers(tmp_path):
    """0.7 is not a sum of binary fractions, and 0.1 + 0.2 is not 0.3 for a float."""
    ledger = open_ledger(tmp_path / "ledger", Budget(0.7))
    for _ in range(7):
        ledger.charge(Pure(0.1), "a tenth")
    assert ledger.remaining().epsilon == 0
    with pytest.raises(BudgetError):
        ledger.charge(Pure(0.1), "a tenth")


def test_equal_shares_of_a_budget_can_all_be_spent(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0))
    micro = 1_000_000 // 6
    for _ in range(6):
        ledger.charge(Pure(micro / 1e6), "one of six")
    assert ledger.spent().epsilon == 6 * micro / 1e6
    # Noise first and its cost rounded up would refuse the sixth.
    assert 6 * (micro + 1) > 1_000_000


def test_noise_is_charged_at_its_exact_cost_rounded_up(ledger):
    assert ledger.charge(Laplace(3.0), "real").cost == 333_334
    assert ledger.charge(DiscreteLaplace(1000.0, 7), "whole").cost == 7_000
    assert ledger.charge(Repeated(Pure(0.01), 3), "thrice").cost == 30_000


def test_every_row_of_a_unit_is_charged(tmp_path):
    budget = Budget(1.0, unit=Unit("patient", 3))
    ledger = open_ledger(tmp_path / "ledger", budget)
    assert ledger.charge(Pure(0.125), "counting").cost == 375_000
    assert ledger.charge(Laplace(10.0), "counting").cost == 300_000
    with pytest.raises(BudgetError):
        ledger.charge(Pure(0.15), "counting")


@pytest.mark.parametrize(
    "event",
    [Pure(0.0), Laplace(1.0, 0.0), Repeated(Pure(0.1), 0), PoissonGaussian(1.0, 1.0, rate=0.0)],
    ids=repr,
)
def test_events_without_a_cost_are_rejected(tmp_path, event):
    kinds = {
        "pure": {"kind": "pure"},
        "rdp": {"kind": "open"},
        "addition": {"kind": "open", "composition": "addition"},
    }
    for name, settings in kinds.items():
        budget = Budget(1.0, 0.0 if name == "pure" else 1e-5)
        ledger = open_ledger(tmp_path / name, budget, **settings)
        with pytest.raises(ValueError, match="cost above zero|pure"):
            ledger.charge(event, "counting")
        assert ledger.entries() == ()


def test_events_with_infinite_cost_are_rejected(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0, 1e-5), kind="open")
    with pytest.raises(BudgetError, match="no finite cost"):
        ledger.charge(Gaussian(0.0), "training")
    pure = open_ledger(tmp_path / "pure", Budget(1.0))
    for event in (Gaussian(1.0), Laplace(0.0)):
        with pytest.raises(ValueError, match="pure"):
            pure.charge(event, "training")


def test_another_relation_is_rejected_first(ledger, tmp_path):
    records = Records()
    with pytest.raises(ValueError, match="Expected an event under add-remove"):
        ask(ledger, records, event=Pure(0.1, "replace-one"))
    replace = open_ledger(tmp_path / "replace", Budget(1.0, relation="replace-one"))
    with pytest.raises(ValueError, match="convert it with AsReplaceOne"):
        ask(replace, records, event=Pure(0.1))
    assert replace.charge(AsReplaceOne(Pure(0.1)), "converted").cost == 200_000
    assert records.read == 0 and ledger.entries() == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"purpose": ""}, "purpose"),
        ({"purpose": "a\nb"}, "purpose"),
        ({"purpose": "x" * 201}, "purpose"),
        ({"request": ""}, "request"),
        ({"request": "\ud800"}, "request"),
        ({"partition": "test"}, "partition"),
        ({"delta": 1e-6}, "delta"),
        ({"event": 0.1}, "event"),
        ({"event": None}, "event"),
    ],
)
def test_wrong_arguments_are_rejected(ledger, arguments, words):
    with pytest.raises(ValueError, match=words):
        ledger.charge(**{"event": Pure(0.1), "purpose": "counting", **arguments})
    assert ledger.entries() == ()


# ---------------------------------------------------------------- answering


def test_an_answer_is_charged_and_stored(ledger):
    records = Records()
    answer = ask(ledger, records)
    assert ask(ledger, records) == answer and records.read == 1
    (entry,) = ledger.entries()
    assert entry.outcome == "answered" and entry.request == "r"


def test_a_repeated_answer_has_the_same_entry(ledger):
    records = Records()
    first = ledger.answer(QUARTER, "asking", records, request="r", body=b"?")
    ledger.charge(QUARTER, "another")
    again = ledger.answer(QUARTER, "asking", records, request="r", body=b"?")
    assert again == first == (ledger.entries()[0], ask(ledger, records))
    assert again[0].hash != ledger.head and records.read == 1


def test_requests_beyond_the_budget_are_rejected_before_reading_records(ledger):
    records = Records()
    with pytest.raises(BudgetError, match="no record was read"):
        ask(ledger, records, event=Pure(1.01))
    assert records.read == 0 and ledger.spent().epsilon == 0
    assert ask(ledger, records, event=Pure(1.0))  # the id is still free


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"!"},
        {"event": Pure(0.2)},
        {"purpose": "another"},
        {"partition": "test"},
        {"partition": None},
    ],
)
def test_another_request_under_the_same_id_is_a_conflict(tmp_path, other):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0), partitions=("train", "test"))
    first = {
        "event": Pure(0.1),
        "purpose": "a",
        "request": "r",
        "body": b"?",
        "partition": "train",
    }
    records = Records()
    ledger.answer(compute=records, **first)
    with pytest.raises(ConflictError, match="'r' was used before"):
        ledger.answer(compute=records, **{**first, **other})
    assert records.read == 1 and len(ledger.entries()) == 1


def test_a_charge_and_an_answer_are_different_requests(ledger):
    ledger.charge(Pure(0.1), "asking", request="r")
    assert ledger.charge(Pure(0.1), "asking", request="r").index == 1
    with pytest.raises(ConflictError):
        ask(ledger, Records(), body=b"", event=Pure(0.1))
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    "records",
    [
        Records(ZeroDivisionError("row 7 is a zero")),
        Records(MemoryError()),
        Records(LedgerError("x")),
        Records(OSError(28, "No space left on device")),
        lambda: "text",
    ],
    ids=["error", "memory", "our own", "system", "no bytes"],
)
def test_a_failure_is_charged_and_repeated(ledger, records):
    said = set()
    for _ in range(3):
        with pytest.raises(AnswerError, match="The charge stands") as refused:
            ask(ledger, records)
        said.add(str(refused.value))
    assert len(said) == 1 and "row 7" not in said.pop()
    assert getattr(records, "read", 1) == 1
    (entry,) = ledger.entries()
    assert entry.outcome == "failed" and entry.answer is None
    assert ledger.spent().epsilon == 0.25 and ledger.verify() == entry.hash


@pytest.mark.parametrize("end", [KeyboardInterrupt])
def test_an_interruption_charges_and_releases_nothing(ledger, end):
    with pytest.raises(end):
        ask(ledger, Records(end()))
    assert ledger.entries() == () and ledger.spent().epsilon == 0
    assert ask(ledger, Records())


def test_the_body_of_a_request_must_be_bytes(ledger):
    for body in ("text", None):
        with pytest.raises(ValueError, match="body to be bytes"):
            ask(ledger, Records(), body=body)


# ---------------------------------------------------------------- parts


def test_partitions_compose_in_parallel(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0), partitions=("train", "test"))
    ledger.charge(Pure(0.7), "training", partition="train")
    ledger.charge(Pure(0.6), "testing", partition="test")
    assert [part.spent.epsilon for part in ledger.partitions()] == [0.7, 0.6]
    assert ledger.spent().epsilon == 0.7 and ledger.remaining().epsilon == 0.3
    assert ledger.spent("test").epsilon == 0.6 and ledger.remaining("test").epsilon == 0.4
    with pytest.raises(BudgetError, match="0.3 of 1 is left for partition 'train'"):
        ledger.charge(Pure(0.35), "both")  # all parts pay, and one cannot
    assert ledger.spent("test").epsilon == 0.6
    ledger.charge(Pure(0.3), "both")
    assert [part.spent.epsilon for part in ledger.partitions()] == [1.0, 0.9]
    ledger.verify()
    with pytest.raises(ValueError, match="Expected no partition or one of"):
        ledger.spent("validation")


@pytest.mark.parametrize("parts", [(), ("a", "a"), ("",), tuple(map(str, range(65)))])
def test_partitions_are_few_and_distinct(tmp_path, parts):
    with pytest.raises(ValueError, match="partition"):
        open_ledger(tmp_path / "ledger", Budget(1.0), partitions=parts)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- one ledger, many hands


class Estimator(BaseEstimator):
    """An estimator with a ledger attribute, which is discouraged."""

    def __init__(self, ledger):
        self.ledger = ledger


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda ledger: pickle.loads(pickle.dumps(ledger)),
        lambda ledger: sklearn.clone(Estimator(ledger)).ledger,
        lambda ledger: Ledger(ledger.path),
        lambda ledger: Ledger(str(ledger.path)),
    ],
    ids=["deepcopy", "pickle", "clone", "path", "text"],
)
def test_a_copied_object_refers_to_the_same_ledger(ledger, copied):
    copied(ledger).charge(Pure(0.6), "copy")
    with pytest.raises(BudgetError):
        ledger.charge(Pure(0.6), "original")
    assert copied(ledger) == ledger and copied(ledger).spent().epsilon == 0.6


def test_the_path_does_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = open_ledger("ledger", Budget(1.0))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ledger.charge(Pure(0.1), "from elsewhere").index == 1


def charge_often(ledger, results):
    granted = 0
    for _ in range(20):
        try:
            ledger.charge(Pure(0.01), "racing")
            granted += 1
        except BudgetError:
            pass
    results.append(granted) if isinstance(results, list) else results.put(granted)


def test_concurrent_threads_cannot_exceed_the_budget(ledger):
    granted = []
    threads = [threading.Thread(target=charge_often, args=(ledger, granted)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 100 and ledger.remaining().epsilon == 0
    assert len(ledger.entries()) == 100 and ledger.verify()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_concurrent_forks_cannot_exceed_the_budget(ledger):
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    children = [fork.Process(target=charge_often, args=(ledger, queue)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert sum(queue.get() for _ in children) == 100
    assert len(ledger.entries()) == 100 and ledger.verify()


def test_readers_are_not_blocked_by_a_computation(ledger):
    def compute():
        assert Ledger(ledger.path).spent().epsilon == 0  # nothing is committed yet
        return b"done"

    assert ask(ledger, compute) == b"done"
    assert ledger.spent().epsilon == 0.25


def test_a_computation_cannot_charge_the_ledger_that_waits_for_it(ledger):
    said = []

    def compute():
        try:
            ledger.charge(Pure(0.1), "inside")
        except LedgerError as error:
            said.append(str(error))
        return b"done"

    assert ask(ledger, compute) == b"done"
    assert "cannot use the ledger that waits for it" in said[0]
    assert ledger.charge(Pure(0.1), "afterwards").index == 2


# ---------------------------------------------------------------- what a ledger says


def test_the_json_of_a_ledger_suffices_to_check_its_chain(ledger):
    answer = ask(ledger, Records())
    ledger.charge(Pure(0.1), "counting")
    written = ledger.to_json()
    assert "answer_hex" not in written["entries"][0]
    assert ledger.to_json(answers=True)["entries"][0]["answer_hex"] == answer.hex()
    assert ledger.to_json(answers=True)["entries"][1]["answer_hex"] is None
    previous = written["opening"]["hash"]
    for entry in written["entries"]:
        assert entry["previous"] == previous
        previous = entry["hash"]
    assert previous == written["head"] == ledger.head


def test_the_head_changes_with_every_entry_and_differs_between_ledgers(tmp_path):
    heads = set()
    for name in "ab":
        ledger = open_ledger(tmp_path / name, Budget(1.0))
        heads |= {ledger.head, ledger.charge(Pure(0.1), "x").hash}
        assert ledger.head == ledger.entries()[-1].hash
    assert len(heads) == 4


def test_costs_are_added_as_fractions(tmp_path):
    ledger = open_ledger(tmp_path / "ledger", Budget(3.0))
    for _ in range(10):
        ledger.charge(Pure(0.1), "x")
    assert Fraction(repr(ledger.spent().epsilon)) == 1
    assert sum([0.1] * 10) != 1  # what floats would have said


class Panic(BaseException):
    """Something that is no ordinary exception."""


@pytest.mark.parametrize("kind", [RuntimeError, Panic, SystemExit])
def test_a_failure_is_charged_and_reveals_nothing(tmp_path, kind):
    ledger = open_ledger(tmp_path / "failing.ledger", Budget(1.0))

    def fail():
        raise kind("the label of record 7 is 1")

    with pytest.raises(AnswerError) as raised:
        ledger.answer(Pure(0.25), "x", fail, request="a", body=b"")
    error = raised.value
    assert (
        error.__cause__ is None and error.__context__ is None and "record 7" not in str(error)
    )
    assert ledger.remaining().epsilon == 0.75


def test_totals_are_the_maximum_of_each_component(tmp_path):
    ledger = open_ledger(
        tmp_path / "two.ledger",
        Budget(5.0, 1e-3),
        kind="open",
        composition="addition",
        partitions=("a", "b"),
    )
    ledger.charge(Pure(4.0), "x", partition="a")
    ledger.charge(Approximate(1.0, 5e-4), "y", partition="b", delta=5e-4)
    assert (ledger.spent().epsilon, ledger.spent().delta) == (4.0, 5e-4)
    assert (ledger.remaining().epsilon, ledger.remaining().delta) == (1.0, 5e-4)


def test_hashes_of_entries_by_their_numbers(ledger):
    entries = [ledger.charge(QUARTER, f"{i}") for i in range(3)]
    assert ledger.hashes([3, 1, 7, 0, 1]) == {1: entries[0].hash, 3: entries[2].hash}
    assert ledger.hashes([]) == {}


def test_require_charges_nothing(tmp_path):
    ledger = open_ledger(tmp_path / "asked.ledger", Budget(1.0))
    ledger.require(Pure(0.9), "x")
    with pytest.raises(BudgetError, match="no record was read"):
        ledger.require(Pure(1.1), "x")
    assert ledger.entries() == ()


def test_length_and_known_requests(ledger):
    assert ledger.length() == 0 and not ledger.knows("one")
    ledger.charge(Pure(0.1), "counting", request="one")
    assert ledger.length() == 1 and ledger.knows("one") and not ledger.knows("two")
