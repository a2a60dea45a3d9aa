"""The helpers that every layer rests on."""

import copy
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from randomgen import AESCounter
from scipy import stats

from veracal import _checks, _random
from veracal.errors import DataError, LimitError, MissingExtraError, VeracalError

# From Python 3.12 on, forking a process with threads warns; these tests mean to.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


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


@pytest.mark.parametrize("state", ["x", -1, 0.5, [1], "0"], ids=repr)
def test_invalid_random_states_are_refused(state):
    with pytest.raises(ValueError, match="Expected random_state to be None"):
        _random.check_state(state)


def test_valid_random_states_are_accepted():
    for state in (None, 0, np.int64(7), np.random.default_rng(0), _random.secret_generator()):
        _random.check_state(state)


def draws_of_children(rng: np.random.Generator, children: int = 4) -> list[bytes]:
    """Fork, let each child draw from the very generator of its parent, and collect."""
    drawn = []
    for _ in range(children):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - runs in the child
            os.write(write, rng.bytes(32))
            os._exit(0)
        os.waitpid(child, 0)
        drawn.append(os.read(read, 32))
        os.close(read), os.close(write)
    return drawn


@forks
def test_forked_children_share_no_draws() -> None:
    rng = _random.secret_generator()
    rng.bytes(5)  # in the middle of a block
    drawn = [*draws_of_children(rng), rng.bytes(32), *draws_of_children(rng)]
    assert len(set(drawn)) == len(drawn) and all(len(part) == 32 for part in drawn)


@forks
def test_the_fork_test_notices_a_generator_that_survives_forks() -> None:
    assert len(set(draws_of_children(np.random.default_rng(0)))) == 1


@forks
def test_grandchildren_and_spawned_generators_share_no_draws() -> None:
    rng = _random.secret_generator()
    read, write = os.pipe()
    if (child := os.fork()) == 0:  # pragma: no cover - runs in the child
        if (grandchild := os.fork()) == 0:
            os.write(write, rng.bytes(32))
            os._exit(0)
        os.waitpid(grandchild, 0)
        os.write(write, rng.bytes(32))
        os._exit(0)
    os.waitpid(child, 0)
    family = {os.read(read, 32), os.read(read, 32), rng.bytes(32)}
    spawned = {kid.bytes(32) for kid in [*rng.spawn(3), *rng.bit_generator.spawn(0)]}
    assert len(family) == 3 and len(spawned) == 3 and not family & spawned
    assert all(_random.is_secret(kid) for kid in rng.spawn(2))


@forks
def test_multiprocessing_forks_share_no_draws() -> None:
    rng = _random.secret_generator()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    for _ in range(3):
        process = context.Process(target=lambda: queue.put(rng.bytes(32)))
        process.start()
        process.join()
        assert process.exitcode == 0
    assert len({queue.get() for _ in range(3)} | {rng.bytes(32)}) == 4


@forks
def test_a_child_draws_although_a_thread_of_the_parent_held_the_lock() -> None:
    rng = _random.secret_generator()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with rng.bit_generator.lock:
            held.set()
            done.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(120)
    (drawn,) = draws_of_children(rng, 1)
    done.set()
    thread.join()
    assert len(drawn) == 32


def test_threads_share_no_draws() -> None:
    rng = _random.secret_generator()
    drawn: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: drawn.append(rng.random(20_000))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(np.unique(np.concatenate(drawn))) == 80_000


def raw_state(rng: np.random.Generator) -> object:
    return rng.bit_generator.state


def set_state(rng: np.random.Generator) -> None:
    rng.bit_generator.state = {}


@pytest.mark.parametrize(
    "leak",
    [
        pickle.dumps,
        copy.deepcopy,
        raw_state,
        set_state,
        lambda rng: copy.copy(rng.bit_generator),
        lambda rng: pickle.dumps(rng.bit_generator),
        lambda rng: rng.bit_generator.jumped(),
        lambda rng: rng.bit_generator.advance(-1),
    ],
)
def test_a_secret_state_is_never_read_copied_or_written(
    leak: Callable[[np.random.Generator], object],
) -> None:
    rng = _random.secret_generator()
    with pytest.raises(TypeError, match="never read, copied, rewound or written"):
        leak(rng)
    assert len(rng.bytes(8)) == 8


def test_the_repr_of_a_secret_generator_does_not_reveal_its_draws() -> None:
    rng = _random.secret_generator()
    text = AESCounter(seed=rng.bit_generator.seed_seq)
    assert np.random.Generator(text).bytes(32) != rng.bytes(32)


def test_the_secret_stream_is_aes_in_counter_mode() -> None:
    key = bytes(range(16))
    counters = b"".join(count.to_bytes(16, "little") for count in range(1_000))
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    expected = np.frombuffer(block.update(counters), dtype="<u8")
    stream = AESCounter(key=int.from_bytes(key, "little"))
    assert np.array_equal(stream.random_raw(2_000), expected)


def test_only_fresh_entropy_is_secret() -> None:
    assert _random.is_secret(_random.generator(None))
    for known in (_random.generator(3), np.random.default_rng(), None, 3):
        assert not _random.is_secret(known)
    assert not _random.is_secret(np.random.Generator(AESCounter(key=1)))


def test_a_seed_repeats_and_a_generator_passes_through() -> None:
    assert _random.generator(3).random() == _random.generator(3).random()
    rng = np.random.default_rng(0)
    assert _random.generator(rng) is rng


def test_a_generator_of_ones_own_is_not_secret():
    class Silent(np.random.Generator):
        """Draws nothing, on a secret stream."""

    assert not _random.is_secret(Silent(_random.secret_generator().bit_generator))
