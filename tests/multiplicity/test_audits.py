"""Audits of individuals, groups and runs equal their definitions."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.multiplicity.known_shares import KnownShares
from veracal.calibration import PlattScaling, TemperatureScaling
from veracal.data import Dataset, Group, load, split
from veracal.errors import DataError
from veracal.multiplicity import (
    AuditSettings,
    audit,
    audit_engine,
    audit_predictions,
    plan_audit,
)
from veracal.multiplicity.measures import (
    anytime_interval,
    disagreement_interval,
    normalized_interval,
)
from veracal.multiplicity.results import FeatureGrid
from veracal.training import OutputPerturbation

RNG = np.random.default_rng(5)
SEX = Group(np.arange(12) % 2, ("women", "men"))
AGE = Group(np.array([0] * 6 + [1] * 5 + [2]), ("young", "old", "oldest", "empty"))
PARTS = split(load("breast-cancer"), (0.6, 0.2, 0.2), key="audit")
MODEL = OutputPerturbation(2.0, norm=2.0, C=0.1)


def pairwise_disagreement(decisions):
    """Eq. 8, pair by pair: twice the share of ordered pairs of runs that differ."""
    m = len(decisions)
    pairs = [one != other for one in decisions for other in decisions]
    return 2 * np.sum(pairs, axis=0) / (m * (m - 1))


def test_every_result_equals_its_definition():
    decisions = (RNG.uniform(size=(60, 12)) < np.linspace(0, 1, 12)).astype(int)
    labels, deployed = RNG.integers(0, 2, 12), RNG.integers(0, 2, 12)
    result = audit_predictions(
        decisions,
        labels=labels,
        groups={"sex": SEX, "age": AGE},
        deployed=deployed,
        accuracy_levels=(0.5,),
    )
    expected = pairwise_disagreement(decisions)
    np.testing.assert_allclose(result.individuals.disagreement, expected)
    assert result.mean.value == pytest.approx(expected.mean())
    assert result.distribution.p95 == pytest.approx(np.quantile(expected, 0.95))
    np.testing.assert_allclose(result.individuals.flip, (decisions != deployed).mean(axis=0))
    accuracy = (decisions == labels).mean(axis=1)
    assert result.figures["accuracy"]["mean"] == pytest.approx(accuracy.mean())
    assert result.figures["accuracy"]["deviation"] == pytest.approx(accuracy.std(ddof=1))
    good = decisions[accuracy >= 0.5]
    assert result.by_accuracy[0].runs == len(good)
    assert result.by_accuracy[0].mean == pytest.approx(pairwise_disagreement(good).mean())
    assert result.by_accuracy[0].p95 == pytest.approx(
        np.quantile(pairwise_disagreement(good), 0.95)
    )
    women, men = expected[0::2].mean(), expected[1::2].mean()
    reported = result.groups["sex"]
    assert reported.values["women"].value == pytest.approx(women)
    assert reported.gap.value == pytest.approx(abs(women - men))
    assert reported.ratio.value == pytest.approx(min(women, men) / max(women, men))
    assert result.groups["age"].values["empty"].value is None
    assert result.groups["age"].individuals["oldest"] == 1
    assert any("oldest" in note for note in result.notes)
    assert (result.individuals.low <= expected + 1e-12).all()
    assert set(result.review) == set(np.flatnonzero(result.individuals.low > 0.5))
    json.dumps(result.to_json(), allow_nan=False)


def test_a_group_of_one_has_the_exact_interval_of_that_individual():
    decisions = (np.random.default_rng(4).random((50, 12)) < 0.3).astype(int)
    result = audit_predictions(decisions, groups={"age": AGE})
    reported = result.groups["age"].values["oldest"]
    expected = (
        result.individuals.disagreement[11],
        result.individuals.low[11],
        result.individuals.high[11],
    )
    assert (reported.value, reported.low, reported.high) == expected
    empty = result.groups["age"].values["empty"]
    assert (empty.value, empty.low, empty.high) == (None, None, None)


def test_intersections_of_attributes_are_groups():
    individuals = Dataset(
        np.zeros((12, 1)), np.zeros(12, int), (0, 1), {"sex": SEX, "age": AGE}
    )
    engine = KnownShares(np.full(12, 0.5))
    result = audit_engine(
        engine, individuals, AuditSettings(50, groups=("sex & age",)), random_state=0
    )
    assert result.groups["sex & age"].individuals["women & young"] == 3
    assert result.groups["sex & age"].individuals["men & empty"] == 0
    with pytest.raises(DataError, match="'income'"):
        audit_engine(engine, individuals, AuditSettings(50, groups=("income",)))


def test_auto_stops_once_every_interval_is_short_enough():
    shares = np.array([0.0, 0.01, 0.15, 0.5, 0.9, 1.0])
    result = audit_engine(
        KnownShares(shares, runs_per_call=50), None, AuditSettings(error=0.2), random_state=1
    )
    assert result.error_reached and result.anytime_valid and 100 < result.runs < 5_000
    truth = 4 * shares * (1 - shares)
    assert (result.individuals.low <= truth).all() and (truth <= result.individuals.high).all()
    half_width = np.maximum(
        result.individuals.high - result.individuals.disagreement,
        result.individuals.disagreement - result.individuals.low,
    )
    assert half_width.max() <= 0.2
    # a number of runs fixed in advance allows tighter intervals
    fixed = audit_engine(KnownShares(shares), None, AuditSettings(result.runs), random_state=1)
    width = result.individuals.high - result.individuals.low
    assert (fixed.individuals.high - fixed.individuals.low < width).all()
    short = audit_engine(
        KnownShares(shares), None, AuditSettings(error=0.01, max_runs=100), random_state=1
    )
    assert not short.error_reached and any("did not reach" in note for note in short.notes)


def test_extending_an_audit_gives_anytime_valid_intervals(tmp_path):
    shares, keep = [0.1, 0.5, 0.9], tmp_path / "runs.npz"
    first = audit_engine(
        KnownShares(shares), None, AuditSettings(100), keep=keep, random_state=1
    )
    more = audit_engine(KnownShares(shares), None, AuditSettings(400), keep=keep)
    at_once = audit_engine(KnownShares(shares), None, AuditSettings(400), random_state=1)
    assert (first.anytime_valid, more.anytime_valid, at_once.anytime_valid) == (
        False,
        True,
        False,
    )
    assert more.runs == 400 and more.error is None and more.error_reached
    assert (
        more.individuals.high - more.individuals.low
        > at_once.individuals.high - at_once.individuals.low
    ).all()
    low, high = anytime_interval(more.individuals.counts[:, 1], 400, individuals=3)
    np.testing.assert_allclose(more.individuals.low, disagreement_interval(low, high)[0])
    assert any("another number of runs" in note for note in more.notes)
    assert not first.notes and not at_once.notes


def test_only_the_same_seed_repeats_an_audit():
    one, other = (
        audit_engine(
            KnownShares([0.3, 0.6]), None, AuditSettings(40), random_state=2
        ).individuals.counts
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)
    fresh = [
        audit_engine(
            KnownShares(np.full(50, 0.5)), None, AuditSettings(40)
        ).individuals.counts.tobytes()
        for _ in range(2)
    ]
    assert fresh[0] != fresh[1]


def test_the_default_threshold_is_one_half(tmp_path):
    keep = tmp_path / "runs.npz"
    audit_engine(KnownShares([0.3, 0.6]), None, AuditSettings(20), keep=keep)
    again = audit_engine(
        KnownShares([0.3, 0.6]), None, AuditSettings(20, threshold=0.5), keep=keep
    )
    assert again.resumed == 20
    with pytest.raises(DataError, match="different threshold"):
        audit_engine(KnownShares([0.3, 0.6]), None, AuditSettings(20, threshold=0.4), keep=keep)


def test_unanimous_runs_get_a_note_that_they_prove_nothing():
    result = audit_predictions(np.zeros((40, 5), int))
    assert result.mean.value == 0.0 and len(result.review) == 0
    assert "does not prove" in " ".join(result.notes)
    assert 0.1 < result.bounds["hidden"] < 0.6
    p = result.bounds["hidden"]  # 4 p (1 - p) at the upper end of the interval of none in forty
    share = (1 - np.sqrt(1 - p)) / 2
    assert (1 - share) ** 40 == pytest.approx(0.05 / 2 / 5, rel=1e-6)


def test_a_single_label_gives_no_auc_and_a_note():
    result = audit_predictions(RNG.uniform(size=(20, 4)), labels=np.ones(4, int))
    assert "auc" not in result.figures and any("no AUC" in note for note in result.notes)


def test_more_than_two_classes_have_three_measures():
    scores = RNG.dirichlet(np.ones(3), (80, 6))
    result = audit_predictions(scores, classes=("a", "b", "c"))
    decisions = scores.argmax(axis=2)
    shares = np.stack([(decisions == c).mean(axis=0) for c in range(3)], axis=1)
    expected = 1.5 * 80 / 79 * (1 - np.square(shares).sum(axis=1))
    np.testing.assert_allclose(result.individuals.disagreement, expected)
    pairs = 4 * 80 / 79 * shares * (1 - shares)
    assert result.pooled.mean == pytest.approx(pairs.mean())
    assert result.pooled.maximum == pytest.approx(pairs.max())
    assert result.class_average.maximum == pytest.approx(pairs.mean(axis=1).max())
    assert result.class_average.maximum <= 8 / 9 * 80 / 79


def test_multiclass_intervals_cover_every_share_vector():
    low = RNG.uniform(0, 0.3, (300, 3))
    high = np.minimum(low + RNG.uniform(0, 0.5, (300, 3)), 1)
    truth = RNG.dirichlet(np.ones(3), (4000, 1))
    inside = ((truth >= low) & (truth <= high)).all(axis=2)
    share = RNG.dirichlet(np.ones(3), 300)
    ends = normalized_interval(low, high, share)
    measure = 1.5 * (1 - np.square(truth[:, 0]).sum(axis=1))[:, None]
    assert inside.sum() > 1000
    assert (~inside | ((measure >= ends[0] - 1e-12) & (measure <= ends[1] + 1e-12))).all()
    thin = RNG.dirichlet(np.ones(3), 50)
    exact = 1.5 * (1 - np.square(thin).sum(axis=1))
    for end in normalized_interval(thin, thin, thin):
        np.testing.assert_allclose(end, exact)


def test_temperature_keeps_decisions_and_platt_changes_them():
    options = dict(runs=60, random_state=0, calibration=PARTS.calibration)
    cooled = audit(MODEL, PARTS.train, PARTS.test, recalibrate=TemperatureScaling(), **options)
    reported = cooled.recalibrated
    assert reported.difference.value == 0.0 and reported.before.value == reported.after.value
    assert reported.deviation_after != reported.deviation_before
    moved = audit(MODEL, PARTS.train, PARTS.test, recalibrate=PlattScaling(), **options)
    assert moved.recalibrated.difference.value != 0.0
    after = moved.recalibrated
    assert after.difference.value == pytest.approx(after.after.value - after.before.value)
    assert after.difference.low < after.difference.value < after.difference.high
    assert moved.mean.value == cooled.mean.value  # the same runs
    with pytest.raises(ValueError, match="both recalibrate"):
        audit(MODEL, PARTS.train, PARTS.test, recalibrate=PlattScaling())


def test_an_audit_with_other_calibration_labels_is_not_resumed(tmp_path):
    options = dict(runs=60, recalibrate=PlattScaling(), keep=tmp_path / "runs.npz")
    audit(MODEL, PARTS.train, PARTS.test, calibration=PARTS.calibration, **options)
    other = replace(PARTS.calibration, y=1 - PARTS.calibration.y)
    with pytest.raises(DataError, match="different recalibration"):
        audit(MODEL, PARTS.train, PARTS.test, calibration=other, **options)


def test_plane_axes_match_their_feature_names():
    class Ramp(KnownShares):
        """Scores that rise with the first feature alone."""

        def __init__(self, X):
            super().__init__(np.clip(X[:, 0], 0, 1))

    X = np.column_stack([RNG.uniform(0, 1, 200), RNG.uniform(5, 9, 200)])
    individuals = Dataset(X, np.zeros(200, int), (0, 1), feature_names=("ramp", "flat"))
    grid = FeatureGrid.over(X, individuals.feature_names, ("ramp", "flat"), points=5)
    engine = Ramp(np.concatenate([X, grid.rows]))
    result = audit_engine(
        engine, individuals, AuditSettings(400), grid=grid, random_state=0
    ).plane
    assert result.names == ("ramp", "flat") and result.ys.min() > 4 and result.xs.max() < 1.1
    np.testing.assert_allclose(result.share, np.tile(result.xs, (5, 1)), atol=0.12)
    assert result.disagreement[:, 2].min() > 0.8 > result.disagreement[:, 0].max()
    with pytest.raises(DataError, match="'slope'"):
        FeatureGrid.over(X, individuals.feature_names, ("ramp", "slope"))


def test_flips_count_runs_that_contradict_the_deployed_model():
    fitted = OutputPerturbation(2.0, norm=2.0, C=0.1, random_state=0).fit_records(PARTS.train)
    result = audit(MODEL, PARTS.train, PARTS.test, runs=300, deployed=fitted, random_state=0)
    message = [result.classes.index(label) for label in fitted.predict(PARTS.test.X)]
    own = result.individuals.counts[np.arange(len(message)), message]
    np.testing.assert_allclose(result.individuals.flip, 1 - own / 300)


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        (np.zeros((1, 4), int), {}, "two or more runs"),
        (np.zeros(4), {}, "shape"),
        (np.zeros((3, 0)), {}, "shape"),
        (np.full((3, 4), np.nan), {}, "NaN"),
        (np.full((3, 4), 2.0), {}, "between 0 and 1"),
        (np.array([["a", "b"], ["c", "d"]]), {}, "numbers"),
        (np.zeros((3, 4), int), {"labels": [0, 1]}, "labels|rows|individuals"),
        (np.zeros((3, 4), int), {"deployed": np.zeros(3, int)}, "deployed"),
        (np.full((3, 4), 3), {"classes": ("a", "b")}, "2 classes"),
    ],
)
def test_invalid_predictions_are_rejected(values, more, message):
    with pytest.raises(DataError, match=message):
        audit_predictions(values, **more)


@pytest.mark.parametrize(
    "wrong",
    [{"runs": 1}, {"error": 0.0}, {"level": 1.0}, {"review_above": 2}, {"max_runs": 1}],
)
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AuditSettings(**wrong)


def test_planned_runs_achieve_the_planned_error():
    plan = plan_audit(individuals=6, error=0.2)
    shares = np.linspace(0, 1, 6)
    result = audit_engine(
        KnownShares(shares, runs_per_call=64), None, AuditSettings(plan.runs), random_state=4
    )
    assert result.bounds["simultaneous"] <= 0.2
    assert np.abs(result.individuals.disagreement - 4 * shares * (1 - shares)).max() <= 0.2


def test_measured_errors_stay_below_their_bounds():
    result = audit_engine(
        KnownShares(RNG.uniform(size=30)), None, AuditSettings(4000), random_state=1
    )
    runs = [row.runs for row in result.errors]
    assert runs == [100, 200, 400, 800]
    assert all(row.mean <= row.largest <= row.exact <= row.paper for row in result.errors)
    assert result.errors[0].mean > 2 * result.errors[-1].mean  # as the square root of the runs


@pytest.mark.parametrize("k", [2, 3, 7])
def test_no_interval_exceeds_the_reported_bound(k):
    decisions = np.where(np.arange(20) < 4, 0, RNG.integers(0, k, (150, 20)))
    result = audit_predictions(decisions, classes=range(k))
    individuals = result.individuals
    half_width = np.maximum(
        individuals.disagreement - individuals.low, individuals.high - individuals.disagreement
    )
    assert half_width.max() <= result.bounds["simultaneous"] + 1e-12
    assert result.bounds["single"] < result.bounds["simultaneous"] < result.bounds["paper"]
    assert result.bounds["hidden"] == pytest.approx(
        individuals.high[0]
    )  # all runs agree about them


def test_class_indices_beyond_the_limit_are_rejected():
    for invalid in (np.full((3, 4), 10**9), np.full((3, 4), 2**63, dtype=np.uint64)):
        with pytest.raises(DataError, match="numbers of classes, 0 to 65535"):
            audit_predictions(invalid)


@pytest.mark.parametrize("k", [2, 3])
def test_probabilities_must_sum_to_one(k):
    audit_predictions(np.full((3, 4, k), 1 / k, dtype=np.float16))
    for wrong in (np.full((3, 4, k), 0.9), np.zeros((3, 4, k))):
        with pytest.raises(DataError, match="sum to 1"):
            audit_predictions(wrong)


def test_logits_near_the_largest_float_are_accepted():
    ends = np.array([[[1e308, -1e308, 0.0]], [[-1e308, 1e308, 0.0]]])
    assert audit_predictions(ends, kind="logit").mean.value == pytest.approx(1.5)
    with pytest.raises(DataError, match="finite"):
        audit_predictions(ends[:, :, :2], kind="logit")  # the distance is infinite


@pytest.mark.parametrize("deployed", [[0, 1], [0.0] * 6, [2] * 6, ["a"] * 6])
def test_invalid_deployed_decisions_are_rejected_before_the_first_run(deployed):
    engine = KnownShares(np.linspace(0, 1, 6))
    with pytest.raises(DataError, match="deployed"):
        audit_engine(engine, None, AuditSettings(10), deployed=np.array(deployed))
    assert engine.runs_made == 0


def test_settings_that_would_have_no_effect_are_rejected():
    with pytest.raises(ValueError, match="threshold"):
        audit_predictions(np.zeros((3, 4), int), threshold=0.3)
    with pytest.raises(ValueError, match=r"\['age'\]"):
        AuditSettings(groups="age")


def test_a_level_just_below_one_gives_finite_intervals():
    decisions = RNG.integers(0, 2, (60, 12))
    result = audit_predictions(decisions, groups={"sex": SEX}, level=1 - 2**-53)
    json.dumps(result.to_json(), allow_nan=False)
    assert result.individuals.high[0] <= 1 and result.mean.high < 10


def test_results_contain_no_hash_of_records():
    """A published hash of records confirms a guess of them."""
    for result in (
        audit(MODEL, PARTS.train, PARTS.test, runs=3, random_state=0),
        audit_predictions(np.eye(4, 5, dtype=int)),
    ):
        reported = json.dumps(result.to_json(individuals=False))
        assert not re.search(r"[0-9a-f]{32}", reported)
