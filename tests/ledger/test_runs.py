"""A ledger holds several runs, each charged as a whole, under caps that an extension raises."""

import copy
import math
import multiprocessing
import pickle
import sqlite3
from contextlib import closing

import pytest

from veracal.accounting import (
    Budget,
    Composed,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Repeated,
    Unit,
    epsilon_for,
    noise_for,
    rdp_at,
)
from veracal.errors import AnswerError, BudgetError, ConflictError, LedgerError
from veracal.ledger import Item, Ledger, charging, ledger_statement, open_ledger
from veracal.ledger import charging as charge
from veracal.ledger.chain import Caps
from veracal.ledger.policies import Cost, EpsilonDeltaSums

PARTS = ("train", "test")
DELTA = 1e-5


@pytest.fixture
def pairs(tmp_path):
    return open_ledger(
        tmp_path / "pairs",
        Budget(3.0, DELTA),
        kind="open",
        composition="addition",
        partitions=PARTS,
    )


@pytest.fixture
def renyi(tmp_path):
    return open_ledger(tmp_path / "renyi", Budget(3.0, DELTA), kind="open", partitions=PARTS)


@pytest.fixture
def pure(tmp_path):
    return open_ledger(tmp_path / "pure", Budget(1.0), partitions=PARTS)


def begin(ledger, items, request="first", body=b"settings", delta=None):
    return ledger.begin_run(items, name=request, request=request, body=body, delta=delta)


def training(noise, partition="train"):
    steps = Repeated(PoissonGaussian(noise, rate=0.01), 100)
    return [Item("training", steps, 1, partition), Item("count", Gaussian(40.0), 5, partition)]


# ---------------------------------------------------------------- what a run costs


def test_a_run_of_pairs_is_composed_tightly_at_its_delta(pairs):
    items = training(1.0)
    run = begin(pairs, items, delta=1e-6)
    whole = Composed(tuple(Repeated(item.event, item.times) for item in items))
    epsilon = epsilon_for(whole, 1e-6)
    (listed,) = pairs.runs()
    assert listed.epsilons == {"train": math.ceil(epsilon * 1e6) / 1e6}
    assert listed.deltas == {"train": 1e-6}
    assert epsilon < sum(epsilon_for(Repeated(i.event, i.times), 5e-7) for i in items)
    assert (run.run, run.path) == (1, pairs.path)
    assert pairs.spent("train").epsilon == listed.epsilons["train"]
    assert pairs.spent("test").epsilon == 0 and pairs.remaining("train").delta == 9e-6
    assert pairs.verify() == pairs.head


def test_a_run_with_noise_for_the_caps_fits_exactly(tmp_path):
    budget = Budget(1.0, DELTA)
    noise = noise_for(budget, lambda noise: Repeated(Gaussian(noise), 10))
    ledger = open_ledger(tmp_path / "a", budget, kind="open", composition="addition")
    items = [Item("training", Repeated(Gaussian(noise), 10))]
    assert begin(ledger, items, delta=DELTA).run == 1
    assert ledger.spent().delta == DELTA and 0.99 < ledger.spent().epsilon <= 1.0
    with pytest.raises(BudgetError, match="needs"):  # nothing of the delta is left
        begin(ledger, [Item("x", Gaussian(1e4))], "second", delta=1e-9)
    assert len(ledger.entries()) == 1


def test_a_pure_list_costs_its_exact_epsilon_and_no_delta(pairs):
    begin(pairs, [Item("asking", Laplace(3.0), 3, "test")], delta=DELTA)
    (run,) = pairs.runs()
    assert run.epsilons == {"test": 1.0} and run.deltas == {"test": 0.0}


def test_a_run_that_is_not_pure_needs_a_delta_only_where_deltas_add(pairs, renyi):
    with pytest.raises(ValueError, match="Expected a delta for a run"):
        begin(pairs, training(1.0))
    assert begin(renyi, training(1.0)).run == 1
    assert pairs.entries() == ()


