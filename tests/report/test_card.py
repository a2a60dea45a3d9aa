"""The model card: valid front matter, the facts of the page, and escaped names."""

import re
from dataclasses import replace

import pytest

from tests.report.payloads import PAYLOADS
from veracal.report import model_card

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the docs extra")
markdown = pytest.importorskip("markdown", reason="Markdown comes with the docs extra")


BLOCKS = [
    "# x",
    "---",
    "- x",
    "+ x",
    "* x",
    "1. x",
    "1) x",
    "===",
    "    x",
    "> x",
    "| x |",
    "```",
]
NAMES = [
    *PAYLOADS,
    *BLOCKS,
    "[x](javascript:y)",
    "![x](y)",
    "a: [b",
    "*x*",
    "https://x.invalid",
]


def parts(card: str) -> tuple[dict, str]:
    """Front matter and body."""
    empty, head, body = re.split(r"^---$", card, maxsplit=2, flags=re.MULTILINE)
    assert empty == ""
    return yaml.safe_load(head), body


def test_the_front_matter_holds_the_figures(results):
    head, _ = parts(model_card(results))
    assert head["library_name"] == "veracal"
    assert "differential-privacy" in head["tags"]
    (entry,) = head["model-index"]
    result = {each["type"]: each["value"] for each in entry["results"][0]["metrics"]}
    after = results.when("after").overall
    assert set(result) == {"accuracy", "ece", "brier"}
    assert result["accuracy"] == pytest.approx(after.accuracy.value, abs=1e-6)


def test_the_body_has_the_sections_of_the_page(results):
    _, body = parts(model_card(results))
    for title in (
        "Privacy protection",
        "trusted",
        "Differences between groups",
        "Not measured",
        "Privacy guarantee",
    ):
        assert re.search(f"^## .*{title}", body, flags=re.MULTILINE)
    assert results.guarantee.text().splitlines()[0] in body
    assert not re.search(r"\b(None|nan|NaN)\b", body)


@pytest.mark.parametrize("start", range(0, len(NAMES), 12))
def test_hostile_names_are_escaped(results, start):
    names = [
        *PAYLOADS,
        "[x](javascript:y)",
        "![x](y)",
        "# x",
        "---",
        "a: [b",
        "| x |",
        "```",
        "*",
    ]
    few = (names[start:] + names)[:12]
    hostile = replace(
        results,
        name=few[0],
        date=few[1],
        data=replace(results.data, name=few[2], classes=tuple(few)),
        guarantee=replace(results.guarantee, covers=tuple(few), unit=few[3]),
        settings={name: name for name in few},
        versions={name: name for name in few},
        not_measured=tuple(few),
    )
    card = model_card(hostile)
    head, body = parts(card)
    assert set(head) == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert head["library_name"] == "veracal"
    html = markdown.markdown(body, extensions=["tables", "fenced_code"])
    tags = set(re.findall(r"<([a-zA-Z!/?][^\s>]*)", html))
    known = [
        "h1",
        "h2",
        "p",
        "ul",
        "li",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
        "code",
    ]
    assert tags <= {*known, *(f"/{name}" for name in known)}
    assert html.count("<h1>") == 1 and html.count("<table>") == 4
    assert html.count("<ul>") == 1 and html.count("<li>") == len(few) + 1
