"""Queries: what they compute, and how far one record moves them."""

import math

import numpy as np
import pytest

from veracal.accounting.components import micro_epsilon
from veracal.accounting.events import DiscreteGaussian, DiscreteLaplace, Unit
from veracal.data import Dataset, Scores
from veracal.errors import DataError
from veracal.queries.query import (
    BinnedSum,
    BoundedSum,
    DenseSum,
    Query,
    gaussian_event,
    laplace_event,
)
from veracal.queries.score_queries import Brier, Correct, Count, NegativeLogLikelihood

OURS = [Count(), Correct(), Brier(), Brier(top_label=True), NegativeLogLikelihood()]


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return Scores.from_logits(rng.normal(scale=4, size=(700, 5)), rng.integers(5, size=700))


def value(query, records):
    return query.grid.values(query.evaluate(records))


def of(numbers):
    """Records that carry one number each."""
    X = np.arange(len(numbers), dtype=float)[:, None]
    data = Dataset(X, np.zeros(len(numbers), dtype=int), ("a", "b"))
    return data, lambda part: np.asarray(numbers)[part.X[:, 0].astype(int)]


def test_count_and_correct_equal_their_definitions(scores):
    assert value(Count(), scores) == [700]
    assert value(Correct(), scores) == [(scores.values.argmax(1) == scores.labels).sum()]


def test_brier_equals_its_definition(scores):
    p, hot = scores.probabilities, np.eye(5)[scores.labels]
    assert value(Brier(), scores) == pytest.approx([((p - hot) ** 2).sum()], abs=700 * 2**-20)
    top = (scores.confidence - scores.correct) ** 2
    assert value(Brier(top_label=True), scores) == pytest.approx([top.sum()], abs=700 * 2**-20)


def test_negative_log_likelihood_is_clamped(scores):
    losses = -np.log(scores.probabilities[np.arange(700), scores.labels])
    clamped = np.minimum(losses, 10).sum()
    assert (losses > 10).any()
    assert value(NegativeLogLikelihood(), scores) == pytest.approx([clamped], abs=1e-3)
    assert value(NegativeLogLikelihood(centered=True), scores) == pytest.approx(
        [clamped - 5 * 700], abs=1e-3
    )


def test_a_probability_of_zero_is_a_clamped_loss():
    sure = Scores.from_probabilities([[1.0, 0.0]], [1])
    assert value(NegativeLogLikelihood(clamp=7), sure) == [7]


