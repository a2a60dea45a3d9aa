"""The script that draws: Vega, Vega-Lite and vega-embed, made once and kept.

The second page: charts and tables of records as they are, for whoever holds those.

The report: one HTML file that loads nothing, for who decides and for engineers.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from veracal._checks import extra
from veracal.artifact import read_file
from veracal.data import Estimate, cache_folder, placed, private_folder
from veracal.errors import VeracalError
from veracal.report import tables
from veracal.report import text as words
from veracal.report.charts import AFTER, SIDES, Spec, bars, charts, diagram, tip, whole
from veracal.report.results import Bin, Results, estimate, mapping, number
from veracal.report.tables import MOST, Table, cell, institutions, pairs
from veracal.report.text import UNTOLD, decimals, interval, listed, visible

_MOST = 16 * 2**20  # bytes; it has less than one million


@cache
def vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script.

    To make it takes seconds, so that it is kept in the user's cache, in a folder that nobody
    else can enter, under a name with its hash. Where that cannot be, it is made each time.

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.
    """
    maker = extra("vl_convert", "report")
    name = f"vega-{maker.__version__}"
    made = kept(name)
    if made is None:
        made = str(maker.javascript_bundle())
        keep(name, made)
    # Inside a script element these two would end it, or hide its end.
    if "</script" in made.lower() or "<!--" in made:
        raise ValueError(f"Expected a script that can stand in a page, got {name} with a tag.")
    return made


def kept(name: str) -> str | None:
    """A script of that name whose bytes are those it was kept with; None if there is none."""
    with suppress(VeracalError, OSError):
        folder = private_folder(_place())
        for path in folder.glob(f"{name}-*.js"):
            content = read_file(folder, path.name, _MOST)
            if path.name == _named(name, content):
                return content.decode()
    return None


def keep(name: str, text: str) -> None:
    """Keep a script for the next time, if there is a place for it."""
    content = text.encode()
    with (
        suppress(VeracalError, OSError),
        placed(private_folder(_place()) / _named(name, content), force=True) as file,
    ):
        file.write(content)


def _named(name: str, content: bytes) -> str:
    """The name of a file that holds a script."""
    return f"{name}-{hashlib.sha256(content).hexdigest()}.js"


def _place() -> Path:
    """Where scripts are kept."""
    return cache_folder() / "scripts"


NO_TRAINING = "The training curve is not known: the model came from the ledger."
_BARS = 40  # names that a chart can still show
_KNOWN = {"training", "records", "classes", "groups"} | {
    f"{what} {when}" for what in ("plain figures", "plain curve", "by group") for when in SIDES
}


@dataclass(frozen=True)
class Figure:
    """Something to look at on the internal page.

    Attributes
    ----------
    title : str
    table : Table or None
    charts : mapping
        Specifications by name; those of one figure are saved together.
    sides : bool
        Whether it shows the model before and after its repair.
    said : str
        A sentence below the title.
    """

    title: str
    table: Table | None
    charts: Mapping[str, Spec]
    sides: bool = False
    said: str = ""


