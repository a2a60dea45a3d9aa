"""A run splits individuals, not rows of a file or features of a machine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veracal.data import Dataset, Number, Schema, Slot, Target
from veracal.errors import DataError
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig
from veracal.workflow.records import load_records

ROWS = [f"s{i},{(i * 37) % 101}.50,{'ab'[i % 2]}" for i in range(300)]


def config(folder: Path, rows: list[str], relation: Any, slot: bool = True) -> Config:
    kind = {"place": Slot()} if slot else {}
    schema = Schema({**kind, "x": Number(0, 200), "y": Target(("a", "b"))}, size=300)
    (folder / "t.toml").write_text(schema.to_toml())
    lines = rows if slot else [row.partition(",")[2] for row in rows]
    head = "place,x,y" if slot else "x,y"
    (folder / "t.csv").write_text("\n".join([head, *lines]) + "\n")
    data = DataConfig(str(folder / "t.csv"), str(folder / "t.toml"))
    return Config(data, PrivacyConfig(3.0, 1e-5, relation))


def slots_of(records: Dataset) -> set[str]:
    assert records.slots is not None
    return set(records.slots.tolist())


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_sorting_a_table_changes_no_assignment(tmp_path: Path, relation: str) -> None:
    first = load_records(config(tmp_path, ROWS, relation))
    order = np.random.default_rng(0).permutation(300)
    second = load_records(config(tmp_path, [ROWS[i] for i in order], relation))
    assert slots_of(first.test) == slots_of(second.test)
    assert not slots_of(first.train) & slots_of(second.test)


def test_a_replacement_record_inherits_the_partition(tmp_path: Path) -> None:
    first = load_records(config(tmp_path, ROWS, "replace-one"))
    others = [f"{row.split(',')[0]},7,a" for row in ROWS[:150]] + ROWS[150:]
    second = load_records(config(tmp_path, others, "replace-one"))
    assert slots_of(first.test) == slots_of(second.test)
    assert second.test.size == len(second.test) == 60


def test_replace_one_without_slots_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Declare a column as kind = 'slot'.*add-remove"):
        load_records(config(tmp_path, ROWS, "replace-one", slot=False))
    assert load_records(config(tmp_path, ROWS, "add-remove", slot=False)).split.left_out == 0
