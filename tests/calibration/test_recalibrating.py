"""One call recalibrates whoever is asked: the same words, one budget, one statement."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.calibration.private.conftest import miscalibrated
from veracal.calibration import Recalibration, metrics, recalibrate
from veracal.calibration.fitters import IsotonicCalibration, PlattScaling
from veracal.calibration.maps import Identity, Temperature, from_json
from veracal.calibration.methods import METHODS, OPEN, PRIVATE
from veracal.calibration.private import (
    Guarded,
    Inferred,
    PooledTemperature,
    PrivateTemperature,
    inferred,
)
from veracal.calibration.recalibration.budget import guarding_share, measuring_share
from veracal.calibration.recalibration.sources import Asked
from veracal.calibration.simulated import Simulated
from veracal.errors import BudgetError, SilentError
from veracal.privacy import Budget, Holder, Pool, Public, Unit, open_ledger

N, FACTOR = 3_000, 3.0
GAUSSIAN = {"delta": 1e-6, "size": N, "classes": 2}


@pytest.fixture(scope="module")
def scores():
    return miscalibrated(N, FACTOR, np.random.default_rng(0))


@pytest.fixture
def holders(tmp_path, scores):
    """A function that spreads the scores over so many holders."""

    def make(count=1, budget=Budget(1.0), records=scores, **settings):  # noqa: B008
        parts = [records.take(np.arange(i, len(records), count)) for i in range(count)]
        there = len(list(tmp_path.glob("*.ledger")))
        return [
            Holder(part, open_ledger(tmp_path / f"{there + i}.ledger", budget, **settings))
            for i, part in enumerate(parts)
        ]

    return make


@pytest.fixture(scope="module")
def idle(tmp_path_factory, scores):
    """Two holders that nothing is ever charged to."""
    folder = tmp_path_factory.mktemp("idle")
    ledgers = [open_ledger(folder / f"{i}.ledger", Budget(1.0)) for i in range(2)]
    return [Holder(scores, ledger) for ledger in ledgers]


def spent(holders):
    """What each ledger has paid."""
    return [holder.ledger.spent().epsilon for holder in holders]


# ---------------------------------------------------------------- the guard


def test_a_method_that_infers_whether_its_map_helps_pays_for_no_guard(holders, scores):
    found = recalibrate(holders(5, Budget(2.0)), epsilon=2.0, classes=2)
    assert found.method == "pooled" and found.spending.guard == 0
    assert isinstance(found.guarded, Inferred) and found.guarded.kept
    assert 0.95 <= found.guarded.chance <= 1 and "gain of a map" not in found.text()
    assert found.to_json()["guard"]["kind"] == "inferred"
    assert metrics.ece(found.transform(scores)) < metrics.ece(scores) / 2
    asked = recalibrate(holders(5, Budget(2.0)), epsilon=2.0, classes=2, guard=0.1)
    assert isinstance(asked.guarded, Guarded) and asked.spending.guard == 200_000
    alone = recalibrate(holders(5, Budget(2.0)), epsilon=2.0, classes=2, guard=None)
    assert alone.guarded is None


@pytest.mark.parametrize(
    ("chance", "told", "kept"),
    [(math.nextafter(1, 2), 1.0, True), (0.95, 0.95, True), (0.94, 0.94, False)],
)
def test_a_chance_is_a_probability(chance, told, kept):
    found = inferred(Temperature(0.5), chance)
    assert (found.chance, found.kept) == (told, kept)
    assert found.map == (Temperature(0.5) if kept else Identity())


def test_a_map_of_which_the_answers_do_not_say_that_it_helps_is_not_kept(holders):
    """Calibrated scores, and so much noise that anything may have been found."""
    right = miscalibrated(200, 1.0, np.random.default_rng(3))
    found = recalibrate(holders(4, Budget(0.05), records=right), "pooled", epsilon=0.05)
    assert not found.guarded.kept and found.map == Identity()
    assert found.guarded.chance < 0.95 and "was not kept" in found.text()


def test_a_fitter_of_ones_own_is_guarded_like_its_name(holders):
    found = recalibrate(holders(4, Budget(2.0)), PooledTemperature(classes=2), epsilon=2.0)
    assert isinstance(found.guarded, Inferred) and found.spending.guard == 0


def test_the_declared_size_bounds_what_a_source_can_say(holders):
    """One of five lies as far as it can: with a size it is left out, and named."""

    class Liar:
        def __init__(self, holder):
            self.holder = holder

        def answer(self, query, **asked):
            release = self.holder.answer(query, **asked)
            return replace(release, units=tuple(2**50 for _ in release.units))

    *honest, last = holders(5, Budget(2.0))
    told = {"epsilon": 2.0, "size": N, "least": 3}
    found = recalibrate([*honest, Liar(last)], "pooled", **told)
    assert found.answered == 4 and found.silences[-1] is not None
    assert found.temperature.value == pytest.approx(FACTOR, rel=0.3)


@pytest.mark.parametrize(
    ("epsilon", "sources", "size", "share"),
    [(1.0, 1, None, 0.1), (1.0, 50, None, 0.0), (1.0, 50, 9_000, 0.1), (40.0, 3, None, 0.1)],
)
def test_a_guard_that_would_drown_in_noise_is_left_out(epsilon, sources, size, share):
    asked = Asked(sources, "add-remove", Unit(), sums_only=True, exact=False)
    assert guarding_share(epsilon, asked, size, infers=False) == share
    assert guarding_share(epsilon, asked, size, infers=True) == 0.0


# ---------------------------------------------------------------- one and many


@pytest.mark.parametrize("method", ["temperature", "binning"])
def test_it_reads_the_same_for_one_and_for_many(holders, method):
    """The same call, word for word; what is told differs in numbers and noise alone."""
    rich = Budget(40.0)
    (one,), many = holders(1, rich), holders(3, rich)
    told = []
    for source in (one, many):
        found = recalibrate(source, method, epsilon=40.0, measure=0.25, request="first")
        told.append(found)
        assert isinstance(found, Recalibration) and found.private and found.guarded.kept
    alone, pooled = told
    assert (alone.asked, pooled.asked) == (1, 3) and pooled.silences == (None,) * 3
    assert (alone.method, alone.spending) == (pooled.method, pooled.spending)
    assert alone.statement.epsilon == pytest.approx(pooled.statement.epsilon, abs=1e-9)
    assert keys(alone.to_json()) == keys(pooled.to_json())
    assert [plain(line) for line in alone.text().splitlines()] == [
        plain(line) for line in pooled.text().splitlines() if not differs(line)
    ]
    for name, estimate in alone.temperatures.items():
        assert estimate.value == pytest.approx(pooled.temperatures[name].value, rel=0.05)
    for side in ("before", "after"):
        one_side, other = getattr(alone, side), getattr(pooled, side)
        assert one_side.accuracy.value == pytest.approx(other.accuracy.value, abs=0.002)
        assert one_side.ece.value == pytest.approx(other.ece.value, abs=0.01)


def keys(value):
    """The shape of a JSON document, without its numbers."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items() if name != "questions"}
    return type(value).__name__ if not isinstance(value, list) else "list"


