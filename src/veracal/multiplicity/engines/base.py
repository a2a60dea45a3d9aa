"""Randomness of runs: a stream of its own for each thing that chance decides.

What every way to run a training again has in common.

What a model is told to do, as what JSON can hold.
"""

import dataclasses
import hashlib
import math
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Array, Floats
from veracal.data import Label
from veracal.errors import DataError

Varied = Literal["noise", "noise and batches", "all"]
VARIED: tuple[Varied, ...] = ("noise", "noise and batches", "all")
_PURPOSES = ("initial", "batches", "noise")
_DRAWN_ANEW = {
    "noise": {"noise"},
    "noise and batches": {"noise", "batches"},
    "all": {"noise", "batches", "initial"},
}
_SHARED = 2**63  # the place of what all runs have in common; no run has this number


@dataclass(frozen=True, eq=False)
class Streams:
    """Generators of some runs, by what they decide.

    Attributes
    ----------
    initial, batches, noise : Generator
        Of the weights at the start, of who is in a batch, and of the noise.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs. Whatever does not is drawn from a stream that begins at
        the same place for all of them.
    """

    initial: np.random.Generator
    batches: np.random.Generator
    noise: np.random.Generator
    varied: Varied


@dataclass(frozen=True)
class Seed:
    """Where the randomness of an audit comes from.

    Attributes
    ----------
    entropy : int
    varied : {"noise", "noise and batches", "all"}

    Notes
    -----
    An audit is internal: nothing that it draws protects anybody, so that its streams can be
    repeated by whoever knows the entropy. Fresh entropy comes from the operating system.
    """

    entropy: int
    varied: Varied = "all"

    def __post_init__(self) -> None:
        _checks.whole(least=0, entropy=self.entropy)
        _checks.one_of(VARIED, varied=self.varied)

    @classmethod
    def of(cls, random_state: int | None, varied: Varied = "all") -> "Seed":
        """Take a number, or draw one."""
        return cls(secrets.randbits(128) if random_state is None else random_state, varied)

    def streams(self, first: int) -> Streams:
        """Generators of the runs that begin at a number, the same whenever they are asked for.

        Parameters
        ----------
        first : int
            Number of the first of them, counted from 0.
        """
        _checks.whole(least=0, first=first)
        made = {
            purpose: np.random.default_rng(
                np.random.SeedSequence(
                    self.entropy,
                    spawn_key=(
                        place,
                        first if purpose in _DRAWN_ANEW[self.varied] else _SHARED,
                    ),
                )
            )
            for place, purpose in enumerate(_PURPOSES)
        }
        return Streams(**made, varied=self.varied)


Kind = Literal["logit", "probability", "decision"]


class AuditEngine(ABC):
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


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of memory: another one in every process
_DRAWN = "random_state"


def told(value: Any) -> Any:
    """A model, a function or a parameter, the same in every process that means the same.

    Estimators and records become their class and their parameters, functions their names,
    arrays a hash. ``random_state`` is left out, since every run is given another. What is
    none of these is told by its ``repr``.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> told(LogisticRegression(C=2.0))["parameters"]["C"]
    2.0
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return told(value.item())
    if isinstance(value, np.ndarray):
        return fingerprint(value.astype(str) if value.dtype.kind in "TO" else value)
    if isinstance(value, Mapping):
        return {str(key): told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [told(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((told(item) for item in value), key=repr)
    return _told_object(value)


def _told_object(value: Any) -> Any:
    """Likewise, of what has parts or a name."""
    if isinstance(value, partial):
        return {"function": told(value.func), "given": told([value.args, value.keywords])}
    if callable(getattr(value, "get_params", None)) and not isinstance(value, type):
        return _parts(value, value.get_params(deep=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _parts(value, {field.name: getattr(value, field.name) for field in fields})
    if hasattr(value, "__qualname__"):
        return name_of(value)
    return {"class": name_of(type(value)), "shown": _ADDRESS.sub("", repr(value))}


def _parts(value: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class": name_of(type(value)),
        "parameters": {name: told(part) for name, part in parts.items() if name != _DRAWN},
    }


def name_of(value: Any) -> str:
    """Qualified name of a function or a class; of another callable, that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
