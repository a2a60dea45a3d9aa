"""The report: one HTML file that loads nothing, for who decides and for engineers."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from veracal.report import tables, words
from veracal.report.bundle import vega
from veracal.report.charts import Spec, charts
from veracal.report.federated import institutions
from veracal.report.internal import figures
from veracal.report.results import Results
from veracal.report.told import mapping
from veracal.report.writing import listed, visible

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
        classes=listed(_sequence(results.data.get("classes"))),
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


def _sequence(found: object) -> list[Any]:
    """A list, or an empty one; what is called a name by a mapping is its key."""
    return list(found) if isinstance(found, list | tuple) else list(mapping(found))