def test_a_run_of_divergences_costs_that_of_its_list(renyi):
    items = training(1.0)
    begin(renyi, items)
    order = renyi.opening.rule.order
    due = sum(item.times * rdp_at(item.event, order) for item in items)
    assert renyi.entries()[0].cost == math.ceil(due * 1e9)
    assert renyi.verify() == renyi.head


def test_an_item_without_a_part_is_charged_to_every_part_and_used_once(pure):
    items = [Item("all", Pure(0.2)), Item("own", Pure(0.3), 1, "test")]
    run = begin(pure, items)
    assert [pure.spent(part).epsilon for part in PARTS] == [0.2, 0.5]
    assert [entry.partition for entry in pure.entries()] == ["train", "test"]
    run.charge(Pure(0.2), "all")
    with pytest.raises(BudgetError, match="planned once"):
        run.charge(Pure(0.2), "all")
    assert pure.verify() == pure.head


def test_rows_of_a_unit_are_charged_together(tmp_path):
    ledger = open_ledger(tmp_path / "a", Budget(1.0, unit=Unit("patient", 3)))
    begin(ledger, [Item("asking", Pure(0.1))])
    assert ledger.spent().epsilon == 0.3


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "at least one item"),
        (["training"], "Expected a plan of Item"),
        ([Item("x", Pure(0.0))], "cost above zero"),
        ([Item("x", Pure(0.1, "replace-one"))], "under add-remove"),
        ([Item("x", Pure(0.1), 1, "other")], "Expected no part"),
    ],
)
def test_invalid_runs_are_rejected(pure, items, words):
    with pytest.raises(ValueError, match=words):
        begin(pure, items)
    assert pure.entries() == ()


def test_a_plan_ledger_has_no_runs(tmp_path):
    ledger = open_ledger(tmp_path / "a", Budget(1.0), kind="plan", plan=[Item("x", Pure(0.1))])
    with pytest.raises(ValueError, match="one fixed list"):
        begin(ledger, [Item("x", Pure(0.1))])
    with pytest.raises(ValueError, match="cannot be extended"):
        ledger.extend(epsilon=1.0)


# ---------------------------------------------------------------- all or nothing, and once


def test_a_run_beyond_the_budget_writes_nothing_and_reports_the_balance(pairs):
    begin(pairs, [Item("asking", Pure(2.5), 1, "test")])
    head = pairs.head
    items = [Item("asking", Pure(0.4), 1, "train"), Item("asking", Pure(0.6), 1, "test")]
    with pytest.raises(BudgetError) as refusal:
        begin(pairs, items, "second")
    for words in ("(0.6, 0)", "(0.5, 0.00001) of (3, 0.00001)", "'test'", "ledger extend"):
        assert words in str(refusal.value)
    assert pairs.head == head and pairs.spent("train").epsilon == 0


def test_the_delta_cap_is_kept_too(pairs):
    for number in range(10):
        begin(pairs, [Item("x", Gaussian(100.0), 1, "train")], f"{number}", delta=1e-6)
    with pytest.raises(BudgetError, match=r", 0\) of \(3, 0.00001\)"):
        begin(pairs, [Item("x", Gaussian(100.0), 1, "train")], "more", delta=1e-6)
    assert pairs.spent().epsilon < 1 and pairs.spent().delta == DELTA
    begin(pairs, [Item("x", Pure(0.1), 1, "train")], "pure")


def test_the_same_run_is_charged_once_and_another_under_its_id_is_a_conflict(pure):
    items = [Item("a", Pure(0.1), 1, "train"), Item("b", Pure(0.1), 1, "test")]
    run = begin(pure, items)
    assert begin(pure, items[::-1]) == run and len(pure.runs()) == 1
    for other in ({"body": b"others"}, {"items": items[:1]}, {"delta": 0.1}):
        with pytest.raises(ConflictError):
            begin(pure, **{"items": items, **other})
    pure.charge(Pure(0.1), "x", request="taken")
    with pytest.raises(ConflictError):
        begin(pure, items, "taken")
    assert pure.spent().epsilon == 0.2


