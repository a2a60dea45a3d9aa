"""Classifiers of texts from Hugging Face, fine-tuned with differential privacy.

A script that trains with ``transformers.Trainer`` changes by two lines::

    from veracal.training.deep.hugging_face import PrivacyArguments, PrivateTrainer

    trainer = PrivateTrainer(..., privacy=PrivacyArguments(epsilon=8, delta=1e-6, size=67_349))
"""

from veracal._checks import extra

for _needed in ("torch", "transformers", "accelerate"):
    extra(_needed, "text")  # says in a sentence what is missing, before anything else fails

from veracal.training.deep.hugging_face.arguments import PrivacyArguments  # noqa: E402
from veracal.training.deep.hugging_face.loading import (  # noqa: E402
    load_image_classifier,
    load_sequence_classifier,
    load_tokenizer,
    minilm_classifier,
    minilm_tokenizer,
)
from veracal.training.deep.hugging_face.parts import train_only, with_lora  # noqa: E402
from veracal.training.deep.hugging_face.pooling import (  # noqa: E402
    LastLayers,
    MeanPooled,
    before_last,
)
from veracal.training.deep.hugging_face.tokens import Tokens, tokenized  # noqa: E402
from veracal.training.deep.hugging_face.trainer import PrivateTrainer  # noqa: E402

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
