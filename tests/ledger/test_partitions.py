"""Individuals keep their partition for as long as their ledger lives."""

import json
import os
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veracal.data import Dataset, Number, Schema, Slot, Target, UnitColumn, split
from veracal.errors import DataError, LedgerError
from veracal.ledger.partitions import (
    AssignmentNotice,
    PartitionRule,
    PartitionStore,
    key_path,
    split_and_assign,
)

FRACTIONS = (0.6, 0.0, 0.4)


def records(n: int = 200, **more: Any) -> Dataset:
    rows = np.arange(n, dtype=float)[:, None]
    return Dataset(rows, np.arange(n) % 2, ("a", "b"), size=1000, **more)


def create_store(folder: Path, data: Dataset, relation: Any = "add-remove") -> PartitionStore:
    rule = PartitionRule.for_dataset(data, FRACTIONS, relation, "k")
    return PartitionStore.create(folder / "l.partitions", rule)


# The rule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "relation", "expected"),
    [
        ({}, "add-remove", "row"),
        ({"units": np.arange(200) // 2}, "add-remove", "unit"),
        ({"slots": np.arange(200)}, "add-remove", "row"),
        ({"slots": np.arange(200)}, "replace-one", "slot"),
    ],
)
def test_individuals_are_identified_by_the_declarations(
    more: Any, relation: Any, expected: str
) -> None:
    rule = PartitionRule.for_dataset(records(**more), FRACTIONS, relation, "k")
    assert rule.keyed_by == expected
    assert PartitionRule.from_dict(json.loads(json.dumps(asdict(rule)))) == rule


def test_a_schema_gives_the_same_rule() -> None:
    features = {"x": Number(0, 1), "y": Target((0, 1))}
    for column, relation, expected in (
        ({}, "add-remove", "row"),
        ({"who": UnitColumn(1)}, "add-remove", "unit"),
        ({"bed": Slot()}, "replace-one", "slot"),
    ):
        schema = Schema({**column, **features})  # type: ignore[arg-type]
        rule = PartitionRule.for_dataset(schema, FRACTIONS, relation, "k")  # type: ignore[arg-type]
        assert rule.keyed_by == expected


@pytest.mark.parametrize("more", [{}, {"units": np.arange(200), "slots": np.arange(200)}])
def test_replace_one_needs_slots(more: Any) -> None:
    with pytest.raises(DataError, match=r"Declare a column as kind = 'slot'.*add-remove"):
        PartitionRule.for_dataset(records(**more), FRACTIONS, "replace-one", "k")


def test_inconsistent_rules_are_rejected() -> None:
    with pytest.raises(ValueError, match="keyed_by"):
        PartitionRule(FRACTIONS, "replace-one", "k", "row")
    with pytest.raises(ValueError, match="fractions"):
        PartitionRule((0.5, 0.0, 0.4), "add-remove", "k", "row")
    with pytest.raises(DataError, match="a rule with"):
        PartitionRule.from_dict({"fractions": [1, 0, 0]})


# Assignments -----------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"units": np.arange(200) // 2}])
def test_draws_follow_from_the_split_key(tmp_path: Path, more: Any) -> None:
    """So that what was published with a key can be repeated without the store."""
    data = records(**more)
    result = split_and_assign(data, create_store(tmp_path, data), fresh=True)[0]
    expected = split(data, FRACTIONS, key="k")
    assert (result.train.X == expected.train.X).all()
    assert result.parts.keys() == expected.parts.keys() and not result.secret
    assert {n: p.size for n, p in result.parts.items()} == {"train": 600, "test": 400}
    assert result.train.split_keys == expected.train.split_keys
    with pytest.raises(ValueError, match="not split these rows before"):
        split(result.train, key="k")
    with pytest.raises(DataError, match="not split by this key before"):
        split_and_assign(result.train, PartitionStore(tmp_path / "l.partitions"), fresh=True)


def test_an_unrecorded_row_is_left_out(tmp_path: Path) -> None:
    data = records()
    store = create_store(tmp_path, data)
    first = store.assign(data, fresh=True)
    X = np.array(data.X)
    X[:5] += 0.5
    order = np.random.default_rng(0).permutation(200)
    later = store.assign(data._changed(X=X).take(order), fresh=False)
    expected = first.parts.copy()
    expected[:5] = -1
    assert later.left_out == 5 and (later.parts == expected[order]).all()
    result = split_and_assign(data._changed(X=X), store, fresh=False)[0]
    assert result.left_out == 5 and sum(map(len, result.parts.values())) == 195
    assert "left_out" not in repr(result) and "left_out" not in repr(later)


def test_a_recorded_row_is_used_as_often_as_it_was_recorded(tmp_path: Path) -> None:
    data = records(6)
    store = create_store(tmp_path, data)
    store.assign(data.take(np.array([0, 0, 1, 2])), fresh=True)
    result = store.assign(data.take(np.array([0, 0, 0, 1, 1, 3])), fresh=False)
    assert (result.parts >= 0).tolist() == [True, True, False, True, False, False]


def test_an_unused_recording_is_replaced_and_a_sealed_one_is_not(tmp_path: Path) -> None:
    data, other = records(), records()._changed(X=records().X[:] + 0.5)
    store = create_store(tmp_path, data)
    first = store.assign(data, fresh=True)
    second = store.assign(other, fresh=True)
    assert second.left_out == 0 and second.recording != first.recording
    with pytest.raises(LedgerError, match="recorded other rows"):
        store.seal(first)
    assert not store.sealed
    store.seal(second)
    store.seal(store.assign(other, fresh=True))  # the same once more
    assert store.sealed and store.assign(data, fresh=True).left_out == 200


def test_the_same_rows_are_the_same_recording(tmp_path: Path) -> None:
    data = records()
    store = create_store(tmp_path, data)
    first = store.assign(data, fresh=True)
    turned = store.assign(data.take(np.arange(200)[::-1]), fresh=True)
    assert turned.recording == first.recording
    assert (turned.parts[::-1] == first.parts).all()


def test_units_keep_their_partition_and_new_ones_are_assigned(tmp_path: Path) -> None:
    data = records(units=np.array([f"p{i // 2}" for i in range(200)]))
    store = create_store(tmp_path, data.take(np.arange(100)))
    first = store.assign(data.take(np.arange(100)), fresh=True)
    store.seal(first)
    with sqlite3.connect(store.path) as connection:  # whatever the file says, holds
        connection.execute("UPDATE assignments SET partition = 0")
    second = store.assign(data, fresh=False)
    assert set(first.parts.tolist()) == {0, 2} and second.left_out == 0
    assert (second.parts[:100] == 0).all() and set(second.parts[100:].tolist()) == {0, 2}


def test_numbers_and_their_strings_are_one_id(tmp_path: Path) -> None:
    data = records(units=np.arange(200))
    store = create_store(tmp_path, data)
    first = store.assign(data, fresh=True)
    store.seal(first)
    as_text = data._changed(units=np.arange(200).astype(np.dtypes.StringDType()))
    second = store.assign(as_text, fresh=False)
    store.seal(second)
    assert (second.parts == first.parts).all() and second.notice is None
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT count(*) FROM assignments").fetchone() == (200,)


def test_slots_have_exact_shares_and_keep_them(tmp_path: Path) -> None:
    data = records(slots=np.arange(200))
    store = create_store(tmp_path, data, "replace-one")
    first = store.assign(data, fresh=True)
    assert np.bincount(first.parts).tolist() == [120, 0, 80]
    strangers = data._changed(X=-1 - data.X[:]).take(np.arange(200)[::-1])
    later = store.assign(strangers, fresh=False)
    assert (later.parts[::-1] == first.parts).all()
    fewer = data._changed(slots=np.arange(200) + 1)
    result = split_and_assign(fewer, store, fresh=False)[0]
    assert result.left_out == 1
    assert sum(part.size or 0 for part in result.parts.values()) == 199


def test_slots_are_assigned_as_by_split(tmp_path: Path) -> None:
    data = records(slots=np.arange(200))
    result = split_and_assign(data, create_store(tmp_path, data, "replace-one"), fresh=True)[0]
    expected = split(data, FRACTIONS, key="k", relation="replace-one", fixed_size=True)
    assert (result.train.X == expected.train.X).all()


def test_records_that_may_drop_rows_are_rejected_under_replace_one(tmp_path: Path) -> None:
    data = records(slots=np.arange(200))
    store = create_store(tmp_path, data, "replace-one")
    with pytest.raises(DataError, match="public number of rows"):
        store.assign(data._changed(may_drop=True), fresh=True)


def test_records_with_another_identification_are_rejected(tmp_path: Path) -> None:
    by_row, by_unit = records(), records(units=np.arange(200))
    store = create_store(tmp_path, by_row)
    with pytest.raises(DataError, match="without unit ids"):
        store.assign(by_unit, fresh=False)
    with pytest.raises(DataError, match="row_digests=True"):
        store.assign(by_row._changed(encoded=True), fresh=False)
    (tmp_path / "u").mkdir()
    with pytest.raises(DataError, match="with unit ids"):
        create_store(tmp_path / "u", by_unit).assign(by_row, fresh=False)


# Notices to the data holder ---------------------------------------------------------------


def with_ids(form: str, n: int = 160) -> Dataset:
    """Records of the same individuals, with ids in another spelling."""
    return records(n, units=np.array([form.format(i) for i in range(n)]))


def test_ids_with_another_spelling_are_reported_until_recorded(tmp_path: Path) -> None:
    """A run that stops at the notice leaves no trace, or the next one would give no notice."""
    store = create_store(tmp_path, with_ids("{}"))
    first = store.assign(with_ids("{}"), fresh=True)
    assert first.notice is None
    store.seal(first)
    assert store.assign(with_ids("{}"), fresh=False).notice is None
    before = store.path.read_bytes()
    for _ in range(2):
        padded = store.assign(with_ids("{:03}"), fresh=False)
        assert padded.notice == AssignmentNotice("unit", 60, 100, 100, 0)
    other = store.assign(with_ids("p{}"), fresh=False)
    assert other.notice == AssignmentNotice("unit", 0, 160, 160, 0)
    assert store.path.read_bytes() == before
    store.seal(padded)
    assert store.assign(with_ids("{:03}"), fresh=False).notice is None
    kept = store.assign(with_ids("p{}"), fresh=False, grow=False)
    assert kept.notice == AssignmentNotice("unit", 0, 160, 260, 160)


def test_a_notice_counts_individuals_and_rows(tmp_path: Path) -> None:
    data = records(units=np.arange(200) // 2)
    store = create_store(tmp_path, data.take(np.arange(160)))
    store.seal(store.assign(data.take(np.arange(160)), fresh=True))
    later = data.take(np.arange(20, 200))
    notice = AssignmentNotice("unit", 70, 20, 10, 0)
    assert store.assign(later, fresh=False).notice == notice
    left = store.assign(later, fresh=False, grow=False).notice
    assert left == replace(notice, left_out=40)
    assert repr(left) == repr(notice) == "AssignmentNotice(keyed_by='unit')"
    assert store.assign(data.take(np.arange(20)), fresh=False).notice is None  # fewer


def test_slots_with_another_spelling_are_reported_and_left_out(tmp_path: Path) -> None:
    data = records(slots=np.arange(200))
    store = create_store(tmp_path, data, "replace-one")
    store.seal(store.assign(data, fresh=True))
    padded = data._changed(slots=np.array([f"{i:03}" for i in range(200)]))
    result = store.assign(padded, fresh=False)
    assert result.notice == AssignmentNotice("slot", 100, 100, 100, 100)


def test_two_runs_may_record_the_same_new_units(tmp_path: Path) -> None:
    data = records(units=np.arange(200))
    one = create_store(tmp_path, data)
    one.seal(one.assign(data.take(np.arange(100)), fresh=True))
    other = PartitionStore(one.path)
    first, second = one.assign(data, fresh=False), other.assign(data, fresh=False)
    one.seal(first)
    other.seal(second)
    assert (first.parts == second.parts).all()
    assert (one.assign(data, fresh=False, grow=False).parts == first.parts).all()


def test_new_units_of_another_rule_are_not_recorded(tmp_path: Path) -> None:
    data = records(units=np.arange(200))
    store = create_store(tmp_path, data)
    result = store.assign(data, fresh=True)
    PartitionStore.obtain(store.path, replace(store.rule, split_key="other"), fresh=True)
    with pytest.raises(LedgerError, match="recorded other rows"):
        store.seal(result)
    with sqlite3.connect(store.path) as connection:
        assert connection.execute("SELECT count(*) FROM assignments").fetchone() == (0,)


def test_only_the_number_of_slots_is_public(tmp_path: Path) -> None:
    data = records(slots=np.arange(200))
    store = create_store(tmp_path, data, "replace-one")
    store.seal(store.assign(data, fresh=True))
    assert store.slot_counts() == (120, 0, 80)
    (tmp_path / "rows").mkdir()
    with pytest.raises(ValueError, match="partitions of slots"):
        create_store(tmp_path / "rows", records()).slot_counts()


def test_no_records(tmp_path: Path) -> None:
    store = create_store(tmp_path, records())
    assert len(store.assign(records().take(np.arange(0)), fresh=True).parts) == 0
    assert store.assign(records(), fresh=False).left_out == 200


# Files -----------------------------------------------------------------------------------


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = create_store(tmp_path, records())
        store.assign(records(), fresh=True)
    finally:
        os.umask(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "l.partitions",
        "l.partitions.key",
    ]
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    key = key_path(store.path).read_bytes()
    assert len(key) == 32 and key not in store.path.read_bytes()


def test_keys_differ_from_store_to_store(tmp_path: Path) -> None:
    hashes = []
    for name in "ab":
        (tmp_path / name).mkdir()
        store = create_store(tmp_path / name, records())
        store.assign(records(), fresh=True)
        with sqlite3.connect(store.path) as connection:
            hashes.append(
                {row[0] for row in connection.execute("SELECT hash FROM assignments")}
            )
    assert len(hashes[0]) == 200 and hashes[0].isdisjoint(hashes[1])


def test_a_missing_or_foreign_key_is_an_error(tmp_path: Path) -> None:
    store = create_store(tmp_path, records())
    key = key_path(store.path)
    secret = key.read_bytes()
    key.write_bytes(os.urandom(32))
    with pytest.raises(LedgerError, match="found another"):
        PartitionStore(store.path)
    key.write_bytes(secret[:5])
    with pytest.raises(LedgerError, match="32 bytes"):
        PartitionStore(store.path)
    key.write_bytes(secret)
    key.chmod(0o644)
    with pytest.raises(LedgerError, match="only its owner"):
        PartitionStore(store.path)
    key.unlink()
    with pytest.raises(LedgerError, match="Restore the key file"):
        PartitionStore(store.path)
    (tmp_path / "elsewhere").write_bytes(secret)
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="expected a secret key"):
        PartitionStore(store.path)


def test_invalid_stores_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="does not exist"):
        PartitionStore(tmp_path / "none")
    (tmp_path / "text").write_text("hello, this is a text and nothing else" * 50)
    with pytest.raises(LedgerError, match="database"):
        PartitionStore(tmp_path / "text")
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE t (x)")
    with pytest.raises(LedgerError, match="another database"):
        PartitionStore(tmp_path / "other")
    store = create_store(tmp_path, records())
    (tmp_path / "link").symlink_to(store.path)
    with pytest.raises(LedgerError, match="a link"):
        PartitionStore(tmp_path / "link")
    with pytest.raises(DataError, match="one that exists"):
        PartitionStore.create(store.path, store.rule)
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(LedgerError, match="format 7"):
        PartitionStore(store.path)


