"""The report in a real browser: it draws, it answers, it lets nothing in and nothing out."""

import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import altair
import jinja2
import pytest
from jsonschema import ValidationError

from tests.report.payloads import PAYLOADS
from veracal.data import Estimate
from veracal.errors import MissingExtraError
from veracal.report import page as pages
from veracal.report import render
from veracal.report.charts import charts, diagram
from veracal.report.page import figures
from veracal.report.results import Bin, Results
from veracal.report.tables import ledger

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
            timeout=120_000,
        )


def test_a_point_tells_its_numbers(shown):
    assert shown.page.locator("#tip").is_hidden()
    shown.page.locator(POINTS).first.hover(force=True)
    tip = shown.page.locator("#tip").inner_text()
    assert re.match(r"side: (before|after)\nconfidence in: 0\.\d\d to .+\nright: [01]\.", tip)


def saved(opened, form: str, of: str) -> tuple[str, bytes]:
    """Name and content of a chart that was saved."""
    with opened.page.expect_download() as waiting:
        opened.page.click(f"button[data-save={form}][data-of^={of}]")
    return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def texts(svg: bytes) -> list[str]:
    """Whatever can be read in a picture."""
    return [e.text or "" for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def test_charts_can_be_saved_with_their_histogram(results, shown):
    shown.page.check("input[name=show-reliability][value=both]")
    name, svg = saved(shown, "svg", "reliability")
    assert name == "reliability.svg"
    read = texts(svg)
    assert f"{results.name}: Reliability" in read and "released, with noise" in read
    assert "share that is right" in read and "records, about" in read
    # One legend, in colors and shapes.
    assert read.count("before") == 1 and read.count("after") == 1
    bars = svg.count(b'role="graphics-symbol" aria-roledescription="bar"')
    assert bars == sum(
        each["value"] is not None
        for when in ("before", "after")
        for each in results.when(when).figures["overall"]["curve"]["counts"]
    )
    shown.page.check("input[name=show-reliability][value=after]")
    _, one = saved(shown, "svg", "reliability")
    assert one.count(b'aria-roledescription="bar"') == bars / 2
    name, png = saved(shown, "png", "series")
    assert name == "series.png" and png.startswith(b"\x89PNG")
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


def inside(names: list[str]) -> dict:
    """Internal figures with such names."""
    counts = {name: i for i, name in enumerate(names)}
    told = {name: estimated(0.5) for name in names}
    return {
        "training": [1.0, 0.5],
        "records": counts,
        "classes": counts,
        "groups": {name: {name: 1} for name in names},
        "plain figures after": told,
        "by group after": {name: told for name in names[:12]},
        **{f"_{name}": name for name in names},
    }


def tags(opened) -> list[str]:
    """Elements of a page that was drawn."""
    opened.drawn()
    return opened.page.evaluate(TAGS)


def test_hostile_names_inject_nothing(results, open_page):
    assert len(set(PAYLOADS)) >= 100
    plain = [f"n{i}" for i in range(len(PAYLOADS))]
    harmless = open_page(render(with_names(results, plain), internal=inside(plain)))
    html = render(with_names(results, PAYLOADS), internal=inside(PAYLOADS))
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


def estimated(value: float) -> dict:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "level": 0.95, "n": 88_001}


def plain(count: int) -> list[dict]:
    """A plain curve, of which one bin is empty."""
    ends = {"low": 0.5, "high": 1.0, "confidence": 0.75}
    right = {"accuracy": 0.7, "accuracy_low": 0.6, "accuracy_high": 0.8}
    empty = {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "accuracy": None}
    return [empty, {**ends, **right, "count": count}]


SECRET = {
    "training": [2.0, 1.5, 88_003.25],
    "records": {"training": 88_004, "test": 88_005},
    "classes": {"yes": 88_006, "no": 88_007},
    "groups": {"age": {"young": 88_008, "old": 88_009}},
    "plain figures before": {"accuracy": estimated(0.88011)},
    "plain figures after": {"accuracy": estimated(0.88012), "ece": estimated(0.88013)},
    "plain curve before": plain(88_014),
    "plain curve after": plain(88_015),
    "by group after": {"young": {"accuracy": estimated(0.88016)}},
    "also": {"deep": {"deeper": "88017"}},
}


@pytest.fixture(scope="module")
def opened(results, open_page):
    """The internal page."""
    return open_page(render(results, internal=SECRET))


def test_internal_figures_are_on_a_marked_page_only(results, opened):
    public = render(results)
    render(results, internal=SECRET)
    assert render(results) == public
    assert not re.search(r"88,?0(0[3-9]|1\d)", re.sub(r"(?s)<script.*?</script>", "", public))
    assert 'class="secret"' not in public and "Internal report" not in public
    assert opened.drawn() == 6 and opened.said == [] and opened.violations == []
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    shown = opened.page.inner_text("section[aria-label=Internal]")
    for told in (4, 5, 6, 7, 8, 9, 14, 15):
        assert f"{88_000 + told:,}" in shown
    assert all(told in shown for told in ("0.880 (0.780 to 0.980)", "88017", "8.8e+04"))
    assert not re.search(r"\b(None|nan|NaN|null|undefined)\b", shown)
    figures = opened.page.locator("section[aria-label=Internal] figure")
    marked = figures.filter(has=opened.page.locator(".mark.internal"))
    assert figures.count() == marked.count() == 8
    assert opened.page.title().startswith("INTERNAL, do not publish")
    assert "Do not publish" in opened.page.inner_text("body > .warning")


