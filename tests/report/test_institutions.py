"""The part of the report about institutions."""

import json
from dataclasses import replace

import pytest

from tests.report.payloads import PAYLOADS
from veracal.errors import DataError
from veracal.report import model_card, render
from veracal.report.results import Results
from veracal.report.tables import institutions

SIDE = {
    "accuracy": {"value": 0.8, "low": 0.7, "high": 0.9, "level": 0.95, "n": 900},
    "ece": {"value": 0.1, "low": 0.05, "high": 0.2, "level": 0.95, "n": 900},
}


def one(name, **changed):
    reported = {
        "name": name,
        "key": "2a81 9b1e 10a8 eb05 3a6c 6768 0018 fe66",
        "unit": "patient",
        "max_contributions": 3,
        "relation": "add-remove",
        "epsilon": 1.2345671,
        "delta": 1e-5,
        "answered": True,
        "why": None,
        "head": {"index": 5, "hash": "ab" * 32},
    }
    return {**reported, **changed}


def record(*sources, **changed):
    reported = {
        "study": "Heart study",
        "made": "2026-11-16",
        "method": "pooled",
        "map": {"kind": "temperature", "version": 1, "inverse": 0.5},
        "guard": None,
        "before": SIDE,
        "after": SIDE,
        "temperatures": {},
        "private": True,
        "guarantee": {"epsilon": 1.2345671, "delta": 1e-5},
        "statement": "What is promised,\nin full.",
        "sources": list(sources),
        "earlier": [],
    }
    return {**reported, **changed}


@pytest.fixture
def federated(results):
    silent = one("South", answered=False, why="it refused; its owner can see why", head=None)
    return replace(results, federation=record(one("North"), silent))


def test_without_a_federation_nothing_mentions_institutions(results):
    assert institutions(results) is None
    assert "Recalibrated" not in render(results)
    assert "measured before the model" not in render(results)
    assert "Recalibrated" not in model_card(results)


def test_every_institution_and_its_charge_is_listed(federated):
    result = institutions(federated)
    assert result.title == "Recalibrated by 2 institutions"
    assert "1 of 2 institutions answered every query" in result.sentences[0]
    north, south = result.sources.rows
    assert north[:3] == (
        "North",
        "epsilon 1.23457, delta 0.00001",
        "patient of up to 3 records",
    )
    assert north[-1] == "entry 5, abababababababab…"
    assert south[4] == "incomplete: it refused; its owner can see why"
    assert south[-1] == "no signed entry yet"
    assert [row[1] for row in result.figures.rows] == ["0.800 (0.700 to 0.900)"] * 2
    for text in (render(federated), model_card(federated)):
        assert "Recalibrated by 2 institutions" in text
        assert "1.23457" in text
        assert "in full." in text
    assert "measured before the model was recalibrated" in render(federated)


def test_a_rejected_map_is_reported(results):
    reported = record(
        one("North"), map={"kind": "identity", "version": 1}, before=None, after=None
    )
    result = institutions(replace(results, federation=reported))
    assert "measured before the model" not in render(replace(results, federation=reported))
    assert result.title == "Recalibrated by 1 institution"
    assert "keeps its previous map" in result.sentences[-1]
    assert result.figures is None


def test_results_with_and_without_institutions_round_trip(results, federated):
    assert Results.from_bytes(federated.to_bytes()) == Results.from_bytes(
        Results.from_bytes(federated.to_bytes()).to_bytes()
    )
    assert json.loads(federated.to_bytes())["version"] == 2
    assert json.loads(results.to_bytes())["version"] == 1
    assert Results.from_bytes(results.to_bytes()).federation is None
    assert Results.from_bytes(federated.to_bytes()).federation == federated.federation


@pytest.mark.parametrize("version", [0, 1, 3])
def test_results_of_another_version_are_rejected(federated, version):
    content = json.loads(federated.to_bytes())
    with pytest.raises(DataError):
        Results.from_bytes(json.dumps({**content, "version": version}).encode())


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"sources": "x"},
        {"sources": [1, None, {}]},
        {"sources": [one("N", epsilon="1", head=3, max_contributions=None, unit=["x"])]},
        {"before": [], "after": 3, "map": 3, "guarantee": None, "statement": {"a": 1}},
    ],
    ids=range(5),
)
def test_a_malformed_federation_record_still_renders(results, broken):
    reported = broken and {**record(), **broken}
    page = render(replace(results, federation=reported))
    assert "Recalibrated by" in page


def test_hostile_institution_names_are_text(results, open_page):
    hostile = [one(payload, why=payload, unit=payload, answered=False) for payload in PAYLOADS]
    reported = record(*hostile, study=PAYLOADS[0], statement=PAYLOADS[0], method=PAYLOADS[0])
    opened = open_page(render(replace(results, federation=reported)))
    assert opened.page.locator("#institutions tbody tr").count() >= len(PAYLOADS)
    assert not opened.page.locator("#institutions script, #institutions img, iframe").count()
    assert opened.page.evaluate("window.__pwned") is None
    assert not opened.violations


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_is_no_wider_than_its_window(federated, open_page, width):
    opened = open_page(render(federated), viewport={"width": width, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    first = (
        "getComputedStyle(document.querySelector('#institutions th[scope=row]'), '::before')"
    )
    assert opened.page.evaluate(f"{first}.content") == "none"  # words of another card's rows
    box = opened.page.locator("#institutions").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
