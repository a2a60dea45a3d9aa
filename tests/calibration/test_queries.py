"""Queries about calibration: their values and their sensitivity."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from veracal.accounting import Budget
from veracal.calibration import (
    AbsoluteGaps,
    Binned,
    BinnedGap,
    BrierByGroup,
    BrierGain,
    ConfidenceWeightedGaps,
    ConfidenceWeightedSlopes,
    CorrectWrong,
    Gap,
    Groups,
    Identity,
    LossAt,
    Platt,
    PlattGradient,
    Temperature,
    TemperatureGradient,
    TwoTemperatures,
)
from veracal.calibration.bins import Bins
from veracal.calibration.queries.scalars import (
    MappedQuery,
    loss_at,
    on_mapped_scores,
    slope_at,
    softplus,
)
from veracal.data import Group, Scores
from veracal.errors import DataError
from veracal.ledger import open_ledger
from veracal.queries import BoundedSum, Brier, Curator, NegativeLogLikelihood, Pool, Public
from veracal.testing import adversarial_scores, check_query, check_statistic
from veracal.testing.queries import check_neighbors

ONE = 2**20
SEX = Groups("sex", ("f", "m", "x"))
AFFINE = [Platt(0.7, np.arange(4.0)), Platt([1.0, -2.0, 0.5, 0.0], np.arange(4.0))]
AFFINE.append(Platt(np.arange(16.0).reshape(4, 4) / 9, np.zeros(4)))


def grouped(n, rng, **settings):
    scores = adversarial_scores(n, rng, **settings)
    group = Group.from_values(rng.choice(SEX.names, size=n), SEX.names)
    kind = Scores.from_logits if scores.kind == "logits" else Scores.from_probabilities
    return kind(scores.values, scores.labels, groups={"sex": group})


def of_four(n, rng):
    return adversarial_scores(n, rng, classes=4)


@pytest.mark.parametrize(
    "query",
    [
        Gap(),
        Gap(0.2, classes=10),
        Gap(7.0, classes=10, bits=3),
        LossAt(0.3),
        LossAt(3.0, centered=False),
        BinnedGap(),
        BinnedGap(Bins(3), 0.2),
        CorrectWrong(),
        CorrectWrong(Bins(1), 4.0),
        TemperatureGradient(0.5),
        TemperatureGradient(-4.0, clip=1.0),
        BrierGain(Temperature(0.3)),
        BrierGain(Binned(Bins(3), [0.1, 0.5, 0.9])),
        ConfidenceWeightedGaps(TwoTemperatures(0.5, 2.0, 0.7)),
        ConfidenceWeightedGaps(TwoTemperatures(1.0, 1.0), bits=3),
        ConfidenceWeightedSlopes(TwoTemperatures(3.0, 1.0)),
        ConfidenceWeightedSlopes(TwoTemperatures(1.0, 1.0), most=0.01),
        on_mapped_scores(BinnedGap(Bins(3)), Temperature(0.3)),
        on_mapped_scores(CorrectWrong(Bins(1)), Binned(Bins(3), [0.1, 0.5, 0.9])),
    ],
    ids=repr,
)
def test_a_query_keeps_its_contract(query):
    check_query(query, trials=40)


@pytest.mark.parametrize("map_", AFFINE, ids=lambda map_: map_.form)
def test_gradients_keep_their_contract(map_):
    check_query(PlattGradient(map_, clip=0.5), of_four, trials=20)


@pytest.mark.parametrize(
    "query", [BinnedGap(groups=SEX), CorrectWrong(Bins(2), groups=SEX), BrierByGroup(SEX)]
)
def test_queries_by_group_keep_their_contract(query):
    check_query(query, grouped, trials=20)


@pytest.mark.parametrize("query", [AbsoluteGaps(), AbsoluteGaps(Bins(2), 0.3)], ids=repr)
def test_absolute_gaps_keep_the_contract_of_a_statistic(query):
    check_statistic(query, trials=60)
    check_statistic(AbsoluteGaps(groups=SEX), grouped, trials=20)


def test_each_contract_refuses_the_other_kind():
    with pytest.raises(AssertionError, match="NonAdditive"):
        check_query(AbsoluteGaps(), trials=2)
    with pytest.raises(AssertionError, match="NonAdditive"):
        check_statistic(BinnedGap(), trials=2)


def test_the_contract_catches_a_sensitivity_that_is_too_small():
    @dataclass(frozen=True)
    class OneForBoth(AbsoluteGaps):
        def sensitivity(self, relation):
            return ONE

        def sensitivity_l2(self, relation):
            return float(ONE)

    with pytest.raises(AssertionError, match="replace-one"):
        check_statistic(OneForBoth(), trials=200)


def slowly(scores, inverse):
    """Right, confidence and loss of each record, one at a time."""
    for row, label in zip(scores.logits.astype(float), scores.known_labels, strict=True):
        powers = [math.exp(inverse * (z - max(row))) for z in row]
        best = list(row).index(max(row))
        probability = powers[label] / sum(powers)
        loss = -math.log(probability) if probability else math.inf
        yield best == label, powers[best] / sum(powers), loss


@pytest.fixture
def scores(rng):
    n, logits = 300, rng.normal(scale=2, size=(300, 4))
    groups = {"sex": Group.from_values(rng.choice(SEX.names, size=n), SEX.names)}
    return Scores.from_logits(logits, rng.integers(4, size=n), groups=groups)


@pytest.mark.parametrize("inverse", [0.3, 1.0, 2.5])
def test_sums_are_those_of_the_definition(scores, inverse):
    rows = list(slowly(scores, inverse))
    gaps = [round((right - sure) * ONE) for right, sure, _ in rows]
    bins = [max(math.ceil(sure * 15) - 1, 0) for _, sure, _ in rows]
    sums = [sum(g for g, b in zip(gaps, bins, strict=True) if b == i) for i in range(15)]
    sides = [
        sum(b == i and right == side for b, (right, _, _) in zip(bins, rows, strict=True))
        for i in range(15)
        for side in (True, False)
    ]
    assert abs(Gap(inverse).evaluate(scores)[0] - sum(gaps)) <= 1
    assert np.abs(BinnedGap(inverse=inverse).evaluate(scores) - sums).max() <= 1
    total = sum(map(abs, sums))
    assert abs(AbsoluteGaps(inverse=inverse).evaluate(scores)[0] - total) <= 15
    assert CorrectWrong(inverse=inverse).evaluate(scores).tolist() == sides
    losses = sum(round(min(loss, 2.0) * ONE) for _, _, loss in rows)
    uncentered = LossAt(inverse, clamp=2.0, centered=False).evaluate(scores)[0]
    assert abs(uncentered - losses) <= 1
    assert uncentered - LossAt(inverse, clamp=2.0).evaluate(scores)[0] == 300 * ONE


def test_gaps_and_slopes_of_the_sure_are_those_of_the_definition(scores):
    map_, h = TwoTemperatures(0.6, 1.5, 0.8), 1e-4
    expected = np.zeros(2)
    for row, (right, sure, _) in zip(scores.logits, slowly(scores, 0.8), strict=True):
        one = Scores.from_logits([row], [row.argmax() if right else (row.argmax() + 1) % 4])
        ((_, confidence, _),) = slowly(one, 0.6 ** (1 - sure) * 1.5**sure)
        expected += (right - confidence) * np.array([1 - sure, sure])
    gaps = ConfidenceWeightedGaps(map_).evaluate(scores) / ONE
    np.testing.assert_allclose(gaps, expected, atol=300 / ONE)
    result = ConfidenceWeightedSlopes(map_, most=10.0).evaluate(scores) / ONE
    for i, (low, high) in enumerate(((1, 0), (0, 1))):
        ends = [
            ConfidenceWeightedGaps(
                TwoTemperatures(0.6 * math.exp(d * low), 1.5 * math.exp(d * high), 0.8)
            ).evaluate(scores)
            / ONE
            for d in (-h, h)
        ]
        slope = (ends[0] - ends[1]) / (2 * h)  # gaps fall
        np.testing.assert_allclose(slope, result[i : i + 2], rtol=0.02)


def test_both_gaps_add_up_to_the_gap_and_cost_as_much(scores):
    one, two = Gap(1.3), ConfidenceWeightedGaps(TwoTemperatures(1.3, 1.3, 0.4))
    assert abs(two.evaluate(scores).sum() - one.evaluate(scores)[0]) <= 2 * len(scores)
    for relation in ("add-remove", "replace-one"):
        assert two.sensitivity(relation) == one.sensitivity(relation)


@pytest.mark.parametrize("k", [2, 50])
def test_slopes_have_the_bounds_that_are_said(k):
    """In the worst case all others are equal: p (1 - p) log(p (k - 1) / (1 - p))."""
    p = np.linspace(1 / k, 1, 2_000, endpoint=False)
    rest = ((1 - p) / (k - 1))[:, None] * np.ones(k - 1)
    worst = Scores.from_probabilities(np.hstack([p[:, None], rest]), np.zeros(2_000, int))
    slopes = ConfidenceWeightedSlopes(TwoTemperatures(1.0, 1.0), most=10.0).per_record(worst)
    slowest = (p * (1 - p) * np.log(p * (k - 1) / (1 - p))).max()
    whole = slopes.sum(axis=1) + slopes[:, 1]  # (1-s)^2 + 2 s (1-s) + s^2 = 1
    assert whole.max() == pytest.approx(slowest, rel=1e-9)
    assert whole.max() < {2: 0.23, 50: 1.1}[k]


def test_other_maps_are_refused():
    for kind in (ConfidenceWeightedGaps, ConfidenceWeightedSlopes):
        with pytest.raises(ValueError, match="TwoTemperatures"):
            kind(Temperature(1.0))


def test_groups_are_separate_and_add_up(scores):
    whole = BinnedGap().evaluate(scores)
    parts = BinnedGap(groups=SEX).evaluate(scores).reshape(3, 15)
    assert (parts.sum(axis=0) == whole).all()
    for code in range(3):
        own = scores.take(scores.groups["sex"].codes == code)
        assert (parts[code] == BinnedGap().evaluate(own)).all()
        assert AbsoluteGaps(groups=SEX).evaluate(scores)[code] == AbsoluteGaps().evaluate(own)
        assert BrierByGroup(SEX).evaluate(scores)[code] == Brier().evaluate(own)
        sides = CorrectWrong(Bins(1), groups=SEX).evaluate(scores)[2 * code : 2 * code + 2]
        assert sides.sum() == len(own)


@pytest.mark.parametrize(
    "groups", [Groups("sex", ("m", "f", "x")), Groups("sex", ("f", "m")), Groups("age", ("f",))]
)
def test_groups_that_were_declared_otherwise_are_refused_before_anything_is_charged(
    scores, groups, tmp_path
):
    ledger = open_ledger(tmp_path / "ledger", Budget(1.0))
    with pytest.raises(DataError, match="declare"):
        Curator(scores, ledger).answer(AbsoluteGaps(groups=groups), micro_epsilon=9)
    assert ledger.spent().epsilon == 0


@pytest.mark.parametrize("names", [(), "f"])
def test_groups_need_names(names):
    with pytest.raises(ValueError, match="declared groups"):
        Groups("sex", names)


@pytest.mark.parametrize("k", [2, 3, 7, 49])
def test_a_gap_is_as_sensitive_as_its_bounds(k):
    gap = Gap(classes=k)
    assert gap.sensitivity("add-remove") == ONE
    # The bounds 2 - 1/k, rounded outward: never below, and by less than one unit.
    assert 0 <= gap.sensitivity("replace-one") - (2 - 1 / k) * ONE < 1
    assert Gap().sensitivity("replace-one") == 2 * ONE
    sure = Scores.from_logits(1000.0 * np.eye(k)[:1], [1])
    unsure = Scores.from_logits(np.zeros((1, k)), [0])
    moved = gap.evaluate(unsure) - gap.evaluate(sure)
    assert moved[0] in (gap.sensitivity("replace-one"), gap.sensitivity("replace-one") - 1)


def test_the_other_sensitivities():
    relations = ("add-remove", "replace-one")
    stated = {
        (5, 10): LossAt(bits=0),
        (10, 10): LossAt(bits=0, centered=False),
        (1, 2): CorrectWrong(),
        (ONE, 2 * ONE): AbsoluteGaps(),
        (640, 1280): TemperatureGradient(0.0),
    }
    for expected, query in stated.items():
        assert tuple(query.sensitivity(relation) for relation in relations) == expected
    assert CorrectWrong().sensitivity_l2("replace-one") == pytest.approx(math.sqrt(2))
    platt = PlattGradient(Platt(np.ones(5), np.zeros(5)), clip=2.0)
    assert [platt.sensitivity_l2(r) for r in relations] == [2048.0, 4096.0]


def test_a_gap_that_changes_sign_within_a_wide_bin_is_within_its_sensitivity():
    unsure, sure = [0.0, 0.0], [1000.0, 0.0]
    pool = Scores.from_logits(
        [unsure, sure], [0, 1]
    )  # correct with low confidence, wrong with high confidence
    check_neighbors(BinnedGap(Bins(1)), pool, 0)
    check_neighbors(BinnedGap(Bins(2)), pool, 0)


def test_absolute_gaps_attain_their_sensitivity():
    wrong = Scores.from_logits([[1000.0, 0.0]], [1])
    assert AbsoluteGaps().evaluate(wrong) == ONE  # added to none: exactly 1
    sure, unsure = 1000.0 * np.eye(20)[0], np.zeros(20)
    rows = np.stack([sure] * 3 + [unsure] * 30 + [sure, unsure])
    pool = Scores.from_logits(rows, [1] * 34 + [0])
    # From wrong with high confidence to correct with low, among others wrong in both bins.
    kept = np.arange(34)
    pair = [
        AbsoluteGaps().evaluate(pool.take(rows)) for rows in (kept, np.append(kept[:-1], 34))
    ]
    moved = abs(int(pair[0][0] - pair[1][0]))
    assert 1.94 * ONE < moved < 2 * ONE
    check_neighbors(AbsoluteGaps(), pool, 33)
    assert AbsoluteGaps().sensitivity_l2("replace-one") >= moved  # one number: no root of two


def test_several_sources_reject_non_additive_queries(scores, tmp_path):
    halves = [scores.take(scores.correct), scores.take(~scores.correct)]
    whole = AbsoluteGaps().evaluate(scores)[0]
    assert sum(AbsoluteGaps().evaluate(half)[0] for half in halves) > 1.05 * whole
    ledgers = [open_ledger(tmp_path / str(i), Budget(1.0)) for i in range(2)]
    pool = Pool([Curator(half, ledger) for half, ledger in zip(halves, ledgers, strict=True)])
    with pytest.raises(ValueError, match="cannot be added"):
        pool.answer(AbsoluteGaps(), micro_epsilon=9)
    with pytest.raises(ValueError, match="cannot be added"):
        pool.answer_gaussian(AbsoluteGaps(), noise_multiplier=1.0)
    assert [ledger.spent().epsilon for ledger in ledgers] == [0, 0]


def test_the_slope_is_the_derivative_of_the_loss(scores):
    p, h = 0.4, 1e-6
    ends = [loss_at(scores, softplus(p + d)) for d in (h, -h)]
    np.testing.assert_allclose(slope_at(scores, p), (ends[0] - ends[1]) / (2 * h), atol=1e-7)
    exact = TemperatureGradient(p, clip=1e3, bits=20).evaluate(scores)[0] / ONE
    assert exact == pytest.approx(slope_at(scores, p).sum(), abs=1e-3)


@pytest.mark.parametrize("map_", AFFINE, ids=lambda map_: map_.form)
def test_platt_gradients_are_derivatives_of_the_loss(map_, scores):
    one, h = scores.take([3]), 1e-6
    result = PlattGradient(map_, clip=1e3, bits=18).evaluate(one) / 2**18
    weights, bias = np.array(map_.weights), np.array(map_.bias)
    flat = np.concatenate([weights.ravel(), bias])

    def loss(parameters):
        w = parameters[:-4].reshape(weights.shape)
        return loss_at(Platt(w, parameters[-4:]).transform(one), 1.0)[0]

    for i in range(len(flat)):
        step = h * (np.arange(len(flat)) == i)
        slope = (loss(flat + step) - loss(flat - step)) / (2 * h)
        assert result[i] == pytest.approx(slope, abs=1e-5)


def test_weights_and_bias_are_clipped_together():
    far = Scores.from_logits([[300.0, 400.0, 0.0]], [0])
    for map_ in (Platt(1.0, np.zeros(3)), Platt(np.eye(3), np.zeros(3))):
        result = PlattGradient(map_, clip=2.0).evaluate(far) / 1024
        assert 1.99 < np.linalg.norm(result) <= 2.0


def test_the_gain_of_a_map_is_a_difference_of_brier_scores(scores):
    for map_ in (Temperature(0.4), Binned(Bins(2), [0.2, 0.6])):
        before, after = (
            Brier(top_label=True).evaluate(s) for s in (scores, map_.transform(scores))
        )
        assert abs(BrierGain(map_).evaluate(scores) - (before - after)) <= len(scores)
    assert BrierGain(Identity()).evaluate(scores) == 0


def test_at_a_temperature_of_one_the_loss_is_the_plain_one(scores):
    plain = NegativeLogLikelihood(centered=True).evaluate(scores)
    assert abs(LossAt().evaluate(scores) - plain) <= len(scores)


def test_what_differs_is_another_question():
    queries = [Gap(), Gap(2.0), Gap(classes=3), BrierGain(Temperature(1.0))]
    queries += [
        BrierGain(Temperature(2.0)),
        TemperatureGradient(0.1),
        TemperatureGradient(0.1, step=1),
    ]
    queries += [BinnedGap(), BinnedGap(Bins(3)), BinnedGap(groups=SEX)]
    settings = {(q.name, tuple(sorted(q.settings.items()))) for q in queries}
    assert len(settings) == len(queries)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gap(0.0),
        lambda: Gap(math.nan),
        lambda: Gap(classes=1),
        lambda: BinnedGap(inverse=math.inf),
        lambda: LossAt(clamp=-1.0),
        lambda: TemperatureGradient(math.nan),
        lambda: TemperatureGradient(0.0, clip=0.0),
        lambda: BrierGain("temperature"),
        lambda: PlattGradient(Temperature(1.0)),
    ],
)
def test_nonsense_is_refused(make):
    with pytest.raises(ValueError, match="Expected"):
        make()


def test_records_without_labels_are_refused():
    unlabeled = Scores.from_logits([[0.0, 1.0]])
    for query in (Gap(), AbsoluteGaps(), CorrectWrong(), BrierGain(Identity())):
        with pytest.raises(DataError, match="labels"):
            Public(unlabeled).answer(query, micro_epsilon=1)


def test_a_question_about_mapped_scores_is_that_question_about_them(rng):
    scores = adversarial_scores(50, rng)
    for map_ in (Temperature(0.3), Binned(Bins(3), [0.1, 0.5, 0.9])):
        for query in (BinnedGap(Bins(4)), CorrectWrong(Bins(1)), AbsoluteGaps(Bins(4))):
            queried = on_mapped_scores(query, map_)
            assert np.array_equal(
                queried.evaluate(scores), query.evaluate(map_.transform(scores))
            )
            assert queried.settings != on_mapped_scores(query, Temperature(0.4)).settings
            settings = {f"of {name}": value for name, value in query.settings.items()}
            assert queried.settings.items() > settings.items()
            for relation in ("add-remove", "replace-one"):
                assert queried.sensitivity(relation) == query.sensitivity(relation)
                assert queried.sensitivity_l2(relation) == query.sensitivity_l2(relation)


def test_mapped_questions_about_different_maps_are_different_questions():
    """A gain has settings of the same names as the map that comes first."""
    first = Temperature(0.5)
    one, other = (on_mapped_scores(BrierGain(Temperature(x)), first) for x in (0.3, 0.4))
    assert one.settings != other.settings
    assert one.settings != on_mapped_scores(BrierGain(first), Temperature(0.3)).settings


def test_a_record_is_mapped_independently_of_others_to_the_last_bit(rng):
    """A BLAS matrix product may differ in its last bit for a single row."""

    def last_bit(scores):
        return np.ascontiguousarray(scores.values[:, 0]).view(np.int64) & 1

    k = 10
    map_ = Platt(np.eye(k) + 0.3 * rng.normal(size=(k, k)), rng.normal(size=k))
    scores = Scores.from_logits(3 * rng.normal(size=(300, k)), rng.integers(0, k, 300))
    queried = on_mapped_scores(BoundedSum("last bit", last_bit, 0, 1, bits=0), map_)
    alone = [queried.evaluate(scores.take([i]))[0] for i in range(300)]
    assert queried.evaluate(scores)[0] == sum(alone)
    singly = [last_bit(map_.transform(scores.take([i])))[0] for i in range(300)]
    together = last_bit(map_.transform(scores))
    assert singly == together.tolist()  # even where all of them are mapped at once


def test_what_does_not_add_up_does_not_when_mapped(rng):
    queried = on_mapped_scores(AbsoluteGaps(Bins(3)), Temperature(0.3))
    check_statistic(queried, trials=20)
    source = Public(adversarial_scores(9, rng))
    with pytest.raises(ValueError, match="cannot be added"):
        Pool([source, Public(adversarial_scores(9, rng))]).answer(queried, micro_epsilon=9)
    with pytest.raises(ValueError, match="on_mapped_scores"):
        MappedQuery(AbsoluteGaps(), Temperature(0.3))
