"""The model card, in the form that Hugging Face reads."""

import json
import re
from typing import Any

from veracal.report import tables
from veracal.report import text as words
from veracal.report.results import FIGURES, Results, figure
from veracal.report.tables import Table, institutions
from veracal.report.text import listed, visible

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!@$]|:(?=//)|(?<=www)\.)")
_OPENING = re.compile(r"^(\d*)([-+=.)])")  # at its start, a line may be a list or a rule
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def model_card(results: Results) -> str:
    """Write MODEL_CARD.md: front matter for programs, then the same facts for people.

    Everything in it comes from the results, hence is public or was charged. Names out of files
    are escaped: they are text in Markdown, never a link, a tag or a line of the front matter.
    """
    guarantee = words.protection(results)
    parts = [
        front_matter(results),
        f"# {text(results.name)}",
        f"A differentially private classifier, learnt from {text(results.data.get('name'))} on "
        f"{text(results.made)} with Veracal.",
        "## What is protected",
        f"{guarantee.strength.capitalize()} protection ({text(guarantee.cost)}).",
        *(text(sentence) for sentence in guarantee.sentences),
        "## Can its confidence be believed?",
        *(text(sentence) for sentence in words.headline(results)),
        _table(tables.sureness(results)),
        text(words.repaired(results)),
        "## For whom is it worse?",
        *(text(sentence) for sentence in words.groups(results).sentences),
        _table(tables.by_group(results)),
        *_institutions(results),
        "## What was not measured",
        "\n".join(f"- {text(each)}" for each in words.not_measured(results)),
        "## Figures, released with noise",
        _table(tables.measured(results)),
        text(tables.floor(results)),
        "## What it tells apart",
        f"{text(listed(_classes(results), most=50))}.",
        "## Guarantee",
        _fenced(str(results.guarantee.get("text") or "Not told.")),
        "## How it was made",
        _table(tables.pairs("Settings", results.settings)),
        _table(tables.pairs("Versions", results.versions)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _institutions(results: Results) -> list[str]:
    """Who has recalibrated it, if institutions have."""
    found = institutions(results)
    if found is None:
        return []
    return [
        f"## {text(found.title)}",
        *(text(sentence) for sentence in found.sentences),
        _table(found.sources),
        _table(found.figures),
        _fenced(found.statement),
    ]


def front_matter(results: Results) -> str:
    """YAML that model hubs read: tags, and figures after the map."""
    lines = [
        "---",
        "library_name: veracal",
        "pipeline_tag: tabular-classification",
        "tags:",
        *(f"- {tag}" for tag in ("differential-privacy", "calibration")),
    ]
    last = results.when("after")
    found = {name: figure(last, name) for name in FIGURES}
    told = {name: e.value for name, e in found.items() if e is not None and e.value is not None}
    if told:
        dataset = quoted(str(results.data.get("name", "")))
        lines += [
            "model-index:",
            f"- name: {quoted(str(results.name))}",
            "  results:",
            "  - task:",
            "      type: tabular-classification",
            "    dataset:",
            f"      name: {dataset}",
            f"      type: {dataset}",
            "    metrics:",
        ]
        for name, value in told.items():
            lines += [
                f"    - type: {name}",
                f"      name: {quoted(f'{name}, released with noise')}",
                f"      value: {value:.6f}",
            ]
    return "\n".join([*lines, "---"])


def quoted(found: str) -> str:
    r"""Text in double quotation marks, as YAML and JSON both read it.

    Examples
    --------
    >>> print(quoted('a "b": # c'))
    "a \"b\": # c"
    """
    return json.dumps(visible(found), ensure_ascii=False)


def text(found: Any) -> str:
    r"""Words for a line of Markdown, or a part of one, where they mean nothing but themselves.

    Examples
    --------
    >>> print(text("[x](y) <b>"))
    \[x\](y) &lt;b&gt;
    """
    said = "not told" if found is None else visible(str(found))
    escaped = _SPECIAL.sub(lambda match: f"\\{match[0]}", said.strip())
    escaped = _OPENING.sub(r"\1\\\2", escaped)
    return "".join(_ENTITIES.get(character, character) for character in escaped)


def _table(made: Table | None) -> str:
    """A table of Markdown below its caption."""
    if made is None or not made.rows:
        return ""
    lines = [made.heads, ("---",) * len(made.heads), *made.rows]
    shown = [lines[1] if i == 1 else tuple(map(text, line)) for i, line in enumerate(lines)]
    return "\n".join(
        [f"{text(made.caption)}:", "", *(f"| {' | '.join(line)} |" for line in shown)]
    )


def _fenced(found: str) -> str:
    """Text as it is, in a fence longer than any inside it."""
    if not found:
        return ""
    longest = max(map(len, re.findall(r"`+", found)), default=0)
    fence = "`" * max(3, longest + 1)
    shown = "\n".join(visible(line) for line in found.splitlines())
    return f"{fence}text\n{shown}\n{fence}"


def _classes(results: Results) -> list[Any]:
    """Names of classes."""
    found = results.data.get("classes")
    return list(found) if isinstance(found, list | tuple) else []
