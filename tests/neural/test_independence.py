"""Modules that mix examples are rejected, or trained with an engine that is still correct."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.neural.fits import X, Y, model
from veracal.accounting import Budget
from veracal.data import Dataset
from veracal.ledger import open_ledger
from veracal.mechanisms import Flat
from veracal.neural.examples import Block, cross_entropy
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.choice import choose_engine
from veracal.neural.gradients.engines import GhostEngine, OpacusEngine
from veracal.queries import Curator


class Mixing(nn.Module):
    """Adds information about other examples, in training mode or always."""

    def __init__(self, change, always=False):
        super().__init__()
        self.line, self.change, self.always = nn.Linear(4, 2), change, always

    def forward(self, x):
        return self.line(x + 0.5 * self.change(x) if self.training or self.always else x)


MIXTURES = {
    "flipped": lambda x: x.flip(0),
    "next": lambda x: x.roll(1, 0),
    "mean": lambda x: x.mean(0),
    "largest": lambda x: x.amax(0),
    "sorted": lambda x: x.sort(0).values,
}


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("how", MIXTURES)
def test_a_module_that_mixes_examples_is_rejected(how, always):
    with pytest.raises(ValueError, match="independently"):
        model(Mixing(MIXTURES[how], always)).fit(X, Y)


@pytest.mark.parametrize("how", MIXTURES)
def test_a_prepare_that_mixes_rows_is_rejected(how):
    def prepare(rows):
        result = torch.from_numpy(np.asarray(rows, np.float32))
        return result + 0.5 * MIXTURES[how](result)

    with pytest.raises(ValueError, match="each row independently"):
        model(prepare=prepare).fit(X, Y)


@pytest.mark.parametrize("wrong", [lambda rows: rows, lambda rows: None])
def test_a_prepare_that_returns_no_tensor_is_rejected(wrong):
    with pytest.raises(ValueError, match="prepare to give a tensor"):
        model(prepare=wrong).fit(X, Y)


def late(change, few=8):
    """Mixes only large blocks."""
    return lambda x: change(x) if len(x) > few else torch.zeros_like(x)


ONES = {
    "first": lambda x: x[:1].expand_as(x),
    "last": lambda x: x[-1:].expand_as(x),
    "fours": lambda x: x[torch.arange(len(x)) // 4 * 4],
    "every 8th": lambda x: torch.where(torch.arange(len(x))[:, None] % 8 == 0, x.roll(1, 0), 0),
}


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("change", [*MIXTURES.values(), *ONES.values()], ids=[*MIXTURES, *ONES])
def test_a_module_that_mixes_only_large_blocks_is_rejected(change, always):
    with pytest.raises(ValueError, match="module that treats each example independently"):
        model(Mixing(late(change), always)).fit(X, Y)


@pytest.mark.parametrize("change", [*MIXTURES.values(), *ONES.values()], ids=[*MIXTURES, *ONES])
def test_prepare_and_augment_that_mix_only_large_blocks_are_rejected(change):
    def prepare(rows):
        result = torch.from_numpy(np.asarray(rows, np.float32))
        return result + 0.5 * late(change)(result)

    with pytest.raises(ValueError, match="each row independently"):
        model(prepare=prepare).fit(X, Y)
    viewed = Viewed(lambda x, noise: x + 0.5 * late(change)(x))
    with pytest.raises(ValueError, match="views of each example independently"):
        model(augment=viewed).fit(X, Y)


@pytest.mark.parametrize(
    ("few", "block", "refused"), [(126, 128, True), (126, 100, False), (300, 500, False)]
)
def test_a_full_block_is_the_declared_one_or_the_largest_batch(few, block, refused):
    module = Mixing(late(MIXTURES["mean"], few))
    if refused:
        with pytest.raises(ValueError, match="independently"):
            model(module, block=block).fit(X, Y)
    else:
        assert model(module, block=block).fit(X, Y).n_iter_ == 4


def test_a_zero_head_hides_no_mixing():
    module = nn.Sequential(Mixing(late(MIXTURES["mean"])), nn.Linear(2, 2))
    for one in module[1].parameters():
        nn.init.zeros_(one)
    with pytest.raises(ValueError, match="module that treats each example independently"):
        model(module).fit(X, Y)
    assert not module[1].weight.any()


class Remembering(nn.Module):
    """Keeps a running mean in a plain attribute, not in a buffer."""

    def __init__(self, few=0):
        super().__init__()
        self.line, self.center, self.few = nn.Linear(4, 2), torch.zeros(4), few

    def forward(self, x):
        if self.training and len(x) > self.few:
            self.center = 0.99 * self.center + 0.01 * x.detach().mean(0)
        return self.line(x - self.center)


class Failing(Mixing):
    """Raises for more than a few examples."""

    def forward(self, x):
        if len(x) > 8:
            raise RuntimeError("too many")
        return super().forward(x)


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (Failing(torch.zeros_like), "fails for synthetic rows: too many"),
        (Remembering(few=8), "module without state|independently"),
    ],
    ids=["fails", "remembers"],
)
def test_a_module_is_tried_on_a_full_block(module, match):
    with pytest.raises(ValueError, match=match):
        model(module).fit(X, Y)


class Viewed:
    """Two views of each example, one by a batch operation."""

    views = 2

    def __init__(self, change):
        self.change = change

    def __call__(self, inputs, rng):
        twice = inputs.repeat_interleave(2, 0)
        return self.change(twice, torch.from_numpy(rng.random(twice.shape, np.float32)))


@pytest.mark.parametrize(
    "change",
    [
        *(lambda x, noise, mix=mix: x + mix(x) for mix in MIXTURES.values()),
        lambda x, noise: x[noise[:, 0].argsort()],
        lambda x, noise: torch.cat([x[::2], -x[::2]]),
        lambda x, noise: x + torch.rand_like(x),
    ],
    ids=[*MIXTURES, "shuffled", "in another order", "another generator"],
)
def test_an_augmentation_that_mixes_examples_is_rejected(change):
    with pytest.raises(ValueError, match="independently"):
        model(augment=Viewed(change)).fit(X, Y)


def test_an_augmentation_that_does_not_mix_is_accepted():
    assert model(augment=Viewed(lambda x, noise: x + noise), steps=1).fit(X, Y).n_iter_ == 1
    with pytest.raises(ValueError, match=r"augment\.views"):
        model(augment=lambda inputs, rng: inputs).fit(X, Y)


# ---------------------------------------------------------------- losses


def balanced(outputs, targets):
    counts = torch.bincount(targets, minlength=2).clamp(min=1).to(outputs.dtype)
    weights = len(targets) / counts
    return weights[targets] * cross_entropy(outputs, targets)


def hardest(outputs, targets):
    losses = cross_entropy(outputs, targets)
    return torch.where(losses >= losses.median(), losses, 0.0)


def ranked(outputs, targets):
    return cross_entropy(outputs - outputs.mean(0), targets)


@pytest.mark.parametrize("loss", [balanced, hardest, ranked])
def test_a_loss_that_mixes_examples_is_rejected(loss):
    with pytest.raises(ValueError, match="loss that treats each example independently"):
        model(loss=loss).fit(X, Y)


def test_batch_losses_are_rejected_and_per_example_losses_accepted():
    with pytest.raises(ValueError, match="reduction='none'"):
        model(loss=functional.cross_entropy).fit(X, Y)
    public = torch.tensor([0.3, 1.7])

    def weighted(outputs, targets):
        return public[targets] * cross_entropy(outputs, targets)

    assert model(loss=weighted).fit(X, Y).n_iter_ == 4


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("way", [None, "ghost", "hooks"])
def test_a_module_with_hidden_state_is_rejected(way):
    with pytest.raises(ValueError, match="module without state|independently"):
        model(Remembering(), gradients=way).fit(X, Y)


class Writing(nn.Module):
    """Changes its weights in a forward pass."""

    def __init__(self, trained):
        super().__init__()
        self.line = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(4), requires_grad=trained)

    def forward(self, x):
        with torch.no_grad():
            self.scale.data.clamp_(max=float(1 + x.abs().max()) - 0.5)
            self.scale.data.mul_(1 - 1e-7)
        return self.line(self.scale * x)


@pytest.mark.parametrize("trained", [True, False])
def test_a_forward_pass_that_changes_weights_is_rejected(trained):
    with pytest.raises(ValueError, match="changes 'scale'"):
        model(Writing(trained)).fit(X, Y)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_with_max_norm_are_rejected(layer):
    module = nn.Sequential(layer(9, 4, max_norm=1.0), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match="Remove max_norm"):
        model(module).event()


# ---------------------------------------------------------------- examples in another order


class ByLength(nn.Module):
    """Outputs are independent, but layers see the longest examples first."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(50, 6, padding_idx=0), nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, tokens):
        order = (tokens != 0).sum(1).argsort(descending=True, stable=True)
        return self.head(self.inner(self.table(tokens[order])).sum(1)[order.argsort()])


