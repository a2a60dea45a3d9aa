"""The few things every room rests on."""

import os
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from veracal import _checks, _random
from veracal.errors import DataError, LimitError, MissingExtraError, VeracalError


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "3", True, None])
def test_positive_refuses(value: float) -> None:
    with pytest.raises(ValueError, match="finite epsilon > 0"):
        _checks.positive(epsilon=value)


@pytest.mark.parametrize("value", [0, 1.5, float("inf"), float("nan"), "3", True])
def test_whole_refuses(value: int) -> None:
    with pytest.raises(ValueError, match="integer steps >= 1"):
        _checks.whole(steps=value)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "0.5", False])
def test_fraction_refuses(value: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        _checks.fraction(p=value)


def test_checks_accept_numpy_numbers() -> None:
    assert _checks.positive(a=np.float32(0.5), b=np.int64(3)) is None
    assert _checks.whole(a=np.int32(1), b=2.0) is None
    assert _checks.fraction(a=np.float64(1), b=0) is None


def test_one_of_lists_the_words() -> None:
    with pytest.raises(ValueError, match="one of 'text', 'code', got variant='cod'"):
        _checks.one_of(("text", "code"), variant="cod")


def test_missing_extra_is_one_sentence_that_names_it() -> None:
    with pytest.raises(MissingExtraError) as caught:
        _checks.extra("nobody_has_this.inside", "torch")
    assert 'pip install "veracal[torch]"' in str(caught.value)
    assert str(caught.value).count(".") == 1
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize("kind", [DataError, LimitError])
def test_errors_say_three_things_and_survive_a_process_boundary(
    kind: Callable[..., DataError],
) -> None:
    error = kind("age", "a number", "'old'", "Correct it.")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "age: expected a number, found 'old'. Correct it."
    assert isinstance(again, VeracalError) and isinstance(again, ValueError)


def test_secret_generators_share_nothing() -> None:
    first, second = (_random.generator(None).random(1000) for _ in range(2))
    assert len(np.intersect1d(first, second)) == 0
    assert stats.kstest(np.concatenate([first, second]), "uniform").pvalue > 1e-6


def test_forked_children_share_no_draws() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        os.write(write, _random.secret_generator().bytes(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 32) != _random.secret_generator().bytes(32)


def test_a_seed_repeats_and_a_generator_passes_through() -> None:
    assert _random.generator(3).random() == _random.generator(3).random()
    rng = np.random.default_rng(0)
    assert _random.generator(rng) is rng
