"""The page of a report runs, loads and shows only what it should.

Pages are rendered from untrusted results: a hundred hostile names in place of every name, and
invalid values in place of every number. An HTML parser must find the same elements and
attributes as with harmless names. The policy must allow exactly the scripts and the style of
the page, by their hashes. Internal figures are only on a marked page, and leave no trace on the
public one.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from html.parser import HTMLParser
from typing import Any

import jinja2
from markupsafe import Markup

from assurance.ledgers import Patches, patched
from tests.report.payloads import PAYLOADS
from veracal.report import page as pages
from veracal.report.results import MeasurementRecord, Results

NAME = "report"
LARGEST = 2_000_000
PAGE = "veracal.report.page"
PARTS = ("report.html.j2", "page.html.j2", "parts.html.j2")  # a template and its parts
FEW = 12  # names on one page
HARMLESS = [f"n{i}" for i in range(FEW)]
EPSILON, DELTA = 1.00001, 0.00017544  # to the nearest, both would be printed too low
SECRETS = [f"{number:,}" for number in range(7_654_321, 7_654_330)]
VOID = {"meta", "input", "br", "img", "link", "hr", "base", "embed", "source"}
ODD = (None, float("nan"), float("inf"), -float("inf"), 10**400, True, "text", [], {})
RENDER, POLICY, ASSET, LISTED = pages.render, pages.policy, pages._asset, pages.listed
TEMPLATES = pages._environment.__wrapped__


# ---------------------------------------------------------------- mutants


def changed(*changes: tuple[str, str]) -> Callable[[], jinja2.Environment]:
    """Templates with replaced text."""
    return partial(_changed, changes)


def _changed(changes: tuple[tuple[str, str], ...]) -> jinja2.Environment:
    environment = TEMPLATES()
    sources = {name: environment.loader.get_source(environment, name)[0] for name in PARTS}
    for old, new in changes:
        place = next((name for name in PARTS if old in sources[name]), PARTS[0])
        sources[place] = replace_text(sources[place], old, new)
    environment.loader = jinja2.DictLoader(sources)
    return environment


def replace_text(text: str, old: str, new: str) -> str:
    """Replace text; a mutant that changes nothing must not count as caught."""
    if old not in text:
        raise LookupError(f"{old} does not occur anymore: update the mutant")
    return text.replace(old, new)


def setting(**settings: Any) -> jinja2.Environment:
    """Templates with other settings."""
    return TEMPLATES().overlay(**settings)


def raw_json() -> jinja2.Environment:
    """JSON without escaping for HTML."""
    environment = TEMPLATES()
    environment.filters["tojson"] = lambda value: Markup(json.dumps(value))
    return environment


def asset(of: str, old: str, new: str) -> Callable[[str], str]:
    """A script or a style with replaced text."""

    def read(name: str) -> str:
        return replace_text(ASSET(name), old, new) if name == of else ASSET(name)

    return read


def with_policy(old: str, new: str) -> Callable[[list[str], str], str]:
    """A policy with replaced text."""

    def replace_policy(scripts: list[str], css: str) -> str:
        return replace_text(POLICY(scripts, css), old, new)

    return replace_policy


def remembers() -> Callable[..., str]:
    """Keep internal figures for the next page."""
    remembered: dict[str, Any] = {}

    def render(results: Results, *, internal: Mapping[str, Any] | None = None) -> str:
        remembered.update(internal or {})
        return RENDER(results, internal=remembered or None)

    return render


def any_float(value: object) -> float | None:
    """Any Python float."""
    return float(value) if isinstance(value, float) else None


META = '<meta http-equiv="Content-Security-Policy" content="{{ policy }}">'
ENVIRONMENT = "veracal.report.page._environment"
MARKED = '<span class="mark internal">internal, do not publish</span>'
TO_THE_NEAREST = "veracal.report.text.format_up"
CORRECT: Patches = {}
MUTANTS: dict[str, Patches] = {
    "autoescape off": {ENVIRONMENT: partial(setting, autoescape=False)},
    "a name passed as Markup": {
        "veracal.report.page.listed": lambda found: Markup(LISTED(found))
    },
    "charts as plain JSON": {ENVIRONMENT: raw_json},
    "an attribute without quotes": {
        ENVIRONMENT: changed(
            ('data-title="{{ title_of }}: {{ title }}"', "data-title={{ title_of }}")
        )
    },
    "characters that mislead": {"veracal.report.page.visible": lambda text, keep="": text},
    "the policy allows inline scripts": {
        "veracal.report.page.policy": with_policy("script-src ", "script-src 'unsafe-inline' ")
    },
    "the policy allows eval": {
        "veracal.report.page.policy": with_policy("script-src ", "script-src 'unsafe-eval' ")
    },
    "the policy allows the network": {
        "veracal.report.page.policy": with_policy("default-src 'none'", "default-src https:")
    },
    "the policy allows pictures from anywhere": {
        "veracal.report.page.policy": with_policy("img-src data:", "img-src *")
    },
    "the policy comes after the scripts": {
        ENVIRONMENT: changed((META, ""), ("</body>", f"{META}</body>"))
    },
    "a script without a hash": {
        ENVIRONMENT: changed(("</body>", "<script>self.x = 1</script></body>"))
    },
    "a script from elsewhere": {
        ENVIRONMENT: changed(
            ("</head>", "<script src='https://cdn.invalid/x.js'></script></head>")
        )
    },
    "a handler in an attribute": {
        ENVIRONMENT: changed(('<div id="tip"', '<div onclick="hide()" id="tip"'))
    },
    "expressions made into code": {
        "veracal.report.page._asset": asset("report.js", "ast: true, ", "")
    },
    "tooltips as HTML": {
        "veracal.report.page._asset": asset("report.js", "title.textContent", "title.innerHTML")
    },
    "what is internal is remembered": {"veracal.report.page.render": remembers()},
    "an internal page without its mark": {ENVIRONMENT: changed((' class="secret"', ""))},
    "an internal mark that is not printed": {
        "veracal.report.page._asset": asset(
            "report.css", ".secret::after { color", ".secret::after { display: none; color"
        )
    },
    "internal charts saved without a mark": {
        "veracal.report.page._asset": asset("report.js", '"INTERNAL: "', '""')
    },
    "an internal figure marked as released": {
        ENVIRONMENT: changed(('each.table, kind="internal"', "each.table"))
    },
    "None on the page": {ENVIRONMENT: partial(setting, finalize=None)},
    "NaN taken for a number": {"veracal.report.results.number": any_float},
    "costs rounded to the nearest": {TO_THE_NEAREST: lambda v, digits=4: f"{v:.{digits}g}"},
}


# ---------------------------------------------------------------- the gate


def run(subject: Patches, *, long: bool) -> str:
    """Check pages with hostile names, invalid numbers and internal figures."""
    with patched(subject):
        harmless = page(results(HARMLESS))
        check_policy(harmless)
        check_script(harmless)
        check_costs(harmless)
        check_internal()
        elements = hostile(step=1 if long else FEW)
        odd = invalid_numbers()
    return (
        f"{len(PAYLOADS)} hostile names made none of {elements:,} elements and attributes; "
        f"{odd} odd numbers shown as words; policy exact; internal figures on their page alone"
    )


class Page(HTMLParser):
    """Elements, text, scripts and styles of a parsed page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inline: list[tuple[str, str, str]] = []  # element, type, content
        self.words: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append((tag, dict(attrs).get("type") or ""))

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", ()))
        if self._open and self._open[-1][0] == tag:
            self._open.pop()

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", ()))

    def handle_data(self, data: str) -> None:
        tag, kind = self._open[-1] if self._open else ("", "")
        if tag in ("script", "style"):
            self.inline.append((tag, kind, data))
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The visible text."""
        return " ".join(self.words)

    def value(self, tag: str, name: str) -> list[str]:
        """Values of an attribute."""
        return [v for t, n, v in self.attributes if (t, n) == (tag, name)]

    def charts(self) -> dict[str, Any]:
        """The specifications of charts, which must be strict JSON."""
        contents = [content for _, kind, content in self.inline if kind == "application/json"]
        assert len(contents) == 1, "the charts are not in one place"
        return dict(json.loads(contents[0], parse_constant=refused))


def refused(constant: str) -> None:
    """JSON has no such number."""
    raise AssertionError(f"{constant} in the charts")


def page(data: Results, internal: Mapping[str, Any] | None = None) -> Page:
    """A parsed page; a failure to render breaks the promise, too."""
    try:
        html = pages.render(data, internal=internal)
        size = len(html.encode())
    except (ValueError, OverflowError) as cause:
        raise AssertionError(f"no page: {type(cause).__name__}: {cause}") from cause
    assert size < LARGEST, "the page is too large"
    return Page(html)


def hostile(step: int) -> int:
    """Compare pages with hostile names to one with harmless names; return the number of
    comparisons.
    """
    count = 0
    for internal in (None, inside):
        expected = page(results(HARMLESS), internal and internal(HARMLESS))
        for start in range(0, len(PAYLOADS), step):
            # Another name is first, and so in the fields that hold one name.
            names = (PAYLOADS[start:] + PAYLOADS)[:FEW]
            parsed = page(results(names), internal and internal(names))
            assert parsed.elements == expected.elements, (
                "a name made an element or an attribute"
            )
            assert parsed.charts().keys() == expected.charts().keys()
            misleading = re.search("[\u202a-\u202e\u2066-\u2069\u200b\x00\x1b]", parsed.html)
            assert misleading is None, f"{misleading!r} is on the page"
            check_policy(parsed)
            count += len(parsed.elements) + len(parsed.attributes)
    return count


def check_policy(parsed: Page) -> None:
    """Exactly the scripts of the page may run, and nothing may be loaded."""
    policies = [i for i, (tag, names) in enumerate(parsed.elements) if "http-equiv" in names]
    assert len(policies) == 1, f"{len(policies)} policies"
    first = min(i for i, (tag, _) in enumerate(parsed.elements) if tag in ("script", "style"))
    assert policies[0] < first, "something may run before the policy holds"
    directives = dict(
        part.strip().split(" ", 1) for part in parsed.value("meta", "content")[0].split(";")
    )
    for name in ("default-src", "base-uri", "form-action"):
        assert directives.pop(name, None) == "'none'", f"{name} is not 'none'"
    assert directives.pop("img-src") == "data:", "pictures may come from elsewhere"
    scripts = {hashed(text) for tag, kind, text in parsed.inline if (tag, kind) == RUNS}
    kinds = {kind for tag, kind, _ in parsed.inline if tag == "script"}
    assert kinds <= {"module", "application/json"}, f"scripts of the kinds {sorted(kinds)}"
    styles = {hashed(text) for tag, _, text in parsed.inline if tag == "style"}
    assert set(directives.pop("script-src").split()) == scripts, (
        "other scripts than those by hash"
    )
    assert set(directives.pop("style-src").split()) == styles, "other styles than those by hash"
    assert not directives, f"the policy also allows {directives}"
    loading = {"src", "href", "srcset", "srcdoc", "action", "formaction", "data", "style"}
    for tag, name, _ in parsed.attributes:
        assert name not in loading and not name.startswith("on"), f"{name} at {tag}"


RUNS = ("script", "module")


def hashed(text: str) -> str:
    """Source expression of a text in a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def check_script(parsed: Page) -> None:
    """Our script never turns text into code or HTML, and does not let Vega do so."""
    ours = [text for tag, _, text in parsed.inline if tag == "script"][-1]
    options = re.search(r"const options = \{(.*?)\};", ours, flags=re.DOTALL)
    assert options and re.search(r"\bast: true\b", options[1]), "expressions become code"
    calls = re.findall(r"vegaEmbed\((.*)\);", ours)
    assert calls, "no chart is drawn"
    assert all(call.endswith(", options") for call in calls), "a chart is drawn otherwise"
    for way in (
        r"innerHTML|outerHTML|insertAdjacentHTML",
        r"\beval\b|\bFunction\b",
        r"\bwrite\(",
    ):
        assert not re.search(way, ours), f"the script uses {way}"
    assert not re.search(r"\bfetch\b|XMLHttp|WebSocket|import\b", ours), "the script loads"