@pytest.mark.parametrize(
    ("query", "add_remove", "replace_one"),
    [
        (Count(), 1, 1),
        (Correct(), 1, 1),
        (Brier(), 2, 2),
        (Brier(top_label=True), 1, 1),
        (NegativeLogLikelihood(), 10, 10),
        (NegativeLogLikelihood(centered=True), 5, 10),
        (NegativeLogLikelihood(clamp=0.1, bits=4), 2 / 16, 2 / 16),
        (BoundedSum("gap", np.sign, -1, 1), 1, 2),
        (BoundedSum("cube", np.sign, -1, 3), 3, 4),
        (BinnedSum("gaps", np.sign, np.sign, 15, -1, 1), 1, 2),
        (BinnedSum("one sided", np.sign, np.sign, 15, 0, 3), 3, 6),
        (DenseSum("vector", np.sign, 4, 3.0, power=1), 3, 6),
        (DenseSum("round", np.sign, 4, 3.0, power=2), 6, 12),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_sensitivities_are_those_of_the_tables(query, add_remove, replace_one):
    unit = 2**query.grid.bits
    assert query.sensitivity("add-remove") == add_remove * unit
    assert query.sensitivity("replace-one") == replace_one * unit
    assert isinstance(query, Query)


def test_the_l2_sensitivity_is_smaller_if_two_bins_change():
    histogram = BinnedSum("histogram", np.sign, np.sign, 30, 0, 1, bits=0)
    assert histogram.sensitivity_l2("add-remove") == 1
    assert math.sqrt(2) <= histogram.sensitivity_l2("replace-one") < math.sqrt(2) + 1e-15
    assert DenseSum("v", np.sign, 9, 2, power=2).sensitivity_l2("replace-one") == 4 * 2**16


def test_a_replacement_within_a_bin_may_change_it_by_the_full_span():
    data, values = of([1.0, -1.0])
    signs = BinnedSum("signs", values, lambda part: np.zeros(len(part)), 2, -1, 1, bits=0)
    up, down = (signs.evaluate(data.take(np.array([row]))) for row in (0, 1))
    assert np.linalg.norm(up - down) == signs.sensitivity_l2("replace-one") == 2
    lopsided = BinnedSum("lopsided", np.sign, np.sign, 2, -1, 3, bits=0)
    assert lopsided.sensitivity_l2("replace-one") == pytest.approx(math.sqrt(18))


def test_bins_sum_their_records():
    numbers = [1.0, 2.0, 3.0, 9.0]
    data, values = of(numbers)
    _, bins = of([0, 2, 2, 7])  # the last one falls outside
    assert value(BinnedSum("b", values, bins, 3, 0, 9), data).tolist() == [1, 0, 5]
    _, odd = of([np.nan, 0.5, np.inf, -1])
    assert value(BinnedSum("b", values, odd, 3, 0, 9), data).tolist() == [0, 0, 0]


def test_dense_vectors_are_summed(scores):
    query = DenseSum("p", lambda s: s.probabilities, 5, 1.0, power=1)
    assert value(query, scores) == pytest.approx(scores.probabilities.sum(0), abs=700 * 2**-16)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_record_contributes_exactly_zero(broken):
    whole, values = of([1.0, broken, 2.0])
    query = BoundedSum("x", values, 1, 2)
    assert value(query, whole) == [3]
    vectors = DenseSum("x", lambda d: np.stack([values(d), values(d)], 1), 2, 9.0, power=1)
    assert value(vectors, whole).tolist() == [3, 3]


def test_records_beyond_the_bounds_are_clipped():
    data, values = of([-1e300, 1e300, 0.5])
    assert value(BoundedSum("x", values, -1, 2), data) == [1.5]


def test_results_do_not_depend_on_layout_or_other_records():
    """A float row alone, or column by column, differs in its last bits; its units must not."""
    rng = np.random.default_rng(0)
    z, labels = rng.normal(scale=4, size=(700, 10)), rng.integers(10, size=700)
    columns = Scores.from_logits(np.asfortranarray(z), labels)
    rows = Scores.from_logits(z, labels)
    assert (columns.probabilities != rows.probabilities).any()
    fine = BoundedSum("confidence", lambda s: s.confidence, 0, 1, bits=40)
    alone = sum(fine.evaluate(columns.take([i])) for i in range(700))
    assert fine.evaluate(columns) == fine.evaluate(rows) == alone


@pytest.mark.parametrize("k", [2, 3, 10, 200])
def test_results_do_not_depend_on_the_position_in_a_block(k):
    rng = np.random.default_rng(k)
    n = 2_500 if k <= 10 else 600  # more than a block
    scores = Scores.from_logits(rng.normal(scale=4, size=(n, k)), rng.integers(k, size=n))
    fine = BoundedSum("first", lambda s: s.probabilities[:, 0], 0, 1, bits=40)
    some = rng.choice(n, 40, replace=False)
    alone = sum(fine.evaluate(scores.take([i])) for i in some)
    rest = fine.evaluate(scores.take(np.delete(np.arange(n), some)))
    assert fine.evaluate(scores) == rest + alone
    assert fine.evaluate(scores) == fine.evaluate(scores.take(rng.permutation(n)))


@pytest.mark.parametrize(
    ("k", "width", "rows"),
    [(2, 3, 2048), (128, 3, 2048), (129, 3, 1792), (1000, 3, 256), (2, 1000, 256),
     (2, 3000, 256), (2000, 3, 256), (40_000, 3, 104)],
)  # fmt: skip
def test_blocks_have_a_public_shape_and_bounded_size(k, width, rows):
    seen = set()

    def values(some):
        seen.add(len(some))
        return np.zeros((len(some), width))

    query = DenseSum("zeros", values, width, 1.0)
    for n in (1, 3_000 if k <= 200 else 5):
        query.evaluate(Scores.from_logits(np.zeros((n, k), dtype=np.float32), np.zeros(n, int)))
    assert seen == {rows}


def test_many_classes_are_scored_in_few_rows():
    wide = Scores.from_logits(np.zeros((3, 100_000), dtype=np.float32), [0, 1, 2])
    assert value(NegativeLogLikelihood(clamp=20), wide) == pytest.approx([3 * math.log(1e5)])


@pytest.mark.parametrize("query", OURS, ids=lambda q: q.name)
def test_an_empty_set_of_records_gives_zero(query, scores):
    assert query.evaluate(scores.take([])).tolist() == [0]


def test_any_records_can_be_counted():
    assert Count().evaluate(of([1.0, 2.0])[0]).tolist() == [2]


@pytest.mark.parametrize("query", OURS[1:], ids=lambda q: q.name)
def test_inapplicable_queries_are_rejected(query, scores):
    with pytest.raises(DataError, match="labels"):
        query.evaluate(Scores.from_logits(scores.values))
    with pytest.raises(DataError, match="scores"):
        query.evaluate(of([1.0])[0])


@pytest.mark.parametrize(
    "wrong", [lambda d: 1.0, lambda d: np.ones((len(d), 2)), lambda d: "a"]
)
def test_functions_must_return_one_value_per_record(wrong):
    with pytest.raises(ValueError, match="one per record"):
        BoundedSum("x", wrong, 0, 1).evaluate(of([1.0, 2.0])[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: BoundedSum("", np.sign, 0, 1),
        lambda: BoundedSum("x", np.sign, 1, 0),
        lambda: BoundedSum("x", np.sign, 0, 0),
        lambda: BoundedSum("x", np.sign, 0, math.inf),
        lambda: BoundedSum("x", np.sign, 0, 2.0**21),
        lambda: BinnedSum("x", np.sign, np.sign, 0, 0, 1),
        lambda: DenseSum("x", np.sign, 2, 0.0),
        lambda: DenseSum("x", np.sign, 2, 1.0, power=3),
        lambda: DenseSum("x", np.sign, 2**20, 2.0**10, power=2),
        lambda: NegativeLogLikelihood(clamp=-1),
        lambda: NegativeLogLikelihood(clamp=math.inf),
        lambda: Brier(bits=41),
    ],
)
def test_queries_with_invalid_bounds_are_rejected(make):
    with pytest.raises(ValueError, match=r"Expected|64 bits"):
        make()


@pytest.mark.parametrize("query", OURS, ids=lambda q: q.name)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("max_contributions", [1, 3])
def test_the_cost_per_unit_does_not_depend_on_its_rows(query, relation, max_contributions):
    unit = Unit("patient", max_contributions)
    event = laplace_event(query, 166_666, relation, unit)
    assert event == DiscreteLaplace(event.noise, query.sensitivity(relation), relation)
    assert micro_epsilon(event, unit) == 166_666
    assert event.noise == pytest.approx(
        max_contributions * query.sensitivity(relation) / 0.166666
    )


def test_gaussian_events_have_row_sensitivity_and_noise_for_the_unit():
    event = gaussian_event(Brier(), 1.5, "add-remove", Unit("patient", 4))
    assert event == DiscreteGaussian(1.5 * 4 * 2 * 2**20, 2 * 2**20, "add-remove", 1)
    bins = BinnedSum("b", np.sign, np.sign, 7, 0, 1, bits=0)
    assert gaussian_event(bins, 1.0, "replace-one").entries == 7


def test_other_functions_are_other_queries():
    def query_with(bound):
        return BoundedSum("x", lambda s: np.minimum(s.confidence, bound), 0, 1)

    one, same, other = query_with(0.5), query_with(0.5), query_with(0.75)
    assert one.settings == same.settings != other.settings
    assert BoundedSum("x", lambda s: s.confidence, 0, 1).settings != one.settings
    assert BoundedSum("x", np.sign, 0, 1).settings != BoundedSum("x", np.cos, 0, 1).settings
