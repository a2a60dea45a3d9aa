"""The first screen says what the figures allow, and no more."""

from dataclasses import replace
from itertools import product

import pytest

from veracal.data import Estimate
from veracal.errors import DataError
from veracal.report import charts, tables
from veracal.report import text as words
from veracal.report.results import (
    WIDE,
    MeasurementRecord,
    Results,
    estimate,
    gap,
    number,
    possible,
)
from veracal.report.tables import sureness
from veracal.report.text import between, flat, visible


def told(value, low, high):
    return {"value": value, "low": low, "high": high, "level": 0.95, "n": 100}


def curve(*accuracies):
    count = told(50.0, 40.0, 60.0)
    means = [(b + 0.5) / len(accuracies) for b in range(len(accuracies))]
    return {"counts": [count] * len(means), "accuracies": accuracies, "confidences": means}


def made(top=None, groups=None, **changes) -> Results:
    """Results with a curve of ten bins whose last one is given."""
    unknown = told(None, None, None)
    after = {
        "overall": {"curve": curve(*[unknown] * 9, top or unknown)},
        "groups": groups or {},
    }
    fields = {
        "name": "m",
        "made": "2026-01-01",
        "data": {"name": "d", "groups": {"age": ["young"]}},
        "guarantee": {"private": True, "epsilon": 2.0, "delta": 1e-5, "advantage": 0.5},
        "ledger": {},
        "model": {},
        "map": {},
        "measured": (MeasurementRecord("after", "2026-01-01", after),),
        "settings": {},
    }
    return Results(**{**fields, **changes})


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [(0.5, "strong"), (1.0, "strong"), (1.001, "moderate"), (10, "moderate"), (10.1, "weak")],
)
def test_strength_has_three_words(epsilon, word):
    found = words.protection(made(guarantee={"private": True, "epsilon": epsilon}))
    assert found.strength == word


@pytest.mark.parametrize(
    "guarantee", [{}, {"private": False, "epsilon": 1.0}, {"private": True, "epsilon": None}]
)
def test_without_a_bound_nothing_is_called_protected(guarantee):
    found = words.protection(made(guarantee=guarantee))
    assert found.strength == "no" and "Nothing bounds" in found.sentences[0]


@pytest.mark.parametrize(
    ("advantage", "right"), [(0.0, 50), (0.5, 75), (0.501, 76), (1.0, 100)]
)
def test_a_guess_is_right_as_often_as_the_advantage_allows(advantage, right):
    """Half of the cases are members: right in TPR of them, and in 1 - FPR of the others."""
    best = max(
        (tpr + 1 - fpr) / 2
        for tpr, fpr in product([i / 1000 for i in range(1001)], [0.0, 0.25, 0.499, 0.5, 1.0])
        if tpr - fpr <= advantage + 1e-12
    )
    assert right - 1 < 100 * best <= right
    guarantee = {"private": True, "epsilon": 1.0, "advantage": advantage}
    said = " ".join(words.protection(made(guarantee=guarantee)).sentences)
    assert f"right at most {right} times in 100" in said


def test_the_first_screen_rounds_delta_up():
    guarantee = {"private": True, "epsilon": 1.00001, "delta": 0.00017544}
    cost = words.protection(made(guarantee=guarantee)).cost
    assert cost == "epsilon 1.001, delta 0.000176"  # to the nearest: 0.000175


def test_a_delta_among_the_settings_keeps_its_digits():
    (row,) = flat({"privacy": {"delta": 0.000175438596491}})
    assert row == ("privacy.delta", "0.000175438596491")  # ten digits would be below


def test_nothing_to_tell_is_said_once():
    unknown, known = told(0.5, 0.1, 0.9), told(0.95, 0.9, 1.0)
    assert sureness(made(unknown)).rows == ()
    assert len(sureness(made(known)).rows) == 3


def test_the_guess_is_about_what_the_relation_protects():
    guarantee = {"private": True, "epsilon": 1.0, "advantage": 0.1, "unit": "patient"}
    said = " ".join(words.protection(made(guarantee=guarantee)).sentences)
    assert "whether a given patient was in the data" in said
    replaced = {**guarantee, "relation": "replace-one", "at_most": 3}
    said = " ".join(words.protection(made(guarantee=replaced)).sentences)
    assert "which of two given patients" in said and "up to 3 rows each" in said


@pytest.mark.parametrize(
    ("top", "verdict"),
    [
        (told(0.95, 0.90, 1.00), "fits what it says"),
        (told(0.85, 0.80, 0.90), "fits what it says"),
        (told(0.80, 0.75, 0.89), "too sure"),
        (told(0.95, 0.79, 1.00), "too few records to tell"),
        (told(None, 0.0, 1.0), "too few records to tell"),
    ],
)
def test_the_surest_bin_is_judged_by_its_interval(top, verdict):
    first = words.sureness(made(top))[0]
    assert first.says == "90% to 100%" and first.verdict == verdict
    assert first.before == "not measured"


