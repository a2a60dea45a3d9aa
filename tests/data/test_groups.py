"""Metrics by group, with intervals that cover."""

import numpy as np
import pytest

from veracal.data import Group, Scores, by_group, corrupt_labels, load
from veracal.data.dataset import UnitRows
from veracal.errors import DataError


def accuracy(scores: Scores) -> float:
    """Share of right predictions."""
    return float(scores.correct.mean())


def scores_of(right: np.ndarray, codes: np.ndarray, units: object = None) -> Scores:
    """Scores that are correct exactly at the given records."""
    return Scores.from_logits(
        np.where(right, 1.0, -1.0),
        np.ones(len(right), int),
        groups={"sex": Group(codes, ("f", "m", "x"))},
        units=units,  # type: ignore[arg-type]
    )


@pytest.fixture
def scores(rng: np.random.Generator) -> Scores:
    codes = np.repeat([0, 1], [300, 100])
    return scores_of(rng.random(400) < np.where(codes == 0, 0.9, 0.6), codes)


def test_values_equal_the_metric_on_each_group(
    scores: Scores, rng: np.random.Generator
) -> None:
    result = by_group(accuracy, scores, "sex", replicates=50, rng=rng)
    women = scores.take(scores.groups["sex"].codes == 0)
    assert result.values["f"].value == accuracy(women) and result.values["f"].n == 300
    assert result.overall.value == accuracy(scores) and result.overall.n == 400
    empty = result.values["x"]
    assert (empty.value, empty.low, empty.high, empty.n) == (None, None, None, 0)


def test_gaps_and_ratios(scores: Scores, rng: np.random.Generator) -> None:
    result = by_group(accuracy, scores, "sex", replicates=300, rng=rng)
    f, m = result.values["f"].value, result.values["m"].value
    assert f is not None and m is not None
    assert result.gap().value == pytest.approx(f - m)
    assert result.gap("m", "f").value == pytest.approx(m - f)
    assert result.ratio().value == pytest.approx(m / f)
    assert result.ratio("f", "m").value == pytest.approx(f / m)
    low, high = result.gap("f", "m").low, result.gap("f", "m").high
    assert low is not None and high is not None and low < f - m < high and low > 0.1
    assert result.gap("f", "x").value is None
    with pytest.raises(DataError, match="one of f, m, x"):
        result.gap("f", "q")
    with pytest.raises(ValueError, match="two groups"):
        result.gap("f")


def test_a_ratio_to_zero_has_no_value(rng: np.random.Generator) -> None:
    codes = np.repeat([0, 1], 20)
    result = by_group(accuracy, scores_of(codes == 9, codes), "sex", replicates=20, rng=rng)
    assert result.ratio().value is None and result.gap().value == 0


def test_intervals_cover_at_their_level() -> None:
    rng, hits = np.random.default_rng(5), 0
    codes = np.repeat([0, 1], 150)
    for _ in range(120):
        right = rng.random(300) < np.where(codes == 0, 0.8, 0.7)
        gap = by_group(
            accuracy, scores_of(right, codes), "sex", replicates=80, level=0.9, rng=rng
        )
        estimate = gap.gap("f", "m")
        assert estimate.low is not None and estimate.high is not None
        hits += estimate.low <= 0.1 <= estimate.high
    assert 96 <= hits <= 118  # binomial(120, 0.9) stays here but about once in a thousand


def test_equal_groups_have_an_interval_that_begins_at_no_gap() -> None:
    """Extremes always differ: percentiles of their gap and ratio would never hold 0 and 1."""
    rng, held = np.random.default_rng(6), 0
    codes = np.repeat([0, 1], 150)
    for _ in range(40):
        scores = scores_of(rng.random(300) < 0.7, codes)
        result = by_group(accuracy, scores, "sex", replicates=80, level=0.9, rng=rng)
        gap, ratio = result.gap(), result.ratio()
        assert gap.low is not None and gap.high is not None and ratio.high is not None
        assert 0 <= gap.low <= gap.high and ratio.high <= 1
        held += gap.low == 0 and ratio.high == 1
    assert held >= 30  # binomial(40, 0.9) is below but about once in a thousand


def test_basic_intervals_are_reflected_and_clipped(scores: Scores) -> None:
    both = [
        by_group(
            accuracy,
            scores,
            "sex",
            replicates=100,
            interval=interval,  # type: ignore[arg-type]
            within=(0.0, 0.88),
            rng=np.random.default_rng(1),
        )
        for interval in ("percentile", "basic")
    ]
    for name in ("f", "m"):
        one, two = (result.values[name] for result in both)
        assert one.value is not None and one.low is not None and one.high is not None
        assert two.low == pytest.approx(2 * one.value - one.high)
        assert two.high == pytest.approx(min(0.88, 2 * one.value - one.low))
    assert both[1].values["f"].high == 0.88 != both[0].values["f"].high
    one, two = (result.gap("f", "m") for result in both)
    assert one.value is not None and one.high is not None
    assert two.low == pytest.approx(2 * one.value - one.high)


