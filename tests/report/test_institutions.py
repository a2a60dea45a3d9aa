"""The part of the report about institutions."""

from dataclasses import replace

import pytest

from tests.report.examples import recalibration, source_cost
from tests.report.payloads import PAYLOADS
from veracal.calibration import Identity
from veracal.report import model_card, render
from veracal.report.tables import institutions


@pytest.fixture
def federated(results):
    why = "it refused; its owner can see why"
    silent = source_cost("South", answered=False, why=why, head=None)
    earlier = recalibration(source_cost("East"))
    latest = recalibration(source_cost("North"), silent)
    return replace(results, recalibrations=(earlier, latest))


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
        assert "in full" in text
    assert "measured before the model was recalibrated" in render(federated)


def test_a_rejected_map_is_reported(results):
    record = recalibration(source_cost("North"), map=Identity(), before=None, after=None)
    rejected = replace(results, recalibrations=(record,))
    result = institutions(rejected)
    assert "measured before the model" not in render(rejected)
    assert result.title == "Recalibrated by 1 institution"
    assert "keeps its previous map" in result.sentences[-1]
    assert result.figures is None


def test_public_records_need_no_guarantee(results):
    record = recalibration(source_cost("North", epsilon=0.0, delta=0.0), guarantee=None)
    result = institutions(replace(results, recalibrations=(record,)))
    assert not any("protected" in sentence for sentence in result.sentences)
    assert result.sources.rows[0][1] == "epsilon 0"


def test_hostile_institution_names_are_text(results, open_page):
    hostile = [source_cost(one, why=one, unit=one, answered=False) for one in PAYLOADS]
    record = recalibration(*hostile, study=PAYLOADS[0], method=PAYLOADS[0])
    opened = open_page(render(replace(results, recalibrations=(record,))))
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
