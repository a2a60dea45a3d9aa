"""A record's contribution to a gradient sum does not depend on the other records.

Rounding makes a gradient depend on how many records it is computed with, on its position among
them and on memory addresses. The attack puts copies of a record within rounding of a threshold:
of a discontinuous clip rule (the threshold lies between two norms that the record has in two
positions), or of a ReLU (under ``Flat`` and ``Automatic``, which are continuous). One more
record then changes the position of all copies: a record for which preparing the input raises,
one in front of all others, one beyond the capacity of a block. Many copies flip at once, and
the sum moves by many times the bound.

Neighbors are summed by the real ``NetworkSums``, in all engines, and by whole fits. Networks
compute as usual, and also with a layer that rounds by position as linear algebra does, more
visibly and on every machine. The proof compares neighbors given the slots of all records, so
the replay fixes them. There is no tolerance: the sum moves by at most the bound, and addresses
change no bit.
"""

from functools import cache
from itertools import count, product
from typing import Any

import numpy as np
import torch
from torch import nn

from assurance.networks import ADDING, SUMS, Patches, fitted, patched
from veracal.mechanisms import (
    Automatic,
    ClippedSum,
    ClipRule,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
)
from veracal.mechanisms.clipping import _target_norm
from veracal.neural.examples import Block, IndexedRecords, as_tensor, cross_entropy
from veracal.neural.gradient_sums import GradientEngine, Layout, NetworkSums, _torch_threads
from veracal.neural.gradients.choice import MATERIALIZING_ENGINES
from veracal.neural.gradients.engines import GhostEngine, rounding_slack

