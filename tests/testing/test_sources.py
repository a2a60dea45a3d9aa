"""The contract of sources holds for ours and fails for broken ones."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from veracal.accounting.events import Budget
from veracal.data import Scores
from veracal.ledger.ledger import open_ledger
from veracal.mechanisms.discrete_noise import add_discrete_laplace
from veracal.queries.curator import Curator
from veracal.queries.pools import Pool
from veracal.queries.query import BinnedSum, laplace_event
from veracal.queries.score_queries import Brier, Correct, Count
from veracal.queries.sources import Public, Release
from veracal.testing import check_source

rng = np.random.default_rng(0)
SCORES = Scores.from_logits(rng.normal(size=(60, 3)), rng.integers(3, size=60))
BINS = BinnedSum("b", lambda s: np.ones(len(s)), lambda s: s.predictions, 3, 0, 1)


@pytest.fixture
def make_ledger(tmp_path):
    names = itertools.count()

    def make(micro_epsilon):
        return open_ledger(tmp_path / f"{next(names)}.ledger", Budget(micro_epsilon / 1e6))

    return make


@pytest.mark.parametrize("query", [Count(), Correct(), Brier(), BINS], ids=lambda q: q.name)
def test_a_curator_passes(make_ledger, query):
    check_source(lambda total: Curator(SCORES, make_ledger(total)), query)


def test_a_pool_passes(make_ledger):
    def make(total):
        halves = SCORES.take(np.arange(30)), SCORES.take(np.arange(30, 60))
        return Pool([Curator(half, make_ledger(total)) for half in halves])

    check_source(make, Brier(), local=False)


def test_a_remote_source_passes_what_can_be_observed(make_ledger):
    check_source(lambda total: Curator(SCORES, make_ledger(total)), Count(), local=False)


class Careless:
    """A source with a ledger, with one thing wrong at a time."""

    def __init__(self, ledger, wrong):
        self.ledger, self.wrong, self.kept = ledger, wrong, {}

    def answer(self, query, *, micro_epsilon, request=None):
        event = laplace_event(query, micro_epsilon, "add-remove")
        early = query.evaluate(SCORES) if self.wrong == "reads first" else None

        def compute():
            units = query.evaluate(SCORES) if early is None else early
            return json.dumps(add_discrete_laplace(units, event.noise).tolist()).encode()

        if self.wrong == "never charges":
            units = self.kept.setdefault(request, json.loads(compute()))
        elif self.wrong == "charges every time":
            self.ledger.charge(event, "x")
            units = self.kept.setdefault(request, json.loads(compute()))
        elif self.wrong == "redraws":
            body = str((query.name, micro_epsilon)).encode()
            self.ledger.answer(event, "x", lambda: b"{}", request=request, body=body)
            units = json.loads(compute())
        else:
            same = self.wrong == "ignores the question"
            body = b"" if same else str((query.name, micro_epsilon)).encode()
            _, answer = self.ledger.answer(event, "x", compute, request=request, body=body)
            units = json.loads(answer)
        release = Release(query.name, tuple(units), query.grid, 1.0, micro_epsilon, event, True)
        return {
            "not marked private": lambda: replace(release, private=False),
            "another price": lambda: replace(release, micro_epsilon=1),
            "floats": lambda: replace(release, units=tuple(k + 0.5 for k in units)),
            "another grid": lambda: replace(release, grid=replace(query.grid, bits=33)),
            "no event": lambda: replace(release, event=None),
        }.get(self.wrong, lambda: release)()


WRONG = [
    "reads first",
    "never charges",
    "charges every time",
    "redraws",
    "ignores the question",
    "not marked private",
    "another price",
    "floats",
    "another grid",
    "no event",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_faulty_ones_fail(make_ledger, wrong):
    with pytest.raises(AssertionError):
        check_source(lambda total: Careless(make_ledger(total), wrong), Brier())


def test_a_public_source_fails():
    with pytest.raises(AssertionError, match="private"):
        check_source(lambda total: Public(SCORES), Count())
