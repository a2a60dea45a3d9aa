"""Accuracy, area under the curve and F1 of many runs at once."""

import numpy as np
from scipy.stats import rankdata

from veracal._types import Bools, Floats, Ints


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
