"""Results as figures. Whatever draws lives here; numbers are made in the rooms below."""

from veracal.report.card import model_card
from veracal.report.page import render
from veracal.report.reliability import ReliabilityDisplay

__all__ = ["ReliabilityDisplay", "model_card", "render"]
