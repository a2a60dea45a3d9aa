"""The report in a browser: it draws, responds, and neither loads nor sends anything."""

import math
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import altair
import jinja2
import pytest
from jsonschema import ValidationError

from tests.report.examples import (
    data,
    exact_figures,
    guarantee,
    ledger,
    named_internal,
    named_results,
)
from tests.report.payloads import PAYLOADS
from veracal.calibration import PrivateFigures
from veracal.data import Estimate
from veracal.errors import MissingExtraError
from veracal.report import FIGURES, LedgerLine, UnreleasedFigures, render
from veracal.report import page as pages
from veracal.report.charts import charts, diagram
from veracal.report.page import internal_panels
from veracal.report.results import Bin
from veracal.report.tables import ledger as ledger_table

LARGEST = 2_000_000
# Elements of the page, without those of charts, whose labels may be cut or broken.
TAGS = """() => [...document.querySelectorAll("*")].filter(e => !e.closest("svg")
  && !(e.closest("[data-chart]"))).map(e => e.tagName + " " + [...e.attributes]
  .map(a => a.name).sort().join(" "))"""
DRAWN = "() => [...new Set([...document.querySelectorAll('svg, svg *')].map(e => e.tagName))]"
POINTS = "[data-chart=reliability] .mark-symbol.role-mark path"


@pytest.fixture(scope="module")
def page_of_groups(grouped, open_page):
    """A page that several tests share."""
    opened = open_page(render(grouped))
    opened.drawn()
    return opened


def test_the_page_draws_and_makes_no_requests(grouped, page_of_groups):
    assert page_of_groups.drawn() == 4
    assert page_of_groups.page.locator("[data-chart] svg").count() == 4
    assert page_of_groups.messages == [] and page_of_groups.violations == []
    assert len(page_of_groups.requests) == 1 and page_of_groups.requests[0].startswith("file:")
    assert len(render(grouped).encode()) < LARGEST


def test_the_policy_blocks_foreign_scripts_and_images(results, open_page):
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


def test_the_toggle_shows_one_stage(results, page_of_groups):
    reported = {
        when: sum(
            each.value is not None for each in results.when(when).overall.curve.accuracies
        )
        for when in ("before", "after")
    }
    for side, count in {**reported, "both": sum(reported.values())}.items():
        page_of_groups.page.check(f"input[name=show-reliability][value={side}]")
        page_of_groups.page.wait_for_function(
            "([where, n]) => document.querySelectorAll(where).length === n",
            arg=[POINTS, count],
            timeout=120_000,
        )


def test_a_tooltip_shows_the_numbers_of_a_point(page_of_groups):
    assert page_of_groups.page.locator("#tip").is_hidden()
    page_of_groups.page.locator(POINTS).first.hover(force=True)
    tip = page_of_groups.page.locator("#tip").inner_text()
    assert re.match(
        r"stage: (before|after)\nconfidence in: 0\.\d\d to .+\naccuracy: [01]\.", tip
    )


def saved(opened, form: str, of: str) -> tuple[str, bytes]:
    """Name and content of a chart that was saved."""
    with opened.page.expect_download() as waiting:
        opened.page.click(f"button[data-save={form}][data-of^={of}]")
    return waiting.value.suggested_filename, waiting.value.path().read_bytes()


def texts(svg: bytes) -> list[str]:
    """All text in an image."""
    return [e.text or "" for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def test_charts_can_be_saved_with_their_histogram(results, page_of_groups):
    page_of_groups.page.check("input[name=show-reliability][value=both]")
    name, svg = saved(page_of_groups, "svg", "reliability")
    assert name == "reliability.svg"
    read = texts(svg)
    assert f"{results.name}: Reliability" in read and "released, with noise" in read
    assert "accuracy" in read and "records (noisy)" in read
    # One legend, in colors and shapes.
    assert read.count("before") == 1 and read.count("after") == 1
    bars = svg.count(b'role="graphics-symbol" aria-roledescription="bar"')
    assert bars == sum(
        each.value is not None
        for when in ("before", "after")
        for each in results.when(when).overall.curve.counts
    )
    page_of_groups.page.check("input[name=show-reliability][value=after]")
    _, one = saved(page_of_groups, "svg", "reliability")
    assert one.count(b'aria-roledescription="bar"') == bars / 2
    name, png = saved(page_of_groups, "png", "series")
    assert name == "series.png" and png.startswith(b"\x89PNG")
    assert page_of_groups.violations == [] and page_of_groups.messages == []


def test_every_chart_has_a_name_and_a_table(page_of_groups):
    for chart in page_of_groups.page.locator("[data-chart]").all():
        assert "table below" in chart.get_attribute("aria-label")
    assert page_of_groups.page.locator("figure table").count() >= 2
    assert page_of_groups.page.locator("table:not(:has(caption)), th:not([scope])").count() == 0


def test_the_page_fits_a_phone(grouped, open_page):
    opened = open_page(render(grouped), viewport={"width": 390, "height": 844})
    opened.drawn()
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_dark_mode_and_print_colors(results, open_page):
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


def tags(opened) -> list[str]:
    """Elements of a page after drawing."""
    opened.drawn()
    return opened.page.evaluate(TAGS)


def test_hostile_names_inject_nothing(results, open_page):
    assert len(set(PAYLOADS)) >= 100
    plain = [f"n{i}" for i in range(len(PAYLOADS))]
    harmless = open_page(render(named_results(results, plain), internal=named_internal(plain)))
    html = render(named_results(results, PAYLOADS), internal=named_internal(PAYLOADS))
    hostile = open_page(html)
    assert tags(hostile) == tags(harmless)
    assert hostile.page.evaluate("window.__pwned") is None
    assert set(hostile.page.evaluate(DRAWN)) == set(harmless.page.evaluate(DRAWN))
    assert hostile.messages == [] and hostile.violations == [] and len(hostile.requests) == 1
    assert len(html.encode()) < LARGEST
    text = hostile.page.locator("#missing").inner_text()
    assert "<script>window.__pwned=1</script>" in text and "{{ 7 * 7 }}" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00]", hostile.page.inner_text("body"))
    hostile.page.locator("[data-chart=groups] .mark-symbol.role-mark path").first.hover(
        force=True
    )
    assert hostile.page.locator("#tip *").evaluate_all(
        "all => all.every(e => ['DIV', 'B'].includes(e.tagName))"
    )
    assert hostile.page.evaluate("window.__pwned") is None


