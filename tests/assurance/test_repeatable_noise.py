"""The noise of tests has the distribution of the noise it replaces, and is repeatable."""

import os
import threading

import numpy as np
import pytest
from scipy import stats

from assurance.repeatable_noise import RepeatableNoise, sample_gaussian, sample_laplace
from veracal.mechanisms import discrete_noise as noise

DRAWS = 200_000
LAWS = {
    sample_laplace: lambda k, scale: np.exp(-np.abs(k) / scale),
    sample_gaussian: lambda k, scale: np.exp(-((k / scale) ** 2) / 2),
}


def pvalue(draws: np.ndarray, weights: np.ndarray) -> float:
    """Chi-squared test on the integers -r to r; whatever is expected rarely is joined."""
    reach = len(weights) // 2
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(weights))
    expected = weights / weights.sum() * len(draws)
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    return stats.chisquare(observed, np.append(expected[~rare], expected[rare].sum())).pvalue


@pytest.mark.parametrize("scale", [0.3, 0.7, 1.0, 3.25, 40.0])
@pytest.mark.parametrize("sample", LAWS)
def test_draws_follow_the_exact_probabilities(sample, scale, rng):
    k = np.arange(-2_000, 2_001)
    draws = sample(scale, DRAWS, rng)
    # The generator has a seed: what passes once passes always.
    assert pvalue(draws, LAWS[sample](k, scale)) > 1e-3
    assert pvalue(draws, LAWS[sample](k, 1.06 * scale)) < 1e-6
    assert pvalue(draws, LAWS[sample](k, scale / 1.06)) < 1e-6


@pytest.mark.parametrize(
    ("sample", "law"), [(sample_laplace, "laplace"), (sample_gaussian, "norm")]
)
def test_large_noise_is_nearly_continuous(sample, law, rng):
    draws = sample(2.0**46, DRAWS, rng)
    assert stats.kstest(draws / 2.0**46, getattr(stats, law).cdf).pvalue > 1e-3
    assert 0.49 < (draws % 2).mean() < 0.51


@pytest.mark.parametrize("sample", LAWS)
@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e-3])
def test_noise_too_small_to_move_an_integer_is_zero(sample, scale, rng):
    assert not sample(scale, 100, rng).any()


def draw(scale: float = 50.0, zeros: int = 20) -> list[int]:
    return noise.add_discrete_laplace(np.zeros(zeros, dtype=int), scale).tolist()


@pytest.fixture
def repeatable(monkeypatch):
    found = RepeatableNoise()
    for name in ("make_laplace", "make_gaussian"):
        monkeypatch.setattr(noise, name, getattr(noise, name))  # put back afterwards
    found.install(noise)
    return found


def test_a_label_repeats_its_noise_and_no_other(repeatable):
    with repeatable.named("a"):
        first, second = draw(), draw()
        with repeatable.named("b"):
            other = draw()
        third = draw()
    assert len({tuple(found) for found in (first, second, third, other)}) == 4
    with repeatable.named("a"):
        assert [draw(), draw(), draw()] == [first, second, third]


def test_other_releases_change_nothing(repeatable):
    with repeatable.named("a"):
        first, wide, long = draw(), draw(60.0), draw(zeros=21)
        gaussian = noise.add_discrete_gaussian(np.zeros(20, dtype=int), 50.0).tolist()
    assert first != long[:20] and first != gaussian
    with repeatable.named("a"):
        assert noise.add_discrete_gaussian(np.zeros(20, dtype=int), 50.0).tolist() == gaussian
        assert (draw(zeros=21), draw(60.0), draw()) == (long, wide, first)


def test_threads_change_nothing(repeatable):
    with repeatable.named("a"):
        expected = {scale: draw(scale) for scale in range(30, 38)}
    found = {}
    with repeatable.named("a"):
        threads = [
            threading.Thread(target=lambda scale=scale: found.update({scale: draw(scale)}))
            for scale in reversed(range(30, 38))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == expected


def in_a_fork() -> list[int]:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(send, np.array(draw()).tobytes())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        found = np.frombuffer(pipe.read(), dtype=np.int64).tolist()
    os.waitpid(child, 0)
    return found


def test_every_fork_has_noise_of_its_own_that_repeats(repeatable):
    with repeatable.named("a"):
        first = [draw(), in_a_fork(), in_a_fork()]
    assert len({tuple(found) for found in first}) == 3
    with repeatable.named("a"):
        assert [draw(), in_a_fork(), in_a_fork()] == first


@pytest.mark.real_noise
def test_real_noise_is_left_to_opendp(repeatable):
    # Two draws at a scale of 2^40 agree with a probability of 2^-42, and here 20 pairs would.
    with repeatable.named("a", real=True):
        first = draw(2.0**40)
    with repeatable.named("a", real=True):
        assert draw(2.0**40) != first
    with repeatable.named("a"):
        assert draw(2.0**40) != first


@pytest.mark.parametrize("mark", [False, pytest.param(True, marks=pytest.mark.real_noise)])
def test_the_mark_chooses(mark, pytestconfig):
    [plugin] = [
        one for one in pytestconfig.pluginmanager.get_plugins() if hasattr(one, "NOISE")
    ]
    assert plugin.NOISE._real is mark


def test_what_opendp_refuses_is_refused(repeatable):
    with pytest.raises(Exception, match="scale"):
        noise.make_laplace(-1.0)
