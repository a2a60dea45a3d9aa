"""Create the images of the terminal and of reports for the documentation.

    python -m docs.images.make

It needs the published set german-credit, which is fetched with apt, the ``report`` extra, and
Playwright with a Chromium: Playwright's own, or the one that VERACAL_CHROMIUM names. The noise
is fresh every time, so the images differ slightly.
"""

import html
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from benchmarks.datasets import entry, fetch

HERE = Path(__file__).parent
COMMAND_LINE = "veracal fit digits --epsilon 8 --out digits"
ARGUMENTS = [sys.executable, "-m", *COMMAND_LINE.split()]
AUDIT = (
    "veracal audit credit-g.csv --schema german-credit.toml --model objective --norm 2 "
    "--epsilon 4 16 --runs 1000 "
    "--group age --random-state 1 --out audit"
)
STYLE = "width: 100ch; white-space: pre-wrap; color: #e6e6e6; margin: 16px"
FONT = "font: 14px/1.35 monospace"
SCREEN = f'<body style="margin: 0; background: #1d2026"><pre style="{STYLE}; {FONT}">{{}}</pre>'
WIDTH, MARGIN = 960, 16
LARGEST = 200_000  # bytes of an image
IMAGES = (
    "terminal.png",
    "report-first-screen.png",
    "report-reliability.png",
    "audit-first-screen.png",
)


def main() -> None:
    """Run the commands, and render their output and pages."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # Separate ledgers, so that the user's are unchanged and every run can be paid.
        settings = {**os.environ, "VERACAL_LEDGERS": str(Path(folder) / "ledgers")}
        printed = subprocess.run(
            ARGUMENTS, cwd=folder, env=settings, capture_output=True, text=True, check=True
        )
        browser = launch_browser(playwright)
        capture_terminal(browser, printed.stdout, HERE / "terminal.png")
        page = open_page(browser, Path(folder) / "digits" / "report.html")
        capture_first_screen(page, HERE / "report-first-screen.png")
        capture_reliability(page, HERE / "report-reliability.png")
        german = entry("german-credit")
        shutil.copy(fetch("german-credit") / "credit-g.csv", folder)
        Path(folder, "german-credit.toml").write_text(german.schema().to_toml())
        audit = [sys.executable, "-m", *AUDIT.split()]
        subprocess.run(audit, cwd=folder, env=settings, capture_output=True, check=True)
        page = open_page(browser, Path(folder) / "audit" / "audit.html")
        capture_first_screen(page, HERE / "audit-first-screen.png", "#publish")
    for image in map(HERE.joinpath, IMAGES):
        size = image.stat().st_size
        print(f"{image.name}: {size:,} bytes")
        if size > LARGEST:
            raise SystemExit(f"{image.name} is too large for a page of documentation.")


def launch_browser(playwright: Playwright) -> Browser:
    """Launch a browser, whose sandbox does not work for root."""
    return playwright.chromium.launch(
        executable_path=os.environ.get("VERACAL_CHROMIUM"),
        args=["--no-sandbox"] if os.geteuid() == 0 else [],
    )


def open_page(browser: Browser, report: Path) -> Page:
    """Open a report on a light screen and wait until its charts are drawn."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="light")
    page.goto(report.resolve().as_uri())
    page.wait_for_function(
        "document.querySelectorAll('[data-chart]:not([data-ready=yes])').length === 0"
    )
    return page


def capture_terminal(browser: Browser, printed: str, path: Path) -> None:
    """Capture the command and its output."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    page.set_content(SCREEN.format(html.escape(f"$ {COMMAND_LINE}\n{printed.rstrip()}")))
    box = page.locator("pre").bounding_box()
    assert box is not None
    clip = {"x": 0, "y": 0, "width": box["width"] + 32, "height": box["height"] + 32}
    page.screenshot(path=path, clip=clip, full_page=True)


def capture_first_screen(page: Page, path: Path, until: str = "h2") -> None:
    """Capture everything above the part for engineers."""
    below = page.locator(until).first.bounding_box()
    assert below is not None
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": below["y"]}
    page.screenshot(path=path, clip=clip, full_page=True)


def capture_reliability(page: Page, path: Path) -> None:
    """Capture the diagram and its histogram, with a margin."""
    figure = page.locator("figure[aria-label=Reliability]").bounding_box()
    chart = page.locator("[data-chart=reliability]").bounding_box()
    assert figure is not None
    assert chart is not None
    clip = {
        "x": figure["x"] - MARGIN,
        "y": figure["y"] - MARGIN,
        "width": chart["width"] + 2 * MARGIN,
        "height": figure["height"] + 2 * MARGIN,
    }
    page.screenshot(path=path, clip=clip, full_page=True)


if __name__ == "__main__":
    main()
