"""All runs on one data set share one budget and one split, whatever their output folder.

Runs with other settings, other outputs, another split key and another test share are tried on
one table, by other paths of it too, after the first has spent its epsilon, and with the
ledger's caps raised. What all of
them cost together must stay within the caps, and nobody may be in two partitions.

Then models are trained and measured again through ``remeasure``, after three changes that
put trained rows into the test partition in the first build: features computed on another
machine, which differ in their last bits; corrected cells; and a table that was sorted, under
replace-one. Each row holds a number that tells who it is, whatever is changed, so that who was
trained on and who is measured are compared directly.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from veracal.artifact.classifier import FrozenEncoder
from veracal.data import Dataset, Split, split
from veracal.errors import VeracalError
from veracal.ledger import Ledger
from veracal.ledger import partitions as library
from veracal.ledger.locations import ledger_name
from veracal.ledger.partitions import PartitionStore
from veracal.workflow import Config, RunResult, remeasure
from veracal.workflow import run as fit
from veracal.workflow.config import (
    DataConfig,
    MeasurementConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)
from veracal.workflow.planning import RunPlan
from veracal.workflow.records import load_records

NAME = "data_ledger"
RAISED = "cap raised after releases"
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
SLOTS = (
    SCHEMA
    + """[columns.place]
