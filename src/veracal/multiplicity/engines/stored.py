"""Runs that were made elsewhere, by anybody's models."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from veracal._types import Array, Floats
from veracal.data import Label
from veracal.errors import DataError
from veracal.multiplicity.engines.base import AuditEngine, Kind, Seed, Streams, fingerprint

_NUMBERS = 1 << 22  # that are looked at together
_CLASSES = 1 << 16  # counts have a column for each, whether or not it occurs


class StoredEngine(AuditEngine):
    """Scores or decisions of m runs, as they were stored.

    Parameters
    ----------
    values : array of shape (m, people) or (m, people, k)
        Decisions (whole numbers of classes), probabilities or logits; two classes may share
        one column, that of the second.
    classes : sequence of str or int, optional
        By default the numbers that occur, at least 0 and 1.
    kind : {"decision", "probability", "logit"}, optional
        By default decisions where all are whole numbers of an integer type, else
        probabilities.
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
        _check(self.values, self.kind)
        found = _number_of_classes(self.values, self.kind)
        self.classes = tuple(range(found)) if classes is None else tuple(classes)
        if len(self.classes) < found:
            raise DataError(
                "predictions",
                f"{len(self.classes)} classes",
                f"{found}",
                "Name as many classes as the predictions have.",
            )
        self.people = self.values.shape[1]
        self.together = max(1, _NUMBERS // max(1, self.values[0].size))

    @property
    def runs(self) -> int:
        """How many there are."""
        return len(self.values)

    def scores(self, count: int, streams: Streams) -> Floats:
        """Refuse: there is no chance in what was stored."""
        raise TypeError("Expected to be asked for stored runs by their numbers.")

    def stream(self, pending: Iterable[range], seed: Seed) -> Iterator[tuple[range, Floats]]:
        """The stored runs of some numbers."""
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


def _check(values: Array, kind: str) -> None:
    """Refuse what are no runs."""
    if kind not in ("decision", "probability", "logit"):
        raise ValueError(
            f"Expected kind to be 'decision', 'probability' or 'logit', got {kind!r}."
        )
    numbers = values.dtype.kind in ("biu" if kind == "decision" else "biuf")
    shaped = values.ndim == 2 or (values.ndim == 3 and kind != "decision")
    if not (numbers and shaped and values.size):
        raise DataError(
            "predictions",
            "whole numbers of shape (runs, people), of an integer type"
            if kind == "decision"
            else "numbers of shape (runs, people) or (runs, people, classes)",
            f"{values.dtype} of shape {values.shape}",
            "Store one row for each run and one column for each person.",
        )
    if len(values) < 2:
        raise DataError(
            "predictions", "two or more runs", "one", "Train again, with other noise."
        )


def _number_of_classes(values: Array, kind: str) -> int:
    """Classes that the shape or the decisions ask for."""
    if values.ndim == 3:
        return max(2, int(values.shape[2]))
    if kind != "decision":
        return 2
    found = max(2, int(values.max()) + 1)
    if found > _CLASSES:
        raise DataError(
            "predictions",
            f"numbers of classes, 0 to {_CLASSES - 1} at most",
            f"{found - 1}",
            "Number the classes from 0, without gaps.",
        )
    return found