def check_costs(parsed: Page) -> None:
    """No epsilon or delta is rounded down."""
    costs = re.findall(r"epsilon ([\d.e-]+), delta ([\d.e-]+\d)", parsed.text)
    assert costs, "the first screen does not show its cost"
    for epsilon, delta in costs:
        assert float(epsilon) >= EPSILON and float(delta) >= DELTA, f"only {epsilon}, {delta}"
    cells = re.findall(r"ledger line\W+(?:\S+\s+){3}([\d.e-]+)\s+([\d.e-]+)", parsed.text)
    assert cells, "the ledger does not show the cost of its lines"
    assert all(float(e) >= EPSILON and float(d) >= DELTA for e, d in cells), f"only {cells}"


def invalid_numbers() -> int:
    """Put invalid values in place of numbers."""
    for odd in ODD:
        malformed = results(HARMLESS, number=odd)
        figures = replaced(inside(HARMLESS), odd)
        for internal in (None, figures):
            parsed = page(malformed, internal)
            parsed.charts()
            unescaped = re.search(r"\b(None|nan|NaN|inf|Infinity|undefined)\b", parsed.text)
            assert unescaped is None, (
                f"{unescaped and unescaped[0]} is on the page, for {odd!r:.20}"
            )
    return len(ODD)


def replaced(content: object, odd: object) -> Any:
    """The same structure with another value for every number."""
    if isinstance(content, dict):
        return {name: replaced(value, odd) for name, value in content.items()}
    if isinstance(content, list):
        return [replaced(value, odd) for value in content]
    return odd if isinstance(content, int | float) else content


