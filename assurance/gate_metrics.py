"""Every calibration metric has a defined result for extreme numbers and records.

A cell of the matrix is a metric, a curve, a stream or a whole measurement on extreme scores. It
gives the value that the definition gives, computed slowly and on its own, or an error of ours:
never NaN, never a warning. All are counted.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from scipy.special import expit

from assurance import figures
from assurance.ledgers import Patches, patched
from veracal import calibration
from veracal.calibration import measurement as curves
from veracal.calibration import measurement as streaming
from veracal.calibration.bins import Bins
from veracal.calibration.measurement import measure
from veracal.calibration.metrics.base import Outcomes
from veracal.data import Scores
from veracal.errors import DataError

NAME = "metrics"
LARGE = (0.0, -0.0, 5e-324, 1e-300, 1.0, -1.0, 745.2, 3.4e38, -3.4e38, 1.7e308)
DTYPES = ("f2", "f4", "f8", ">f4", ">f8")
BINARY = {
    "binary_ece", "binary_f1", "binary_smooth_ece", "calibration_in_the_large",
    "calibration_intercept", "calibration_slope",
}  # fmt: skip
NAMES = calibration.figure_names(2)
DEFINED = [name for name in NAMES if hasattr(figures, name) and "smooth" not in name]
STREAMED = ("accuracy", "brier", "ece", "mce", "nll", "top_label_brier", "confidence_gap")
LIMIT = math.log(2**53 - 1)


# ---------------------------------------------------------------- the matrix


def sound_scores(long: bool) -> Iterator[tuple[str, Scores]]:
    """Scores that must be measured."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 40):
        for k in (2, 3, 17):
            z, labels = rng.normal(size=(n, k)), rng.integers(k, size=n)
            yield f"{n} records of {k} classes", Scores.from_logits(z, labels)
    for label in (0, 1):
        z = rng.normal(size=(6, 2))
        yield f"only label {label}", Scores.from_logits(z, [label] * 6)
    yield "an absent class", Scores.from_logits(rng.normal(size=(9, 4)), [0, 1, 3] * 3)
    yield "separated", Scores.from_probabilities([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1])
    yield "separated upside down", Scores.from_probabilities([0.1, 0.2, 0.9], [1, 1, 0])
    yield "extremes", Scores.from_logits([[a, b] for a in LARGE for b in LARGE], [0, 1] * 50)
    for label in range(3):
        rows = [[first, second, 0.5] for first in LARGE for second in LARGE[::3]]
        yield f"extremes of label {label}", Scores.from_logits(rows, [label] * len(rows))
    yield "ties", Scores.from_logits(np.full((4, 5), 3.0), [0, 1, 2, 4])
    yield "some ties", Scores.from_probabilities([0.2, 0.7, 0.7, 0.7, 0.9], [0, 1, 0, 1, 1])
    for p in (0.0, -0.0, 5e-324, 0.5, 1.0):
        for labels in ([0, 0, 0], [1, 1, 1], [0, 1, 1]):
            yield f"constant {p!r}, {labels}", Scores.from_probabilities([p] * 3, labels)
    yield (
        "sure and nearly sure",
        Scores.from_probabilities([1.0, 0.97, 0.0, 0.02], [0, 1, 1, 0]),
    )
    yield from on_edges(rng)
    size = 1_000_001 if long else 2_001
    rare = np.arange(size) == 17
    yield "one rare record", Scores.from_probabilities(np.where(rare, 0.9, 0.1), rare * 1)
    for dtype in DTYPES:
        z = rng.normal(size=(20, 11)).astype(dtype)
        yield f"{dtype} logits", Scores.from_logits(z, rng.integers(11, size=20))
        yield f"{dtype} columns", Scores.from_logits(np.asfortranarray(z), [0] * 20)
        z.flags.writeable = False
        yield f"{dtype} that cannot be written", Scores.from_logits(z, [1] * 20)
        p = np.array([[1, 0], [0.5, 0.5], [0.25, 0.75]], dtype=dtype)
        yield f"{dtype} probabilities", Scores.from_probabilities(p, [0, 1, 0])
    named = Scores.from_logits([[1.0, 2.0]] * 2, ["no", "yes"], classes=["no", "yes"])
    yield "named classes", named


