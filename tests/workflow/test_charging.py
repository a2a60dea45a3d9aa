"""A run that its ledger cannot pay is refused before a record is read, whatever is fitted."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.workflow.own_ledgers import compare, run
from veracal.accounting import Budget
from veracal.data.builtin import SCHEMAS
from veracal.errors import AnswerError, BudgetError, DataError, LedgerError
from veracal.ledger import Ledger
from veracal.workflow import Config, Configuration, records
from veracal.workflow.charging import open_data_ledger
from veracal.workflow.config import (
    DataConfig,
    MeasurementConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)
from veracal.workflow.planning import RunPlan
from veracal.workflow.records import declare_records, load_records, run_budget

PRIVACY = PrivacyConfig(3.0, 1e-5)
HEAD = """format = 1
size = 200
name = "visits"
"""
TARGET = """[columns.ill]
kind = "target"
classes = [0, 1]
"""
AGE = """[columns.age]
kind = "number"
lower = 0
upper = 100
"""
UNIT = """[columns.who]
kind = "unit"
max_contributions = 2
"""
SLOT = """[columns.bed]
kind = "slot"
"""
VECTOR = """[columns.X]
kind = "vector"
size = 4
lower = -9
upper = 9
center = 0
spread = 1
"""
TEXT = """[columns.note]
kind = "text"
"""
LABELS = np.arange(200) % 2


class RecordsReadError(Exception):
    """A record was read."""


def write_csv(folder: Path, **columns: object) -> str:
    path = folder / "visits.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*columns, "ill"])
        lines.writerows(zip(*columns.values(), LABELS, strict=True))
    return str(path)


def config(folder: Path, kind: str) -> Config:
    """A config for records of a kind, which are in a folder."""
    ages, rows = np.arange(200) % 97, np.random.default_rng(0).normal(size=(200, 4))
    (folder / "visits.toml").write_text(HEAD + TARGET + AGE)
    schema, relation, model = str(folder / "visits.toml"), "add-remove", "logistic"
    chosen = DataConfig(str(folder / "visits.csv"), schema)
    if kind in TABLES:
        more, columns = TABLES[kind]
        write_csv(folder, age=ages, **columns)
        (folder / "visits.toml").write_text(HEAD + TARGET + AGE + more)
        relation = "replace-one" if kind == "slots" else relation
    elif kind == "vector columns":
        write_csv(folder, **{f"X_{i}": column for i, column in enumerate(rows.T)})
    elif kind == "npz":
        np.savez(folder / "visits.npz", X=rows, ill=LABELS)
        chosen = replace(chosen, source=str(folder / "visits.npz"))
    elif kind == "array folder":
        (folder / "arrays").mkdir()
        np.save(folder / "arrays" / "X.npy", rows)
        np.save(folder / "arrays" / "y.npy", LABELS)
        chosen = replace(chosen, source=str(folder / "arrays"))
    elif kind in ("text features", "text"):
        write_csv(folder, note=[f"note {i}" for i in range(200)])
        (folder / "visits.toml").write_text(HEAD + TARGET + TEXT)
        model = "text" if kind == "text" else "features"
    else:
        name, model = NAMED[kind]
        chosen = DataConfig(name)
        relation = "replace-one" if kind == "built in, slots" else relation
    if kind in ("vector columns", "npz", "array folder"):
        (folder / "visits.toml").write_text(HEAD + TARGET + VECTOR)
    return Config(
        chosen,
        replace(PRIVACY, relation=relation),
        model=ModelConfig(model, epochs=1.0 if model != "output" else None,
                          norm=3.0 if model == "output" else None),
        measurement=MeasurementConfig(reserve=0, bins=2),
    )  # fmt: skip


TABLES = {
    "table": ("", {}),
    "units": (UNIT, {"who": [f"p{i // 2}" for i in range(200)]}),
    "slots": (SLOT, {"bed": range(200)}),
}
FILES = (*TABLES, "vector columns", "npz", "array folder")
NAMED = {
    "built in": ("breast-cancer", "logistic"),
    "built in, slots": ("wine", "logistic"),
    "built in, perturbed": ("breast-cancer", "output"),
    "built in, network": ("digits", "mlp"),
    "synthetic": ("synthetic-multiplicity", "logistic"),
    "features of a table": ("digits", "features"),
    "convolutions": ("digits", "cnn"),
}
HEAVY = {
    "text features": "transformers",
    "text": "transformers",
}
HERE = (*FILES, "built in", "built in, slots", "built in, perturbed", "built in, network",
        "synthetic", "features of a table", "convolutions",
        "text features", "text")  # fmt: skip


@pytest.fixture
def unread(monkeypatch):
    """From now on no command may read a record."""

    def read(*_, **__):
        raise RecordsReadError

    def start():
        monkeypatch.setattr(records, "load", read)

    return start


@pytest.mark.parametrize("kind", HERE)
def test_the_cost_of_a_run_follows_from_declared_facts(kind, tmp_path):
    """The same events, to the last bit, and the same request: a refusal is not a guess."""
    if kind in HEAVY:
        pytest.importorskip(HEAVY[kind])
    chosen = config(tmp_path, kind)
    records = load_records(chosen)
    slots = None
    if chosen.privacy.relation == "replace-one":
        slots = (len(records.train), 0, len(records.test))
    declared = declare_records(chosen, slots)
    assert len(declared.dataset) == 0 and run_budget(chosen, declared) == run_budget(
        chosen, records
    )
    planned, real = (RunPlan.of(chosen, each, check=False) for each in (declared, records))
    assert planned.items == real.items
    assert (planned.body, planned.request) == (real.body, real.request)
    for name in ("train", "test"):
        assert getattr(declared, name).size == getattr(records, name).size


@pytest.mark.parametrize("kind", [*FILES, *NAMED, "text features", "text"])
def test_a_run_beyond_the_caps_is_rejected_before_a_record_is_read(kind, tmp_path, unread):
    if kind in HEAVY:
        pytest.importorskip(HEAVY[kind])
    chosen, place = config(tmp_path, kind), tmp_path / "model.ledger"
    first = replace(chosen.privacy, epsilon=1.0)
    if chosen.privacy.relation == "replace-one":  # the number of slots is recorded by a run
        run(replace(chosen, privacy=first), tmp_path / "first", ledger=place)
    else:
        whole = run_budget(chosen, declare_records(chosen))
        open_data_ledger(place, Budget(1.0, 1e-5, whole.relation, whole.unit), "")
    unread()
    head = Ledger(place).head
    with pytest.raises(BudgetError, match="veracal ledger extend"):
        run(chosen, tmp_path / "model", ledger=place)
    assert Ledger(place).head == head
    Ledger(place).extend(epsilon=3.0, delta=1e-5)
    with pytest.raises(RecordsReadError):  # what can be paid is loaded
        run(chosen, tmp_path / "model", ledger=place)


@pytest.mark.parametrize("kind", ["built in", "npz", "slots"])
def test_a_comparison_beyond_the_caps_is_rejected_before_a_record_is_read(
    kind, tmp_path, unread
):
    chosen, place = config(tmp_path, kind), tmp_path / "all.ledger"
    run(replace(chosen, privacy=replace(chosen.privacy, epsilon=1.0)), tmp_path / "first",
        ledger=place)  # fmt: skip
    unread()
    ways = (Configuration("logistic", "none"), Configuration("logistic", "temperature"))
    with pytest.raises(BudgetError, match="veracal ledger extend"):
        compare(chosen, ways, tmp_path / "all")
    Ledger(place).extend(epsilon=3.0, delta=1e-5)
    with pytest.raises(RecordsReadError):
        compare(chosen, ways, tmp_path / "all")


@pytest.mark.parametrize("kind", ["table", "slots", "built in"])
def test_other_rejections_precede_reading_records(kind, tmp_path, unread):
    chosen, place = config(tmp_path, kind), tmp_path / "model.ledger"
    run(chosen, tmp_path / "model")
    Ledger(place).extend(epsilon=9.0, delta=1e-4)
    unread()
    other = replace(chosen, data=replace(chosen.data, split_key="another"))
    with pytest.raises(LedgerError, match="in two partitions"):
        run(other, tmp_path / "other", ledger=place)
    relation = "add-remove" if kind == "slots" else "replace-one"
    other = replace(chosen, privacy=replace(chosen.privacy, relation=relation))
    with pytest.raises(LedgerError if kind != "table" else DataError, match=relation):
        run(other, tmp_path / "other", ledger=place)
    Ledger(place).abandon_run(1)
    with pytest.raises(AnswerError, match="abandoned"):
        run(chosen, tmp_path / "model", force=True)
    Path(f"{place}.partitions").unlink()
    with pytest.raises(LedgerError, match="expected the partition assignment"):
        run(chosen, tmp_path / "model", force=True)


def test_a_paid_run_resumes_although_slots_are_missing(tmp_path):
    """Its cost is the one that was charged, not that of the slots that were recorded first."""
    chosen, place = config(tmp_path, "slots"), tmp_path / "model.ledger"
    chosen = replace(chosen, recalibration=RecalibrationConfig("auto"))
    run(chosen, tmp_path / "first", ledger=place)
    Ledger(place).extend(epsilon=3.0, delta=1e-5)
    lines = Path(chosen.data.source).read_text().splitlines(keepends=True)
    Path(chosen.data.source).write_text("".join(lines[:-40]))
    later = replace(chosen, data=replace(chosen.data, version="2"))
    result = run(later, tmp_path / "second", ledger=place)
    head = Ledger(place).head
    again = run(later, tmp_path / "second", ledger=place, force=True)
    assert again.ledger.head == head == result.ledger.head


def test_the_first_run_of_a_ledger_under_replace_one_is_loaded_first(tmp_path, unread):
    """How many slots there are is not known before: records are loaded, and not used."""
    chosen, place = config(tmp_path, "slots"), tmp_path / "model.ledger"
    open_data_ledger(place, Budget(1.0, 1e-5, "replace-one"), "")
    with pytest.raises(BudgetError, match="veracal ledger extend"):
        run(chosen, tmp_path / "model", ledger=place)
    assert Ledger(place).entries() == ()
    unread()
    with pytest.raises(RecordsReadError):
        run(chosen, tmp_path / "model", ledger=place)


def test_a_file_without_a_schema_is_rejected(tmp_path):
    write_csv(tmp_path, age=range(200))
    chosen = Config(DataConfig(str(tmp_path / "visits.csv")), PRIVACY)
    with pytest.raises(DataError, match="a schema"):
        declare_records(chosen)


def test_schemas_of_built_in_sets_are_those_of_their_declarations():
    for name, schema in SCHEMAS.items():
        assert declare_records(Config(DataConfig(name), PRIVACY)).schema is schema
