"""Gradient sums of Hugging Face models equal those of single examples."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.neural.huggingface.tiny import (
    DECODERS,
    FAMILIES,
    LENGTH,
    arrays,
    bert,
    gpt2,
    texts,
)
from tests.neural.modules import example_gradients
from veracal.mechanisms import Flat
from veracal.neural import add_lora, train_only
from veracal.neural.examples import Block, cross_entropy, replace_each
from veracal.neural.gradients.engines import FunctionalEngine, GhostEngine
from veracal.neural.huggingface.data import (
    SequenceClassifierModule,
    Tokens,
    load_records,
    synthetic_texts,
    text_format,
)
from veracal.neural.module_checks import check_behavior

ENGINES = {"ghost": GhostEngine, "functional": FunctionalEngine}


def block(model, n=5):
    """Texts with and without padding."""
    result = arrays(texts(n, seed=3), pad=model.config.pad_token_id)
    labels = torch.from_numpy(result.pop("labels"))
    result["input_ids"][0], result["attention_mask"][0] = np.arange(5, 5 + LENGTH), 1
    return Block({name: torch.from_numpy(one) for name, one in result.items()}, labels)


def settled(model):
    """A model in training mode, without dropout."""
    module = SequenceClassifierModule(model)
    module.choose_mask_shape(
        synthetic_texts(("input_ids", "attention_mask"), LENGTH, 3, model.config)
    )
    return module.eval()


def compare(module, batch, engine):
    each = example_gradients(module, cross_entropy, batch)
    norms = torch.linalg.vector_norm(each, dim=1)
    clip = Flat(float(norms.median()))
    total = torch.zeros(engine.size, dtype=torch.float64)
    result = engine.add(batch, clip, total)
    np.testing.assert_allclose(result.norms, norms, rtol=2e-3)
    truth = torch.from_numpy(clip.factors(norms.numpy())) @ each
    np.testing.assert_allclose(total, truth, atol=1e-3 * clip.bound)


@pytest.mark.parametrize("way", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_equal_those_of_single_example_gradients(family, way):
    module = settled(FAMILIES[family]())
    assert module.four_axes and module.causal == (family in DECODERS)
    compare(module, block(module.model), ENGINES[way](module, cross_entropy, 8))


def tied():
    """One matrix in two layers."""
    model = bert()
    first, second = model.bert.encoder.layer
    second.output.dense.weight = first.output.dense.weight
    return model


def last_layers():
    model = bert()
    train_only(model, "bert.encoder.layer.1.*", "bert.pooler.*", "classifier.*")
    return model


@pytest.mark.parametrize(
    "build",
    [
        tied,
        last_layers,
        lambda: add_lora(bert(), rank=2),
        lambda: add_lora(gpt2(), rank=2),
    ],
)
def test_sums_are_correct_with_tied_frozen_or_adapted_layers(build):
    model = build()
    with torch.no_grad():  # adapters start at zero, where half of their gradients vanish
        for name, one in model.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.1)
    module = settled(model)
    compare(module, block(model), GhostEngine(module, cross_entropy, 8))


def test_a_model_treats_each_example_independently():
    for build in FAMILIES.values():
        module = settled(build())
        batch = block(module.model)
        blocks = [
            Block({name: one[some] for name, one in batch.inputs.items()}, batch.targets[:2])
            for some in replace_each(2)
        ]
        check_behavior(module, blocks, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrapped_model_returns_the_logits_of_the_model(family):
    model = FAMILIES[family]().eval()
    batch = block(model)
    with torch.no_grad():
        np.testing.assert_allclose(
            settled(model)(**batch.inputs), model(**batch.inputs).logits, atol=1e-5
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_of_others_does_not_affect_an_example(family):
    """With two-axis masks, a model drops them if no text is padded, and rounds differently."""
    module = settled(FAMILIES[family]())
    batch = block(module.model)
    others = {name: one.clone() for name, one in batch.inputs.items()}
    others["input_ids"][1:], others["attention_mask"][1:] = 7, 1
    with torch.no_grad():
        assert torch.equal(module(**batch.inputs)[0], module(**others)[0])


@pytest.mark.parametrize("family", DECODERS)
def test_a_decoder_may_be_padded_on_the_left(family):
    model = DECODERS[family]().eval()
    batch = block(model).inputs
    turned = {name: one.flip(1) for name, one in batch.items()}
    with torch.no_grad():
        np.testing.assert_allclose(settled(model)(**turned), model(**turned).logits, atol=1e-5)


@pytest.mark.parametrize("build", [bert, gpt2])
def test_padding_does_not_matter(build):
    model = build().eval()
    module, batch = settled(model), block(model)
    other = {name: one.clone() for name, one in batch.inputs.items()}
    if build is bert:  # a decoder knows the last token by those that fill up
        other["input_ids"][other["attention_mask"] == 0] = 9
    other = {name: nn.functional.pad(one, (0, 2)) for name, one in other.items()}
    with torch.no_grad():
        np.testing.assert_allclose(module(**other), module(**batch.inputs), atol=1e-6)


def test_norms_and_sums_use_the_same_dropout_masks():
    """Without clipping, the sum equals autograd's for the same random draws."""
    model = bert(hidden_dropout_prob=0.4, attention_probs_dropout_prob=0.4)
    module, batch = settled(model).train(), block(model)
    engine = GhostEngine(module, cross_entropy, 8)
    total = torch.zeros(engine.size, dtype=torch.float64)
    torch.manual_seed(1)
    engine.add(batch, Flat(1e6), total)
    torch.manual_seed(1)
    loss = nn.functional.cross_entropy(module(**batch.inputs), batch.targets, reduction="sum")
    loss.backward()
    whole = torch.cat([one.grad.reshape(-1) for one in module.parameters()])
    np.testing.assert_allclose(total, whole, atol=1e-4 * float(whole.norm()))


