"""Models come from a folder: whole, offline, and without code."""

import json
import socket

import pytest
import torch

from tests.training.deep.hugging_face.tiny import bert
from veracal.errors import DataError
from veracal.training.deep.hugging_face import (
    load_sequence_classifier,
    load_tokenizer,
    minilm_classifier,
    with_lora,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A saved model, and no network."""
    bert().save_pretrained(tmp_path / "model")

    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path / "model"


def test_a_model_comes_back(folder):
    model = load_sequence_classifier(folder, ["no", "maybe", "yes"])
    assert model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    for name, one in bert().named_parameters():
        assert torch.equal(one, model.get_parameter(name))
        assert one.dtype == torch.float32


def test_minilm_has_a_new_head_and_moves_no_global_generator():
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    model = minilm_classifier(["negative", "positive"])
    assert model.classifier.out_features == 2 and model.config.num_hidden_layers == 6
    assert torch.equal(torch.randn(3), expected)


def test_pickled_weights_are_refused(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="pytorch_model.bin, which may run code"):
        load_sequence_classifier(folder, [0, 1])


def test_code_of_a_folder_is_not_run(folder):
    (folder / "own.py").write_text("raise SystemExit('code of the folder was run')")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {
        "AutoConfig": "own.Config",
        "AutoModelForSequenceClassification": "own.Model",
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="a model that transformers knows"):
        load_sequence_classifier(folder, [0, 1, 2])


def test_adapters_without_their_model_are_refused(folder):
    with_lora(bert()).save_pretrained(folder / "adapters")
    (folder / "adapters" / "config.json").write_text("{}")
    with pytest.raises(DataError, match="adapters, which name a model of their own"):
        load_sequence_classifier(folder / "adapters", [0, 1])


def test_what_is_not_there_is_said(tmp_path, folder):
    with pytest.raises(DataError, match="a folder with config.json, found no folder"):
        load_sequence_classifier(tmp_path / "none", [0, 1])
    with pytest.raises(DataError, match="a folder with tokenizer.json"):
        load_tokenizer(folder)
    with pytest.raises(ValueError, match="two different classes"):
        load_sequence_classifier(folder, ["yes", "yes"])
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match="weights as safetensors, found none"):
        load_sequence_classifier(folder, [0, 1])
