"""Fixtures that record which records map and guard queried."""

import pytest

from tests.calibration.private_classifier.sample_classifiers import FITS
from veracal.calibration import private_classifier as module


@pytest.fixture
def queried_scores(monkeypatch):
    """Scores that map and guard were queried about, and the announced queries."""
    seen = []

    class Watching(module.PrepaidSource):
        __slots__ = ()

        def __init__(self, scores, event, **more):
            seen.append((scores, event))
            super().__init__(scores, event, **more)

    monkeypatch.setattr(module, "PrepaidSource", Watching)
    FITS.clear()
    return seen
