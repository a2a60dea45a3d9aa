"""Classifiers on means of hidden states, whole and split into frozen and trained layers."""

import numpy as np
import pytest
import torch

from tests.neural.huggingface.tiny import arrays, bert, distilbert, texts, trainer
from veracal.neural import PrivateNetwork
from veracal.neural.huggingface import LastLayers, MeanPooled, Tokens, encode_frozen_layers


def pooled(**settings):
    """A small classifier whose head is not zero."""
    model = MeanPooled(bert(), **settings)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def rows():
    made = arrays(texts())
    return made, Tokens.of(made)


def logits_of(model, made):
    inputs = {name: torch.from_numpy(made[name]) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return model(**inputs).logits


def test_logits_are_those_of_the_mean_over_tokens():
    model, (made, _) = pooled(scale=3.0), rows()
    one = 5
    length = int(made["attention_mask"][one].sum())
    ids = torch.from_numpy(made["input_ids"][one : one + 1, :length])
    with torch.no_grad():
        hidden = model.encoder(input_ids=ids).last_hidden_state[0]
        mean = hidden.mean(0)
        expected = 3.0 * model.head(mean / mean.norm())
    torch.testing.assert_close(logits_of(model, made)[one], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_both_parts_together_are_the_whole(layers):
    model, (made, tokens) = pooled(), rows()
    states = encode_frozen_layers(model, tokens, layers)
    assert states.shape == (*made["input_ids"].shape, 33)
    np.testing.assert_array_equal(states[..., -1], made["attention_mask"])
    assert not states[made["attention_mask"] == 0].any()
    with torch.no_grad():
        found = LastLayers(model, layers)(torch.from_numpy(states).float())
    torch.testing.assert_close(found, logits_of(model, made), atol=0.1, rtol=0.02)


def test_the_rest_is_a_copy_that_trains_privately():
    model, (made, tokens) = pooled(), rows()
    before = model.head.weight.clone()
    states = encode_frozen_layers(model, tokens)
    fitted = PrivateNetwork(
        LastLayers(model),
        noise_multiplier=1.0,
        epsilon=None,
        steps=2,
        classes=(0, 1, 2),
        size=60,
    ).fit(states, made["labels"])
    assert fitted.private_
    assert fitted.trial_.chosen in ("ghost", "functional", "hooks")
    assert torch.equal(model.head.weight, before)
    assert not torch.equal(fitted.module_.head.weight, before)


def test_a_trainer_takes_the_whole(tmp_path):
    model = MeanPooled(bert())
    assert not model.head.weight.any()
    private = trainer(tmp_path, model)
    private.train()
    assert private.trial_.chosen == "ghost"
    assert model.head.weight.any()


@pytest.mark.parametrize(
    ("model", "layers", "says"),
    [(distilbert, 1, "built like BERT"), (bert, 3, "at most 2"), (bert, 0, "layers")],
)
def test_what_cannot_be_split_is_refused(model, layers, says):
    with pytest.raises(ValueError, match=says):
        LastLayers(MeanPooled(model()), layers)


def test_states_of_a_text_are_its_own_bit_for_bit():
    """One text more, or fewer, changes nothing of what is learnt from others."""
    model, made = pooled(), arrays(texts(n=90))
    every = encode_frozen_layers(model, Tokens.of(made))
    fewer = {name: np.delete(one, [3, 40], axis=0) for name, one in made.items()}
    found = encode_frozen_layers(model, Tokens.of(fewer))
    assert np.array_equal(found, np.delete(every, [3, 40], axis=0))


def test_kinds_of_tokens_are_seen():
    model, made = pooled(), arrays(texts())
    kinds = {**made, "token_type_ids": np.ones_like(made["input_ids"])}
    plain, other = (encode_frozen_layers(model, Tokens.of(one)) for one in (made, kinds))
    assert not np.array_equal(plain, other)