def plain(line):
    """A line without numbers, and without how many were asked."""
    line = line.replace("absolute gaps", "gaps").replace(", all sources together", "")
    return re.sub(r"\d+ sources?|one source|-?\d[\d.e+-]*", "#", line)


def differs(line):
    """Whether a line is about several sources."""
    return line.startswith(("Noise raises", "Covered:"))


def test_figures_are_those_of_the_records(holders, scores):
    found = recalibrate(holders(1, Budget(90.0))[0], epsilon=90.0, measure=0.25)
    for side, these in ((found.before, scores), (found.after, found.transform(scores))):
        assert side.accuracy.value == pytest.approx(metrics.accuracy(these), abs=0.002)
        assert side.ece.value == pytest.approx(metrics.ece(these), abs=0.005)
    assert found.before.ece.value > 0.1 > 0.05 > found.after.ece.value
    assert found.temperature.low < FACTOR < found.temperature.high


def test_scores_with_a_ledger_are_a_holder(scores, tmp_path):
    ledger = open_ledger(tmp_path / "own.ledger", Budget(1.0))
    found = recalibrate(scores, "temperature", epsilon=0.5, ledger=ledger)
    again = recalibrate(Holder(scores, ledger), "temperature", epsilon=0.5)
    by_path = recalibrate(scores, "temperature", epsilon=0.5, ledger=tmp_path / "own.ledger")
    assert found.map == again.map == by_path.map and found.private
    assert ledger.spent().epsilon == pytest.approx(0.5, abs=1e-5)


