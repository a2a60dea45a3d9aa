"""The first screen claims no more than the figures support."""

import math
from dataclasses import replace
from itertools import product

import pytest

from tests.report.examples import (
    data,
    example_results,
    guarantee,
    measurement,
    private_figures,
    reported,
)
from veracal.data import Estimate
from veracal.report import charts, tables
from veracal.report import text as words
from veracal.report.results import WIDE, gap
from veracal.report.tables import confidence
from veracal.report.text import flat, percent_interval, visible


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [(0.5, "strong"), (1.0, "strong"), (1.001, "moderate"), (10, "moderate"), (10.1, "weak")],
)
def test_strength_has_three_tiers(epsilon, word):
    result = words.protection(example_results(guarantee=guarantee(epsilon=epsilon)))
    assert result.strength == word


def test_without_a_bound_there_is_no_protection():
    result = words.protection(example_results(guarantee=guarantee(epsilon=math.inf)))
    assert result.strength == "no" and "Nothing bounds" in result.sentences[0]


@pytest.mark.parametrize(
    ("advantage", "right"), [(0.0, 50), (0.5, 75), (0.501, 76), (1.0, 100)]
)
def test_the_success_rate_of_an_attacker_follows_from_the_advantage(advantage, right):
    """Half of the cases are members: right in TPR of them, and in 1 - FPR of the others."""
    best = max(
        (tpr + 1 - fpr) / 2
        for tpr, fpr in product([i / 1000 for i in range(1001)], [0.0, 0.25, 0.499, 0.5, 1.0])
        if tpr - fpr <= advantage + 1e-12
    )
    assert right - 1 < 100 * best <= right
    promise = guarantee(epsilon=1.0, advantage=advantage)
    said = " ".join(words.protection(example_results(guarantee=promise)).sentences)
    assert f"right in at most {right} of 100 cases" in said


def test_the_first_screen_rounds_delta_up():
    promise = guarantee(epsilon=1.00001, delta=0.00017544)
    cost = words.protection(example_results(guarantee=promise)).cost
    assert cost == "epsilon 1.001, delta 0.000176"  # to the nearest: 0.000175


def test_a_delta_among_the_settings_keeps_its_digits():
    (row,) = flat({"privacy": {"delta": 0.000175438596491}})
    assert row == ("privacy.delta", "0.000175438596491")  # ten digits would be below


def test_the_table_is_empty_if_nothing_can_be_estimated():
    unknown, known = reported(0.5, 0.1, 0.9), reported(0.95, 0.9, 1.0)
    assert confidence(example_results(unknown)).rows == ()
    assert len(confidence(example_results(known)).rows) == 3


def test_the_attacker_guesses_what_the_relation_protects():
    promise = guarantee(epsilon=1.0, advantage=0.1, unit="patient")
    said = " ".join(words.protection(example_results(guarantee=promise)).sentences)
    assert "whether a given patient was in the data" in said
    replaced = replace(promise, relation="replace-one", max_contributions=3)
    said = " ".join(words.protection(example_results(guarantee=replaced)).sentences)
    assert "which of two given patients" in said and "up to 3 rows each" in said


@pytest.mark.parametrize(
    ("top", "verdict"),
    [
        (reported(0.95, 0.90, 1.00), "consistent"),
        (reported(0.85, 0.80, 0.90), "consistent"),
        (reported(0.80, 0.75, 0.89), "overconfident"),
        (reported(0.95, 0.79, 1.00), "too few records"),
        (reported(None, 0.0, 1.0), "too few records"),
    ],
)
def test_the_verdict_of_the_top_bin_uses_its_interval(top, verdict):
    first = words.confidence_summaries(example_results(top))[0]
    assert first.confidence == "90% to 100%" and first.verdict == verdict
    assert first.before == "not measured"


def test_a_lower_bin_can_be_underconfident():
    unknown, right = reported(None, None, None), reported(0.95, 0.91, 0.99)
    after = measurement("after", private_figures([*[unknown] * 8, right, unknown]))
    rows = words.confidence_summaries(example_results(measured=(after,)))
    assert [row.verdict for row in rows][:2] == [
        "too few records",
        "underconfident",
    ]


