"""The page of an audit in a browser: it shows the results, and loads nothing."""

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
def result():
    """Two budgets, two attributes, a plane, recalibrated runs, and accuracy levels."""
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
def page_of_audit(result, open_page):
    opened = open_page(render_audit(result))
    opened.drawn()
    return opened


def test_the_page_draws_and_makes_no_requests(result, page_of_audit):
    assert page_of_audit.drawn() == len(audit_charts(result)) == 8
    assert page_of_audit.messages == [] and page_of_audit.violations == []
    assert len(page_of_audit.requests) == 1 and page_of_audit.requests[0].startswith("file:")
    assert len(render_audit(result).encode()) < LARGEST


def test_audit_charts_are_valid_vega_lite(result):
    for spec in audit_charts(result).values():
        few = {"values": spec["data"]["values"][:2]}  # the grammar is not about the rows
        altair.Chart.from_dict({**spec, "data": few}, validate=True)


def test_every_part_is_marked_as_internal(page_of_audit):
    page = page_of_audit.page
    assert page.title().startswith("INTERNAL")
    assert "do not publish" in page.locator(".warning").inner_text()
    mark = "getComputedStyle(document.body, '::after').content"
    assert "INTERNAL" in page.evaluate(mark)
    for figure in page.locator("figure").all():
        assert "internal, do not publish" in figure.inner_text()
    name, svg = saved(page_of_audit, "svg", "spread")
    assert name == "internal-spread.svg"
    assert any(text.startswith("INTERNAL: cancer") for text in texts(svg))


def test_the_page_shows_the_figures_of_the_audit(result, page_of_audit):
    page_of_audit.page.evaluate(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    body = " ".join(page_of_audit.page.inner_text("main").split())
    for label, each in result.labeled_audits:
        mean = each.mean
        reported = f"{label} 200 {mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f}) "
        of = each.distribution
        reported += " ".join(
            f"{value:.3f}" for value in (of.median, of.p90, of.p95, of.maximum)
        )
        assert f"{reported} {len(each.review)}" in body
        for group in each.groups.values():
            for value in (*group.values.values(), group.gap, group.ratio):
                assert f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})" in body
        done = each.recalibrated
        assert f"{done.difference.value:.3f} ({done.difference.low:.3f}" in body
        worst = each.review[0]
        person = each.individuals
        line = (
            f"{result.rows[worst]} {person.disagreement[worst]:.3f} {person.low[worst]:.3f} to"
        )
        assert line in body and f"{person.flip[worst]:.3f}" in body
        for row in each.errors:
            assert f"{row.mean:.3f} {row.largest:.3f} {row.exact:.3f} {row.paper:.3f}" in body
        assert f"{each.bounds['paper']:.3f} {each.bounds['hidden']:.3f}" in body


def test_a_long_review_list_is_cut_with_a_note(result):
    first = result.audits[0]
    assert len(first.review) > 50
    html = render_audit(result)
    assert f"{len(first.review) - 50:,} more are in individuals.csv" in html
    listed = html.partition("Individuals to review")[2].partition("</details>")[0]
    assert listed.count('<th scope="row">') == 50


def test_a_chart_shows_one_budget_at_a_time(result, page_of_audit):
    individuals = {
        label: {f"{each[0]:g} to {each[1]:g}": each[2] for each in histogram(audit)}
        for label, audit in result.labeled_audits
    }
    assert individuals["2"] != individuals["50"]
    bars = "[data-chart=spread] .mark-rect.role-mark path"
    for label in ("50", "2"):
        page_of_audit.page.check(f"input[name=show-spread][value='{label}']")
        fullest = max(individuals[label], key=individuals[label].get)
        place = list(individuals[label]).index(fullest)
        page_of_audit.page.wait_for_timeout(200)
        page_of_audit.page.locator(bars).nth(place).hover(force=True)
        tip = page_of_audit.page.locator("#tip").inner_text()
        assert tip == f"disagreement: {fullest}\nindividuals: {individuals[label][fullest]}"


def test_the_histogram_counts_every_individual_once(result):
    for each in result.audits:
        assert sum(individuals for _, _, individuals in histogram(each)) == len(result.rows)
    low, high, last = histogram(result.audits[0])[-1]
    inside = result.audits[0].individuals.disagreement >= 0.95  # it may be above 1
    assert (low, high) == (0.95, 1.0) and last == inside.sum()


