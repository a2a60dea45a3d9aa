"""A source that every test may use up."""

from pathlib import Path

import pytest

from tests.federation.source.enrolled import Made, made


@pytest.fixture
def north(tmp_path: Path) -> Made:
    """A source with a budget of 1 for a coordinator, and 3 in all."""
    return made(tmp_path / "north")
