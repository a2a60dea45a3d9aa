"""A prepaid source answers the announced queries, once each."""

import contextlib
import copy
import pickle
import threading

import numpy as np
import pytest
from scipy import stats

from veracal.accounting import Composed, DiscreteGaussian, DiscreteLaplace, Pure, Repeated, Unit
from veracal.calibration import CorrectWrong, Gap, TemperatureGradient
from veracal.calibration.bins import Bins
from veracal.calibration.prepaid_source import PrepaidSource, add_noise, declared_noises
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, ConflictError
from veracal.queries import GaussianSource, gaussian_event, laplace_event
from veracal.testing.queries import CountingQuery

RNG = np.random.default_rng(0)
SCORES = Scores.from_logits(RNG.normal(size=(50, 3)), RNG.integers(3, size=50))
COUNTS = CorrectWrong(Bins(1))
PRICE = 250_000
ONE = laplace_event(COUNTS, PRICE, "add-remove")


def prepaid_source(event=ONE, **more) -> PrepaidSource:
    return PrepaidSource(SCORES, event, **more)


def ask(source, query=COUNTS, price=PRICE, request=None):
    return source.answer(query, micro_epsilon=price, request=request)


def test_the_list_of_noises_is_what_the_event_says() -> None:
    other, gauss = DiscreteLaplace(3.0, 1), DiscreteGaussian(5.0, 2)
    whole = Composed((ONE, Repeated(Composed((other, ONE)), 3), gauss))
    assert declared_noises(whole) == {ONE: 4, other: 3, gauss: 1}
    with pytest.raises(ValueError, match="Expected discrete noise"):
        declared_noises(Composed((ONE, Pure(1.0))))


def test_every_noise_is_answered_once_and_no_more() -> None:
    source, watched = prepaid_source(Repeated(ONE, 2)), CountingQuery(COUNTS)
    for request in ("a", "b"):
        result = ask(source, watched, request=request)
        assert result.private and result.event == ONE and result.micro_epsilon == PRICE
    assert len(watched.seen) == 2
    with pytest.raises(BudgetError, match="no record was read"):
        ask(source, watched, request="c")
    assert len(watched.seen) == 2


@pytest.mark.parametrize(
    ("query", "price"),
    [(COUNTS, PRICE + 1), (COUNTS, PRICE - 1), (Gap(), PRICE), (COUNTS, 1)],
    ids=["dearer", "cheaper", "other question", "almost free"],
)
def test_what_was_not_announced_is_refused_before_a_record_is_read(query, price) -> None:
    source, watched = prepaid_source(), CountingQuery(query)
    with pytest.raises(BudgetError):
        ask(source, watched, price)
    assert not watched.seen
    assert ask(source).private  # what was announced is still there


def test_laplace_noise_does_not_pay_for_gaussian_noise() -> None:
    slope = TemperatureGradient(0.5)
    source = prepaid_source(gaussian_event(slope, 4.0, "add-remove"))
    assert isinstance(source, GaussianSource)
    for refused in (
        lambda: ask(source),
        lambda: source.answer_gaussian(slope, noise_multiplier=3.0),
    ):
        with pytest.raises(BudgetError):
            refused()
    result = source.answer_gaussian(slope, noise_multiplier=4.0)
    assert result.private and result.micro_epsilon is None
    assert result.noise_std == pytest.approx(4 * 10, rel=1e-6)


def test_the_same_question_gets_the_same_answer() -> None:
    source, watched = prepaid_source(), CountingQuery(COUNTS)
    first = ask(source, watched)
    assert all(ask(source, watched) == first for _ in range(5))
    assert len(watched.seen) == 1
    named = prepaid_source(Repeated(ONE, 2))
    assert ask(named, request="x") == ask(named, request="x")
    with pytest.raises(ConflictError):
        ask(named, CountingQuery(COUNTS), request="x")


def test_a_failure_stays_paid() -> None:
    source, broken = prepaid_source(), CountingQuery(COUNTS, fails=True)
    with pytest.raises(RuntimeError):
        ask(source, broken, request="fails")
    with pytest.raises(AnswerError):
        ask(source, broken, request="fails")
    assert len(broken.seen) == 1
    with pytest.raises(BudgetError):
        ask(source, request="again")


def test_copies_are_rejected() -> None:
    source = prepaid_source()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="charged once"):
            duplicate(source)


def test_of_many_who_ask_at_once_one_is_answered() -> None:
    source, got, gate = prepaid_source(), [], threading.Barrier(8)

    def one(i):
        gate.wait()
        with contextlib.suppress(BudgetError):
            got.append(ask(source, request=str(i)))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_noise_covers_all_rows_of_a_unit() -> None:
    unit = Unit("patient", max_contributions=4)
    event = laplace_event(COUNTS, PRICE, "add-remove", unit)
    assert event.noise == 4 * ONE.noise
    result = ask(prepaid_source(event, unit=unit))
    assert result.noise_std == pytest.approx(4 * ask(prepaid_source()).noise_std, rel=0.01)
    with pytest.raises(BudgetError):
        ask(prepaid_source(ONE, unit=unit))


@pytest.mark.parametrize("rng", [None, np.random.default_rng(5)], ids=["secret", "repeatable"])
def test_noise_has_the_announced_law(rng) -> None:
    noise, n = DiscreteLaplace(3.0, 1), 20_000
    rng = PrepaidSource(SCORES, noise)._rng if rng is None else rng
    drawn = add_noise(np.zeros(n, dtype=np.int64), noise, rng=rng)

    def fits(scale: float) -> float:
        inside = np.clip(drawn, -12, 12)
        k = np.arange(-12, 13)
        weights = np.exp(-np.abs(k) / scale)
        law = weights * (1 - np.exp(-1 / scale)) / (1 + np.exp(-1 / scale))
        law[[0, -1]] += (1 - law.sum()) / 2
        return stats.chisquare(np.bincount(inside + 12, minlength=25), n * law).pvalue

    assert fits(3.0) > 1e-6  # fresh entropy: one false alarm in a million runs
    assert fits(3.0 * 1.15) < 1e-8 and fits(3.0 / 1.15) < 1e-8


@pytest.mark.parametrize("rng", [None, np.random.default_rng(5)], ids=["secret", "repeatable"])
def test_gaussian_noise_has_the_announced_spread(rng) -> None:
    noise, n = DiscreteGaussian(6.0, 1), 5_000
    rng = PrepaidSource(SCORES, noise)._rng if rng is None else rng
    drawn = add_noise(np.zeros(n, dtype=np.int64), noise, rng=rng)

    def fits(std: float) -> float:
        total = float((drawn / std).astype(float) @ (drawn / std))
        return 2 * min(stats.chi2.cdf(total, n), stats.chi2.sf(total, n))

    assert fits(6.0) > 1e-6
    assert fits(6.0 * 1.15) < 1e-8


def test_a_repeatable_generator_repeats_and_is_not_private() -> None:
    first, second = (ask(prepaid_source(rng=np.random.default_rng(3))) for _ in range(2))
    assert first == second and not first.private
    assert (
        ask(prepaid_source()).units != first.units or ask(prepaid_source()).units != first.units
    )


def test_it_shows_no_record() -> None:
    assert repr(prepaid_source(Repeated(ONE, 3))) == "PrepaidSource('scores', 3 answers left)"
