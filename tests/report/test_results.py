"""results.json holds exactly what a run has built, and nothing else is accepted from it."""

import json
import math

import pytest

from tests.report.examples import (
    changed,
    example_results,
    guarantee,
    named_results,
    places,
    recalibration,
    reported,
    shortened,
    source_cost,
    value_at,
)
from tests.report.payloads import PAYLOADS
from veracal.calibration import Beta, Binned, Bins, Identity, Platt, Temperature
from veracal.errors import DataError
from veracal.report import Results

SURROGATES = [name for name in PAYLOADS if "\ud800" in name]
ODD = (math.nan, math.inf, -math.inf, 10**400, True, "text", [], {})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"map": Temperature(0.5)},
        {"map": Platt([[1.0, 0.5], [0.0, 2.0]], [0.5, -0.5])},
        {"map": Beta([1.0], [1.0], [-0.5])},
        {"map": Binned(Bins(2), [0.5, 0.75])},
        {"measured": ()},
        {"guarantee": guarantee(epsilon=math.inf, curve=((1e-5, math.inf),))},
        {
            "recalibrations": (
                recalibration(source_cost("North")),
                recalibration(map=Identity()),
            )
        },
    ],
    ids=range(8),
)
def test_results_round_trip(change):
    results = example_results(reported(0.9, 0.8, 1.0), **change)
    assert Results.from_bytes(results.to_bytes()) == results


def test_results_of_a_run_and_hostile_names_round_trip(results, grouped):
    names = [name for name in PAYLOADS if name not in SURROGATES]
    for each in (results, grouped, named_results(results, names)):
        assert Results.from_bytes(each.to_bytes()) == each


NAMES = [f"n{i}" for i in range(12)]
EVERYTHING = shortened(named_results(example_results(reported(0.9, 0.8, 1.0)), NAMES))
WRITTEN = json.loads(EVERYTHING.to_bytes())
PLACES = list(places(WRITTEN))


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:10])
def test_an_odd_value_anywhere_is_rejected_with_its_path(odd):
    """Numbers, text, truth values, lists and objects are never exchanged for each other."""
    assert len(PLACES) > 100
    for path in PLACES:
        value = value_at(WRITTEN, path)
        same = type(value) is type(odd) and not isinstance(odd, float)
        if same or value is None or path == ("settings",):
            continue
        with pytest.raises(DataError) as caught:
            Results.from_json(changed(WRITTEN, path, odd))
        assert "results.json" in str(caught.value)


@pytest.mark.parametrize("path", [("name",), ("data", "size"), ("settings", "odd"), ("map",)])
def test_values_that_are_nested_deeply_are_rejected(path):
    written = json.dumps(
        changed(WRITTEN, path, "@") if path in PLACES else {**WRITTEN, path[0]: "@"}
    )
    for depth in range(100, 1_000, 9):
        content = written.replace('"@"', "[" * depth + "]" * depth).encode()
        with pytest.raises(DataError, match="results.json"):
            Results.from_bytes(content)


def test_null_is_accepted_only_for_what_may_be_missing():
    accepted = set()
    for path in PLACES:
        try:
            Results.from_json(changed(WRITTEN, path, None))
        except DataError:
            continue
        accepted.add(path[-1])
    assert {"value", "low", "high", "size", "guard"} <= accepted
    assert not {"level", "n", "delta", "unit", "name", "measured"} & accepted


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("guarantee", "epsilon"), -1.0, "out of range"),
        (("guarantee", "delta"), 1.5, "out of range"),
        (("guarantee", "advantage"), 1.5, "out of range"),
        (("guarantee", "max_contributions"), 0, "out of range"),
        (("guarantee", "relation"), "neither", "add-remove"),
        (("measured", 0, "overall", "curve", "bins"), 9, "lengths"),
        (("measured", 0, "overall", "curve", "bins"), 10**6, "bins"),
        (("measured", 0, "micro_epsilon"), 2**60, "an integer"),
        (("data", "features"), 3.0, "an integer"),
        (("map",), {"kind": "magic"}, "a map of kind"),
        (("settings", "deep"), json.loads("[" * 500 + "]" * 500), "nested"),
        (("data", "classes"), [True, False], "classes"),
        (("format",), "veracal classifier", "format"),
        (("version",), 2, "version 1"),
        (("version",), True, "version 1"),
    ],
)
def test_values_out_of_range_are_rejected(path, value, said):
    with pytest.raises(DataError, match=said):
        Results.from_json(changed(WRITTEN, path, value))


def test_missing_and_unknown_fields_are_rejected():
    for path in [("more",), ("data", "more"), ("measured", 0, "overall", "more")]:
        with pytest.raises(DataError, match="exactly"):
            Results.from_json(changed(WRITTEN, path, 1))
    for path in PLACES:
        if isinstance(path[-1], int) or path[0] in ("settings", "versions", "map", "format"):
            continue
        copy = changed(WRITTEN, path, None)
        del value_at(copy, path[:-1])[path[-1]]
        if path[:-1] in OPEN or path[-2:-1] in (("split",), ("groups",), ("temperatures",)):
            continue
        with pytest.raises(DataError):
            Results.from_json(copy)


OPEN = {("data", "groups")}  # mappings of any names


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"null", b"{}", b"\xff", b"NaN", b'{"a":1,"a":2}', b"[" * 100_000]
)
def test_other_files_are_rejected(text):
    with pytest.raises(DataError):
        Results.from_bytes(text)