def test_ghost_is_not_used_for_layers_that_reorder_examples():
    tokens = np.random.default_rng(0).integers(1, 50, (60, 5))
    fitted = model(ByLength(), gradients=None).fit(tokens, Y)
    assert fitted.trial_.chosen == "functional"
    assert "one example at a time" in fitted.trial_.wrong["ghost"]
    with pytest.raises(ValueError, match="one example at a time"):
        model(ByLength(), gradients="ghost").fit(tokens, Y)


# ---------------------------------------------------------------- fewer digits inside


class Halved(nn.Module):
    """Computes in bfloat16 and returns float32."""

    def __init__(self):
        super().__init__()
        self.back = nn.Linear(16, 64).requires_grad_(False)
        self.head = nn.Linear(64, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.head(functional.relu(self.back(x))).float()


@pytest.mark.parametrize("kind", [GhostEngine, OpacusEngine])
def test_half_precision_inside_a_module_adds_nothing_to_a_sum(kind):
    """A module that opens autocast in a step, but not in a trial."""
    module, rows = Halved(), torch.randn(8, 16)
    total = torch.zeros(Layout(module).size, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"float32 or float64, got torch\.bfloat16"):
        kind(module, cross_entropy, 8).add(
            Block(rows, torch.zeros(8, dtype=torch.int64)), Flat(0.1), total
        )
    assert not total.any()


# ---------------------------------------------------------------- before anything is charged


class Skipping(nn.Module):
    """A layer that is skipped at random in training mode, by a Python condition."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        if not self.training or torch.rand(()).item() < 0.5:
            hidden = hidden + torch.tanh(self.inner(hidden))
        return self.head(hidden)


def test_an_engine_that_fails_only_in_training_mode_is_not_used():
    fitted = model(Skipping(), gradients=None, random_state=None).fit(X, Y)
    assert fitted.trial_.chosen == "ghost"
    assert "functional" in fitted.trial_.wrong


def test_an_engine_that_fails_for_a_full_block_is_not_used(monkeypatch):
    block = Block(torch.from_numpy(X), torch.from_numpy(Y))
    add = GhostEngine.add

    def fails(engine, given, clip, total):
        if len(given) > 5:
            raise RuntimeError("too many")
        return add(engine, given, clip, total)

    monkeypatch.setattr(GhostEngine, "add", fails)
    _, trial = choose_engine(
        nn.Linear(4, 2), cross_entropy, block.part(0, 4), block, block_size=60
    )
    assert trial.wrong["ghost"] == "too many" and trial.chosen != "ghost"


def test_an_unwritable_checkpoint_is_rejected_before_the_charge(tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(8.0, 1e-5), kind="open")
    fit = model(
        checkpoint=tmp_path / "nowhere" / "run", random_state=None, noise_multiplier=5.0
    )
    with pytest.raises(ValueError, match="an existing, writable folder"):
        Curator(Dataset(X, Y, (0, 1), size=60), ledger).fit(fit, request="a")
    assert not ledger.entries()
