"""Hugging Face's trainer charges its cost, and one text moves its sums by no more.

Whole trainings of a tiny BERT are replayed with the same randomness on neighboring sets of
texts, under both relations: some texts fill all positions and others one, so that a batch gains
or loses padding with the record. The charge must precede the reading of records, be the same
for neighbors, and cover the steps that were made, with noise that no seed of
``TrainingArguments`` repeats. Evaluation results are not saved, and nothing is trained twice
for one charge. The trial that compares engines before training is switched off.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy import stats
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    TrainingArguments,
)

from assurance.gate_network import costing, tokens_as_distinct, unclipped
from assurance.networks import ADDING, DEEP, LAYERS, Patches, patched, summed_otherwise
from veracal.accounting import Budget, Gaussian, Repeated
from veracal.ledger import open_ledger
from veracal.mechanisms import DPSGD
from veracal.neural import PrivacyArguments, PrivateTrainer
from veracal.neural.huggingface import arguments as translating
from veracal.neural.run import NoisySumMonitor

NAME = "network_trainer"
SECONDS = 30
TRAINER = DEEP + "huggingface.trainer."
BOUND, SIZE, LENGTH, WORDS = 0.05, 5, 6, 9
planned, note, whole_event = PrivateTrainer._plan, NoisySumMonitor.record, DPSGD.event


# ---------------------------------------------------------------- mutants


def charged_late(trainer: PrivateTrainer, *given: Any) -> Any:
    """Charge after the training."""
    ledger, trainer.ledger = trainer.ledger, None
    done = train(trainer, *given)
    if ledger is not None:
        ledger.charge(trainer.event_, trainer.purpose)
    return done


def size_counted(args: Any, privacy: Any, size: int, *more: Any) -> DPSGD:
    """Divide by the real number of records."""
    return descent_for(args, privacy, COUNTED[-1], *more)


def counting(trainer: PrivateTrainer) -> Any:
    """Count them."""
    COUNTED.append(len(trainer.train_dataset))
    return planned(trainer)


def half_the_steps(descent: DPSGD) -> Any:
    """Charge every other step."""
    event = whole_event(descent)
    assert isinstance(event, Repeated)
    return replace(event, times=max(1, int(event.times) // 2))


def all_saved(trainer: PrivateTrainer, folder: Path) -> None:
    """Save the same state as Hugging Face."""
    trainer.state.save_to_json(str(folder / "trainer_state.json"))


COUNTED: list[int] = []
train, descent_for = PrivateTrainer.train, translating.build_dp_sgd
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "charged after the records were read": {TRAINER + "PrivateTrainer.train": charged_late},
    "batches by the records that there are": {
        TRAINER + "build_dp_sgd": size_counted,
        TRAINER + "PrivateTrainer._plan": counting,
    },
    "half of the steps charged": {"veracal.mechanisms.dp_sgd.DPSGD.event": half_the_steps},
    "M4 half the sensitivity": costing(
        lambda event: replace(event, sensitivity=event.sensitivity / 2)
    ),
    "M5 no clip": {ADDING + "_clip_factors": unclipped},
    "M12 mean over the realized batch": summed_otherwise(
        lambda clipped, rows, clip: replace(clipped, total=clipped.total * SIZE / max(rows, 1))
    ),
    "norms of tokens apart": {LAYERS + "EmbeddingGradients.squared_norms": tokens_as_distinct},
    "M1 noise by the seed of the arguments": {
        TRAINER + "_random.generator": lambda state: np.random.default_rng(42),
        TRAINER + "_random.is_secret": lambda rng: True,
    },
    "evaluations are saved": {TRAINER + "PrivateTrainer._save_state": all_saved},
    "trained twice for one charge": {TRAINER + "PrivateTrainer._check_fresh": mock.Mock()},
}


# ---------------------------------------------------------------- trainings


def bert() -> Any:
    """A tiny BERT, with the same weights each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertForSequenceClassification(
            BertConfig(
                vocab_size=WORDS,
                max_position_embeddings=LENGTH,
                hidden_size=8,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                initializer_range=0.5,
            )
        )


def trainer(folder: Path, rows: Any, *, ledger: Any = None, **given: Any) -> PrivateTrainer:
    """A trainer of the tiny model; settings go to ``TrainingArguments`` if they exist there."""
    known = TrainingArguments.__dataclass_fields__
    private_trainer = PrivateTrainer(
        bert(),
        TrainingArguments(
            str(folder),
            **{
                "per_device_train_batch_size": SIZE,
                "max_grad_norm": BOUND,
                "max_steps": 1,
                "save_strategy": "no",
                "report_to": [],
                "disable_tqdm": True,
                "log_level": "error",
                "dataloader_pin_memory": False,
                **{name: value for name, value in given.items() if name in known},
            },
        ),
        train_dataset=rows,
        eval_dataset=texts(4, np.random.default_rng(3), [LENGTH]),
        privacy=PrivacyArguments(
            **{
                "noise_multiplier": 1.0,
                "delta": 1e-9,
                "size": SIZE,
                "max_length": LENGTH,
                "gradients": "ghost",
                **{name: value for name, value in given.items() if name not in known},
            }
        ),
        ledger=ledger,
    )
    private_trainer.remove_callback(PrinterCallback)
    return private_trainer


