"""One record moves the gradient sums of a network by no more than its event states.

Whole fits of the real classifier are replayed with the same randomness on neighboring data
sets, under both relations, with every clip rule, every gradient engine and layers of many
kinds: at several positions, convolutions, embeddings, tied, frozen, with three views (the tests
of engines cover every kind in every engine). The noise cancels in the difference of the first
noisy sums. Records are long, short, zero or overflow. With noise before the clip, the only
record is replaced, so that both fits draw the same. No fit may stop, and some must come close
to the charged bound, or the gate would be blind. The trial that compares engines before
training, which would detect many of the mutants, is switched off.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from assurance.networks import (
    ADDING,
    LAYERS,
    Patches,
    Views,
    fitted,
    network,
    patched,
    random_records,
    summed_otherwise,
)
from veracal.accounting import Event, Gaussian, Repeated
from veracal.mechanisms import (
    DPSGD,
    Automatic,
    ClippedSum,
    ClipRule,
    Flat,
    GlobalAdapt,
    GlobalV1,
    GlobalV2,
    Langevin,
)
from veracal.neural.examples import Block, IndexedRecords
from veracal.neural.gradients import engines as adding
from veracal.neural.gradients import engines as ghost
from veracal.neural.gradients import layers
from veracal.neural.gradients.choice import MATERIALIZING_ENGINES

NAME = "network"
SECONDS = 25
BOUND, SIZE = 0.3, 5
CLIPS: tuple[ClipRule, ...] = (
    Flat(BOUND),
    Automatic(BOUND),
    GlobalV1(BOUND, 2.0),
    GlobalV2(BOUND),
    GlobalAdapt(BOUND, 2.0, count_noise=3.0),
)
# Combinations that the engines support, and layers in which mutants hide.
CASES = (
    *(("ghost", name) for name in ("plain", "places", "convolved", "attention", "tied")),
    *(("ghost", name) for name in ("frozen", "views")),
    *(("functional", name) for name in ("plain", "convolved", "attention", "tied", "views")),
    *(("hooks", name) for name in ("convolved", "attention", "views")),
)
choose, also, step_event = adding._clip_factors, ghost._accumulate, DPSGD._step_event


# ---------------------------------------------------------------- mutants


def unclipped(norms: Any, clip: ClipRule, slack: float) -> Any:
    """Do not clip gradients, except for those that are not finite."""
    selected = choose(norms, clip, slack)
    return replace(selected, factors=torch.ones_like(selected.factors))


def keep_nonfinite(norms: Any, clip: ClipRule, slack: float) -> Any:
    """Multiply nonfinite gradients by a factor, like all others."""
    finite = torch.where(norms.isfinite(), norms, 1.0)
    return replace(choose(finite, clip, slack), kept=None)


def nothing_jumps(norms: Any, clip: ClipRule, slack: float) -> Any:
    """Add nothing under rules that drop long gradients: such a gate would be blind."""
    selected = choose(norms, clip, slack)
    if isinstance(clip, GlobalV1 | GlobalV2):
        return replace(selected, factors=0 * selected.factors)
    return selected


def to_median(norms: Any, clip: ClipRule, slack: float) -> Any:
    """Clip to the median of the block."""
    finite = norms[norms.isfinite()]
    median = float(finite.median()) if len(finite) else 1.0
    selected = choose(norms, Flat(max(median, 1e-3)), slack)
    return replace(selected, factors=selected.factors * clip.bound)


def clipped_whole(clipped: ClippedSum, rows: int, clip: ClipRule) -> ClippedSum:
    """Clip the sum instead of its terms."""
    length = np.linalg.norm(clipped.total)
    if not np.isfinite(length):
        return ClippedSum(0 * clipped.total)
    return ClippedSum(clipped.total * clip.factors(np.array([length])), clipped.exceeding)


def squares_without_cross_terms(product: layers.ProductGradients) -> Any:
    """Add up the squares of all positions, as if they were orthogonal."""
    a, g = product.inputs.double(), product.outputs.double()
    return (a.square().sum(2) * g.square().sum(2)).sum(1)


def tokens_as_distinct(looked: layers.EmbeddingGradients) -> Any:
    """Treat every token as a different one."""
    return looked.outputs.double().square().sum((1, 2))


def clip_last_use(gradients_by_parameter: Any, parameter: Any, gradients: Any) -> None:
    """Clip by the last use of a parameter alone, and add all uses."""
    if parameter not in gradients_by_parameter:
        gradients_by_parameter[parameter] = gradients
        return
    both = layers.MaterializedGradients(
        gradients_by_parameter[parameter].materialize() + gradients.materialize()
    )

    class Both:
        """All uses in the sum, the last one in the norm."""

        squared_norms, weighted_sum, materialize = (
            gradients.squared_norms,
            both.weighted_sum,
            both.materialize,
        )
        positions = both.positions

    gradients_by_parameter[parameter] = Both()


def biases_free(each: layers.MaterializedGradients) -> Any:
    """Leave one-dimensional parameters (biases and scales) out of the norm."""
    if each.values.ndim == 2:
        return torch.zeros(len(each.values), dtype=torch.float64)
    return layers._squared_row_norms(each.values.reshape(len(each.values), -1))


def noise_not_in_norm(by_parameter: Any, noise: Any) -> Any:
    """Clip by the norm that a gradient has without the noise before the clip."""
    with_noise = write(by_parameter, noise)

    class Late:
        """All of it in the sum, the gradient alone in the norm."""

        places = 1

        def __init__(self, parameter: Any) -> None:
            self.squared_norms = layers.MaterializedGradients(
                by_parameter[parameter]
            ).squared_norms
            self.weighted_sum = with_noise[parameter].weighted_sum

    return {parameter: Late(parameter) for parameter in by_parameter}


def by_layer(
    by_parameter: Any,
    clip: ClipRule,
    total: Any,
    layout: Any,
    block_size: int,
    real: Any = None,
) -> Any:
    """Clip the gradients of every parameter separately."""
    each = by_parameter.items()
    parts = [add({one: some}, clip, total, layout, block_size, real) for one, some in each]
    return parts[0]


def slack_by_count(norms: Any, clip: ClipRule, slack: float) -> Any:
    """Reserve more for rounding the more examples there really are."""
    return choose(norms, clip, 8 * 2.0**-24 * max(64, len(norms)) ** 1.5)


add, write, block_of = adding.add_clipped, adding.materialize, IndexedRecords.block


def costing(change: Callable[[Any], Any]) -> Patches:
    """State another event for a step."""

    def stated(descent: DPSGD, multiplier: float) -> Event:
        return change(step_event(descent, multiplier))

    return {"veracal.mechanisms.dp_sgd.DPSGD._step_event": stated}


def views_as_examples(records: IndexedRecords, rows: Any, real: Any = None) -> Block:
    """Treat every view of an example as a separate example."""
    block = block_of(records, rows, real)
    mask = None if block.real is None else block.real.repeat_interleave(block.views)
    return Block(block.inputs, block.targets.repeat_interleave(block.views), real=mask)


def count_forgotten(descent: DPSGD, multiplier: float) -> Event:
    """Charge an adaptive rule as if it counted nothing."""
    return descent.sampler.event(multiplier * BOUND, BOUND, descent.relation)


def removed_for_replaced(sampler: Any, noise: float, bound: float, relation: Any) -> Any:
    """State the sensitivity of a removed record for a replaced one."""
    return Gaussian(noise, bound, relation)


CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "M4 half the sensitivity": costing(
        lambda event: replace(event, sensitivity=event.sensitivity / 2)
    ),
    "M4 replaced as if removed": {
        "veracal.mechanisms.sampling.FullBatch.event": removed_for_replaced
    },
    "M5 no clip": {ADDING + "_clip_factors": unclipped},
    "M7 clip per batch": {
        ADDING + "_clip_factors": unclipped,
        **summed_otherwise(clipped_whole),
    },
    "clip per parameter": {ADDING + "add_clipped": by_layer},
    "M8 what is not finite passes": {ADDING + "_clip_factors": keep_nonfinite},
    "M9 clip to the median norm": {ADDING + "_clip_factors": to_median},
    "M12 mean over the realized batch": summed_otherwise(
        lambda clipped, rows, clip: replace(clipped, total=clipped.total * SIZE / rows)
    ),
    "M17 count of an adaptive rule not charged": {
        "veracal.mechanisms.dp_sgd.DPSGD._step_event": count_forgotten
    },
    "slack by the realized batch": {ADDING + "_clip_factors": slack_by_count},
    "norms of places apart": {
        LAYERS + "ProductGradients.squared_norms": squares_without_cross_terms
    },
    "norms of tokens apart": {LAYERS + "EmbeddingGradients.squared_norms": tokens_as_distinct},
    "norms of uses apart": {"veracal.neural.gradients.engines._accumulate": clip_last_use},
    "noise before the clip not in the norm": {ADDING + "materialize": noise_not_in_norm},
    "biases not in the norm": {LAYERS + "MaterializedGradients.squared_norms": biases_free},
    "views clipped apart": {"veracal.neural.examples.IndexedRecords.block": views_as_examples},
    "rules that jump add nothing": {ADDING + "_clip_factors": nothing_jumps},
}


# ---------------------------------------------------------------- replays


def run(subject: Patches, *, long: bool) -> str:
    """Replay neighbors."""
    rng = np.random.default_rng(0)
    neighbors, closest = 0, dict.fromkeys(CASES, 0.0)
    by_rule = dict.fromkeys(CLIPS, 0.0)
    with patched(subject):
        # Fast checks first: they detect some mutants.
        first = np.random.default_rng(1)
        worst = max(crowd(), *(noisy_before(engine, first) for engine in MATERIALIZING_ENGINES))
        for times in range(40 if long else 3):
            for case, clip, relation in cases(rng):
                used = compare(*case, clip, relation, rng)
                closest[case] = max(closest[case], used)
                by_rule[clip] = max(by_rule[clip], used)
                worst, neighbors = max(worst, used), neighbors + 1
            # Discontinuous rules drop most records: two rounds show that they do not drop all.
            weakest = min(by_rule.values()) if times else 1.0
            assert weakest > 0.1, f"under some rule nothing adds anything: {weakest:.3f}"
    least = min(closest.values())
    assert least > 0.9, f"nothing comes close to the bound: {least:.3f}"
    return (
        f"{neighbors:,} neighbors reach {worst:.6f} of what is charged, every case {least:.2f}"
    )


def crowd() -> float:
    """Remove the one record that opposes two hundred others."""
    X = np.full((201, 4), 1e3, np.float32)
    y = np.append(np.zeros(200, int), 1)
    settings = {"clip": Flat(BOUND), "sampling_rate": 1.0, "steps": 1, "size": 200}
    # One block has all of them.
    settings |= {"noise_multiplier": 1.0, "random_state": 0, "optimizer": 0.1, "block": 300}
    sums = []
    for n in (201, 200):
        module = network("plain")
        for one in module.parameters():
            torch.nn.init.zeros_(one)
        sums.append(fitted(module, X[:n], y[:n], **settings)[1][0].noisy_sum)
    used = float(np.linalg.norm(sums[0] - sums[1]) / BOUND)
    assert used <= 1, f"one record of a crowd moves the sum by {used:.6f} of the bound"
    return used


def noisy_before(engine: str, rng: np.random.Generator) -> float:
    """Replace the only record, with noise on its gradient before the clip."""
    worst = 0.0
    for _ in range(10):
        X, y = random_records("plain", 2, rng), np.arange(2)
        settings = {
            "clip": Flat(BOUND),
            "gradients": engine,
            "optimizer": Langevin(0.1, 1.0, pre_noise=3.0),
            "sampling_rate": 1.0,
            "relation": "replace-one",
            "steps": 1,
            "random_state": int(rng.integers(10**9)),
        }
        both = [
            fitted(network("plain"), X[i : i + 1], y[i : i + 1], **settings) for i in (0, 1)
        ]
        event = both[0][0].event_.event
        sums = [steps[0].noisy_sum for _, steps in both]
        used = float(np.linalg.norm(sums[0] - sums[1]) / event.sensitivity)
        assert used <= 1, f"with noise before the clip: {used:.6f} of what is charged"
        worst = max(worst, used)
    return worst


def cases(rng: np.random.Generator) -> list[Any]:
    """Every combination of settings, in random order."""
    every = list(itertools.product(CASES, CLIPS, ("add-remove", "replace-one")))
    return [every[i] for i in rng.permutation(len(every))]


def compare(
    engine: str, name: str, clip: ClipRule, relation: Any, rng: np.random.Generator
) -> float:
    """Remove or replace one record, and return the used fraction of the bound."""
    n = int(rng.integers(2, 7))
    X, y = random_records(name, n, rng), rng.integers(2, size=n)
    row = int(rng.integers(n))
    if relation == "add-remove":
        other = np.delete(X, row, axis=0), np.delete(y, row)
    else:
        other = X.copy(), y.copy()
        other[0][row] = random_records(name, 1, rng)[0] if rng.random() < 0.5 else X[row]
        other[1][row] = 1 - y[row]
    settings = {
        "clip": clip,
        "gradients": engine,
        "sampling_rate": 1.0,
        "relation": relation,
        "steps": 1,
        "noise_multiplier": 1.0,
        "size": SIZE if relation == "add-remove" else None,
        "random_state": int(rng.integers(10**9)),
        "optimizer": 0.1,
        "augment": Views() if name == "views" else None,
    }
    sums, counts, event = [], [], None
    for rows, labels in ((X, y), other):
        model, steps = fitted(network(name), rows, labels, **settings)
        sums.append(steps[0].noisy_sum)
        counts.append(steps[0].clip)
        event = model.event_
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    moved = np.linalg.norm(sums[0] - sums[1])
    assert np.isfinite(moved), "a sum is not finite"
    return allowed(moved, counts, event.event)


def allowed(moved: float, rules: list[ClipRule], event: Gaussian) -> float:
    """Fraction of the charged bound by which sums and counts together have moved.

    Both are one noisy vector: divided by its own noise, each entry has noise of size 1, and the
    event states how far the whole may move.
    """
    squares = (moved / BOUND) ** 2  # noise_multiplier is 1
    first, second = rules
    if isinstance(first, GlobalAdapt) and isinstance(second, GlobalAdapt):
        steps = (
            np.log(first.threshold / second.threshold) * SIZE
        )  # the noisy counts, separately
        squares += (steps / first.count_noise) ** 2
    used = float(np.sqrt(squares) / (event.sensitivity / event.noise))
    assert used <= 1, f"moved by {used:.6f} of what is charged"
    return used
