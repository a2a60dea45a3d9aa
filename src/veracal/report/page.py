"""Reports as self-contained HTML files: the frame, the report of a run, and internal panels.

A page loads nothing: styles, charts and scripts are inside, and its policy forbids the rest.
The script that draws charts (Vega, Vega-Lite and vega-embed) is built once and cached.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from veracal import __version__
from veracal._checks import extra
from veracal.artifact import read_file
from veracal.data import Estimate, atomic_file, cache_folder, private_folder
from veracal.errors import VeracalError
from veracal.report import tables
from veracal.report import text as words
from veracal.report.charts import (
    AFTER,
    STAGES,
    Spec,
    bars,
    charts,
    diagram,
    mark_internal,
    tip,
    whole,
)
from veracal.report.results import Bin, Results, estimate, mapping, number
from veracal.report.tables import MOST, Table, cell, institutions, pairs
from veracal.report.text import NOT_RECORDED, TOO_FEW, decimals, interval, listed, visible

_MAX_SCRIPT = 16 * 2**20  # bytes; the script has less than one million


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script.

    Building it takes seconds, so that it is cached in a private folder of the user, under a
    name that contains its hash. If that folder cannot be used, it is built each time.

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.
    """
    builder = extra("vl_convert", "report")
    name = f"vega-{builder.__version__}"
    script = read_cached(name)
    if script is None:
        script = str(builder.javascript_bundle())
        write_cached(name, script)
    # Inside a script element these two would end it, or hide its end.
    if "</script" in script.lower() or "<!--" in script:
        raise ValueError(
            f"Expected a script that is safe inside a page, got {name} with a tag."
        )
    return script


def read_cached(name: str) -> str | None:
    """A cached script whose content matches its hash; None if there is none."""
    with suppress(VeracalError, OSError):
        folder = private_folder(_cache())
        for path in folder.glob(f"{name}-*.js"):
            content = read_file(folder, path.name, _MAX_SCRIPT)
            if path.name == _file_name(name, content):
                return content.decode()
    return None


def write_cached(name: str, text: str) -> None:
    """Cache a script, if the folder can be used."""
    content = text.encode()
    with (
        suppress(VeracalError, OSError),
        atomic_file(private_folder(_cache()) / _file_name(name, content), force=True) as file,
    ):
        file.write(content)


def _file_name(name: str, content: bytes) -> str:
    """File name of a cached script, with its hash."""
    return f"{name}-{hashlib.sha256(content).hexdigest()}.js"


def _cache() -> Path:
    """Folder of cached scripts."""
    return cache_folder() / "scripts"


NO_TRAINING = "No training curve: the fitted model was loaded from the ledger."
_MAX_BARS = 40  # names that a chart can show
_KNOWN = {"training", "records", "classes", "groups"} | {
    f"{what} {when}" for what in ("plain figures", "plain curve", "by group") for when in STAGES
}


@dataclass(frozen=True)
class Panel:
    """A chart, or several below each other, with their table."""

    title: str
    table: Table | None
    charts: Mapping[str, Spec] = field(default_factory=dict)  # by name; saved together
    has_choices: bool = False  # the reader chooses the stage or the budget that charts show
    note: str = ""  # a sentence below the title


def internal_panels(internal: Mapping[str, Any]) -> list[Panel]:
    """Panels of everything internal, in the order of the page."""
    rest = {name: value for name, value in internal.items() if name not in _KNOWN}
    records = _counts("Number of records", mapping(internal.get("records")))
    panels = [
        training(internal),
        reliability(internal),
        exact_figures(internal),
        by_group(internal),
        Panel("Records", records),
        classes(internal),
        groups(internal),
        Panel("Other internal figures", pairs("From the records, without noise", rest)),
    ]
    return [
        each for each in panels if each.charts or each.note or (each.table and each.table.rows)
    ]


def training(internal: Mapping[str, Any]) -> Panel:
    """Loss by step."""
    losses = _sequence(internal.get("training"))
    if not losses:
        return Panel("Training curve", None, note=NO_TRAINING)
    points = [(step, number(loss)) for step, loss in enumerate(losses, start=1)]
    rows = [{"step": step, "loss": loss} for step, loss in points if loss is not None]
    line = {
        "mark": {"type": "line", "color": AFTER, "point": len(rows) < 60},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "point of training"},
            "y": {"field": "loss", "type": "quantitative", "title": "loss"},
            "tooltip": [tip("step", "point"), tip("loss", "loss", ".4f")],
        },
        "height": 180,
    }
    cells = tuple((f"{step}", decimals(loss)) for step, loss in points[:MOST])
    table = Table("Loss at equally spaced points", ("point of training", "loss"), cells)
    drawn = mark_internal({"training": whole(rows, line, "Loss by step.")})
    return Panel("Training curve", table, drawn)


