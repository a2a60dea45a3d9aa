"""Time and memory of a private step of MiniLM, compared with PyTorch and Opacus.

    python -m benchmarks.network_text --rounds 3

Each contender fine-tunes the same classifier with Adam on the same synthetic tokens, in a
process of its own, in turn; the best round counts for time, the highest for memory. Batches
have the same size for all (every record is in each of them) and pass through memory 32 at a
time. Veracal is timed inside ``PrivateTrainer.train``, from the end of one step to the end of
the next, with secret noise. Memory is the peak resident size, less that after all imports. The
goals are Opacus' best time, and 1.25 times the memory of plain PyTorch.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch
from opacus.grad_sample import wrap_model
from opacus.optimizers import get_optimizer_class
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from veracal.neural import (
    PrivacyArguments,
    PrivateTrainer,
    minilm_classifier,
    train_only,
)

LENGTH, BLOCK, RATE, CLIP, NOISE = 64, 32, 5e-4, 1.0, 1.0
LAST = ("bert.encoder.layer.5.*", "bert.pooler.*", "classifier.*")
WARM = 2
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
MODES = ("hooks", "functorch", "ew", "ghost")
CONTENDERS = ("plain", *(f"Opacus, {mode}" for mode in MODES), "ours")


def model_of(trained: str) -> nn.Module:
    """MiniLM with a head; all of it is trained, or its last layer and the head."""
    torch.manual_seed(0)
    model = minilm_classifier(("negative", "positive"))
    if trained == "last":
        train_only(model, *LAST)
    return model.train()


def tokens(rows: int) -> dict[str, np.ndarray]:
    """Synthetic sentences, the same in every run."""
    rng = np.random.default_rng(0)
    mask = (np.arange(LENGTH) < rng.integers(8, LENGTH + 1, rows)[:, None]).astype(np.int64)
    ids = np.where(mask, rng.integers(1_000, 30_000, mask.shape), 0)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids),
        "labels": rng.integers(0, 2, rows),
    }


class SingleTensorClassifier(nn.Module):
    """A classifier whose inputs are one tensor, as some modes of Opacus require."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of rows of shape (n, inputs, tokens)."""
        parts = (one.contiguous() for one in rows.unbind(1))
        inputs = dict(zip(INPUTS, parts, strict=True))
        logits: torch.Tensor = self.model(**inputs).logits
        return logits


def blocks_of(batch: int) -> list[dict[str, torch.Tensor]]:
    """A batch in blocks, with position ids: Opacus needs a row of them for each example."""
    every = {name: torch.from_numpy(one) for name, one in tokens(batch).items()}
    every["position_ids"] = torch.arange(LENGTH).repeat(batch, 1)
    starts = range(0, batch, BLOCK)
    return [{name: one[i : i + BLOCK] for name, one in every.items()} for i in starts]


def time_steps(step: Callable[[], None], steps: int) -> list[float]:
    """Times at which steps ended."""
    ends = []
    for _ in range(WARM + steps):
        step()
        ends.append(time.perf_counter())
    return ends


def plain(trained: str, batch: int, steps: int) -> list[float]:
    """Cross-entropy, backward, and Adam."""
    module, blocks = model_of(trained), blocks_of(batch)
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=RATE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for inputs in blocks:
            (module(**inputs).loss / len(blocks)).backward()
        optimizer.step()

    return time_steps(step, steps)


def opacus(mode: str, trained: str, batch: int, steps: int) -> list[float]:
    """The same with per-example clipping and noise, in one of Opacus' modes."""
    module, blocks = SingleTensorClassifier(model_of(trained)), blocks_of(batch)
    rows = [torch.stack([inputs[name] for name in INPUTS], 1) for inputs in blocks]
    labels = [inputs["labels"] for inputs in blocks]
    settings = {"max_grad_norm": CLIP} if mode == "ghost" else {}
    wrapped = wrap_model(module, mode, **settings)
    optimizer = get_optimizer_class("flat", False, mode)(
        torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=batch,
    )
    loss: Any = nn.CrossEntropyLoss()
    if mode == "ghost":
        loss = DPLossFastGradientClipping(wrapped, optimizer, loss)

    def step() -> None:
        for i, (some, targets) in enumerate(zip(rows, labels, strict=True)):
            optimizer.zero_grad()
            optimizer.signal_skip_step(do_skip=i + 1 < len(blocks))
            loss(wrapped(some), targets).backward()
            optimizer.step()
        optimizer.zero_grad()

    return time_steps(step, steps)