def check_internal() -> None:
    """Internal figures are marked on their page, and do not change the public one."""
    harmless = results(HARMLESS)
    public = page(harmless)
    secret = page(harmless, inside(HARMLESS))
    assert page(harmless).html == public.html, "the public page changed"
    for number in SECRETS:
        assert number in secret.text, f"{number} is missing"
        for form in (number, number.replace(",", "")):
            assert form not in public.html, "internal figures are on the public page"
    assert "secret" in secret.value("body", "class"), "the internal page has no watermark"
    assert "INTERNAL" in re.findall(r"<title>(.*?)</title>", secret.html)[0], "no title"
    start = secret.html.index('<section aria-label="Internal">')
    section = secret.html[start : secret.html.index("</section>", start)]
    assert section.count("<figure") >= 6, "figures are missing"
    for figure in section.split("<figure")[1:]:
        assert MARKED in figure, "a figure is not marked as internal"
    css = next(text for tag, _, text in secret.inline if tag == "style")
    rules = re.findall(r"\.secret::after \{(.*?)\}", css, flags=re.DOTALL)
    assert rules and 'content: "INTERNAL"' in rules[0] and "fixed" in rules[0], "no watermark"
    hidden = [rule for rule in rules if re.search("display: none|visibility|opacity", rule)]
    assert not hidden, "the watermark is hidden"
    assert '"INTERNAL: "' in secret.inline[-1][2], "saved charts are not marked"


