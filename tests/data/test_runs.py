"""Streamed statistics of many runs equal those of all their scores side by side."""

import pickle
import tracemalloc

import numpy as np
import pytest

from veracal.data import Group, Runs, Scores
from veracal.errors import DataError

N, K, M = 40, 3, 25


@pytest.fixture
def labels(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(K, size=N)


def many(labels: np.ndarray | None, k: int = K, m: int = M) -> list[Scores]:
    """Scores of m runs on the same records."""
    rng = np.random.default_rng(1)
    return [Scores.from_logits(3 * rng.normal(size=(N, k)), labels) for _ in range(m)]


def test_statistics_equal_their_definitions(labels: np.ndarray) -> None:
    scores = many(labels)
    runs = Runs(labels, range(K))
    for one in scores:
        runs.add(one)
    stacked = np.stack([one.probabilities for one in scores])
    np.testing.assert_allclose(runs.mean, stacked.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(runs.variance, stacked.var(axis=0, ddof=1), rtol=1e-10)
    np.testing.assert_array_equal(runs.least, stacked.min(axis=0))
    np.testing.assert_array_equal(runs.largest, stacked.max(axis=0))
    decisions = stacked.argmax(axis=2)
    np.testing.assert_array_equal(
        runs.counts, np.stack([(decisions == c).sum(axis=0) for c in range(K)], axis=1)
    )
    np.testing.assert_allclose(runs.accuracy, (decisions == labels).mean(axis=1))
    assert runs.m == M and len(runs) == N


def test_merging_collectors_equals_one_collector(labels: np.ndarray) -> None:
    scores = many(labels)
    whole, first, second, empty = (
        Runs(labels, range(K), accuracy_levels=[0.3]) for _ in range(4)
    )
    for i, one in enumerate(scores):
        whole.add(one)
        (first if i < 9 else second).add(one)
    joined = (
        empty.merge(first).merge(second).merge(Runs(labels, range(K), accuracy_levels=[0.3]))
    )
    for name in ("mean", "variance", "least", "largest", "accuracy"):
        np.testing.assert_allclose(getattr(joined, name), getattr(whole, name), rtol=1e-12)
    for name in ("counts", "level_counts", "level_m"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert joined.m == M


def test_thresholds_and_accuracy_levels() -> None:
    labels = np.arange(N) % 2
    scores = many(labels, k=2)
    runs = Runs(labels, (0, 1), thresholds=(0.2, 0.5), accuracy_levels=(0.0, 0.5))
    for one in scores:
        runs.add(one)
    second = np.stack([one.probabilities[:, 1] for one in scores])
    np.testing.assert_array_equal(runs.threshold_counts[0], (second > 0.2).sum(axis=0))
    good = np.array([one.correct.mean() >= 0.5 for one in scores])
    assert 0 < good.sum() < M
    assert runs.level_m.tolist() == [M, good.sum()]
    np.testing.assert_array_equal(runs.level_counts[1, :, 1], (second[good] > 0.5).sum(axis=0))


def test_memory_does_not_grow_with_the_number_of_runs() -> None:
    def peak(m: int) -> int:
        runs, rng = Runs(None, range(10), n=2000), np.random.default_rng(0)
        tracemalloc.start()
        for _ in range(m):
            runs.add(Scores.from_logits(rng.normal(size=(2000, 10))))
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    assert peak(60) < 1.1 * peak(6)


def test_what_does_not_belong_is_refused(labels: np.ndarray) -> None:
    runs = Runs(labels, range(K))
    for wrong in (
        Scores.from_logits(np.zeros((N - 1, K))),
        Scores.from_logits(np.zeros((N, K + 1))),
        Scores.from_logits(np.zeros((N, K)), (labels + 1) % K),
    ):
        with pytest.raises(DataError, match="same records"):
            runs.add(wrong)
    with pytest.raises(DataError, match="at least two"):
        _ = runs.add(many(labels)[0]).variance
    with pytest.raises(DataError, match="same records"):
        runs.merge(Runs(None, range(K), n=N + 1))
    with pytest.raises(ValueError, match="either labels or"):
        Runs(None, range(K))
    with pytest.raises(ValueError, match="two classes"):
        Runs(labels, range(K), thresholds=[0.5])
    with pytest.raises(ValueError, match="labels with accuracy_levels"):
        Runs(None, range(K), n=N, accuracy_levels=[0.5])


@pytest.mark.parametrize(
    "labels",
    [[5, 0], [-1, 0], [0.9, 0.2], [0.0, 1.0], ["b", "a"], [[0], [1]], [True, False], 1, [1, 2]],
)
def test_labels_are_positions(labels: object) -> None:
    with pytest.raises(DataError, match="runs: labels"):
        Runs(labels, (1, 2))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [-1, 2.7, float("nan"), "2", True])
def test_the_number_of_records_is_a_whole_number(n: object) -> None:
    with pytest.raises(ValueError, match=">= 0"):
        Runs(None, (0, 1), n=n)  # type: ignore[arg-type]


def test_there_may_be_no_records() -> None:
    assert Runs(None, (0, 1), n=0).add(Scores.from_probabilities([])).m == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"units": [1]},
        {"units": [1.0, np.nan]},
        {"units": [[1, 2], [3, 4]]},
        {"groups": {"g": Group(np.array([0]), ("x",))}},
        {"groups": {"g": np.array([0, 0])}},
        {"thresholds": [1.5]},
        {"thresholds": ["a"]},
        {"accuracy_levels": [float("nan")]},
    ],
)
def test_settings_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="xpected"):
        Runs([0, 1], (0, 1), **settings)  # type: ignore[arg-type]


