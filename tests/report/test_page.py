"""The report in a real browser: it draws, it answers, it lets nothing in and nothing out."""

import re
import sys
from dataclasses import replace

import altair
import jinja2
import pytest
from jsonschema import ValidationError

from tests.report.payloads import PAYLOADS
from veracal.errors import MissingExtraError
from veracal.report import page as pages
from veracal.report import render
from veracal.report.charts import charts
from veracal.report.results import Results

LARGEST = 2_000_000
# Elements of the page, without those of charts, whose labels may be cut or broken.
TAGS = """() => [...document.querySelectorAll("*")].filter(e => !e.closest("svg")
  && !(e.closest("[data-chart]"))).map(e => e.tagName + " " + [...e.attributes]
  .map(a => a.name).sort().join(" "))"""
DRAWN = "() => [...new Set([...document.querySelectorAll('svg, svg *')].map(e => e.tagName))]"
POINTS = "[data-chart=reliability] .mark-symbol.role-mark path"


@pytest.fixture(scope="module")
def shown(grouped, open_page):
    """One page that several tests look at."""
    opened = open_page(render(grouped))
    opened.drawn()
    return opened


def test_it_renders_draws_and_stays_at_home(grouped, shown):
    assert shown.drawn() == 4
    assert shown.page.locator("[data-chart] svg").count() == 4
    assert shown.said == [] and shown.violations == []
    assert len(shown.asked) == 1 and shown.asked[0].startswith("file:")
    assert len(render(grouped).encode()) < LARGEST


def test_the_policy_forbids_whatever_is_not_ours(results, open_page):
    html = render(results)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in policy and "http" not in policy
    foreign = "<script>window.__pwned = 1</script><img src='https://nowhere.invalid/x.png'>"
    ours, _, end = html.rpartition("</body>")  # the last: Vega's script has one, too
    opened = open_page(f"{ours}{foreign}</body>{end}")
    opened.drawn()
    assert opened.page.evaluate("window.__pwned") is None
    blocked = " ".join(opened.violations)
    assert "script-src-elem inline" in blocked and "img-src https://nowhere.invalid" in blocked
    assert opened.failed == [("https://nowhere.invalid/x.png", "csp")]


def test_a_toggle_shows_one_side(results, shown):
    told = {
        when: sum(
            each["value"] is not None
            for each in results.when(when).figures["overall"]["curve"]["accuracies"]
        )
        for when in ("before", "after")
    }
    for side, count in {**told, "both": sum(told.values())}.items():
        shown.page.check(f"input[name=show-reliability][value={side}]")
        shown.page.wait_for_function(
            "([where, n]) => document.querySelectorAll(where).length === n",
            arg=[POINTS, count],
            timeout=5_000,
        )


def test_a_point_tells_its_numbers(shown):
    assert shown.page.locator("#tip").is_hidden()
    shown.page.locator(POINTS).first.hover(force=True)
    tip = shown.page.locator("#tip").inner_text()
    assert re.match(r"side: (before|after)\nconfidence in: 0\.\d\d to .+\nright: [01]\.", tip)


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_charts_can_be_saved(shown, form, start):
    with shown.page.expect_download() as waiting:
        shown.page.click(f"button[data-save={form}] >> nth=0")
    saved = waiting.value
    assert saved.suggested_filename == f"reliability.{form}"
    assert saved.path().read_bytes().startswith(start)
    assert shown.violations == [] and shown.said == []


def test_every_chart_has_a_name_and_a_table(shown):
    for chart in shown.page.locator("[data-chart]").all():
        assert "table below" in chart.get_attribute("aria-label")
    assert shown.page.locator("figure table").count() >= 2
    assert shown.page.locator("table:not(:has(caption)), th:not([scope])").count() == 0


def test_on_a_phone_nothing_sticks_out(grouped, open_page):
    opened = open_page(render(grouped), viewport={"width": 390, "height": 844})
    opened.drawn()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_dark_is_dark_and_paper_is_white(results, open_page):
    opened = open_page(render(results), color_scheme="dark")
    opened.drawn()
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('[data-chart] svg text')).fill"
    assert opened.page.evaluate(paper) == "rgb(20, 23, 28)"
    assert opened.page.evaluate(ink) == "rgb(232, 234, 237)"
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate(paper) == "rgb(255, 255, 255)"
    assert opened.page.evaluate(ink) == "rgb(0, 0, 0)"
    opened.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator("details:not([open])").count() == 0


def with_names(results: Results, names: list[str]) -> Results:
    """Results in which everything that has a name has one of these."""
    overall = results.when("after").figures["overall"]
    groups = dict.fromkeys(names, overall)
    measured = [
        replace(one, figures={**one.figures, "groups": groups}) for one in results.measured
    ]
    later = [replace(measured[1], when=name, made=name) for name in names[:30]]
    named = {name: name for name in names}
    planned = [{"purpose": n, "part": n, "times": n, "used": n} for n in names]
    return replace(
        results,
        name=names[0],
        made=names[1],
        data={**results.data, "name": names[2], "classes": names[:12], "groups": named},
        guarantee={**results.guarantee, "text": "\n".join(names), "unit": names[3]},
        ledger={"head": names[4], "planned": planned},
        map={"kind": names[5], **named},
        measured=(*measured, *later),
        settings={"measurement": {"group": names[6]}, "names": named},
        versions=named,
        not_measured=tuple(names),
    )


