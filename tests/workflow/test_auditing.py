"""An audit of the training that a config describes: whom, with what budget, in which rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.sample_tables import SCHEMA, table, write
from veracal.artifact import PrivateClassifier
from veracal.calibration import PlattScaling
from veracal.data import scan_rows
from veracal.errors import DataError
from veracal.multiplicity import AuditSettings, audit
from veracal.training import OutputPerturbation
from veracal.workflow import Config
from veracal.workflow.auditing import (
    AuditRun,
    Deployed,
    audit_config,
    build_trainer,
    locate_in_order,
    row_numbers,
    runs_path,
)
from veracal.workflow.config import DataConfig, ModelConfig, PrivacyConfig, RecalibrationConfig
from veracal.workflow.planning import build_model
from veracal.workflow.records import load_records, run_budget

SETTINGS = AuditSettings(40)
FIXED = AuditRun(random_state=3)


@pytest.fixture
def config():
    return Config(
        DataConfig("breast-cancer"),
        PrivacyConfig(2.0),
        model=ModelConfig("output", norm=2.0),
        recalibration=RecalibrationConfig("none"),
    )


def test_the_audit_uses_the_partitions_of_a_run(config):
    actual = audit_config(config, [2.0], SETTINGS, FIXED)
    records = load_records(config)
    model = OutputPerturbation(
        2.0, norm=2.0, classes=records.dataset.classes, size=records.train.size
    )
    same = audit(model, records.train, records.test, runs=40, random_state=3)
    np.testing.assert_array_equal(actual.audits[0].individuals.counts, same.individuals.counts)
    assert actual.notes == (
        "The whole budget goes to training. No budget is reserved for a calibration map.",
    )


def test_training_has_the_budget_that_a_map_leaves(config):
    """The audited training is the one that a run of the same settings would do."""
    mapped = replace(config, recalibration=RecalibrationConfig("temperature", 0.25))
    records = load_records(mapped)
    model = build_trainer(mapped, records)
    whole = build_model(mapped, records.train, run_budget(mapped, records))
    trained = whole.fit_records(records.train).estimator_
    assert type(model) is OutputPerturbation and model.epsilon == trained.epsilon < 1.6
    assert build_trainer(config, records).epsilon == 2.0
    (note,) = audit_config(mapped, [2.0], SETTINGS, FIXED).notes
    assert "the budget that the map of these settings leaves" in note


def test_maps_are_fitted_on_records_that_are_not_audited(config):
    with_maps = AuditRun(recalibrate=PlattScaling(), random_state=3)
    some, all_ = (audit_config(config, [2.0], SETTINGS, how) for how in (with_maps, FIXED))
    assert 0 < len(some.rows) < len(all_.rows) and set(some.rows) < set(all_.rows)
    # The runs are the same: individuals who are audited in both have the same counts.
    shared = np.searchsorted(all_.rows, some.rows)
    np.testing.assert_array_equal(
        all_.audits[0].individuals.counts[shared], some.audits[0].individuals.counts
    )


def test_the_deployed_model_decides_at_the_threshold(config):
    records = load_records(config)
    fitted = build_trainer(config, records).fit_records(records.train)
    model = PrivateClassifier.of(fitted, schema=records.schema)
    X = records.test.X
    shares = model.predict_proba(X)[:, 1]
    names = tuple(model.classes_.tolist())
    for classes in (names, names[::-1]):  # declared in either order
        assert (Deployed(model, classes).predict(X) == model.predict(X)).all()
        actual = Deployed(model, classes, 0.3).predict(X) == classes[1]
        place = names.index(classes[1])
        np.testing.assert_array_equal(actual, model.predict_proba(X)[:, place] > 0.3)
    for threshold in (0.1, 0.9):
        second = Deployed(model, names, threshold).predict(X) == model.classes_[1]
        np.testing.assert_array_equal(second, shares > threshold)


def test_each_budget_has_its_own_file():
    assert runs_path(None, 1.0, several=True) is None
    assert runs_path(Path("a/b.npz"), 1.0, several=False) == Path("a/b.npz")
    names = {runs_path(Path("a/b.npz"), e, several=True) for e in (0.5, 1.0, 10.0)}
    assert names == {Path(f"a/b-epsilon-{e}.npz") for e in ("0.5", "1", "10")}


def test_an_empty_test_partition_is_an_error(config):
    few = replace(config, data=DataConfig("wine", test=1e-6))
    with pytest.raises(DataError, match="at least one record in the test partition"):
        audit_config(few, [2.0], SETTINGS)


# ---------------------------------------------------------------- numbers of rows


def test_rows_are_located_when_units_lost_some(tmp_path, monkeypatch):
    """Of an individual with too many rows some are drawn; the others keep their numbers."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    text = SCHEMA + '\n[columns.id]\nkind = "unit"\nmax_contributions = 2\n'
    (tmp_path / "visits.toml").write_text(text)
    frame = table(300)
    ids = [f"p{number // 3}" for number in range(300)]
    frame.with_columns(id=np.array(ids)).write_csv("visits.csv")
    config = Config(DataConfig("visits.csv", "visits.toml"), PrivacyConfig(1.0))
    records = load_records(config)
    assert len(records.dataset) == 200
    rows = row_numbers(records.test, records, "visits.csv")
    assert (np.diff(rows) > 0).all() and rows.max() <= 300
    assert [ids[row - 1] for row in rows] == records.test.units.tolist()
    (kept,) = [actual for _, actual in scan_rows("visits.csv", "visits.toml")]
    np.testing.assert_array_equal(kept.X[rows - 1], records.test.X)


def test_missing_rows_are_an_internal_error():
    with pytest.raises(AssertionError):
        locate_in_order([(0, b"z")], [(0, b"a")])
