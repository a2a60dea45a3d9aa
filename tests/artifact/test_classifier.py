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

from tests.artifact.made import classifier, data, fitted
from veracal.artifact import PrivateClassifier
from veracal.calibration import CalibratedClassifier, TemperatureScaling
from veracal.data import Schema, score
from veracal.errors import DataError
from veracal.training import ObjectivePerturbation, PrivateLogisticRegression


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "wine"])
def test_predictions_survive_to_the_last_bit(name, tmp_path):
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
def test_classifiers_without_a_map_are_saved_too(model, name, tmp_path):
    made = clone(model).fit_records(data(name))
    PrivateClassifier.of(made).save(tmp_path / "a")
    loaded = PrivateClassifier.load(tmp_path / "a")
    rows = data(name).X
    np.testing.assert_allclose(loaded.predict_proba(rows), made.predict_proba(rows), rtol=1e-12)
    assert loaded.schema is None and loaded.map_.kind == "identity"


def test_a_model_that_promises_nothing_says_so(tmp_path):
    made = PrivateLogisticRegression(random_state=0, epochs=1).fit_records(data())
    PrivateClassifier.of(made).save(tmp_path / "a")
    loaded = PrivateClassifier.load(tmp_path / "a")
    assert not loaded.private_ and "not private" in repr(loaded)
    assert "NOT" in loaded.manifest.guarantee["text"]


def test_what_cannot_be_saved_is_refused():
    model = CalibratedClassifier(FrozenEstimator(classifier()), TemperatureScaling())
    with pytest.raises(ValueError, match="linear classifier"):
        PrivateClassifier.of(model)


def test_it_is_a_classifier_of_scikit_learn():
    model, records = classifier(), data()
    assert clone(model) is model
    assert accuracy_score(np.array(records.classes)[records.y], model.predict(records.X)) > 0.5
    calibration_curve(records.y, model.predict_proba(records.X)[:, 1])
    with pytest.raises(ValueError, match="30 features"):
        model.predict(records.X[:, :3])
    with pytest.raises(TypeError, match="Train a new one"):
        model.fit(records.X, records.y)


def test_the_folder_holds_no_code_and_what_the_issue_names(tmp_path):
    folder = classifier().save(tmp_path / "a", more={"report.html": b"<p>"})
    assert {path.name for path in folder.iterdir()} == {
        "model.json",
        "model.safetensors",
        "report.html",
    }
    told = json.loads((folder / "model.json").read_text())
    assert told["guarantee"]["epsilon"] > 0 and told["guarantee"]["delta"] == 1e-5
    assert set(told["files"]) == {"model.safetensors", "report.html"}
    for path in folder.iterdir():
        with pytest.raises(
            (pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)
        ):
            pickle.loads(path.read_bytes())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


@pytest.mark.parametrize("before", [(), ("model.json", "report.html")])
def test_a_folder_that_is_there_is_kept_unless_asked(before, tmp_path):
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
def test_a_folder_with_anything_of_somebody_else_is_never_replaced(model, tmp_path):
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
def test_a_place_without_a_name_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="name of its own"):
        classifier().save(name, force=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_step_aside_stays_and_nothing_is_left_beside(tmp_path):
    def busy(path, target):
        raise OSError(16, "Device or resource busy")

    (tmp_path / "a").mkdir()
    with mock.patch("pathlib.Path.rename", busy), pytest.raises(DataError, match="busy"):
        classifier().save(tmp_path / "a", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("force", [False, True])
def test_what_fails_half_way_leaves_everything_as_it_was(force, tmp_path, monkeypatch):
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


def test_places_that_cannot_be_written_to(tmp_path):
    with pytest.raises(DataError, match="a folder that exists"):
        classifier().save(tmp_path / "no" / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="a new folder"):
        classifier().save(tmp_path / "file", force=True)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="a new folder"):
        classifier().save(tmp_path / "link", force=True)


def test_the_folder_somebody_is_in_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(classifier().save(tmp_path / "a"))
    with pytest.raises(DataError, match="the one this command runs in"):
        classifier().save("../a", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