def on_edges(rng: np.random.Generator) -> Iterator[tuple[str, Scores]]:
    """Probabilities on the edges of fifteen bins, and next to them."""
    for dtype in (np.float32, np.float64):
        edges = np.linspace(0, 1, 16).astype(dtype)
        every = np.r_[edges, np.nextafter(edges, dtype(2)), np.nextafter(edges, dtype(-1))]
        p = every[(every >= 0) & (every <= 1)]
        labels = rng.integers(2, size=len(p))
        yield f"{dtype.__name__} edges", Scores.from_probabilities(p, labels)


def refused() -> Iterator[tuple[str, Callable[[], object]]]:
    """What must be refused by an error of ours."""
    rng = np.random.default_rng(0)
    nobody = Scores.from_probabilities(np.zeros((0, 2)), [])
    unlabeled, three = (
        Scores.from_probabilities([0.5]),
        Scores.from_logits(np.eye(3), [0, 1, 2]),
    )
    for name in NAMES:
        metric = getattr(calibration, name)
        yield f"{name} of nobody", lambda metric=metric: metric(nobody)
        yield f"{name} without labels", lambda metric=metric: metric(unlabeled)
        if name in BINARY:
            yield f"{name} of three classes", lambda metric=metric: metric(three)
    for scores in (nobody, unlabeled):
        yield "curve", lambda scores=scores: curves.curve(scores)
        yield "measure", lambda scores=scores: measure(scores, rng=rng)
        yield "stream", lambda scores=scores: streaming.stream_totals([scores]).ece
    yield "one class", lambda: Scores.from_logits(np.zeros((1, 1)), [0])
    for bad in (np.nan, np.inf, -np.inf):
        yield f"logit {bad}", lambda bad=bad: Scores.from_logits([[bad, 1.0]], [0])


# ---------------------------------------------------------------- mutants


def own_bin_for_one(parts: Iterable[Outcomes], bins: Bins) -> np.ndarray:
    """A phantom bin past the last edge."""
    sums = np.zeros(bins.count + 1)
    for part in parts:
        place = np.where(part.probability == 1, bins.count, bins.of(part.probability))
        np.add.at(sums, place, part.probability.astype(float) - part.happened)
    return sums


def zero_dropped(parts: Iterable[Outcomes], bins: Bins) -> np.ndarray:
    """(0, u] without the 0."""
    sums = np.zeros(bins.count)
    for part in parts:
        kept = part.probability > 0
        gaps = part.probability.astype(float) - part.happened
        np.add.at(sums, bins.of(part.probability)[kept], gaps[kept])
    return sums


def left_closed(probabilities: np.ndarray, bins: Bins) -> np.ndarray:
    return np.minimum(
        np.floor(probabilities.astype(float) * bins.count), bins.count - 1
    ).astype(int)


def single_edges(probabilities: np.ndarray, bins: Bins) -> np.ndarray:
    """Edges in the precision of the probabilities."""
    scaled = np.ceil(probabilities * probabilities.dtype.type(bins.count))
    return np.maximum(scaled.astype(int) - 1, 0)


def logits_as_they_are(logits: np.ndarray, top: np.ndarray) -> np.ndarray:
    return np.clip(top.astype(float), 0, 1)


def any_of_the_equal(scores: Scores) -> Iterator[Outcomes]:
    """A tie counts as right."""
    own = scores.values[np.arange(len(scores)), scores.known_labels]
    yield Outcomes(scores.confidence, own == scores.values.max(axis=1))


def empty_bins_too(totals: Any) -> float:
    return float(np.max(np.abs(totals.gaps / totals.counts)))


def nll_cut_off(scores: Scores) -> Iterator[np.ndarray]:
    rows = np.arange(len(scores))
    own = scores.probabilities[rows, scores.known_labels].astype(float)
    yield -np.log(np.clip(own, 1e-15, 1))


def ranks_by_order(ranked: np.ndarray) -> np.ndarray:
    """Equal scores one after the other."""
    return np.arange(1.0, len(ranked) + 1)[:, None] * np.ones((1, ranked.shape[1]))


