"""Runs that were made elsewhere, by any model."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from veracal._types import Array, Floats
from veracal.data import Label
from veracal.errors import DataError
from veracal.multiplicity.engines.base import AuditEngine, Kind, Seed, Streams, fingerprint

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
        _validate_values(self.values, self.kind)
        count = _count_classes(self.values, self.kind)
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


def _validate_values(values: Array, kind: str) -> None:
    """Reject arrays that cannot be runs."""
    if kind not in ("decision", "probability", "logit"):
        raise ValueError(
            f"Expected kind to be 'decision', 'probability' or 'logit', got {kind!r}."
        )
    numbers = values.dtype.kind in ("biu" if kind == "decision" else "biuf")
    shaped = values.ndim == 2 or (values.ndim == 3 and kind != "decision")
    if not (numbers and shaped and values.size):
        raise DataError(
            "predictions",
            "whole numbers of shape (runs, individuals), of an integer type"
            if kind == "decision"
            else "numbers of shape (runs, individuals) or (runs, individuals, classes)",
            f"{values.dtype} of shape {values.shape}",
            "Store one row for each run and one column for each individual.",
        )
    if len(values) < 2:
        raise DataError(
            "predictions",
            "two or more runs",
            "one",
            "Add runs that were trained with fresh noise.",
        )


def _count_classes(values: Array, kind: str) -> int:
    """Number of classes that the shape or the decisions require."""
    if values.ndim == 3:
        return max(2, int(values.shape[2]))
    if kind != "decision":
        return 2
    count = max(2, int(values.max()) + 1)
    if count > _MAX_CLASSES:
        raise DataError(
            "predictions",
            f"numbers of classes, 0 to {_MAX_CLASSES - 1} at most",
            f"{count - 1}",
            "Number the classes from 0, without gaps.",
        )
    return count
