"""All runs on one data set share one budget and one split, wherever their output goes.

Runs with other settings, other outputs, another split key and another test share are tried on
one table, after the first has spent its epsilon, and with the ledger's caps raised. What all of
them cost together must stay within the caps, and nobody may be in two partitions.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from veracal.errors import VeracalError
from veracal.pipeline import Config, Run
from veracal.pipeline import run as fit
from veracal.pipeline.config import (
    DataConfig,
    MeasurementConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)
from veracal.pipeline.steps import loaded
from veracal.privacy import Ledger
from veracal.privacy.partitions import PartitionStore

NAME = "data_ledger"
SECONDS = 8
EPSILON, DELTA = 2.0, 1e-5
SCHEMA = """format = 1
size = 300
name = "visits"
[columns.age]
kind = "number"
lower = 0
upper = 300
[columns.ward]
kind = "category"
values = ["a", "b"]
[columns.ill]
kind = "target"
classes = [0, 1]
"""
OTHER_COLUMNS = SCHEMA.replace('"category"\nvalues = ["a", "b"]', '"ignore"')
CHARGING = "veracal.pipeline.charging"


@dataclass(frozen=True)
class Subject:
    """How runs find their ledger and their partitions.

    Attributes
    ----------
    ledger : callable, optional
        The path of the ledger, from that of the output; by default the data set's.
    patches : tuple of (name, replacement)
        Of the library.
    """

    ledger: Callable[[Path], Path] | None = None
    patches: tuple[tuple[str, object], ...] = ()


def beside_the_output(out: Path) -> Path:
    """The ledger of the first build, one for each output folder."""
    return Path(f"{out}.ledger")


@classmethod  # type: ignore[misc]
def any_rule(cls: type, path: Path, rule: object, *, fresh: bool) -> object:
    """A store that takes whatever rule a run asks for."""
    Path(path).unlink(missing_ok=True)
    return PartitionStore.create(path, rule)  # type: ignore[arg-type]


CORRECT = Subject()
MUTANTS = {
    "a ledger for each output folder": Subject(ledger=beside_the_output),
    "a run with another split is taken": Subject(
        patches=((f"{CHARGING}.PartitionStore.obtain", any_rule),)
    ),
    "another schema of the same file is taken": Subject(
        patches=(("veracal.privacy.partitions._identifying", lambda *_: ()),)
    ),
    "a ledger that vanished is opened anew": Subject(
        patches=(("veracal.pipeline.running.check_remembered", lambda *_: None),)
    ),
}


def run(subject: Subject, *, long: bool) -> str:
    """Try runs on one table, and add up what was granted."""
    granted = refused = 0
    with table(subject) as folder:
        first = attempt(subject, config(folder), folder / "first")
        assert first is not None, "the first run was refused"
        for number, other in enumerate(others(config(folder), 6 if long else 2)):
            made = attempt(subject, other, folder / f"other {number}")
            granted, refused = granted + (made is not None), refused + (made is None)
        check_total(folder)
        Ledger(first.ledger.path).extend(epsilon=20.0, delta=1e-3)
        tested, trained = rows(first), rows(first, "train")
        for number, other in enumerate(splits(config(folder))):
            made = attempt(subject, other, folder / f"split {number}")
            if made is not None:
                tested, trained = tested | rows(made), trained | rows(made, "train")
        assert not tested & trained, f"{len(tested & trained)} rows are in two partitions"
        data = replace(config(folder).data, schema=str(folder / "other.toml"))
        other = attempt(subject, replace(config(folder), data=data), folder / "columns")
        assert other is None, "individuals were identified by other columns than before"
        vanish(first.ledger.path)
        again = attempt(subject, config(folder), folder / "first")
        assert again is None, "a ledger that vanished was forgotten"
    return f"{granted} of {granted + refused} further runs granted, nobody in two partitions"


def config(folder: Path) -> Config:
    """A quick run."""
    data = DataConfig(str(folder / "visits.csv"), str(folder / "visits.toml"))
    return Config(
        data,
        PrivacyConfig(EPSILON, DELTA),
        "visits",
        ModelConfig(epochs=2.0),
        RecalibrationConfig("none"),
        MeasurementConfig(later=0, bins=2),
    )


def others(first: Config, number: int) -> Iterator[Config]:
    """Further runs, which cost as much again."""
    for i in range(number):
        yield replace(first, model=replace(first.model, learning_rate=0.5 + i))


def splits(first: Config) -> Iterator[Config]:
    """Runs that split otherwise."""
    for change in ({"seed": "another"}, {"test": 0.5}):
        yield replace(first, data=replace(first.data, **change))  # type: ignore[arg-type]


@contextmanager
def table(subject: Subject) -> Iterator[Path]:
    """A folder with a table, ledgers of its own, and the library as the subject has it."""
    folder = Path(tempfile.mkdtemp())
    lines = [f"{i},{'ab'[i % 2]},{int(i % 300 > 150)}" for i in range(300)]
    (folder / "visits.csv").write_text("\n".join(["age,ward,ill", *lines]))
    (folder / "other.toml").write_text(OTHER_COLUMNS)
    (folder / "visits.toml").write_text(SCHEMA)
    env = {"VERACAL_LEDGERS": str(folder / "ledgers")}
    patches = [mock.patch(name, new) for name, new in subject.patches]
    try:
        with mock.patch.dict("os.environ", env):
            for patch in patches:
                patch.start()
            yield folder
    finally:
        mock.patch.stopall()
        shutil.rmtree(folder, ignore_errors=True)


def attempt(subject: Subject, chosen: Config, out: Path) -> Run | None:
    """Run, unless that is refused."""
    place = None if subject.ledger is None else subject.ledger(out)
    try:
        return fit(chosen, out, ledger=place, force=True)
    except VeracalError:
        return None


def check_total(folder: Path) -> None:
    """Compare what all ledgers of the table have spent with the caps of the first run."""
    found = [Ledger(path) for path in folder.glob("**/*.ledger")]
    epsilon = sum(ledger.spent().epsilon for ledger in found)
    delta = sum(ledger.spent().delta for ledger in found)
    told = f"epsilon {epsilon:.3f}, delta {delta:.3g} spent on one table"
    assert epsilon <= EPSILON + 1e-9 and delta <= DELTA * (1 + 1e-9), told


def rows(made: Run, part: str = "test") -> set[bytes]:
    """Rows of a partition, as a run had them."""
    settings = Config.from_entries(made.results.settings, where="settings")
    folder = made.folder.parent
    places = {"source": str(folder / "visits.csv"), "schema": str(folder / "visits.toml")}
    settings = replace(settings, data=replace(settings.data, **places))  # type: ignore[arg-type]
    return {row.tobytes() for row in getattr(loaded(settings), part).X}


def vanish(ledger: Path) -> None:
    """Remove a ledger and what is beside it."""
    for path in ledger.parent.glob(f"{ledger.name}*"):
        path.unlink()
