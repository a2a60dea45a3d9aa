"""Overconfident scores, divided among curators with a ledger each."""

import numpy as np
import pytest

from tests.calibration.private.conftest import miscalibrated
from veracal.accounting import Budget
from veracal.ledger import open_ledger
from veracal.queries import Curator

N, FACTOR = 3_000, 3.0


@pytest.fixture(scope="module")
def scores():
    return miscalibrated(N, FACTOR, np.random.default_rng(0))


@pytest.fixture
def holders(tmp_path, scores):
    """A function that spreads the scores over so many holders."""

    def make(count=1, budget=Budget(1.0), records=scores, **settings):  # noqa: B008
        parts = [records.take(np.arange(i, len(records), count)) for i in range(count)]
        there = len(list(tmp_path.glob("*.ledger")))
        return [
            Curator(part, open_ledger(tmp_path / f"{there + i}.ledger", budget, **settings))
            for i, part in enumerate(parts)
        ]

    return make


@pytest.fixture(scope="module")
def idle(tmp_path_factory, scores):
    """Two holders that nothing is ever charged to."""
    folder = tmp_path_factory.mktemp("idle")
    ledgers = [open_ledger(folder / f"{i}.ledger", Budget(1.0)) for i in range(2)]
    return [Curator(scores, ledger) for ledger in ledgers]


def spent(holders):
    """What each ledger has paid."""
    return [holder.ledger.spent().epsilon for holder in holders]


class Breaks:
    """A source that fails at one query, until it is fixed."""

    def __init__(self, source, at):
        self.source, self.left = source, at

    def answer(self, query, *, micro_epsilon, request=None):
        self.left -= 1
        if self.left == 0:
            raise ConnectionError("the line is down")
        return self.source.answer(query, micro_epsilon=micro_epsilon, request=request)