def test_scores_are_never_taken_for_public_in_silence(scores, tmp_path):
    ledger = open_ledger(tmp_path / "own.ledger", Budget(1.0))
    with pytest.raises(ValueError, match="got neither.*ledger=.*private=False"):
        recalibrate(scores, epsilon=1.0)
    with pytest.raises(ValueError, match="got both"):
        recalibrate(scores, epsilon=1.0, ledger=ledger, private=False)
    with pytest.raises(ValueError, match="protects its own"):
        recalibrate(Holder(scores, ledger), epsilon=1.0, private=False)
    assert ledger.entries() == ()


@pytest.mark.parametrize("public", [True, False])
def test_public_scores_are_marked(scores, public):
    source = Public(scores) if public else scores
    found = recalibrate(source, "temperature", private=public)
    assert not found.private and found.statement is None and found.guarded.kept
    assert "NOT private" in found.text() and found.to_json()["private"] is False
    assert found.before.ece.value == pytest.approx(metrics.ece(scores), abs=1e-5)
    assert found.temperature.value == pytest.approx(FACTOR, rel=0.1)


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ("scores.npz", {}, "got str"),
        (3, {}, "got int"),
        ([], {}, "different sources"),
        ("pool", {"least": 1}, "least with an iterable"),
        ("pool", {"ledger": "a.ledger"}, "ledger with scores"),
        ("pool", {"at_sources": 0}, "at_sources"),
        ("pool", {"level": 1.0}, "level"),
        ("pool", {"temperatures": (3.0, 0.5)}, "range"),
        ("pool", {"temperatures": (0.0, 0.5)}, "temperature"),
        ("pool", {"temperatures": (0.5, 3.0, 2)}, "a pair"),
        ("pool", {"temperatures": 2.0}, "a pair"),
        ("pool", {"temperatures": "0.5,6"}, "a pair"),
        ("pool", {"temperatures": 2.0, "method": "temperature"}, "a pair"),
        ("pool", {"guard": 1.0}, "guard"),
        ("pool", {"guard": True}, "guard"),
        ("pool", {"measure": "some"}, "'auto'"),
        ("pool", {"guard": 0.5, "measure": 0.5}, "leave a share"),
        ("pool", {"micro_epsilon": 5}, "both"),
        ("pool", {"epsilon": None}, "neither"),
        ("pool", {"epsilon": -1.0}, "epsilon"),
        ("pool", {"micro_epsilon": 3, "epsilon": None}, "millionth"),
        ("pool", {"method": "isotonic"}, "'temperature'"),
        ("pool", {"method": "binning", "temperatures": (0.5, 3.0)}, "looks for none"),
        ("pool", {"method": "descent"}, "delta, size"),
        ("pool", {"method": "platt", "delta": 1e-6, "size": 9}, "Expected classes"),
        ("pool", {"bins": 0, "measure": 0.1}, "bins"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_before_anything_is_charged(
    idle, given, settings, said
):
    source = Pool(idle) if given == "pool" else given
    with pytest.raises(ValueError, match=said):
        recalibrate(source, **({"epsilon": 0.5} | settings))
    assert spent(idle) == [0, 0]


def test_an_unknown_method_lists_those_that_there_are(idle, scores):
    with pytest.raises(ValueError, match="one of") as raised:
        recalibrate(idle, "magic", epsilon=0.1)
    assert all(repr(name) in str(raised.value) for name in PRIVATE)
    assert "isotonic" not in str(raised.value)
    with pytest.raises(ValueError, match="one of") as raised:
        recalibrate(scores, "magic", private=False)
    assert all(repr(name) in str(raised.value) for name in OPEN)


# ---------------------------------------------------------------- methods


@pytest.mark.parametrize("name", [name for name in PRIVATE if name not in ("descent", "platt")])
def test_every_method_keeps_the_budget_and_states_what_was_paid(holders, name):
    sources = holders(2)
    found = recalibrate(sources, name, epsilon=0.9, measure=0.2, classes=2)
    paid = spent(sources)
    assert paid[0] == paid[1] <= 0.9
    if name == "none":
        assert paid[0] == 0 and found.map == Identity() and found.statement is None
        return
    assert found.statement.epsilon == pytest.approx(paid[0], abs=1e-9)
    assert paid[0] == pytest.approx(0.9, abs=2e-5) or not found.guarded.kept
    assert sum(r.micro_epsilon for r in found.releases) == round(paid[0] * 1e6)
    assert found.method != "auto" and found.method in found.text()


@pytest.mark.long
@pytest.mark.parametrize("name", ["descent", "platt"])
def test_methods_with_gaussian_noise_keep_the_total_with_everything_beside_them(holders, name):
    (source,) = holders(1, Budget(3.0, 1e-6), kind="open")
    found = recalibrate(source, name, epsilon=2.0, guard=0.2, measure=None, **GAUSSIAN)
    assert found.statement.delta == 1e-6 and 1.9 < found.statement.epsilon <= 2.0
    assert "at delta" in found.text() and found.spending.total <= 2_000_000
    assert (found.temperature is not None) == (name == "descent")
    assert ("noise of the answers alone" in found.text()) == (name == "descent")


@pytest.mark.parametrize("name", [name for name in OPEN if name not in ("none", "descent")])
def test_every_method_without_privacy(scores, name):
    found = recalibrate(scores, name, private=False)
    assert not found.private and found.statement is None
    assert metrics.ece(found.transform(scores)) < metrics.ece(scores) / 2
    assert found.after.ece.value == pytest.approx(
        metrics.ece(found.transform(scores)), abs=1e-4
    )


def test_public_records_are_read_directly_where_asking_takes_a_delta(scores):
    for name, fitter in (
        ("platt", PlattScaling("vector")),
        ("isotonic", IsotonicCalibration()),
    ):
        found = recalibrate(scores, name, private=False, guard=None, measure=None)
        assert found.map == fitter.fit(scores).map_ and found.releases == ()
        assert not found.private and "NOT private" in found.text()


def test_a_fitter_of_ones_own_is_used_but_for_its_price(holders):
    sources = holders(2)
    own = PrivateTemperature(epsilon=77.0, inverses=(0.1, 0.2))
    found = recalibrate(sources, own, epsilon=0.5)
    assert found.method == "PrivateTemperature" and 5 <= found.temperature.value <= 10
    assert spent(sources) == pytest.approx([0.5, 0.5], abs=1e-5)
    assert own.epsilon == 77.0 and not hasattr(own, "map_")


def test_the_range_of_temperatures_is_the_one_that_was_declared(holders):
    found = recalibrate(
        holders(1)[0], "temperature", epsilon=1.0, temperatures=(0.5, 2.0), guard=None
    )
    assert 1.8 < found.temperature.value <= 2.0 + 1e-9


def test_every_entry_says_what_it_is():
    for name, method in METHODS.items():
        assert name == method.name and method.words and (method.asking or method.openly)


# ---------------------------------------------------------------- the budget


def test_nothing_is_charged_unless_everything_can_be_paid(holders):
    """Not even the map, which alone would fit: a guard that cannot be paid is known first."""
    rich, (poor,) = holders(1, Budget(2.0)), holders(1, Budget(1.0))
    with pytest.raises(BudgetError, match="no record was read"):
        recalibrate([*rich, poor], epsilon=1.05, guard=0.1)
    assert spent([*rich, poor]) == [0, 0]


def test_asked_again_it_costs_nothing(holders):
    sources = holders(2)
    for request in (None, "spring"):
        first = recalibrate(sources, epsilon=0.4, measure=0.3, request=request)
        paid = spent(sources)
        again = recalibrate(sources, epsilon=0.4, measure=0.3, request=request)
        assert again.to_json() == first.to_json() and spent(sources) == paid
        assert paid[0] == paid[1] <= 0.4 * (1 if request is None else 2)


class Breaks:
    """A source that fails at one question, until it is mended."""

    def __init__(self, source, at):
        self.source, self.left = source, at

    def answer(self, query, *, micro_epsilon, request=None):
        self.left -= 1
        if self.left == 0:
            raise ConnectionError("the line is down")
        return self.source.answer(query, micro_epsilon=micro_epsilon, request=request)


@pytest.mark.parametrize(("at", "request_id"), [(2, None), (5, "spring"), (6, None)])
def test_nothing_is_lost_when_a_source_fails_midway(holders, at, request_id):
    sources = holders(2, Budget(0.5))
    broken = [sources[0], Breaks(sources[1], at)]
    with pytest.raises(ConnectionError):
        recalibrate(broken, "temperature", epsilon=0.5, measure=0.3, request=request_id)
    before = spent(sources)
    assert 0 < before[0] <= 0.5
    found = recalibrate(broken, "temperature", epsilon=0.5, measure=0.3, request=request_id)
    assert found.private and max(spent(sources)) <= 0.5
    assert spent(sources)[0] == pytest.approx(found.statement.epsilon, abs=1e-9)


# ---------------------------------------------------------------- who does not answer


def test_whoever_cannot_pay_is_left_out_uncharged_and_named(holders):
    sources = [*holders(2, Budget(1.0)), *holders(1, Budget(0.3))]
    with pytest.raises(BudgetError):
        recalibrate(sources, epsilon=1.0)
    found = recalibrate(sources, "temperature", epsilon=1.0, measure=0.3, least=2)
    assert (found.asked, found.answered) == (3, 2) and found.silences[:2] == (None, None)
    assert "cannot pay" in found.silences[2] and spent(sources)[2] == 0
    assert "2 of 3 sources answered everything" in found.text()
    assert "Source 3 was silent: it cannot pay" in found.text()
    assert found.to_json()["sources"]["answered"] == 2
    assert found.before.count.value == pytest.approx(N, abs=300)
    with pytest.raises(SilentError):
        recalibrate(sources, epsilon=0.9, least=3, request="more")


@pytest.mark.parametrize("at", [2, 6])
def test_whoever_falls_silent_is_paid_for_and_not_asked_again(holders, at):
    """Whenever it happens, all figures are about the records of those that stayed."""
    sources = holders(3, Budget(40.0))
    broken = [*sources[:2], Breaks(sources[2], at)]
    found = recalibrate(broken, "temperature", epsilon=40.0, measure=0.3, least=2)
    assert found.silences == (None, None, "it could not be reached")
    assert broken[2].left == 0  # it would have answered the next question, and was not asked
    assert found.before.count.value == pytest.approx(2 * N / 3, abs=30)
    assert found.after.ece.value < found.before.ece.value
    paid = spent(sources)
    assert paid[0] == paid[1] > paid[2] > 0
    assert found.statement.epsilon == pytest.approx(paid[0], abs=1e-9)


def test_whoever_has_records_at_two_sources_pays_twice(holders):
    sources = holders(3)
    once = recalibrate(sources, "binning", epsilon=0.5)
    twice = recalibrate(sources, "binning", epsilon=0.5, at_sources=2)
    assert twice.map == once.map and max(spent(sources)) <= 0.5
    assert twice.statement.epsilon == pytest.approx(2 * once.statement.epsilon)
    assert "nobody has records at two" in once.text()
    assert "nobody has records at two" not in twice.text()


def test_thousands_of_simulated_sources_are_a_pool_like_any_other(scores):
    place = np.arange(N) % 100
    source = Simulated(scores, place, micro_epsilon=5_000_000)
    found = recalibrate(source, "temperature", epsilon=5.0, guard=0.3, measure=0.3)
    assert found.asked == found.answered == 100 and found.private
    assert found.statement.epsilon <= 5.0 and found.before.ece_noise_bias > 0


# ---------------------------------------------------------------- guard and figures


def test_the_guard_keeps_what_helps_and_nothing_else(holders, scores):
    """With so much budget that noise decides nothing: a map that is forced to do harm."""
    right = miscalibrated(N, 1.0, np.random.default_rng(1))
    helps = recalibrate(holders(1, Budget(5.0))[0], "temperature", epsilon=5.0)
    useless = recalibrate(
        holders(1, Budget(5.0), records=right)[0],
        "temperature",
        epsilon=5.0,
        temperatures=(0.1, 0.2),
        measure=0.3,
    )
    assert helps.guarded.kept and isinstance(helps.map, Temperature)
    assert not useless.guarded.kept and useless.map == Identity()
    assert useless.temperature is not None  # it was fitted, and paid for
    assert useless.after is useless.before and "not kept" in useless.text()
    assert np.array_equal(useless.transform(scores).values, scores.values)


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_promised_does_not_depend_on_whether_the_map_was_kept(holders, count):
    """A map that is not kept is not asked about; had it been kept, it would have been."""
    right = miscalibrated(N, 1.0, np.random.default_rng(1))
    sources = holders(count, Budget(5.0), records=right)
    found = recalibrate(
        sources, "temperature", epsilon=5.0, temperatures=(0.1, 0.2), guard=0.2, measure=0.3
    )
    assert not found.guarded.kept
    assert max(spent(sources)) <= 5.0 * (1 - 0.4 * 0.3)  # two fifths of the figures' share
    assert found.statement.epsilon == pytest.approx(5.0, abs=1e-4)
    assert found.statement.epsilon <= 5.0


def test_without_a_guard_the_map_has_its_share(holders):
    sources = holders(1)
    found = recalibrate(sources[0], "temperature", epsilon=1.0, guard=None)
    assert found.guarded is None and found.spending.map == 1_000_000
    assert spent(sources) == pytest.approx([1.0], abs=1e-5)


def test_numbers_that_the_map_keeps_are_asked_for_once(holders):
    def names(method):
        source = holders(1)[0]
        found = recalibrate(source, method, epsilon=1.0, measure=0.5, guard=None)
        return [release.query for release in found.releases]

    assert names("temperature") == [
        "correct and wrong", "gap", "gap", "gap", "absolute gaps by bin",
        "absolute gaps by bin, mapped",
    ]  # fmt: skip
    assert names("binning") == [
        "correct and wrong by bin", "correct and wrong", "absolute gaps by bin",
        "correct and wrong, mapped", "absolute gaps by bin, mapped",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "size", "epsilon", "on"),
    [
        (1, N, 1.0, True),
        (1, 500, 1.0, False),
        (1, None, 9.0, False),
        (2, 40_000, 1.0, True),
    ],
)
def test_figures_are_measured_where_the_budget_has_room(holders, count, size, epsilon, on):
    sources = holders(count, Budget(10.0))
    found = recalibrate(sources if count > 1 else sources[0], epsilon=epsilon, size=size)
    assert (found.before is not None) == on == (found.after is not None)
    assert (found.spending.measure > 0) == on
    assert found.spending.total == epsilon * 1e6 >= max(spent(sources)) * 1e6 - 1e-6
    assert ("No figures" in found.text()) != on


