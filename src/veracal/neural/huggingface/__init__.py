"""Private fine-tuning with Hugging Face's trainer."""

from typing import TYPE_CHECKING

from veracal._checks import extra
from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.neural.huggingface.arguments import PrivacyArguments
    from veracal.neural.huggingface.data import Tokens, tokenized
    from veracal.neural.huggingface.models import (
        LastLayers,
        MeanPooled,
        before_last,
        load_image_classifier,
        load_sequence_classifier,
        load_tokenizer,
        minilm_classifier,
        minilm_tokenizer,
        train_only,
        with_lora,
    )
    from veracal.neural.huggingface.trainer import PrivateTrainer

# Say in a sentence what is missing before anything else fails.
extra("torch", "text")
extra("transformers", "text")
extra("accelerate", "text")

__all__ = [
    "LastLayers",
    "MeanPooled",
    "PrivacyArguments",
    "PrivateTrainer",
    "Tokens",
    "before_last",
    "load_image_classifier",
    "load_sequence_classifier",
    "load_tokenizer",
    "minilm_classifier",
    "minilm_tokenizer",
    "tokenized",
    "train_only",
    "with_lora",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "arguments": ("PrivacyArguments",),
        "data": (
            "Tokens",
            "tokenized",
        ),
        "models": (
            "LastLayers",
            "MeanPooled",
            "before_last",
            "load_image_classifier",
            "load_sequence_classifier",
            "load_tokenizer",
            "minilm_classifier",
            "minilm_tokenizer",
            "train_only",
            "with_lora",
        ),
        "trainer": ("PrivateTrainer",),
    },
)
