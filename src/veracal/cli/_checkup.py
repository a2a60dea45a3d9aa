"""What 'veracal doctor' looks at."""

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
from veracal.cli import _output as _show
from veracal.data import cache_folder
from veracal.errors import VeracalError

LEAST_PVALUE = 1e-6 / 3  # of three laws: a good machine fails in one run of a million
_LEAST_DISK = 2**28  # bytes without which nothing larger can be fetched or kept
_LIBRARIES = (
    "numpy", "scipy", "scikit-learn", "polars", "pyarrow", "opendp", "dp-accounting",
    "randomgen", "safetensors", "typer", "rich",
)  # fmt: skip
# A module of each extra that nothing else brings.
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
    """One thing that was looked at.

    Attributes
    ----------
    name, found : str
    well : bool
    remedy : str
        What to do if it is not.
    """

    name: str
    found: str
    well: bool = True
    remedy: str = ""


@dataclass(frozen=True)
class Checkup:
    """Everything that was looked at.

    Attributes
    ----------
    environment : tuple of Check
    extras : mapping of str to bool
        Whether each is installed.
    tests : tuple of Check
        Of noise, of the secret generator and of ledgers.
    """

    environment: tuple[Check, ...]
    extras: Mapping[str, bool]
    tests: tuple[Check, ...]

    @property
    def wrong(self) -> list[Check]:
        """What is not well."""
        return [check for check in (*self.environment, *self.tests) if not check.well]

    def to_json(self) -> dict[str, Any]:
        """Everything as what JSON can hold."""
        return {
            "well": not self.wrong,
            "environment": [asdict(check) for check in self.environment],
            "extras": dict(self.extras),
            "tests": [asdict(check) for check in self.tests],
        }


def checked() -> Checkup:
    """Look at everything."""
    extras = {
        name: all(util.find_spec(module) is not None for module in modules)
        for name, modules in _EXTRAS.items()
    }
    tests = (*_noise(), _generator(), _ledger())
    return Checkup(tuple(_environment()), extras, tests)


def _environment() -> Iterator[Check]:
    """What is installed, and what there is room for."""
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
    """Room where fetched sets are kept."""
    folder = cache_folder()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(there).free
    words = f"{free / 2**30:,.1f} GiB free in {folder}"
    remedy = "Free some, or set VERACAL_CACHE to a folder elsewhere."
    return Check("disk of the cache", words, free >= _LEAST_DISK, remedy)


def _noise() -> Iterator[Check]:
    """Whether noise has its law."""
    from veracal.testing import DRAWS, noise_pvalues

    for law, pvalue in noise_pvalues().items():
        words = f"{DRAWS:,} draws, p-value {pvalue:.3g}"
        remedy = "Release nothing from this machine; run again, and report it if it stays."
        yield Check(f"{law} noise", words, pvalue >= LEAST_PVALUE, remedy)


def _generator() -> Check:
    """Whether two secret generators share nothing, and keep their state to themselves."""
    from veracal import _random

    one, two = _random.secret_generator(), _random.secret_generator()
    apart = not set(one.integers(2**63, size=4)) & set(two.integers(2**63, size=4))
    try:
        _ = one.bit_generator.state
        hidden = False
    except TypeError:
        hidden = True
    well = apart and hidden and _random.is_secret(one)
    words = "two differ, and neither shows its state" if well else "it can be repeated or read."
    return Check("secret generator", words, well, "Release nothing; install randomgen anew.")


def _ledger() -> Check:
    """Whether a ledger can be written where the command was started."""
    from veracal.accounting import Budget, Pure
    from veracal.ledger import Ledger, open_ledger

    remedy = "Start in a folder on a local disk that you can write to, or name one by --ledger."
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


def show(found: Checkup) -> None:
    """Print what was found."""
    console = _show.console()
    rows = [(check.name, _mark(check.well), check.found) for check in found.environment]
    console.print(_show.table("environment", ("", "", ""), rows))
    rows = [
        (name, _mark(here) if here else "–", "" if here else f'pip install "veracal[{name}]"')
        for name, here in found.extras.items()
    ]
    console.print(_show.table("extras", ("", "", ""), rows))
    rows = [(check.name, _mark(check.well), check.found) for check in found.tests]
    console.print(_show.table("self-test", ("", "", ""), rows))
    if not found.wrong:
        typer.echo("\nAll is well.")


def _mark(well: bool) -> str:
    """Whether something is as it should be."""
    return "ok" if well else "WRONG"
