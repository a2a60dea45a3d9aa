"""Where randomness comes from."""

import os
import secrets
import weakref
from typing import Any, NoReturn

import numpy as np
from randomgen import AESCounter


class _Secret(AESCounter):  # type: ignore[misc]
    """AES-128 in counter mode, keyed by the system, whose state nobody can read or rewind."""

    def __init__(self) -> None:
        # A key sets the stream directly; a seed would first be hashed and can be read back.
        super().__init__(key=_fresh_key())
        _LIVING.add(self)

    def spawn(self, n_children: int) -> "list[_Secret]":
        """Make generators that share nothing with this one."""
        return [type(self)() for _ in range(n_children)]

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "Expected a secret generator to stay where it is: its state is never read, copied, "
            "rewound or written, because whoever had it could take the noise off a release. "
            "Make another with secret_generator() or rng.spawn(n)."
        )

    state = property(_refuse, _refuse)
    __reduce_ex__ = __deepcopy__ = __getstate__ = __setstate__ = _refuse
    jumped = advance = _refuse


_LIVING: weakref.WeakSet[_Secret] = weakref.WeakSet()


def _fresh_key() -> int:
    """128 bits from the operating system."""
    return secrets.randbits(128)


def _rekey_after_fork() -> None:
    """Give every secret generator of a forked child a key of its own."""
    try:
        for stream in list(_LIVING):
            # A thread that the child does not have may have held the lock.
            stream.lock._at_fork_reinit()
            fresh = AESCounter(key=_fresh_key()).state
            AESCounter.state.__set__(stream, {**fresh, "bit_generator": type(stream).__name__})
    except BaseException:
        # Python ignores what is raised here, and a child that repeats its parent's noise
        # must not live.
        os.abort()


os.register_at_fork(after_in_child=_rekey_after_fork)


def secret_generator() -> np.random.Generator:
    """Generator on an AES-128 counter stream whose key comes from the operating system.

    It is the only kind a release may use: its draws cannot be predicted from a seed,
    a clock or earlier draws.

    Guarantees
    ----------
    A forked child never repeats a draw of its parent or of another child: every secret
    generator alive at the fork gets a fresh key in the child. The state cannot be read,
    set, copied or pickled, so it never reaches a disk; ``spawn`` gives generators with
    fresh keys.
    """
    return np.random.Generator(_Secret())


def is_secret(rng: np.random.Generator) -> bool:
    """Tell whether nobody can repeat a generator's draws.

    What is drawn from any other generator is *not private*: whoever knows its seed can
    take the noise off again.

    Examples
    --------
    >>> is_secret(secret_generator()), is_secret(np.random.default_rng(0))
    (True, False)
    """
    # Exactly numpy's generator: another could draw what it likes from the same stream.
    return type(rng) is np.random.Generator and type(rng.bit_generator) is _Secret


def generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    """Turn what an estimator stores into a live generator.

    Parameters
    ----------
    random_state : None, int or Generator
        ``None`` gives fresh secret entropy, the only choice under which a privacy
        guarantee holds. An int gives a repeatable stream, for tests and public data.
    """
    if random_state is None:
        return secret_generator()
    return np.random.default_rng(random_state)


def check_state(random_state: object) -> None:
    """Refuse what is no source of randomness, before anything is charged."""
    if random_state is None or isinstance(random_state, np.random.Generator):
        return
    if isinstance(random_state, int | np.integer) and int(random_state) >= 0:
        return
    raise ValueError(
        "Expected random_state to be None, an int >= 0 or a numpy Generator, got "
        f"random_state={random_state!r}."
    )
