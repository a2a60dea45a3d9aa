"""The checks of 'veracal doctor'."""

import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import typer

from veracal import __version__
from veracal.cli import _output
from veracal.data import cache_folder
from veracal.errors import VeracalError

MIN_PVALUE = 1e-6 / 3  # of three distributions: a false alarm in one run of a million
_MIN_DISK = 2**28  # bytes
_LIBRARIES = (
    "numpy", "scipy", "scikit-learn", "polars", "pyarrow", "opendp", "dp-accounting",
    "randomgen", "safetensors", "typer", "rich",
)  # fmt: skip
# Modules that only this extra installs.
_EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "opacus"),
    "text": ("transformers", "peft"),
    "images": ("PIL",),
    "federation": ("cryptography",),
    "flower": ("flwr",),
    "report": ("altair", "vl_convert", "matplotlib"),
    "cluster": ("dask", "ray"),
}


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes
    ----------
    name, result : str
    passed : bool
    remedy : str
        What to do if it failed.
    """

    name: str
    result: str
    passed: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Checkup:
    """All checks.

    Attributes
    ----------
    environment : tuple of Check
    extras : mapping of str to bool
        Whether each is installed.
    tests : tuple of Check
        Of the noise, the random generator and the ledger.
    """

    environment: tuple[Check, ...]
    extras: Mapping[str, bool]
    tests: tuple[Check, ...]

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in (*self.environment, *self.tests) if not check.passed]

    def to_json(self) -> dict[str, Any]:
        """All checks as values that JSON can hold."""
        return {
            "passed": not self.failed,
            "environment": [asdict(check) for check in self.environment],
            "extras": dict(self.extras),
            "tests": [asdict(check) for check in self.tests],
        }


def run_checks() -> Checkup:
    """Run all checks."""
    extras = {
        name: all(util.find_spec(module) is not None for module in modules)
        for name, modules in _EXTRAS.items()
    }
    tests = (*_noise(), _generator(), _ledger())
    return Checkup(tuple(_environment()), extras, tests)


def _environment() -> Iterator[Check]:
    """Versions, processors and disk space."""
    yield Check("veracal", __version__)
    yield Check("Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for name in _LIBRARIES:
        try:
            yield Check(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, "not installed.", False, f"Install it with  pip install {name}.")
    yield Check("SQLite", sqlite3.sqlite_version)
    limit = os.environ.get("OMP_NUM_THREADS")
    bound = f", OMP_NUM_THREADS={limit}" if limit else ""
    yield Check("threads", f"{len(os.sched_getaffinity(0))} processors{bound}")
    yield _disk()


def _disk() -> Check:
    """Free space for cached data sets."""
    folder = cache_folder()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    words = f"{free / 2**30:,.1f} GiB free in {folder}"
    remedy = "Free some space, or set VERACAL_CACHE to a folder on another disk."
    return Check("cache disk", words, free >= _MIN_DISK, remedy)


def _noise() -> Iterator[Check]:
    """Test the distributions of the noise."""
    from veracal.testing import DRAWS, noise_pvalues

    for name, pvalue in noise_pvalues().items():
        words = f"{DRAWS:,} draws, p-value {pvalue:.3g}"
        remedy = (
            "Release nothing from this machine. Run again, and report it if it fails again."
        )
        yield Check(f"{name} noise", words, pvalue >= MIN_PVALUE, remedy)


def _generator() -> Check:
    """Check that secret generators are independent and hide their state."""
    from veracal import _random

    one, two = _random.secret_generator(), _random.secret_generator()
    differ = not set(one.integers(2**63, size=4)) & set(two.integers(2**63, size=4))
    try:
        _ = one.bit_generator.state
        hidden = False
    except TypeError:
        hidden = True
    passed = differ and hidden and _random.is_secret(one)
    words = "two differ, and both hide their state" if passed else "it can be repeated or read."
    return Check("secret generator", words, passed, "Release nothing. Reinstall randomgen.")


def _ledger() -> Check:
    """Check that a ledger can be written in the working folder."""
    from veracal.accounting import Budget, Pure
    from veracal.ledger import Ledger, open_ledger

    remedy = "Start in a writable folder on a local disk, or name one with --ledger."
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".veracal-doctor.") as folder:
            place = Path(folder) / "test.ledger"
            open_ledger(place, Budget(1.0))
            Ledger(place).charge(Pure(0.25), "self-test")
            left = Ledger(place).remaining().epsilon
    except (OSError, VeracalError) as error:
        return Check("a ledger here", " ".join(str(error).split()), False, remedy)
    kept = left == 0.75
    words = "opened, charged and read again" if kept else "it lost a charge."
    return Check("a ledger here", words, kept, remedy)


def show(checkup: Checkup) -> None:
    """Print all checks."""
    console = _output.console()
    rows = [(check.name, _mark(check.passed), check.result) for check in checkup.environment]
    console.print(_output.table("environment", ("", "", ""), rows))
    rows = [
        (name, _mark(here) if here else "–", "" if here else f'pip install "veracal[{name}]"')
        for name, here in checkup.extras.items()
    ]
    console.print(_output.table("extras", ("", "", ""), rows))
    rows = [(check.name, _mark(check.passed), check.result) for check in checkup.tests]
    console.print(_output.table("self-test", ("", "", ""), rows))
    if not checkup.failed:
        typer.echo("\nAll checks passed.")


def _mark(passed: bool) -> str:
    return "ok" if passed else "FAILED"
