"""Secret random generators, seeded ones for tests, and checks of ``random_state``."""

import os
import secrets
import weakref
from typing import Any, NoReturn

import numpy as np
from randomgen import AESCounter


class _Secret(AESCounter):  # type: ignore[misc]
    """AES-128 in counter mode with a key of the system; its state cannot be read or set."""

    def __init__(self) -> None:
        # A key sets the stream directly. A seed would be hashed first and could be read back.
        super().__init__(key=_fresh_key())
        _LIVING.add(self)

    def spawn(self, n_children: int) -> "list[_Secret]":
        """Return generators with fresh keys, independent of this one."""
        return [type(self)() for _ in range(n_children)]

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "Expected a secret generator to stay in its process: its state is never read, "
            "copied, rewound or written, because it would reveal the noise of releases. "
            "Create another one with secret_generator() or rng.spawn(n)."
        )

    state = property(_refuse, _refuse)
    __reduce_ex__ = __deepcopy__ = __getstate__ = __setstate__ = _refuse
    jumped = advance = _refuse


_LIVING: weakref.WeakSet[_Secret] = weakref.WeakSet()


def _fresh_key() -> int:
    """Return 128 bits from the operating system."""
    return secrets.randbits(128)


def _rekey_after_fork() -> None:
    """Set a fresh key for every secret generator of a forked child."""
    try:
        for stream in list(_LIVING):
            # The lock may be held by a thread that does not exist in the child.
            stream.lock._at_fork_reinit()
            fresh = AESCounter(key=_fresh_key()).state
            AESCounter.state.__set__(stream, {**fresh, "bit_generator": type(stream).__name__})
    except BaseException:
        # Python ignores exceptions here, and a child that repeats its parent's noise must
        # not continue.
        os.abort()


os.register_at_fork(after_in_child=_rekey_after_fork)


def secret_generator() -> np.random.Generator:
    """Return a generator on an AES-128 counter stream with a key from the operating system.

    Only such generators may draw the noise of a release: their draws cannot be predicted from a
    seed, a clock or earlier draws.

    Guarantees
    ----------
    A forked child never repeats a draw of its parent or of another child: every secret
    generator alive at the fork gets a fresh key in the child. The state cannot be read,
    set, copied or pickled, so it is never written to disk; ``spawn`` returns generators with
    fresh keys.
    """
    return np.random.Generator(_Secret())


def is_secret(rng: np.random.Generator) -> bool:
    """Whether the draws of a generator cannot be reproduced.

    Noise from any other generator is *not private*: its seed suffices to remove it.

    Examples
    --------
    >>> is_secret(secret_generator()), is_secret(np.random.default_rng(0))
    (True, False)
    """
    # Exactly numpy's class: a subclass could draw differently from the same stream.
    return type(rng) is np.random.Generator and type(rng.bit_generator) is _Secret


def generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    """Convert the ``random_state`` of an estimator into a generator.

    Parameters
    ----------
    random_state : None, int or Generator
        ``None`` uses fresh secret entropy, the only choice with a privacy guarantee. An int
        starts a repeatable stream, for tests and public data.
    """
    if random_state is None:
        return secret_generator()
    return np.random.default_rng(random_state)


def check_state(random_state: object) -> None:
    """Reject an invalid ``random_state`` before any charge."""
    if random_state is None or isinstance(random_state, np.random.Generator):
        return
    if isinstance(random_state, int | np.integer) and int(random_state) >= 0:
        return
    raise ValueError(
        "Expected random_state to be None, an int >= 0 or a numpy Generator, got "
        f"random_state={random_state!r}."
    )