@pytest.mark.parametrize(("classes", "first"), [(2, 0.4), (3, 0.3), (10, 0.0), (0, 0.0)])
def test_bins_below_one_over_k_are_not_shown(classes, first):
    """Of k probabilities that sum to 1 the largest is 1/k at least; exactly 1/k may occur."""
    right = reported(0.5, 0.4, 0.6)
    result = example_results(
        measured=(measurement("after", private_figures([right] * 10)),),
        data=data(classes=tuple(str(i) for i in range(classes))),
    )
    assert result.curve("after")[0].low == pytest.approx(first)
    assert result.curve("after")[-1].high == 1.0
    rows = tables.reliability(result).rows
    assert rows[0][0].startswith(f"{first:.2f}") and len(rows) == round(10 * (1 - first))
    for name in ("reliability", "histogram"):
        assert len(charts.charts(result)[name]["data"]["values"]) == len(rows)


def test_the_headline_claims_nothing_from_a_wide_interval():
    said = words.headline(example_results(reported(0.95, 0.5, 1.0)))[0]
    assert "cannot be estimated yet" in said and "95%" not in said
    said = words.headline(example_results(reported(0.95, 0.9, 1.0)))[0]
    assert (
        "at least 90% confident, about 95% of its predictions are correct (90 to 100%)." in said
    )
    assert "Before recalibration" not in said  # none was measured
    assert "not measured" in words.headline(example_results(measured=()))[0]


def group(low, high):
    return private_figures(accuracy=reported((low + high) / 2, low, high))


def test_a_group_is_worse_only_if_intervals_are_disjoint():
    disjoint = {"a": group(0.90, 0.95), "b": group(0.75, 0.89)}
    assert words.groups(example_results(groups=disjoint)) == (
        "Accuracy is lower for these groups: b.",
    )
    touching = {"a": group(0.90, 0.95), "b": group(0.75, 0.90)}
    result = words.groups(example_results(groups=touching))
    assert len(result) == 1 and "No difference" in result[0]
    wide = {"a": group(0.90, 0.95), "b": group(0.0, 0.89)}
    result = words.groups(example_results(groups=wide))
    assert (
        "lower" not in " ".join(result) and "too few records for these groups: b" in result[-1]
    )


def test_declared_groups_without_a_breakdown_are_named():
    assert "age could be used" in words.groups(example_results())[0]


def test_a_missing_audit_is_always_mentioned():
    assert words.NOT_AUDITED in words.not_measured(example_results(not_measured=("taste",)))
    said = ("chance (not audited)",)
    assert words.not_measured(example_results(not_measured=said)) == said


def test_the_gap_holds_wherever_the_groups_do(rng):
    for _ in range(50):
        lows = rng.uniform(0, 0.5, 4)
        highs = lows + rng.uniform(0, 0.5, 4)
        middle = (lows + highs) / 2
        each = [Estimate(*v, 0.95, 1) for v in zip(middle, lows, highs, strict=True)]
        result = gap(dict(zip("abcd", each, strict=True)))
        true = rng.uniform(lows, highs, (200, 4))
        gaps = true.max(axis=1) - true.min(axis=1)
        assert (result.low <= gaps).all() and (gaps <= result.high).all()
        assert result.value == middle.max() - middle.min()
        assert result.level == pytest.approx(0.8)
        # Tight: the ends are reached by figures within the intervals.
        assert result.high == highs.max() - lows.min()
    assert gap({"a": each[0]}) is None


def test_intervals_are_rounded_outward():
    assert percent_interval(Estimate(0.5, 0.239, 0.761, 0.95, 9)) == "23 to 77%"
    assert percent_interval(Estimate(0.5, 0.29, 0.57, 0.95, 9)) == "29 to 57%"
    assert percent_interval(Estimate(0.5, 0.29, 1e308, 0.95, 9)) == "not a finite number"


def test_values_that_are_not_finite_are_words():
    assert words.decimals(None) == "too few records"
    for odd in (math.nan, math.inf, -math.inf):
        assert words.decimals(odd) == "not a finite number"


def test_misleading_characters_are_escaped():
    assert visible("a\u202eb\x00\ud800") == "a\\u202eb\\u0000\\ud800"
    assert visible("नमस्ते \u200d é 漢") == "नमस्ते \u200d é 漢"


def test_the_limit_of_wide_intervals_matches_the_page():
    assert WIDE == 0.2