# ---------------------------------------------------------------- data


def results(names: list[str], number: object = 0.9) -> Results:
    """Results in which every name is one of these, with one number."""
    figure = {"value": number, "low": number, "high": number, "level": number, "n": number}
    curve = {"confidences": [number] * 2, "counts": [figure] * 2, "accuracies": [figure] * 2}
    every = {"count": figure, "accuracy": figure, "ece": figure, "brier": figure}
    overall = {**every, "curve": curve, "ece_floor": number, "ece_noise_bias": number}
    figures = {
        "overall": overall,
        "groups": dict.fromkeys(names, every),
        "micro_epsilon": 1 if number == 0.9 else number,
    }
    whens = ["before", "after", *names]
    named = {name: name for name in names}
    first = dict.fromkeys(("epsilon", "delta", "advantage", "at_most"), number)
    if number == 0.9:
        first = {"epsilon": EPSILON, "delta": DELTA, "advantage": 0.3, "at_most": 3}
    line = {"purpose": "ledger line", "part": "a", "times": 1, "used": 1}
    lines = [{"purpose": n, "part": n, "times": n, "used": n} for n in names]
    cost = {"epsilon": first["epsilon"], "delta": first["delta"]}
    return Results(
        name=names[0],
        date=names[1],
        data={"name": names[2], "classes": names, "groups": named, "size": number},
        guarantee={"private": True, **first, "unit": names[3], "text": "\n".join(names)},
        ledger={"head": None, "planned": [{**each, **cost} for each in (line, *lines)]},
        model={},
        map={"kind": names[4], "inverse": number, **named},
        measured=tuple(MeasurementRecord(when, names[5], figures) for when in whens),
        settings={"measurement": {"group": names[6]}, "names": named, "odd": [number]},
        versions=named,
        not_measured=tuple(names),
    )


def inside(names: list[str]) -> dict[str, Any]:
    """Internal figures with such names and unique numbers."""
    a, b, c, d, e, f, g, h, i = (int(number.replace(",", "")) for number in SECRETS)
    figure = {"value": 0.5, "low": 0.4, "high": 0.6, "level": 0.95, "n": 5}
    bins = {"low": 0.0, "high": 1.0, "confidence": 0.5, "accuracy": 0.5}
    return {
        "training": [1.0, 0.5],
        "records": {"training": a, "test": b},
        "classes": {"yes": c, "no": d, **dict.fromkeys(names, 5)},
        "groups": {"age": {"young": e, "old": f}, **{name: {name: 5} for name in names}},
        "plain figures after": dict.fromkeys(names, figure),
        "plain curve before": [{**bins, "count": g}],
        "plain curve after": [{**bins, "count": h}],
        "by group after": {name: {name: figure} for name in names},
        "also": {name: name for name in names} | {"one more": f"{i:,}"},
    }
