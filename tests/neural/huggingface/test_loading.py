"""Models are loaded from a folder: completely, offline, and without executing code."""

import json
import socket

import numpy as np
import pytest
import torch
from transformers import (
    SiglipConfig,
    SiglipForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from tests.neural.huggingface.tiny import bert
from veracal.errors import DataError
from veracal.mechanisms import Adam
from veracal.neural import (
    PrivateNetwork,
    add_lora,
    load_image_classifier,
    load_sequence_classifier,
    load_tokenizer,
    minilm_classifier,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A saved model, without network access."""
    bert().save_pretrained(tmp_path / "model")

    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path / "model"


def test_a_saved_model_is_loaded_unchanged(folder):
    model = load_sequence_classifier(folder, ["no", "maybe", "yes"])
    assert model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    for name, one in bert().named_parameters():
        assert torch.equal(one, model.get_parameter(name))
        assert one.dtype == torch.float32


def test_only_the_head_is_new_for_other_classes(folder):
    model = load_sequence_classifier(folder, ["no", "yes"])  # it was saved with three
    for name, one in bert().named_parameters():
        same = torch.equal(one, model.get_parameter(name))
        assert same == (not name.startswith("classifier"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(DataError, match="weights that fit config.json, found none for bert"):
        load_sequence_classifier(folder, ["no", "yes"])


def test_a_model_that_is_its_own_base_gets_a_new_head(tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "image_size": 8, "patch_size": 4}
    config = SiglipConfig(vision_config=sizes, num_labels=5)
    saved = SiglipForImageClassification(config)
    saved.save_pretrained(tmp_path)
    model = load_image_classifier(tmp_path, ["dark", "light"])
    assert model.classifier.out_features == 2
    with pytest.raises(ValueError, match="a list of classes, got 3"):
        load_image_classifier(tmp_path, 3)


def test_an_image_classifier_is_trained_privately(tmp_path):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "image_size": 8, "patch_size": 4, "num_channels": 1}
    saved = ViTForImageClassification(ViTConfig(**sizes, num_labels=5))
    saved.save_pretrained(tmp_path)
    model = load_image_classifier(tmp_path, ["dark", "light"])
    assert torch.equal(model.vit.layernorm.weight, saved.vit.layernorm.weight)
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=200)
    X = np.clip(rng.normal(60 + 120 * y[:, None, None], 20, (200, 8, 8)), 0, 255)
    network = PrivateNetwork(model, 8.0, 1e-3, epochs=8, sampling_rate=0.2, size=200)
    network.set_params(optimizer=Adam(0.02), clip=1.0, classes=(0, 1))
    network.fit(X.astype(np.uint8), y)
    assert network.private_ and network.score(X.astype(np.uint8), y) > 0.9


def test_minilm_has_a_new_head_and_uses_no_global_generator():
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    model = minilm_classifier(["negative", "positive"])
    assert model.classifier.out_features == 2 and model.config.num_hidden_layers == 6
    assert torch.equal(torch.randn(3), expected)


def test_pickled_weights_are_rejected(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="pytorch_model.bin, which may execute code"):
        load_sequence_classifier(folder, [0, 1])


def test_code_of_a_folder_is_not_executed(folder):
    (folder / "own.py").write_text("raise SystemExit('code of the folder was run')")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {
        "AutoConfig": "own.Config",
        "AutoModelForSequenceClassification": "own.Model",
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="a model that transformers supports"):
        load_sequence_classifier(folder, [0, 1, 2])


def test_adapters_without_their_model_are_rejected(folder):
    add_lora(bert()).save_pretrained(folder / "adapters")
    (folder / "adapters" / "config.json").write_text("{}")
    with pytest.raises(DataError, match="adapters, which refer to another model"):
        load_sequence_classifier(folder / "adapters", [0, 1])


def test_missing_files_are_named(tmp_path, folder):
    with pytest.raises(DataError, match="a folder with config.json, found no folder"):
        load_sequence_classifier(tmp_path / "none", [0, 1])
    with pytest.raises(DataError, match="a folder with tokenizer.json"):
        load_tokenizer(folder)
    with pytest.raises(ValueError, match="two different classes"):
        load_sequence_classifier(folder, ["yes", "yes"])
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="weights as safetensors, found none"):
        load_sequence_classifier(folder, [0, 1])
