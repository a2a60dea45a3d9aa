"""The contract of engines notices an engine that breaks it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.multiplicity.engines.contract import check_alone_and_together, check_engine
from veracal.multiplicity import AuditEngine


@dataclass(eq=False)
class Toy(AuditEngine):
    """Logits that are nothing but noise."""

    name: str = "toy"
    classes: tuple[str, ...] = ("a", "b", "c")
    individuals: int = 4
    kind: Any = "logit"
    runs_per_call: int = 8
    records: int = 0
    calls: list[int] = field(default_factory=list)

    def shape(self, count):
        k = len(self.classes)
        return (count, self.individuals) if k == 2 else (count, self.individuals, k)

    def scores(self, count, streams):
        return streams.noise.standard_normal(self.shape(count))

    def settings(self):
        return {"name": self.name, "records": self.records}


class Transposed(Toy):
    def scores(self, count, streams):
        return np.moveaxis(super().scores(count, streams), 0, 1)


class Repeated(Toy):
    def scores(self, count, streams):
        return np.repeat(super().scores(1, streams), count, axis=0)


class Deaf(Toy):
    def scores(self, count, streams):
        return np.random.default_rng(0).standard_normal(self.shape(count))


class OfItsOwn(Toy):
    def scores(self, count, streams):
        self.calls.append(count)
        return super().scores(count, streams) + len(self.calls)


class SameMemory(Toy):
    memory = np.zeros((8, 4, 3))

    def scores(self, count, streams):
        self.memory[:count] = super().scores(count, streams)
        return self.memory[:count]


class NotFinite(Toy):
    def scores(self, count, streams):
        return np.where(np.arange(3) == 1, np.inf, super().scores(count, streams))


class NotJson(Toy):
    def settings(self):
        return {"records": np.int64(3)}


class Tuples(Toy):
    def settings(self):
        return {"classes": self.classes}


class Counting(Toy):
    def settings(self):
        self.calls.append(0)
        return {"calls": len(self.calls)}


class Swapped(Toy):
    def stream(self, pending, seed):
        for runs, scores in super().stream(pending, seed):
            yield runs, scores[::-1]


class Forgotten(Toy):
    def stream(self, pending, seed):
        return iter(list(super().stream(pending, seed))[1:])


class LouderTogether(Toy):
    def scores(self, count, streams):
        return super().scores(count, streams) * (1.0 if count == 1 else 1.4)


def test_a_correct_engine_passes_the_contract():
    check_engine(Toy(), other=Toy(records=1))
    check_engine(Toy(classes=("a", "b"), runs_per_call=1))
    check_alone_and_together(Toy(), 400, count=8)


@pytest.mark.parametrize(
    "engine",
    [
        Transposed(),
        Repeated(),
        Deaf(),
        OfItsOwn(),
        SameMemory(),
        NotFinite(),
        NotJson(),
        Tuples(),
        Counting(),
        Swapped(),
        Forgotten(),
        Toy(kind="probability"),
        Toy(classes=("a",)),
    ],
    ids=lambda engine: type(engine).__name__,
)
def test_a_broken_engine_fails_the_contract(engine):
    with pytest.raises((AssertionError, TypeError)):
        check_engine(engine)


def test_settings_must_differ_for_other_data():
    with pytest.raises(AssertionError, match="same settings"):
        check_engine(Toy(), other=Toy())


def test_batched_runs_with_another_distribution_are_detected():
    with pytest.raises(AssertionError):
        check_alone_and_together(LouderTogether(), 400, count=8)
