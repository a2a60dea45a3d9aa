"""One call for one source and for many: one budget, one statement."""

import re

import pytest

from tests.calibration.recalibration.conftest import FACTOR, spent
from veracal import calibration
from veracal.accounting import Budget
from veracal.calibration import Recalibration, recalibrate
from veracal.calibration.methods import method_names
from veracal.ledger import open_ledger
from veracal.queries import Curator, Pool, Public


@pytest.mark.parametrize("method", ["temperature", "binning"])
def test_it_reads_the_same_for_one_and_for_many(holders, method):
    """The same call; its texts differ in numbers and noise alone."""
    rich = Budget(40.0)
    (one,), many = holders(1, rich), holders(3, rich)
    settings = []
    for source in (one, many):
        result = recalibrate(source, method, epsilon=40.0, measure=0.25, request="first")
        settings.append(result)
        assert isinstance(result, Recalibration) and result.private and result.guard.kept
    alone, pooled = settings
    assert (alone.n_sources, pooled.n_sources) == (1, 3) and pooled.dropouts == (None,) * 3
    assert (alone.method, alone.budget) == (pooled.method, pooled.budget)
    assert alone.statement.epsilon == pytest.approx(pooled.statement.epsilon, abs=1e-9)
    assert keys(alone.to_json()) == keys(pooled.to_json())
    assert [plain(line) for line in alone.text().splitlines() if not is_total(line)] == [
        plain(line) for line in pooled.text().splitlines() if not differs(line)
    ]
    for name, estimate in alone.temperatures.items():
        assert estimate.value == pytest.approx(pooled.temperatures[name].value, rel=0.05)
    for side in ("before", "after"):
        one_side, other = getattr(alone, side), getattr(pooled, side)
        assert one_side.accuracy.value == pytest.approx(other.accuracy.value, abs=0.002)
        assert one_side.ece.value == pytest.approx(other.ece.value, abs=0.01)


DIFFERENT = ("queries", "ledger_total")  # a pool has many ledgers, and names no total


def is_total(line):
    """Whether a line tells the total of the one ledger."""
    return line.strip().startswith("Everything charged to the ledger of these records")


def keys(value):
    """The shape of a JSON document, without its numbers."""
    if isinstance(value, dict):
        alike = {name: inner for name, inner in value.items() if name not in DIFFERENT}
        return {name: keys(inner) for name, inner in alike.items()}
    return type(value).__name__ if not isinstance(value, list) else "list"


def plain(line):
    """A line without numbers, and without the number of queried sources."""
    line = line.replace("absolute gaps", "gaps").replace(", all sources together", "")
    return re.sub(r"\d+ sources?|one source|-?\d[\d.e+-]*", "#", line)


def differs(line):
    """Whether a line is about several sources."""
    return line.startswith(("Noise increases", "Covered:"))


def test_scores_with_a_ledger_are_a_holder(scores, tmp_path):
    ledger = open_ledger(tmp_path / "own.ledger", Budget(1.0))
    result = recalibrate(scores, "temperature", epsilon=0.5, ledger=ledger)
    again = recalibrate(Curator(scores, ledger), "temperature", epsilon=0.5)
    by_path = recalibrate(scores, "temperature", epsilon=0.5, ledger=tmp_path / "own.ledger")
    assert result.map == again.map == by_path.map and result.private
    assert ledger.spent().epsilon == pytest.approx(0.5, abs=1e-5)


def test_scores_are_never_taken_for_public_in_silence(scores, tmp_path):
    ledger = open_ledger(tmp_path / "own.ledger", Budget(1.0))
    with pytest.raises(ValueError, match="got neither.*ledger=.*private=False"):
        recalibrate(scores, epsilon=1.0)
    with pytest.raises(ValueError, match="got both"):
        recalibrate(scores, epsilon=1.0, ledger=ledger, private=False)
    with pytest.raises(ValueError, match="protects its records"):
        recalibrate(Curator(scores, ledger), epsilon=1.0, private=False)
    assert ledger.entries() == ()


@pytest.mark.parametrize("public", [True, False])
def test_public_scores_are_marked(scores, public):
    source = Public(scores) if public else scores
    result = recalibrate(source, "temperature", private=public)
    assert not result.private and result.statement is None and result.guard.kept
    assert "NOT private" in result.text() and result.to_json()["private"] is False
    assert result.before.ece.value == pytest.approx(calibration.ece(scores), abs=1e-5)
    assert result.temperature.value == pytest.approx(FACTOR, rel=0.1)


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ("scores.npz", {}, "got str"),
        (3, {}, "got int"),
        ([], {}, "different sources"),
        ("pool", {"min_sources": 1}, "min_sources with an iterable"),
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
        ("pool", {"method": "binning", "temperatures": (0.5, 3.0)}, "does not search"),
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
    assert all(repr(name) in str(raised.value) for name in method_names())
    assert "isotonic" not in str(raised.value)
    with pytest.raises(ValueError, match="one of") as raised:
        recalibrate(scores, "magic", private=False)
    assert all(repr(name) in str(raised.value) for name in method_names(private=False))


def test_what_is_no_source_is_refused_before_its_neighbors_are_charged(idle, scores):
    with pytest.raises(ValueError, match="Curator"):
        recalibrate([*idle, scores], epsilon=0.5)
    assert spent(idle) == [0, 0]
