"""The whole way, from a table to a private, calibrated, reported model."""

from veracal.pipeline.again import measure_again
from veracal.pipeline.comparing import Way, compare_ways
from veracal.pipeline.config import Config
from veracal.pipeline.running import Run, run

__all__ = ["Config", "Run", "Way", "compare_ways", "measure_again", "run"]
