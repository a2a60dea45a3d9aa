"""The whole way, from a table to a private, calibrated, reported model."""

from veracal.pipeline.again import measure_again
from veracal.pipeline.config import Config
from veracal.pipeline.running import Run, run

__all__ = ["Config", "Run", "measure_again", "run"]