def figures(internal: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Whatever there is to show, in the order of the page."""
    rest = {name: value for name, value in internal.items() if name not in _KNOWN}
    made = [
        training(internal),
        reliability(internal),
        plain_figures(internal),
        by_group(internal),
        records(internal),
        classes(internal),
        groups(internal),
        Figure("Everything else", pairs("From the records as they are", rest), {}),
    ]
    shown = [one for one in made if one.charts or one.said or (one.table and one.table.rows)]
    return tuple(shown)


def training(internal: Mapping[str, Any]) -> Figure:
    """Loss by step."""
    losses = _sequence(internal.get("training"))
    if not losses:
        return Figure("Training curve", None, {}, said=NO_TRAINING)
    told = [(step, number(loss)) for step, loss in enumerate(losses, start=1)]
    rows = [{"step": step, "loss": loss} for step, loss in told if loss is not None]
    line = {
        "mark": {"type": "line", "color": AFTER, "point": len(rows) < 60},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "title": "point of training"},
            "y": {"field": "loss", "type": "quantitative", "title": "loss"},
            "tooltip": [tip("step", "point"), tip("loss", "loss", ".4f")],
        },
        "height": 180,
    }
    cells = tuple((f"{step}", decimals(loss)) for step, loss in told[:MOST])
    table = Table("Loss, at equal distances", ("point of training", "loss"), cells)
    return Figure("Training curve", table, _drawn(training=whole(rows, line, "Loss by step.")))


def reliability(internal: Mapping[str, Any]) -> Figure:
    """The plain reliability diagram, with the histogram of confidence."""
    sides = {when: bins(internal.get(f"plain curve {when}")) for when in SIDES}
    drawn = _drawn(
        plain=diagram(sides, "Plain reliability diagram, of the test records as they are."),
        confidence=bars(sides, "records", "Plain histogram of confidence."),
    )
    rows = [
        (
            f"{each.low:.2f} to {each.high:.2f}",
            when,
            _count(each.count.value),
            decimals(each.confidence),
            decimals(each.accuracy.value),
            interval(each.accuracy),
        )
        for when in SIDES
        for each in sides[when][:MOST]
    ]
    heads = ("confidence in", "side", "records", "mean confidence", "right", "interval")
    table = Table("Bins of the plain reliability diagram", heads, tuple(rows))
    return Figure("Plain reliability", table, drawn, sides=True)


def bins(found: object) -> tuple[Bin, ...]:
    """Bins of a plain curve; those without ends are left out."""
    made = []
    for entry in map(mapping, _sequence(found)):
        low, high = number(entry.get("low")), number(entry.get("high"))
        if low is None or high is None:
            continue
        count, right = number(entry.get("count")), number(entry.get("accuracy"))
        ends = [number(entry.get(f"accuracy_{end}")) for end in ("low", "high")]
        least, most = (None, None) if None in ends else ends
        n = int(count or 0)
        made.append(
            Bin(
                low,
                high,
                number(entry.get("confidence")),
                Estimate(count, None, None, 0.0, n),
                Estimate(right, least, most, 0.0, n),
            )
        )
    return tuple(made)


def plain_figures(internal: Mapping[str, Any]) -> Figure:
    """Figures of the test records before and after the map."""
    sides = {when: mapping(internal.get(f"plain figures {when}")) for when in SIDES}
    names = dict.fromkeys(name for found in sides.values() for name in found)
    told = [when for when in SIDES if sides[when]]
    rows = tuple(
        (str(name), *(_figure(sides[when].get(name)) for when in told)) for name in names
    )
    table = Table("Figures of the test records, without noise", ("figure", *told), rows)
    return Figure("Plain figures", table, {})


def by_group(internal: Mapping[str, Any]) -> Figure:
    """The same of every group."""
    sides = {when: mapping(internal.get(f"by group {when}")) for when in SIDES}
    every = dict.fromkeys(group for groups in sides.values() for group in groups)
    found = [
        (group, when, mapping(sides[when][group]))
        for group in every
        for when in SIDES
        if group in sides[when]
    ]
    names = tuple(dict.fromkeys(name for _, _, each in found for name in each))
    rows = tuple(
        (str(group), when, *(_figure(each.get(name)) for name in names))
        for group, when, each in found
    )
    heads = ("group", "side", *map(str, names))
    return Figure("Plain figures of groups", Table("Without noise", heads, rows[:MOST]), {})


def records(internal: Mapping[str, Any]) -> Figure:
    """How many records there are."""
    return Figure(
        "Records", _counted("How many there are", mapping(internal.get("records"))), {}
    )


def classes(internal: Mapping[str, Any]) -> Figure:
    """How many records each class has."""
    found = mapping(internal.get("classes"))
    drawn = _drawn(classes=_balance(found, "Records of each class."))
    return Figure("Class balance", _counted("Records of each class", found), drawn)


def groups(internal: Mapping[str, Any]) -> Figure:
    """How many records each group has."""
    ways = mapping(internal.get("groups"))
    parts = {way: _counted("", mapping(found)) for way, found in ways.items()}
    rows = [(str(way), *row) for way, table in parts.items() for row in table.rows]
    heads = ("group by", "name", "records", "share")
    return Figure("Groups", Table("Records of each group", heads, tuple(rows[:MOST])), {})


def _counted(caption: str, found: Mapping[str, Any]) -> Table:
    """Names, counts and shares."""
    told = {str(name): number(n) for name, n in found.items()}
    total = sum(n for n in told.values() if n is not None)
    rows = tuple(
        (name, _count(n), UNTOLD if n is None or not total else f"{100 * n / total:.1f}%")
        for name, n in told.items()
    )
    return Table(caption, ("name", "records", "share"), rows[:MOST])


def _balance(found: Mapping[str, Any], said: str) -> Spec | None:
    """Bars of the most frequent names."""
    told = [(visible(str(name)), number(n)) for name, n in found.items()]
    known = [{"name": name, "n": n} for name, n in told if n is not None]
    rows = known
    if len(known) > _BARS:
        rows = sorted(known, key=lambda row: -float(row["n"]))[:_BARS]  # type: ignore[arg-type]
        said = f"{said} Only the {_BARS} with most records are drawn."
    # Bars that may be stacked are looked up by name, and "constructor" is one, too.
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
    return whole(rows, spec, said)


def _figure(found: object) -> str:
    """A figure with its interval, or words where there is none."""
    return cell(None if found is None else estimate(found))


def _count(n: float | None) -> str:
    """A number of records."""
    return UNTOLD if n is None else f"{n:,.0f}"


def _drawn(**specs: Spec | None) -> dict[str, Spec]:
    """Charts for which there is something to draw, each said to be internal."""
    return {
        name: {**spec, "description": f"Internal. {spec['description']}"}
        for name, spec in specs.items()
        if spec is not None
    }


def _sequence(found: object) -> Sequence[Any]:
    """A sequence, or an empty one; text is none."""
    return found if isinstance(found, Sequence) and not isinstance(found, str | bytes) else ()


_LINES = "\u200c\u200d\n"


def render(results: Results, *, internal: Mapping[str, Any] | None = None) -> str:
    """Write the report of a run as one HTML file.

    Parameters
    ----------
    results : Results
        Only what is public or was charged; a file that anybody may have written is shown, and
        nothing in it is run.
    internal : mapping, optional
        What is neither, for a second, watermarked page: "training", a sequence of losses at
        equal distances; "records", "classes" and, by attribute, "groups", mappings of names to
        counts; "plain figures before" and "after", mappings of names to "value", "low", "high",
        "level", "n"; "by group before" and "after", the same by group; "plain curve before"
        and "after", bins with "low", "high", "confidence", "accuracy", "accuracy_low",
        "accuracy_high", "count"; and any other names with numbers, words or mappings of them.
        What is missing is left out.

    Returns
    -------
    str
        HTML of less than 2 MB for what people have: hundreds of groups, classes and bins.

    Raises
    ------
    MissingExtraError
        Without the ``report`` extra.

    Guarantees
    ----------
    Without ``internal`` the page is a function of the results alone, so it costs nothing more.
    """
    inside = None if internal is None else figures(internal)
    drawn = charts(results)
    for each in inside or ():
        drawn |= each.charts
    return written(
        "report.html.j2",
        drawn,
        results=results,
        title_of=results.name,
        classes=listed(_page_sequence(results.data.get("classes"))),
        statement=results.guarantee.get("text"),
        head=results.ledger.get("head"),
        protection=words.protection(results),
        headline=words.headline(results),
        groups=words.groups(results),
        not_measured=words.not_measured(results),
        repaired=words.repaired(results),
        later=bool(words.later(results)),
        federated=institutions(results),
        inside=inside,
        secret=inside is not None,
        **tables.all_tables(results),
    )


def written(template: str, drawn: Mapping[str, Spec], **told: Any) -> str:
    """A page of ours as one file, with a policy that lets nothing else run.

    Parameters
    ----------
    template : str
    drawn : mapping of str to chart
        In the grammar of Vega-Lite; without any, the page needs no script that draws.
    **told : anything
        What the template asks for; all of it is escaped.
    """
    bundle = vega() if drawn else ""
    css, script = _asset("report.css"), _asset("report.js")
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy([bundle, script], css),
            # Ours, not of any file: these and the bundle are all the text that is not escaped.
            css=Markup(css),  # noqa: S704
            script=Markup(script),  # noqa: S704
            bundle=Markup(bundle),  # noqa: S704
            charts=dict(drawn),
            **told,
        )
    )


def policy(scripts: list[str], css: str) -> str:
    """A content security policy that lets run exactly these scripts, and load nothing."""
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
    """A file beside the template."""
    where = resources.files("veracal.report") / "templates" / name
    return where.read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    """Templates in which everything is escaped, and nothing is left unsaid."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("veracal.report"),
        autoescape=True,
        finalize=_said,
        undefined=jinja2.Undefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return made


def _said(value: object) -> object:
    """What stands on the page for a value: never None, nor a character that misleads."""
    if isinstance(value, Markup):
        return value
    if value is None or isinstance(value, jinja2.Undefined):
        return "not told"
    return visible(str(value), keep=_LINES)


def _page_sequence(found: object) -> list[Any]:
    """A list, or an empty one; what is called a name by a mapping is its key."""
    return list(found) if isinstance(found, list | tuple) else list(mapping(found))