def test_the_plane_has_a_cell_for_every_point():
    xs, ys = np.array([0.0, 1.0, 2.0]), np.array([10.0, 30.0])
    values = np.arange(6.0).reshape(2, 3) / 10
    cells_ = cells(Plane(("a", "b"), xs, ys, values, values))
    assert len(cells_) == 6
    for cell in cells_:
        i, j = xs.tolist().index(cell["across"]), ys.tolist().index(cell["up"])
        assert cell["disagreement"] == values[j, i]
        assert (cell["x"], cell["y"]) == (xs[i] - 0.5, ys[j] - 10)
        # A little over the next one, so that no seam is seen.
        assert 0.5 < cell["x2"] - xs[i] < 0.55 and 10 < cell["y2"] - ys[j] < 11


def test_pair_disagreement_equals_its_definition():
    """By its definition: all pairs of runs, all individuals."""
    rng = np.random.default_rng(0)
    for k in (2, 4):
        decisions = rng.integers(0, k, (40, 25)) * (rng.random(25) < 0.7)
        pairs = [
            (one != other).mean() for i, one in enumerate(decisions) for other in decisions[:i]
        ]
        reported = audit_predictions(decisions, classes=range(k))
        assert words.pair_disagreement(reported) == pytest.approx(np.mean(pairs))


def test_sentences_reflect_the_intervals(result):
    said = words.groups(result)
    assert len(said) == 4 and all("row" in each for each in said)
    for each in said:
        assert ("may be due to the randomness" in each) != ("exceeds the randomness" in each)
    for (_, each), sentence in zip(result.labeled_audits, said[::2], strict=True):
        assert ("exceeds" in sentence) == (each.groups["row"].gap.low > 0)
    lead = words.headline(result)[0]
    assert "(epsilon 2)" in lead and "(epsilon 50)" in lead
    (alone,) = replace(result, audits=result.audits[:1], epsilons=(2.0,)).audits
    assert str(len(alone.review)) in words.headline(result)[1]
    flips = [np.mean(each.individuals.flip) for each in result.audits]
    reversed_decisions = [each for each in words.headline(result) if "would reverse" in each]
    assert re.findall(r"(\d+) \(", reversed_decisions[0]) == [
        f"{100 * flip:.0f}" for flip in flips
    ]
    assert "may still be up to" in words.precision(result)[-1]
    assert any("runs can make the same mistake" in each for each in words.limits(result))


def test_precision_of_an_extended_audit_uses_anytime_intervals(result):
    (first, *_) = result.audits
    wider = replace(
        first.individuals, low=first.individuals.low - 0.05, high=first.individuals.high + 0.05
    )
    reported = replace(first, anytime_valid=True, individuals=wider)
    alone = replace(result, audits=(reported,), epsilons=(2.0,))
    said = words.precision(alone)[0]
    assert f"to within {wider.error:.3f}" in said
    assert wider.error == pytest.approx(first.individuals.error + 0.05)


def test_stored_predictions_have_a_page_without_budgets(open_page):
    reported = audit_predictions([[0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 1, 0]])
    alone = AuditResults(
        "runs.npz", "2026-01-01", "decisions", np.arange(3), (reported,), (), {}
    )
    opened = open_page(render_audit(alone))
    assert opened.drawn() >= 2 and opened.messages == []
    body = opened.page.inner_text("body")
    assert "epsilon" not in body.lower() and "Two runs give different decisions" in body
    assert opened.page.locator("input[type=radio]").count() == 0


def with_names(result, names):
    """The same results with one of these wherever a name can be."""
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
            engine_settings={"varied": names[6], **{name: name for name in names}},
            notes=tuple(names),
        )
        for each in result.audits
    )
    return AuditResults(
        names[0],
        names[1],
        names[2],
        result.rows,
        audits,
        result.epsilons,
        {name: name for name in names},
        tuple(names),
    )


def test_hostile_names_inject_nothing(result, open_page):
    plain = [f"n{i}" for i in range(len(PAYLOADS))]
    harmless = open_page(render_audit(with_names(result, plain)))
    hostile = open_page(render_audit(with_names(result, PAYLOADS)))
    assert tags(hostile) == tags(harmless)
    assert hostile.page.evaluate("window.__pwned") is None
    assert set(hostile.page.evaluate(DRAWN)) == set(harmless.page.evaluate(DRAWN))
    assert hostile.messages == [] and hostile.violations == [] and len(hostile.requests) == 1
    text = hostile.page.inner_text("body")
    assert "<script>window.__pwned=1</script>" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", text)
    hostile.page.locator("[data-chart=group0] .mark-symbol.role-mark path").first.hover(
        force=True
    )
    assert hostile.page.locator("#tip *").evaluate_all(
        "all => all.every(e => ['DIV', 'B'].includes(e.tagName))"
    )


def test_the_page_fits_a_phone(result, open_page):
    opened = open_page(render_audit(result), viewport={"width": 390, "height": 844})
    opened.drawn()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