def tags(opened) -> list[str]:
    """Elements of a page that was drawn."""
    opened.drawn()
    return opened.page.evaluate(TAGS)


def test_hostile_names_inject_nothing(results, open_page):
    assert len(set(PAYLOADS)) >= 100
    harmless = open_page(render(with_names(results, [f"n{i}" for i in range(len(PAYLOADS))])))
    html = render(with_names(results, PAYLOADS))
    hostile = open_page(html)
    assert tags(hostile) == tags(harmless)
    assert hostile.page.evaluate("window.__pwned") is None
    assert set(hostile.page.evaluate(DRAWN)) == set(harmless.page.evaluate(DRAWN))
    assert hostile.said == [] and hostile.violations == [] and len(hostile.asked) == 1
    assert len(html.encode()) < LARGEST
    shown = hostile.page.locator("#missing").inner_text()
    assert "<script>window.__pwned=1</script>" in shown and "{{ 7 * 7 }}" in shown
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", hostile.page.inner_text("body"))
    hostile.page.locator("[data-chart=groups] .mark-symbol.role-mark path").first.hover(
        force=True
    )
    assert hostile.page.locator("#tip *").evaluate_all(
        "all => all.every(e => ['DIV', 'B'].includes(e.tagName))"
    )
    assert hostile.page.evaluate("window.__pwned") is None


def test_without_escaping_that_test_would_fail(results, open_page, monkeypatch):
    plain = jinja2.Environment(loader=jinja2.PackageLoader("veracal.report"), autoescape=False)
    monkeypatch.setattr(pages, "_environment", lambda: plain)
    names = ["<b>bold</b>"] * 12
    found = open_page(render(with_names(results, names))).page.locator("#missing b").count()
    assert found > 0


def untold(found: object) -> object:
    """The same figures, of which noise left nothing."""
    if isinstance(found, dict):
        ends = {"value", "low", "high"} if "level" in found else set()
        return {k: None if k in ends else untold(v) for k, v in found.items()}
    return [untold(each) for each in found] if isinstance(found, list | tuple) else found


def test_figures_that_nobody_can_tell_are_said_in_words(grouped, open_page):
    measured = tuple(replace(one, figures=untold(one.figures)) for one in grouped.measured)
    opened = open_page(render(replace(grouped, measured=measured)))
    assert opened.drawn() == 0 and opened.said == []
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    shown = opened.page.inner_text("body")
    assert "too few records" in shown and "nothing to draw" in shown
    assert not re.search(r"\b(None|nan|NaN|null|undefined|Infinity)\b", shown)


@pytest.mark.parametrize(
    "change",
    [
        {"measured": ()},
        {"data": {"classes": [f"class {i}" for i in range(2_000)], "name": "wide"}},
        {"guarantee": {}, "ledger": {}, "map": {}, "settings": {}, "versions": {}},
        {"guarantee": {"private": True, "epsilon": float("inf"), "text": None}},
        {"ledger": {"planned": "many", "head": None}},
    ],
    ids=["unmeasured", "many classes", "empty", "unbounded", "odd ledger"],
)
def test_odd_results_make_a_page_too(results, change):
    html = render(replace(results, **change))
    assert len(html.encode()) < LARGEST
    shown = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", html)
    assert "For engineers" in shown and "audited" in shown
    assert not re.search(r"\b(None|nan|NaN|inf|undefined)\b", shown)


def test_internal_figures_are_on_a_marked_page_only(results, open_page):
    secret = {"training": [2.0, 1.5, 1.2345], "records": {"train": "one secret"}}
    opened = open_page(render(results, internal=secret))
    assert opened.drawn() == 3
    shown = opened.page.inner_text("body")
    assert "Do not publish" in shown and "one secret" in shown
    assert opened.page.locator("section[aria-label=Internal] .mark.internal").count() >= 2
    mark = "getComputedStyle(document.body, '::after').content"
    assert "INTERNAL" in opened.page.evaluate(mark)
    public = render(results)
    assert "one secret" not in public and 'class="secret"' not in public
    assert 'data-chart="training"' not in public


def test_charts_follow_the_grammar(grouped):
    made = charts(grouped, {"training": [1.0, 0.5]})
    assert set(made) == {"reliability", "histogram", "groups", "series", "training"}
    for spec in made.values():
        altair.Chart.from_dict(spec, validate=True)
    broken = {**made["histogram"], "mark": "no such mark"}
    with pytest.raises(ValidationError):
        altair.Chart.from_dict(broken, validate=True)


def test_without_the_extra_one_sentence_says_so(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(pages, "vega", pages.vega.__wrapped__)
    with pytest.raises(MissingExtraError, match=re.escape("veracal[report]")):
        render(results)