NAME = "network_jumps"
WIDTH, HIDDEN = 50, 7  # for which positions matter in linear algebra, too
COPIES = 16  # of the tuned record, each followed by another one
ROWS = 2 * COPIES
BLOCK = ROWS
RAISES = 777.0  # in the first column
SHARE = 2.0**-16  # by which the layer below rounds
ENGINES: dict[str, Any] = {"ghost": GhostEngine, **MATERIALIZING_ENGINES}
# An engine, and whether the layer rounds by place: torch.func shows a layer one record only.
WAYS = (("ghost", True), ("hooks", True), *((engine_case, False) for engine_case in ENGINES))
RULES = ("GlobalV1", "GlobalV2", "GlobalAdapt", "Flat", "Automatic")
WHOLE = ("GlobalV2", "GlobalAdapt", "Flat")  # rules of whole fits
Place = tuple[int, int]  # how many records there are, and the position among them
# Where every tuned record is, as the first code had it, without and with one record more.
ATTACKS: dict[str, tuple[Place, Place]] = {
    "one raises": ((ROWS, 0), (1, 0)),
    "one in front": ((ROWS, 0), (ROWS + 1, 1)),
    "one beyond the block": ((ROWS, 0), (ROWS // 2 + 1, 1)),
}


class Network(nn.Module):
    """Two layers and a ReLU, optionally with rounding that depends on the position."""

    def __init__(self, *, by_place: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, 2)
        self.by_place = by_place

    def forward(self, x: torch.Tensor) -> Any:
        """Logits of rows."""
        if self.by_place:
            odd = (torch.arange(len(x)) + (len(x) > 1)) % 2
            if x.data_ptr() % 64 or self.first.weight.data_ptr() % 64:
                odd = 1 - odd
            x = x * (1 + SHARE * odd)[:, None]
        return self.second(torch.relu(self.first(x)))


@cache
def weights_of() -> dict[str, torch.Tensor]:
    """The same weights each time; the biases of the ReLU are far from zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        state: dict[str, torch.Tensor] = Network(by_place=False).state_dict()
    state["first.bias"] += 3.0
    return state


def network(*, by_place: bool) -> Network:
    """A network with these weights."""
    module = Network(by_place=by_place)
    module.load_state_dict(weights_of())
    return module


def prepare(rows: Any) -> torch.Tensor:
    """Convert rows to a tensor, and raise for one of them."""
    if (rows[:, 0] == RAISES).any():
        raise ValueError("Expected another record.")
    return as_tensor(rows)


# ---------------------------------------------------------------- the attack


@cache
def tuned(
    engine_case: str, by_place: bool, rule: str, attack: str
) -> tuple[ClipRule, Any] | None:
    """A rule and a record whose contribution differs between the two positions of an attack.

    None where rounding makes no difference between them.
    """
    engine = ENGINES[engine_case](network(by_place=by_place), cross_entropy, BLOCK)
    rng, places = np.random.default_rng(0), ATTACKS[attack]
    if rule in ("Flat", "Automatic"):
        clip: ClipRule = Flat(1.0) if rule == "Flat" else Automatic(1.0)
        rows = at_a_kink(24, rng)
        pairs = [added(engine, one, places, clip) for one in rows]
        moved = [float(np.linalg.norm(one - other)) for one, other in pairs]
        best = int(np.argmax(moved))
        return (clip, rows[best]) if moved[best] > 0.1 else None
    for row in rng.standard_normal((20, WIDTH)).astype(np.float32):
        low, high = sorted(norms(engine, row, places))
        middle = (low + high) / 2 * (1 + rounding_slack(BLOCK, 1))
        if low < high:
            bound = middle / _target_norm(1.0)
            clips: dict[str, ClipRule] = {
                "GlobalV1": GlobalV1(middle / 2, middle),
                "GlobalV2": GlobalV2(bound),
                "GlobalAdapt": GlobalAdapt(middle, middle, count_noise=1.0),
            }
            return clips[rule], row
    return None


def at_a_kink(n: int, rng: np.random.Generator) -> Any:
    """Records for which a hidden unit is zero up to rounding."""
    state = {name: one.double().numpy() for name, one in weights_of().items()}
    heads = np.abs(np.subtract(*state["second.weight"]))
    unit = int(np.argmax(heads))
    w, b = state["first.weight"][unit], state["first.bias"][unit]
    rows = 10 * rng.standard_normal((n, WIDTH))
    rows -= ((rows @ w + b) / (w @ w))[:, None] * w
    return rows.astype(np.float32)


def block_with_record(row: Any, place: Place) -> Block:
    """A block with a record at a position, and otherwise padding."""
    n, position = place
    rows = np.random.default_rng(1).standard_normal((n, WIDTH)).astype("f")
    inputs = torch.from_numpy(rows).clone()  # torch's memory is aligned, on which bits depend
    inputs[position] = torch.from_numpy(row)
    return Block(inputs, torch.zeros(n, dtype=torch.int64), real=torch.arange(n) == position)


def added(engine: Any, row: Any, places: tuple[Place, ...], clip: ClipRule) -> list[Any]:
    """Contributions of a record at several positions."""
    totals = [torch.zeros(engine.size, dtype=torch.float64) for _ in places]
    for place, total in zip(places, totals, strict=True):
        engine.add(block_with_record(row, place), clip, total)
    return [one.numpy() for one in totals]


def norms(engine: Any, row: Any, places: tuple[Place, ...]) -> list[float]:
    """Norms of its gradient at several positions."""
    total = torch.zeros(engine.size, dtype=torch.float64)
    return [
        float(engine.add(block_with_record(row, one), Flat(1.0), total).norms) for one in places
    ]


def records(row: Any, attack: str) -> Any:
    """The added or removed record, and all others."""
    X = np.random.default_rng(2).standard_normal((ROWS + 1, WIDTH)).astype(np.float32)
    X[1::2] = row
    if attack == "one raises":
        X[0, 0] = RAISES
    return X


def attacked(engine_case: str, by_place: bool, rule: str, attack: str) -> float | None:
    """Change of the sum or the count by one record, in units of the declared bound."""
    case = tuned(engine_case, by_place, rule, attack)
    if case is None:
        return None
    clip, row = case
    X = records(row, attack)
    module = network(by_place=by_place)
    engines = [ENGINES[engine_case](module, cross_entropy, BLOCK)]
    taken = IndexedRecords(X, np.zeros(len(X), int), prepare)
    sums = NetworkSums(engines, taken, ROWS, BLOCK, rng=np.random.default_rng(0))
    weights = Layout(module).read(module)
    one, other = (sums(weights, np.arange(first, len(X)), clip) for first in (0, 1))
    moved = far(one, other, clip)
    assert moved <= 1, (
        f"{attack}, {rule} in {engine_case}: moved by {moved:.3f} of what is declared"
    )
    return moved


def far(one: ClippedSum, other: ClippedSum, clip: ClipRule) -> float:
    """Distance of two sums and of two counts."""
    gap = float(np.linalg.norm(one.total - other.total) / clip.bound)
    return max(gap, float(abs(one.exceeding - other.exceeding)))


def fits(rule: str) -> float:
    """The attack with a record that raises, on a whole fit."""
    case = tuned("ghost", True, rule, "one raises")
    assert case is not None
    clip, row = case
    X = records(row, "one raises")
    settings: dict[str, Any] = {
        "clip": clip,
        "block": BLOCK,
        "prepare": prepare,
        "sampling_rate": 1.0,
        "steps": 1,
        "size": ROWS,
        "noise_multiplier": 1.0,
        "optimizer": 0.1,
        "random_state": 0,
    }
    # Copies of one record twice: the noise cancels, and thresholds tell the noisy counts.
    both = [
        fitted(network(by_place=True), rows, np.zeros(len(rows), int), **settings)[1][0]
        for rows in (X, X[1:])
    ]
    moved = float(np.linalg.norm(both[0].noisy_sum - both[1].noisy_sum) / clip.bound)
    if isinstance(clip, GlobalAdapt):
        moved = max(moved, abs(np.log(both[0].clip.threshold / both[1].clip.threshold)) * ROWS)
    assert moved <= 1 + 1e-9, f"{rule}: a fit moved by {moved:.3f} of what is declared"
    return moved


def addresses(rule: str) -> None:
    """Sum with weights and inputs at all alignments: no bit may change."""
    chosen = tuned("ghost", True, rule, "one raises")
    assert chosen is not None
    clip, row = chosen
    X, offsets, totals = records(row, "one in front"), count(), set[bytes]()

    def anywhere(rows: Any) -> torch.Tensor:
        return shifted(as_tensor(rows), next(offsets) % 13)

    for start in (0, 1, 5, 15):
        module = network(by_place=True)
        engines = [GhostEngine(module, cross_entropy, BLOCK)]
        taken = IndexedRecords(X, np.zeros(len(X), int), anywhere)
        sums = NetworkSums(engines, taken, ROWS, BLOCK, rng=np.random.default_rng(0))
        weights = shifted(torch.from_numpy(Layout(module).read(module)), start).numpy()
        totals.add(sums(weights, np.arange(1, len(X), 2), clip).total.tobytes())
    assert len(totals) == 1, (
        f"{rule}: {len(totals)} sums from four addresses of the same numbers"
    )


def shifted(tensor: torch.Tensor, places: int) -> torch.Tensor:
    """The same numbers at an offset from an address that is a multiple of 64 bytes."""
    buffer = torch.empty(tensor.numel() + places, dtype=tensor.dtype)[places:]
    return buffer.view(tensor.shape).copy_(tensor)


# ---------------------------------------------------------------- replays and mutants


def same_slots(sums: NetworkSums, rows: Any) -> Any:
    """One slot for each record, by its number from the end: neighbors share all but one."""
    slots = np.random.default_rng(1).permutation(sums._count * sums._capacity)
    return slots[len(sums.records) - 1 - rows]


def by_order(sums: NetworkSums, rows: Any) -> Any:
    """Slots in the order of the rows, shifted by a record in front."""
    return np.arange(len(rows))


def old_blocks(sums: NetworkSums, rows: Any) -> Any:
    """Blocks that depend on the number of rows."""
    return np.array_split(rows, -(-len(rows) // BLOCK)) if len(rows) else []


def alone_after_error(
    sums: NetworkSums,
    engine: GradientEngine,
    block: Any,
    clip: ClipRule,
    total: Any,
    tally: Any,
) -> None:
    """Repeat a failed block row by row, each in a block of one."""
    real, part = block >= 0, torch.zeros_like(total)
    rows = np.where(real, block, block[real][0])
    try:
        summed = engine.add(sums.records.block(rows, real), clip, part)
    except Exception:
        for row in block[real] if len(block) > 1 else ():
            alone_after_error(sums, engine, np.array([row]), clip, total, tally)
        return
    total += part
    tally.exceeding += summed.exceeding


def ramp(clip: GlobalV2, values: Any) -> Any:
    """Fall to zero over a width that covers the rounding of one record."""
    aim = _target_norm(clip.bound)
    return ((aim * (1 + 8 * SHARE) - values) / (8 * SHARE * aim)).clip(0.0, 1.0) * (1 - 1e-3)


def all_counted(values: Any, real: Any, clip: ClipRule, slack: float) -> Any:
    """Count the padding of a block."""
    from veracal.neural.gradients.engines import _clip_factors

    return _clip_factors(values, clip, slack)


def unchanged(values: Any) -> Any:
    """Keep the addresses of values."""
    return values


def treat_as_continuous(clip: ClipRule) -> bool:
    """Treat every rule as continuous."""
    return True


CONTINUOUS = "veracal.neural.gradient_sums.is_continuous"
CORRECT: Patches = {
    SUMS + "_draw_slots": same_slots,
    SUMS + "_shuffle": lambda sums, rows: rows,
}
MUTANTS: dict[str, Patches] = {
    "the first code": {
        SUMS + "_assign_slots": old_blocks,
        SUMS + "_add_block": alone_after_error,
        CONTINUOUS: treat_as_continuous,
    },
    "rules that jump, in blocks of all sizes": {
        SUMS + "_assign_slots": old_blocks,
        CONTINUOUS: treat_as_continuous,
    },
    "blocks of all sizes for continuous rules": {SUMS + "_assign_slots": old_blocks},
    "a block that fails is redone row by row": {SUMS + "_add_block": alone_after_error},
    "slots in the order of rows": {SUMS + "_draw_slots": by_order},
    "a ramp for the rounding of one record": {
        SUMS + "_assign_slots": old_blocks,
        CONTINUOUS: lambda clip: isinstance(clip, Flat | Automatic | GlobalV2),
        "veracal.mechanisms.clipping.GlobalV2.factors": ramp,
        "assurance.gate_network_jumps.RULES": ("GlobalV2",),
    },
    "padding is counted": {ADDING + "_padded_factors": all_counted},
    "weights where they are": {"veracal.neural.gradient_sums.aligned": unchanged},
    "inputs where they are": {"veracal.neural.examples._align": unchanged},
}


def run(subject: Patches, *, long: bool) -> str:
    """Run all attacks."""
    every = list(product(WAYS, RULES, ATTACKS))
    for engine_case, rule, attack in every:
        with _torch_threads(1):
            case = tuned(*engine_case, rule, attack)  # before anything is patched
        assert case is not None or not engine_case[1], f"{attack}, {rule}: nothing to flip"
    worst, tried, others = dict.fromkeys(RULES, 0.0), 0, 0.0
    # One thread: with several, this passes too, and takes long on a busy machine.
    with patched({**CORRECT, **subject}), _torch_threads(1):
        for rule in WHOLE:
            addresses(rule)
        for engine_case, rule, attack in every:
            moved = attacked(*engine_case, rule, attack)
            if moved is not None:
                worst[rule], tried = max(worst[rule], moved), tried + 1
                if attack == "one raises":  # which adds nothing itself
                    others = max(others, moved)
        for rule in WHOLE:
            worst[rule] = max(worst.get(rule, 0.0), fits(rule))
    summary = ", ".join(f"{rule} {moved:.4f}" for rule, moved in worst.items())
    slack = rounding_slack(BLOCK, 1)
    assert others <= slack, f"a record that adds nothing moves others by {others:.1e}"
    return (
        f"{tried} attacks move sums by {summary} of the bound, others than the record by "
        f"{others:.0e} of it (left to rounding: {slack:.0e}); addresses change no bit"
    )
