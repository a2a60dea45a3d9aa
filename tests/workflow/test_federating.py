"""Artifacts that say who has recalibrated them."""

from dataclasses import replace

import numpy as np
import pytest

from tests.workflow.own_ledgers import run
from veracal.artifact import PrivateClassifier, RecalibrationRecord, SourceCost, read_manifest
from veracal.calibration import Identity, Platt, Temperature
from veracal.federation.protocol.terms import model_hash
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig
from veracal.workflow.results import load_results, reorder_classes, write_recalibrated

NORTH = SourceCost("North", "2a81", "record", 1, "add-remove", 1.0, 0.0, True, None, None)


def record(map_):
    """A recalibration in which one institution took part."""
    return RecalibrationRecord(
        "s", "2026-11-16", "pooled", map_, None, {}, None, None, None, (NORTH,)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("federated") / "m"
    run(Config(DataConfig("breast-cancer"), PrivacyConfig(8.0)), place)
    return place


def test_every_recalibration_is_recorded_in_order(folder, tmp_path):
    assert PrivateClassifier.load(folder).manifest.recalibrations == ()
    first, second = record(Temperature(0.5)), record(Temperature(0.25))
    write_recalibrated(folder, first, tmp_path / "new")
    write_recalibrated(tmp_path / "new", second, tmp_path / "newer")
    manifest, _ = read_manifest(tmp_path / "newer")
    assert manifest.recalibrations == (first, second)
    assert load_results(tmp_path / "newer").recalibrations == (first, second)
    assert PrivateClassifier.load(tmp_path / "newer").map_ == Temperature(0.25)
    assert model_hash(tmp_path / "newer") == model_hash(folder)


def test_the_identity_keeps_the_existing_map(folder, tmp_path):
    result = write_recalibrated(folder, record(Identity()), tmp_path / "new")
    assert result.map_ == PrivateClassifier.load(folder).map_


def test_an_artifact_without_results_can_be_recalibrated(folder, tmp_path):
    PrivateClassifier.load(folder).save(tmp_path / "bare")
    write_recalibrated(tmp_path / "bare", record(Temperature(0.5)), tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("form", ["scalar", "vector", "matrix"])
def test_an_affine_map_is_reordered_to_the_weights(folder, form):
    """Sources score classes in the order of the schema; the artifact maps in its own."""
    classifier = PrivateClassifier.load(folder)
    have = classifier.schema.classes
    weights = {"scalar": 2.0, "vector": [2.0, 3.0], "matrix": [[1.0, 2.0], [3.0, 4.0]]}[form]
    map_ = Platt(weights, [0.5, -0.5])
    turned = replace(classifier.manifest, classes=have[::-1])
    for manifest in (replace(turned, classes=have), turned):
        result = PrivateClassifier(classifier.weights, manifest)
        order = [have.index(label) for label in manifest.classes]
        actual = reorder_classes(map_, result)
        given = np.array([1.0, -2.0])
        np.testing.assert_allclose(_mapped(actual, given[order]), _mapped(map_, given)[order])


def _mapped(map_, logits):
    weights = np.asarray(map_.weights)
    return (weights @ logits if weights.ndim == 2 else weights * logits) + map_.bias
