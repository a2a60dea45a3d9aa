"""Where randomness comes from."""

import secrets

import numpy as np
from randomgen import ChaCha


def secret_generator() -> np.random.Generator:
    """Generator on a ChaCha20 stream whose key comes from the operating system.

    It is the only kind a release may use: its draws cannot be predicted from a seed,
    a clock or earlier draws.
    """
    return np.random.Generator(ChaCha(seed=secrets.randbits(256), rounds=20))


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