def test_concurrent_processes_cannot_exceed_the_caps(pure):
    context = multiprocessing.get_context("fork")
    granted = context.Queue()

    def attempt(name):
        try:
            begin(pure, [Item("x", Pure(0.1), 2), Item("y", Pure(0.05), 1, "test")], name)
            granted.put(True)
        except BudgetError:
            granted.put(False)

    children = [context.Process(target=attempt, args=(f"{i}",)) for i in range(6)]
    for child in children:
        child.start()
    result = [granted.get(timeout=240) for _ in children]
    for child in children:
        child.join()
    assert sum(result) == 4 and [run.number for run in pure.runs()] == [1, 2, 3, 4]
    assert pure.remaining("test").epsilon == 0 and pure.verify() == pure.head


# ---------------------------------------------------------------- views


def test_a_view_uses_only_the_items_of_its_run(pure):
    run = begin(pure, [Item("count", Pure(0.1), 2, "test")])
    assert run.planned() == ((Item("count", Pure(0.1), 2, "test"), 0),)
    run.require(Pure(0.1), "count", partition="test", times=2)
    run.charge(Pure(0.1), "count", partition="test")
    _, answer = run.answer(
        Pure(0.1), "count", lambda: b"7", request="r", body=b"?", partition="test"
    )
    assert answer == b"7"
    assert [used for _, used in run.planned()] == [2]
    for event, purpose, part in (
        (Pure(0.1), "count", "test"),
        (Pure(0.1), "count", None),
        (Pure(0.2), "count", "test"),
        (Pure(0.1), "other", "test"),
    ):
        with pytest.raises(BudgetError):
            run.charge(event, purpose, partition=part)
        with pytest.raises(BudgetError):
            run.require(event, purpose, partition=part)
    assert pure.spent("test").epsilon == 0.2 and run.spent() == pure.spent()
    assert run.remaining() == pure.remaining() and run.head == pure.head
    assert pure.planned() == () and pure.verify() == pure.head


def test_request_ids_belong_to_their_run(pure):
    runs = [begin(pure, [Item("x", Pure(0.1))], name) for name in ("one", "two")]
    answers = [
        run.answer(Pure(0.1), "x", lambda name=name: name, request="r", body=b"?")[1]
        for run, name in zip(runs, (b"a", b"b"), strict=True)
    ]
    assert answers == [b"a", b"b"]
    assert runs[0].knows("r") and not pure.knows("r") and pure.knows("one")


def test_a_view_is_its_path_and_its_number(pure, tmp_path):
    run = begin(pure, [Item("x", Pure(0.1))])
    same = (
        Ledger(pure.path, run=1),
        Ledger(pure.path, run="first"),
        copy.deepcopy(run),
        pickle.loads(pickle.dumps(run)),
    )
    assert all(other == run for other in same) and Ledger(run.path) == pure
    for wrong in (2, 0, "second", True, 1.5):
        with pytest.raises(LedgerError, match="has no run"):
            Ledger(pure.path, run=wrong)


def test_an_abandoned_run_is_not_refunded_and_not_used_again(pure):
    run = begin(pure, [Item("x", Pure(0.1), 2)])
    run.reserve(Pure(0.1), "x", request="r", body=b"?")
    pure.abandon_run(1)
    assert pure.pending() == () and pure.runs()[0].abandoned
    with pytest.raises(BudgetError, match=r"was abandoned.*another --version \(in Python"):
        run.charge(Pure(0.1), "x")
    with pytest.raises(AnswerError, match=r"not refunded.*another --version \(in Python"):
        begin(pure, [Item("x", Pure(0.1), 2)])
    with pytest.raises(LedgerError, match="abandoned before"):
        run.abandon_run()
    with pytest.raises(LedgerError, match="no run 2"):
        pure.abandon_run(2)
    assert pure.spent().epsilon == 0.2 and pure.verify() == pure.head


# ---------------------------------------------------------------- extensions