def test_the_injection_test_detects_missing_escapes(results, open_page, monkeypatch):
    plain = jinja2.Environment(loader=jinja2.PackageLoader("veracal.report"), autoescape=False)
    monkeypatch.setattr(pages, "_environment", lambda: plain)
    names = ["<b>bold</b>"] * 12
    result = open_page(render(named_results(results, names))).page.locator("#missing b").count()
    assert result > 0


def without_values(figures: PrivateFigures) -> PrivateFigures:
    """The same figures without values."""

    def unknown(figure: Estimate) -> Estimate:
        return replace(figure, value=None, low=None, high=None)

    curve = figures.curve
    return replace(
        figures,
        **{name: unknown(getattr(figures, name)) for name in ("count", *FIGURES)},
        curve=replace(
            curve,
            counts=tuple(map(unknown, curve.counts)),
            accuracies=tuple(map(unknown, curve.accuracies)),
        ),
    )


def test_missing_figures_are_shown_in_words(grouped, open_page):
    measured = tuple(
        replace(
            one,
            overall=without_values(one.overall),
            groups={name: without_values(each) for name, each in one.groups.items()},
        )
        for one in grouped.measured
    )
    opened = open_page(render(replace(grouped, measured=measured)))
    assert opened.drawn() == 0 and opened.messages == []
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    text = opened.page.inner_text("body")
    assert "too few records" in text and "Nothing to draw" in text
    assert not re.search(r"\b(None|nan|NaN|null|undefined|Infinity)\b", text)


@pytest.mark.parametrize(
    "change",
    [
        {"measured": ()},
        {"data": data(classes=tuple(f"class {i}" for i in range(2_000)), size=None)},
        {"settings": {}, "versions": {}, "ledger": ledger()},
        {"guarantee": guarantee(epsilon=math.inf, curve=((1e-5, math.inf),))},
        {"settings": {"a": [None, {"b": math.nan}, [[]]], "c": math.inf}},
    ],
    ids=["unmeasured", "many classes", "empty", "unbounded", "odd settings"],
)
def test_unusual_results_are_shown_in_words(results, change):
    html = render(replace(results, **change))
    assert len(html.encode()) < LARGEST
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", html)
    assert "For engineers" in text and "audited" in text
    assert not re.search(r"\b(None|nan|NaN|inf|undefined)\b", text)


def estimated(value: float) -> Estimate:
    return Estimate(value, value - 0.1, value + 0.1, 0.95, 88_001)


SECRET = UnreleasedFigures(
    records={"training": 88_004, "test": 88_005},
    classes={"yes": 88_006, "no": 88_007},
    groups={"age": {"young": 88_008, "old": 88_009}},
    stages={
        "before": exact_figures(88_014, {"accuracy": estimated(0.88011)}, {}),
        "after": exact_figures(
            88_015,
            {"accuracy": estimated(0.88012), "ece": estimated(0.88013)},
            {"young": {"accuracy": estimated(0.88016)}},
        ),
    },
    losses=(2.0, 1.5, 88_003.25),
)


@pytest.fixture(scope="module")
def opened(results, open_page):
    """The internal page."""
    return open_page(render(results, internal=SECRET))


