"""What a statement says about the weights that a training begins with.

A guarantee covers what a fit adds. Weights that were trained before are taken as public; if
they were trained on the same records, the cost of that training adds to the cost of this one. A
fit in this process leaves digests of its weights behind, one for each array, so that a later
fit that begins with any of them can name it. Weights that came from a file or from another
process are not recognized.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from veracal._types import Array

PUBLIC = "the weights that the training began with, which are taken as public"
_MOST = 1 << 16  # digests that are kept
_TRAINED: dict[bytes, str] = {}


def remember(weights: Iterable[Array], records: str) -> None:
    """Remember that weights were trained on records of some name."""
    for one in weights:
        if len(_TRAINED) >= _MOST:
            del _TRAINED[next(iter(_TRAINED))]  # the oldest
        _TRAINED[_digest(one)] = records


def not_covered(weights: Iterable[Array]) -> tuple[str, ...]:
    """What a statement does not cover, for a training that begins with some weights.

    Parameters
    ----------
    weights : iterable of arrays
        All of them, trained now or not.

    Examples
    --------
    >>> start = np.array([0.25, -0.5])
    >>> not_covered([start]) == (PUBLIC,)
    True
    >>> remember([start], "patients")
    >>> not_covered([start])[0][:73]
    "the weights that the training began with: an earlier fit on 'patients' tr"
    """
    found = dict.fromkeys(_TRAINED.get(_digest(one)) for one in weights)
    named = [
        f"the weights that the training began with: an earlier fit on {name!r} trained them, "
        "and its cost adds to this one where the records are the same"
        for name in found
        if name is not None
    ]
    return tuple(named) or (PUBLIC,)


def _digest(weights: Array) -> bytes:
    """A digest of the values in float32, in which networks have them: no copy is made."""
    values = np.ascontiguousarray(weights, dtype=np.float32)
    return hashlib.blake2b(values.data, digest_size=16).digest()