def reliability(internal: Mapping[str, Any]) -> Panel:
    """The reliability diagram without noise, with the histogram of confidence."""
    stages = {when: bins(internal.get(f"plain curve {when}")) for when in STAGES}
    drawn = mark_internal(
        {
            "plain": diagram(stages, "Reliability diagram of the test records, without noise."),
            "confidence": bars(stages, "records", "Histogram of confidence, without noise."),
        }
    )
    rows = tuple(
        (
            f"{each.low:.2f} to {each.high:.2f}",
            when,
            _count(each.count.value),
            decimals(each.confidence),
            decimals(each.accuracy.value),
            interval(each.accuracy),
        )
        for when in STAGES
        for each in stages[when][:MOST]
    )
    heads = ("confidence in", "stage", "records", "mean confidence", "accuracy", "interval")
    table = Table("Bins of the reliability diagram, without noise", heads, rows)
    return Panel("Reliability without noise", table, drawn, has_choices=True)


def bins(written: object) -> tuple[Bin, ...]:
    """Bins of a curve without noise; those without ends are left out."""
    parsed = []
    for entry in map(mapping, _sequence(written)):
        low, high = number(entry.get("low")), number(entry.get("high"))
        if low is None or high is None:
            continue
        count, accuracy = number(entry.get("count")), number(entry.get("accuracy"))
        ends = [number(entry.get(f"accuracy_{end}")) for end in ("low", "high")]
        least, most = (None, None) if None in ends else ends
        n = int(count or 0)
        parsed.append(
            Bin(
                low,
                high,
                number(entry.get("confidence")),
                Estimate(count, None, None, 0.0, n),
                Estimate(accuracy, least, most, 0.0, n),
            )
        )
    return tuple(parsed)


def exact_figures(internal: Mapping[str, Any]) -> Panel:
    """Figures of the test records before and after recalibration, without noise."""
    stages = {when: mapping(internal.get(f"plain figures {when}")) for when in STAGES}
    names = dict.fromkeys(name for figures in stages.values() for name in figures)
    present = [when for when in STAGES if stages[when]]
    rows = tuple(
        (str(name), *(_figure(stages[when].get(name)) for when in present)) for name in names
    )
    table = Table("Figures of the test records, without noise", ("figure", *present), rows)
    return Panel("Figures without noise", table)


def by_group(internal: Mapping[str, Any]) -> Panel:
    """Figures of each group, without noise."""
    stages = {when: mapping(internal.get(f"by group {when}")) for when in STAGES}
    every = dict.fromkeys(group for groups in stages.values() for group in groups)
    entries = [
        (group, when, mapping(stages[when][group]))
        for group in every
        for when in STAGES
        if group in stages[when]
    ]
    names = tuple(dict.fromkeys(name for _, _, each in entries for name in each))
    rows = tuple(
        (str(group), when, *(_figure(each.get(name)) for name in names))
        for group, when, each in entries[:MOST]
    )
    heads = ("group", "stage", *map(str, names))
    return Panel("Figures of groups without noise", Table("Without noise", heads, rows))


def classes(internal: Mapping[str, Any]) -> Panel:
    """Number of records in each class, with bars for the most frequent ones."""
    counts = mapping(internal.get("classes"))
    description = "Records of each class."
    numbers = [(visible(str(name)), number(n)) for name, n in counts.items()]
    known = [(name, n) for name, n in numbers if n is not None]
    if len(known) > _MAX_BARS:
        known = sorted(known, key=lambda each: -each[1])[:_MAX_BARS]
        description = f"{description} Only the {_MAX_BARS} largest are drawn."
    rows: list[dict[str, Any]] = [{"name": name, "n": n} for name, n in known]
    # Without "stack": None, Vega looks up stacks by name, and "constructor" is one.
    across = {"field": "n", "type": "quantitative", "title": "records", "stack": None}
    names = {"field": "name", "type": "nominal", "sort": None, "title": None}
    spec = {
        "mark": {"type": "bar", "color": AFTER},
        "encoding": {
            "x": {**across, "axis": {"tickCount": 5}},
            "y": {**names, "axis": {"labelLimit": 140}},
            "tooltip": [tip("name", "name"), tip("n", "records", ",.0f")],
        },
        "height": 22 * max(len(rows), 2),
    }
    drawn = mark_internal({"classes": whole(rows, spec, description)})
    return Panel("Class balance", _counts("Records of each class", counts), drawn)


def groups(internal: Mapping[str, Any]) -> Panel:
    """Number of records in each group."""
    attributes = mapping(internal.get("groups"))
    parts = {name: _counts("", mapping(counts)) for name, counts in attributes.items()}
    rows = [(str(name), *row) for name, table in parts.items() for row in table.rows]
    heads = ("attribute", "name", "records", "share")
    return Panel("Groups", Table("Records of each group", heads, tuple(rows[:MOST])))


