"""The page of an audit in a real browser: it tells what was found, and lets nothing in."""

import re
from dataclasses import replace

import altair
import numpy as np
import pytest

from tests.report.payloads import PAYLOADS
from tests.report.test_page import DRAWN, LARGEST, saved, tags, texts
from veracal.calibration import PlattScaling
from veracal.data import Group, load, split
from veracal.multiplicity import audit, audit_predictions
from veracal.multiplicity.results import Plane
from veracal.report import audit_results as words
from veracal.report.audit_page import audit_charts, cells, histogram, render_audit
from veracal.report.audit_results import AuditResults
from veracal.training import OutputPerturbation


@pytest.fixture(scope="module")
def found():
    """Two budgets, two attributes, a map in the plane, maps of runs, levels of accuracy."""
    parts = split(load("breast-cancer"), (0.6, 0.2, 0.2), key="page")
    half = Group(np.arange(len(parts.test)) % 2, ("even", "odd"))
    thirds = Group(np.arange(len(parts.test)) % 3, ("a", "b", "c"))
    individuals = replace(parts.test, groups={"row": half, "third": thirds})
    audits = tuple(
        audit(
            OutputPerturbation(epsilon, norm=2.0, C=0.1),
            parts.train,
            individuals,
            runs=200,
            groups=("row", "row & third"),
            accuracy_levels=(0.3, 0.999),
            review_above=0.3,
            plane=("mean area", "mean texture"),
            recalibrate=PlattScaling(),
            calibration=parts.calibration,
            deployed=individuals.y,
            random_state=0,
        )
        for epsilon in (2.0, 50.0)
    )
    rows = np.arange(len(individuals)) + 1001
    return AuditResults("cancer", "2026-01-01", "output", rows, audits, (2.0, 50.0), {"a": 1})


@pytest.fixture(scope="module")
def shown(found, open_page):
    opened = open_page(render_audit(found))
    opened.drawn()
    return opened


def test_it_renders_draws_and_stays_at_home(found, shown):
    assert shown.drawn() == len(audit_charts(found)) == 8
    assert shown.said == [] and shown.violations == []
    assert len(shown.asked) == 1 and shown.asked[0].startswith("file:")
    assert len(render_audit(found).encode()) < LARGEST


def test_charts_are_what_the_grammar_knows(found):
    for spec in audit_charts(found).values():
        few = {"values": spec["data"]["values"][:2]}  # the grammar is not about the rows
        altair.Chart.from_dict({**spec, "data": few}, validate=True)


def test_internal_is_said_everywhere(shown):
    page = shown.page
    assert page.title().startswith("INTERNAL")
    assert "do not publish" in page.locator(".warning").inner_text()
    mark = "getComputedStyle(document.body, '::after').content"
    assert "INTERNAL" in page.evaluate(mark)
    for figure in page.locator("figure").all():
        assert "internal, do not publish" in figure.inner_text()
    name, svg = saved(shown, "svg", "spread")
    assert name == "internal-spread.svg"
    assert any(text.startswith("INTERNAL: cancer") for text in texts(svg))


def test_the_figures_are_those_of_the_audit(found, shown):
    shown.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    body = " ".join(shown.page.inner_text("main").split())
    for label, each in found.labeled_audits:
        mean = each.mean
        told = f"{label} 200 {mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f}) "
        of = each.distribution
        told += " ".join(f"{value:.3f}" for value in (of.median, of.p90, of.p95, of.maximum))
        assert f"{told} {len(each.review)}" in body
        for group in each.groups.values():
            for value in (*group.values.values(), group.gap, group.ratio):
                assert f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})" in body
        done = each.recalibrated
        assert f"{done.difference.value:.3f} ({done.difference.low:.3f}" in body
        worst = each.review[0]
        person = each.individuals
        line = (
            f"{found.rows[worst]} {person.disagreement[worst]:.3f} {person.low[worst]:.3f} to"
        )
        assert line in body and f"{person.flip[worst]:.3f}" in body
        for row in each.errors:
            assert f"{row.mean:.3f} {row.largest:.3f} {row.exact:.3f} {row.paper:.3f}" in body
        assert f"{each.bounds['paper']:.3f} {each.bounds['blind']:.3f}" in body


def test_a_long_list_is_cut_where_it_says_so(found):
    first = found.audits[0]
    assert len(first.review) > 50
    html = render_audit(found)
    assert f"{len(first.review) - 50:,} more are in people.csv" in html
    listed = html.partition("People to review")[2].partition("</details>")[0]
    assert listed.count('<th scope="row">') == 50


def test_one_budget_at_a_time(found, shown):
    individuals = {
        label: {f"{each[0]:g} to {each[1]:g}": each[2] for each in histogram(audit)}
        for label, audit in found.labeled_audits
    }
    assert individuals["2"] != individuals["50"]
    bars = "[data-chart=spread] .mark-rect.role-mark path"
    for label in ("50", "2"):
        shown.page.check(f"input[name=show-spread][value='{label}']")
        fullest = max(individuals[label], key=individuals[label].get)
        place = list(individuals[label]).index(fullest)
        shown.page.wait_for_timeout(200)
        shown.page.locator(bars).nth(place).hover(force=True)
        tip = shown.page.locator("#tip").inner_text()
        assert tip == f"disagreement: {fullest}\npeople: {individuals[label][fullest]}"


