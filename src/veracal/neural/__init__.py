"""Private training of PyTorch modules and Hugging Face models; the only layer with torch."""

from typing import TYPE_CHECKING

from veracal._checks import extra
from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.neural.architectures import KnownNetwork
    from veracal.neural.distributed import Ranks
    from veracal.neural.encoders import ImageEncoder, TextEncoder
    from veracal.neural.examples import Augment, ImageScaler, NetworkScores, as_tensor
    from veracal.neural.features import Extractor, extract
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
    from veracal.neural.module_checks import replace_batch_norm
    from veracal.neural.network import PrivateNetwork
    from veracal.neural.pretrained import EfficientNetLite0, MiniLM, MiniLMTokens
    from veracal.neural.scattering import Scattering
    from veracal.neural.train_module import TrainedModule, train

# Report a missing package clearly before anything else fails.
extra("torch", "torch")

__all__ = [
    "Augment",
    "EfficientNetLite0",
    "Extractor",
    "ImageEncoder",
    "ImageScaler",
    "KnownNetwork",
    "LastLayers",
    "MeanPooled",
    "MiniLM",
    "MiniLMTokens",
    "NetworkScores",
    "PrivacyArguments",
    "PrivateNetwork",
    "PrivateTrainer",
    "Ranks",
    "Scattering",
    "TextEncoder",
    "Tokens",
    "TrainedModule",
    "add_lora",
    "as_tensor",
    "encode_frozen_layers",
    "extract",
    "load_image_classifier",
    "load_sequence_classifier",
    "load_tokenizer",
    "minilm_classifier",
    "minilm_tokenizer",
    "replace_batch_norm",
    "tokenize",
    "train",
    "train_only",
]

__getattr__, __dir__ = attach(__name__)
