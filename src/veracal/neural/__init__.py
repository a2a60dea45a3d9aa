"""Private training of PyTorch modules and Hugging Face models; the one layer with torch."""

from typing import TYPE_CHECKING

from veracal._checks import extra
from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.neural.architectures import KnownNetwork
    from veracal.neural.distributed import Ranks
    from veracal.neural.encoders import ImageEncoder, TextEncoder
    from veracal.neural.features import Extractor, extract
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
    from veracal.neural.module_checks import without_batch_norm
    from veracal.neural.network import PrivateNetwork
    from veracal.neural.predictions import NetworkScores
    from veracal.neural.pretrained import EfficientNetLite0, MiniLM, MiniLMTokens
    from veracal.neural.synthetic_inputs import Augment, Pictures, as_tensor
    from veracal.neural.train_module import TrainedModule, train

# Say in a sentence what is missing before anything else fails.
extra("torch", "torch")

__all__ = [
    "Augment",
    "EfficientNetLite0",
    "Extractor",
    "ImageEncoder",
    "KnownNetwork",
    "LastLayers",
    "MeanPooled",
    "MiniLM",
    "MiniLMTokens",
    "NetworkScores",
    "Pictures",
    "PrivacyArguments",
    "PrivateNetwork",
    "PrivateTrainer",
    "Ranks",
    "TextEncoder",
    "Tokens",
    "TrainedModule",
    "as_tensor",
    "before_last",
    "extract",
    "load_image_classifier",
    "load_sequence_classifier",
    "load_tokenizer",
    "minilm_classifier",
    "minilm_tokenizer",
    "tokenized",
    "train",
    "train_only",
    "with_lora",
    "without_batch_norm",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "architectures": ("KnownNetwork",),
        "distributed": ("Ranks",),
        "encoders": (
            "ImageEncoder",
            "TextEncoder",
        ),
        "features": (
            "Extractor",
            "extract",
        ),
        "huggingface.arguments": ("PrivacyArguments",),
        "huggingface.data": (
            "Tokens",
            "tokenized",
        ),
        "huggingface.models": (
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
        "huggingface.trainer": ("PrivateTrainer",),
        "module_checks": ("without_batch_norm",),
        "network": ("PrivateNetwork",),
        "predictions": ("NetworkScores",),
        "pretrained": (
            "EfficientNetLite0",
            "MiniLM",
            "MiniLMTokens",
        ),
        "synthetic_inputs": (
            "Augment",
            "Pictures",
            "as_tensor",
        ),
        "train_module": (
            "TrainedModule",
            "train",
        ),
    },
)
