"""Results of a run, and a browser that renders pages."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.workflow.own_ledgers import run
from veracal.report.results import Results
from veracal.workflow import Config
from veracal.workflow.config import DataConfig, PrivacyConfig

CHROMIUM = os.environ.get("VERACAL_CHROMIUM", "/usr/bin/chromium")
LISTEN = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.__violations.push(event.violatedDirective + " " + event.blockedURI));
"""


@dataclass
class OpenedPage:
    """A page in the browser, with its console messages and requests."""

    page: object
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        return self.page.evaluate("window.__violations")

    def drawn(self) -> int:
        """Wait until all charts are drawn, and count them."""
        places = self.page.locator("[data-chart]").count()
        self.page.wait_for_function(
            "n => document.querySelectorAll('[data-chart][data-ready=yes]').length === n",
            arg=places,
            timeout=120_000,
        )
        return places


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Results:
    config = Config(DataConfig("digits"), PrivacyConfig(8.0))
    return run(config, tmp_path_factory.mktemp("report") / "m").results


@pytest.fixture(scope="session")
def grouped(results) -> Results:
    """The same results with two groups and a later measurement."""
    overall = results.when("after").overall
    with_groups = tuple(
        replace(one, group="age", groups={"young": overall, "old": overall})
        for one in results.measured
    )
    later = replace(with_groups[1], when="next spring")
    return replace(results, measured=(*with_groups, later))


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; set VERACAL_CHROMIUM")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=240_000
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def open_page(browser, tmp_path_factory) -> Callable[..., OpenedPage]:
    """A function that opens HTML as a file in a new browser context."""
    contexts, folder = [], tmp_path_factory.mktemp("pages")

    def opened(html: str, **options: object) -> OpenedPage:
        path = folder / f"{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        context.add_init_script(LISTEN)
        tab = OpenedPage(context.new_page())
        tab.page.on("console", lambda message: tab.messages.append(message.text))
        tab.page.on("pageerror", lambda error: tab.messages.append(str(error)))
        context.on("request", lambda request: tab.requests.append(request.url))
        context.on("requestfailed", lambda one: tab.failed.append((one.url, one.failure)))
        tab.page.goto(path.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
