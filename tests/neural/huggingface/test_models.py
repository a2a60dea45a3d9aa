"""Mean-pooled classifiers, whole and split into frozen and trained layers."""

import numpy as np
import pytest
import torch

from tests.neural.huggingface.tiny import arrays, bert, distilbert, texts, trainer
from veracal.neural import LastLayers, MeanPooled, PrivateNetwork, Tokens, encode_frozen_layers


def pooled(**settings):
    """A small classifier with a nonzero head."""
    model = MeanPooled(bert(), **settings)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def rows():
    model_ = arrays(texts())
    return model_, Tokens.of(model_)


def logits_of(model, model_):
    inputs = {name: torch.from_numpy(model_[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return model(**inputs).logits


def test_logits_are_computed_from_the_mean_over_tokens():
    model, (model_, _) = pooled(scale=3.0), rows()
    one = 5
    length = int(model_["attention_mask"][one].sum())
    ids = torch.from_numpy(model_["input_ids"][one : one + 1, :length])
    with torch.no_grad():
        hidden = model.encoder(input_ids=ids).last_hidden_state[0]
        mean = hidden.mean(0)
        expected = 3.0 * model.head(mean / mean.norm())
    torch.testing.assert_close(logits_of(model, model_)[one], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_frozen_and_last_layers_together_equal_the_whole_model(layers):
    model, (model_, tokens) = pooled(), rows()
    states = encode_frozen_layers(model, tokens, layers)
    assert states.shape == (*model_["input_ids"].shape, 33)
    np.testing.assert_array_equal(states[..., -1], model_["attention_mask"])
    assert not states[model_["attention_mask"] == 0].any()
    with torch.no_grad():
        result = LastLayers(model, layers)(torch.from_numpy(states).float())
    torch.testing.assert_close(result, logits_of(model, model_), atol=0.1, rtol=0.02)


def test_the_last_layers_are_a_copy_that_trains_privately():
    model, (model_, tokens) = pooled(), rows()
    before = model.head.weight.clone()
    states = encode_frozen_layers(model, tokens)
    fitted = PrivateNetwork(
        LastLayers(model),
        noise_multiplier=1.0,
        epsilon=None,
        steps=2,
        classes=(0, 1, 2),
        size=60,
    ).fit(states, model_["labels"])
    assert fitted.private_
    assert fitted.trial_.chosen in ("ghost", "functional", "hooks")
    assert torch.equal(model.head.weight, before)
    assert not torch.equal(fitted.module_.head.weight, before)


def test_a_trainer_accepts_the_whole_model(tmp_path):
    model = MeanPooled(bert())
    assert not model.head.weight.any()
    private = trainer(tmp_path, model)
    private.train()
    assert private.trial_.chosen == "ghost"
    assert model.head.weight.any()


@pytest.mark.parametrize(
    ("model", "layers", "says"),
    [(distilbert, 1, "BERT-like"), (bert, 3, "at most 2"), (bert, 0, "layers")],
)
def test_models_that_cannot_be_split_are_rejected(model, layers, says):
    with pytest.raises(ValueError, match=says):
        LastLayers(MeanPooled(model()), layers)


def test_states_of_a_text_do_not_depend_on_others():
    """Adding or removing a text changes no state of another one."""
    model, model_ = pooled(), arrays(texts(n=90))
    every = encode_frozen_layers(model, Tokens.of(model_))
    fewer = {name: np.delete(one, [3, 40], axis=0) for name, one in model_.items()}
    result = encode_frozen_layers(model, Tokens.of(fewer))
    assert np.array_equal(result, np.delete(every, [3, 40], axis=0))


def test_token_types_affect_the_states():
    model, model_ = pooled(), arrays(texts())
    kinds = {**model_, "token_type_ids": np.ones_like(model_["input_ids"])}
    plain, other = (encode_frozen_layers(model, Tokens.of(one)) for one in (model_, kinds))
    assert not np.array_equal(plain, other)
