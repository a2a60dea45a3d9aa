"""The model card in the format of Hugging Face."""

import json
import re

from veracal.report import tables
from veracal.report import text as words
from veracal.report.results import FIGURES, Results
from veracal.report.tables import Table, institutions
from veracal.report.text import listed, visible

_SPECIAL = re.compile(r"([\\`*_\[\]|~#!@$]|:(?=//)|(?<=www)\.)")
_OPENING = re.compile(r"^(\d*)([-+=.)])")  # at the start of a line: a list or a rule
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def model_card(results: Results) -> str:
    """Write MODEL_CARD.md: front matter for model hubs, then the same facts for readers.

    Everything in it comes from the results, hence is public or was charged. Names from files
    are escaped: they are text in Markdown, never a link, a tag or a line of the front matter.
    """
    guarantee, study = words.protection(results), institutions(results)
    parts = [
        front_matter(results),
        f"# {text(results.name)}",
        f"A differentially private classifier, trained on {text(results.data.name)} on "
        f"{text(results.date)} with Veracal.",
        "## Privacy protection",
        f"{guarantee.strength.capitalize()} protection ({text(guarantee.cost)}).",
        *(text(sentence) for sentence in guarantee.sentences),
        "## Can its confidence be trusted?",
        *(text(sentence) for sentence in words.headline(results)),
        _table(tables.confidence(results)),
        text(words.describe_map(results)),
        "## Differences between groups",
        *(text(sentence) for sentence in words.groups(results)),
        _table(tables.by_group(results)),
        *(
            []
            if study is None
            else [
                f"## {text(study.title)}",
                *(text(sentence) for sentence in study.sentences),
                _table(study.sources),
                _table(study.figures),
                _fenced(study.statement),
            ]
        ),
        "## Not measured",
        "\n".join(f"- {text(each)}" for each in words.not_measured(results)),
        "## Measurements, released with noise",
        _table(tables.measured(results)),
        text(tables.floor(results)),
        "## Classes",
        f"{text(listed(results.data.classes, most=50))}.",
        "## Privacy guarantee",
        _fenced(results.guarantee.text()),
        "## Configuration",
        _table(tables.pairs("Settings", results.settings)),
        _table(tables.pairs("Versions", results.versions)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def front_matter(results: Results) -> str:
    """YAML for model hubs: tags, and figures after recalibration."""
    lines = [
        "---",
        "library_name: veracal",
        "pipeline_tag: tabular-classification",
        "tags:",
        *(f"- {tag}" for tag in ("differential-privacy", "calibration")),
    ]
    last = results.when("after")
    figures = {name: None if last is None else getattr(last.overall, name) for name in FIGURES}
    values = {n: e.value for n, e in figures.items() if e is not None and e.value is not None}
    if values:
        dataset = quoted(results.data.name)
        lines += [
            "model-index:",
            f"- name: {quoted(results.name)}",
            "  results:",
            "  - task:",
            "      type: tabular-classification",
            "    dataset:",
            f"      name: {dataset}",
            f"      type: {dataset}",
            "    metrics:",
        ]
        for name, value in values.items():
            lines += [
                f"    - type: {name}",
                f"      name: {quoted(f'{name}, released with noise')}",
                f"      value: {value:.6f}",
            ]
    return "\n".join([*lines, "---"])


def quoted(value: str) -> str:
    r"""Text in double quotation marks, as YAML and JSON both read it.

    Examples
    --------
    >>> print(quoted('a "b": # c'))
    "a \"b\": # c"
    """
    return json.dumps(visible(value), ensure_ascii=False)


def text(value: str) -> str:
    r"""Escape text for a line of Markdown.

    Examples
    --------
    >>> print(text("[x](y) <b>"))
    \[x\](y) &lt;b&gt;
    """
    escaped = _SPECIAL.sub(lambda match: f"\\{match[0]}", visible(value).strip())
    escaped = _OPENING.sub(r"\1\\\2", escaped)
    return "".join(_ENTITIES.get(character, character) for character in escaped)


def _table(table: Table | None) -> str:
    """A Markdown table below its caption."""
    if table is None or not table.rows:
        return ""
    heads, *rows = (tuple(map(text, line)) for line in (table.heads, *table.rows))
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(
        [f"{text(table.caption)}:", "", *(f"| {' | '.join(line)} |" for line in lines)]
    )


def _fenced(content: str) -> str:
    """Preformatted text, in a fence longer than any inside it."""
    if not content:
        return ""
    longest = max(map(len, re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(visible(line) for line in content.splitlines())
    return f"{fence}text\n{lines}\n{fence}"
