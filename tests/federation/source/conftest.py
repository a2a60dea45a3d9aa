"""A source that every test may use up."""

from pathlib import Path

import pytest

from tests.federation.source.enrolled import EnrolledSource, make_source


@pytest.fixture
def north(tmp_path: Path) -> EnrolledSource:
    """A source with a budget of 1 for a coordinator, and 3 in all."""
    return make_source(tmp_path / "north")