def test_an_extension_is_a_second_filter_and_the_caps_add(pairs):
    begin(pairs, [Item("x", Pure(2.9), 1, "train")])
    pairs.extend(epsilon=0.5, delta=1e-6)
    assert pairs.budget == Budget(3.5, 1.1e-5) and pairs.opening.budget == Budget(3.0, DELTA)
    assert [(e.filter, e.epsilon, e.delta) for e in pairs.caps.extensions] == [(2, 0.5, 1e-6)]
    with pytest.raises(BudgetError, match="in filter 2"):  # 0.6 are left, in two filters
        begin(pairs, [Item("x", Pure(0.55), 1, "train")], "second")
    begin(pairs, [Item("x", Pure(0.45), 1, "train")], "third")
    pairs.charge(Pure(0.1), "x", partition="train")  # still fits into the first
    assert [run.filter for run in pairs.runs()] == [1, 2]
    assert [entry.filter for entry in pairs.entries()] == [1, None, 2, 1]
    assert pairs.spent("train").epsilon == 3.45
    assert pairs.remaining("train").epsilon == 0.05
    assert pairs.verify() == pairs.head


def test_the_order_is_not_chosen_again_and_divergences_add(renyi):
    order = renyi.opening.rule.order
    first = renyi.caps.accounts(1)["train"].amount
    renyi.extend(epsilon=2.0, delta=1e-5)
    assert renyi.opening.rule.order == order
    begin(renyi, training(1.0))
    (total,) = sql(renyi, "SELECT total FROM accounts WHERE name = '2/train'")
    # At one order all divergence together gives the sum of the epsilons at that of the deltas.
    spent = type(renyi.opening.rule)(order).privacy
    cost = type(renyi.caps.accounts(1)["train"])(first + total[0])
    epsilon, delta = spent(cost, renyi.budget)
    assert delta == 2e-5 and epsilon == pytest.approx(5.0) and epsilon <= 5.0
    assert renyi.verify() == renyi.head


def test_divergences_can_be_extended_without_a_delta(renyi):
    renyi.extend(epsilon=2.0)
    (total,) = sql(renyi, "SELECT total FROM accounts WHERE name = '2/test'")
    assert total[0] == pytest.approx(2e9) and renyi.budget == Budget(5.0, DELTA)


def test_statements_say_that_the_cap_was_raised(pure, tmp_path):
    assert pure.caps.note is None and "cap" not in ledger_statement(pure).composition
    begin(pure, [Item("x", Pure(0.1))])  # nothing of it is released yet
    pure.extend(epsilon=0.5)
    assert pure.caps.note == "cap raised before any release"
    Ledger(pure.path, run=1).charge(Pure(0.1), "x")
    pure.extend(epsilon=0.5)
    assert pure.caps.note == "cap raised after releases"
    guarantee = ledger_statement(pure)
    assert guarantee.epsilon == 2.0 and "cap raised after releases" in guarantee.text()
    assert guarantee.covers == ("x",)


@pytest.mark.parametrize(
    "caps", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"epsilon": 1e-9}, {"epsilon": math.inf}]
)
def test_invalid_extensions_are_rejected(pure, caps):
    with pytest.raises(ValueError, match="epsilon"):
        pure.extend(**caps)
    assert pure.entries() == () and pure.verify() == pure.head


def test_a_pure_ledger_is_extended_without_a_delta(pure):
    with pytest.raises(ValueError, match="delta=0 for a pure ledger"):
        pure.extend(epsilon=1.0, delta=1e-6)


def test_a_charge_to_all_parts_debits_one_filter(pure):
    pure.charge(Pure(0.9), "x", partition="test")
    pure.extend(epsilon=1.0)
    pure.charge(Pure(0.2), "x")
    assert sql(pure, "SELECT name, spent FROM accounts") == [
        ("2/test", 200_000),
        ("2/train", 200_000),
        ("test", 900_000),
        ("train", 0),
    ]
    assert pure.verify() == pure.head