def test_runs_on_the_records_of_scores() -> None:
    group = {"g": Group(np.array([0, 1]), ("x", "y"))}
    scores = Scores.from_probabilities([0.1, 0.9], [1, 2], classes=(1, 2), groups=group)
    runs = Runs.like(scores, thresholds=[0.5], accuracy_levels=[0.5])
    assert runs.m == 0 and runs.labels is not None and runs.labels.tolist() == [0, 1]
    assert runs.groups["g"].names == ("x", "y") and runs.thresholds == (0.5,)
    assert runs.add(scores).accuracy.tolist() == [1]
    unlabeled = Runs.like(Scores.from_probabilities([0.1, 0.9], units=["p", "q"]))
    assert unlabeled.labels is None and len(unlabeled) == 2
    assert unlabeled.units is not None and unlabeled.units.tolist() == ["p", "q"]


def test_runs_on_other_labels_or_people_are_not_merged() -> None:
    runs = Runs([0, 1], (0, 1), units=["p", "q"])
    for other in (Runs([1, 0], (0, 1)), Runs(None, (0, 1), n=2)):
        with pytest.raises(DataError, match="the same labels, found others"):
            runs.merge(other)
        with pytest.raises(DataError, match="the same labels, found others"):
            other.merge(runs)
    with pytest.raises(DataError, match="same records"):
        runs.merge(Runs([0, 1], (0, 1), units=["q", "p"]))
    with pytest.raises(DataError, match="same records"):
        runs.add(Scores.from_probabilities([0.1, 0.9], units=["q", "p"]))
    assert runs.merge(Runs([0, 1], (0, 1))).m == 0


def test_labels_and_units_cannot_be_changed() -> None:
    labels, units = np.array([0, 1]), np.array([7, 8])
    runs = Runs(labels, (0, 1), units=units)
    labels[0], units[0] = 1, 9
    for kept in (runs, pickle.loads(pickle.dumps(runs))):
        assert kept.labels.tolist() == [0, 1] and kept.units.tolist() == [7, 8]
        for array in (kept.labels, kept.units):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1
        kept.add(Scores.from_probabilities([0.1, 0.9]))  # the rest goes on as before
        assert kept.accuracy.tolist() == [1]