class StepEnds(TrainerCallback):
    """Records the end times of steps."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """A step has ended."""
        self.times.append(time.perf_counter())


def ours(trained: str, batch: int, steps: int) -> list[float]:
    """A private trainer whose batches contain every record."""
    ends = StepEnds()
    with tempfile.TemporaryDirectory() as folder:
        PrivateTrainer(
            model_of(trained),
            TrainingArguments(
                folder,
                max_steps=WARM + steps,
                per_device_train_batch_size=BLOCK,
                learning_rate=RATE,
                max_grad_norm=CLIP,
                logging_strategy="no",
                save_strategy="no",
                dataloader_pin_memory=False,
                disable_tqdm=True,
            ),
            train_dataset=tokens(batch),
            callbacks=[ends],
            privacy=PrivacyArguments(
                noise_multiplier=NOISE, size=batch, sampling_rate=1.0, max_length=LENGTH
            ),
        ).train()
    return ends.times


def measure(contender: str, trained: str, batch: int, steps: int) -> dict[str, float]:
    """Time of a step in seconds and memory in MB of one contender, in this process."""
    before = psutil.Process().memory_info().rss
    if contender == "plain":
        ends = plain(trained, batch, steps)
    elif contender == "ours":
        ends = ours(trained, batch, steps)
    else:
        ends = opacus(contender.removeprefix("Opacus, "), trained, batch, steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = np.diff(ends[WARM - 1 :])
    return {
        "best": float(seconds.min()),
        "mean": float(seconds.mean()),
        "megabytes": (peak - before) / 1e6,
    }


def measure_in_process(*arguments: str) -> dict[str, float] | str:
    """Figures of a contender in another process, or an error message."""
    process = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.network_text",
            "--measure",
            *arguments,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if process.returncode:
        return process.stderr.strip().rpartition("\n")[2][:90]
    figures: dict[str, float] = json.loads(process.stdout.strip().rpartition("\n")[2])
    return figures


def compare(
    trained: str, batch: int, steps: int, rounds: int, contenders: list[str]
) -> list[str]:
    """Table of all contenders, measured in turn."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    errors: dict[str, str] = {}
    for _ in range(rounds):
        for name in contenders:
            one = errors.get(name) or measure_in_process(name, trained, str(batch), str(steps))
            if isinstance(one, str):
                errors[name] = one
            else:
                figures[name].append(one)
    seconds = {name: min(one["best"] for one in some) for name, some in figures.items() if some}
    memory = {
        name: max(one["megabytes"] for one in some) for name, some in figures.items() if some
    }
    lines = [f"MiniLM, {trained} weights trained, batch {batch} in blocks of {BLOCK}:"]
    for name in contenders:
        if name in errors:
            lines.append(f"  {name:18} does not work: {errors[name]}")
            continue
        ratios = seconds[name] / seconds["plain"], memory[name] / memory["plain"]
        lines.append(
            f"  {name:18} {seconds[name]:6.2f} s a step, {ratios[0]:4.2f} x plain; "
            f"{memory[name]:6.0f} MB, {ratios[1]:4.2f} x plain"
        )
    return lines


def main() -> None:
    """Compare all contenders, or measure one in this process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", nargs=4, help="contender, all or last, batch, steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--trained", nargs="+", default=["all", "last"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    options = parser.parse_args()
    if options.measure:
        contender, trained, batch, steps = options.measure
        print(json.dumps(measure(contender, trained, int(batch), int(steps))))
        return
    for trained in options.trained:
        for batch in options.batches:
            lines = compare(trained, batch, options.steps, options.rounds, options.contenders)
            print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
