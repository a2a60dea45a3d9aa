"""Every metric can be evaluated by group, with intervals that cover."""

import numpy as np
import pytest

from tests.calibration.metrics.sample_scores import scores
from veracal import calibration
from veracal.calibration import ece
from veracal.data import Group, Scores, by_group


@pytest.mark.parametrize("name", calibration.figure_names(2))
def test_by_group(name, rng):
    built, metric = scores(60, 2), getattr(calibration, name)
    result = by_group(metric, built, "site", replicates=20, rng=rng)
    for code, group in enumerate(("a", "b")):
        part = built.take(built.groups["site"].codes == code)
        assert result.values[group].value == metric(part)
        assert np.isfinite([result.values[group].low, result.values[group].high]).all()
    assert result.values["nobody"].value is None


def make_groups(n, stretch, rng) -> Scores:
    """Two groups of n records, second class predicted with too high a confidence."""
    p = rng.uniform(0.5, 1, 2 * n)
    odds = np.log(p / (1 - p)) / stretch
    happened = rng.random(2 * n) < 1 / (1 + np.exp(-odds))
    groups = {"site": Group(np.repeat([0, 1], n), ("a", "b"))}
    return Scores.from_probabilities(p, happened.astype(int), groups=groups)


def held(interval, *, n=300, stretch=1.25, truth=0.0328, trials=25):
    """How often intervals of groups hold the true calibration error, and gaps the true 0."""
    rng, errors, gaps = np.random.default_rng(3), 0, 0
    for _ in range(trials):
        result = by_group(
            ece,
            make_groups(n, stretch, rng),
            "site",
            replicates=60,
            interval=interval,
            within=(0.0, 1.0),
            rng=rng,
        )
        errors += sum(each.low <= truth <= each.high for each in result.values.values())
        gaps += result.gap().low == 0
    return errors / (2 * trials), gaps / trials


def test_basic_intervals_hold_the_calibration_error_of_a_group_and_percentiles_do_not():
    errors, gaps = held("basic")
    assert errors >= 0.7 and gaps >= 0.7
    errors, gaps = held("percentile")
    assert errors <= 0.3 and gaps >= 0.7  # the gap between extremes has a basic one always
