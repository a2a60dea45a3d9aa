"""The contribution of a record to a gradient sum does not depend on the others."""

import numpy as np
import pytest
import torch
from torch import nn

from veracal._types import aligned
from veracal.mechanisms import Automatic, Flat, FullBatch, GlobalAdapt, GlobalV1, GlobalV2
from veracal.neural import PrivateNetwork, train
from veracal.neural.examples import Block, IndexedRecords, as_tensor, cross_entropy
from veracal.neural.gradient_sums import Layout, NetworkSums
from veracal.neural.gradients.choice import MATERIALIZING_ENGINES
from veracal.neural.gradients.engines import GhostEngine

ENGINES = {"ghost": GhostEngine, **MATERIALIZING_ENGINES}
JUMPING = (GlobalV1(1.0, 2.0), GlobalV2(1.0), GlobalAdapt(1.0, 2.0))
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 5)).astype(np.float32), RNG.integers(0, 2, 60)


class Halved(Flat):
    """A user-defined, discontinuous rule by inheritance."""

    def factors(self, norms):
        return (norms < 1.0) * (0.5 + 0.0 * norms)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))


def convolutions():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Conv2d(3, 5, 2, stride=2)
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(5, 2))


class Texts(nn.Module):
    """Attention over tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(9, 8)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, ids):
        x = self.tokens(ids)
        y = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.head(nn.functional.gelu(self.norm(x + y)).mean(1))


def examples(name, n, seed):
    rng = torch.Generator().manual_seed(seed)
    if name == "texts":
        return torch.randint(0, 9, (n, 6), generator=rng)
    shape = (1, 8, 8) if name == "convolutions" else (5,)
    return torch.randn(n, *shape, generator=rng)


NETWORKS = {"rows": network, "convolutions": convolutions, "texts": Texts}


def sums_of(module, way=GhostEngine, x=X, y=Y, expected=60.0, block=128, seen=None, **records):
    class NoisyCounts(way):
        def add(self, one, clip, total):
            if seen is not None:
                seen.append((len(one), one.real))
            return super().add(one, clip, total)

    workers = [NoisyCounts(module, cross_entropy, max(4, block))]
    rng = np.random.default_rng(0)
    return NetworkSums(workers, IndexedRecords(x, y, **records), expected, block, rng=rng)


def module_vector():
    module = network()
    return Layout(module).read(module)


def total_of(sums, module, rows, clip):
    return sums(Layout(module).read(module), np.asarray(rows, np.int64), clip)


@pytest.mark.parametrize("clip", [*JUMPING, Halved(1.0)], ids=lambda clip: type(clip).__name__)
@pytest.mark.parametrize("way", ENGINES)
def test_discontinuous_rules_process_every_record_individually(way, clip):
    module, seen = network(), []
    result = total_of(sums_of(module, ENGINES[way], seen=seen), module, range(20), clip)
    assert [n for n, _ in seen] == [1] * 20
    alone = [total_of(sums_of(module, ENGINES[way]), module, [row], clip) for row in range(20)]
    expected = np.zeros_like(result.total)
    for one in alone:
        expected += one.total
    np.testing.assert_array_equal(result.total, expected)
    assert result.exceeding == sum(one.exceeding for one in alone)


@pytest.mark.parametrize(
    "clip", [Flat(0.3), Automatic(0.3)], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("count", [1, 2, 30, 60, 90, 91, 250])
def test_blocks_have_one_shape_for_any_number_of_records(count, clip):
    module, seen = network(), []
    x, y = np.resize(X, (count, 5)), np.resize(Y, count)
    sums = sums_of(module, x=x, y=y, block=32, seen=seen)
    result = total_of(sums, module, range(count), clip)
    assert {n for n, _ in seen} == {31}  # 60 + 4 sqrt(60) slots in three blocks
    assert sum(n if real is None else int(real.sum()) for n, real in seen) == count
    assert sums.counts.examples == count
    engine = GhostEngine(module, cross_entropy, 128)
    expected = torch.zeros(engine.size, dtype=torch.float64)
    for i in range(0, count, 100):
        part = slice(i, min(i + 100, count))
        block = Block(torch.from_numpy(x[part]), torch.from_numpy(y[part]))
        engine.add(block, clip, expected)
    # The slack, which moves factors, is that of 32 records and of 128.
    np.testing.assert_allclose(result.total, expected.numpy(), atol=5e-4 * 0.3 * count)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("way", ENGINES)
def test_the_content_of_other_slots_changes_no_bit(way, name):
    module = NETWORKS[name]()
    engine = ENGINES[way](module, cross_entropy, 16)
    record, result = examples(name, 1, 0), set()
    for seed in range(1, 5):
        inputs = examples(name, 13, seed)
        inputs[6] = record[0]
        if seed == 4 and name != "texts":  # nor do records that are not finite
            inputs[3], inputs[9] = torch.inf, torch.nan
        real = torch.arange(13) == 6
        total = torch.zeros(engine.size, dtype=torch.float64)
        targets = torch.zeros(13, dtype=torch.int64)
        summed = engine.add(Block(inputs, targets, real=real), Flat(1e-3), total)
        result.add(summed.norms.numpy().tobytes())
        assert summed.norms.shape == (1,)
    assert len(result) == 1


@pytest.mark.parametrize("way", ENGINES)
@pytest.mark.parametrize("clip", [Flat(0.3), GlobalV2(0.3)], ids=lambda one: type(one).__name__)
def test_records_that_raise_do_not_affect_the_others(way, clip):
    def prepare(rows):
        if (rows[:, 0] > 50).any():
            raise ValueError("Expected another record.")
        return as_tensor(rows)

    module, x = network(), X.copy()
    x[[3, 11, 12], 0] = 100.0
    good = np.delete(np.arange(20), [3, 11, 12])
    with_slots = [sums_of(module, ENGINES[way], x=x, prepare=prepare) for _ in range(2)]
    slots = np.random.default_rng(1).permutation(with_slots[0]._count * with_slots[0]._capacity)
    for sums in with_slots:
        sums._draw_slots, sums._shuffle = slots.__getitem__, lambda rows: rows
    one = total_of(with_slots[0], module, range(20), clip)
    other = total_of(with_slots[1], module, good, clip)
    # Sums over halves of a block round otherwise; what is summed is the same.
    np.testing.assert_allclose(one.total, other.total, atol=1e-6)
    tally = with_slots[0].counts
    assert (tally.examples, tally.nonfinite) == (20, 3)


def test_slots_of_neighbors_have_the_same_distribution():
    """Of two records, where the first one is, whether or not the second one is there.

    Each of 8 slots has a probability of 1/8; of 6,000 draws, a count is off by more than six
    standard deviations with a probability below 1e-7, and the seed is fixed.
    """
    sums = sums_of(network(), expected=2.0)
    slots = sums._count * sums._capacity
    assert slots == 8
    for records in ([0], [0, 1], list(range(8))):
        drawn = [sums._draw_slots(np.array(records))[0] for _ in range(6_000)]
        counts = np.bincount(drawn, minlength=slots)
        assert np.abs(counts - 750).max() < 6 * np.sqrt(750)
        some = sums._draw_slots(np.array(records))
        assert len(set(some.tolist())) == len(records)


def test_padding_that_is_not_finite_adds_nothing():
    module, x = network(), X.copy()
    x[0] = np.inf
    result = total_of(sums_of(module, x=x), module, [0], Flat(0.3))
    assert not result.total.any()
    result = total_of(sums_of(module, x=x), module, [0, 1], Flat(0.3))
    expected = total_of(sums_of(module, x=x), module, [1], Flat(0.3))
    np.testing.assert_allclose(result.total, expected.total, atol=1e-7)


@pytest.mark.parametrize("clip", [GlobalV2(1.0), Flat(0.3)], ids=lambda one: type(one).__name__)
def test_addresses_of_weights_and_inputs_change_no_bit(clip):
    torch.manual_seed(0)
    module = nn.Linear(784, 10)  # whose last bits follow from addresses in some libraries
    x = RNG.standard_normal((6, 784)).astype(np.float32)
    result, offset = set(), 0

    def anywhere(rows):
        room = torch.empty(rows.size + offset)[offset:].view(rows.shape)
        return room.copy_(torch.from_numpy(rows))

    for offset in (0, 1, 2, 7, 15):
        sums = sums_of(module, x=x, y=np.arange(6), expected=6.0, prepare=anywhere)
        weights = np.empty(7_850 + offset, np.float32)[offset:]
        weights[:] = Layout(module).read(module)
        result.add(sums(weights, np.arange(6), clip).total.tobytes())
    assert len(result) == 1


def test_arrays_at_a_multiple_of_64_bytes_are_not_copied():
    room = torch.zeros(40).numpy()
    assert aligned(room) is room
    moved = aligned(room[1:])
    assert moved.ctypes.data % 64 == 0
    np.testing.assert_array_equal(moved, room[1:])
    assert aligned(np.empty((0, 3))).shape == (0, 3)
    assert module_vector().ctypes.data % 64 == 0


def test_discontinuous_rules_use_one_thread():
    before, met = torch.get_num_threads(), []

    class Watching(GhostEngine):
        def add(self, block, clip, total):
            met.append(torch.get_num_threads())
            return super().add(block, clip, total)

    module = network()
    sums = NetworkSums(
        [Watching(module, cross_entropy, 8)],
        IndexedRecords(X, Y),
        8.0,
        8,
        rng=np.random.default_rng(0),
    )
    torch.set_num_threads(2)
    try:
        total_of(sums, module, range(3), GlobalV2(1.0))
        total_of(sums, module, range(3), Flat(1.0))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert met[:3] == [1, 1, 1] and set(met[3:]) == {2}


@pytest.fixture
def sizes(monkeypatch):
    """Number of examples in each block of a fit."""
    seen, add = [], GhostEngine.add

    def noted(engine, block, clip, total):
        if clip.bound == 0.7:  # and not in the trial before
            seen.append(len(block))
        return add(engine, block, clip, total)

    monkeypatch.setattr(GhostEngine, "add", noted)
    return seen


SETTINGS = {"classes": (0, 1), "size": 60, "steps": 1, "optimizer": 0.1, "gradients": "ghost"}
RULE = pytest.mark.parametrize(
    ("clip", "expected"), [(GlobalV2(0.7), [1] * 60), (Flat(0.7), [31] * 3)]
)


@RULE
def test_a_network_fit_uses_these_blocks(sizes, clip, expected):
    model = PrivateNetwork(
        network(),
        noise_multiplier=1.0,
        epsilon=None,
        sampling_rate=1.0,
        clip=clip,
        block=32,
        **SETTINGS,
    )
    model.fit(X, Y)
    assert sizes == expected


@RULE
def test_train_uses_these_blocks(sizes, clip, expected):
    settings = {"noise": 1.0, "sampler": FullBatch(), "block": 32, **SETTINGS}
    train(network(), (X, Y), clip=clip, **settings)
    assert sizes == expected
