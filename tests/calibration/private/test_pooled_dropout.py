"""Intervals of a pooled temperature with dropout."""

import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
from scipy import stats

from benchmarks.simulated_sources import SimulatedSources
from veracal.calibration import PooledTemperature
from veracal.data import Scores


def spread_of_interval(silent, sources=8):
    """Width of the interval of sources that differ, as a logarithm."""
    rng = np.random.default_rng(3)
    place = np.repeat(np.arange(sources), 400)
    p = rng.uniform(0.5, 1.0, size=len(place))
    steep = 2 * np.exp(np.linspace(-0.4, 0.4, sources))[place]
    labels = (rng.random(len(p)) < p).astype(int)
    scores = Scores.from_logits(steep * np.log(p / (1 - p)), labels)
    source = SimulatedSources(
        scores, place, micro_epsilon=200_000_000, dropouts=silent, min_sources=1, rng=rng
    )
    result = PooledTemperature(epsilon=200.0).fit(source).temperature_
    return math.log(result.high / result.low)


def normal_spread(silent):
    """The same with a normal distribution."""
    student = "veracal.calibration.private.pooled.stats.t"
    with mock.patch(student, SimpleNamespace(isf=lambda tail, _: stats.norm.isf(tail))):
        return spread_of_interval(silent)


def test_few_sources_that_answer_say_little_about_the_others():
    # Nearly all of the width is the variation of sources: Student's t with 3 degrees of freedom.
    wider = stats.t.isf(0.025, 3) / stats.norm.isf(0.025)
    silent = range(4, 8)
    assert 0.9 * wider < spread_of_interval(silent) / normal_spread(silent) <= wider


def test_if_all_answer_nothing_is_said_of_others():
    assert spread_of_interval(()) == normal_spread(())
