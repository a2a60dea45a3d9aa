"""How far probabilities are from frequencies, and maps that bring them closer."""

from veracal.calibration.bins import Bins

__all__ = ["Bins"]
