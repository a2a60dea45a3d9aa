"""Private histogram binning."""

import numpy as np
import pytest

from tests.calibration.private.conftest import Quick, miscalibrated
from veracal.accounting import Budget, micro_epsilon
from veracal.calibration import PrivateBinning
from veracal.calibration.bins import Bins
from veracal.calibration.private.binning import bin_accuracies
from veracal.data import Scores
from veracal.errors import BudgetError
from veracal.queries import Public

FORMS = "correct-wrong", "correct-total"


@pytest.mark.parametrize("form", FORMS)
def test_exact_counts_give_the_accuracy_of_each_bin(form, rng):
    scores = miscalibrated(4_000, 3.0, rng)
    result = PrivateBinning(epsilon=1.0, bins=10, form=form).fit(Public(scores))
    bins = np.clip(np.ceil(scores.confidence * 10) - 1, 0, 9)
    for b in range(10):
        right = scores.correct[bins == b]
        expected = right.mean() if len(right) else (b + 0.5) / 10
        assert result.map_.accuracies[b] == pytest.approx(expected, abs=2**-21)  # on a grid
    assert result.fallbacks_ == 5  # of two classes no confidence is below one half
    assert not result.private_ and result.statement_ is None


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_source_repairs(source_of, form, rng):
    scores = miscalibrated(4_000, 3.0, rng)
    result = PrivateBinning(epsilon=1.0, form=form).fit(source_of(scores))
    before, after = (
        abs(s.confidence.mean() - s.correct.mean()) for s in (scores, result.transform(scores))
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
    accuracies, known = bin_accuracies(correct, correct + wrong, 2**0.5 * 10.0, Bins(5))
    assert known.tolist() == [False, False, True, True, True]
    assert accuracies.tolist() == pytest.approx([0.1, 0.3, 2 / 3, 1.0, 0.0], abs=2**-21)


def test_no_noise_makes_a_number_that_is_none(rng):
    for n in (0, 1, 3):
        scores = miscalibrated(max(n, 1), 1.0, rng).take(np.arange(n))
        for _ in range(50):
            result = PrivateBinning(micro_epsilon=1_000).fit(Quick(scores, rng))
            values = result.map_.accuracies
            assert ((values >= 0) & (values <= 1)).all()
            assert 0 <= result.fallbacks_ <= 15


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_form_of_the_paper_costs_the_same_and_has_twice_the_noise(holder, rng, relation):
    scores = miscalibrated(300, 2.0, rng)
    result = {}
    for form in FORMS:
        source = holder(scores, Budget(0.5, relation=relation))
        result[form] = PrivateBinning(epsilon=0.5, form=form).fit(source)
        assert source.ledger.spent().epsilon == 0.5
        assert micro_epsilon(result[form].event(relation)) == 500_000
        with pytest.raises(BudgetError):
            PrivateBinning(epsilon=0.5, form=form, bins=3).fit(source)
    theirs, ours = (result[form].event(relation) for form in reversed(FORMS))
    moved = {"add-remove": 2, "replace-one": 4}[relation]
    assert theirs.sensitivity == moved == 2 * ours.sensitivity
    assert theirs.noise == 2 * ours.noise == moved / 0.5


def test_totals_that_are_not_above_their_noise_fall_back():
    correct = np.array([[3.0, -2.0, 8.0], [5.0, 5.0, 5.0]])
    total = np.array([[10.0, 10.0, 0.0], [-4.0, 6.0, 5.0]])
    accuracies, known = bin_accuracies(correct, total, 5.0, Bins(3))
    assert known.tolist() == [[True, True, False], [False, True, False]]
    expected = [[0.3, 0.0, 5 / 6], [1 / 6, 5 / 6, 5 / 6]]
    np.testing.assert_allclose(accuracies, expected, rtol=0, atol=2**-21)  # on a grid


@pytest.mark.parametrize("form", FORMS)
def test_intervals_of_accuracies_cover_noise_and_sampling(form, rng):
    """Of a bin whose accuracy is known; without the sampling they would not."""
    logit = np.log(np.array([0.6, 0.9]) / np.array([0.4, 0.1]))
    hits, narrow, total = 0, 0, 0
    for _ in range(60):
        which = rng.integers(2, size=400)
        logits = np.stack([logit[which], np.zeros(400)], axis=1)
        right = rng.random(400) < np.array([0.5, 0.8])[which]
        scores = Scores.from_logits(logits, np.where(right, 0, 1))
        result = PrivateBinning(epsilon=4.0, bins=4, form=form, level=0.9).fit(
            Quick(scores, rng)
        )
        assert len(result.accuracies_) == 4
        for b, truth in ((2, 0.5), (3, 0.8)):
            estimate = result.accuracies_[b]
            assert estimate.value == result.map_.accuracies[b]
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
            hits += estimate.low <= truth <= estimate.high
            # A close mistake: an interval for the noise alone.
            reach = 1.65 * result.releases_[0].noise_std / estimate.n
            narrow += abs(estimate.value - truth) <= reach
            total += 1
    assert hits >= 0.9 * total
    assert narrow < 0.6 * total


def test_bins_of_which_nothing_is_known_have_the_widest_interval(rng):
    result = PrivateBinning(epsilon=1.0, bins=4).fit(Quick(miscalibrated(2_000, 1.0, rng), rng))
    unknown = [e for e in result.accuracies_ if e.value is None]
    assert len(unknown) == result.fallbacks_ >= 1
    assert all((e.low, e.high) == (0.0, 1.0) for e in unknown)


def test_it_gets_the_same_answer_again_for_nothing(holder, rng):
    source = holder(miscalibrated(300, 2.0, rng), Budget(0.5))
    first, again = (
        PrivateBinning(epsilon=0.5, form="correct-total").fit(source) for _ in range(2)
    )
    assert first.releases_ == again.releases_
    assert source.ledger.spent().epsilon == 0.5


@pytest.mark.parametrize("settings", [{"form": "total"}, {"level": 1.0}, {"bins": 0}], ids=str)
def test_nonsense_is_refused_before_anything_is_charged(holder, rng, settings):
    source = holder(miscalibrated(50, 1.0, rng))
    with pytest.raises(ValueError, match="Expected"):
        PrivateBinning(epsilon=0.1, **settings).fit(source)
    assert source.ledger.spent().epsilon == 0