def test_the_rule_for_figures_is_about_noise_that_can_be_computed():
    """A quarter of the budget must bring the mean absolute noise to 0.02: written out."""
    one = Asked(1, "add-remove", Unit(), sums_only=False, exact=False)
    many = Asked(50, "replace-one", Unit("patient", 2), sums_only=True, exact=False)
    for asked, size, bins in ((one, 600, 15), (many, 250_000, 15), (many, 600, 10)):
        for epsilon in (0.3, 1.0, 4.0):
            paid = 0.25 * epsilon / 3  # for each calibration error
            scale = (1 if asked is one else 2 * 2) / paid
            noise = scale if asked is one else bins * math.sqrt(2 / math.pi * 2 * 50) * scale
            share = measuring_share(epsilon, asked, size, bins)
            assert (share > 0) == (noise / size <= 0.02)
            assert share <= 0.25 and (share == 0.25 or share == 0 or noise / size < 0.005)
    assert measuring_share(99.0, one, None, 15) == 0
    assert measuring_share(99.0, replace(one, exact=True), None, 15) == 0.25


def test_no_figures_if_nobody_wants_them(holders):
    found = recalibrate(holders(1, Budget(10.0))[0], epsilon=9.0, size=N, measure=None)
    assert found.before is found.after is None and found.spending.measure == 0