def test_position_lookups_are_expanded_only_during_the_call():
    model = bert()
    module, batch = settled(model), block(model)
    GhostEngine(module, cross_entropy, 8).add(
        batch, Flat(1.0), torch.zeros(sum(p.numel() for p in model.parameters())).double()
    )
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    assert not any(layer._forward_hooks for layer in model.modules())


def test_a_model_without_four_axis_masks_gets_two_axis_masks():
    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bert()
            self.config = self.inner.config

        def forward(self, input_ids, attention_mask):
            if attention_mask.ndim != 2:
                raise ValueError("two axes, please")
            return self.inner(input_ids=input_ids, attention_mask=attention_mask)

    module = settled(Narrow())
    assert not module.four_axes
    compare(module, block(module.model), GhostEngine(module, cross_entropy, 8))


class Deaf(nn.Module):
    """Accepts four-axis masks and ignores them."""

    def __init__(self):
        super().__init__()
        self.inner = bert()
        self.config = self.inner.config

    def forward(self, input_ids, attention_mask):
        narrow = attention_mask if attention_mask.ndim == 2 else None
        return self.inner(input_ids=input_ids, attention_mask=narrow)


@pytest.mark.parametrize("zeros", [False, True])
def test_a_zero_head_does_not_hide_ignored_masks(zeros):
    """All logits are zero for any mask; the trial perturbs the weights."""
    model = Deaf()
    if zeros:
        for one in model.inner.classifier.parameters():
            nn.init.zeros_(one)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    assert not settled(model).four_axes
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    heard = bert()
    for one in heard.classifier.parameters():
        nn.init.zeros_(one)
    assert settled(heard).four_axes  # and for one that uses them nothing changes


def test_token_types_are_omitted_for_models_without_them():
    """GPT-2 has no token types: it would add the word embedding of type 0."""
    model = gpt2().eval()
    rows = [{**row, "token_type_ids": [0] * len(row["input_ids"])} for row in texts(6)]
    ids = torch.from_numpy(arrays(rows)["input_ids"])
    with torch.no_grad():
        plain, kinds = (
            model(input_ids=ids, **more).logits
            for more in ({}, {"token_type_ids": torch.zeros_like(ids)})
        )
    assert not torch.allclose(plain, kinds, atol=1e-3)
    for dataset in (rows, Tokens.of({**arrays(rows), "token_type_ids": np.zeros_like(ids)})):
        form = text_format(dataset, model, LENGTH, None)
        assert form.names == ("input_ids", "attention_mask")
        assert set(load_records(dataset, form).X) == set(form.names)
        assert "token_type_ids" in text_format(dataset, bert(), LENGTH, None).names