def test_the_mark_is_on_screen_on_paper_and_in_saved_charts(opened):
    opened.drawn()
    style = "getComputedStyle(document.body, '::after')"
    for media in ("screen", "print"):
        opened.page.emulate_media(media=media)
        assert opened.page.evaluate(f"{style}.content") == '"INTERNAL"'
        # Fixed boxes are on every sheet of paper.
        assert opened.page.evaluate(f"{style}.position") == "fixed"
        assert opened.page.evaluate(f"{style}.display") != "none"
    opened.page.emulate_media(media="screen")
    for chart in ("training", "plain", "classes", "reliability"):
        name, svg = saved(opened, "svg", chart)
        assert name == f"internal-{chart}.svg"
        assert any(text.startswith("INTERNAL: ") for text in texts(svg))
    assert opened.said == []


def test_what_is_internal_and_missing_is_left_out(results):
    html = render(results, internal={})
    assert "The training curve is not known: the model came from the ledger." in html
    assert html.count('<figure aria-label="Training curve">') == 1
    assert "Class balance" not in html and "Plain" not in html
    assert "not known" not in render(results, internal={"training": [1.0, 0.5]})


@pytest.mark.parametrize(
    "odd",
    [
        {name: value for name in SECRET}
        for value in (None, "text", 5, float("nan"), [], [None, float("inf"), "x"], {"a": None})
    ],
    ids=["none", "text", "number", "nan", "empty", "list", "mapping"],
)
def test_odd_internal_figures_make_a_page_too(results, odd):
    shown = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", render(results, internal=odd))
    assert not re.search(r"\b(None|nan|NaN|inf|undefined)\b", shown)


def test_many_classes_are_no_long_chart():
    many = {f"class {i}": i for i in range(1_000)}
    (balance,) = [one for one in figures({"classes": many}) if one.title == "Class balance"]
    drawn = balance.charts["classes"]["data"]["values"]
    assert [row["n"] for row in drawn] == list(range(999, 959, -1))
    assert len(balance.table.rows) == 500


def test_the_ledger_tells_what_each_line_costs(results):
    lines = [
        {
            "purpose": "a",
            "part": "train",
            "times": 1,
            "used": 1,
            "epsilon": 1.00001,
            "delta": 0,
        },
        {
            "purpose": "b",
            "part": "test",
            "times": 4,
            "used": 2,
            "epsilon": 2.5,
            "delta": 1.7544e-4,
        },
        {"purpose": "c", "part": "test", "times": 1, "used": 0, "epsilon": None, "delta": 1e-5},
    ]
    made = ledger(replace(results, ledger={"planned": lines}))
    assert made.heads[-2:] == ("epsilon of all planned", "at delta")
    assert [row[-2:] for row in made.rows] == [
        ("1.001", "0"),
        ("2.5", "0.000176"),
        ("not told", "not told"),
    ]
    older = [{k: v for k, v in line.items() if k not in ("epsilon", "delta")} for line in lines]
    made = ledger(replace(results, ledger={"planned": older}))
    assert len(made.heads) == 4 and made.rows[1] == ("b", "test", "4", "2")


def test_what_tells_little_is_pale():
    def made(low: float | None, high: float | None) -> Bin:
        right = Estimate(0.5, low, high, 0.95, 5)
        return Bin(0.4, 0.6, 0.5, Estimate(5, 4, 6, 0.95, 5), right)

    bins = [made(0.41, 0.6), made(0.39, 0.6), made(None, None)]
    drawn = diagram({"after": bins}, "")["data"]["values"]
    assert [row["wide"] for row in drawn] == [False, True, False]


def test_charts_follow_the_grammar(grouped):
    inside = {name: spec for one in figures(SECRET) for name, spec in one.charts.items()}
    assert set(inside) == {"training", "plain", "confidence", "classes"}
    made = charts(grouped)
    assert set(made) == {"reliability", "histogram", "groups", "series"}
    for spec in (*made.values(), *inside.values()):
        altair.Chart.from_dict(spec, validate=True)
    broken = {**made["histogram"], "mark": "no such mark"}
    with pytest.raises(ValidationError):
        altair.Chart.from_dict(broken, validate=True)


def test_later_measurements_stand_in_their_order_with_their_dates(grouped):
    one = grouped.measured[1]
    later = [replace(one, when=f"later {i}", made=f"2027-0{i}-01") for i in (2, 1)]
    made = charts(replace(grouped, measured=(*grouped.measured[:2], *later)))["series"]
    labels = [row["label"] for row in made["data"]["values"]]
    assert labels == [
        f"1. after\n{one.made}",
        "2. later 2\n2027-02-01",
        "3. later 1\n2027-01-01",
    ]


def test_without_the_extra_one_sentence_says_so(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(pages, "vega", pages.vega.__wrapped__)
    with pytest.raises(MissingExtraError, match=re.escape("veracal[report]")):
        render(results)
