"""Tiny models of several families, and synthetic texts for them."""

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    TrainingArguments,
)

from veracal.neural import PrivacyArguments, PrivateTrainer

LENGTH = 7
WIDE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 37,
}
SMALL = {"vocab_size": 40, "max_position_embeddings": 12, "num_labels": 3}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NARROW = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 37}


def bert(seed=0, **settings):
    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(**{**SMALL, **WIDE, **settings}))


def distilbert(seed=0):
    torch.manual_seed(seed)
    return DistilBertForSequenceClassification(DistilBertConfig(**SMALL, **NARROW))


def roberta(seed=0):
    torch.manual_seed(seed)
    return RobertaForSequenceClassification(RobertaConfig(**SMALL, **WIDE))


def gpt2(seed=0):
    torch.manual_seed(seed)
    sizes = {"n_positions": 12, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2ForSequenceClassification(
        GPT2Config(vocab_size=40, num_labels=3, **sizes, **MARKS)
    )


def llama(seed=0):
    torch.manual_seed(seed)
    shared = {"num_key_value_heads": 1}  # two heads have the same keys
    return LlamaForSequenceClassification(LlamaConfig(**SMALL, **WIDE, **shared, **MARKS))


DECODERS = {"gpt2": gpt2, "llama": llama}
FAMILIES = {"bert": bert, "distilbert": distilbert, "roberta": roberta, **DECODERS}


def texts(n=60, pad=0, classes=3, seed=0):
    """Texts of different lengths; the class determines the tokens."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    rows = []
    for label in labels:
        words = rng.integers(4 + 12 * label, 16 + 12 * label, rng.integers(1, LENGTH + 1))
        rows.append({"input_ids": words.tolist(), "labels": int(label)})
    return rows


def arrays(rows, pad=0):
    """The same texts as arrays."""
    ids = np.full((len(rows), LENGTH), pad)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row["input_ids"])] = row["input_ids"]
        mask[i, : len(row["input_ids"])] = 1
    labels = np.array([row["labels"] for row in rows], int)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def arguments(folder, **settings):
    """Arguments of a short training without output."""
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**usual, **settings})


def trainer(
    folder, model=None, rows=None, *, privacy=None, ledger=None, others=None, **settings
):
    """A trainer of a tiny model."""
    promised = {"noise_multiplier": 1.0, "delta": 1e-3, "size": 60, "max_length": LENGTH}
    return PrivateTrainer(
        bert() if model is None else model,
        arguments(folder, **settings),
        train_dataset=texts() if rows is None else rows,
        privacy=PrivacyArguments(**{**promised, **(privacy or {})}),
        ledger=ledger,
        **(others or {}),
    )
