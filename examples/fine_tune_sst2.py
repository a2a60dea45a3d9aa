"""Fine-tune a classifier of sentences privately, through Hugging Face's trainer.

Without options it trains a tiny BERT on made-up sentences, in seconds. With --sst2 it trains
the last layer of MiniLM, and a head on means over tokens, on film reviews (SST-2 of GLUE, in
the folder that VERACAL_DATA names):

    VERACAL_DATA=... python fine_tune_sst2.py --sst2 --records 67349 --epochs 3

That took 37 minutes of two cores, and 81 % of the test sentences were right.
"""

import argparse
import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from veracal.accounting import epsilon_for
from veracal.data import load
from veracal.errors import DataError

# The first of the two lines that differ from a script without privacy.
from veracal.neural.huggingface import (
    MeanPooled,
    PrivacyArguments,
    PrivateTrainer,
    add_lora,
    minilm_classifier,
    minilm_tokenizer,
    tokenize,
    train_only,
)

CLASSES = ("negative", "positive")
LENGTH, LONG = 24, 64  # tokens of a sentence for training, declared, and for testing


def made_up(records, rng):
    """Sentences of ten tokens, in which words of praise or of blame are more frequent."""
    labels = rng.integers(0, 2, records)
    words = rng.integers(4, 24, (records, 10))
    telling = rng.random(words.shape) < 0.6
    words[telling] = (24 + 20 * labels[:, None] + words % 20)[telling]
    words[:, 0] = 2  # the token by which BERT begins
    return {"input_ids": words, "attention_mask": np.ones_like(words), "labels": labels}


def tiny():
    """A BERT of one layer, with larger first weights than a deep one would have."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            max_position_embeddings=LENGTH,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            initializer_range=0.2,
        )
    )


def sst2(records, rng):
    """Film reviews and their tokens, for training and for a look at the result."""
    tokenizer = minilm_tokenizer()
    train, dev = load("sst2", part="train"), load("sst2", part="dev")
    rows = np.sort(rng.permutation(len(train))[:records])
    return [
        tokenize(X, tokenizer, max_length=length, labels=y, cache=True)
        for X, y, length in ((train.X[rows], train.y[rows], LENGTH), (dev.X[:], dev.y, LONG))
    ]


def accuracy(found):
    """Share of sentences whose class is right."""
    return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}


def main(options, folder):
    """Train, say what is promised, look at the result."""
    rng = np.random.default_rng(0)
    if options.sst2:
        model = minilm_classifier(CLASSES)
        if not options.lora:
            # The head learns faster than the layer by so much as its outputs are scaled.
            model = MeanPooled(model, scale=100.0)
            train_only(model, "encoder.encoder.layer.5.*", "head.*")
        train, test = sst2(options.records, rng)
    else:
        model = tiny()
        train, test = made_up(options.records, rng), made_up(500, rng)
    if options.lora:
        model = add_lora(model)

    trainer = PrivateTrainer(
        model,
        TrainingArguments(
            folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=32 if options.sst2 else 500,  # in memory at a time
            gradient_accumulation_steps=32 if options.sst2 else 2,  # times this: expected batch
            learning_rate=1e-3 if options.sst2 else 1e-2,
            max_grad_norm=0.1,  # bounds the gradient of each example
            per_device_eval_batch_size=64,
            logging_steps=10,
            save_strategy="no",
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=accuracy,
        # The second.
        privacy=PrivacyArguments(
            epsilon=options.epsilon,
            delta=1e-5,
            size=options.records,
            max_length=LENGTH if options.sst2 else 10,
        ),
    )
    print(f"Before a record is read: {trainer.event()}")
    trainer.train()

    print(trainer.statement_.text().split("\n\n")[0])
    right = trainer.evaluate()["eval_accuracy"]
    print(f"Right on {right:.0%} of the test records (internal: they are private, too).")
    assert trainer.private_ and epsilon_for(trainer.event_, 1e-5) <= options.epsilon
    assert options.sst2 or right > (0.5 if options.lora else 0.8)


def options():
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sst2", action="store_true", help="MiniLM on SST-2")
    parser.add_argument("--records", type=int, default=4_000)
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--lora", action="store_true", help="train adapters of low rank alone")
    return parser.parse_args()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        try:
            main(options(), made)
        except DataError as missing:
            raise SystemExit(f"This needs SST-2: {missing}") from None
