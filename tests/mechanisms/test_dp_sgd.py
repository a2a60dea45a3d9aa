"""DP-SGD costs its announced event, adds the announced noise, and reads nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from veracal import _random
from veracal.accounting.epsilon import epsilon_for
from veracal.accounting.events import Composed, Gaussian, PoissonGaussian, Repeated
from veracal.mechanisms.clipping import ClippedSum, Flat, GlobalAdapt, clipped_sum
from veracal.mechanisms.dp_sgd import DPSGD
from veracal.mechanisms.optimizers import (
    SGD,
    Adam,
    Exponential,
    Langevin,
    Linear,
    Momentum,
    Schedule,
)
from veracal.mechanisms.sampling import FullBatch, Poisson


@pytest.fixture
def targets(rng) -> np.ndarray:
    return rng.normal(2.0, 1.0, size=(300, 3))


def pull_to(targets):
    """Clipped gradients of half the squared distance to each target."""

    def clipped_sum_of(weights, rows, clip):
        return clipped_sum(weights - targets[rows], clip)

    return clipped_sum_of


def no_gradient(weights, rows, clip):
    return ClippedSum(np.zeros(weights.shape))


def make_training(**changes) -> DPSGD:
    settings = {
        "sampler": Poisson(0.1),
        "clip": Flat(1.5),
        "optimizer": SGD(0.3),
        "noise_multiplier": 2.0,
        "steps": 20,
        "expected_batch": 30.0,
    }
    return DPSGD(**{**settings, **changes})


def noisy_sums(subject: DPSGD, weights, function=no_gradient, records=100, rng=None):
    steps = []
    subject.run(weights, function, records, rng=rng, on_step=steps.append)
    return np.array([np.asarray(step.noisy_sum) for step in steps])


@pytest.mark.parametrize("call_if_empty", [False, True])
def test_call_if_empty_calls_the_function_for_empty_batches(call_if_empty) -> None:
    batch_sizes = []

    def elsewhere(weights, rows, clip):
        batch_sizes.append(len(rows))
        return ClippedSum(np.ones(2), 1)

    subject = make_training(noise_multiplier=1e-9, steps=3)
    result = subject.run(np.zeros(2), elsewhere, 0, call_if_empty=call_if_empty)
    assert batch_sizes == [0, 0, 0] * call_if_empty
    weight = -0.3 * 3 / 30 if call_if_empty else 0.0
    np.testing.assert_allclose(result.weights, [weight, weight], atol=1e-8)


def test_the_loop_equals_its_definition(targets) -> None:
    subject = make_training()
    result = subject.run(np.zeros(3), pull_to(targets), 300, rng=np.random.default_rng(7))

    batch_rng, noise = np.random.default_rng(7).spawn(2)
    weights = np.zeros(3)
    for _ in range(20):
        rows = Poisson(0.1).batch(300, batch_rng)
        total = sum(
            min(1, 1.5 / np.linalg.norm(weights - target)) * (weights - target)
            for target in targets[rows]
        )
        weights = weights - 0.3 * (total + noise.normal(0, 2.0 * 1.5, 3)) / 30.0
    np.testing.assert_allclose(result.weights, weights, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "event"),
    [
        ({}, Repeated(PoissonGaussian(3.0, 1.5, rate=0.1), 20)),
        (
            {"relation": "replace-one"},
            Repeated(PoissonGaussian(3.0, 1.5, "replace-one", rate=0.1), 20),
        ),
        ({"sampler": FullBatch()}, Repeated(Gaussian(3.0, 1.5), 20)),
        (
            {"sampler": FullBatch(), "relation": "replace-one"},
            Repeated(Gaussian(3.0, 3.0, "replace-one"), 20),
        ),
        (
            {"noise_multiplier": Exponential(2.0, math.log(2), every=10)},
            Composed(
                (
                    Repeated(PoissonGaussian(1.5, 1.5, rate=0.1), 10),
                    Repeated(PoissonGaussian(3.0, 1.5, rate=0.1), 10),
                )
            ),
        ),
        (
            {"optimizer": Langevin(0.02, 1.0, mode="sum"), "noise_multiplier": None},
            Repeated(PoissonGaussian(0.2 * 1.5, 1.5, rate=0.1), 20),
        ),
        (
            {"clip": GlobalAdapt(1.5, count_noise=2.0)},
            Repeated(PoissonGaussian(1.5 * math.sqrt(2), 1.5, rate=0.1), 20),
        ),
    ],
)
def test_the_event_is_known_beforehand_and_returned(changes, event) -> None:
    subject = make_training(**changes)
    assert parts(subject.event()) == parts(event)
    assert subject.run(np.zeros(2), no_gradient, 10).event == subject.event()


def parts(event) -> list:
    """Levels of an event, their noise rounded."""
    levels = event.events if isinstance(event, Composed) else (event,)
    return [
        (level.times, replace(level.event, noise=round(level.event.noise, 12)))
        for level in levels
    ]


def test_events_match_the_published_training_costs() -> None:
    """q = .01, sigma = 1, T = 1000 costs 1.828 at delta = 1e-5."""
    subject = make_training(sampler=Poisson(0.01), noise_multiplier=1.0, steps=1000)
    assert epsilon_for(subject.event(), 1e-5) == pytest.approx(1.828, abs=2e-3)
    adaptive = replace(subject, clip=GlobalAdapt(0.1, count_noise=2.0))
    assert epsilon_for(adaptive.event(), 1e-5) == pytest.approx(2.352, abs=3e-3)


def test_many_noise_levels_are_grouped_into_64_without_lowering_the_cost() -> None:
    subject = make_training(noise_multiplier=Exponential(2.0, 0.001), steps=500)
    event = subject.event()
    assert isinstance(event, Composed) and len(event.events) <= 64
    assert sum(part.times for part in event.events) == 500
    charged = np.repeat(
        [part.event.noise for part in event.events], [part.times for part in event.events]
    )
    assert (charged <= np.sort(subject.noise_multipliers()) * 1.5).all()


@pytest.mark.parametrize("changes", [{}, {"sampler": FullBatch()}, {"relation": "replace-one"}])
def test_noise_on_the_sum_has_the_claimed_distribution(changes) -> None:
    subject = make_training(steps=10, **changes)
    draws = noisy_sums(subject, np.zeros(1_000), rng=np.random.default_rng(0)).ravel()
    assert stats.kstest(draws, stats.norm(0, 3.0).cdf).pvalue > 0.01
    assert stats.kstest(draws, stats.norm(0, 3.0 * 1.06).cdf).pvalue < 0.01
    assert np.std(draws) == pytest.approx(3.0, rel=0.02)


def test_noise_follows_its_schedule() -> None:
    subject = make_training(noise_multiplier=Linear(1.0, 3.0, steps=3), steps=3)
    spread = noisy_sums(subject, np.zeros(20_000), rng=np.random.default_rng(0)).std(axis=1)
    np.testing.assert_allclose(spread / 1.5, [1, 5 / 3, 7 / 3], rtol=0.03)


def test_noise_is_independent_across_steps_and_runs() -> None:
    first, second = (noisy_sums(make_training(), np.zeros(50)) for _ in range(2))
    draws = np.concatenate([first, second]).ravel()
    assert len(np.unique(draws)) == len(draws)


def test_an_empty_batch_takes_a_noisy_step(targets) -> None:
    seen = []

    def never(weights, rows, clip):
        raise AssertionError("asked for the gradient of an empty batch")

    result = make_training().run(np.zeros(4), never, 0, on_step=seen.append)
    assert [step.number for step in seen] == list(range(20))
    assert all((step.noisy_sum != 0).all() for step in seen)
    assert (result.weights != 0).all()


@pytest.mark.parametrize("sampler", [FullBatch(), Poisson(0.5)])
@pytest.mark.parametrize("optimizer", [SGD(0.3), Momentum(0.3), Adam(0.1)])
def test_the_number_of_records_affects_only_the_sum(sampler, optimizer) -> None:
    """With gradients of zero, neighbors end bit for bit at the same weights."""
    subject = make_training(sampler=sampler, optimizer=optimizer)
    ends = [
        subject.run(np.ones(3), no_gradient, n, rng=np.random.default_rng(3)).weights
        for n in (0, 1, 99, 100, 101)
    ]
    assert all(np.array_equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_weights_are_trained_identically(dtype, targets) -> None:
    subject = make_training(optimizer=Momentum(0.3), steps=5)
    ours = subject.run(np.zeros(3), pull_to(targets), 300, rng=np.random.default_rng(1))
    kept = torch.asarray(targets).to(dtype)
    theirs = subject.run(
        torch.zeros(3, dtype=dtype), pull_to(kept), 300, rng=np.random.default_rng(1)
    )
    assert isinstance(theirs.weights, torch.Tensor) and theirs.weights.dtype == dtype
    close = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    np.testing.assert_allclose(theirs.weights.double().numpy(), ours.weights, rtol=close)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_weights_may_have_any_shape(shape, rng) -> None:
    targets = np.ones((50, *shape))
    result = make_training(noise_multiplier=0.01, steps=60).run(
        np.zeros(shape), pull_to(targets), 50, rng=rng
    )
    assert np.shape(result.weights) == shape
    np.testing.assert_allclose(result.weights, 1.0, atol=0.2)


def test_training_reaches_the_minimum(targets) -> None:
    subject = DPSGD(
        FullBatch(), Flat(10.0), SGD(0.5), 0.01, steps=30, expected_batch=len(targets)
    )
    result = subject.run(np.zeros(3), pull_to(targets), len(targets))
    np.testing.assert_allclose(result.weights, targets.mean(axis=0), atol=0.05)


def test_only_a_run_with_fresh_entropy_is_private(targets) -> None:
    fresh = make_training().run(np.zeros(3), pull_to(targets), 300)
    secret = make_training().run(
        np.zeros(3), pull_to(targets), 300, rng=_random.secret_generator()
    )
    seeded = make_training().run(
        np.zeros(3), pull_to(targets), 300, rng=np.random.default_rng(0)
    )
    assert (fresh.private, secret.private, seeded.private) == (True, True, False)
    assert not np.array_equal(fresh.weights, secret.weights)


def test_a_seed_reproduces_a_run(targets) -> None:
    ends = [
        make_training()
        .run(np.zeros(3), pull_to(targets), 300, rng=np.random.default_rng(0))
        .weights
        for _ in range(2)
    ]
    assert np.array_equal(*ends)


def test_an_adaptive_threshold_follows_the_noisy_count(targets) -> None:
    subject = make_training(
        sampler=FullBatch(), clip=GlobalAdapt(1.5, 50.0, count_noise=3.0), expected_batch=250
    )
    seen = []
    subject.run(
        np.zeros(3),
        pull_to(100 * targets),
        300,
        rng=np.random.default_rng(0),
        on_step=seen.append,
    )
    ratios = np.diff(np.log([50.0, *(step.clip.threshold for step in seen)])) + 0.1
    # All 300 are long: the count is divided by the declared 250, not by the real number.
    assert ratios[0] == pytest.approx(300 / 250, abs=5 * 3 / 250) and ratios[0] != 300 / 250
    assert {step.clip.bound for step in seen} == {1.5}


def test_the_count_of_an_adaptive_rule_is_noisy_as_charged() -> None:
    """Without records, thresholds change by the noise alone."""
    clip = GlobalAdapt(1.0, 1.0, rate=1e-9, count_noise=4.0)
    subject = make_training(clip=clip, steps=4_000, expected_batch=1e4)
    seen = []
    subject.run(np.zeros(1), no_gradient, 0, rng=np.random.default_rng(0), on_step=seen.append)
    counts = np.diff(np.log([1.0, *(step.clip.threshold for step in seen)])) * 1e4
    assert stats.kstest(counts, stats.norm(0, 4.0).cdf).pvalue > 0.01
    assert stats.kstest(counts, stats.norm(0, 3.6).cdf).pvalue < 0.01


class Shuffled:
    """A sampler whose cost is unknown."""

    def batch(self, n, rng):
        return rng.permutation(n)[:10]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": Shuffled()}, "whose cost is known"),
        ({"sampler": None}, "whose cost is known"),
        ({"clip": 1.0}, "a clip of"),
        ({"optimizer": None}, "start and step"),
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"noise_multiplier": math.inf}, "noise_multiplier > 0"),
        ({"noise_multiplier": None}, "if and only if the optimizer is Langevin"),
        ({"optimizer": Langevin(0.1, 1.0)}, "if and only if the optimizer is Langevin"),
        ({"noise_multiplier": Linear(1.0, 0.0, steps=5)}, "0.0 at step 5"),
        ({"noise_multiplier": Exponential(1.0, 100.0)}, "0.0 at step 8"),
        ({"steps": 0}, "integer steps"),
        ({"expected_batch": 0}, "expected_batch > 0"),
        ({"relation": "substitute"}, "relation"),
    ],
)
def test_invalid_settings_are_rejected(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_training(**changes)


@pytest.mark.parametrize(
    "total", [np.full(3, math.nan), np.array([0, math.inf, 0]), np.zeros(2), np.zeros((3, 1))]
)
def test_an_invalid_sum_raises(total) -> None:
    with pytest.raises(ValueError, match="finite clipped sum of shape \\(3,\\)"):
        make_training(sampler=FullBatch()).run(np.zeros(3), lambda *_: ClippedSum(total), 5)


@pytest.mark.parametrize("rng", [3, np.random.RandomState(0)])
def test_rng_must_be_a_generator(rng) -> None:
    with pytest.raises(ValueError, match="numpy Generator"):
        make_training().run(np.zeros(1), no_gradient, 5, rng=rng)


def test_schedules_are_evaluated_once():
    class Moody(Schedule):
        """A schedule that says something else each time."""

        said = 0

        def at(self, step):
            Moody.said += 1
            return 10.0 / Moody.said

    make_training = DPSGD(FullBatch(), Flat(1.0), SGD(0.1), Moody(), steps=3, expected_batch=1)
    assert make_training.event() == make_training.event()
    assert make_training.noise_multipliers().tolist() == [10.0, 5.0, 10.0 / 3]


@pytest.mark.parametrize("entries", [1, 3, 1_000, 40_000])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("multiplier", [0.3, 7.0, Exponential(2.0, math.log(2), every=1)])
def test_noisy_sums_are_on_a_fine_grid(entries, library, multiplier):
    subject = make_training(sampler=FullBatch(), noise_multiplier=multiplier, steps=2)
    start = np.zeros(entries) if library == "numpy" else torch.zeros(entries).double()
    like = np.asarray if library == "numpy" else torch.from_numpy
    value = np.random.default_rng(0).standard_normal(entries) * 1e-3
    result = [
        noisy_sums(
            subject,
            start,
            lambda w, r, c, v=v: ClippedSum(like(v)),
            1,
            np.random.default_rng(5),
        )
        for v in (0 * value, value)
    ]
    for step, (nothing, something) in enumerate(zip(*result, strict=True)):
        grid = subject.noise_multipliers()[step] * 1.5 * 2.0 ** -subject._digits(entries)
        # In units of the grid the noise is whole, and so is what the sum adds to it.
        units = something / grid - nothing / grid
        np.testing.assert_allclose(units, np.rint(value / grid), atol=1e-3)
        assert math.sqrt(entries) * grid <= 2.0**-22 * 1.5
        np.testing.assert_allclose(something - nothing, value, atol=0.51 * grid)


def test_float_noise_on_a_float_sum_is_off_the_grid() -> None:
    """What the grid is for: the same without it."""
    value = np.full(50, 1 / 3)
    subject = make_training(sampler=FullBatch(), steps=1)
    grid = 2.0 * 1.5 * 2.0 ** -subject._digits(50)
    result = noisy_sums(subject, value * 0, lambda w, r, c: ClippedSum(value), 1)[0] / grid
    assert np.abs(result - np.rint(result)).max() < 1e-6
    rough = (value + np.random.default_rng(0).normal(0.0, 3.0, 50)) / grid
    assert np.abs(rough - np.rint(rough)).max() > 0.1


def test_the_noise_on_a_count_leaves_it_on_a_grid() -> None:
    for noise in (0.2, 1.0, 10.0, 3e7):
        seen = []

        class Noted(GlobalAdapt):
            def adapt(self, noisy_fraction, seen=seen):
                seen.append(noisy_fraction)
                return self

        clip = Noted(1.0, count_noise=noise)
        subject = make_training(clip=clip, expected_batch=1.0)
        for exceeding in (0, 1):
            subject._next_clip(clip, exceeding, np.random.default_rng(4))
        step = min(1.0, 2.0 ** (math.frexp(noise)[1] - 22))
        assert seen[1] - seen[0] == 1.0
        assert all((one / step).is_integer() for one in seen)


def test_too_much_noise_for_a_grid_is_rejected_before_reading_records() -> None:
    def unread(weights, rows, clip):
        raise AssertionError("a record was read")

    with pytest.raises(ValueError, match="square root of the number of weights"):
        make_training(noise_multiplier=1e9).run(np.zeros(1_000), unread, 5)