def test_internal_figures_are_only_on_the_marked_page(results, opened):
    public = render(results)
    render(results, internal=SECRET)
    assert render(results) == public
    assert not re.search(r"88,?0(0[3-9]|1\d)", re.sub(r"(?s)<script.*?</script>", "", public))
    assert 'class="secret"' not in public and "Internal report" not in public
    assert opened.drawn() == 6 and opened.messages == [] and opened.violations == []
    opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    text = opened.page.inner_text("section[aria-label=Internal]")
    for reported in (4, 5, 6, 7, 8, 9, 14, 15):
        assert f"{88_000 + reported:,}" in text
    assert all(reported in text for reported in ("0.880 (0.780 to 0.980)", "8.8e+04"))
    assert not re.search(r"\b(None|nan|NaN|null|undefined)\b", text)
    figures = opened.page.locator("section[aria-label=Internal] figure")
    marked = figures.filter(has=opened.page.locator(".mark.internal"))
    assert figures.count() == marked.count() == 7
    assert opened.page.title().startswith("INTERNAL, do not publish")
    assert "Do not publish" in opened.page.inner_text("body > .warning")


def test_the_watermark_is_on_screen_in_print_and_in_saved_charts(opened):
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
    assert opened.messages == []


def test_missing_internal_figures_are_left_out(results):
    html = render(results, internal=UnreleasedFigures())
    assert "No training curve: the fitted model was loaded from the ledger." in html
    assert html.count('<figure aria-label="Training curve">') == 1
    assert "Class balance" not in html and "without noise</h3>" not in html
    trained = render(results, internal=UnreleasedFigures(losses=(1.0, 0.5)))
    assert "No training curve" not in trained


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -math.inf])
def test_odd_internal_figures_are_shown_in_words(results, odd):
    figures = {"nll": Estimate(odd, odd, odd, 0.95, 3)}
    losses = () if odd is None else (1.0, odd)
    stages = {"after": exact_figures(3, figures, {"young": figures})}
    html = render(results, internal=UnreleasedFigures(stages=stages, losses=losses))
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>", " ", html)
    assert ("too few records" if odd is None else "not a finite number") in text
    assert not re.search(r"\b(None|nan|NaN|inf|undefined)\b", text)


def test_the_class_chart_shows_only_the_largest_classes():
    many = {f"class {i}": i for i in range(1_000)}
    (balance,) = [
        one
        for one in internal_panels(UnreleasedFigures(classes=many))
        if one.title == "Class balance"
    ]
    drawn = balance.charts["classes"]["data"]["values"]
    assert [row["n"] for row in drawn] == list(range(999, 959, -1))
    assert len(balance.table.rows) == 500


def test_the_ledger_table_shows_the_cost_of_each_line(results):
    lines = (
        LedgerLine("a", "train", 1, 1, 1.00001, 0.0),
        LedgerLine("b", "test", 4, 2, 2.5, 1.7544e-4),
        LedgerLine("c", None, 1, 0, math.inf, 1e-5),
    )
    table = ledger_table(replace(results, ledger=ledger(*lines)))
    assert table.heads[-2:] == ("epsilon of all planned", "at delta")
    assert [row[-2:] for row in table.rows] == [
        ("1.001", "0"),
        ("2.5", "0.000176"),
        ("unbounded", "0.00001"),
    ]


def test_wide_intervals_are_faded():
    def make_bin(low: float | None, high: float | None) -> Bin:
        right = Estimate(0.5, low, high, 0.95, 5)
        return Bin(0.4, 0.6, 0.5, Estimate(5, 4, 6, 0.95, 5), right)

    bins = [make_bin(0.41, 0.6), make_bin(0.39, 0.6), make_bin(None, None)]
    drawn = diagram({"after": bins}, "")["data"]["values"]
    assert [row["wide"] for row in drawn] == [False, True, False]


def test_charts_are_valid_vega_lite(grouped):
    inside = {
        name: spec for one in internal_panels(SECRET) for name, spec in one.charts.items()
    }
    assert set(inside) == {"training", "plain", "confidence", "classes"}
    specs = charts(grouped)
    assert set(specs) == {"reliability", "histogram", "groups", "series"}
    for spec in (*specs.values(), *inside.values()):
        altair.Chart.from_dict(spec, validate=True)
    broken = {**specs["histogram"], "mark": "no such mark"}
    with pytest.raises(ValidationError):
        altair.Chart.from_dict(broken, validate=True)


def test_later_measurements_keep_their_order_and_dates(grouped):
    one = grouped.measured[1]
    later = [replace(one, when=f"later {i}", date=f"2027-0{i}-01") for i in (2, 1)]
    series = charts(replace(grouped, measured=(*grouped.measured[:2], *later)))["series"]
    labels = [row["label"] for row in series["data"]["values"]]
    assert labels == [
        f"1. after\n{one.date}",
        "2. later 2\n2027-02-01",
        "3. later 1\n2027-01-01",
    ]


def test_a_missing_extra_is_named(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(pages, "vega", pages.vega.__wrapped__)
    with pytest.raises(MissingExtraError, match=re.escape("veracal[report]")):
        render(results)
