"""Decisions of many runs, counted as they come in: memory does not grow with the runs."""

from dataclasses import dataclass, field

import numpy as np

from veracal import _checks
from veracal._types import Array, Floats, Ints
from veracal.errors import DataError

BLOCKS = 40  # into which runs are dealt, for intervals of what they share


@dataclass(eq=False)
class Tally:
    """How often each person got each decision.

    Runs are dealt to blocks in turn, and decisions are counted by block: leaving out one block
    after the other tells how far a mean over people would differ with other runs, whose
    decisions about different people hang together.

    Parameters
    ----------
    people, classes : int
    blocks : int
        At least two.

    Attributes
    ----------
    runs : int
        How many were counted.
    counts_by_block : array of ints of shape (blocks, people, classes)
    runs_by_block : array of ints of shape (blocks,)
    lowest, highest : array of shape (people, classes)
        Of the scores that came with decisions; without any, 1 and 0.
    """

    people: int
    classes: int = 2
    blocks: int = BLOCKS
    counts_by_block: Ints = field(init=False, repr=False)
    runs_by_block: Ints = field(init=False, repr=False)
    lowest: Floats = field(init=False, repr=False)
    highest: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _checks.whole(people=self.people)
        _checks.whole(least=2, classes=self.classes, blocks=self.blocks)
        shape = (self.people, self.classes)
        self.counts_by_block = np.zeros((self.blocks, *shape), dtype=np.int64)
        self.runs_by_block = np.zeros(self.blocks, dtype=np.int64)
        self.lowest, self.highest = np.ones(shape), np.zeros(shape)

    @property
    def runs(self) -> int:
        """How many runs were counted."""
        return int(self.runs_by_block.sum())

    @property
    def counts(self) -> Ints:
        """How many runs decided for each class, of shape (people, classes)."""
        found: Ints = self.counts_by_block.sum(axis=0)
        return found

    @property
    def viable_range(self) -> Floats:
        """Largest score of a person minus the smallest, for each class.

        It never falls as runs are added, so that it means nothing without their number.
        """
        return np.maximum(self.highest - self.lowest, 0.0)

    def add(self, decisions: Array) -> None:
        """Count the decisions of some runs.

        Parameters
        ----------
        decisions : array of ints in [0, classes), of shape (runs, people)
        """
        codes = self._checked(np.asarray(decisions))
        first = self.runs
        for block in range(self.blocks):
            mine = codes[(block - first) % self.blocks :: self.blocks]
            if len(mine):
                self.runs_by_block[block] += len(mine)
                for code in range(self.classes):
                    self.counts_by_block[block, :, code] += (mine == code).sum(axis=0)

    def add_scores(self, scores: Array, threshold: float | None = None) -> None:
        """Count the decisions that scores lead to, and note how far those reach.

        Parameters
        ----------
        scores : array of shape (runs, people) or (runs, people, classes)
            Probabilities of the second of two classes, or of all.
        threshold : float in [0, 1], optional
            Of two classes, the second is chosen above it, and not at it. By default 0.5; with
            more classes the likeliest is chosen, the first of equal ones.
        """
        found = self._checked_scores(np.asarray(scores, dtype=np.float64))
        self.lowest = np.minimum(self.lowest, found.min(axis=0, initial=1.0))
        self.highest = np.maximum(self.highest, found.max(axis=0, initial=0.0))
        if self.classes == 2:
            self.add((found[..., 1] > (0.5 if threshold is None else threshold)).astype(int))
        elif threshold is None:
            self.add(found.argmax(axis=2))
        else:
            raise ValueError("Expected no threshold with more than two classes.")

    def _checked(self, codes: Array) -> Ints:
        """Decisions of all people, each for a class."""
        if codes.ndim != 2 or codes.shape[1] != self.people or codes.dtype.kind not in "iub":
            raise DataError(
                "decisions",
                f"whole numbers of shape (runs, {self.people})",
                f"{codes.dtype} of shape {codes.shape}",
                "Give one decision of every run for every person.",
            )
        if codes.size and not (codes.min() >= 0 and codes.max() < self.classes):
            raise DataError(
                "decisions",
                f"numbers of classes, 0 to {self.classes - 1}",
                f"{codes.min()} to {codes.max()}",
                "Number the classes from 0, and say how many there are.",
            )
        return codes.astype(np.int64, copy=False)

    def _checked_scores(self, scores: Floats) -> Floats:
        """Probabilities of shape (runs, people, classes)."""
        if self.classes == 2 and scores.ndim == 2:
            scores = np.stack([1 - scores, scores], axis=2)
        if scores.shape[1:] != (self.people, self.classes):
            raise DataError(
                "scores",
                f"the shape (runs, {self.people}, {self.classes})",
                f"{scores.shape}",
                "Give one probability for every run, person and class.",
            )
        if not ((scores >= 0) & (scores <= 1)).all():  # NaN is neither
            raise DataError(
                "scores",
                "probabilities between 0 and 1",
                "something else, or NaN",
                "Leave out the runs that failed, and turn logits into probabilities.",
            )
        return scores
