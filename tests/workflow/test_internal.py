"""The internal report holds what is neither public nor charged, and nothing else does."""

import stat
from dataclasses import replace

import numpy as np
import pytest

from tests.workflow.own_ledgers import run
from veracal import calibration
from veracal.accounting import Budget
from veracal.data import load
from veracal.errors import DataError
from veracal.ledger import open_ledger
from veracal.mechanisms import Step, progress
from veracal.mechanisms.progress import TrainingCurve, hold_curves
from veracal.queries import Curator
from veracal.training import PrivateLogisticRegression
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, ModelConfig, PrivacyConfig
from veracal.workflow.records import load_records
from veracal.workflow.results import internal_figures

CONFIG = Config(DataConfig("breast-cancer"), PrivacyConfig(3.0), model=ModelConfig(epochs=5))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(CONFIG, tmp_path_factory.mktemp("run") / "model", internal=True)


def test_the_internal_report_is_beside_the_artifact_and_private(result):
    assert result.internal == result.folder.with_name("model.internal") / "report-internal.html"
    assert stat.S_IMODE(result.internal.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(result.internal.stat().st_mode) == 0o600
    names = {path.name for path in result.folder.iterdir()}
    assert names == {
        "model.json", "model.safetensors", "report.html", "results.json", "MODEL_CARD.md",
    }  # fmt: skip


def test_published_files_do_not_depend_on_the_internal_report(result, tmp_path):
    """Run again without it, from the same ledger: no byte of the artifact differs."""
    other = run(CONFIG, tmp_path / "model", ledger=result.ledger.path)
    for path in result.folder.iterdir():
        assert path.read_bytes() == (other.folder / path.name).read_bytes(), path.name
    assert other.internal is None


def test_the_internal_report_contains_counts_and_exact_figures(result):
    records = load_records(CONFIG)
    facts = internal_figures(CONFIG, records, result.classifier, [0.5])
    whole = load("breast-cancer")
    assert facts.records == {"training": len(records.train), "test": len(records.test)}
    assert sum(facts.records.values()) == len(whole)
    assert list(facts.classes.values()) == np.bincount(whole.y).tolist()
    scores = result.classifier.scores(records.test)
    assert facts.stages["after"].overall.figures["accuracy"].value == calibration.accuracy(
        scores
    )
    assert sum(each.n for each in facts.stages["after"].overall.curve.bins) == len(records.test)
    page = result.internal.read_text()
    assert f"{len(records.train)}" in page and "internal" in page.lower()


def test_the_training_curve_is_the_loss_of_the_current_weights(tmp_path, monkeypatch):
    data, logits = load("digits"), progress._logits
    curve, seen = TrainingCurve(data), []

    def note(model, X):
        seen.append(model.predict_proba(data.X))
        return logits(model, X)

    monkeypatch.setattr(progress, "_logits", note)
    model = PrivateLogisticRegression(
        8.0, 1e-5, steps=7, sampling_rate=0.3, classes=data.classes, size=1797, on_step=curve
    )
    ledger = open_ledger(tmp_path / "ledger", Budget(9.0, 1e-4), kind="open")
    Curator(data, ledger).fit_once(model, lambda model: b"model", request="one", body=b"")
    expected = [-np.mean(np.log(each[np.arange(len(data.y)), data.y])) for each in seen]
    assert len(expected) == 7
    np.testing.assert_allclose(curve.losses, expected, rtol=1e-9)


def test_the_curve_has_at_most_a_hundred_points():
    data = load("breast-cancer")
    curve = TrainingCurve(data)
    model = PrivateLogisticRegression(8.0, 1e-5, steps=250)
    model.coef_, model.intercept_ = np.zeros((1, 30)), np.zeros(1)
    with hold_curves([curve]) as release:
        for number in range(250):
            curve(model, Step(number, None, None, None))
        release()
    assert len(curve.losses) == 83  # every third
    assert curve.losses[0] == pytest.approx(np.log(2))


def test_a_model_from_the_ledger_has_no_training_curve(result):
    again = run(CONFIG, result.folder, force=True, internal=True)
    assert "the fitted model was loaded from the ledger" in again.internal.read_text()


def test_an_existing_folder_is_rejected_before_any_charge(tmp_path):
    (tmp_path / "model.internal").mkdir()
    with pytest.raises(DataError, match="a new folder"):
        run(CONFIG, tmp_path / "model", internal=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model.internal"]


def test_internal_figures_by_group(tmp_path):
    """Figures of each group, if the run breaks results down by group."""
    from tests.cli.sample_tables import write

    write(tmp_path)
    data = DataConfig(str(tmp_path / "visits.csv"), str(tmp_path / "visits.toml"))
    config = replace(CONFIG, data=data, measurement=replace(CONFIG.measurement, group="sex"))
    result = run(config, tmp_path / "model", internal=True)
    facts = internal_figures(config, load_records(config), result.classifier)
    assert set(facts.stages["after"].groups) == {"f", "m"}
    for figures in facts.stages["after"].groups.values():
        for one in figures.values():
            assert one.low <= one.value <= one.high
    assert sum(facts.groups["sex"].values()) == len(load(data.source, schema=data.schema))
