"""`veracal data count` answers with noise, once, and is paid for."""

import json

import pytest

from veracal.accounting import Budget, Unit
from veracal.data import load
from veracal.ledger import Ledger, default_ledger_path, open_ledger

COUNT = ["data", "count", "breast-cancer", "--ledger", "study.ledger"]


@pytest.fixture
def ledger():
    return open_ledger("study.ledger", Budget(1.0))


def test_a_count_is_near_the_truth_and_charged(run, ledger):
    code, out, _ = run(*COUNT, "--epsilon", "0.5", "--json")
    actual = json.loads(out)
    truth = len(load("breast-cancer"))
    assert code == 0 and abs(actual["count"] - truth) < 100  # off by more once in e^50 times
    assert actual["interval"]["low"] < actual["count"] < actual["interval"]["high"]
    assert actual["left"]["epsilon"] == 0.5 == ledger.remaining().epsilon
    assert actual["head"] == ledger.head


def test_a_repeated_count_costs_nothing_and_is_equal(run, ledger):
    first, again = (run(*COUNT, "--epsilon", "0.2")[1] for _ in range(2))
    assert first == again and len(ledger.entries()) == 1
    other = run(*COUNT, "--epsilon", "0.2", "--version", "2")[1]
    assert len(ledger.entries()) == 2 and "0.6 left" in other


def test_a_ledger_for_patients_rejects_a_table_without_ids(run):
    open_ledger("study.ledger", Budget(1.0, unit=Unit("patient")))
    code, out, err = run(*COUNT, "--epsilon", "0.5")
    assert code == 1 and not out
    assert "the patient of each row" in " ".join(err.split())
    assert Ledger("study.ledger").entries() == ()


def test_what_is_notaffordable_is_refused(run, ledger):
    code, out, err = run(*COUNT, "--epsilon", "1.1")
    assert code == 1 and not out and "no record was read" in err
    assert ledger.entries() == ()


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "1e-9"])
def test_an_epsilon_is_at_least_a_millionth(run, ledger, epsilon):
    code, out, err = run(*COUNT, "--epsilon", epsilon)
    assert code == 2 and not out and "--epsilon" in err


def test_an_unknown_partition_is_wrong_usage_and_not_charged(run, ledger):
    code, out, err = run(*COUNT, "--epsilon", "0.5", "--partition", "valid")
    assert code == 2 and not out and "--partition" in err and "'valid'" in err
    assert ledger.entries() == ()


def test_without_a_ledger_nothing_is_counted(run):
    code, out, err = run(*COUNT, "--epsilon", "0.1")
    assert code == 1 and not out and "expected a ledger, but the file does not exist" in err


def test_the_default_ledger_of_the_data_set_pays(run):
    words = ["data", "count", "breast-cancer", "--epsilon", "0.25"]
    code, out, err = run(*words)
    assert code == 1 and not out and "has no ledger yet" in err
    ledger = open_ledger(default_ledger_path("breast-cancer"), Budget(1.0))
    code, first, _ = run(*words)
    assert code == 0 and f"0.75 left in {ledger.path.name}" in first
    assert (
        run(*words, "--ledger", "breast-cancer")[1] == first
    )  # a data set names its own ledger
    assert len(ledger.entries()) == 1


def test_a_partition_pays_for_itself(run):
    open_ledger("study.ledger", Budget(1.0), partitions=("train", "test"))
    code, _, _ = run(*COUNT, "--epsilon", "0.7", "--partition", "train")
    assert code == 0
    assert Ledger("study.ledger").remaining("test").epsilon == 1.0
    assert Ledger("study.ledger").remaining("train").epsilon == 0.3
