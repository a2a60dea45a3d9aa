"""Does private fine-tuning of MiniLM beat a probe of it, on SST-2 at epsilon 8?

    VERACAL_DATA=... python -m benchmarks.sst2 --records 60000 --runs 3

All train on the same records, drawn from the training file by a seed, and are judged on the
872 sentences of the development file. The probe is a logistic regression on frozen features:
means over tokens of the last layer, of length 1. The fine-tuning first trains such a head with
a part of the budget, then the last layer of the encoder with it, on what the frozen layers
make of each text, and is charged for both. ``--judged held`` looks at other rows of the
training file, on which settings can be chosen; such a search is charged to nobody. The
interval of a difference is of 2,000 bootstraps of the test sentences, over all runs.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from veracal.data import load
from veracal.privacy import Adam, Composed, Event, epsilon_for
from veracal.training import PrivateLogisticRegression
from veracal.training.averaging import Moving
from veracal.training.deep import PrivateNetwork
from veracal.training.deep.hugging_face import (
    LastLayers,
    MeanPooled,
    before_last,
    minilm_classifier,
    minilm_tokenizer,
    tokenized,
)

EPSILON, DELTA, BATCH, SCALE = 8.0, 1e-5, 1024, 50.0
HEAD_STEPS, HEAD_NOISE, HEAD_RATE = 50, 1.5, 5e-3
WHOLE, LONG = 32, 64  # tokens of a text for training and for testing
HELD = 7_000  # rows of the training file on which settings are chosen


class Head(nn.Module):
    """A head of zeros on frozen features."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(384, 2)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits: torch.Tensor = SCALE * self.head(features)
        return logits


class Mean(nn.Module):
    """The features of a probe, from the states before the last layer."""

    def __init__(self, rest: LastLayers) -> None:
        super().__init__()
        self.rest = rest
        self.rest.head, self.rest.scale = nn.Identity(), 1.0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Means over tokens, of length 1."""
        features: torch.Tensor = self.rest(states)
        return features


def outputs(module: nn.Module, states: np.ndarray) -> np.ndarray:
    """What a module makes of states, some at a time."""
    with torch.inference_mode():
        return np.concatenate(
            [
                module(torch.from_numpy(states[i : i + 256].astype(np.float32))).numpy()
                for i in range(0, len(states), 256)
            ]
        )


def parts(records: int, judged: str) -> tuple[Any, ...]:
    """Texts and labels to train on, and to judge by: the test set, or what was held back."""
    train, dev = load("sst2", part="train"), load("sst2", part="dev")
    order = np.random.default_rng(0).permutation(len(train))
    rows, held = order[HELD : HELD + records], order[:HELD]
    if judged == "held":
        return train.X[rows], train.y[rows], train.X[held], train.y[held]
    return train.X[rows], train.y[rows], dev.X[:], dev.y


def network(module: nn.Module, size: int, **settings: Any) -> PrivateNetwork:
    """A private network with what both stages share."""
    usual = {
        "epsilon": None,
        "delta": DELTA,
        "sampling_rate": BATCH / size,
        "clip": 1.0,
        "gradients": "ghost",
        "classes": (0, 1),
        "size": size,
    }
    return PrivateNetwork(module, **{**usual, **settings})


def noise_for(first: Event, second: Any) -> float:
    """About the least noise with which both events stay within the budget."""
    low, high = 0.3, 20.0
    if epsilon_for(Composed((first, second(high).event())), DELTA) > EPSILON:
        raise ValueError("Expected records for which the head leaves some of the budget.")
    while high - low > 0.005:
        noise = (low + high) / 2
        both = Composed((first, second(noise).event()))
        low, high = (low, noise) if epsilon_for(both, DELTA) <= EPSILON else (noise, high)
    return high


def fine_tuned(features: Any, states: Any, y: Any, chosen: argparse.Namespace) -> nn.Module:
    """A head, then the last layer with it."""
    size = len(y)
    head = network(
        Head(),
        size,
        noise_multiplier=HEAD_NOISE,
        steps=HEAD_STEPS,
        update=Adam(HEAD_RATE),
        average=0.3,
        block=256,
    ).fit(features, y)

    whole = MeanPooled(minilm_classifier((0, 1)), scale=SCALE)
    whole.head.load_state_dict(head.module_.head.state_dict())
    last = LastLayers(whole)

    def rest(noise: float) -> PrivateNetwork:
        return network(
            last,
            size,
            noise_multiplier=noise,
            steps=round(chosen.epochs * size / BATCH),
            update=Adam(chosen.rate),
            clip=0.1,
            average=Moving(0.9),
            block=64,
        )

    model = rest(noise_for(head.event_, rest)).fit(states[:, : chosen.length], y)
    spent = epsilon_for(Composed((head.event_, model.event_)), DELTA)
    assert head.private_ and model.private_ and spent <= EPSILON
    return model.module_


def shares(right: dict[str, np.ndarray]) -> dict[str, Any]:
    """Accuracies of each way, and what the fine-tuning gains over each probe."""
    rng = np.random.default_rng(0)
    told: dict[str, Any] = {
        name: {"mean": float(one.mean()), "runs": one.mean(1).tolist()}
        for name, one in right.items()
    }
    ours = right["fine-tuned, private"].mean(0)
    for name in ("probe, private", "probe, not private"):
        gain = ours - right[name].mean(0)
        again = gain[rng.integers(len(gain), size=(2_000, len(gain)))].mean(1)
        low, high = np.quantile(again, [0.025, 0.975])
        told[f"gain over {name}"] = [float(gain.mean()), float(low), float(high)]
    return told


def main(chosen: argparse.Namespace) -> None:
    """Train all, and print what came of it."""
    texts, y, others, truth = parts(chosen.records, chosen.judged)
    y, truth = np.asarray(y), np.asarray(truth)
    tokenizer, encoder = minilm_tokenizer(), MeanPooled(minilm_classifier((0, 1)))
    states = before_last(encoder, tokenized(texts, tokenizer, max_length=WHOLE))
    test = before_last(encoder, tokenized(others, tokenizer, max_length=LONG))
    mean = Mean(LastLayers(encoder)).eval()
    X, Z = outputs(mean, states), outputs(mean, test)
    right: dict[str, list[np.ndarray]] = {}

    def note(name: str, found: np.ndarray) -> None:
        right.setdefault(name, []).append(found == truth)
        print(f"{name:22} {np.mean(found == truth):.4f}", flush=True)

    note("probe, not private", LogisticRegression(C=10.0, max_iter=500).fit(X, y).predict(Z))
    for _ in range(chosen.runs):
        probe = PrivateLogisticRegression(
            EPSILON,
            DELTA,
            epochs=10,
            sampling_rate=0.05,
            update=10.0,
            average=0.5,
            classes=(0, 1),
            size=len(y),
        ).fit(X, y)
        note("probe, private", probe.predict(Z))
        start = time.perf_counter()
        tuned = fine_tuned(X, states, y, chosen)
        note("fine-tuned, private", outputs(tuned, test).argmax(1))
        print(f"  in {time.perf_counter() - start:.0f} s", flush=True)
    told = shares({name: np.array(some) for name, some in right.items()})
    print(json.dumps({**vars(chosen), "test": len(truth), **told}, indent=1))


def options() -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=4e-4)
    parser.add_argument("--length", type=int, default=16, help="tokens that are fine-tuned on")
    parser.add_argument(
        "--judged", choices=("dev", "held"), default="dev", help="held: to choose settings"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(options())
