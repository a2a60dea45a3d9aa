"""How a figure between 0 and 1 varies over runs, in memory that does not grow with them.

Accuracy, area under the curve and F1 of many runs at once.

What many runs said of people, counted as they come in: memory does not grow with runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit, logit, softmax
from scipy.stats import rankdata

from veracal import _checks
from veracal._types import Array, Bools, Floats, Ints
from veracal.errors import DataError

_BINS = 10_000  # so that a quantile is right to a ten-thousandth


@dataclass(eq=False)
class Spread:
    """Mean, deviation and distribution of one figure over the runs that were added.

    Attributes
    ----------
    count : int
    mean : float
    minimum, maximum : float
    histogram : array of ints of shape (10000,)
        Of values within [0, 1].
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean
    minimum: float = 1.0
    maximum: float = 0.0
    histogram: Array = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))

    def add(self, values: Floats) -> None:
        r"""Take in the figure of some runs, all within [0, 1].

        Moments of two parts add up by :math:`M = M' + M'' + (\bar a - \bar b)^2 nm/(n+m)`
        (Chan, Golub and LeVeque 1983).
        """
        if not len(values):
            return
        more, mean = len(values), float(values.mean())
        total, gap = self.count + more, mean - self.mean
        self.squares += float(np.square(values - mean).sum())
        self.squares += gap**2 * self.count * more / total
        self.mean += gap * more / total
        self.count = total
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))
        bins = np.minimum((values * _BINS).astype(np.int64), _BINS - 1)
        self.histogram += np.bincount(bins, minlength=_BINS)

    @property
    def deviation(self) -> float:
        """Standard deviation over runs; 0 of a single one."""
        return float(np.sqrt(self.squares / (self.count - 1))) if self.count > 1 else 0.0

    def quantile(self, share: float) -> float:
        """Value that this share of runs is at or below, to a ten-thousandth."""
        reached = np.searchsorted(np.cumsum(self.histogram), share * self.count)
        found = (min(int(reached), _BINS - 1) + 0.5) / _BINS
        return float(np.clip(found, self.minimum, self.maximum))

    def to_json(self) -> dict[str, Any]:
        """What tables tell of it."""
        return {
            "runs": self.count,
            "mean": self.mean,
            "deviation": self.deviation,
            "minimum": self.minimum,
            "p05": self.quantile(0.05),
            "median": self.quantile(0.5),
            "p95": self.quantile(0.95),
            "maximum": self.maximum,
        }

    def state(self) -> dict[str, Array]:
        """Everything it holds, as arrays."""
        numbers = [self.count, self.mean, self.squares, self.minimum, self.maximum]
        return {"numbers": np.array(numbers, dtype=np.float64), "histogram": self.histogram}

    @classmethod
    def restored(cls, state: Mapping[str, Array]) -> "Spread":
        """One that holds what another did."""
        count, mean, squares, minimum, maximum = state["numbers"].tolist()
        histogram = np.array(state["histogram"], dtype=np.int64)
        return cls(int(count), mean, squares, minimum, maximum, histogram)


def accuracies(decisions: Ints, labels: Ints) -> Floats:
    """Share of people that each run decides rightly, of shape (runs,)."""
    found: Floats = (decisions == labels).mean(axis=1)
    return found


