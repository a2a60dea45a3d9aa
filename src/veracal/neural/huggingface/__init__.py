"""Private fine-tuning with Hugging Face's trainer."""

from typing import TYPE_CHECKING

from veracal._checks import extra
from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.neural.huggingface.arguments import PrivacyArguments
    from veracal.neural.huggingface.data import Tokens, tokenize
    from veracal.neural.huggingface.models import (
        LastLayers,
        MeanPooled,
        add_lora,
        encode_frozen_layers,
        load_image_classifier,
        load_sequence_classifier,
        load_tokenizer,
        minilm_classifier,
        minilm_tokenizer,
        train_only,
    )
    from veracal.neural.huggingface.trainer import PrivateTrainer

# Report a missing package clearly before anything else fails.
extra("torch", "text")
extra("transformers", "text")
extra("accelerate", "text")

__all__ = [
    "LastLayers",
    "MeanPooled",
    "PrivacyArguments",
    "PrivateTrainer",
    "Tokens",
    "add_lora",
    "encode_frozen_layers",
    "load_image_classifier",
    "load_sequence_classifier",
    "load_tokenizer",
    "minilm_classifier",
    "minilm_tokenizer",
    "tokenize",
    "train_only",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "arguments": ("PrivacyArguments",),
        "data": (
            "Tokens",
            "tokenize",
        ),
        "models": (
            "LastLayers",
            "MeanPooled",
            "encode_frozen_layers",
            "load_image_classifier",
            "load_sequence_classifier",
            "load_tokenizer",
            "minilm_classifier",
            "minilm_tokenizer",
            "train_only",
            "add_lora",
        ),
        "trainer": ("PrivateTrainer",),
    },
)