def ties_parted(values: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(values, axis=0, kind="stable")
    pieces = np.array_split(np.arange(len(values)), min(bins, len(values)))
    piece = np.repeat(np.arange(len(pieces)), [len(p) for p in pieces])
    return order, np.repeat(piece[:, None], values.shape[1], axis=1)


def runs_off(odds: np.ndarray, happened: np.ndarray) -> float:
    """Newton's method, wherever it ends."""
    odds, a, b = np.clip(odds, -36.7, 36.7), 0.0, 0.0
    for _ in range(30):
        p = expit(a + b * odds)
        w = p * (1 - p) + 1e-9
        a -= (p - happened).sum() / w.sum()
        b -= ((p - happened) * odds).sum() / max((w * odds**2).sum(), 1e-300)
    return float(b)


def no_mirror(parts: Iterable[Outcomes], bandwidth: float | None) -> float:
    """What is smoothed past 0 and 1 is lost."""
    pairs = [
        (p, h) for part in parts for p, h in zip(part.probability, part.happened, strict=True)
    ]
    t = (np.arange(1_000) + 0.5) / 1_000
    width = bandwidth or 0.1
    bells = [(h - p) * np.exp(-(((t - p) / width) ** 2) / 2) for p, h in pairs]
    return float(np.abs(np.sum(bells, axis=0)).mean() / (width * 2.5066 * len(pairs)))


AT = "veracal.calibration.metrics"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "a bin of its own for 1.0": {
        "veracal.calibration.metrics.errors.gap_totals": own_bin_for_one
    },
    "0.0 dropped": {"veracal.calibration.metrics.errors.gap_totals": zero_dropped},
    "left-closed bins": {"veracal.calibration.metrics.base.bin_indices": left_closed},
    "edges in single precision": {"veracal.calibration.metrics.base.bin_indices": single_edges},
    "left-closed bins of classes": {
        "veracal.calibration.metrics.errors.bin_indices": left_closed
    },
    "logits taken for probabilities": {
        "veracal.calibration.metrics.base._confidence": logits_as_they_are
    },
    "ties count as right": {
        "veracal.calibration.metrics.errors.top_label_blocks": any_of_the_equal
    },
    "empty bins divide by zero": {
        "veracal.calibration.metrics.errors.largest_gap": empty_bins_too
    },
    "likelihood cut off": {"veracal.calibration.metrics.performance.nll_blocks": nll_cut_off},
    "equal scores ranked by order": {
        "veracal.calibration.metrics.performance.mean_ranks": ranks_by_order
    },
    "equal confidences parted": {"veracal.calibration.metrics.errors.equal_mass": ties_parted},
    "slope runs off": {"veracal.calibration.metrics.performance._slope": runs_off},
    "kernel without mirrors": {"veracal.calibration.metrics.errors._smooth": no_mirror},
}


def run(subject: Patches, *, long: bool) -> str:
    """Fill every cell."""
    with patched(subject), warnings.catch_warnings():
        warnings.simplefilter("error")
        values = sum(check(name, scores) for name, scores in sound_scores(long))
        values += check_wide()
        errors = sum(check_refused(name, ask) for name, ask in refused())
    total = values + errors
    return (
        f"{total:,} of {total:,} cells as stated: {values:,} values, {errors} refusals; 0 NaN"
    )


def check(name: str, scores: Scores) -> int:
    """Every metric, curve and measurement of some scores."""
    named = [m for m in NAMES if m not in BINARY or scores.n_classes == 2]
    found = {m: valued(m, lambda m=m: getattr(calibration, m)(scores), name) for m in named}
    if len(scores) <= 20_000:
        for m in set(named) & set(DEFINED):
            expected = getattr(figures, m)(scores)
            agree = found[m] == expected or abs(found[m] - expected) <= 1e-9
            assert agree, f"{m} on {name}: {found[m]}, by definition {expected}"
        check_lines(name, scores, found)
    check_smooth(name, scores, found)
    return len(named) + check_others(name, scores, found)


def check_smooth(name: str, scores: Scores, found: dict[str, float]) -> None:
    """The smooth error is at most the mean gap, and its own bandwidth; slowly, if few."""
    assert 0 <= found["smooth_ece"] <= 1, f"smooth_ece on {name}: {found['smooth_ece']}"
    if len(scores) <= 10:
        expected = figures.smooth_ece(scores, 0.1)
        at = valued("smooth_ece", lambda: calibration.smooth_ece(scores, bandwidth=0.1), name)
        assert abs(at - expected) <= 1e-5, f"smooth_ece on {name}: {at}, not {expected}"


