"""The contract suite passes every built-in clip rule, and fails each way to break one."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from veracal.mechanisms.clipping import Automatic, Flat, GlobalAdapt, GlobalV1, GlobalV2
from veracal.testing import check_clip_rule

OURS = [
    Flat(1.0),
    Flat(1e-3),
    Flat(1e-20),
    Flat(1e20),
    Flat(0.1 + 0.2),
    Automatic(1.0),
    Automatic(0.3, gamma=1e-6),
    GlobalV1(1.0, 1.0),
    GlobalV1(0.7, 500.0),
    GlobalV2(1.0),
    GlobalV2(25.0),
    GlobalAdapt(1.0),
    GlobalAdapt(1.0, threshold=0.01),
    GlobalAdapt(50.0, threshold=50.0),
]


@pytest.mark.parametrize("clip", OURS, ids=repr)
def test_built_in_rules_pass(clip) -> None:
    check_clip_rule(clip)


@dataclass
class Broken:
    """A rule that a test breaks in one place."""

    bound: float = 1.0
    calls: list = field(default_factory=list)

    def factors(self, norms):
        return Flat(1.0).factors(norms)


class NoClip(Broken):
    def factors(self, norms):
        return np.ones_like(norms)


class OneUlpTooLong(Broken):
    def factors(self, norms):
        return 1 / np.maximum(norms, 1.0)


class TwiceTheBound(Broken):
    def factors(self, norms):
        return 2 * Flat(1.0).factors(norms)


class PerBatch(Broken):
    def factors(self, norms):
        return Flat(1.0).factors(np.full_like(norms, norms.max(initial=0.0)))


class DividesByZero(Broken):
    def factors(self, norms):
        with np.errstate(all="ignore"):
            return 0.5 / norms


class Negative(Broken):
    def factors(self, norms):
        return -Flat(1.0).factors(norms)


class InPlace(Broken):
    def factors(self, norms):
        norms += 1
        return Flat(1.0).factors(norms)


class Remembers(Broken):
    def factors(self, norms):
        self.calls.append(1)
        return Flat(1.0).factors(norms) / len(self.calls)


class GrowingBound(Broken):
    def factors(self, norms):
        self.bound *= 1.5
        return Flat(1.0).factors(norms)


class OneForAll(Broken):
    def factors(self, norms):
        return np.zeros(1)


class ZeroBound(Broken):
    def __init__(self):
        super().__init__(bound=0.0)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (NoClip, "keeps the length"),
        (OneUlpTooLong, "keeps the length"),
        (TwiceTheBound, "keeps the length"),
        (PerBatch, "in one batch and"),
        (DividesByZero, "finite factors"),
        (Negative, "finite factors"),
        (InPlace, "changed the norms"),
        (Remembers, "in one batch and"),
        (GrowingBound, "the bound changed"),
        (OneForAll, "one factor for each norm"),
        (ZeroBound, "finite bound > 0"),
    ],
)
def test_faulty_rules_fail(broken, says) -> None:
    with pytest.raises(AssertionError, match=says):
        check_clip_rule(broken())
