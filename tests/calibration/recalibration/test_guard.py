"""A map is kept only where it helps, at a cost that does not depend on the decision."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.calibration.private.conftest import miscalibrated
from tests.calibration.recalibration.conftest import FACTOR, N, spent
from veracal import calibration
from veracal.accounting import Budget, Unit
from veracal.calibration import (
    GuardResult,
    Identity,
    InferredGuardResult,
    PooledTemperature,
    Temperature,
    infer_guard,
    recalibrate,
)
from veracal.calibration.recalibration.sources import SourceProfile, guard_share
from veracal.queries import Public


def test_a_method_that_infers_whether_its_map_helps_pays_for_no_guard(holders, scores):
    result = recalibrate(holders(5, Budget(2.0)), epsilon=2.0, classes=2)
    assert result.method == "pooled" and result.budget.guard == 0
    assert isinstance(result.guard, InferredGuardResult) and result.guard.kept
    assert 0.95 <= result.guard.probability <= 1 and "Brier gain of a map" not in result.text()
    assert result.to_json()["guard"]["kind"] == "inferred"
    assert calibration.ece(result.transform(scores)) < calibration.ece(scores) / 2
    queried = recalibrate(holders(5, Budget(2.0)), epsilon=2.0, classes=2, guard=0.1)
    assert isinstance(queried.guard, GuardResult) and queried.budget.guard == 200_000
    alone = recalibrate(holders(5, Budget(2.0)), epsilon=2.0, classes=2, guard=None)
    assert alone.guard is None


@pytest.mark.parametrize(
    ("chance", "told", "kept"),
    [(math.nextafter(1, 2), 1.0, True), (0.95, 0.95, True), (0.94, 0.94, False)],
)
def test_a_chance_is_a_probability(chance, told, kept):
    result = infer_guard(Temperature(0.5), chance)
    assert (result.probability, result.kept) == (told, kept)
    assert result.map == (Temperature(0.5) if kept else Identity())


def test_a_map_of_which_the_answers_do_not_say_that_it_helps_is_not_kept(holders):
    """Calibrated scores, and so much noise that the fitted map is random.

    A useless map may be kept at most once in twenty times (``beta``; here it was once in two
    hundred): five of ten are kept by chance in less than one of ten thousand runs at the
    first rate, and always without the probability check.
    """
    right = miscalibrated(200, 1.0, np.random.default_rng(3))
    runs = [
        recalibrate(holders(4, Budget(0.05), records=right), "pooled", epsilon=0.05)
        for _ in range(10)
    ]
    left = [result for result in runs if not result.guard.kept]
    assert len(left) > 5
    for result in left:
        assert result.map == Identity() and result.guard.probability < 0.95
        assert "was not kept" in result.text()


def test_a_fitter_of_ones_own_is_guarded_like_its_name(holders):
    result = recalibrate(holders(4, Budget(2.0)), PooledTemperature(classes=2), epsilon=2.0)
    assert isinstance(result.guard, InferredGuardResult) and result.budget.guard == 0


def test_the_declared_size_bounds_what_a_source_can_say(holders):
    """One of five lies as far as it can: with a size it is left out, and named."""

    class Liar:
        def __init__(self, holder):
            self.holder = holder

        def answer(self, query, **asked):
            release = self.holder.answer(query, **asked)
            return replace(release, units=tuple(2**50 for _ in release.units))

    *honest, last = holders(5, Budget(2.0))
    settings = {"epsilon": 2.0, "size": N, "min_sources": 3}
    result = recalibrate([*honest, Liar(last)], "pooled", **settings)
    assert result.n_answered == 4 and result.dropouts[-1] is not None
    assert result.temperature.value == pytest.approx(FACTOR, rel=0.3)


@pytest.mark.parametrize(
    ("epsilon", "sources", "size", "share"),
    [(1.0, 1, None, 0.1), (1.0, 50, None, 0.0), (1.0, 50, 9_000, 0.1), (40.0, 3, None, 0.1)],
)
def test_a_guard_that_would_drown_in_noise_is_left_out(epsilon, sources, size, share):
    queried = SourceProfile(sources, "add-remove", Unit(), sums_only=True, exact=False)
    assert guard_share(epsilon, queried, size, infers_guard=False) == share
    assert guard_share(epsilon, queried, size, infers_guard=True) == 0.0


def test_the_guard_keeps_what_helps_and_nothing_else(holders, scores):
    """With so much budget that noise decides nothing: a map that is forced to do harm."""
    right = miscalibrated(N, 1.0, np.random.default_rng(1))
    helps = recalibrate(holders(1, Budget(5.0))[0], "temperature", epsilon=5.0)
    useless = recalibrate(
        holders(1, Budget(5.0), records=right)[0],
        "temperature",
        epsilon=5.0,
        temperatures=(0.1, 0.2),
        measure=0.3,
    )
    assert helps.guard.kept and isinstance(helps.map, Temperature)
    assert not useless.guard.kept and useless.map == Identity()
    assert useless.temperature is not None  # it was fitted, and paid for
    assert useless.after is useless.before and "not kept" in useless.text()
    assert np.array_equal(useless.transform(scores).values, scores.values)


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_promised_does_not_depend_on_whether_the_map_was_kept(holders, count):
    """A map that is not kept is not measured; a kept one is."""
    right = miscalibrated(N, 1.0, np.random.default_rng(1))
    sources = holders(count, Budget(5.0), records=right)
    result = recalibrate(
        sources, "temperature", epsilon=5.0, temperatures=(0.1, 0.2), guard=0.2, measure=0.3
    )
    assert not result.guard.kept
    assert max(spent(sources)) <= 5.0 * (1 - 0.4 * 0.3)  # two fifths of the figures' share
    assert result.statement.epsilon == pytest.approx(5.0, abs=1e-4)
    assert result.statement.epsilon <= 5.0


def test_without_a_guard_the_map_has_its_share(holders):
    sources = holders(1)
    result = recalibrate(sources[0], "temperature", epsilon=1.0, guard=None)
    assert result.guard is None and result.budget.map == 1_000_000
    assert spent(sources) == pytest.approx([1.0], abs=1e-5)


def test_without_records_no_map_is_kept(scores):
    nobody = [Public(scores.take(np.arange(0))) for _ in range(2)]
    assert recalibrate(nobody, "pooled").map == Identity()