def check_lines(name: str, scores: Scores, found: dict[str, float]) -> None:
    """Slopes are best or as stated, intercepts make the mean right or are as stated."""
    kinds = [("top_label_", figures.top)] + [("", figures.second)] * (scores.n_classes == 2)
    for kind, pairs_of in kinds:
        happened = [h for _, h in pairs_of(scores)]
        x = log_odds(scores, kind)
        slope, stated = found[f"{kind}calibration_slope"], figures.separated(x, happened)
        if stated is not None:
            assert slope == stated, f"{kind}slope on {name}: {slope}, not {stated}"
        elif abs(slope) < 100:
            pull = figures.slope_pull(slope, x, happened)
            assert abs(pull) < 1e-6, f"{kind}slope on {name}: {slope} is not the best"
        shift = found[f"{kind}calibration_intercept"]
        if len(set(happened)) == 1:
            assert shift == (LIMIT if happened[0] else -LIMIT), f"intercept on {name}: {shift}"
        else:
            mean = float(expit(np.array(x) + shift).mean())
            assert abs(mean - np.mean(happened)) < 1e-9, f"intercept on {name}: {shift}"


def log_odds(scores: Scores, kind: str) -> list[float]:
    """Log odds of the event, limited as stated."""
    if kind:
        p = scores.confidence.astype(float)
        with np.errstate(divide="ignore"):
            odds = np.log(p) - np.log1p(-p)
    else:
        logits = scores.logits.astype(float)
        with np.errstate(over="ignore"):
            odds = logits[:, 1] - logits[:, 0]
    return np.clip(odds, -LIMIT, LIMIT).tolist()


def check_others(name: str, scores: Scores, found: dict[str, float]) -> int:
    """Curve, stream and measurement agree with the metrics."""
    curve = curves.curve(scores, interval="clopper-pearson")
    assert sum(curve.counts) == len(scores), f"curve on {name}: {curve.counts}"
    assert abs(curve.ece - found["ece"]) <= 1e-12, f"curve on {name}: {curve.ece}"
    stream = streaming.stream_totals(
        [scores.take(np.arange(len(scores)) % 2 == i) for i in (0, 1)]
    )
    for m in STREAMED:
        streamed = valued(m, lambda m=m: getattr(stream, m), name)
        same = streamed == found[m] or abs(streamed - found[m]) <= 1e-12
        assert same, f"streamed {m} on {name}: {streamed}, whole {found[m]}"
    result = measure(
        scores, figures=["ece", "nll", "auc", "ks"], replicates=2, rng=np.random.default_rng(0)
    )
    numbers = [v for e in result.figures.values() for v in (e.value, e.low, e.high)]
    assert not any(math.isnan(v) for v in numbers if v is not None), f"measure on {name}"
    return 1 + len(STREAMED) + len(result.figures)


def check_wide() -> int:
    """A hundred thousand classes: every metric has a number."""
    wide = np.random.default_rng(0).normal(size=(2, 100_000)).astype(np.float32)
    scores = Scores.from_logits(wide, [0, 99_999])
    named = [m for m in NAMES if m not in BINARY]
    for m in named:
        valued(m, lambda m=m: getattr(calibration, m)(scores), "100,000 classes")
    return len(named)


def valued(metric: str, ask: Callable[[], float], name: str) -> float:
    """The figure; an error, a warning or NaN is none, and only a likelihood is infinite."""
    try:
        found = ask()
    except Exception as error:
        raise AssertionError(f"{metric} on {name}: {type(error).__name__} {error}") from error
    assert isinstance(found, float), f"{metric} on {name}: {type(found).__name__}"
    finite = math.isfinite(found) or (metric == "nll" and found == math.inf)
    assert finite, f"{metric} on {name}: {found}"
    return found


def check_refused(name: str, ask: Callable[[], object]) -> int:
    """An error of ours, and no other."""
    try:
        made = ask()
    except DataError:
        return 1
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__} instead of DataError") from error
    raise AssertionError(f"{name} was taken for {made!r}")