# ---------------------------------------------------------------- what is told


def test_the_result_goes_through_json(holders):
    found = recalibrate(holders(2), epsilon=0.5, measure=0.2)
    written = json.dumps(found.to_json(), allow_nan=False)
    read = json.loads(written)
    assert read == found.to_json() and from_json(read["map"]) == found.map
    assert read["sources"] == {"asked": 2, "answered": 2, "silences": [None, None]}
    assert sum(read["epsilon"].values()) == pytest.approx(0.5)
    assert "records" not in read and "releases" not in read


def test_the_text_tells_an_officer_what_to_know(holders):
    unit = Unit("patient", at_most=2)
    two = holders(2, Budget(1.0, unit=unit))
    found = recalibrate(two, "temperature", epsilon=1.0, guard=0.1)
    text = found.text()
    for said in (
        "Asked of 2 sources: correct and wrong, gap (3 times), gain of a map.",
        "Cost for one patient: epsilon 1",
        "The budget was 1: 0.9 for the map, 0.1 for the guard.",
        "95% interval",
        "the interval counts the noise of the answers, and the chance of which records",
        "The map was",
        "No figures before and after",
        "differentially private for one patient",
        "nobody has records at two",
    ):
        assert said in text, said


def test_what_is_no_source_is_refused_before_its_neighbors_are_charged(idle, scores):
    with pytest.raises(ValueError, match="Holder"):
        recalibrate([*idle, scores], epsilon=0.5)
    assert spent(idle) == [0, 0]


def test_whose_budget_is_short_is_said(holders):
    sources = [*holders(1), *holders(1, Budget(0.1))]
    with pytest.raises(BudgetError, match="source 1: .*least"):
        recalibrate(sources, epsilon=0.5)


def test_answers_that_count_nobody_keep_no_map(scores):
    nobody = [Public(scores.take(np.arange(0))) for _ in range(2)]
    assert recalibrate(nobody, "pooled").map == Identity()
