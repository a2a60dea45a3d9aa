"""What mixes examples is refused, or taken in a way that is right all the same."""

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
from veracal.neural.gradient_sums import Layout
from veracal.neural.gradients.blocks import Block, cross_entropy
from veracal.neural.gradients.choice import choose_engine
from veracal.neural.gradients.engines import GhostEngine, OpacusEngine
from veracal.queries import Curator


class Mixing(nn.Module):
    """Adds something of other examples, while it is trained or all the time."""

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
def test_a_module_that_mixes_examples_is_refused(how, always):
    with pytest.raises(ValueError, match="independently"):
        model(Mixing(MIXTURES[how], always)).fit(X, Y)


@pytest.mark.parametrize("how", MIXTURES)
def test_so_is_a_preparation(how):
    def prepare(rows):
        found = torch.from_numpy(np.asarray(rows, np.float32))
        return found + 0.5 * MIXTURES[how](found)

    with pytest.raises(ValueError, match="each row independently"):
        model(prepare=prepare).fit(X, Y)


@pytest.mark.parametrize("wrong", [lambda rows: rows, lambda rows: None])
def test_a_preparation_that_gives_no_tensor_is_told_so(wrong):
    with pytest.raises(ValueError, match="prepare to give a tensor"):
        model(prepare=wrong).fit(X, Y)


def late(change, few=8):
    """Leaves a few examples as they are, and mixes more of them."""
    return lambda x: change(x) if len(x) > few else torch.zeros_like(x)


ONES = {
    "first": lambda x: x[:1].expand_as(x),
    "last": lambda x: x[-1:].expand_as(x),
    "fours": lambda x: x[torch.arange(len(x)) // 4 * 4],
    "every 8th": lambda x: torch.where(torch.arange(len(x))[:, None] % 8 == 0, x.roll(1, 0), 0),
}


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("change", [*MIXTURES.values(), *ONES.values()], ids=[*MIXTURES, *ONES])
def test_a_module_that_mixes_blocks_and_leaves_a_few_examples_apart_is_refused(change, always):
    with pytest.raises(ValueError, match="module that treats each example independently"):
        model(Mixing(late(change), always)).fit(X, Y)


@pytest.mark.parametrize("change", [*MIXTURES.values(), *ONES.values()], ids=[*MIXTURES, *ONES])
def test_so_are_a_preparation_and_an_augmentation(change):
    def prepare(rows):
        found = torch.from_numpy(np.asarray(rows, np.float32))
        return found + 0.5 * late(change)(found)

    with pytest.raises(ValueError, match="each row independently"):
        model(prepare=prepare).fit(X, Y)
    viewed = Viewed(lambda x, noise: x + 0.5 * late(change)(x))
    with pytest.raises(ValueError, match="views of each example independently"):
        model(augment=viewed).fit(X, Y)


@pytest.mark.parametrize(
    ("few", "block", "refused"), [(126, 128, True), (126, 100, False), (300, 500, False)]
)
def test_a_whole_block_is_the_declared_one_within_what_a_batch_may_have(few, block, refused):
    module = Mixing(late(MIXTURES["mean"], few))
    if refused:
        with pytest.raises(ValueError, match="independently"):
            model(module, block=block).fit(X, Y)
    else:
        assert model(module, block=block).fit(X, Y).n_iter_ == 4


def test_a_head_of_zeros_hides_nothing():
    module = nn.Sequential(Mixing(late(MIXTURES["mean"])), nn.Linear(2, 2))
    for one in module[1].parameters():
        nn.init.zeros_(one)
    with pytest.raises(ValueError, match="module that treats each example independently"):
        model(module).fit(X, Y)
    assert not module[1].weight.any()


class Remembering(nn.Module):
    """Keeps a running mean where nobody looks: not as a buffer."""

    def __init__(self, few=0):
        super().__init__()
        self.line, self.center, self.few = nn.Linear(4, 2), torch.zeros(4), few

    def forward(self, x):
        if self.training and len(x) > self.few:
            self.center = 0.99 * self.center + 0.01 * x.detach().mean(0)
        return self.line(x - self.center)


class Failing(Mixing):
    """Takes no more than a few examples."""

    def forward(self, x):
        if len(x) > 8:
            raise RuntimeError("too many")
        return super().forward(x)


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (Failing(torch.zeros_like), "fails for made-up ones: too many"),
        (Remembering(few=8), "keeps nothing|by itself"),
    ],
    ids=["fails", "remembers"],
)
def test_what_a_module_does_with_a_whole_block_is_tried(module, match):
    with pytest.raises(ValueError, match=match):
        model(module).fit(X, Y)


