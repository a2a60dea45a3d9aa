"""Counts of decisions and statistics of scores over many runs, in constant memory.

Also accuracy, AUC and F1 of many runs at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit, softmax
from scipy.stats import rankdata

from veracal import _checks
from veracal._types import Array, Bools, Floats, Ints
from veracal.errors import DataError

_BINS = 10_000  # quantiles are exact to a ten-thousandth


@dataclass(eq=False)
class StreamingSummary:
    """Mean, standard deviation and histogram of one figure, within [0, 1], over runs."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean
    minimum: float = 1.0
    maximum: float = 0.0
    histogram: Array = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))

    def add(self, values: Floats) -> None:
        r"""Add the figure of some runs, all within [0, 1].

        Moments of two samples combine as :math:`M = M' + M'' + (\bar a - \bar b)^2 nm/(n+m)`
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
        """Standard deviation over runs; 0 for a single run."""
        return float(np.sqrt(self.squares / (self.count - 1))) if self.count > 1 else 0.0

    def quantile(self, share: float) -> float:
        """Quantile over runs, to a ten-thousandth."""
        bin_index = np.searchsorted(np.cumsum(self.histogram), share * self.count)
        result = (min(int(bin_index), _BINS - 1) + 0.5) / _BINS
        return float(np.clip(result, self.minimum, self.maximum))

    def to_json(self) -> dict[str, Any]:
        """The summary statistics."""
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
        """The complete state, as arrays."""
        numbers = [self.count, self.mean, self.squares, self.minimum, self.maximum]
        return {"numbers": np.array(numbers, dtype=np.float64), "histogram": self.histogram}

    @classmethod
    def from_state(cls, state: Mapping[str, Array]) -> "StreamingSummary":
        """Restore a summary from its state."""
        count, mean, squares, minimum, maximum = state["numbers"].tolist()
        histogram = np.array(state["histogram"], dtype=np.int64)
        return cls(int(count), mean, squares, minimum, maximum, histogram)


def auc_scores(scores: Floats, labels: Bools) -> Floats:
    r"""Area under the ROC curve of each run.

    .. math:: \frac{1}{PN}\Bigl(\sum_{i\,:\,y_i=1} r_i - \frac{P(P+1)}{2}\Bigr)

    with the ranks :math:`r_i` of scores, ties averaged (Mann and Whitney 1947). The label
    replaces the last bit of each score, so that sorting carries it along, five times faster
    than argsort. Runs with ties (identical rows tie in every run) are sorted a second time with
    the other labels marked; the mean of both is exact. Where the last bit decided an order, the
    run is ranked directly. The scores of the positive class, of shape (runs, individuals), may
    be on any monotone scale; labels of both classes must be present.
    """
    plain = scores.astype(np.float64) + 0.0  # turns -0.0 into 0.0
    sums, equal = _labeled_rank_sums(plain, labels)
    tied = np.flatnonzero(equal)
    if len(tied):
        others, _ = _labeled_rank_sums(plain[tied], ~labels)
        n = len(labels)
        sums[tied] = (sums[tied] + n * (n + 1) / 2 - others) / 2
        exact = np.sort(plain[tied], axis=1)
        mattered = np.count_nonzero(exact[:, 1:] == exact[:, :-1], axis=1) != equal[tied]
        slow = tied[mattered]
        if len(slow):
            sums[slow] = rankdata(plain[slow], axis=1)[:, labels].sum(axis=1)
    positive = int(labels.sum())
    result: Floats = sums - positive * (positive + 1) / 2
    return result / (positive * (len(labels) - positive))


def _labeled_rank_sums(scores: Floats, marks: Bools) -> tuple[Floats, Ints]:
    """Rank sums of the marked columns, and the number of adjacent ties."""
    marked = scores.view(np.int64) & ~1
    marked |= marks
    marked.view(np.float64).sort(axis=1)
    sums = (marked & 1).astype(np.float64) @ np.arange(1.0, scores.shape[1] + 1)
    marked &= ~1
    return sums, np.count_nonzero(marked[:, 1:] == marked[:, :-1], axis=1)


def compute_figures(
    scores: Floats | None, decisions: Ints, labels: Ints, classes: int
) -> dict[str, Floats]:
    """Accuracy, F1 and AUC of some runs, each of shape (runs,).

    With two classes the second is the positive one; with more, AUC and F1 are macro averages
    one-vs-rest over the classes that occur. AUC needs scores and both positive and negative
    labels; otherwise it is left out. Scores and decisions have a row for each run.
    """
    figures: dict[str, Floats] = {"accuracy": (decisions == labels).mean(axis=1)}
    present = [1] if classes == 2 else np.unique(labels).tolist()
    f1 = []
    for code in present:  # 2 TP / (predicted + actual positives), or 0
        predicted, actual = decisions == code, labels == code
        hits = 2.0 * (predicted & actual).sum(axis=1)
        f1.append(hits / np.maximum(predicted.sum(axis=1) + actual.sum(), 1))
    figures["f1"] = np.mean(f1, axis=0)
    present = [code for code in present if 0 < (labels == code).sum() < len(labels)]
    if scores is not None and present:
        columns = (scores if scores.ndim == 2 else scores[:, :, code] for code in present)
        each = [
            auc_scores(column, labels == code)
            for column, code in zip(columns, present, strict=True)
        ]
        figures["auc"] = np.mean(each, axis=0)
    return figures


_BLOCK_SIZE = 1 << 17  # entries processed at once: they fit the processor's cache
_ROUNDING = 1e-3  # allowed error of a sum of probabilities, for half precision
BLOCKS = 40  # blocks of runs, for jackknife intervals
_COUNTED = ("counts_by_block", "runs_by_block", "level_counts", "level_runs")
_SCORED = ("lowest", "highest", "mean", "squares")
_ARRAYS = (*_COUNTED, *_SCORED, "scored")


class Runs:
    """Counts of decisions per individual, and statistics of scores and figures over runs.

    Runs are numbered. A run is assigned to a block by its number, and decisions are counted per
    block. Leaving out one block at a time (a jackknife) estimates the error of a mean over
    individuals, whose decisions are dependent because they share the runs. The counts do not
    depend on the order and the batches in which runs arrive.

    Parameters
    ----------
    individuals, classes : int
    labels : array of ints in [0, classes), of shape (individuals,), optional
        For accuracy, AUC and F1 of each run.
    threshold : float in (0, 1), optional
        Of two classes, the second is predicted strictly above it. By default 0.5; with more
        classes the most likely class is predicted, the first of ties.
    levels : sequence of float
        Decisions are also counted separately over the runs whose accuracy reaches each level.
        Selecting runs by their accuracy has a privacy cost of its own: always *internal*.
    blocks : int
        At least two.

    Attributes
    ----------
    counts_by_block : array of ints of shape (blocks, individuals, classes)
    runs_by_block : array of ints of shape (blocks,)
    level_counts : array of ints of shape (levels, individuals, classes)
    level_runs : array of ints of shape (levels,)
    figures : mapping of "accuracy", "auc", "f1" to StreamingSummary
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
        individuals: int,
        classes: int = 2,
        *,
        labels: Array | None = None,
        threshold: float | None = None,
        levels: Sequence[float] = (),
        blocks: int = BLOCKS,
    ) -> None:
        _checks.whole(individuals=individuals)
        _checks.whole(least=2, classes=classes, blocks=blocks)
        self.individuals, self.classes = int(individuals), int(classes)
        self.blocks = int(blocks)
        if threshold is not None:
            if classes > 2:
                raise ValueError("Expected no threshold with more than two classes.")
            _checks.open_fraction(threshold=threshold)
            threshold = float(threshold)
        self.threshold = threshold
        self.labels = (
            None if labels is None else validate_codes("labels", labels, individuals, classes)
        )
        self.levels = tuple(float(level) for level in levels)
        for level in self.levels:
            _checks.fraction(accuracy_level=level)
        if self.levels and self.labels is None:
            raise ValueError("Expected labels with accuracy levels, got none.")
        shape = (self.individuals, self.classes)
        self.counts_by_block = np.zeros((self.blocks, *shape), dtype=np.int32)
        self.runs_by_block = np.zeros(self.blocks, dtype=np.int64)
        self.level_counts = np.zeros((len(self.levels), *shape), dtype=np.int64)
        self.level_runs = np.zeros(len(self.levels), dtype=np.int64)
        # With two classes, the second column suffices.
        shape_of_scores = (self.individuals, 1 if self.classes == 2 else self.classes)
        self.lowest, self.highest = np.ones(shape_of_scores), np.zeros(shape_of_scores)
        self.mean, self.squares = np.zeros(shape_of_scores), np.zeros(shape_of_scores)
        self.scored = np.zeros(1, dtype=np.int64)
        self.figures: dict[str, StreamingSummary] = {}

    def __repr__(self) -> str:
        return (
            f"Runs({self.runs} runs on {self.individuals} individuals, {self.classes} classes)"
        )

    @property
    def runs(self) -> int:
        """Number of runs counted."""
        return int(self.runs_by_block.sum())

    @property
    def counts(self) -> Ints:
        """Number of runs that predict each class, of shape (individuals, classes)."""
        result: Ints = self.counts_by_block.sum(axis=0, dtype=np.int64)
        return result

    @property
    def viable_range(self) -> Floats:
        """Largest minus smallest probability over runs, of shape (individuals, classes).

        It never decreases as runs are added, so that it is meaningless without their number.
        Zero where runs came without scores.
        """
        return self._broadcast(np.maximum(self.highest - self.lowest, 0.0))

    @property
    def score_deviation(self) -> Floats:
        """Standard deviation of each probability over runs, of shape (individuals, classes)."""
        return self._broadcast(np.sqrt(self.squares / max(int(self.scored[0]) - 1, 1)))

    def _broadcast(self, values: Floats) -> Floats:
        """Repeat the one column that two classes share."""
        return np.broadcast_to(values, (self.individuals, self.classes))

    def add(self, decisions: Array, *, first: int | None = None) -> None:
        """Count the decisions of some runs.

        Parameters
        ----------
        decisions : array of ints in [0, classes), of shape (runs, individuals)
        first : int, optional
            Number of the first of these runs; by default the number of runs counted so far.
        """
        codes = self._validate_decisions(np.asarray(decisions))
        self._count_decisions(codes, self.runs if first is None else first)
        if self.labels is not None and len(codes):
            self._record_figures(None, codes)

    def add_scores(
        self, scores: Array, *, kind: str = "probability", first: int | None = None
    ) -> None:
        """Count the decisions that scores imply, and update the statistics of the scores.

        Parameters
        ----------
        scores : array of shape (runs, individuals) or (runs, individuals, classes)
            Of the second of two classes, or of all.
        kind : {"probability", "logit"}
        first : int, optional
            As for :meth:`add`.
        """
        _checks.one_of(("probability", "logit"), kind=kind)
        result = self._validate_scores(np.asarray(scores), kind)
        begin = self.runs if first is None else first
        some = max(1, _BLOCK_SIZE // (self.individuals * self.classes))
        for start in range(0, len(result), some):
            part = result[start : start + some]
            codes = self._decide(part, kind)
            self._count_decisions(codes, begin + start)
            shares = part
            if kind == "logit" and self.classes == 2:
                shares = expit(part)
            elif kind == "logit":
                with np.errstate(over="ignore"):  # on overflow the share is 0
                    shares = softmax(part, axis=2)
            if self.classes == 2:
                shares = shares[:, :, None]  # only of the second class
            self._record_probabilities(shares)
            if self.labels is not None:
                # Logits of several classes are defined up to a constant per individual, so
                # that only probabilities rank individuals; with two, logits do, without ties.
                self._record_figures(part if self.classes == 2 else shares, codes)

    def state(self) -> dict[str, Array]:
        """The complete state, as arrays."""
        state = {name: getattr(self, name) for name in _ARRAYS}
        for name, spread in self.figures.items():
            state |= {f"{name}/{part}": array for part, array in spread.state().items()}
        return state

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the state of an earlier count of the same individuals."""
        for name in _ARRAYS:
            own = getattr(self, name)
            if state[name].shape != own.shape or state[name].dtype != own.dtype:
                raise DataError(
                    "runs",
                    f"{name} of shape {own.shape}",
                    str(state[name].shape),
                    "Start a new audit.",
                )
        counted = state["counts_by_block"]
        if (counted < 0).any() or (
            counted.sum(axis=2) != state["runs_by_block"][:, None]
        ).any():
            raise DataError(
                "runs",
                "one decision per run and individual",
                "other counts",
                "Start a new audit.",
            )
        for name in _ARRAYS:
            setattr(self, name, np.array(state[name]))
        names = {key.partition("/")[0] for key in state if "/" in key}
        self.figures = {
            name: StreamingSummary.from_state(
                {part: state[f"{name}/{part}"] for part in ("numbers", "histogram")}
            )
            for name in sorted(names)
        }

    def _count_decisions(self, codes: Ints, first: int) -> None:
        """Count decisions by the blocks of their runs."""
        before, height = first % self.blocks, len(codes)
        places = (before + np.arange(height)) % self.blocks
        per_block = np.bincount(places, minlength=self.blocks)
        rest = np.repeat(per_block[:, None], self.individuals, axis=1).astype(np.int32)
        # Padding with empty runs fills whole rounds of blocks.
        rounds = -(-(before + height) // self.blocks)
        decided = np.zeros((rounds * self.blocks, self.individuals), dtype=np.uint8)
        for code in range(1, self.classes):
            decided[before : before + height] = codes == code
            result = decided.reshape(-1, self.blocks, self.individuals).sum(
                axis=0, dtype=np.int32
            )
            self.counts_by_block[:, :, code] += result
            rest -= result
        self.counts_by_block[:, :, 0] += rest
        self.runs_by_block += per_block

    def _record_probabilities(self, shares: Floats) -> None:
        """Update the extremes and moments of probabilities."""
        self.lowest = np.minimum(self.lowest, shares.min(axis=0))
        self.highest = np.maximum(self.highest, shares.max(axis=0))
        more, before = len(shares), int(self.scored[0])
        mean = shares.mean(axis=0, dtype=np.float64)
        gap = mean - self.mean
        self.squares += np.square(shares - mean).sum(axis=0, dtype=np.float64)
        self.squares += gap**2 * (before * more / (before + more))
        self.mean += gap * (more / (before + more))
        self.scored += more

    def _record_figures(self, scores: Floats | None, codes: Ints) -> None:
        """Update the figures of runs, and the counts at each accuracy level."""
        assert self.labels is not None
        result = compute_figures(scores, codes, self.labels, self.classes)
        for name, values in result.items():
            self.figures.setdefault(name, StreamingSummary()).add(values)
        for index, level in enumerate(self.levels):
            selected = codes[result["accuracy"] >= level]
            self.level_runs[index] += len(selected)
            for code in range(self.classes):
                self.level_counts[index, :, code] += (selected == code).sum(axis=0)

    def _decide(self, scores: Floats, kind: str) -> Ints:
        """Decisions that scores imply."""
        if self.classes > 2:
            decided: Ints = scores.argmax(axis=2)
            return decided
        at = 0.5 if self.threshold is None else self.threshold
        return (scores > (logit(at) if kind == "logit" else at)).astype(np.uint8)

    def _validate_decisions(self, codes: Array) -> Ints:
        """Check that each run gives every individual a class."""
        if (
            codes.ndim != 2
            or codes.shape[1] != self.individuals
            or codes.dtype.kind not in "iub"
        ):
            raise DataError(
                "decisions",
                f"whole numbers of shape (runs, {self.individuals})",
                f"{codes.dtype} of shape {codes.shape}",
                "Give one decision for every run and individual.",
            )
        if codes.size and not (codes.min() >= 0 and codes.max() < self.classes):
            raise DataError(
                "decisions",
                f"numbers of classes, 0 to {self.classes - 1}",
                f"{codes.min()} to {codes.max()}",
                "Number the classes from 0, and give their number.",
            )
        return codes

    def _validate_scores(self, scores: Array, kind: str) -> Floats:
        """Check the scores; of two classes, keep those of the second."""
        result: Floats = scores.astype(np.float64, copy=False)
        if self.classes == 2 and result.ndim == 3 and result.shape[2] == 2:
            if kind == "logit":
                with np.errstate(over="ignore", invalid="ignore"):  # rejected below
                    result = result[:, :, 1] - result[:, :, 0]
            else:
                whole = np.abs(result.sum(axis=2) - 1) <= _ROUNDING
                result = np.where(whole, result[:, :, 1], np.nan)
        expected = (
            (self.individuals,) if self.classes == 2 else (self.individuals, self.classes)
        )
        if result.shape[1:] != expected:
            raise DataError(
                "scores",
                f"the shape (runs, {self.individuals}, {self.classes})",
                f"{scores.shape}",
                "Give one score for every run, individual and class.",
            )
        fine = np.isfinite(result) if kind == "logit" else (result >= 0) & (result <= 1)
        if kind == "probability" and result.ndim == 3:
            fine = fine.all(axis=2) & (np.abs(result.sum(axis=2) - 1) <= _ROUNDING)
        if not fine.all():  # also rejects NaN
            raise DataError(
                "scores",
                "finite logits"
                if kind == "logit"
                else "probabilities between 0 and 1 that sum to 1 over classes",
                "other values, or NaN",
                "Leave out failed runs, and set kind if the scores are logits.",
            )
        return result


def validate_codes(name: str, codes: ArrayLike, individuals: int, classes: int) -> Ints:
    """Check the number of one class for each individual."""
    given = np.asarray(codes)
    whole = given.shape == (individuals,) and given.dtype.kind in "biu"
    if not (whole and given.min() >= 0 and given.max() < classes):
        raise DataError(
            name,
            f"{individuals} numbers of classes, 0 to {classes - 1}",
            f"{given.dtype} of shape {given.shape}" + ", others among them" * whole,
            "Give one class for each individual, with classes numbered as in training.",
        )
    checked: Ints = given.astype(np.int64)
    return checked
