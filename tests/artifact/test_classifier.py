"""A saved classifier says what it said before, and works where scikit-learn's do."""

import json
import os
import pickle
import stat
from unittest import mock

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import calibration_curve
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score

from tests.artifact.examples import classifier, data, fitted
from veracal.artifact import PrivateClassifier
from veracal.calibration import CalibratedClassifier, TemperatureScaling
from veracal.data import Schema, score
from veracal.errors import DataError
from veracal.training import ObjectivePerturbation, PrivateLogisticRegression


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "wine"])
def test_predictions_round_trip_bit_by_bit(name, tmp_path):
    before, rows = fitted(name), data(name).X
    classifier(name).save(tmp_path / "a")
    after = PrivateClassifier.load(tmp_path / "a")
    np.testing.assert_array_equal(after.predict_proba(rows), before.predict_proba(rows))
    np.testing.assert_array_equal(after.predict(rows), before.predict(rows))
    np.testing.assert_array_equal(after.logits(rows), before.logits(rows))
    assert set(after.classes_.tolist()) == set(data(name).classes)
    assert after.map_ == before.map_ and after.private_
    assert isinstance(after.schema, Schema)


def test_scores_have_labels_and_come_before_and_after_the_map(tmp_path):
    records, model = data(), classifier()
    expected = score(fitted(), records)
    np.testing.assert_array_equal(model.scores(records).values, expected.values)
    np.testing.assert_array_equal(
        model.scores(records, mapped=False).values, score(fitted().estimator_, records).values
    )
    assert model.scores(records).labels is not None
    with pytest.raises(DataError, match="30 features"):
        model.scores(data("wine"))


@pytest.mark.parametrize(
    "model",
    [
        PrivateLogisticRegression(1.0, epochs=2),
        ObjectivePerturbation(3.0, norm=6.0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("name", ["breast-cancer", "wine"])
def test_classifiers_without_a_map_can_be_saved(model, name, tmp_path):
    model_ = clone(model).fit_records(data(name))
    PrivateClassifier.of(model_).save(tmp_path / "a")
    loaded = PrivateClassifier.load(tmp_path / "a")
    rows = data(name).X
    np.testing.assert_allclose(
        loaded.predict_proba(rows), model_.predict_proba(rows), rtol=1e-12
    )
    assert loaded.schema is None and loaded.map_.kind == "identity"


def test_a_non_private_model_says_so(tmp_path):
    model_ = PrivateLogisticRegression(random_state=0, epochs=1).fit_records(data())
    PrivateClassifier.of(model_).save(tmp_path / "a")
    loaded = PrivateClassifier.load(tmp_path / "a")
    assert not loaded.private_ and "not private" in repr(loaded)
    assert "NOT" in loaded.manifest.guarantee.text()


def test_unsupported_models_are_rejected():
    model = CalibratedClassifier(FrozenEstimator(classifier()), TemperatureScaling())
    with pytest.raises(ValueError, match="linear classifier"):
        PrivateClassifier.of(model)


def test_it_follows_scikit_learns_contract():
    model, records = classifier(), data()
    assert clone(model) is model
    assert accuracy_score(np.array(records.classes)[records.y], model.predict(records.X)) > 0.5
    calibration_curve(records.y, model.predict_proba(records.X)[:, 1])
    with pytest.raises(ValueError, match="30 features"):
        model.predict(records.X[:, :3])
    with pytest.raises(TypeError, match="Train a new one"):
        model.fit(records.X, records.y)


def test_the_folder_holds_the_documented_files_and_no_code(tmp_path):
    folder = classifier().save(tmp_path / "a", other_files={"report.html": b"<p>"})
    assert {path.name for path in folder.iterdir()} == {
        "model.json",
        "model.safetensors",
        "report.html",
    }
    content = json.loads((folder / "model.json").read_text())
    assert content["guarantee"]["epsilon"] > 0 and content["guarantee"]["delta"] == 1e-5
    assert set(content["files"]) == {"model.safetensors", "report.html"}
    for path in folder.iterdir():
        with pytest.raises(
            (pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)
        ):
            pickle.loads(path.read_bytes())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


@pytest.mark.parametrize("before", [(), ("model.json", "report.html")])
def test_an_existing_folder_is_only_replaced_with_force(before, tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    for name in before:
        (folder / name).write_text("old")
    with pytest.raises(DataError, match="a new folder"):
        classifier().save(folder)
    assert {path.name for path in folder.iterdir()} == set(before)
    classifier().save(folder, force=True)
    assert not (folder / "report.html").exists() and PrivateClassifier.load(folder).private_
    assert [path.name for path in tmp_path.iterdir()] == ["a"]  # nothing is left behind


@pytest.mark.parametrize("model", [False, True])
def test_a_folder_with_foreign_files_is_never_replaced(model, tmp_path):
    folder = tmp_path / "a"
    if model:
        classifier().save(folder)
    folder.mkdir(exist_ok=True)
    (folder / "precious").write_text("mine")
    with pytest.raises(DataError, match="'precious' in it"):
        classifier().save(folder, force=True)
    assert (folder / "precious").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", [".", "..", "a/.."])
def test_a_path_without_a_name_is_rejected(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="ends in a folder name"):
        classifier().save(name, force=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_moved_stays_unchanged(tmp_path):
    def busy(path, target):
        raise OSError(16, "Device or resource busy")

    (tmp_path / "a").mkdir()
    with mock.patch("pathlib.Path.rename", busy), pytest.raises(DataError, match="busy"):
        classifier().save(tmp_path / "a", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("force", [False, True])
def test_a_failed_write_leaves_everything_unchanged(force, tmp_path, monkeypatch):
    folder = tmp_path / "a"
    if force:
        folder.mkdir()
        (folder / "model.json").write_text("mine")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        classifier().save(folder, force=force)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == (["a", "a/model.json"] if force else [])


def test_unwritable_paths_are_rejected(tmp_path):
    with pytest.raises(DataError, match="a folder that exists"):
        classifier().save(tmp_path / "no" / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="a new folder"):
        classifier().save(tmp_path / "file", force=True)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="a new folder"):
        classifier().save(tmp_path / "link", force=True)


def test_the_current_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(classifier().save(tmp_path / "a"))
    with pytest.raises(DataError, match="other than the current one"):
        classifier().save("../a", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
