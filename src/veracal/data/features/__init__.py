"""Records as vectors, by networks that were trained on public data."""

from veracal.data.features.encoders import ImageEncoder, TextEncoder
from veracal.data.features.extraction import Extractor, extract
from veracal.data.features.networks import EfficientNetLite0, MiniLM, MiniLMTokens

__all__ = [
    "EfficientNetLite0",
    "Extractor",
    "ImageEncoder",
    "MiniLM",
    "MiniLMTokens",
    "TextEncoder",
    "extract",
]
