"""Hugging Face's arguments have the same effect in a private training."""

import numpy as np
import pytest
import torch
from transformers import Trainer, get_scheduler

from tests.neural.huggingface.tiny import arguments, bert, texts, trainer
from veracal.mechanisms import SGD, Adam
from veracal.neural.gradient_sums import Layout
from veracal.neural.huggingface.arguments import (
    DecoupledWeightDecay,
    WarmupSchedule,
    learning_rate_schedule,
)
from veracal.testing import check_optimizer


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 3, 0.25])
def test_the_learning_rate_equals_hugging_faces(tmp_path, kind, warmup):
    args = arguments(tmp_path, lr_scheduler_type=kind, warmup_steps=warmup, learning_rate=0.3)
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.3)
    theirs = get_scheduler(
        kind, optimizer, num_warmup_steps=args.get_warmup_steps(10), num_training_steps=10
    )
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(
        learning_rate_schedule(args, 10).values(10), expected, atol=1e-12
    )


def test_a_zero_learning_rate_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="a learning rate above zero"):
        learning_rate_schedule(arguments(tmp_path, warmup_steps=1), 1)


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_steps_equal_those_of_torchs_optimizer(tmp_path, optim):
    """The same gradients give the same weights, including weight decay of some of them."""
    settings = {"optim": optim, "weight_decay": 0.2, "learning_rate": 0.01, "adam_beta2": 0.9}
    ours = trainer(tmp_path, bert(), **settings)
    descent = ours._plan().dp_sgd
    model = bert()
    theirs = Trainer(model, arguments(tmp_path, **settings), train_dataset=texts())
    optimizer = theirs.create_optimizer()
    schedule = theirs.create_scheduler(3, optimizer)
    layout = Layout(model)
    weights = layout.read(model)
    state = descent.optimizer.start(weights)
    rng = np.random.default_rng(0)
    for t in range(3):
        gradient = rng.standard_normal(layout.size).astype(np.float32)
        for one in layout.slices:
            part = gradient[one.start : one.end].reshape(one.shape)
            model.get_parameter(one.name).grad = torch.from_numpy(part.copy())
        optimizer.step()
        schedule.step()
        weights, state = descent.optimizer.step(weights, gradient, state, t)
        np.testing.assert_allclose(weights, layout.read(model), atol=2e-6)


def test_decoupled_weight_decay_satisfies_the_optimizer_contract():
    for rule in (SGD(0.1), Adam(WarmupSchedule(0.1, 1, 9, "linear"))):
        decayed = DecoupledWeightDecay(rule, 0.5, ((0, 2),))
        weights, gradient = np.ones(3), np.zeros(3)
        moved, _ = decayed.step(weights, gradient, decayed.start(weights), 1)
        assert moved[0] == moved[1] < 1 == moved[2] and (weights == 1).all()


def test_a_warmup_schedule_satisfies_the_optimizer_contract():
    check_optimizer(Adam(WarmupSchedule(0.1, 2, 9, "linear")))
