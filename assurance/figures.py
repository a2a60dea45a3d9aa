"""Calibration metrics by their definitions, one record at a time and in exact sums.

Gates and tests hold the fast ones against these.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np

from veracal.data import Scores

Pair = tuple[float, bool]  # probability of an event, and whether it happened


def _records(scores: Scores) -> Iterator[tuple[list[float], int]]:
    """Scores as given, and label, of each record."""
    return zip(scores.values.astype(float).tolist(), scores.known_labels.tolist(), strict=True)


def rows_of(scores: Scores) -> list[tuple[list[float], int]]:
    """Probabilities and label of each record, by softmax written out."""
    result = []
    for row, label in _records(scores):
        if scores.kind == "logits":
            weights = [math.exp(max(z - max(row), -1000.0)) for z in row]
            row = [w / math.fsum(weights) for w in weights]
        result.append((row, label))
    return result


def top(scores: Scores) -> list[Pair]:
    """Confidence of the first largest value of each record, and whether it is the label."""
    first = [row.index(max(row)) for row in scores.values.tolist()]
    return [
        (row[j], j == label) for (row, label), j in zip(rows_of(scores), first, strict=True)
    ]


def second(scores: Scores) -> list[Pair]:
    return [(row[1], label == 1) for row, label in rows_of(scores)]


def classes(scores: Scores) -> list[list[Pair]]:
    rows = rows_of(scores)
    return [[(row[k], label == k) for row, label in rows] for k in range(scores.n_classes)]


# ---------------------------------------------------------------- bins


def equal_width(pairs: list[Pair], bins: int) -> list[list[Pair]]:
    """(b/m, (b+1)/m] in exact fractions, as far as edges are the doubles next to them."""
    edges = [float(Fraction(b, bins)) for b in range(bins + 1)]
    found: list[list[Pair]] = [[] for _ in range(bins)]
    for p, happened in pairs:
        inside = [b for b in range(bins) if edges[b] < p <= edges[b + 1]] or [0]
        found[inside[0]].append((p, happened))
    return found


def equal_mass(pairs: list[Pair], bins: int) -> list[list[Pair]]:
    """Sorted, cut into pieces; a value equal to one of an earlier piece joins it."""
    ordered = sorted(pairs, key=lambda pair: pair[0])
    pieces = [list(x) for x in np.array_split(np.arange(len(ordered)), min(bins, len(ordered)))]
    found: list[list[Pair]] = [[] for _ in pieces]
    home: dict[float, int] = {}
    for number, piece in enumerate(pieces):
        for i in piece:
            found[home.setdefault(ordered[i][0], number)].append(ordered[i])
    return found


def gap(cell: list[Pair]) -> float:
    """Mean probability minus share of what happened."""
    return math.fsum(p - happened for p, happened in cell) / len(cell)


def weighted(cells: list[list[Pair]], rule: Callable[[float], float] = abs) -> float:
    n = sum(map(len, cells))
    return math.fsum(len(cell) / n * rule(gap(cell)) for cell in cells if cell)


# ---------------------------------------------------------------- metrics


def ece(scores, bins=15):
    return weighted(equal_width(top(scores), bins))


def binary_ece(scores, bins=15):
    return weighted(equal_width(second(scores), bins))


def mce(scores, bins=15):
    return max(abs(gap(cell)) for cell in equal_width(top(scores), bins) if cell)


def over_confidence(scores, bins=15):
    return weighted(equal_width(top(scores), bins), lambda g: max(g, 0.0))


def under_confidence(scores, bins=15):
    return weighted(equal_width(top(scores), bins), lambda g: max(-g, 0.0))


def confidence_gap(scores):
    return gap(top(scores))


def ace(scores, bins=15):
    return weighted(equal_mass(top(scores), bins))


def sce(scores, bins=15):
    each = [weighted(equal_width(pairs, bins)) for pairs in classes(scores)]
    return math.fsum(each) / len(each)


def classwise_ace(scores, bins=15):
    each = [weighted(equal_mass(pairs, bins)) for pairs in classes(scores)]
    return math.fsum(each) / len(each)


def debiased_l2(scores, bins=15):
    total = 0.0
    for cell in equal_mass(top(scores), bins):
        if len(cell) > 1:
            share = sum(happened for _, happened in cell) / len(cell)
            total += len(cell) * (gap(cell) ** 2 - share * (1 - share) / (len(cell) - 1))
    return math.sqrt(max(0.0, total / len(scores)))


def ks(scores):
    gaps: dict[float, list[float]] = {}
    for p, happened in top(scores):
        gaps.setdefault(p, []).append(p - happened)
    steps = [math.fsum(gaps[p]) for p in sorted(gaps)]
    return max(abs(math.fsum(steps[: i + 1])) for i in range(len(steps))) / len(scores)


def brier(scores):
    squares = [
        math.fsum((p - (k == label)) ** 2 for k, p in enumerate(row))
        for row, label in rows_of(scores)
    ]
    return math.fsum(squares) / len(squares)


def top_label_brier(scores):
    return math.fsum((p - happened) ** 2 for p, happened in top(scores)) / len(scores)


def nll(scores):
    losses = []
    for row, label in _records(scores):
        if scores.kind == "logits":
            weights = math.fsum(math.exp(max(z - max(row), -1000.0)) for z in row)
            losses.append(max(row) - row[label] + math.log(weights))
        else:
            losses.append(-math.log(row[label]) if row[label] else math.inf)
    if sum(losses) == math.inf:  # beyond what a double holds, one way or the other
        return math.inf
    return math.fsum(losses) / len(losses)


def accuracy(scores):
    return sum(happened for _, happened in top(scores)) / len(scores)


def _f1(scores, k):
    predicted = [row.index(max(row)) for row in scores.values.tolist()]
    pairs = list(zip(predicted, scores.known_labels.tolist(), strict=True))
    right = sum(p == y == k for p, y in pairs)
    shown = sum(p == k for p, _ in pairs) + sum(y == k for _, y in pairs)
    return (2 * right / shown, True) if shown else (0.0, False)


def f1(scores):
    each = [_f1(scores, k) for k in range(scores.n_classes)]
    return sum(value for value, _ in each) / sum(occurs for _, occurs in each)


def binary_f1(scores):
    return _f1(scores, 1)[0]


def _order(scores, k):
    """What class k is ranked by."""
    rows = scores.values.astype(float).tolist()
    if scores.n_classes == 2 and scores.kind == "logits":
        return [row[1] - row[0] for row in rows]
    return [row[k] for row, _ in rows_of(scores)]


def auc(scores):
    labels, areas = scores.known_labels.tolist(), []
    for k in [1] if scores.n_classes == 2 else range(scores.n_classes):
        ranks = _order(scores, k)
        yes = [s for s, y in zip(ranks, labels, strict=True) if y == k]
        no = [s for s, y in zip(ranks, labels, strict=True) if y != k]
        if yes and no:  # else there is nothing to rank
            won = sum((a > b) + 0.5 * (a == b) for a in yes for b in no)
            areas.append(won / (len(yes) * len(no)))
    return sum(areas) / len(areas) if areas else 0.5


def calibration_in_the_large(scores):
    return -gap(second(scores))


def _smooth(pairs, bandwidth):
    """Integral of the smoothed residual, by images of each Gaussian in the two mirrors."""
    t = (np.arange(4_000) + 0.5) / 4_000
    total = np.zeros_like(t)
    for p, happened in pairs:
        for image in range(-8, 9):
            for place in (p + 2 * image, -p + 2 * image):
                bell = np.exp(-(((t - place) / bandwidth) ** 2) / 2)
                total += (happened - p) * bell / (bandwidth * math.sqrt(2 * math.pi))
    return float(np.abs(total).mean()) / len(pairs)


def smooth_ece(scores, bandwidth):
    return _smooth(top(scores), bandwidth)


def binary_smooth_ece(scores, bandwidth):
    return _smooth(second(scores), bandwidth)


def separated(x: list[float], happened: list[bool]) -> float | None:
    """The slope that is stated where there is no best one, else None."""
    yes = [a for a, h in zip(x, happened, strict=True) if h]
    no = [a for a, h in zip(x, happened, strict=True) if not h]
    if not yes or not no or min(x) == max(x):
        return 0.0
    if max(no) <= min(yes):
        return 100.0
    return -100.0 if max(yes) <= min(no) else None


def _expit(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def slope_pull(slope: float, x: list[float], happened: list[bool]) -> float:
    """Derivative of the mean loss in the slope, at the best intercept: 0 at the best slope."""
    low, high = -5_000.0, 5_000.0
    for _ in range(100):
        middle = (low + high) / 2
        if math.fsum(_expit(middle + slope * a) for a in x) > sum(happened):
            high = middle
        else:
            low = middle
    errors = [_expit(low + slope * a) - h for a, h in zip(x, happened, strict=True)]
    return math.fsum(e * a for e, a in zip(errors, x, strict=True)) / len(x)