# ---------------------------------------------------------------- verification


def sql(ledger, *statements):
    """Run statements behind the ledger's back, without its defenses."""
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as connection:
        triggers = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            result = connection.execute(statement).fetchall()
        for _, script in triggers:
            connection.execute(script)
    return result


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE accounts SET total = 9 WHERE name = 'run 1/0'", "does not have the total"),
        ("UPDATE accounts SET spent = 0 WHERE name = 'run 1/1'", "says"),
        (
            "UPDATE accounts SET total = 9000000 WHERE name = '2/test'",
            "does not have the total",
        ),
        ("UPDATE entries SET run = 2 WHERE id = 3", "columns do not match"),
        ("UPDATE entries SET settles = NULL WHERE id = 4", "columns do not match"),
        ("UPDATE entries SET outcome = 'failed' WHERE id = 4", "columns do not match"),
        ("DELETE FROM entries WHERE id = 5", "number is 6"),
        ("DELETE FROM accounts WHERE name = '2/test'", "missing"),
    ],
)
def test_changes_of_runs_and_extensions_are_detected(pure, statement, words):
    run = begin(pure, [Item("x", Pure(0.1), 2, "test"), Item("y", Pure(0.1), 1, "train")])
    run.reserve(Pure(0.1), "x", request="r", body=b"?", partition="test")
    run.record("r", b"?", b"answer")
    pure.extend(epsilon=1.0)
    pure.charge(Pure(0.1), "z")
    pure.verify()
    sql(pure, statement)
    with pytest.raises(LedgerError, match=words):
        Ledger.verify(pure)


def test_a_run_that_was_charged_too_little_is_detected(pairs, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(EpsilonDeltaSums, "run_cost", lambda *about: Cost(1, 1))
        begin(pairs, training(1.0), delta=1e-6)
    with pytest.raises(LedgerError, match="was charged 1 and costs"):
        pairs.verify()


def test_a_run_that_did_not_charge_every_partition_is_detected(pure, monkeypatch):
    costs = charging.partition_costs
    with monkeypatch.context() as patch:
        patch.setattr(
            charging,
            "partition_costs",
            lambda *about, pure: dict([*costs(*about, pure=pure).items()][:1]),
        )
        begin(pure, [Item("all", Pure(0.1))])
    with pytest.raises(LedgerError, match="Run 1 did not charge 'all' to partition 'test'"):
        pure.verify()


def test_caps_raised_by_more_than_stated_are_detected(renyi, monkeypatch):
    total = Caps.total
    with monkeypatch.context() as patch:
        patch.setattr(Caps, "total", lambda caps, number: total(caps, number) * number)
        renyi.extend(epsilon=1.0)
    with pytest.raises(LedgerError, match="'2/test' does not have the total"):
        renyi.verify()


def test_releases_of_an_abandoned_run_are_detected(pure, monkeypatch):
    run = begin(pure, [Item("x", Pure(0.1))])
    pure.abandon_run(1)
    with monkeypatch.context() as patch:
        patch.setattr(charge, "_find_run_item", lambda *about: "run 1/0")
        run.charge(Pure(0.1), "x")
    with pytest.raises(LedgerError, match="run 1 was not begun, or was abandoned"):
        pure.verify()


def test_the_opening_keeps_public_names_and_settings(tmp_path):
    ledger = open_ledger(
        tmp_path / "a", Budget(1.0), data="visits.csv", split={"test": 0.2, "by": ["id"]}
    )
    assert ledger.opening.data == "visits.csv"
    assert ledger.opening.split == {"by": ["id"], "test": 0.2}
    assert ledger.to_json()["opening"]["split"] == {"by": ["id"], "test": 0.2}
    for wrong in (
        {"split": [1]},
        {"split": {"a": {1}}},
        {"data": "a\nb"},
        {"partitions": ["a/b"]},
    ):
        with pytest.raises(ValueError, match="split|data|part"):
            open_ledger(tmp_path / "b", Budget(1.0), **wrong)
