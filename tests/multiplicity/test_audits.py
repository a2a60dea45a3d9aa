"""An audit tells what its definition says, of people, groups and runs."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.multiplicity.coins import Coins
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
    disagreement_interval,
    lasting_interval,
    normalized_interval,
)
from veracal.multiplicity.results import FeatureGrid
from veracal.training import OutputPerturbation

RNG = np.random.default_rng(5)
SEX = Group(np.arange(12) % 2, ("women", "men"))
AGE = Group(np.array([0] * 6 + [1] * 5 + [2]), ("young", "old", "oldest", "nobody"))
PARTS = split(load("breast-cancer"), (0.6, 0.2, 0.2), key="audit")
MODEL = OutputPerturbation(2.0, norm=2.0, C=0.1)


def slowly(decisions):
    """Eq. 8, pair by pair: twice the share of ordered pairs of runs that differ."""
    m = len(decisions)
    pairs = [one != other for one in decisions for other in decisions]
    return 2 * np.sum(pairs, axis=0) / (m * (m - 1))


def test_everything_is_what_its_definition_says():
    decisions = (RNG.uniform(size=(60, 12)) < np.linspace(0, 1, 12)).astype(int)
    labels, deployed = RNG.integers(0, 2, 12), RNG.integers(0, 2, 12)
    found = audit_predictions(
        decisions,
        labels=labels,
        groups={"sex": SEX, "age": AGE},
        deployed=deployed,
        accuracy_levels=(0.5,),
    )
    expected = slowly(decisions)
    np.testing.assert_allclose(found.persons.disagreement, expected)
    assert found.mean.value == pytest.approx(expected.mean())
    assert found.distribution.p95 == pytest.approx(np.quantile(expected, 0.95))
    np.testing.assert_allclose(found.persons.flip, (decisions != deployed).mean(axis=0))
    accuracy = (decisions == labels).mean(axis=1)
    assert found.figures["accuracy"]["mean"] == pytest.approx(accuracy.mean())
    assert found.figures["accuracy"]["deviation"] == pytest.approx(accuracy.std(ddof=1))
    good = decisions[accuracy >= 0.5]
    assert found.at_levels[0].runs == len(good)
    assert found.at_levels[0].mean == pytest.approx(slowly(good).mean())
    assert found.at_levels[0].p95 == pytest.approx(np.quantile(slowly(good), 0.95))
    women, men = expected[0::2].mean(), expected[1::2].mean()
    told = found.groups["sex"]
    assert told.values["women"].value == pytest.approx(women)
    assert told.gap.value == pytest.approx(abs(women - men))
    assert told.ratio.value == pytest.approx(min(women, men) / max(women, men))
    assert found.groups["age"].values["nobody"].value is None
    assert found.groups["age"].people["oldest"] == 1
    assert any("oldest" in note for note in found.notes)
    assert (found.persons.low <= expected + 1e-12).all()
    assert set(found.review) == set(np.flatnonzero(found.persons.low > 0.5))
    json.dumps(found.to_json(), allow_nan=False)


def test_one_person_alone_in_a_group_has_their_own_interval():
    decisions = (np.random.default_rng(4).random((50, 12)) < 0.3).astype(int)
    found = audit_predictions(decisions, groups={"age": AGE})
    told = found.groups["age"].values["oldest"]
    theirs = (found.persons.disagreement[11], found.persons.low[11], found.persons.high[11])
    assert (told.value, told.low, told.high) == theirs
    nobody = found.groups["age"].values["nobody"]
    assert (nobody.value, nobody.low, nobody.high) == (None, None, None)


def test_intersections_are_groups():
    people = Dataset(np.zeros((12, 1)), np.zeros(12, int), (0, 1), {"sex": SEX, "age": AGE})
    engine = Coins(np.full(12, 0.5))
    found = audit_engine(
        engine, people, AuditSettings(50, groups=("sex & age",)), random_state=0
    )
    assert found.groups["sex & age"].people["women & young"] == 3
    assert found.groups["sex & age"].people["men & nobody"] == 0
    with pytest.raises(DataError, match="'income'"):
        audit_engine(engine, people, AuditSettings(50, groups=("income",)))


def test_an_audit_until_everybody_is_known_well_enough():
    shares = np.array([0.0, 0.01, 0.15, 0.5, 0.9, 1.0])
    found = audit_engine(
        Coins(shares, together=50), None, AuditSettings(error=0.2), random_state=1
    )
    assert found.reached and found.lasting and 100 < found.runs < 5_000
    truth = 4 * shares * (1 - shares)
    assert (found.persons.low <= truth).all() and (truth <= found.persons.high).all()
    reach = np.maximum(
        found.persons.high - found.persons.disagreement,
        found.persons.disagreement - found.persons.low,
    )
    assert reach.max() <= 0.2
    # a number fixed beforehand may use tighter intervals
    fixed = audit_engine(Coins(shares), None, AuditSettings(found.runs), random_state=1)
    width = found.persons.high - found.persons.low
    assert (fixed.persons.high - fixed.persons.low < width).all()
    short = audit_engine(
        Coins(shares), None, AuditSettings(error=0.01, most=100), random_state=1
    )
    assert not short.reached and any("not reached" in note for note in short.notes)


def test_more_runs_asked_for_after_a_look_have_intervals_that_last(tmp_path):
    shares, keep = [0.1, 0.5, 0.9], tmp_path / "runs.npz"
    first = audit_engine(Coins(shares), None, AuditSettings(100), keep=keep, random_state=1)
    more = audit_engine(Coins(shares), None, AuditSettings(400), keep=keep)
    at_once = audit_engine(Coins(shares), None, AuditSettings(400), random_state=1)
    assert (first.lasting, more.lasting, at_once.lasting) == (False, True, False)
    assert more.runs == 400 and more.error is None and more.reached
    assert (
        more.persons.high - more.persons.low > at_once.persons.high - at_once.persons.low
    ).all()
    low, high = lasting_interval(more.persons.counts[:, 1], 400, people=3)
    np.testing.assert_allclose(more.persons.low, disagreement_interval(low, high)[0])
    assert any("Another number of runs" in note for note in more.notes)
    assert not first.notes and not at_once.notes


def test_the_same_seed_repeats_an_audit_and_none_does_not():
    one, other = (
        audit_engine(Coins([0.3, 0.6]), None, AuditSettings(40), random_state=2).persons.counts
        for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)
    fresh = [
        audit_engine(Coins(np.full(50, 0.5)), None, AuditSettings(40)).persons.counts.tobytes()
        for _ in range(2)
    ]
    assert fresh[0] != fresh[1]


def test_the_threshold_that_nobody_named_is_a_half(tmp_path):
    keep = tmp_path / "runs.npz"
    audit_engine(Coins([0.3, 0.6]), None, AuditSettings(20), keep=keep)
    again = audit_engine(Coins([0.3, 0.6]), None, AuditSettings(20, threshold=0.5), keep=keep)
    assert again.resumed == 20
    with pytest.raises(DataError, match="another threshold"):
        audit_engine(Coins([0.3, 0.6]), None, AuditSettings(20, threshold=0.4), keep=keep)


def test_constant_decisions_are_no_proof_and_that_is_told():
    found = audit_predictions(np.zeros((40, 5), int))
    assert found.mean.value == 0.0 and len(found.review) == 0
    assert "no proof" in " ".join(found.notes)
    assert 0.1 < found.bounds["blind"] < 0.6
    p = found.bounds["blind"]  # 4 p (1 - p) at the upper end of the interval of none in forty
    share = (1 - np.sqrt(1 - p)) / 2
    assert (1 - share) ** 40 == pytest.approx(0.05 / 2 / 5, rel=1e-6)


def test_one_right_answer_leaves_no_area_and_that_is_told():
    found = audit_predictions(RNG.uniform(size=(20, 4)), labels=np.ones(4, int))
    assert "auc" not in found.figures and any("no AUC" in note for note in found.notes)


def test_several_classes_have_three_measures():
    scores = RNG.dirichlet(np.ones(3), (80, 6))
    found = audit_predictions(scores, classes=("a", "b", "c"))
    decisions = scores.argmax(axis=2)
    shares = np.stack([(decisions == c).mean(axis=0) for c in range(3)], axis=1)
    expected = 1.5 * 80 / 79 * (1 - np.square(shares).sum(axis=1))
    np.testing.assert_allclose(found.persons.disagreement, expected)
    pairs = 4 * 80 / 79 * shares * (1 - shares)
    assert found.pooled.mean == pytest.approx(pairs.mean())
    assert found.pooled.maximum == pytest.approx(pairs.max())
    assert found.class_average.maximum == pytest.approx(pairs.mean(axis=1).max())
    assert found.class_average.maximum <= 8 / 9 * 80 / 79


def test_intervals_of_several_classes_hold_whatever_the_shares_are():
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


def test_a_temperature_leaves_decisions_alone_and_other_maps_need_not():
    asked = dict(runs=60, random_state=0, calibration=PARTS.calibration)
    cooled = audit(MODEL, PARTS.train, PARTS.test, recalibrate=TemperatureScaling(), **asked)
    told = cooled.recalibrated
    assert told.difference.value == 0.0 and told.before.value == told.after.value
    assert told.deviation_after != told.deviation_before
    moved = audit(MODEL, PARTS.train, PARTS.test, recalibrate=PlattScaling(), **asked)
    assert moved.recalibrated.difference.value != 0.0
    after = moved.recalibrated
    assert after.difference.value == pytest.approx(after.after.value - after.before.value)
    assert after.difference.low < after.difference.value < after.difference.high
    assert moved.mean.value == cooled.mean.value  # the same runs
    with pytest.raises(ValueError, match="together"):
        audit(MODEL, PARTS.train, PARTS.test, recalibrate=PlattScaling())


def test_runs_repaired_by_other_answers_are_not_gone_on_with(tmp_path):
    asked = dict(runs=60, recalibrate=PlattScaling(), keep=tmp_path / "runs.npz")
    audit(MODEL, PARTS.train, PARTS.test, calibration=PARTS.calibration, **asked)
    other = replace(PARTS.calibration, y=1 - PARTS.calibration.y)
    with pytest.raises(DataError, match="another recalibrating"):
        audit(MODEL, PARTS.train, PARTS.test, calibration=other, **asked)


def test_a_map_of_the_plane_has_its_axes_where_they_are_named():
    class Ramp(Coins):
        """Scores that rise with the first feature alone."""

        def __init__(self, X):
            super().__init__(np.clip(X[:, 0], 0, 1))

    X = np.column_stack([RNG.uniform(0, 1, 200), RNG.uniform(5, 9, 200)])
    people = Dataset(X, np.zeros(200, int), (0, 1), feature_names=("ramp", "flat"))
    grid = FeatureGrid.over(X, people.feature_names, ("ramp", "flat"), points=5)
    engine = Ramp(np.concatenate([X, grid.rows]))
    found = audit_engine(engine, people, AuditSettings(400), grid=grid, random_state=0).plane
    assert found.names == ("ramp", "flat") and found.ys.min() > 4 and found.xs.max() < 1.1
    np.testing.assert_allclose(found.share, np.tile(found.xs, (5, 1)), atol=0.12)
    assert found.disagreement[:, 2].min() > 0.8 > found.disagreement[:, 0].max()
    with pytest.raises(DataError, match="'slope'"):
        FeatureGrid.over(X, people.feature_names, ("ramp", "slope"))


def test_what_a_deployed_model_says_is_compared():
    fitted = OutputPerturbation(2.0, norm=2.0, C=0.1, random_state=0).fit_records(PARTS.train)
    found = audit(MODEL, PARTS.train, PARTS.test, runs=300, deployed=fitted, random_state=0)
    said = [found.classes.index(label) for label in fitted.predict(PARTS.test.X)]
    own = found.persons.counts[np.arange(len(said)), said]
    np.testing.assert_allclose(found.persons.flip, 1 - own / 300)


@pytest.mark.parametrize(
    ("values", "more", "said"),
    [
        (np.zeros((1, 4), int), {}, "two or more runs"),
        (np.zeros(4), {}, "shape"),
        (np.zeros((3, 0)), {}, "shape"),
        (np.full((3, 4), np.nan), {}, "NaN"),
        (np.full((3, 4), 2.0), {}, "between 0 and 1"),
        (np.array([["a", "b"], ["c", "d"]]), {}, "numbers"),
        (np.zeros((3, 4), int), {"labels": [0, 1]}, "labels|rows|people"),
        (np.zeros((3, 4), int), {"deployed": np.zeros(3, int)}, "deployed"),
        (np.full((3, 4), 3), {"classes": ("a", "b")}, "2 classes"),
    ],
)
def test_what_are_no_runs_is_refused(values, more, said):
    with pytest.raises(DataError, match=said):
        audit_predictions(values, **more)


@pytest.mark.parametrize(
    "wrong",
    [{"runs": 1}, {"error": 0.0}, {"level": 1.0}, {"review_above": 2}, {"most": 1}],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AuditSettings(**wrong)


def test_a_plan_is_kept():
    plan = plan_audit(people=6, error=0.2)
    shares = np.linspace(0, 1, 6)
    found = audit_engine(
        Coins(shares, together=64), None, AuditSettings(plan.runs), random_state=4
    )
    assert found.bounds["all"] <= 0.2
    assert np.abs(found.persons.disagreement - 4 * shares * (1 - shares)).max() <= 0.2


def test_bounds_stand_beside_what_was_measured():
    found = audit_engine(Coins(RNG.uniform(size=30)), None, AuditSettings(4000), random_state=1)
    runs = [row.runs for row in found.errors]
    assert runs == [100, 200, 400, 800]
    assert all(row.mean <= row.largest <= row.exact <= row.paper for row in found.errors)
    assert found.errors[0].mean > 2 * found.errors[-1].mean  # as the root of the runs


@pytest.mark.parametrize("k", [2, 3, 7])
def test_nobodys_interval_reaches_farther_than_the_bound_that_is_told(k):
    decisions = np.where(np.arange(20) < 4, 0, RNG.integers(0, k, (150, 20)))
    found = audit_predictions(decisions, classes=range(k))
    people = found.persons
    reach = np.maximum(people.disagreement - people.low, people.high - people.disagreement)
    assert reach.max() <= found.bounds["all"] + 1e-12
    assert found.bounds["one"] < found.bounds["all"] < found.bounds["paper"]
    assert found.bounds["blind"] == pytest.approx(people.high[0])  # all runs agree about them


def test_classes_that_nobody_could_count_are_refused():
    for strange in (np.full((3, 4), 10**9), np.full((3, 4), 2**63, dtype=np.uint64)):
        with pytest.raises(DataError, match="numbers of classes, 0 to 65535"):
            audit_predictions(strange)


@pytest.mark.parametrize("k", [2, 3])
def test_probabilities_of_all_classes_sum_to_one(k):
    audit_predictions(np.full((3, 4, k), 1 / k, dtype=np.float16))
    for wrong in (np.full((3, 4, k), 0.9), np.zeros((3, 4, k))):
        with pytest.raises(DataError, match="together 1"):
            audit_predictions(wrong)


def test_logits_at_the_ends_of_floats_are_logits():
    ends = np.array([[[1e308, -1e308, 0.0]], [[-1e308, 1e308, 0.0]]])
    assert audit_predictions(ends, kind="logit").mean.value == pytest.approx(1.5)
    with pytest.raises(DataError, match="finite"):
        audit_predictions(ends[:, :, :2], kind="logit")  # how far apart is infinite


@pytest.mark.parametrize("deployed", [[0, 1], [0.0] * 6, [2] * 6, ["a"] * 6])
def test_a_deployed_model_that_is_none_is_told_before_the_first_run(deployed):
    engine = Coins(np.linspace(0, 1, 6))
    with pytest.raises(DataError, match="deployed"):
        audit_engine(engine, None, AuditSettings(10), deployed=np.array(deployed))
    assert engine.made == 0


def test_what_would_be_passed_over_is_refused():
    with pytest.raises(ValueError, match="threshold"):
        audit_predictions(np.zeros((3, 4), int), threshold=0.3)
    with pytest.raises(ValueError, match=r"\['age'\]"):
        AuditSettings(groups="age")


def test_a_level_beside_one_has_ends():
    decisions = RNG.integers(0, 2, (60, 12))
    found = audit_predictions(decisions, groups={"sex": SEX}, level=1 - 2**-53)
    json.dumps(found.to_json(), allow_nan=False)
    assert found.persons.high[0] <= 1 and found.mean.high < 10


def test_an_audit_shows_no_hash_of_records():
    """A published hash of records confirms a guess of them."""
    for found in (
        audit(MODEL, PARTS.train, PARTS.test, runs=3, random_state=0),
        audit_predictions(np.eye(4, 5, dtype=int)),
    ):
        told = json.dumps(found.to_json(persons=False))
        assert not re.search(r"[0-9a-f]{32}", told)
