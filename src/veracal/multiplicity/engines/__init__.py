"""Ways to run the same training again, and again."""

from veracal.multiplicity.engines.base import Engine
from veracal.multiplicity.engines.choosing import engine_for
from veracal.multiplicity.engines.descents import DescentEngine
from veracal.multiplicity.engines.perturbed import ObjectiveEngine, OutputEngine
from veracal.multiplicity.engines.retraining import RetrainEngine, Run
from veracal.multiplicity.engines.stored import StoredEngine
from veracal.multiplicity.engines.streams import VARIED, Seed, Streams

__all__ = [
    "VARIED",
    "DescentEngine",
    "Engine",
    "ObjectiveEngine",
    "OutputEngine",
    "RetrainEngine",
    "Run",
    "Seed",
    "StoredEngine",
    "Streams",
    "engine_for",
]
