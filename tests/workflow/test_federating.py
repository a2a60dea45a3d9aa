"""Artifacts that say who has recalibrated them, and those from before that could be."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.workflow.own_ledgers import run
from veracal.artifact import PrivateClassifier
from veracal.artifact.storage import parse_manifest
from veracal.calibration import Identity, Platt, Temperature
from veracal.federation.protocol.terms import model_hash
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig
from veracal.workflow.results import reorder_classes, write_recalibrated

RECORD = {"study": "s", "sources": [{"name": "North", "epsilon": 1.0}], "map": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("federated") / "m"
    run(Config(DataConfig("breast-cancer"), PrivacyConfig(8.0)), place)
    return place


def test_without_a_federation_the_manifest_has_version_1(folder):
    written = json.loads((folder / "model.json").read_text())
    assert written["version"] == 1
    assert "federation" not in written
    assert PrivateClassifier.load(folder).manifest.federation is None


def test_with_a_federation_the_manifest_has_version_2(folder, tmp_path):
    write_recalibrated(folder, Temperature(0.5), RECORD, tmp_path / "new")
    content = (tmp_path / "new" / "model.json").read_bytes()
    manifest, _ = parse_manifest(content, "here")
    assert json.loads(content)["version"] == 2
    assert dict(manifest.federation) == {**RECORD, "earlier": []}
    assert PrivateClassifier.load(tmp_path / "new").map_ == Temperature(0.5)
    assert model_hash(tmp_path / "new") == model_hash(folder)


def test_the_identity_keeps_the_existing_map(folder, tmp_path):
    result = write_recalibrated(folder, Identity(), RECORD, tmp_path / "new")
    assert result.map_ == PrivateClassifier.load(folder).map_


def test_an_artifact_without_results_can_be_recalibrated(folder, tmp_path):
    PrivateClassifier.load(folder).save(tmp_path / "bare")
    write_recalibrated(tmp_path / "bare", Temperature(0.5), RECORD, tmp_path / "new")
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
        result = PrivateClassifier(classifier.weights, classifier.map, manifest)
        order = [have.index(label) for label in manifest.classes]
        actual = reorder_classes(map_, result)
        given = np.array([1.0, -2.0])
        np.testing.assert_allclose(_mapped(actual, given[order]), _mapped(map_, given)[order])


def _mapped(map_, logits):
    weights = np.asarray(map_.weights)
    return (weights @ logits if weights.ndim == 2 else weights * logits) + map_.bias
