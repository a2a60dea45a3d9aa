"""Prefetched noise equals the stream of the generator."""

import os
import sys
import threading
import warnings
from contextlib import nullcontext

import numpy as np
import pytest

from veracal import _random
from veracal.mechanisms import dp_sgd as dp_sgd
from veracal.mechanisms.dp_sgd import PrefetchedNoise

SHAPES = [(2,), (3, 50), (90, 60), (300, 300)]  # some are drawn on a thread, some are not


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_noise_equals_the_stream_of_the_generator(shape, steps) -> None:
    plain = np.random.default_rng(1)
    with PrefetchedNoise(shape, steps, np.random.default_rng(1)).drawing() as noise:
        for step in range(steps):
            expected = np.rint(plain.standard_normal(shape) * 2.0**30)
            assert np.array_equal(noise.units(), expected), step


@pytest.mark.parametrize("shape", [(2_500,), (50, 50)])
@pytest.mark.parametrize(("least", "steps"), [(1, 3), (1, 1), (10_000, 3)])
def test_noise_of_one_step_may_be_drawn_in_chunks(shape, steps, least, monkeypatch) -> None:
    for name, small in (
        ("_ENTRIES_PER_DRAW", 1_000),
        ("_CHUNK", 300),
        ("_MIN_THREADED", least),
    ):
        monkeypatch.setattr(dp_sgd, name, small)
    plain, sums = np.random.default_rng(1), np.random.default_rng(2).random((steps, *shape))
    with PrefetchedNoise(
        shape, steps, np.random.default_rng(1), overwrite=True
    ).drawing() as noise:
        for total in sums:
            before, grid = total.copy(), 2.0 * 2.0**-30
            assert noise.add_to(total, 2.0) is total
            drawn = plain.normal(0.0, 2.0, shape)
            expected = np.rint(drawn / grid) * grid + np.rint(before / grid) * grid
            assert np.array_equal(total, expected) and not np.array_equal(total, drawn + before)


def test_sums_are_not_overwritten_by_default() -> None:
    total = np.zeros(5)
    with PrefetchedNoise((5,), 1, np.random.default_rng(1)).drawing() as noise:
        assert noise.add_to(total, 1.0).any()
    assert not total.any()


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e8, 1e20])
@pytest.mark.parametrize("std", [1e-6, 1.3, 1e12])
def test_a_noisy_sum_is_an_integer_of_steps(size, std) -> None:
    shape, step = (500,), std * 2.0**-30
    total = size * np.random.default_rng(3).standard_normal(shape)
    with PrefetchedNoise(shape, 1, np.random.default_rng(1)).drawing() as noise:
        noisy = noise.add_to(total, std)
    units = np.rint(np.random.default_rng(1).standard_normal(shape) * 2.0**30)
    assert np.array_equal(noisy, (np.rint(total * (1 / step)) + units) * step)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_number_repeats_even_if_the_caller_overwrites_it(shape) -> None:
    seen: list[np.ndarray] = []
    with PrefetchedNoise(shape, 10, _random.secret_generator(), digits=48).drawing() as noise:
        for _ in range(10):
            drawn = noise.units()
            seen.append(drawn.copy())
            drawn[...] = 0.0
    every = np.concatenate([part.ravel() for part in seen])
    assert len(np.unique(every)) == len(every)


def test_the_thread_ends_with_the_block() -> None:
    before = threading.active_count()
    for drawn in (0, 1, 100):
        with PrefetchedNoise((100, 100), 100, np.random.default_rng(0)).drawing() as noise:
            for _ in range(drawn):
                noise.units()
    with (
        pytest.raises(KeyError),
        PrefetchedNoise((100, 100), 100, np.random.default_rng(0)).drawing(),
    ):
        raise KeyError
    assert threading.active_count() == before


def test_an_error_of_the_generator_is_raised_in_the_caller() -> None:
    class Broken:
        def standard_normal(self, shape):
            raise OSError("no entropy")

    with (
        PrefetchedNoise((100, 100), 5, Broken()).drawing() as noise,
        pytest.raises(OSError, match="no entropy"),
    ):
        noise.units()


@pytest.mark.parametrize("shape", [(3,), (300, 300)])
def test_a_forked_child_gets_no_noise_of_its_parent(shape) -> None:
    with PrefetchedNoise(shape, 1000, np.random.default_rng(0)).drawing() as noise:
        noise.units()
        with _fork_with_threads():
            child = os.fork()
        if child == 0:
            try:
                noise.units()
            except RuntimeError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_noise_arrays_do_not_share_memory_with_later_steps() -> None:
    with PrefetchedNoise((3,), 100, np.random.default_rng(0)).drawing() as noise:
        assert noise.units().base is None


def _fork_with_threads():
    """Suppress the warning of newer interpreters about forks with threads."""
    if sys.version_info < (3, 12):
        return nullcontext()
    return warnings.catch_warnings(action="ignore", category=DeprecationWarning)