def areas(scores: Floats, labels: Bools) -> Floats:
    r"""Area under the ROC curve of each run.

    .. math:: \frac{1}{PN}\Bigl(\sum_{i\,:\,y_i=1} r_i - \frac{P(P+1)}{2}\Bigr)

    with the ranks :math:`r_i` of scores, equal scores sharing theirs (Mann and Whitney 1947).
    The last bit of a score is given up for the label, so that sorting carries it along, five
    times faster than sorting places. Runs with equal scores, as people who are alike have them
    in all runs, are sorted with the other labels marked, too, and the mean of both is right;
    where that last bit mattered, they are ranked the slow way.

    Parameters
    ----------
    scores : array of shape (runs, people)
        Of the positive class, on any scale that orders people.
    labels : array of bool of shape (people,)
        With people of both kinds.
    """
    plain = scores.astype(np.float64) + 0.0  # with one zero instead of two
    sums, equal = _marked_sums(plain, labels)
    tied = np.flatnonzero(equal)
    if len(tied):
        others, _ = _marked_sums(plain[tied], ~labels)
        n = len(labels)
        sums[tied] = (sums[tied] + n * (n + 1) / 2 - others) / 2
        exact = np.sort(plain[tied], axis=1)
        mattered = np.count_nonzero(exact[:, 1:] == exact[:, :-1], axis=1) != equal[tied]
        slow = tied[mattered]
        if len(slow):
            sums[slow] = rankdata(plain[slow], axis=1)[:, labels].sum(axis=1)
    positive = int(labels.sum())
    found: Floats = sums - positive * (positive + 1) / 2
    return found / (positive * (len(labels) - positive))


def _marked_sums(scores: Floats, marks: Bools) -> tuple[Floats, Ints]:
    """Sums of the places of those who are marked, and how many neighbors are equal."""
    marked = scores.view(np.int64) & ~1
    marked |= marks
    marked.view(np.float64).sort(axis=1)
    sums = (marked & 1).astype(np.float64) @ np.arange(1.0, scores.shape[1] + 1)
    marked &= ~1
    return sums, np.count_nonzero(marked[:, 1:] == marked[:, :-1], axis=1)


def f1s(decisions: Ints, labels: Ints, positive: int) -> Floats:
    """F1 of one class in each run, twice the hits over all that were said or were; or 0."""
    said, were = decisions == positive, labels == positive
    hits = 2.0 * (said & were).sum(axis=1)
    found: Floats = hits / np.maximum(said.sum(axis=1) + were.sum(), 1)
    return found


def figures_of(
    scores: Floats | None, decisions: Ints, labels: Ints, classes: int
) -> dict[str, Floats]:
    """Figures of some runs, each of shape (runs,).

    Of two classes the second is the positive one; of more, AUC and F1 are means over the
    classes that somebody belongs to, each against the rest. AUC needs scores, and people who
    belong to the class as well as others; without them it is left out.

    Parameters
    ----------
    scores : array of shape (runs, people) or (runs, people, classes), or None
    decisions : array of ints of shape (runs, people)
    labels : array of ints of shape (people,)
    classes : int
    """
    found = {"accuracy": accuracies(decisions, labels)}
    present = [1] if classes == 2 else np.unique(labels).tolist()
    found["f1"] = np.mean([f1s(decisions, labels, code) for code in present], axis=0)
    told = [code for code in present if 0 < (labels == code).sum() < len(labels)]
    if scores is not None and told:
        apart = (scores if scores.ndim == 2 else scores[:, :, code] for code in told)
        each = [areas(column, labels == code) for column, code in zip(apart, told, strict=True)]
        found["auc"] = np.mean(each, axis=0)
    return found


_NUMBERS = 1 << 17  # that are looked at together: they stay in the processor's cache
_ROUNDING = 1e-3  # that the sum of probabilities in half precision may be off
BLOCKS = 40  # into which runs are dealt, for intervals of what they share
_COUNTED = ("counts_by_block", "runs_by_block", "level_counts", "level_runs")
_SCORED = ("lowest", "highest", "mean", "squares")
_ARRAYS = (*_COUNTED, *_SCORED, "scored")


