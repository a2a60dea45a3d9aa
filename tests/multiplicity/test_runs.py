"""Counting runs as they arrive equals counting all at once, in constant memory."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from veracal.errors import DataError
from veracal.multiplicity.runs import Runs, StreamingSummary, auc_scores, compute_figures

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("steps", [(100,), (1,) * 20, (7, 0, 50, 3, 41)])
def test_counts_do_not_depend_on_batching(k, steps):
    decisions = RNG.integers(0, k, (sum(steps), 9))
    runs, start = Runs(9, k, blocks=8), 0
    for step in steps:
        runs.add(decisions[start : start + step])
        start += step
    assert runs.runs == len(decisions)
    expected = np.stack([(decisions == c).sum(axis=0) for c in range(k)], axis=1)
    np.testing.assert_array_equal(runs.counts, expected)
    for block in range(8):
        mine = decisions[block::8]
        assert runs.runs_by_block[block] == len(mine)
        by_class = np.stack([(mine == c).sum(axis=0) for c in range(k)], axis=1)
        np.testing.assert_array_equal(runs.counts_by_block[block], by_class)


def test_a_score_at_the_threshold_predicts_the_first_class():
    runs = Runs(3)
    runs.add_scores(np.array([[0.5, np.nextafter(0.5, 1), 0.4]]))
    assert runs.counts[:, 1].tolist() == [0, 1, 0]
    high = Runs(3, threshold=0.8)
    high.add_scores(np.array([[0.5, 0.8, 0.81]]))
    assert high.counts[:, 1].tolist() == [0, 0, 1]


def test_the_viable_range_is_that_of_all_scores():
    scores = RNG.uniform(size=(30, 5))
    runs = Runs(5)
    for some in np.array_split(scores, 4):
        runs.add_scores(some)
    np.testing.assert_allclose(runs.viable_range[:, 1], np.ptp(scores, axis=0))
    assert (Runs(5).viable_range == 0).all()


def test_ties_between_classes_go_to_the_first():
    runs = Runs(2, 3)
    runs.add_scores(np.array([[[0.4, 0.4, 0.2], [0.1, 0.2, 0.7]]]))
    assert runs.counts.tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match="no threshold"):
        Runs(2, 3, threshold=0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.add(np.zeros((2, 4), int)), "shape"),
        (lambda t: t.add(np.zeros(3, int)), "shape"),
        (lambda t: t.add(np.zeros((2, 3))), "whole numbers"),
        (lambda t: t.add(np.array([[0, 1, 2]])), "0 to 1"),
        (lambda t: t.add(np.array([[0, -1, 1]])), "0 to 1"),
        (lambda t: t.add_scores(np.array([[0.1, np.nan, 0.2]])), "or NaN"),
        (lambda t: t.add_scores(np.array([[0.1, 1.1, 0.2]])), "between 0 and 1"),
        (lambda t: t.add_scores(np.zeros((1, 4))), "shape"),
        (lambda t: t.add_scores(np.array([[0.1, np.inf, 0.2]]), kind="logit"), "finite"),
    ],
)
def test_invalid_decisions_are_rejected_and_not_counted(call, message):
    runs = Runs(3)
    with pytest.raises(DataError, match=message):
        call(runs)
    assert runs.runs == 0 and (runs.counts == 0).all()


def test_logits_give_the_decisions_and_statistics_of_their_probabilities():
    logits = RNG.normal(0, 3, (60, 7))
    for threshold in (None, 0.3):
        one, other = Runs(7, threshold=threshold), Runs(7, threshold=threshold)
        one.add_scores(logits, kind="logit")
        other.add_scores(expit(logits))
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_allclose(one.viable_range, other.viable_range)
    np.testing.assert_allclose(one.score_deviation[:, 1], expit(logits).std(axis=0, ddof=1))
    both = np.stack([np.zeros_like(logits), logits], axis=2) + 5.0  # a column for each class
    third = Runs(7, threshold=0.3)
    third.add_scores(both, kind="logit")
    np.testing.assert_array_equal(third.counts, one.counts)
    several = RNG.normal(0, 3, (50, 4, 3))
    many = Runs(4, 3)
    many.add_scores(several, kind="logit")
    shares = softmax(several, axis=2)
    np.testing.assert_allclose(many.score_deviation, shares.std(axis=0, ddof=1))
    np.testing.assert_allclose(many.viable_range, np.ptp(shares, axis=0))


@pytest.mark.parametrize("k", [2, 3])
def test_counts_do_not_depend_on_order_or_interruption(k):
    scores = RNG.dirichlet(np.ones(k), (97, 11))
    labels = RNG.integers(0, k, 11)
    uninterrupted = Runs(11, k, labels=labels, levels=(0.3, 0.5), blocks=8)
    uninterrupted.add_scores(scores)
    part = Runs(11, k, labels=labels, levels=(0.3, 0.5), blocks=8)
    for first in (40, 0, 90):  # in this order, and then broken off
        part.add_scores(scores[first : min(first + 30, 97)], first=first)
    again = Runs(11, k, labels=labels, levels=(0.3, 0.5), blocks=8)
    again.restore({name: array.copy() for name, array in part.state().items()})
    again.add_scores(scores[70:90], first=70)
    again.add_scores(scores[30:40], first=30)
    for name, array in uninterrupted.state().items():
        np.testing.assert_allclose(again.state()[name], array, atol=1e-12, err_msg=name)
    with pytest.raises(DataError, match="Start a new audit"):
        Runs(12, k, labels=np.zeros(12, int), levels=(0.3, 0.5), blocks=8).restore(part.state())


def test_a_run_counts_in_the_block_of_its_number():
    runs = Runs(1, blocks=5)
    runs.add(np.array([[1], [0], [1]]), first=3)
    assert runs.counts_by_block[:, 0, 1].tolist() == [1, 0, 0, 1, 0]
    assert runs.counts_by_block[:, 0, 0].tolist() == [0, 0, 0, 0, 1]
    assert runs.runs_by_block.tolist() == [1, 0, 0, 1, 1]


def test_decisions_are_also_counted_by_accuracy_level():
    decisions, labels = RNG.integers(0, 2, (500, 8)), RNG.integers(0, 2, 8)
    runs = Runs(8, labels=labels, levels=(0.5, 0.75, 1.0))
    for some in np.array_split(decisions, 7):
        runs.add(some)
    accuracy = (decisions == labels).mean(axis=1)
    for place, level in enumerate((0.5, 0.75, 1.0)):
        chosen = decisions[accuracy >= level]
        assert runs.level_runs[place] == len(chosen)
        np.testing.assert_array_equal(runs.level_counts[place, :, 1], chosen.sum(axis=0))
    with pytest.raises(ValueError, match="labels"):
        Runs(8, levels=(0.5,))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [2, 3])
def test_figures_equal_scikit_learns(k, ties):
    scores = RNG.dirichlet(np.ones(k), (40, 60))
    scores = scores.round(1) if ties else scores
    labels = RNG.integers(0, k, 60)
    decisions = scores.argmax(axis=2)
    given = scores[:, :, 1] if k == 2 else scores
    result = compute_figures(given, decisions, labels, k)
    average = "binary" if k == 2 else "macro"
    for run in range(40):
        assert result["accuracy"][run] == pytest.approx(accuracy_score(labels, decisions[run]))
        f1 = f1_score(labels, decisions[run], average=average, zero_division=0)
        assert result["f1"][run] == pytest.approx(f1)
        each = [
            roc_auc_score(labels == code, scores[run, :, code])
            for code in ([1] if k == 2 else range(k))
        ]
        assert result["auc"][run] == pytest.approx(np.mean(each))


def test_multiclass_auc_uses_probabilities_for_both_kinds_of_scores():
    logits, labels = RNG.normal(size=(20, 50, 3)), np.arange(50) % 3
    reported = []
    for scores, kind in (
        (softmax(logits, axis=2), "probability"),
        (logits, "logit"),
        (logits + 9 * RNG.normal(size=(20, 50, 1)), "logit"),  # the same probabilities
    ):
        runs = Runs(50, 3, labels=labels)
        runs.add_scores(scores, kind=kind)
        reported.append(runs.figures["auc"].mean)
    slowly = [roc_auc_score(labels, run, multi_class="ovr") for run in softmax(logits, axis=2)]
    assert reported == pytest.approx([np.mean(slowly)] * 3)


def test_auc_of_scores_that_differ_in_the_last_bit_or_the_sign_of_zero():
    one = np.nextafter(0.3, 1)
    scores = np.array([[0.3, one, -0.0, 0.0], [one, 0.3, 0.0, -0.0], [-0.3, -one, -0.0, 0.0]])
    labels = np.array([True, False, True, False])
    expected = [roc_auc_score(labels, run) for run in scores]
    np.testing.assert_allclose(auc_scores(scores, labels), expected)
    many = RNG.normal(0, 300, (50, 80))
    marks = RNG.uniform(size=80) < 0.3
    expected = [roc_auc_score(marks, run) for run in many]
    np.testing.assert_allclose(auc_scores(many, marks), expected)
    np.testing.assert_allclose(
        auc_scores(many.astype(np.float32), marks),
        [roc_auc_score(marks, run) for run in many.astype(np.float32)],
    )


def test_a_single_label_gives_no_auc_and_no_division_by_zero():
    result = compute_figures(np.ones((2, 4)), np.zeros((2, 4), int), np.zeros(4, int), 2)
    assert set(result) == {"accuracy", "f1"} and result["f1"].tolist() == [0.0, 0.0]
    assert "auc" not in compute_figures(None, np.zeros((2, 4), int), np.array([0, 1, 0, 1]), 2)


def test_a_streaming_summary_equals_that_of_all_values():
    values, spread = RNG.beta(5, 2, 3_000), StreamingSummary()
    for some in np.array_split(values, 11):
        spread.add(some)
    spread.add(np.array([]))
    assert spread.mean == pytest.approx(values.mean())
    assert spread.deviation == pytest.approx(values.std(ddof=1))
    for share in (0.05, 0.5, 0.95):
        assert spread.quantile(share) == pytest.approx(np.quantile(values, share), abs=2e-3)
    reported = spread.to_json()
    assert (reported["minimum"], reported["maximum"]) == (values.min(), values.max())
    constant = StreamingSummary()
    constant.add(np.ones(3))
    assert constant.quantile(0.5) == 1.0 and constant.deviation == 0.0


def test_memory_does_not_grow_with_the_runs():
    runs = Runs(50, labels=np.arange(50) % 2)
    runs.add_scores(RNG.uniform(size=(10, 50)))
    before = sum(array.nbytes for array in runs.state().values())
    for _ in range(20):
        runs.add_scores(RNG.uniform(size=(500, 50)))
    assert sum(array.nbytes for array in runs.state().values()) == before


def slowly(scores, labels):
    """Share of pairs in the right order, where ties count half."""
    ahead = scores[:, labels][:, :, None] - scores[:, ~labels][:, None, :]
    return ((ahead > 0) + 0.5 * (ahead == 0)).mean(axis=(1, 2))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("alike", [0, 5])
@pytest.mark.parametrize("bits", [1, 3])
def test_auc_equals_the_share_of_ordered_pairs(sign, alike, bits, rng):
    for _ in range(30):
        scores = rng.normal(size=(20, 30)) if alike == 0 else rng.integers(1, 6, (20, 30)) * 1.0
        scores[10:, 15:] = scores[10:, :15]  # equal individuals
        scores += rng.integers(0, bits, scores.shape) * np.spacing(scores)
        labels = rng.permutation(np.arange(30) < 11)
        result = auc_scores(sign * scores, labels)
        np.testing.assert_allclose(result, slowly(sign * scores, labels), rtol=1e-13)


def test_auc_respects_the_last_bit():
    one = np.array([[1.0, np.nextafter(1.0, 2.0), 0.5, 0.5]])
    for labels in ([1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0]):
        marks = np.array(labels, dtype=bool)
        assert auc_scores(one, marks)[0] == slowly(one, marks)[0]
    assert auc_scores(one, np.array([0, 1, 0, 1], dtype=bool))[0] == 0.625  # 0.5 if it did not
