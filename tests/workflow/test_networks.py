"""Networks on the whole way: from a table to an artifact, its report and its audit."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from tests.workflow.own_ledgers import run
from veracal.artifact import PrivateClassifier
from veracal.data import Dataset, load
from veracal.errors import DataError
from veracal.multiplicity import AuditSettings
from veracal.multiplicity.auditing import engine_for
from veracal.neural import PrivateNetwork
from veracal.neural.architectures import KnownNetwork
from veracal.workflow import Config
from veracal.workflow.auditing import AuditRun, audit_config
from veracal.workflow.config import (
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
    check_settings_apply,
)
from veracal.workflow.planning import build_network
from veracal.workflow.records import choose_encoder, load_records, run_budget

DIGITS = Config(DataConfig("digits"), PrivacyConfig(8.0), model=ModelConfig("mlp", epochs=0.5))
TEXTS = """format = 1
size = 40
name = "reviews"
[columns.review]
kind = "text"
[columns.verdict]
kind = "target"
classes = ["bad", "good"]
"""


@pytest.fixture
def reviews(tmp_path):
    """A table of texts, some of which are positive."""
    with (tmp_path / "reviews.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["review", "verdict"])
        for i in range(40):
            good = bool(i % 2)
            lines.writerow(
                [f"{'lovely' if good else 'awful'}, part {i}", ("bad", "good")[good]]
            )
    (tmp_path / "reviews.toml").write_text(TEXTS)
    data = DataConfig(str(tmp_path / "reviews.csv"), str(tmp_path / "reviews.toml"), test=0.5)
    return Config(data, PrivacyConfig(8.0), recalibration=RecalibrationConfig("none"))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_network_of_a_table_and_its_artifact(kind, tmp_path):
    result = run(
        replace(DIGITS, model=ModelConfig(kind, epochs=0.2)), tmp_path / "model", internal=True
    )
    actual = PrivateClassifier.load(result.folder)
    rows = load("digits").X[:50]
    assert np.array_equal(actual.predict_proba(rows), result.classifier.predict_proba(rows))
    assert actual.private_ and result.results.guarantee.epsilon <= 8.0
    assert result.results.settings["model"]["kind"] == kind
    assert "training" in result.internal.read_text()
    head = result.ledger.head
    again = run(replace(DIGITS, model=ModelConfig(kind, epochs=0.2)), result.folder, force=True)
    assert again.ledger.head == head  # the model that was paid for
    assert again.classifier.files()["model.safetensors"] == actual.weights.to_bytes()


def test_texts_with_frozen_features_and_with_fine_tuning(reviews, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    # Blocks of 64 texts would take 57 passes of a second each, for every loaded network.
    monkeypatch.setattr("veracal.neural.examples.SCORING_BLOCK", 4)
    features = replace(reviews, model=ModelConfig("features", epochs=1))
    result = run(features, tmp_path / "features")
    texts = [["lovely, part 3"], ["awful, part 4"]]
    assert PrivateClassifier.load(result.folder).predict_proba(texts).shape == (2, 2)
    text = replace(reviews, model=ModelConfig("text", epochs=0.01, sampling_rate=0.05))
    result = run(text, tmp_path / "text")
    actual = PrivateClassifier.load(result.folder)
    assert np.array_equal(actual.predict_proba(texts), result.classifier.predict_proba(texts))
    # Frozen weights, of ninety megabytes, come with a package: the trained layer alone is kept.
    assert 7e6 < (result.folder / "model.safetensors").stat().st_size < 8e6
    assert actual.encoder.extractor.name == "minilm-tokens"


def make_images(shape, dtype=np.uint8):
    return Dataset(np.zeros((3, *shape), dtype), np.arange(3), ("a", "b", "c"), size=30)


@pytest.mark.parametrize(
    ("kind", "records", "network"),
    [
        ("cnn", make_images((28, 28)), ("mnist_cnn", {"classes": 3, "tanh": True})),
        ("cnn", make_images((32, 32, 3)), ("cifar_cnn", {"classes": 3})),
        (
            "cnn",
            make_images((16, 16, 3)),
            ("five_layer_cnn", {"classes": 3, "channels": 3, "side": 16, "flat": False}),
        ),
        (
            "cnn",
            make_images((3 * 81,), np.float64),
            ("five_layer_cnn", {"classes": 3, "channels": 3, "side": 9, "flat": True}),
        ),
        (
            "mlp",
            make_images((5,), np.float64),
            ("mlp", {"features": 5, "classes": 3, "hidden": [4]}),
        ),
        (
            "features",
            make_images((5,), np.float64),
            ("dense_head", {"features": 5, "classes": 3, "hidden": 4, "normalized": True}),
        ),
    ],
)
def test_the_network_follows_from_the_form_of_rows(kind, records, network):
    chosen = ModelConfig(kind, hidden=(4,)).with_defaults()
    assert build_network(chosen, records) == KnownNetwork(*network)
    assert choose_encoder(kind, records) is None or kind == "features"


@pytest.mark.parametrize(
    ("kind", "records", "match"),
    [
        ("cnn", make_images((12, 10)), "square images"),
        ("cnn", make_images((65,), np.float64), "square images"),
        ("mlp", make_images((8, 8)), "rows of numbers"),
    ],
)
def test_rows_of_another_form_are_rejected(kind, records, match):
    with pytest.raises(DataError, match=match):
        build_network(ModelConfig(kind).with_defaults(), records)


def test_missing_settings_take_the_defaults_of_the_kind():
    model = DIGITS.to_json()["model"]
    assert (model["hidden"], model["optimizer"], model["epochs"]) == (
        (64, 64),
        "sgd",
        0.5,
    )
    assert replace(DIGITS, model=ModelConfig("cnn")).to_json()["model"]["clip"] == 0.1
    plain = replace(DIGITS, model=ModelConfig()).to_json()["model"]
    assert "hidden" not in plain and "optimizer" not in plain and plain["epochs"] == 40.0
    assert Config.from_entries(DIGITS.to_json()).to_json() == DIGITS.to_json()
    for wrong in ({"optimizer": "lbfgs"}, {"hidden": (0,)}, {"clip": -1.0}, {"kind": "svm"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ModelConfig(**wrong)


def test_a_setting_that_does_not_apply_is_rejected(tmp_path):
    wrong = replace(DIGITS, model=ModelConfig("mlp", norm=3.0))
    with pytest.raises(ValueError, match="no norm for the model 'mlp'"):
        run(wrong, tmp_path / "model")
    with pytest.raises(ValueError, match="no norm for the model 'mlp'"):
        audit_config(wrong, [8.0], AuditSettings(3))
    assert not list(tmp_path.iterdir())
    for kind, used in (("mlp", "hidden"), ("features", "hidden"), ("output", "norm")):
        check_settings_apply(
            ModelConfig(kind, **{used: (4,) if used == "hidden" else 4.0}), [kind]
        )
    check_settings_apply(ModelConfig(norm=3.0), ["mlp", "output"])  # one of them does


def test_units_of_a_named_set_need_a_bound(tmp_path):
    """Images of persons from a catalog: no schema limits their number per person."""
    records = load_records(DIGITS)
    whole = replace(records.dataset, units=np.arange(len(records.dataset)) // 2)
    with pytest.raises(DataError, match="--max-contributions"):
        run_budget(DIGITS, replace(records, dataset=whole, schema=None))
    bounded = replace(whole, max_contributions=2)
    actual = run_budget(DIGITS, replace(records, dataset=bounded, schema=None))
    assert (actual.unit.name, actual.unit.max_contributions) == ("unit", 2)
    with pytest.raises(DataError, match="rows have no units|the schema states it"):
        load_records(replace(DIGITS, data=DataConfig("digits", max_contributions=2)))


def test_an_audit_of_a_network_is_reproducible():
    """Every run has the noise that was found once, and the same way to take gradients."""
    how = AuditRun(random_state=3, jobs=1)
    quick = replace(DIGITS, model=ModelConfig("mlp", epochs=0.2, hidden=(4,)))
    actual = [audit_config(quick, [8.0], AuditSettings(3), how) for _ in range(2)]
    counts = [one.audits[0].individuals.counts for one in actual]
    np.testing.assert_array_equal(*counts)
    assert "dense layers" in actual[0].what


def test_resolved_networks_have_no_open_settings():
    data = load("digits")
    model = PrivateNetwork(
        KnownNetwork("mlp", {"features": 64, "classes": 10}), 2.0, epochs=0.3, size=1797
    )
    resolved = model.resolve_settings(data)
    assert (resolved.epsilon, resolved.steps, resolved.epochs) == (None, 3, None)
    assert resolved.gradients == "ghost" and resolved.event() == model.event()
    given = PrivateNetwork(model.module, None, noise_multiplier=3.0, steps=2, gradients="hooks")
    assert given.resolve_settings(data).get_params() == given.get_params()
    assert engine_for(model, data, data.X[:3]).settings()["model"]
