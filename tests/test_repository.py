"""The README, the docs, the command line and the files of the repository are correct."""

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from veracal.cli import main

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "veracal"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LOADED = re.compile(
    r'<(?:link|script|img|iframe|source)\b[^>]*(?:href|src)="?(?:https?:)?//[^>]*>'
)
HEAVY = {"numpy", "scipy", "sklearn", "polars", "pyarrow", "torch"}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of each fenced block of a page."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def has_example(page: Path) -> bool:
    """Whether the page shows Python code."""
    return any(language == "python" for language, *_ in blocks(page))


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_shows_the_two_commands(command):
    assert command in PAGES[0].read_text(encoding="utf-8")


def test_the_readme_has_an_example():
    assert has_example(PAGES[0])


def test_every_gate_is_listed():
    listed = set(re.findall(r"`(\w+)`", "".join(_rows(ROOT / "assurance" / "README.md"))))
    gates = {path.stem.removeprefix("gate_") for path in ROOT.glob("assurance/gate_*.py")}
    assert gates and gates == listed


def _rows(page: Path) -> list[str]:
    """First cells of the tables of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line.split("|")[1] for line in lines if line.startswith("|")]


@pytest.mark.parametrize("page", list(filter(has_example, PAGES)), ids=lambda page: page.stem)
def test_the_examples_run(page, tmp_path, monkeypatch):
    """A page's blocks work from top to bottom, as a reader would copy and type them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page.stem}
    for language, title, text in blocks(page):
        if title:
            Path(title).write_text(text, encoding="utf-8")
        elif language == "console":
            type_commands(text)
        elif language == "python" and ">>>" in text:
            test = doctest.DocTestParser().get_doctest(text, names, page.name, page.name, 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            assert runner.run(test, clear_globs=False).failed == 0
            names = test.globs
        elif language == "python":
            exec(compile(text, page.name, "exec"), names)


@pytest.mark.full
@pytest.mark.parametrize(
    "script", sorted((ROOT / "examples").glob("*.py")), ids=lambda script: script.stem
)
def test_the_example_scripts_run(script, tmp_path):
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, timeout=900)


def type_commands(text: str) -> None:
    """Run the lines that a reader would type, and expect success.

    Commands of ours that need no shell run in this process: importing everything again for each
    of them would take longer than their work.
    """
    scripts = Path(sys.executable).parent
    path = os.pathsep.join([str(scripts), os.environ.get("PATH", "")])
    for line in re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, flags=re.MULTILINE):
        if line.startswith("veracal ") and not re.search(r"[|&;<>$*?~`#]", line):
            run_here(line)
            continue
        done = subprocess.run(
            line, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path}
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"


def run_here(line: str) -> None:
    """Run a command of ours in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", shlex.split(line.replace("\\\n", " ")))
        with pytest.raises(SystemExit) as left:
            main()
    assert left.value.code in (None, 0), line


def test_the_vision_is_three_lines():
    assert len((ROOT / "VISION.md").read_text(encoding="utf-8").splitlines()) == 3


def test_privacy_comes_first_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = re.split(r"^## ", changelog, flags=re.MULTILINE)[1]
    assert unreleased.startswith("[Unreleased]")
    assert re.findall(r"^### (.+)$", unreleased, flags=re.MULTILINE)[0] == "Privacy"


def test_no_tracked_file_names_a_place_on_somebodys_machine():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    # In two halves, so that this file does not find itself.
    places = [("/wo" + "rk/").encode(), ("/ro" + "ot/").encode(), ("/tmp" + "/v").encode()]
    paths = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    guilty = [
        f"{path.relative_to(ROOT)} has {place.decode()}"
        for path in paths
        if path.is_file()
        for place in places
        if place in path.read_bytes()
    ]
    assert not guilty


def test_the_lower_layers_stay_free_of_heavy_packages():
    """Import-linter forbids only what is listed: every layer below neural is."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (order,) = [contract for contract in contracts if contract["type"] == "layers"]
    (forbidden,) = [c for c in contracts if "torch" in c.get("forbidden_modules", ())]
    below = order["layers"][order["layers"].index("neural") + 1 :]
    names = {name.strip() for line in below for name in re.split(r"[|:]", line)}
    layers = {f"veracal.{name}" for name in names if (SOURCE / name).is_dir()}
    assert set(forbidden["source_modules"]) == layers


def test_the_architecture_names_every_module():
    """Modules by their path, packages by their folder; other files that it names exist, too."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", page))
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    packages = {path.removesuffix("__init__.py") for path in modules if "/__init__.py" in path}
    expected = {path for path in modules if not path.endswith("/__init__.py")} | packages
    assert not expected - named, "not described"
    missing = [
        path for path in named if not ((SOURCE / path).exists() or (ROOT / path).exists())
    ]
    assert not missing, "described, but not there"


@pytest.mark.full
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    assert len(pages) > 5
    assert not [tag for page in pages for tag in LOADED.findall(page)]
    assert not [page[:200] for page in pages if "```" in page]  # a fence that did not render


SKIPS = """
import pytest

from veracal.cli import main

def test_skips():
    pytest.skip("no data here")

@pytest.mark.may_skip
def test_may_skip():
    pytest.skip("another system")

@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    assert False
"""


@pytest.mark.parametrize(
    ("strict", "outcome"),
    [("0", "3 skipped, 1 xfailed"), ("1", "1 failed, 1 skipped, 1 xfailed, 1 error")],
)
def test_skips_fail_where_they_are_refused(tmp_path, strict, outcome):
    (tmp_path / "conftest.py").write_bytes((ROOT / "tests" / "conftest.py").read_bytes())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = may_skip\n")
    (tmp_path / "test_some.py").write_text(SKIPS)
    (tmp_path / "test_none.py").write_text("import pytest\npytest.importorskip('no_such')\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:benchmark", "-ra"]
    command += ["--continue-on-collection-errors", tmp_path]
    environment = os.environ | {"VERACAL_NO_SKIPS": strict}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert outcome in done.stdout
    assert "no data here" in done.stdout
    assert done.returncode == int(strict)


def run_help(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run ``veracal --help`` in a new interpreter."""
    script = (
        "import sys; sys.argv = ['veracal', '--help']; from veracal.cli import main; main()"
    )
    command = [sys.executable, *flags, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_help_helps():
    assert "Usage: veracal" in run_help().stdout


def test_help_imports_nothing_heavy():
    lines = run_help("-X", "importtime").stderr.splitlines()
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert "veracal" in imported
    assert not imported & HEAVY
