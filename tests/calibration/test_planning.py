"""The expected errors of plans agree with simulations."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import softmax

from tests.calibration.private.conftest import Quick
from veracal.accounting import Budget, Composed, PoissonGaussian, Repeated, Unit, noise_for
from veracal.calibration import PrivateTemperature, PrivateTwoTemperatures, TwoTemperatures, ece
from veracal.calibration.planning import (
    confidence_slope,
    plan_temperatures,
    supports_two_temperatures,
)
from veracal.calibration.prepaid_source import PrepaidSource
from veracal.calibration.private.temperature import MIN_RECORDS_TIMES_EPSILON, SEARCH_SHARES
from veracal.calibration.queries.scalars import confidence_at
from veracal.data import Scores
from veracal.queries import Public

BUDGET = Budget(3.0, 1e-5)


def make_scores(n: int, k: int, sharp: float, inverse: float, rng) -> Scores:
    """Scores that are right at an inverse temperature, in expectation."""
    logits = sharp * rng.normal(size=(n, k))
    chances = softmax(logits, axis=1).cumsum(axis=1)
    labels = (chances > rng.uniform(size=(n, 1))).argmax(axis=1)
    return Scores.from_logits(logits / inverse, labels)


def gap(scores: Scores, log_inverse: float) -> float:
    return float(scores.correct.mean() - confidence_at(scores, np.exp(log_inverse)).mean())


@pytest.mark.parametrize(
    ("n", "k", "sharp", "inverse"),
    [(1_000, 2, 3.0, 0.5), (4_000, 10, 5.0, 2.0), (4_000, 2, 2.0, 2.0)],
)
def test_errors_are_those_of_simulated_fits(n, k, sharp, inverse) -> None:
    rng = np.random.default_rng(0)
    scores = make_scores(n, k, sharp, inverse, rng)
    accuracy = float(scores.correct.mean())
    plan = plan_temperatures(n, k, BUDGET, accuracy=accuracy)
    root = brentq(lambda u: gap(scores, u), -3, 3)
    method = PrivateTemperature(epsilon=plan.epsilon)
    result = []
    for _ in range(40):
        fitted = method.fit(PrepaidSource(scores, method.event(), rng=rng))
        u = np.log(fitted.map_.inverse)
        result.append((abs(gap(scores, u)), abs(u - root)))
    separate, off = np.mean(result, axis=0)
    assert 0.6 < separate / plan.ece_error < 1.5
    assert 0.5 < off / plan.temperature_error < 2


def test_the_error_is_the_noise_of_the_last_answer() -> None:
    plan = plan_temperatures(10_000, 10, BUDGET)
    scale = 1 / (plan.epsilon * SEARCH_SHARES[-1] / sum(SEARCH_SHARES))
    assert plan.ece_error == pytest.approx(scale / 10_000)
    draws = np.random.default_rng(0).laplace(0, scale, 200_000)
    assert np.abs(draws).mean() / 10_000 == pytest.approx(plan.ece_error, rel=0.02)


def test_the_slope_of_the_curve_is_the_derivative_of_confidence() -> None:
    for k, sharp in ((2, 2.0), (2, 5.0), (10, 2.0), (10, 5.0)):
        scores = make_scores(20_000, k, sharp, 1.0, np.random.default_rng(1))
        root = brentq(lambda u, s=scores: gap(s, u), -3, 3)
        slope = (gap(scores, root - 0.01) - gap(scores, root + 0.01)) / 0.02
        assert 0.5 < confidence_slope(float(scores.correct.mean()), k) / slope < 2


def test_a_sliver_is_enough_for_many_records() -> None:
    for n, k, epsilon in product((20_000, 60_000, 10**7), (2, 10, 1_000), (0.1, 1.0, 3.0, 8.0)):
        plan = plan_temperatures(n, k, Budget(epsilon, 1e-8))
        assert 0 < plan.share <= 0.02 and plan.epsilon <= 0.02 * epsilon
        assert plan.sufficient or epsilon <= 1.0


def test_fewer_records_take_a_larger_share() -> None:
    shares = [plan_temperatures(n, 10, BUDGET).share for n in (500, 2_000, 8_000, 50_000)]
    assert shares == sorted(shares, reverse=True) and shares[0] == 0.1
    small = plan_temperatures(500, 10, Budget(1.0, 1e-5))
    assert not small.sufficient and "exceeds the requested 0.005" in small.text()
    assert plan_temperatures(500, 10, BUDGET, error=0.05).sufficient


def test_training_hardly_feels_it() -> None:
    def event(noise, *more):
        return Composed((Repeated(PoissonGaussian(noise, rate=0.05), 800), *more))

    alone = noise_for(BUDGET, event, tolerance=1e-4)
    for share, more in ((0.02, 0.001), (0.1, 0.023)):  # as the documentation says
        mapping = PrivateTemperature(epsilon=3 * share).event()
        noise = noise_for(BUDGET, lambda level, m=mapping: event(level, m), tolerance=1e-4)
        assert noise / alone - 1 == pytest.approx(more, rel=0.15, abs=2e-4)


def test_the_share_is_the_least_that_keeps_the_error() -> None:
    plan = plan_temperatures(3_000, 10, BUDGET, error=0.01)
    assert plan.sufficient and plan.ece_error == pytest.approx(0.01, rel=1e-4)


def test_relation_and_unit_are_paid_for() -> None:
    plain = plan_temperatures(1_000, 2, BUDGET, error=0.03)
    replacing = plan_temperatures(1_000, 2, Budget(3.0, 1e-5, "replace-one"), error=0.03)
    assert replacing.share == pytest.approx(1.5 * plain.share)  # 2 - 1/2 classes
    patients = Budget(3.0, 1e-5, unit=Unit("patient", max_contributions=3))
    assert plan_temperatures(1_000, 2, patients, error=0.03).share == pytest.approx(
        3 * plain.share
    )


def test_the_sampling_error_is_reported() -> None:
    plan = plan_temperatures(10_000, 2, BUDGET, accuracy=0.8)
    right = np.random.default_rng(0).binomial(10_000, 0.8, 20_000) / 10_000
    assert np.abs(right - 0.8).mean() == pytest.approx(plan.sampling_error, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n": 0}, "integer n >= 1"),
        ({"classes": 1}, "integer classes >= 2"),
        ({"error": 0.0}, "finite error > 0"),
        ({"accuracy": 0.1}, "between chance"),
        ({"accuracy": 1.0}, "between chance"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, said) -> None:
    settings = {"n": 1_000, "classes": 2, "budget": BUDGET, **changes}
    with pytest.raises(ValueError, match=said):
        plan_temperatures(**settings)


@pytest.mark.parametrize(
    ("n", "epsilon", "relation", "unit", "two"),
    [
        (25_000, 0.06, "add-remove", Unit(), True),
        (24_999, 0.06, "add-remove", Unit(), False),
        (49_999, 0.06, "replace-one", Unit(), False),
        (50_000, 0.06, "replace-one", Unit(), True),
        (25_000, 0.06, "add-remove", Unit("patient", 2), False),
        (0, 5.0, "add-remove", Unit(), False),
    ],
)
def test_two_temperatures_where_there_is_enough_for_them(n, epsilon, relation, unit, two):
    assert supports_two_temperatures(n, epsilon, relation, unit) is two


def test_two_temperatures_do_better_from_there_on() -> None:
    """On scores that one temperature cannot recalibrate."""
    rng = np.random.default_rng(2)
    scores = bent(6_000, rng)
    enough = MIN_RECORDS_TIMES_EPSILON / len(scores)
    one, two = (
        [ece(m(epsilon=enough).fit(Quick(scores, rng)).transform(scores)) for _ in range(12)]
        for m in (PrivateTemperature, PrivateTwoTemperatures)
    )
    assert np.mean(two) < np.mean(one)


def bent(n: int, rng) -> Scores:
    """Scores of five classes, underconfident for some records and overconfident for others."""
    logits = 2 * rng.normal(size=(n, 5))
    p = TwoTemperatures(1.6, 0.9).transform(Scores.from_logits(logits)).probabilities
    labels = (p.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)
    return Scores.from_logits(logits, labels)


def test_the_error_of_two_is_that_of_simulated_fits() -> None:
    rng = np.random.default_rng(0)
    scores = make_scores(20_000, 5, 3.0, 0.7, rng)
    plan = plan_temperatures(20_000, 5, Budget(4.0, 1e-6))
    assert plan.temperatures == 2 and "two temperatures" in plan.text()
    best = PrivateTwoTemperatures(epsilon=1.0).fit(Public(scores)).transform(scores)
    result = []
    for _ in range(30):
        fitted = PrivateTwoTemperatures(epsilon=plan.epsilon).fit(Quick(scores, rng))
        result.append(np.abs(fitted.transform(scores).confidence - best.confidence).mean())
    assert 0.3 < np.mean(result) / plan.ece_error < 2
    assert plan.temperature_error is None and "off by" not in plan.text()


def test_the_share_of_two_is_the_least_that_keeps_the_error_too() -> None:
    plan = plan_temperatures(10_000, 10, Budget(8.0, 1e-5), error=0.001)
    assert plan.temperatures == 2 and 0.02 < plan.share < 0.1
    assert plan.sufficient and plan.ece_error == pytest.approx(0.001, rel=1e-4)
    adding, replacing = (
        plan_temperatures(10_000, 10, Budget(16.0, 1e-5, relation), error=error)
        for relation, error in (("add-remove", 0.001), ("replace-one", 0.002))
    )
    assert adding.temperatures == replacing.temperatures == 2
    assert replacing.share == pytest.approx(adding.share)  # twice the noise


def test_one_temperature_does_better_below() -> None:
    """On scores that one temperature recalibrates, with hardly any budget."""
    rng = np.random.default_rng(5)
    scores = make_scores(1_500, 5, 3.0, 0.6, rng)
    one, two = (
        [ece(m(epsilon=0.1).fit(Quick(scores, rng)).transform(scores)) for _ in range(60)]
        for m in (PrivateTemperature, PrivateTwoTemperatures)
    )
    assert np.mean(one) < np.mean(two)


def test_the_advice_is_given_in_words() -> None:
    plan = plan_temperatures(5_000, 10, BUDGET)
    assert f"{100 * plan.share:.2g} % of epsilon" in plan.text()
