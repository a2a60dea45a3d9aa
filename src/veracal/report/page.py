"""Reports as self-contained HTML files: the frame, the report of a run, and internal panels.

A page loads nothing: styles, charts and scripts are inside, and its policy forbids the rest.
The script that draws charts (Vega, Vega-Lite and vega-embed) is built once and cached.
"""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from veracal import __version__
from veracal._checks import extra
from veracal.artifact import read_file
from veracal.data import atomic_file, cache_folder, private_folder
from veracal.errors import VeracalError
from veracal.report import tables
from veracal.report import text as words
from veracal.report.charts import (
    AFTER,
    Spec,
    bars,
    charts,
    diagram,
    mark_internal,
    tip,
    whole,
)
from veracal.report.results import STAGES, Results, UnreleasedFigures, drawable
from veracal.report.tables import MOST, Table, bin_table, cell, institutions, pairs
from veracal.report.text import NOT_RECORDED, TOO_FEW, decimals, listed, visible

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
        folder = private_folder(cache_folder() / "scripts")
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
        atomic_file(
            private_folder(cache_folder() / "scripts") / _file_name(name, content), force=True
        ) as file,
    ):
        file.write(content)


def _file_name(name: str, content: bytes) -> str:
    """File name of a cached script, with its hash."""
    return f"{name}-{hashlib.sha256(content).hexdigest()}.js"


NO_TRAINING = "No training curve: the fitted model was loaded from the ledger."
_MAX_BARS = 40  # names that a chart can show


@dataclass(frozen=True)
class Panel:
    """A chart, or several below each other, with their table."""

    title: str
    table: Table | None
    charts: Mapping[str, Spec] = field(default_factory=dict)  # by name; saved together
    has_choices: bool = False  # the reader chooses the stage or the budget that charts show
    note: str = ""  # a sentence below the title


def internal_panels(internal: UnreleasedFigures) -> list[Panel]:
    """Panels of everything internal, in the order of the page."""
    panels = [
        training(internal.losses),
        reliability(internal),
        exact_figures(internal),
        by_group(internal),
        Panel("Records", _counts("Number of records", internal.records)),
        classes(internal.classes),
        groups(internal.groups),
    ]
    return [
        each for each in panels if each.charts or each.note or (each.table and each.table.rows)
    ]


def training(losses: Sequence[float]) -> Panel:
    """Loss by step; a loss that is not finite is only in the table."""
    if not losses:
        return Panel("Training curve", None, note=NO_TRAINING)
    points = list(enumerate(losses, start=1))
    rows = [{"step": step, "loss": loss} for step, loss in points if math.isfinite(loss)]
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


def reliability(internal: UnreleasedFigures) -> Panel:
    """The reliability diagram without noise, with the histogram of confidence."""
    stages = {when: drawable(one.overall.curve).bins for when, one in internal.stages.items()}
    drawn = mark_internal(
        {
            "plain": diagram(stages, "Reliability diagram of the test records, without noise."),
            "confidence": bars(stages, "records", "Histogram of confidence, without noise."),
        }
    )
    caption = "Bins of the reliability diagram, without noise"
    table = bin_table(caption, stages, lambda figure: f"{figure.n:,}")
    return Panel("Reliability without noise", table, drawn, has_choices=True)


def exact_figures(internal: UnreleasedFigures) -> Panel:
    """Figures of the test records before and after recalibration, without noise."""
    stages = {when: one.overall.figures for when, one in internal.stages.items()}
    names = dict.fromkeys(name for figures in stages.values() for name in figures)
    rows = tuple(
        (name, *(cell(figures.get(name)) for figures in stages.values())) for name in names
    )
    table = Table("Figures of the test records, without noise", ("figure", *stages), rows)
    return Panel("Figures without noise", table)


def by_group(internal: UnreleasedFigures) -> Panel:
    """Figures of each group, without noise."""
    stages = {when: one.groups for when, one in internal.stages.items()}
    every = dict.fromkeys(group for groups in stages.values() for group in groups)
    entries = [
        (group, when, groups[group])
        for group in every
        for when, groups in stages.items()
        if group in groups
    ]
    names = tuple(dict.fromkeys(name for _, _, figures in entries for name in figures))
    rows = tuple(
        (group, when, *(cell(figures.get(name)) for name in names))
        for group, when, figures in entries[:MOST]
    )
    heads = ("group", "stage", *names)
    return Panel("Figures of groups without noise", Table("Without noise", heads, rows))


def classes(counts: Mapping[str, int]) -> Panel:
    """Number of records in each class, with bars for the most frequent ones."""
    description = "Records of each class."
    drawn_counts = list(counts.items())
    if len(counts) > _MAX_BARS:
        drawn_counts = sorted(drawn_counts, key=lambda each: -each[1])[:_MAX_BARS]
        description = f"{description} Only the {_MAX_BARS} largest are drawn."
    rows: list[dict[str, Any]] = [{"name": visible(name), "n": n} for name, n in drawn_counts]
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


def groups(attributes: Mapping[str, Mapping[str, int]]) -> Panel:
    """Number of records in each group."""
    rows = tuple(
        (attribute, *row)
        for attribute, counts in attributes.items()
        for row in _counts("", counts).rows
    )
    heads = ("attribute", "name", "records", "share")
    return Panel("Groups", Table("Records of each group", heads, rows[:MOST]))


def _counts(caption: str, counts: Mapping[str, int]) -> Table:
    """Names, counts and shares."""
    total = sum(counts.values())
    rows = tuple(
        (name, f"{n:,}", f"{100 * n / total:.1f}%" if total else TOO_FEW)
        for name, n in counts.items()
    )
    return Table(caption, ("name", "records", "share"), rows[:MOST])


_LINES = "\u200c\u200d\n"


def render(results: Results, *, internal: UnreleasedFigures | None = None) -> str:
    """Render the report of a run as one HTML file.

    Parameters
    ----------
    results : Results
        Only what is public or was charged. Names in it may be from an untrusted file: they are
        displayed, and nothing in them is executed.
    internal : UnreleasedFigures, optional
        Everything else, for a separate, watermarked page. What is empty is left out.

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
        classes=listed(results.data.classes),
        statement=results.guarantee.text(),
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
        data=pairs("Declared before any record was read", vars(results.data)),
        settings=pairs("Settings of the run", results.settings),
        map=pairs("Calibration map", results.map.to_json()),
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