class Runs:
    """How often each person got each decision, and how scores and figures of runs vary.

    Runs have numbers. A run is dealt to a block by its number, and decisions are counted by
    block: leaving out one block after the other tells how far a mean over people would differ
    with other runs, whose decisions about different people hang together. In whatever order
    and portions runs come in, the counts are the same.

    Parameters
    ----------
    people, classes : int
    labels : array of ints in [0, classes), of shape (people,), optional
        Right answers, for accuracy, AUC and F1 of each run.
    threshold : float in (0, 1), optional
        Of two classes, the second is decided for above it, and not at it. By default 0.5;
        with more classes the likeliest is chosen, the first of equal ones.
    levels : sequence of float
        Decisions are counted once more for the runs whose accuracy reaches a level. Choosing
        runs by their accuracy spends privacy of its own: *internal* always.
    blocks : int
        At least two.

    Attributes
    ----------
    counts_by_block : array of ints of shape (blocks, people, classes)
    runs_by_block : array of ints of shape (blocks,)
    level_counts : array of ints of shape (levels, people, classes)
    level_runs : array of ints of shape (levels,)
    figures : mapping of "accuracy", "auc", "f1" to Spread
        Empty without labels.
    """

    counts_by_block: Ints
    runs_by_block: Ints
    level_counts: Ints
    level_runs: Ints
    lowest: Floats
    highest: Floats
    mean: Floats
    squares: Floats
    scored: Ints

    def __init__(
        self,
        people: int,
        classes: int = 2,
        *,
        labels: Array | None = None,
        threshold: float | None = None,
        levels: Sequence[float] = (),
        blocks: int = BLOCKS,
    ) -> None:
        _checks.whole(people=people)
        _checks.whole(least=2, classes=classes, blocks=blocks)
        self.people, self.classes, self.blocks = int(people), int(classes), int(blocks)
        self.threshold = _checked_threshold(threshold, classes)
        self.labels = None if labels is None else self._checked_labels(np.asarray(labels))
        self.levels = tuple(float(level) for level in levels)
        for level in self.levels:
            _checks.fraction(accuracy_level=level)
        if self.levels and self.labels is None:
            raise ValueError("Expected labels where runs are told apart by accuracy, got none.")
        shape = (self.people, self.classes)
        self.counts_by_block = np.zeros((self.blocks, *shape), dtype=np.int32)
        self.runs_by_block = np.zeros(self.blocks, dtype=np.int64)
        self.level_counts = np.zeros((len(self.levels), *shape), dtype=np.int64)
        self.level_runs = np.zeros(len(self.levels), dtype=np.int64)
        # Of two classes the second tells all.
        told = (self.people, 1 if self.classes == 2 else self.classes)
        self.lowest, self.highest = np.ones(told), np.zeros(told)
        self.mean, self.squares = np.zeros(told), np.zeros(told)
        self.scored = np.zeros(1, dtype=np.int64)
        self.figures: dict[str, Spread] = {}

    def __repr__(self) -> str:
        return f"Runs({self.runs} runs on {self.people} people, {self.classes} classes)"

    @property
    def runs(self) -> int:
        """How many runs were counted."""
        return int(self.runs_by_block.sum())

    @property
    def counts(self) -> Ints:
        """How many runs decided for each class, of shape (people, classes)."""
        found: Ints = self.counts_by_block.sum(axis=0, dtype=np.int64)
        return found

    @property
    def viable_range(self) -> Floats:
        """Largest probability of a person minus the smallest, for each class.

        It never falls as runs are added, so that it means nothing without their number; zero
        where runs came without scores.
        """
        return self._of_classes(np.maximum(self.highest - self.lowest, 0.0))

    @property
    def score_deviation(self) -> Floats:
        """Deviation of each person's probability over runs, of shape (people, classes)."""
        return self._of_classes(np.sqrt(self.squares / max(int(self.scored[0]) - 1, 1)))

    def _of_classes(self, told: Floats) -> Floats:
        """The same for both of two classes."""
        return np.broadcast_to(told, (self.people, self.classes))

    def add(self, decisions: Array, *, first: int | None = None) -> None:
        """Count the decisions of some runs.

        Parameters
        ----------
        decisions : array of ints in [0, classes), of shape (runs, people)
        first : int, optional
            Number of the first of them; by default as many as were counted before.
        """
        codes = self._checked(np.asarray(decisions))
        self._count(codes, self.runs if first is None else first)
        if self.labels is not None and len(codes):
            self._figure(None, codes)

    def add_scores(
        self, scores: Array, *, kind: str = "probability", first: int | None = None
    ) -> None:
        """Count the decisions that scores lead to, and note how they vary.

        Parameters
        ----------
        scores : array of shape (runs, people) or (runs, people, classes)
            Of the second of two classes, or of all.
        kind : {"probability", "logit"}
        first : int, optional
            As of :meth:`add`.
        """
        _checks.one_of(("probability", "logit"), kind=kind)
        found = self._checked_scores(np.asarray(scores), kind)
        begin = self.runs if first is None else first
        some = max(1, _NUMBERS // (self.people * self.classes))
        for start in range(0, len(found), some):
            part = found[start : start + some]
            codes = self._decided(part, kind)
            self._count(codes, begin + start)
            shares = _probabilities(part, kind, self.classes)
            self._spread(shares)
            if self.labels is not None:
                # A logit of several classes is one up to what all of a person's share, so
                # that only probabilities order people; of two, logits do, without ties.
                self._figure(part if self.classes == 2 else shares, codes)

    def state(self) -> dict[str, Array]:
        """Everything that was counted, as arrays."""
        held = {name: getattr(self, name) for name in _ARRAYS}
        for name, spread in self.figures.items():
            held |= {f"{name}/{part}": array for part, array in spread.state().items()}
        return held

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take up what another counted of the same people."""
        for name in _ARRAYS:
            mine = getattr(self, name)
            if state[name].shape != mine.shape or state[name].dtype != mine.dtype:
                raise DataError(
                    "runs",
                    f"{name} of shape {mine.shape}",
                    str(state[name].shape),
                    "Start anew.",
                )
        counted = state["counts_by_block"]
        if (counted < 0).any() or (
            counted.sum(axis=2) != state["runs_by_block"][:, None]
        ).any():
            raise DataError(
                "runs", "a decision of every run for everybody", "others", "Start anew."
            )
        for name in _ARRAYS:
            setattr(self, name, np.array(state[name]))
        names = {key.partition("/")[0] for key in state if "/" in key}
        self.figures = {
            name: Spread.restored(
                {part: state[f"{name}/{part}"] for part in ("numbers", "histogram")}
            )
            for name in sorted(names)
        }

    def _count(self, codes: Ints, first: int) -> None:
        """Count decisions by the blocks of their runs."""
        before, height = first % self.blocks, len(codes)
        places = (before + np.arange(height)) % self.blocks
        dealt = np.bincount(places, minlength=self.blocks)
        rest = np.repeat(dealt[:, None], self.people, axis=1).astype(np.int32)
        # Runs that decide for nothing fill up whole rounds of blocks.
        rounds = -(-(before + height) // self.blocks)
        said = np.zeros((rounds * self.blocks, self.people), dtype=np.uint8)
        for code in range(1, self.classes):
            said[before : before + height] = codes == code
            found = said.reshape(-1, self.blocks, self.people).sum(axis=0, dtype=np.int32)
            self.counts_by_block[:, :, code] += found
            rest -= found
        self.counts_by_block[:, :, 0] += rest
        self.runs_by_block += dealt

    def _spread(self, shares: Floats) -> None:
        """Note the extremes and moments of probabilities."""
        self.lowest = np.minimum(self.lowest, shares.min(axis=0))
        self.highest = np.maximum(self.highest, shares.max(axis=0))
        more, before = len(shares), int(self.scored[0])
        mean = shares.mean(axis=0, dtype=np.float64)
        gap = mean - self.mean
        self.squares += np.square(shares - mean).sum(axis=0, dtype=np.float64)
        self.squares += gap**2 * (before * more / (before + more))
        self.mean += gap * (more / (before + more))
        self.scored += more

    def _figure(self, scores: Floats | None, codes: Ints) -> None:
        """Note the figures of runs, and count again at each level they reach."""
        assert self.labels is not None
        found = figures_of(scores, codes, self.labels, self.classes)
        for name, values in found.items():
            self.figures.setdefault(name, Spread()).add(values)
        for place, level in enumerate(self.levels):
            reached = codes[found["accuracy"] >= level]
            self.level_runs[place] += len(reached)
            for code in range(self.classes):
                self.level_counts[place, :, code] += (reached == code).sum(axis=0)

    def _decided(self, scores: Floats, kind: str) -> Ints:
        """Decisions that scores lead to."""
        if self.classes > 2:
            decided: Ints = scores.argmax(axis=2)
            return decided
        at = 0.5 if self.threshold is None else self.threshold
        return (scores > (logit(at) if kind == "logit" else at)).astype(np.uint8)

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
        return codes

    def _checked_scores(self, scores: Array, kind: str) -> Floats:
        """Scores of shape (runs, people), those of the second of two classes, or of all."""
        found: Floats = scores.astype(np.float64, copy=False)
        if self.classes == 2 and found.ndim == 3 and found.shape[2] == 2:
            found = _of_second(found, kind)
        expected = (self.people,) if self.classes == 2 else (self.people, self.classes)
        if found.shape[1:] != expected:
            raise DataError(
                "scores",
                f"the shape (runs, {self.people}, {self.classes})",
                f"{scores.shape}",
                "Give one score for every run, person and class.",
            )
        fine = np.isfinite(found) if kind == "logit" else (found >= 0) & (found <= 1)
        if kind == "probability" and found.ndim == 3:
            fine = fine.all(axis=2) & (np.abs(found.sum(axis=2) - 1) <= _ROUNDING)
        if not fine.all():  # NaN is neither
            raise DataError(
                "scores",
                "finite logits"
                if kind == "logit"
                else "probabilities between 0 and 1, of all classes together 1",
                "something else, or NaN",
                "Leave out the runs that failed, and say whether scores are logits.",
            )
        return found

    def _checked_labels(self, labels: Array) -> Ints:
        """One right answer for each person."""
        good = labels.shape == (self.people,) and labels.dtype.kind in "iub"
        if not (good and labels.min() >= 0 and labels.max() < self.classes):
            raise DataError(
                "labels",
                f"{self.people} numbers of classes, 0 to {self.classes - 1}",
                f"{labels.dtype} of shape {labels.shape}",
                "Number the classes from 0.",
            )
        return labels.astype(np.int64)


def _of_second(scores: Floats, kind: str) -> Floats:
    """Of two columns, what the second one says; NaN where they are no probabilities."""
    if kind == "logit":
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            ahead: Floats = scores[:, :, 1] - scores[:, :, 0]
        return ahead
    whole = np.abs(scores.sum(axis=2) - 1) <= _ROUNDING
    second: Floats = np.where(whole, scores[:, :, 1], np.nan)
    return second


def _probabilities(scores: Floats, kind: str, classes: int) -> Floats:
    """Probabilities of shape (runs, people, classes), of two classes those of the second."""
    if classes > 2:
        with np.errstate(over="ignore"):  # farther apart than floats reach: that share is 0
            found: Floats = softmax(scores, axis=2) if kind == "logit" else scores
            return found
    second: Floats = expit(scores) if kind == "logit" else scores
    return second[:, :, None]


def _checked_threshold(threshold: float | None, classes: int) -> float | None:
    """A probability, for two classes alone."""
    if threshold is None:
        return None
    if classes > 2:
        raise ValueError("Expected no threshold with more than two classes.")
    if not 0 < threshold < 1:
        raise ValueError(f"Expected threshold between 0 and 1, got threshold={threshold!r}.")
    return float(threshold)
