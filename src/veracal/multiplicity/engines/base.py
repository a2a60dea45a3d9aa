"""The engine interface, its random streams, runs that are stored, and models as JSON.

Each source of randomness of a run (initialization, batches, noise) has a stream of its own.
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
_VARYING = {
    "noise": {"noise"},
    "noise and batches": {"noise", "batches"},
    "all": {"noise", "batches", "initial"},
}
_SHARED = 2**63  # spawn key of streams that all runs share; no run has this number


@dataclass(frozen=True, eq=False)
class Streams:
    """Random generators of some runs, by purpose.

    Attributes
    ----------
    initial, batches, noise : Generator
        For the initial weights, the composition of batches, and the noise.
    varied : {"noise", "noise and batches", "all"}
        What differs between runs. Everything else is drawn from a stream with the same state
        for all runs.
    """

    initial: np.random.Generator
    batches: np.random.Generator
    noise: np.random.Generator
    varied: Varied


@dataclass(frozen=True)
class Seed:
    """The seed of all randomness in an audit.

    Attributes
    ----------
    entropy : int
    varied : {"noise", "noise and batches", "all"}

    Notes
    -----
    An audit is internal: its random draws protect no one, so that streams may be repeatable for
    a reader who knows the entropy. Fresh entropy comes from the operating system.
    """

    entropy: int
    varied: Varied = "all"

    def __post_init__(self) -> None:
        _checks.whole(least=0, entropy=self.entropy)
        _checks.one_of(VARIED, varied=self.varied)

    @classmethod
    def from_random_state(cls, random_state: int | None, varied: Varied = "all") -> "Seed":
        """Use a given number, or draw fresh entropy."""
        return cls(secrets.randbits(128) if random_state is None else random_state, varied)

    def streams(self, first: int) -> Streams:
        """Generators of the runs that start at a number; repeated calls give the same streams.

        Parameters
        ----------
        first : int
            Number of the first run, counted from 0.
        """
        _checks.whole(least=0, first=first)
        generators = {
            purpose: np.random.default_rng(
                np.random.SeedSequence(
                    self.entropy,
                    spawn_key=(
                        index,
                        first if purpose in _VARYING[self.varied] else _SHARED,
                    ),
                )
            )
            for index, purpose in enumerate(_PURPOSES)
        }
        return Streams(**generators, varied=self.varied)


Kind = Literal["logit", "probability", "decision"]


class AuditEngine(ABC):
    """Runs of one training on the same records, each scored on the same individuals.

    An engine has no randomness of its own: the same streams give the same scores.

    Attributes
    ----------
    name : str
        Name in tables.
    classes : tuple of str or int
        In the order of the scores, which is the declared order of the training records.
    individuals : int
        Number of rows that are scored.
    kind : {"logit", "probability", "decision"}
        What the scores are. Logits of two classes are those of the second class, which is
        predicted above the logit of the threshold; of more classes, their softmax gives the
        probabilities.
    runs_per_call : int
        Preferred number of runs in one call.
    """

    name: str
    classes: tuple[Label, ...]
    individuals: int
    kind: Kind
    runs_per_call: int

    @abstractmethod
    def scores(self, count: int, streams: Streams) -> Floats:
        """Scores of some runs.

        Parameters
        ----------
        count : int
            Number of runs, at most ``runs_per_call``.
        streams : Streams
            Streams of these runs.

        Returns
        -------
        array of shape (count, individuals) for two classes, else (count, individuals, k)
        """

    def stream(self, pending: Iterable[range], seed: Seed) -> Iterator[tuple[range, Floats]]:
        """Scores of runs as they finish, in any order.

        Parameters
        ----------
        pending : iterable of range
            Numbers of runs, at most ``runs_per_call`` at a time.
        seed : Seed
        """
        for runs in pending:
            yield runs, self.scores(len(runs), seed.streams(runs.start))

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Describe the repeated training as JSON values, with hashes of its data.

        Engines with equal settings may resume each other's audits.
        """


_BLOCK_SIZE = 1 << 22  # entries processed at once
_MAX_CLASSES = 1 << 16  # counts have a column for each class, used or not