def test_a_lower_bin_may_be_right_more_often_than_it_says():
    unknown, right = told(None, None, None), told(0.95, 0.91, 0.99)
    figures = {"overall": {"curve": curve(*[unknown] * 8, right, unknown)}}
    rows = words.sureness(made(measured=(MeasurementRecord("after", "", figures),)))
    assert [row.verdict for row in rows][:2] == [
        "too few records to tell",
        "right more often than it says",
    ]


@pytest.mark.parametrize(("classes", "first"), [(2, 0.4), (3, 0.3), (10, 0.0), (0, 0.0)])
def test_bins_that_no_record_can_be_in_are_not_shown(classes, first):
    """Of k probabilities that sum to 1 the largest is 1/k at least; exactly 1/k may occur."""
    right = told(0.5, 0.4, 0.6)
    figures = {"overall": {"curve": curve(*[right] * 10)}}
    found = made(
        measured=(MeasurementRecord("after", "", figures),),
        data={"classes": [str(i) for i in range(classes)]},
    )
    assert possible(found, "after")[0].low == pytest.approx(first)
    assert possible(found, "after")[-1].high == 1.0
    rows = tables.reliability(found).rows
    assert rows[0][0].startswith(f"{first:.2f}") and len(rows) == round(10 * (1 - first))
    for name in ("reliability", "histogram"):
        assert len(charts.charts(found)[name]["data"]["values"]) == len(rows)


def test_the_headline_claims_nothing_from_a_wide_interval():
    said = words.headline(made(told(0.95, 0.5, 1.0)))[0]
    assert "nobody can tell" in said and "95%" not in said
    said = words.headline(made(told(0.95, 0.9, 1.0)))[0]
    assert "90% sure or more, it is right about 95% of the time (90 to 100%)." in said
    assert "efore the repair" not in said  # there was none, or nobody measured before it
    assert "not measured" in words.headline(made(measured=()))[0]


def group(low, high):
    return {"accuracy": told((low + high) / 2, low, high)}


def test_a_group_is_worse_only_if_intervals_are_apart():
    apart = {"a": group(0.90, 0.95), "b": group(0.75, 0.89)}
    assert words.groups(made(groups=apart)).worse == ("b",)
    touching = {"a": group(0.90, 0.95), "b": group(0.75, 0.90)}
    found = words.groups(made(groups=touching))
    assert found.worse == () and "No difference" in found.sentences[0]
    wide = {"a": group(0.90, 0.95), "b": group(0.0, 0.89)}
    found = words.groups(made(groups=wide))
    assert found.worse == () and "too few records to tell: b" in found.sentences[-1]


def test_groups_that_were_not_told_apart_are_named():
    assert "age could be" in words.groups(made()).sentences[0]


def test_it_always_says_that_chance_was_not_audited():
    assert words.NOT_AUDITED in words.not_measured(made(not_measured=("taste",)))
    said = ("chance (not audited)",)
    assert words.not_measured(made(not_measured=said)) == said


def test_the_gap_holds_wherever_the_groups_do(rng):
    for _ in range(50):
        lows = rng.uniform(0, 0.5, 4)
        highs = lows + rng.uniform(0, 0.5, 4)
        middle = (lows + highs) / 2
        each = [Estimate(*v, 0.95, 1) for v in zip(middle, lows, highs, strict=True)]
        found = gap(dict(zip("abcd", each, strict=True)))
        true = rng.uniform(lows, highs, (200, 4))
        gaps = true.max(axis=1) - true.min(axis=1)
        assert (found.low <= gaps).all() and (gaps <= found.high).all()
        assert found.value == middle.max() - middle.min()
        assert found.level == pytest.approx(0.8)
        # Tight: the ends are reached by figures within the intervals.
        assert found.high == highs.max() - lows.min()
    assert gap({"a": each[0]}) is None


def test_intervals_are_rounded_outward():
    assert between(Estimate(0.5, 0.239, 0.761, 0.95, 9)) == "23 to 77%"
    assert between(Estimate(0.5, 0.29, 0.57, 0.95, 9)) == "29 to 57%"


def test_what_is_no_number_was_not_told():
    for found in (None, "1", True, float("nan"), float("inf"), 10**400, [1]):
        assert number(found) is None
    assert estimate({"value": 0.5, "low": 0.4, "level": 0.95}).low is None
    assert estimate("no mapping").value is None


def test_characters_that_mislead_become_visible():
    assert visible("a\u202eb\x00\ud800") == "a\\u202eb\\u0000\\ud800"
    assert visible("नमस्ते \u200d é 漢") == "नमस्ते \u200d é 漢"


def test_the_limit_of_what_is_wide_is_what_the_page_says():
    assert WIDE == 0.2


@pytest.mark.parametrize(
    ("name", "value"), [("data", []), ("name", 1), ("not_measured", "x"), ("measured", {})]
)
def test_a_file_with_other_kinds_is_refused(name, value):
    content = replace(made(), **{name: value}).to_bytes()
    with pytest.raises(DataError, match=f"{name} as"):
        Results.from_bytes(content)