class Viewed:
    """Two views of each example, by what is done to a batch."""

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
def test_an_augmentation_that_mixes_examples_is_refused(change):
    with pytest.raises(ValueError, match="independently"):
        model(augment=Viewed(change)).fit(X, Y)


def test_an_augmentation_that_does_not_is_taken():
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
def test_a_loss_that_mixes_examples_is_refused(loss):
    with pytest.raises(ValueError, match="loss that treats each example independently"):
        model(loss=loss).fit(X, Y)


def test_a_loss_of_a_whole_batch_is_refused_and_one_of_each_example_is_taken():
    with pytest.raises(ValueError, match="reduction='none'"):
        model(loss=functional.cross_entropy).fit(X, Y)
    public = torch.tensor([0.3, 1.7])

    def weighted(outputs, targets):
        return public[targets] * cross_entropy(outputs, targets)

    assert model(loss=weighted).fit(X, Y).n_iter_ == 4


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("way", [None, "ghost", "hooks"])
def test_a_module_that_keeps_something_of_what_it_saw_is_refused(way):
    with pytest.raises(ValueError, match="keeps nothing|by itself"):
        model(Remembering(), gradients=way).fit(X, Y)


class Writing(nn.Module):
    """Writes on its weights in a forward pass."""

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
def test_a_forward_pass_that_writes_on_weights_is_refused(trained):
    with pytest.raises(ValueError, match="changes 'scale'"):
        model(Writing(trained)).fit(X, Y)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_tables_that_shorten_what_was_looked_up_are_refused(layer):
    module = nn.Sequential(layer(9, 4, max_norm=1.0), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match="Remove max_norm"):
        model(module).event()


# ---------------------------------------------------------------- examples in another order


class ByLength(nn.Module):
    """Every output is its own row's, but layers see the longest first."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(50, 6, padding_idx=0), nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, tokens):
        order = (tokens != 0).sum(1).argsort(descending=True, stable=True)
        return self.head(self.inner(self.table(tokens[order])).sum(1)[order.argsort()])


def test_layers_that_see_examples_in_an_order_of_their_own_are_not_taken_by_ghost():
    tokens = np.random.default_rng(0).integers(1, 50, (60, 5))
    fitted = model(ByLength(), gradients=None).fit(tokens, Y)
    assert fitted.trial_.chosen == "functional"
    assert "one by one" in fitted.trial_.wrong["ghost"]
    with pytest.raises(ValueError, match="one by one"):
        model(ByLength(), gradients="ghost").fit(tokens, Y)


# ---------------------------------------------------------------- fewer digits inside


class Halved(nn.Module):
    """Computes in bfloat16, and gives float32."""

    def __init__(self):
        super().__init__()
        self.back = nn.Linear(16, 64).requires_grad_(False)
        self.head = nn.Linear(64, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.head(functional.relu(self.back(x))).float()


@pytest.mark.parametrize("kind", [GhostEngine, OpacusEngine])
def test_half_precision_inside_a_module_adds_nothing_to_a_sum(kind):
    """Where a module opens autocast in a step, of which no trial knew."""
    module, rows = Halved(), torch.randn(8, 16)
    total = torch.zeros(Layout(module).size, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"float32 or float64, got torch\.bfloat16"):
        kind(module, cross_entropy, 8).add(
            Block(rows, torch.zeros(8, dtype=torch.int64)), Flat(0.1), total
        )
    assert not total.any()


# ---------------------------------------------------------------- before anything is charged


class Skipping(nn.Module):
    """A layer that is left out by chance while it is trained, by a number Python looks at."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        if not self.training or torch.rand(()).item() < 0.5:
            hidden = hidden + torch.tanh(self.inner(hidden))
        return self.head(hidden)


def test_a_way_that_fails_only_in_training_is_not_taken():
    fitted = model(Skipping(), gradients=None, random_state=None).fit(X, Y)
    assert fitted.trial_.chosen == "ghost"
    assert "functional" in fitted.trial_.wrong


def test_a_way_that_fails_for_a_whole_block_is_not_taken(monkeypatch):
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


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_charge(tmp_path):
    ledger = open_ledger(tmp_path / "a.ledger", Budget(8.0, 1e-5), kind="open")
    fit = model(
        checkpoint=tmp_path / "nowhere" / "run", random_state=None, noise_multiplier=5.0
    )
    with pytest.raises(ValueError, match="a folder that exists"):
        Curator(Dataset(X, Y, (0, 1), size=60), ledger).fit(fit, request="a")
    assert not ledger.entries()
