"""Numbers in queries lie on public grids: short and exact on the wire."""

import numpy as np
import pytest

from veracal.calibration import (
    Gap,
    ParameterGrid,
    PlattCurvature,
    PrivatePlatt,
    PrivateTemperature,
    recalibrate,
)
from veracal.calibration.bins import Bins
from veracal.calibration.private.binning import bin_accuracies
from veracal.calibration.private.platt import LogOddsTransform
from veracal.calibration.private.root_posterior import TemperatureGrid
from veracal.data import Scores
from veracal.queries import Public


def is_whole(values, bits):
    steps = np.asarray(values) * 2.0**bits
    return bool((steps == np.rint(steps)).all())


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    z = 3 * rng.normal(size=(2_000, 3))
    p = np.exp(z / 4) / np.exp(z / 4).sum(axis=1, keepdims=True)
    labels = [rng.choice(3, p=row) for row in p]
    return Scores.from_logits(z, labels)


def test_accuracies_of_bins_are_multiples_of_two_to_minus_twenty():
    rng = np.random.default_rng(0)
    correct, total = rng.normal(10, 5, size=15), rng.normal(15, 9, size=15)
    shares, known = bin_accuracies(correct, total, 12.0, Bins(15))
    assert 0 < known.sum() < 15  # centers of bins are rounded, too
    assert is_whole(shares, 20)
    assert not is_whole(Bins(15).centers, 20)
    np.testing.assert_allclose(shares[~known], Bins(15).centers[~known], atol=2**-21)


@pytest.mark.parametrize("bits", [4, 12, 20])
@pytest.mark.parametrize("inverse", [0.05, 1 / 3, 7.7])
def test_center_and_spread_are_multiples_of_two_to_minus_twelve(bits, inverse):
    view = LogOddsTransform("vector", 3, inverse, -1.234567, ParameterGrid(bits))
    assert is_whole([view.center, view.spread], 12)
    assert view.spread >= 2**-12
    assert abs(view.center - view.offset / inverse) <= 2**-13


class Listening(Public):
    """Public records that record the queried inverse temperatures."""

    heard: list

    def __init__(self, records):
        super().__init__(records)
        object.__setattr__(self, "heard", [])

    def answer(self, query, **request):
        if isinstance(query, Gap | PlattCurvature):
            self.heard.append(query.settings["inverse"])
        return super().answer(query, **request)


@pytest.mark.parametrize("temperatures", [(0.7, 1.9), (5.1, 6.3), (0.5, 6.0)])
def test_a_search_asks_on_the_grid_and_within_the_range(scores, temperatures):
    ends = TemperatureGrid(*temperatures).inverse_ends
    source = Listening(scores)
    result = PrivateTemperature(epsilon=1.0, classes=3, temperatures=temperatures).fit(source)
    affine = Listening(scores)
    settings = {"epsilon": 1.0, "delta": 1e-5, "classes": 3, "temperatures": temperatures}
    PrivatePlatt("vector", **settings).fit(affine)
    for queried in ([*source.heard, result.map_.inverse], affine.heard):
        assert len(queried) >= 4
        assert is_whole(queried, 16)
        assert ends[0] <= min(queried) <= max(queried) <= ends[1]


def test_an_affine_map_takes_a_range_of_temperatures(scores):
    settings = {"delta": 1e-5, "size": 2_000, "classes": 3, "temperatures": (1.0, 2.0)}
    result = recalibrate(scores, "platt", private=False, **settings)
    assert result.method == "platt"
