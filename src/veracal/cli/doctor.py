"""The command ``doctor``: whether this machine can keep the privacy guarantees."""

import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path

import typer

from veracal import __version__
from veracal.cli import _options, _output
from veracal.errors import VeracalError

app = typer.Typer(add_completion=False)

MIN_PVALUE = 1e-6 / 3  # of three distributions: a false alarm in one run of a million
_MIN_DISK = 2**28  # bytes
_LIBRARIES = (
    "numpy", "scipy", "scikit-learn", "polars", "pyarrow", "opendp", "dp-accounting",
    "randomgen", "safetensors", "typer", "rich",
)  # fmt: skip
# Modules that only this extra installs.
_EXTRAS = {
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
    """The result of one check, and what to do if it failed."""

    name: str
    result: str
    passed: bool = True
    remedy: str = ""


@app.command(epilog="Example:  veracal doctor")
def doctor(json: _options.Json = False) -> None:
    """Check the environment, the noise and the ledger.

    Draws noise of every kind and tests its distribution (with a false alarm in
    one run of a million), writes a temporary ledger in this folder, and lists
    versions and extras. Exits with 1 if a check fails. A missing extra is not a
    failure.
    """
    with _output.progress_bar("Drawing noise"):
        extras = {
            name: all(util.find_spec(module) is not None for module in modules)
            for name, modules in _EXTRAS.items()
        }
        checks = {"environment": list(_environment()), "tests": list(_tests())}
    failed = [check for each in checks.values() for check in each if not check.passed]
    if json:
        lists = {name: [asdict(check) for check in each] for name, each in checks.items()}
        _output.print_json(
            {
                "passed": not failed,
                "environment": lists["environment"],
                "extras": extras,
                "tests": lists["tests"],
            }
        )
    else:
        tables = {
            name: [(c.name, "ok" if c.passed else "FAILED", c.result) for c in each]
            for name, each in checks.items()
        }
        _output.print_table("environment", ("", "", ""), tables["environment"])
        rows = [
            (name, *(("ok", "") if here else ("–", f'pip install "veracal[{name}]"')))
            for name, here in extras.items()
        ]
        _output.print_table("extras", ("", "", ""), rows)
        _output.print_table("self-test", ("", "", ""), tables["tests"])
        if not failed:
            typer.echo("\nAll checks passed.")
    for check in failed:
        _output.print_status(f"error: {check.name}: {check.result} {check.remedy}".rstrip())
    if failed:
        raise typer.Exit(1)


def _environment() -> Iterator[Check]:
    """Versions, processors and disk space."""
    from veracal.data import cache_folder

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
    folder = cache_folder()
    free = shutil.disk_usage(next(p for p in (folder, *folder.parents) if p.exists())).free
    words = f"{free / 2**30:,.1f} GiB free in {folder}"
    remedy = "Free some space, or set VERACAL_CACHE to a folder on another disk."
    yield Check("cache disk", words, free >= _MIN_DISK, remedy)


def _tests() -> Iterator[Check]:
    """Test the distributions of the noise, the secret generator, and a ledger here."""
    from veracal import _random
    from veracal.accounting import Budget, Pure
    from veracal.ledger import Ledger, open_ledger
    from veracal.testing import DRAWS, noise_pvalues

    for name, pvalue in noise_pvalues().items():
        words = f"{DRAWS:,} draws, p-value {pvalue:.3g}"
        remedy = (
            "Release nothing from this machine. Run again, and report it if it fails again."
        )
        yield Check(f"{name} noise", words, pvalue >= MIN_PVALUE, remedy)

    one, two = _random.secret_generator(), _random.secret_generator()
    passed = not set(one.integers(2**63, size=4)) & set(two.integers(2**63, size=4))
    try:
        _ = one.bit_generator.state
        passed = False
    except TypeError:
        passed = passed and _random.is_secret(one)
    words = "two differ, and both hide their state" if passed else "it can be repeated or read."
    remedy = "Release nothing. Reinstall randomgen."
    yield Check("secret generator", words, passed, remedy)

    remedy = "Start in a writable folder on a local disk, or name one with --ledger."
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".veracal-doctor.") as folder:
            path = Path(folder) / "test.ledger"
            open_ledger(path, Budget(1.0))
            Ledger(path).charge(Pure(0.25), "self-test")
            left = Ledger(path).remaining().epsilon
    except (OSError, VeracalError) as error:
        yield Check("a ledger here", " ".join(str(error).split()), False, remedy)
        return
    words = "opened, charged and read again" if left == 0.75 else "it lost a charge."
    yield Check("a ledger here", words, left == 0.75, remedy)
