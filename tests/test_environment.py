"""What is installed is what constraints.txt pins, and it pins everything we need."""

import os
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINS = dict(
    line.split("==") for line in LINES if line and not line.startswith("#")
)  # name → version
EVERYTHING = os.environ.get("VERACAL_NO_SKIPS") == "1"


@pytest.fixture(scope="module")
def veracal() -> metadata.Distribution:
    """Veracal's own metadata."""
    try:
        return metadata.distribution("veracal")
    except metadata.PackageNotFoundError:
        pytest.skip("Veracal runs from its sources here; `make test` installs it")


def requirements_of(distribution: metadata.Distribution, extra: str = "") -> list[Requirement]:
    """The requirements that hold on this machine, of the extra alone if one is named."""
    every = [Requirement(text) for text in distribution.requires or []]
    plain = [r for r in every if r.marker is None or r.marker.evaluate({"extra": ""})]
    if not extra:
        return plain
    return [r for r in every if r not in plain and r.marker.evaluate({"extra": extra})]


def installed(name: str) -> metadata.Distribution | None:
    """The distribution of that name, if there is one."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def reachable(roots: list[Requirement]) -> set[str]:
    """Names of all installed direct and indirect dependencies of the roots."""
    seen: set[tuple[str, str]] = set()
    waiting = list(roots)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        found = installed(name)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += requirements_of(found, extra) if found else []
    return {name for name, _ in seen} - {"veracal"}


def test_constraints_are_exact_sorted_and_plain():
    pins = [line for line in LINES if not line.startswith("#")]
    assert pins == sorted(pins, key=lambda line: line.split("==")[0])
    for line in pins:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line), line
    assert PINS["torch"] == "2.13.0"


def test_what_is_installed_is_what_is_pinned():
    found = {name: installed(name) for name in PINS}
    differing = {
        name: f"{found[name].version} is installed, {version} is pinned"
        for name, version in PINS.items()
        # A build tag such as +cpu says how it was built, not what it is.
        if found[name] and Version(found[name].version).public != version
    }
    assert not differing


def test_everything_we_need_is_pinned(veracal):
    missing = reachable(requirements_of(veracal) + requirements_of(veracal, "all")) - set(PINS)
    assert not missing, "not in constraints.txt"


def test_everything_pinned_is_needed(veracal):
    needed = reachable(requirements_of(veracal) + requirements_of(veracal, "all"))
    if any(installed(name) is None for name in needed):
        pytest.skip("an extra is not installed, so not every dependency can be followed")
    assert not set(PINS) - needed, "in constraints.txt for nothing"


def test_nothing_of_the_core_is_absent(veracal):
    assert not {name for name in reachable(requirements_of(veracal)) if installed(name) is None}


def test_no_extra_is_half_installed(veracal):
    extras = set(veracal.metadata.get_all("Provides-Extra")) - {"all"}
    for extra in sorted(extras):
        named = [r for r in requirements_of(veracal, extra) if r.name != "veracal"]
        if EVERYTHING or all(installed(r.name) for r in named):
            absent = {name for name in reachable(named) if installed(name) is None}
            assert not absent, f"[{extra}] needs them"


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("dp-accounting", "0.6.0", "0.4.4"),  # pip falls back to it when attrs is too new
        ("numpy", "2.0", "1.26.4"),
        ("scikit-learn", "1.8", "1.7.2"),
        ("opendp", "0.16", "0.15"),
        ("randomgen", "2.3", "2.2"),
        ("typer", "0.20.1", "0.21"),  # Flower's caps
        ("rich", "14.3", "15.0"),
    ],
)
def test_the_bounds_that_matter_stand(veracal, name, inside, outside):
    (bound,) = [r.specifier for r in requirements_of(veracal) if r.name == name]
    assert bound.contains(inside)
    assert not bound.contains(outside)


def test_core_brings_neither_torch_nor_flower(veracal):
    assert reachable(requirements_of(veracal)).isdisjoint(
        {"torch", "flwr", "ray", "transformers"}
    )
