"""One model, one hash: a map does not change it, a weight does."""

from pathlib import Path

import numpy as np
import pytest

from veracal.artifact import PrivateClassifier
from veracal.calibration import Temperature
from veracal.errors import DataError
from veracal.federation.protocol.terms import model_hash
from veracal.training import OutputPerturbation


def classifier(weight: float = 1.0) -> PrivateClassifier:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    fitted = OutputPerturbation(5.0, classes=[0, 1], random_state=0).fit(X, (X[:, 0] > 0) * 1)
    fitted.coef_ = fitted.coef_ * weight
    return PrivateClassifier.of(fitted)


def test_a_files_hash_is_that_of_its_bytes(tmp_path: Path):
    (tmp_path / "weights").write_bytes(b"abc")
    assert model_hash(tmp_path / "weights").startswith("ba7816bf8f01cfea")


def test_a_map_leaves_an_artifacts_hash_alone(tmp_path: Path):
    from dataclasses import replace

    one = classifier()
    mapped = PrivateClassifier(one.weights, replace(one.manifest, map=Temperature(0.5)))
    for name, each in (("one", one), ("mapped", mapped), ("other", classifier(1.5))):
        each.save(tmp_path / name)
    assert model_hash(tmp_path / "one") == model_hash(tmp_path / "mapped")
    assert model_hash(tmp_path / "one") != model_hash(tmp_path / "other")


def test_what_is_not_there_has_none(tmp_path: Path):
    with pytest.raises(DataError, match="nothing at that path"):
        model_hash(tmp_path / "no")
    with pytest.raises(DataError):
        model_hash(tmp_path)