class StoredEngine(AuditEngine):
    """Stored scores or decisions of m runs.

    Parameters
    ----------
    values : array of shape (m, individuals) or (m, individuals, k)
        Decisions (class indices), probabilities or logits; two classes may share one column,
        that of the second.
    classes : sequence of str or int, optional
        By default the numbers that occur, at least 0 and 1.
    kind : {"decision", "probability", "logit"}, optional
        By default decisions for an integer type, else probabilities.
    """

    name = "predictions"

    def __init__(
        self,
        values: Array,
        classes: Sequence[Label] | None = None,
        kind: Kind | None = None,
    ) -> None:
        self.values = np.asarray(values)
        self.kind: Kind = kind or (
            "decision" if self.values.dtype.kind in "biu" else "probability"
        )
        _checks.one_of(("decision", "probability", "logit"), kind=self.kind)
        decided, axes = self.kind == "decision", self.values.ndim
        numbers = self.values.dtype.kind in ("biu" if decided else "biuf")
        if not (numbers and (axes == 2 or (axes == 3 and not decided)) and self.values.size):
            raise DataError(
                "predictions",
                "whole numbers of shape (runs, individuals), of an integer type"
                if decided
                else "numbers of shape (runs, individuals) or (runs, individuals, classes)",
                f"{self.values.dtype} of shape {self.values.shape}",
                "Store one row for each run and one column for each individual.",
            )
        if len(self.values) < 2:
            raise DataError(
                "predictions",
                "two or more runs",
                "one",
                "Add runs that were trained with fresh noise.",
            )
        # The shape or the decisions require this many classes.
        count = (
            self.values.shape[2] if axes == 3 else int(self.values.max()) + 1 if decided else 2
        )
        count = max(2, count)
        if decided and count > _MAX_CLASSES:
            raise DataError(
                "predictions",
                f"numbers of classes, 0 to {_MAX_CLASSES - 1} at most",
                f"{count - 1}",
                "Number the classes from 0, without gaps.",
            )
        self.classes = tuple(range(count)) if classes is None else tuple(classes)
        if len(self.classes) < count:
            raise DataError(
                "predictions",
                f"{len(self.classes)} classes",
                f"{count}",
                "Name all classes of the predictions.",
            )
        self.individuals = self.values.shape[1]
        self.runs_per_call = max(1, _BLOCK_SIZE // max(1, self.values[0].size))

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.values)

    def scores(self, count: int, streams: Streams) -> Floats:
        """Not available: stored runs have no randomness."""
        raise TypeError("Stored runs have no random streams: read them with stream().")

    def stream(self, pending: Iterable[range], seed: Seed) -> Iterator[tuple[range, Floats]]:
        """The stored runs with the given numbers."""
        for runs in pending:
            yield runs, self.values[runs.start : runs.stop]

    def settings(self) -> dict[str, Any]:
        """Shape, kind and hash."""
        return {
            "shape": list(self.values.shape),
            "kind": self.kind,
            "classes": list(self.classes),
            "fingerprint": fingerprint(self.values),
        }


def validate_rows(X: ArrayLike, d: int) -> Floats:
    """Rows to score, each with d finite numbers."""
    rows = np.array(X, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != d or not len(rows) or not np.isfinite(rows).all():
        raise DataError(
            "individuals",
            f"finite rows of {d} numbers, one for each individual",
            f"the shape {rows.shape}" + " with NaN or infinity" * (not np.isfinite(rows).all()),
            "Give the rows in the form that predict takes.",
        )
    return rows


def reorder_classes(scores: Floats, given: Sequence[Label], wanted: Sequence[Label]) -> Floats:
    """Logits with their classes in another order.

    Examples
    --------
    >>> reorder_classes(np.array([[0.5, -2.0]]), ("ill", "well"), ("well", "ill"))
    array([[-0.5,  2. ]])
    """
    if tuple(given) == tuple(wanted):
        return scores
    if len(wanted) == 2:
        return -scores
    indices = [list(given).index(label) for label in wanted]
    return np.ascontiguousarray(scores[:, :, indices])


def fingerprint(*arrays: Array) -> str:
    """Hash of arrays, by which a resumed audit recognizes its records and individuals.

    Examples
    --------
    >>> fingerprint(np.zeros(2)) == fingerprint(np.zeros(2))
    True
    >>> fingerprint(np.zeros(2)) == fingerprint(np.zeros(3))
    False
    """
    digest = hashlib.sha256()
    for array in arrays:
        contiguous = np.ascontiguousarray(array)
        digest.update(f"{contiguous.dtype.str}{contiguous.shape}".encode())
        digest.update(contiguous.tobytes())
    return digest.hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # memory addresses differ between processes
_RANDOM_STATE = "random_state"


def describe(value: Any) -> Any:
    """Describe a model, a function or a parameter identically in every process.

    Estimators and data classes become their class and parameters, functions their names, arrays
    a hash. ``random_state`` is left out, since every run gets another one. Everything else is
    described by its ``repr``.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> describe(LogisticRegression(C=2.0))["parameters"]["C"]
    2.0
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return describe(value.item())
    if isinstance(value, np.ndarray):
        return fingerprint(value.astype(str) if value.dtype.kind in "TO" else value)
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((describe(item) for item in value), key=repr)
    if isinstance(value, partial):
        return {
            "function": describe(value.func),
            "arguments": describe([value.args, value.keywords]),
        }
    if callable(getattr(value, "get_params", None)) and not isinstance(value, type):
        parameters = value.get_params(deep=False)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parameters = {
            each.name: getattr(value, each.name) for each in dataclasses.fields(value)
        }
    elif hasattr(value, "__qualname__"):
        return qualified_name(value)
    else:
        return {"class": qualified_name(type(value)), "repr": _ADDRESS.sub("", repr(value))}
    return {
        "class": qualified_name(type(value)),
        "parameters": {
            n: describe(part) for n, part in parameters.items() if n != _RANDOM_STATE
        },
    }


def qualified_name(value: Any) -> str:
    """Qualified name of a function or a class; of any other object, that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