def _counts(caption: str, counts: Mapping[str, Any]) -> Table:
    """Names, counts and shares."""
    numbers = {str(name): number(n) for name, n in counts.items()}
    total = sum(n for n in numbers.values() if n is not None)
    rows = tuple(
        (name, _count(n), TOO_FEW if n is None or not total else f"{100 * n / total:.1f}%")
        for name, n in numbers.items()
    )
    return Table(caption, ("name", "records", "share"), rows[:MOST])


def _figure(written: object) -> str:
    """A figure with its interval, or why there is none."""
    return cell(None if written is None else estimate(written))


def _count(n: float | None) -> str:
    """A number of records."""
    return TOO_FEW if n is None else f"{n:,.0f}"


def _sequence(value: object) -> Sequence[Any]:
    """A sequence, or an empty one; text does not count as one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()


_LINES = "\u200c\u200d\n"


def render(results: Results, *, internal: Mapping[str, Any] | None = None) -> str:
    """Render the report of a run as one HTML file.

    Parameters
    ----------
    results : Results
        Only what is public or was charged. The file may be untrusted: it is displayed, and
        nothing in it is executed.
    internal : mapping, optional
        Everything else, for a separate, watermarked page: "training", a sequence of losses at
        equally spaced points; "records", "classes" and, by attribute, "groups", mappings of
        names to counts; "plain figures before" and "after", mappings of names to "value",
        "low", "high", "level", "n"; "by group before" and "after", the same by group; "plain
        curve before" and "after", bins with "low", "high", "confidence", "accuracy",
        "accuracy_low", "accuracy_high", "count"; and any other names with numbers, text or
        mappings of them. Missing entries are left out.

    Returns
    -------
    str
        HTML of less than 2 MB for realistic results: hundreds of groups, classes and bins.

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.

    Guarantees
    ----------
    Without ``internal`` the page is a function of the results alone, so that it has no privacy
    cost.
    """
    panels = None if internal is None else internal_panels(internal)
    drawn = charts(results)
    for panel in panels or ():
        drawn |= panel.charts
    return render_page(
        "report.html.j2",
        drawn,
        internal=panels is not None,
        version=results.versions.get("veracal"),
        results=results,
        title_of=results.name,
        classes=listed(results.classes),
        statement=results.guarantee.get("text"),
        head=results.ledger.get("head"),
        protection=words.protection(results),
        headline=words.headline(results),
        groups=words.groups(results),
        not_measured=words.not_measured(results),
        map_effect=words.describe_map(results),
        has_later=any(record.when not in STAGES for record in results.measured),
        federated=institutions(results),
        internal_panels=panels,
        level=tables.level(results),
        confidence=tables.confidence(results),
        reliability=tables.reliability(results),
        measured=tables.measured(results),
        floor=tables.floor(results),
        by_group=tables.by_group(results),
        gaps=tables.gaps(results),
        ledger=tables.ledger(results),
        data=pairs("Declared before any record was read", results.data),
        settings=pairs("Settings of the run", results.settings),
        map=pairs("Calibration map", results.map),
        versions=pairs("Versions of libraries", results.versions),
    )


def render_page(
    template: str,
    drawn: Mapping[str, Spec],
    *,
    internal: bool,
    version: object = __version__,
    **context: Any,
) -> str:
    """Render a template as one file, with a policy that lets nothing else run.

    The template extends ``page.html.j2``, and escapes all variables of its context. A page
    without charts contains no drawing script; an ``internal`` one is watermarked.
    """
    bundle = vega() if drawn else ""
    css, script = _asset("report.css"), _asset("report.js")
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy([bundle, script], css),
            # These are ours; with the bundle they are the only text that is not escaped.
            css=Markup(css),  # noqa: S704
            script=Markup(script),  # noqa: S704
            bundle=Markup(bundle),  # noqa: S704
            charts=dict(drawn),
            internal=internal,
            version=version,
            **context,
        )
    )


def policy(scripts: list[str], css: str) -> str:
    """A content security policy that allows exactly these scripts, and loads nothing."""
    hashes = " ".join(_hash(script) for script in scripts if script)
    return (
        f"default-src 'none'; script-src {hashes}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    """Source expression of an inline text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _asset(name: str) -> str:
    """Text of a file beside the templates."""
    where = resources.files("veracal.report") / "templates" / name
    return where.read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    """Templates that escape every value and replace missing ones by words."""

    def finalize(value: object) -> object:
        """Text of a value on the page: never None, and no misleading characters."""
        if isinstance(value, Markup):
            return value
        if value is None or isinstance(value, jinja2.Undefined):
            return NOT_RECORDED
        return visible(str(value), keep=_LINES)

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("veracal.report"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.Undefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return environment
