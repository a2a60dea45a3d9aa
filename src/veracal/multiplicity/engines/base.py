"""What every way to run a training again has in common."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from veracal._types import Array, Floats
from veracal.data.labels import Label
from veracal.errors import DataError
from veracal.multiplicity.engines.streams import Seed, Streams

Kind = Literal["logit", "probability", "decision"]


class Engine(ABC):
    """Runs of one training on the same records, each scored on the same people.

    An engine has no randomness of its own: the same streams give the same scores.

    Attributes
    ----------
    name : str
        As tables tell it.
    classes : tuple of str or int
        In the order of scores, which is the declared one of the training records.
    people : int
        How many are scored.
    kind : {"logit", "probability", "decision"}
        What scores are. Logits of two classes are those of the second one, a decision for it
        being above the logit of the threshold; of more classes, their softmax are the
        probabilities.
    together : int
        How many runs are best asked for at once.
    """

    name: str
    classes: tuple[Label, ...]
    people: int
    kind: Kind
    together: int

    @abstractmethod
    def scores(self, count: int, streams: Streams) -> Floats:
        """Scores of some runs.

        Parameters
        ----------
        count : int
            How many, at most ``together``.
        streams : Streams
            Of these runs.

        Returns
        -------
        array of shape (count, people) for two classes, else (count, people, k)
        """

    def stream(self, pending: Iterable[range], seed: Seed) -> Iterator[tuple[range, Floats]]:
        """Scores of runs as they come in, in whatever order.

        Parameters
        ----------
        pending : iterable of range
            Numbers of runs, at most ``together`` of them at a time.
        seed : Seed
        """
        for runs in pending:
            yield runs, self.scores(len(runs), seed.streams(runs.start))

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is run again, as what JSON can hold, with a hash of records and people.

        Two engines with the same settings may go on with each other's audit.
        """


def checked_people(X: ArrayLike, d: int) -> Floats:
    """Rows of people to score, each of d finite numbers."""
    rows = np.array(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != d or not len(rows) or not np.isfinite(rows).all():
        raise DataError(
            "people",
            f"finite rows of {d} numbers, one for each person",
            f"the shape {rows.shape}" + " with NaN or infinity" * (not np.isfinite(rows).all()),
            "Give the people as they are given to predict.",
        )
    return rows


def in_order(scores: Floats, have: Sequence[Label], want: Sequence[Label]) -> Floats:
    """Logits of the same classes in another order.

    Parameters
    ----------
    scores : array of shape (runs, people) for two classes, else (runs, people, k)
    have, want : sequence of str or int

    Examples
    --------
    >>> in_order(np.array([[0.5, -2.0]]), ("ill", "well"), ("well", "ill"))
    array([[-0.5,  2. ]])
    """
    if tuple(have) == tuple(want):
        return scores
    if len(want) == 2:
        return -scores
    places = [list(have).index(label) for label in want]
    return np.ascontiguousarray(scores[:, :, places])


def fingerprint(*arrays: Array) -> str:
    """Hash of arrays, by which a resumed audit knows its records and people again.

    Examples
    --------
    >>> fingerprint(np.zeros(2)) == fingerprint(np.zeros(2))
    True
    >>> fingerprint(np.zeros(2)) == fingerprint(np.zeros(3))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        held = np.ascontiguousarray(array)
        digest.update(f"{held.dtype.str}{held.shape}".encode())
        digest.update(held.tobytes())
    return digest.hexdigest()
