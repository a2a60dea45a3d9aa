"""The number of trials of a search, their scores, and the choice of the best."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures

from veracal import _random
from veracal.accounting import Composed, DiscreteGaussian, Gaussian, Parallel, Search
from veracal.data import Dataset
from veracal.training import NormClipper, PrivateLogisticRegression, PrivateSearch
from veracal.training import search as trials
from veracal.training.pipeline import make_private_pipeline

SCORE = DiscreteGaussian(5.0, 1)


@pytest.fixture
def data(rng):
    X = rng.normal(size=(600, 3))
    return Dataset(X, (X[:, 0] > 0).astype(int), ("no", "yes"), size=600)


# ---------------------------------------------------------------- cost


def test_a_search_costs_its_trials():
    one = Gaussian(2.0)
    both = trials.search_event([one], SCORE, 5.0, "geometric", held_out=False)
    assert both == Search(Composed((one, SCORE)), 5.0, "geometric")
    held_out = trials.search_event([one, one], SCORE, 5.0, "poisson", held_out=True)
    assert held_out == Parallel((Search(one, 5.0, "poisson"), Search(SCORE, 5.0, "poisson")))


def test_the_maximum_over_settings_is_inside_the_search():
    ones = [Gaussian(2.0), Gaussian(3.0), Gaussian(2.0)]
    held_out = trials.search_event(ones, SCORE, 5.0, "logarithmic", held_out=True)
    assert held_out.events[0] == Search(Parallel((Gaussian(2.0), Gaussian(3.0))), 5.0)


# ---------------------------------------------------------------- the number of trials


def probabilities(law, mean, k):
    """The distribution of the number of trials, by its definition."""
    if law == "poisson":
        return math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1))
    if law == "geometric":
        return (1 - 1 / mean) ** (k - 1) / mean if k else 0.0
    low, high = 1e-9, 1 - 1e-9  # solve for gamma by bisection
    for _ in range(200):
        middle = (low + high) / 2
        smaller = (1 / middle - 1) / math.log(1 / middle) < mean
        low, high = (low, middle) if smaller else (middle, high)
    return (1 - low) ** k / (k * math.log(1 / low)) if k else 0.0


def pvalue(numbers, law, mean):
    """P-value of the chi-squared test against the distribution."""
    expected = np.array([probabilities(law, mean, k) for k in range(5_000)]) * len(numbers)
    assert sum(expected) == pytest.approx(len(numbers), rel=1e-6)
    counts = np.bincount(numbers, minlength=5_000)[:5_000]
    inside = expected >= 8
    observed = [*counts[inside], len(numbers) - counts[inside].sum()]
    hoped = [*expected[inside], len(numbers) - expected[inside].sum()]
    kept = np.array(hoped) > 1e-9
    return stats.chisquare(
        np.array(observed)[kept], np.array(hoped)[kept], sum_check=False
    ).pvalue


@pytest.mark.parametrize("law", ["logarithmic", "geometric", "poisson"])
def test_the_number_of_trials_has_its_distribution(law, rng):
    numbers = [trials.draw_trial_count(6.0, law, rng=rng) for _ in range(10_000)]
    assert pvalue(numbers, law, 6.0) > 0.01
    assert pvalue(numbers, law, 7.0) < 0.01
    for other in {"logarithmic", "geometric", "poisson"} - {law}:
        assert pvalue(np.maximum(numbers, other != "poisson"), other, 6.0) < 1e-6


# ---------------------------------------------------------------- scores and winners


class Plain:
    """A model that predicts the first column."""

    def predict(self, X):
        assert len(X) == 256  # all blocks have the same shape
        return np.where(X[:, 0] > 0, "yes", "no")


def test_correct_predictions_are_counted(rng):
    for n in (0, 1, 255, 256, 257, 600):
        X, y = rng.normal(size=(n, 2)), rng.integers(2, size=n)
        records = Dataset(X, y, ("no", "yes"))
        slowly = sum((row[0] > 0) == label for row, label in zip(X, y, strict=True))
        assert trials.count_correct(Plain(), records) == slowly


def test_one_record_changes_a_score_by_at_most_one(data):
    whole = trials.count_correct(Plain(), data)
    assert whole == len(data)
    for row in range(0, 600, 50):
        assert (
            whole - trials.count_correct(Plain(), data.take(np.delete(np.arange(600), row)))
            == 1
        )
        y = np.array(data.y)
        y[row] = 1 - y[row]
        assert whole - trials.count_correct(Plain(), Dataset(data.X, y, data.classes)) == 1


@pytest.mark.parametrize("seeded", [False, True])
def test_scores_have_the_stated_noise(data, seeded):
    rng = np.random.default_rng(0) if seeded else _random.secret_generator()
    small = data.take(np.arange(3))
    noise = np.array(
        [trials.noisy_correct_count(Plain(), small, 4.0, rng=rng) - 3 for _ in range(600)]
    )
    assert (noise == np.rint(noise)).all()
    squares = (noise**2).sum()
    assert 1e-6 < stats.chi2(600).cdf(squares / 16) < 1 - 1e-6
    for wrong in (2.0, 0.5):  # of the variance
        assert not 1e-6 < stats.chi2(600).cdf(squares / 16 / wrong) < 1 - 1e-6


def test_the_highest_score_wins_and_ties_are_broken_at_random(rng):
    scores = {0: 3.0, 1: 5.0, 2: 5.0}
    wins = []
    for _ in range(400):
        seen = []

        def trial(position, seen=seen):
            seen.append(position)
            return trials.SearchTrial(position, None, scores[position])

        best = trials.run_trials(trial, 3, 5, rng=rng)
        assert len(seen) == 5 and scores[best.setting] == max(scores[s] for s in seen)
        if {1, 2} <= set(seen):
            first = seen[next(i for i, s in enumerate(seen) if s > 0)]
            wins.append(best.setting == first)
    assert trials.run_trials(None, 3, 0, rng=rng) is None
    # Neither the first nor the last of two equal trials always wins.
    assert 0.3 < np.mean(wins) < 0.75


def test_huge_numbers_are_scored_without_a_warning(data):
    rows = np.array(data.X)
    rows[0], rows[1] = 1.7e308, -1.7e308
    wild = Dataset(rows, data.y, data.classes, size=600)
    plain = PrivateLogisticRegression(
        epsilon=None, noise_multiplier=1.0, steps=2, sampling_rate=1.0
    )
    squares = make_private_pipeline(FunctionTransformer(np.square), NormClipper(), plain)
    for model in (plain, squares):
        assert 0 <= trials.count_correct(model.fit_records(data), wild) <= 600


def test_no_record_raises_in_pipelines_and_searches_inside_one_another(data):
    rows = np.array(data.X)
    rows[7] = 1e200  # whose square is infinite
    wild = Dataset(rows, data.y, data.classes, size=600)
    plain = PrivateLogisticRegression(
        epsilon=None, noise_multiplier=1.0, steps=2, sampling_rate=1.0
    )
    squares = make_private_pipeline(PolynomialFeatures(2), plain)
    search = PrivateSearch(squares, [{}], mean=2.0)
    for model in (
        make_private_pipeline("passthrough", squares),
        search,
        make_private_pipeline(NormClipper(1e100), search),
    ):
        fitted = model.fit_records(wild)
        assert 0 <= trials.count_correct(fitted, wild) <= 600
        # Without overflow, the count is that of the model's own predictions.
        assert (
            trials.count_correct(fitted, data) == (fitted.predict(data.X) == data.labels).sum()
        )