def test_a_ratio_of_negative_values_is_not_clipped(scores: Scores) -> None:
    result = by_group(
        lambda part: -accuracy(part), scores, "sex", replicates=50, rng=np.random.default_rng(2)
    ).ratio()
    assert result.value is not None and result.low is not None and result.high is not None
    assert result.low < result.value < result.high and result.value > 1


def test_a_group_that_is_never_drawn_keeps_its_value() -> None:
    scores = scores_of(np.ones(400, bool), np.arange(400) // 399)
    result = by_group(accuracy, scores, "sex", replicates=1, rng=np.random.default_rng(0))
    alone = result.values["m"]
    assert (alone.value, alone.low, alone.high, alone.n) == (1.0, None, None, 1)


def test_whole_units_are_drawn() -> None:
    """With ten equal rows a unit, the interval is that of the units, not of the rows."""
    rng = np.random.default_rng(0)
    right = np.repeat(rng.random(40) < 0.5, 10)
    codes = np.zeros(400, int)
    rows = by_group(accuracy, scores_of(right, codes), "sex", replicates=400, rng=rng).overall
    units = by_group(
        accuracy,
        scores_of(right, codes, units=np.repeat(np.arange(40), 10)),
        "sex",
        replicates=400,
        rng=rng,
    ).overall
    widths = [e.high - e.low for e in (rows, units)]  # type: ignore[operator]
    assert widths[1] / widths[0] == pytest.approx(np.sqrt(10), rel=0.2)


def test_resampling_takes_all_rows_of_a_unit() -> None:
    units = UnitRows.of(np.array([5, 7, 5, 9, 7, 5]), 6)
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn = np.bincount(units.resample(rng), minlength=6)
        assert drawn[0] == drawn[2] == drawn[5] and drawn[1] == drawn[4]
        assert drawn[0] + drawn[1] + drawn[3] == 3


def test_infinite_values_have_infinite_intervals(rng: np.random.Generator) -> None:
    scores = scores_of(np.ones(20, bool), np.repeat([0, 1], 10))
    result = by_group(lambda _: float("inf"), scores, "sex", replicates=20, rng=rng)
    assert (result.overall.value, result.overall.low, result.overall.high) == (np.inf,) * 3


def test_intersections() -> None:
    rng = np.random.default_rng(0)
    base = scores_of(rng.random(60) < 0.5, np.repeat([0, 1], 30))
    both = Scores.from_logits(
        base.values,
        base.known_labels,
        groups={**base.groups, "age": Group(np.arange(60) % 2, ("old", "young"))},
    )
    result = by_group(accuracy, both, ("sex", "age"), replicates=10, rng=rng)
    assert result.group == "sex & age" and len(result.names) == 6
    assert result.values["f & young"].n == 15


def test_unknown_groups_and_levels(scores: Scores, rng: np.random.Generator) -> None:
    with pytest.raises(DataError, match="a group among 'sex'"):
        by_group(accuracy, scores, "age", rng=rng)
    for level in (95, 0, 1, "a"):
        with pytest.raises(ValueError, match="level"):
            by_group(accuracy, scores, "sex", level=level, rng=rng)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="interval"):
        by_group(accuracy, scores, "sex", interval="bca", rng=rng)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one group or several, got group=\(\)"):
        by_group(accuracy, scores, (), rng=rng)


def test_intersections_with_equal_names_are_refused(rng: np.random.Generator) -> None:
    """Otherwise "a & b" and "c" would equal "a" and "b & c", and one would hide the other."""
    groups = {
        "p": Group(np.array([0, 0, 1, 1]), ("a & b", "a")),
        "q": Group(np.array([0, 1, 0, 1]), ("c", "b & c")),
    }
    scores = Scores.from_probabilities([0.1, 0.2, 0.8, 0.9], [0, 1, 1, 1], groups=groups)
    with pytest.raises(DataError, match="a list of different names"):
        by_group(accuracy, scores, ("p", "q"), rng=rng)
    alone = by_group(accuracy, scores, "p", replicates=5, rng=rng)
    assert [estimate.n for estimate in alone.values.values()] == [2, 2]


def test_an_empty_group_has_no_value(rng: np.random.Generator, scores: Scores) -> None:
    result = by_group(accuracy, scores.take([]), "sex", replicates=2, rng=rng)
    assert result.overall.value is None and result.overall.n == 0


def test_corrupted_labels_follow_their_law(rng: np.random.Generator) -> None:
    data = load("digits")
    same = np.mean([(corrupt_labels(data, 0.6, rng=rng).y == data.y).mean() for _ in range(20)])
    # A uniform class may be the old one: 0.4 + 0.6/10 stay, not 0.4.
    assert same == pytest.approx(0.46, abs=4 * np.sqrt(0.46 * 0.54 / (20 * 1797)))
    assert (corrupt_labels(data, 0.0, rng=rng).y == data.y).all()
    with pytest.raises(ValueError, match="between 0 and 1"):
        corrupt_labels(data, 1.5, rng=rng)
