"""A trainer chooses a gradient engine, or explains why there is none."""

import pytest
import torch
from torch import nn

from tests.neural.huggingface.tiny import DECODERS, bert, trainer
from veracal.accounting import Budget
from veracal.ledger import open_ledger
from veracal.neural import train_only


@pytest.mark.parametrize("family", DECODERS)
def test_decoders_are_trained_completely(tmp_path, family):
    model = DECODERS[family]()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    private_trainer = trainer(tmp_path, model, lr_scheduler_type="cosine")
    private_trainer.train()
    assert private_trainer.private_ and private_trainer.trial_.chosen == "ghost"
    for name, one in model.named_parameters():
        assert not torch.equal(one, before[name]), name


class Gate(nn.Module):
    """Scales its input, except for very large values; no gradient engine supports it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x if float(x.detach().sum()) > 1e9 else self.scale * x


def test_a_model_without_an_engine_is_rejected_with_reasons_and_a_remedy(tmp_path):
    model = bert()
    model.classifier = nn.Sequential(model.classifier, Gate())
    ledger = open_ledger(tmp_path / "ledger", Budget(8.0, 1e-3), kind="open")
    private_trainer = trainer(tmp_path, model, ledger=ledger, privacy={"noise_multiplier": 4.0})
    with pytest.raises(
        ValueError, match="Expected a module with per-example gradients"
    ) as caught:
        private_trainer.train()
    text = str(caught.value)
    assert "ghost: it does not support trained layers (Gate); functional: vmap" in text
    assert "add_lora(model)" in text and "train_only(model" in text
    assert not list(ledger.entries())

    train_only(model, "bert.*", "classifier.0.*")
    private_trainer.train()
    assert private_trainer.private_ and private_trainer.trial_.chosen == "ghost"


def test_the_first_correct_engine_is_used_and_earlier_faults_are_reported(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.scale * x

    model = bert()
    model.classifier = nn.Sequential(model.classifier, Scaled())
    private_trainer = trainer(tmp_path, model)
    private_trainer.train()
    assert (
        private_trainer.trial_.chosen == "functional"
        and "(Scaled)" in private_trainer.trial_.wrong["ghost"]
    )
    assert "hooks" not in {**private_trainer.trial_.seconds, **private_trainer.trial_.wrong}
