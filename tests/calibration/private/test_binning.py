"""Private histogram binning."""

import numpy as np
import pytest

from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.calibration.bins import Bins
from veracal.calibration.private import PrivateBinning
from veracal.calibration.private.binning import accuracies_of
from veracal.privacy import Public, micro_epsilon


def test_exact_counts_give_the_accuracy_of_each_bin(rng):
    scores = miscalibrated(4_000, 3.0, rng)
    found = PrivateBinning(epsilon=1.0, bins=10).fit(Public(scores))
    bins = np.clip(np.ceil(scores.confidence * 10) - 1, 0, 9)
    for b in range(10):
        right = scores.correct[bins == b]
        expected = right.mean() if len(right) else (b + 0.5) / 10
        assert found.map_.accuracies[b] == pytest.approx(expected)
    assert found.fallbacks_ == 5  # of two classes no confidence is below one half
    assert not found.private_


def test_every_kind_of_source_repairs(source_of, rng):
    scores = miscalibrated(4_000, 3.0, rng)
    found = PrivateBinning(epsilon=1.0).fit(source_of(scores))
    before, after = (
        abs(s.confidence.mean() - s.correct.mean()) for s in (scores, found.transform(scores))
    )
    assert before > 0.08 > 0.02 > after


def test_it_costs_what_it_says(holder, rng):
    source = holder(miscalibrated(100, 1.0, rng))
    fitter = PrivateBinning(micro_epsilon=77_777).fit(source)
    assert round(source.ledger.spent().epsilon * 1e6) == 77_777 == micro_epsilon(fitter.event())
    assert fitter.statement_.epsilon == pytest.approx(0.077777)


def test_bins_of_which_nothing_is_known_keep_their_confidence():
    correct = np.array([-3.0, 5.0, 100.0, 120.0, 0.0])
    wrong = np.array([1.0, -5.0, 50.0, -10.0, 200.0])
    accuracies, known = accuracies_of(correct, wrong, 10.0, Bins(5))
    assert known.tolist() == [False, False, True, True, True]
    assert accuracies.tolist() == pytest.approx([0.1, 0.3, 2 / 3, 1.0, 0.0])


def test_no_noise_makes_a_number_that_is_none(rng):
    for n in (0, 1, 3):
        scores = miscalibrated(max(n, 1), 1.0, rng).take(np.arange(n))
        for _ in range(50):
            found = PrivateBinning(micro_epsilon=1_000).fit(Quick(scores, rng))
            values = found.map_.accuracies
            assert ((values >= 0) & (values <= 1)).all()
            assert 0 <= found.fallbacks_ <= 15
