"""Results as figures. Whatever draws lives here; numbers are made in the rooms below."""

from veracal.report.reliability import ReliabilityDisplay

__all__ = ["ReliabilityDisplay"]