def trained(folder: Path, rows: Any, **given: Any) -> tuple[PrivateTrainer, list[Any]]:
    """A trainer after its training, and the noisy sums of all steps."""
    sums: list[Any] = []

    def noted(watched: NoisySumMonitor, step: Any) -> None:
        sums.append(step.noisy_sum.copy())
        note(watched, step)

    private_trainer = trainer(folder, rows, **given)
    with mock.patch.object(NoisySumMonitor, "record", noted):
        private_trainer.train()
    return private_trainer, sums


def texts(n: int, rng: np.random.Generator, some: Any = (1, 3, LENGTH)) -> list[dict[str, Any]]:
    """Rows with texts of one token, of full length, or between."""
    lengths = rng.choice(some, n)
    return [
        {"input_ids": rng.integers(1, WORDS, length).tolist(), "labels": int(rng.integers(2))}
        for length in lengths
    ]


class PrepaidSource(list[Any]):
    """Rows that record the number of ledger entries when they are read."""

    ledger: Any

    def __getitem__(self, row: Any) -> Any:
        self.entries = self.ledger.length() if row == 0 else self.entries
        return super().__getitem__(row)


# ---------------------------------------------------------------- promises


def run(subject: Patches, *, long: bool) -> str:
    """Run the fast checks first, then replay neighbors."""
    rng = np.random.default_rng(0)
    without_trial = {TRAINER + "check_behavior": lambda *given: None}
    with (
        tempfile.TemporaryDirectory() as temporary,
        patched({**subject, **without_trial}),
    ):
        folder = Path(temporary)
        charges(folder, rng)
        spread = noise(folder, rng)
        used = [compare(folder, rng) for _ in range(200 if long else 24)]
    assert max(used) > 0.9, f"nothing comes close to the bound: {max(used):.3f}"
    return (
        f"{len(used)} neighbors reach {max(used):.6f} of what is charged, noise {spread:.3f} "
        "of what it says"
    )


def charges(folder: Path, rng: np.random.Generator) -> None:
    """Charge once and first, train once, save no evaluation."""
    rows = PrepaidSource(texts(40, rng))
    rows.ledger = open_ledger(folder / "ledger", Budget(1e3, 1e-3), kind="open")
    wanted = {"size": 40, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    wanted |= {"num_train_epochs": 2, "max_steps": -1}
    private_trainer, sums = trained(folder, rows, ledger=rows.ledger, **wanted)
    assert private_trainer.private_, private_trainer.not_private_because_
    assert rows.entries == 1, "records were read before they were paid for"
    event: Any = private_trainer.event_
    assert len(sums) == event.times == 20, f"{len(sums)} steps, {event.times} charged"
    private_trainer.evaluate()
    private_trainer.save_state()
    saved = json.loads((folder / "trainer_state.json").read_text())
    names = [name for entry in saved["log_history"] for name in entry]
    assert not any(name.startswith("eval_") for name in names), "an evaluation was saved"
    try:
        private_trainer.train()
    except ValueError:
        pass
    else:
        raise AssertionError("one charge paid for two trainings")
    # Fewer records than one declared: what is charged is as declared.
    few = trainer(folder, texts(30, rng), **wanted).event()
    assert few == trainer(folder, texts(40, rng), **wanted).event(), "the cost tells of records"
    assert few.event.rate == 0.1  # type: ignore[attr-defined]


def noise(folder: Path, rng: np.random.Generator) -> float:
    """Noise has the charged size, and is never repeated."""
    rows = texts(SIZE, rng)
    (_, first), (private_trainer, second) = [trained(folder, rows) for _ in range(2)]
    event: Any = private_trainer.event_
    gap = (first[0] - second[0]) / np.sqrt(2) / event.event.noise
    assert gap.any(), "the same noise again"
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(gap)) / len(gap)
    spread = float(np.mean(np.square(gap)))
    assert low < spread < high, f"the noise has {spread:.3f} times its variance"
    return float(np.sqrt(spread))


def compare(folder: Path, rng: np.random.Generator) -> float:
    """Remove or replace one text, and return the used fraction of the bound."""
    relation = str(rng.choice(["add-remove", "replace-one"]))
    rows = texts(int(rng.integers(2, SIZE + 1)), rng)
    row = int(rng.integers(len(rows)))
    other = rows[:row] + rows[row + 1 :]
    if relation == "replace-one":
        rows += texts(SIZE - len(rows), rng)
        other = [*rows[:row], *texts(1, rng), *rows[row + 1 :]]
        other[row]["labels"] = 1 - rows[row]["labels"]
    seed = int(rng.integers(10**9))
    both = [
        trained(folder, some, relation=relation, random_state=seed, sampling_rate=1.0)
        for some in (rows, other)
    ]
    events = [private_trainer.event_ for private_trainer, _ in both]
    assert events[0] == events[1], "the cost tells of records"
    event = events[0]
    assert isinstance(event, Repeated) and isinstance(event.event, Gaussian)
    moved = float(np.linalg.norm(both[0][1][0] - both[1][1][0]))
    used = moved / BOUND / (event.event.sensitivity / event.event.noise)  # multiplier 1
    assert used <= 1, f"moved by {used:.6f} of what is charged"
    return used