kind = "slot"
"""
)
ROWS = 300
CHARGING = "veracal.workflow.charging"


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


def ledger_per_output(out: Path) -> Path:
    """The ledger of the first build, one for each output folder."""
    return Path(f"{out}.ledger")


@classmethod  # type: ignore[misc]
def any_rule(cls: type, path: Path, rule: object, *, fresh: bool) -> object:
    """A store that accepts the rule of any run."""
    Path(path).unlink(missing_ok=True)
    return PartitionStore.create(path, rule)  # type: ignore[arg-type]


def splitting(new: Callable[..., Any]) -> Subject:
    """A library whose runs, and later measurements, split in another way."""
    return Subject(patches=(("veracal.workflow.charging.split_and_assign", new),))


def by_features(data: Dataset, store: PartitionStore, **how: bool) -> tuple[Split, Any]:
    """Hash the float features, as the first build did."""
    found, assignment = SPLIT_AND_ASSIGN(data, store, **how)
    rule = store.rule
    if rule.keyed_by == "row" and data.encoded and not data.feature_names:
        plain = data._changed(row_digests=None, encoded=False)
        found = split(plain, rule.fractions, key=rule.split_key)
    return found, assignment


def by_row_number(data: Dataset, store: PartitionStore, **how: bool) -> tuple[Split, Any]:
    """Hash the row number under replace-one, as the first build did."""
    if store.rule.keyed_by == "slot":
        data = data._changed(slots=np.arange(len(data)))
    return SPLIT_AND_ASSIGN(data, store, **how)


def redraw_corrected_rows(
    data: Dataset, store: PartitionStore, **how: bool
) -> tuple[Split, Any]:
    """Let a row that was not recorded draw by its new content."""
    found, assignment = SPLIT_AND_ASSIGN(data, store, **how)
    rule = store.rule
    if rule.keyed_by == "row":
        found = split(data, rule.fractions, key=rule.split_key)
    return found, assignment


def not_consulted(config: Config, records: Any, ledger: Ledger) -> Any:
    """Measure again on the split of the records as they are now."""
    return records


SPLIT_AND_ASSIGN = library.split_and_assign
CORRECT = Subject()
MUTANTS = {
    "a ledger for each output folder": Subject(ledger=ledger_per_output),
    "a run with another split is taken": Subject(
        patches=(("veracal.workflow.charging.PartitionStore.obtain", any_rule),)
    ),
    "another schema of the same file is taken": Subject(
        patches=(("veracal.ledger.partitions._identifying_columns", lambda *_: ()),)
    ),
    "a ledger that vanished is opened anew": Subject(
        patches=(("veracal.workflow.running.check_known_ledger", lambda *_: None),)
    ),
    "partitions that a vanished ledger left tell nothing": Subject(
        patches=(("veracal.workflow.charging.check_not_lost", lambda *_: None),)
    ),
    "a hard link has a ledger of its own": Subject(
        patches=(
            (
                "veracal.ledger.locations._ledger_in",
                lambda folder, data: folder / ledger_name(data),
            ),
        )
    ),
    "split by the hash of float features": splitting(by_features),
    "split by row number under replace-one": splitting(by_row_number),
    "a corrected row is drawn again": splitting(redraw_corrected_rows),
    "a later measurement names the caps of before": Subject(
        patches=(("veracal.workflow.running.with_total", lambda told, _: told),)
    ),
    "a later measurement does not consult the assignment": Subject(
        patches=(("veracal.workflow.running.assign_recorded", not_consulted),)
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
        for name in spellings(folder):
            spelt = replace(config(folder).data, source=str(folder / name))
            made = attempt(
                subject, replace(config(folder), data=spelt), folder / f"by {name[:4]}"
            )
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
        first.ledger.path.unlink()
        assert attempt(subject, config(folder), folder / "elsewhere") is None, (
            "partitions whose ledger vanished have a full budget again"
        )
        vanish(first.ledger.path)
        again = attempt(subject, config(folder), folder / "first")
        assert again is None, "a ledger that vanished was forgotten"
        measured = sum(attack(subject, folder) for attack in (features, corrected, resorted))
    return (
        f"{granted} of {granted + refused} further runs granted, nobody in two partitions; "
        f"{measured} rows measured again, none of them trained on"
    )


def config(folder: Path) -> Config:
    """A quick run."""
    data = DataConfig(str(folder / "visits.csv"), str(folder / "visits.toml"))
    return Config(
        data,
        PrivacyConfig(EPSILON, DELTA),
        "visits",
        ModelConfig(epochs=2.0),
        RecalibrationConfig("none"),
        MeasurementConfig(reserve=0, bins=2),
    )


def others(first: Config, number: int) -> Iterator[Config]:
    """Further runs, which cost as much again."""
    for i in range(number):
        yield replace(first, model=replace(first.model, learning_rate=0.5 + i))


def spellings(folder: Path) -> Iterator[str]:
    """Other paths of the table."""
    (folder / "link.csv").symlink_to("visits.csv")
    (folder / "hard.csv").hardlink_to(folder / "visits.csv")
    (folder / "here").symlink_to(".")
    yield from ("link.csv", "hard.csv", "here/visits.csv", "./here/../visits.csv")


def splits(first: Config) -> Iterator[Config]:
    """Runs that split otherwise."""
    for change in ({"split_key": "another"}, {"test": 0.5}):
        yield replace(first, data=replace(first.data, **change))  # type: ignore[arg-type]


@contextmanager
def table(subject: Subject) -> Iterator[Path]:
    """A folder with a table, its own ledgers, and the library as patched by the subject."""
    folder = Path(tempfile.mkdtemp())
    lines = [f"{i},{'ab'[i % 2]},{int(i % 300 > 150)}" for i in range(300)]
    (folder / "visits.csv").write_text("\n".join(["age,ward,ill", *lines]))
    (folder / "other.toml").write_text(OTHER_COLUMNS)
    (folder / "visits.toml").write_text(SCHEMA)
    env = {
        "VERACAL_LEDGERS": str(folder / "ledgers"),
        "VERACAL_CACHE": str(folder / "cache"),
    }
    patches = [mock.patch(name, new) for name, new in subject.patches]
    try:
        with mock.patch.dict("os.environ", env):
            for patch in patches:
                patch.start()
            yield folder
    finally:
        mock.patch.stopall()
        shutil.rmtree(folder, ignore_errors=True)


def attempt(subject: Subject, chosen: Config, out: Path) -> RunResult | None:
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


def rows(made: RunResult, part: str = "test") -> set[bytes]:
    """Rows of a partition, as a run had them."""
    settings = Config.from_entries(made.results.settings, where="settings")
    folder = made.folder.parent
    places = {"source": str(folder / "visits.csv"), "schema": str(folder / "visits.toml")}
    settings = replace(settings, data=replace(settings.data, **places))  # type: ignore[arg-type]
    return {row.tobytes() for row in getattr(load_records(settings), part).X}


def vanish(ledger: Path) -> None:
    """Remove a ledger and the files next to it."""
    for path in ledger.parent.glob(f"{ledger.name}*"):
        path.unlink()


# ---------------------------------------------------------------- measured again


@dataclass(frozen=True)
class Encoder:
    """A small frozen network; on another machine the last bits of its features differ."""

    name: ClassVar[str] = "gate-encoder"
    dimension: ClassVar[int] = 6
    block: ClassVar[int] = 128
    norm: ClassVar[float | None] = None
    another_machine: ClassVar[bool] = False

    def check(self, X: Any, where: str) -> None:
        """Take any numbers."""

    def fingerprint(self) -> dict[str, str | int]:
        """The same weights on all machines; the cache of features is not shared."""
        return {"weights": "0" * 64, "machine": int(self.another_machine)}

    def scorer(self, record: tuple[int, ...]) -> Callable[[Any], Any]:
        """The network: the first feature tells who it is, the others mix all columns."""
        weights = np.random.default_rng(0).normal(size=(*record, self.dimension - 1))

        def score(rows: Any) -> Any:
            mixed = np.tanh(np.asarray(rows, np.float64) @ weights)
            found = np.column_stack([rows[:, 0], mixed]).astype(np.float32)
            return np.nextafter(found, np.float32(2)) if self.another_machine else found

        return score


def individuals(records: Dataset) -> set[int]:
    """Who is in records, by the number in the first column."""
    ages = (np.asarray(records.X, np.float64)[:, 0] + 1) * ROWS / 2  # encoded from -1 to 1
    return set(np.rint(ages).astype(int).tolist())


@dataclass(frozen=True)
class Used:
    """Individuals that were trained on, and measured, in calls of the library."""

    trained: set[int]
    measured: set[int]


@contextmanager
def record_jobs() -> Iterator[Used]:
    """Note whose records a job is trained on and measured on."""
    used, real_train, real_measure = Used(set(), set()), RunPlan.train_model, RunPlan.measure

    def train(plan: RunPlan, ledger: Ledger) -> Any:
        used.trained.update(individuals(plan.records.train))
        return real_train(plan, ledger)

    def measure(plan: RunPlan, *given: Any) -> Any:
        used.measured.update(individuals(plan.records.test))
        return real_measure(plan, *given)

    with (
        mock.patch.object(RunPlan, "train_model", train),
        mock.patch.object(RunPlan, "measure", measure),
    ):
        yield used


def check_remeasurement(
    subject: Subject,
    folder: Path,
    name: str,
    lines: tuple[list[str], list[str]],
    *,
    relation: Any = "add-remove",
    unchanged: Callable[[int], bool] = lambda _: True,
) -> int:
    """Train on a table, change it, measure again; who is measured was not trained on."""
    path, out = folder / f"{name}.csv", folder / name
    path.write_text("\n".join(lines[0]))
    (folder / f"{name}.toml").write_text(SLOTS if relation == "replace-one" else SCHEMA)
    first = config(folder)
    chosen = replace(
        first,
        data=replace(first.data, source=str(path), schema=str(folder / f"{name}.toml")),
        privacy=replace(first.privacy, relation=relation),
        measurement=replace(first.measurement, reserve=1),
    )
    place = None if subject.ledger is None else subject.ledger(out)
    with record_jobs() as before:
        made = fit(chosen, out, ledger=place)
    Ledger(made.ledger.path).extend(epsilon=1.0)
    path.write_text("\n".join(lines[1]))
    with record_jobs() as after, mock.patch.object(Encoder, "another_machine", True):
        remeasure(out, source=str(path), ledger=place)
    for written_again in ("model.json", "results.json", "MODEL_CARD.md"):
        told = (out / written_again).read_text()
        assert f"epsilon = {EPSILON + 1:g}," in told and RAISED in told, (
            f"{name}: {written_again} names the caps of before they were raised"
        )
    both = before.trained & after.measured
    assert not both, (
        f"{name}: {len(both)} of {len(after.measured)} measured rows were trained on"
    )
    kept = {one for one in before.measured if unchanged(one)}
    assert before.trained and kept, f"{name}: a partition is empty"
    assert after.measured == kept, f"{name}: not the recorded test rows were measured"
    return len(after.measured)


def features(subject: Subject, folder: Path) -> int:
    """The first attack: features of the same rows from another machine."""
    encoder = FrozenEncoder.of(Encoder())  # type: ignore[arg-type]
    known = {Encoder.name: Encoder}
    with (
        mock.patch("veracal.workflow.records.choose_encoder", return_value=encoder),
        mock.patch("veracal.artifact.classifier._known_extractors", return_value=known),
    ):
        return check_remeasurement(subject, folder, "features", (written(), written()))


def corrected(subject: Subject, folder: Path) -> int:
    """The second attack: a cell has another value, or the same value in another spelling."""
    return check_remeasurement(
        subject,
        folder,
        "corrected",
        (written(), written(correct=True)),
        unchanged=lambda one: one % 3 == 2,
    )


def resorted(subject: Subject, folder: Path) -> int:
    """A table with slots is sorted the other way around and corrected, under replace-one."""
    head, *lines = written(slots=True, correct=True)
    after = [head, *reversed(lines)]
    lines = written(slots=True)
    return check_remeasurement(
        subject, folder, "resorted", (lines, after), relation="replace-one"
    )


def written(*, slots: bool = False, correct: bool = False) -> list[str]:
    """Lines of a table, of which two thirds of the rows may be corrected."""
    lines = ["age,ward,ill" + ",place" * slots]
    for i in range(ROWS):
        ward = "ab"[(i + (correct and i % 3 == 0)) % 2]
        age = f"{i}.0" if correct and i % 3 == 1 else f"{i}"
        lines.append(f"{age},{ward},{int(i > 150)}" + f",s{i}" * slots)
    return lines