def test_everybody_is_in_the_histogram_once(found):
    for each in found.audits:
        assert sum(individuals for _, _, individuals in histogram(each)) == len(found.rows)
    low, high, last = histogram(found.audits[0])[-1]
    inside = found.audits[0].individuals.disagreement >= 0.95  # it may be above 1
    assert (low, high) == (0.95, 1.0) and last == inside.sum()


def test_the_map_has_a_cell_for_every_point():
    xs, ys = np.array([0.0, 1.0, 2.0]), np.array([10.0, 30.0])
    values = np.arange(6.0).reshape(2, 3) / 10
    made = cells(Plane(("a", "b"), xs, ys, values, values))
    assert len(made) == 6
    for cell in made:
        i, j = xs.tolist().index(cell["across"]), ys.tolist().index(cell["up"])
        assert cell["disagreement"] == values[j, i]
        assert (cell["x"], cell["y"]) == (xs[i] - 0.5, ys[j] - 10)
        # A little over the next one, so that no seam is seen.
        assert 0.5 < cell["x2"] - xs[i] < 0.55 and 10 < cell["y2"] - ys[j] < 11


def test_two_runs_contradict_each_other_as_often_as_it_says():
    """By its definition: all pairs of runs, all people."""
    rng = np.random.default_rng(0)
    for k in (2, 4):
        decisions = rng.integers(0, k, (40, 25)) * (rng.random(25) < 0.7)
        pairs = [
            (one != other).mean() for i, one in enumerate(decisions) for other in decisions[:i]
        ]
        told = audit_predictions(decisions, classes=range(k))
        assert words.contradicted(told) == pytest.approx(np.mean(pairs))


def test_words_say_what_runs_left_open(found):
    said = words.groups(found)
    assert len(said) == 4 and all("row" in each for each in said)
    for each in said:
        assert ("may be the chance" in each) != ("is more than the chance" in each)
    for (_, each), sentence in zip(found.labeled_audits, said[::2], strict=True):
        assert ("is more than" in sentence) == (each.groups["row"].gap.low > 0)
    lead = words.headline(found)[0]
    assert "(epsilon 2)" in lead and "(epsilon 50)" in lead
    (alone,) = replace(found, audits=found.audits[:1], epsilons=(2.0,)).audits
    assert str(len(alone.review)) in words.headline(found)[1]
    flips = [np.mean(each.individuals.flip) for each in found.audits]
    taken_back = [each for each in words.headline(found) if "take back" in each]
    assert re.findall(r"(\d+) \(", taken_back[0]) == [f"{100 * flip:.0f}" for flip in flips]
    assert "may still be up to" in words.can_tell(found)[-1]
    assert any("runs can agree on a mistake" in each for each in words.cannot_tell(found))


def test_words_of_runs_that_were_asked_for_after_a_look(found):
    (first, *_) = found.audits
    wider = replace(first.individuals, low=first.individuals.low - 0.05, high=first.individuals.high + 0.05)
    told = replace(first, lasting=True, persons=wider)
    alone = replace(found, audits=(told,), epsilons=(2.0,))
    said = words.can_tell(alone)[0]
    assert f"to within {wider.error:.3f}" in said
    assert wider.error == pytest.approx(first.individuals.error + 0.05)


def test_predictions_of_anybody_have_a_page(open_page):
    told = audit_predictions([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 0]])
    alone = AuditResults("runs.npz", "2026-01-01", "decisions", np.arange(3), (told,), (), {})
    opened = open_page(render_audit(alone))
    assert opened.drawn() >= 2 and opened.said == []
    body = opened.page.inner_text("body")
    assert "epsilon" not in body.lower() and "Take two runs" in body
    assert opened.page.locator("input[type=radio]").count() == 0


def with_names(found, names):
    """The same with one of these wherever a name can be."""
    audits = tuple(
        replace(
            each,
            classes=tuple(names[:2]),
            groups={
                name: replace(
                    each.groups["row"],
                    individuals=dict.fromkeys(names, 1),
                    values=dict.fromkeys(names, each.groups["row"].values["odd"]),
                )
                for name in names[:3]
            },
            plane=replace(each.plane, names=(names[3], names[4])),
            recalibrated=replace(each.recalibrated, method=names[5]),
            about={"varied": names[6], **{name: name for name in names}},
            notes=tuple(names),
        )
        for each in found.audits
    )
    return AuditResults(
        names[0],
        names[1],
        names[2],
        found.rows,
        audits,
        found.epsilons,
        {name: name for name in names},
        tuple(names),
    )


def test_hostile_names_inject_nothing(found, open_page):
    plain = [f"n{i}" for i in range(len(PAYLOADS))]
    harmless = open_page(render_audit(with_names(found, plain)))
    hostile = open_page(render_audit(with_names(found, PAYLOADS)))
    assert tags(hostile) == tags(harmless)
    assert hostile.page.evaluate("window.__pwned") is None
    assert set(hostile.page.evaluate(DRAWN)) == set(harmless.page.evaluate(DRAWN))
    assert hostile.said == [] and hostile.violations == [] and len(hostile.asked) == 1
    shown = hostile.page.inner_text("body")
    assert "<script>window.__pwned=1</script>" in shown
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", shown)
    hostile.page.locator("[data-chart=group0] .mark-symbol.role-mark path").first.hover(
        force=True
    )
    assert hostile.page.locator("#tip *").evaluate_all(
        "all => all.every(e => ['DIV', 'B'].includes(e.tagName))"
    )


def test_on_a_phone_nothing_sticks_out(found, open_page):
    opened = open_page(render_audit(found), viewport={"width": 390, "height": 844})
    opened.drawn()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
