"""Ways to run the same training again, and again."""

from veracal.multiplicity.engines.base import Engine
from veracal.multiplicity.engines.streams import VARIED, Streams

__all__ = ["VARIED", "Engine", "Streams"]
