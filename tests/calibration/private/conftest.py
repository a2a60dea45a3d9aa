"""Scores of known miscalibration, and sources of them."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from veracal.accounting import Budget
from veracal.data import Scores
from veracal.ledger import open_ledger
from veracal.mechanisms.discrete_noise import discrete_laplace_std
from veracal.queries import Curator, Pool, Public, Release, laplace_event

ONE = Budget(1.0)


def miscalibrated(n, temperature, rng, *, classes=2):
    """Scores whose right temperature is known: calibrated logits, multiplied by it."""
    logits = rng.normal(scale=2.0, size=(n, classes))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    edges = (powers / powers.sum(axis=1, keepdims=True)).cumsum(axis=1)
    labels = (rng.random((n, 1)) > edges).sum(axis=1).clip(max=classes - 1)
    return Scores.from_logits(logits * temperature, labels)


@dataclass
class Quick:
    """A source with the noise of a holder and no ledger, for laws that take many draws."""

    records: Scores
    rng: np.random.Generator
    relation: str = "add-remove"
    asked: list = field(default_factory=list)
    _exact: dict = field(default_factory=dict)

    def answer(self, query, *, micro_epsilon, request=None):
        event = laplace_event(query, micro_epsilon, self.relation)
        self.asked.append((query, micro_epsilon, request))
        key = query.name, tuple(sorted(query.settings.items()))
        if key not in self._exact:
            self._exact[key] = query.evaluate(self.records)
        p = -math.expm1(-1 / event.noise)
        draws = self.rng.geometric(p, size=(2, query.entries))
        units = tuple(int(k) for k in self._exact[key] + draws[0] - draws[1])
        std = discrete_laplace_std(event.noise) * query.grid.step
        return Release(query.name, units, query.grid, std, micro_epsilon, event, private=True)


@pytest.fixture
def holder(tmp_path):
    """A function that creates curators with their own ledgers."""
    result = []

    def make(records, budget=ONE, **settings):
        result.append(records)
        return Curator(
            records, open_ledger(tmp_path / f"{len(result)}.ledger", budget, **settings)
        )

    return make


@pytest.fixture(params=["holder", "pool", "public"])
def source_of(request, holder):
    """A function from scores to a source of each kind."""

    def make(records, budget=ONE, **settings):
        if request.param == "public":
            return Public(records)
        if request.param == "holder":
            return holder(records, budget, **settings)
        n = len(records)
        parts = [records.take(np.arange(i, n, 2)) for i in (0, 1)]
        return Pool([holder(part, budget, **settings) for part in parts])

    return make
