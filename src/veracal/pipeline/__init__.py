"""The whole way, from a table to a private, calibrated, reported model."""

from veracal.pipeline.config import Config
from veracal.pipeline.running import Run, run

__all__ = ["Config", "Run", "run"]