def test_an_interrupted_creation_is_completed(tmp_path: Path) -> None:
    store = create_store(tmp_path, records())
    store.path.unlink()
    secret = key_path(store.path).read_bytes()
    again = PartitionStore.obtain(store.path, store.rule, fresh=True)
    assert key_path(again.path).read_bytes() == secret


def test_a_missing_store_is_an_error_after_a_charge(tmp_path: Path) -> None:
    rule = PartitionRule.for_dataset(records(), FRACTIONS, "add-remove", "k")
    path = tmp_path / "l.partitions"
    with pytest.raises(LedgerError, match="Restore it beside its ledger"):
        PartitionStore.obtain(path, rule, fresh=False)
    assert not list(tmp_path.iterdir())
    assert PartitionStore.obtain(path, rule, fresh=True).rule == rule
    assert PartitionStore.obtain(path, rule, fresh=False).rule == rule


@pytest.mark.parametrize("change", [{"split_key": "other"}, {"fractions": (0.5, 0.0, 0.5)}])
def test_another_rule_is_rejected_after_the_first_was_used(tmp_path: Path, change: Any) -> None:
    data = records()
    store = create_store(tmp_path, data)
    other = replace(store.rule, **change)
    with pytest.raises(LedgerError, match="Use the settings and columns of the first run"):
        PartitionStore.obtain(store.path, other, fresh=False)
    taken = PartitionStore.obtain(store.path, other, fresh=True)  # no one has used it yet
    assert taken.rule == PartitionStore(store.path).rule == other
    with pytest.raises(LedgerError, match="changed the rule"):
        store.assign(data, fresh=True)
    _, assignment = split_and_assign(data, taken, fresh=True)
    taken.seal(assignment)
    with pytest.raises(LedgerError, match="could be in two partitions"):
        PartitionStore.obtain(store.path, store.rule, fresh=True)
