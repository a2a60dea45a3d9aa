"""Only the data holder is told of new units, before a charge.

Unit ids are compared literally. A table whose ids are spelled differently from earlier runs
therefore looks like one of new units, which draw a partition by their ids: of 86 test rows 64
had been trained on. No program can distinguish the two cases, and a refusal would make the
outcome depend on single records. So the data holder is told how many units are new, known and
absent, before anything is charged or recorded, and again at every further attempt; runs and
comparisons continue if the holder confirms; later measurements leave new units out; and no
release of a run contains these figures.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from veracal.data import Dataset
from veracal.errors import LedgerError, VeracalError
from veracal.ledger import Ledger
from veracal.ledger.partitions import AssignmentNotice, PartitionStore
from veracal.workflow import (
    Config,
    Configuration,
    RunResult,
    charging,
    compare,
    remeasure,
)
from veracal.workflow import run as fit
from veracal.workflow.config import (
    DataConfig,
    MeasurementConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)
from veracal.workflow.planning import RunPlan
from veracal.workflow.results import build_results

NAME = "new_units"
SECONDS = 8
UNITS = 160
SCHEMA = """format = 1
size = 160
name = "visits"
[columns.who]
kind = "unit"
max_contributions = 1
[columns.age]
kind = "number"
lower = 0
upper = 160
[columns.ill]
kind = "target"
classes = [0, 1]
"""
# Spellings of ids, and how many units they make new: those below 100, or all.
SPELLINGS = {"{:03}": 100, "p{}": UNITS, "{} ": UNITS, "{}.0": UNITS}
WAYS = (Configuration("logistic", "none"), Configuration("logistic", "temperature"))


@dataclass(frozen=True)
class Subject:
    """The library with some of its names replaced."""

    patches: tuple[tuple[str, object], ...] = ()


def patched(name: str, new: object) -> Subject:
    """The library with one name replaced."""
    return Subject(((name, new),))


ASSIGN, CHARGE, RESULTS = PartitionStore.assign, charging.DataAccount.charge, build_results


def recorded_at_once(store: PartitionStore, dataset: Dataset, **how: bool) -> Any:
    """Record new units when they are met, so that the next run gives no notice."""
    found = ASSIGN(store, dataset, **how)
    store.seal(found)
    return found


def notify_after_charge(account: charging.DataAccount, jobs: Any) -> Any:
    """Charge first, and tell then."""
    found = CHARGE(account, jobs)
    if account.records.notice is not None and account._on_notice is not None:
        account._on_notice(account.records.notice)
    return found


def in_the_results(job: RunPlan, *given: Any, **more: Any) -> Any:
    """Put the number of new units into what is released."""
    made, notice = RESULTS(job, *given, **more), job.records.notice
    if notice is None:
        return made
    return replace(made, versions={**made.versions, "new units": str(notice.new)})


def refused(records: Any, on_notice: Any) -> None:
    """Reject a table without a known unit."""
    notice = records.notice
    if notice is not None and on_notice is not None:
        on_notice(notice)
    if notice is not None and not notice.known:
        raise LedgerError("None of these units is known.")


def draw_new_units_later(config: Config, records: Any, ledger: Ledger) -> Any:
    """Let units that are new draw a partition in a later measurement."""
    return charging._assign(config, records, ledger)[2]


def print_notice(notice: AssignmentNotice) -> str:
    """Show the figures wherever a notice is printed."""
    return f"AssignmentNotice({vars(notice)})"


CORRECT = Subject()
MUTANTS = {
    "new units are recorded before anybody is told": patched(
        "veracal.ledger.partitions.PartitionStore.assign", recorded_at_once
    ),
    "nobody is told": patched("veracal.workflow.charging.send_notice", lambda *_: None),
    "a later measurement tells nobody": patched(
        "veracal.workflow.running.send_notice", lambda *_: None
    ),
    "told after the charge": Subject(
        (
            ("veracal.workflow.charging.send_notice", lambda *_: None),
            ("veracal.workflow.charging.DataAccount.charge", notify_after_charge),
        )
    ),
    "the number of new units is in the results": patched(
        "veracal.workflow.running.build_results", in_the_results
    ),
    "figures are shown by repr": patched(
        "veracal.ledger.partitions.AssignmentNotice.__repr__", print_notice
    ),
    "a table of new units alone is refused": patched(
        "veracal.workflow.charging.send_notice", refused
    ),
    "a later measurement lets new units draw": patched(
        "veracal.workflow.running.assign_recorded", draw_new_units_later
    ),
}


def run(subject: Subject, *, long: bool) -> str:
    """Spell the ids of a table otherwise, and see who hears of it and when."""
    told = measured = 0
    chosen = SPELLINGS if long else dict(list(SPELLINGS.items())[:2])
    for spelling, new in chosen.items():
        with World.made(subject) as world:
            world.respell(spelling)
            expected = AssignmentNotice("unit", UNITS - new, new, new, 0)
            for attempt in (world.fit, world.compare):
                told += world.stops(attempt, expected)
            measured += world.measured_again(replace(expected, left_out=new))
            world.goes_on(expected)
    return (
        f"{told} attempts told before a charge and leaving no trace; {measured} rows measured "
        "again, none of them trained on"
    )


class Stop(Exception):  # noqa: N818 - the data holder's choice, and no error
    """What the data holder answers to a notice."""


class World:
    """A table of units, which a first run was fitted to, and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "visits.toml").write_text(SCHEMA)
        self.respell("{}")
        self.trained: set[int] = set()
        heard: list[AssignmentNotice] = []
        with self.watched("train_model", self.trained):
            self.first = self.fit(heard.append, "1")
        assert not heard, "a first run was told of new units"
        self.ledger = Ledger(self.first.ledger.path)
        self.ledger.extend(epsilon=9.0, delta=1e-3)

    @classmethod
    @contextmanager
    def made(cls, subject: Subject) -> Iterator["World"]:
        """An environment with its own ledgers, and the library as patched by the subject."""
        folder = Path(tempfile.mkdtemp())
        patches = [mock.patch(name, new) for name, new in subject.patches]
        try:
            with mock.patch.dict("os.environ", {"VERACAL_LEDGERS": str(folder / "ledgers")}):
                for patch in patches:
                    patch.start()
                yield cls(folder)
        finally:
            mock.patch.stopall()
            shutil.rmtree(folder, ignore_errors=True)

    def respell(self, spelling: str) -> None:
        """Write the same individuals, with ids in another spelling."""
        lines = [f"{spelling.format(i)},{i},{int(i > UNITS // 2)}" for i in range(UNITS)]
        (self.folder / "visits.csv").write_text("\n".join(["who,age,ill", *lines]))

    def config(self, version: str) -> Config:
        """A quick run."""
        files = (str(self.folder / "visits.csv"), str(self.folder / "visits.toml"))
        return Config(
            DataConfig(*files, version=version),
            PrivacyConfig(2.0, 1e-5),
            "visits",
            ModelConfig(epochs=2.0),
            RecalibrationConfig("none"),
            MeasurementConfig(reserve=1, bins=2),
        )

    def fit(self, on_notice: Any, version: str = "2") -> RunResult:
        """Fit a model."""
        out = self.folder / f"model {version}"
        return fit(self.config(version), out, on_notice=on_notice, force=True)

    def compare(self, on_notice: Any) -> tuple[RunResult, ...]:
        """Compare two methods."""
        out = self.folder / "both"
        return compare(self.config("2"), WAYS, out, on_notice=on_notice, force=True)

    def state(self) -> tuple[str, bytes]:
        """The chain, and who is recorded."""
        kept = charging.partitions_path(self.ledger.path)
        return self.ledger.head, kept.read_bytes()

    def stops(self, attempt: Callable[[Any], Any], expected: AssignmentNotice) -> int:
        """Stop twice at the notice: each time it is the same, and nothing was done."""
        before = self.state()
        for _ in range(2):
            heard: list[AssignmentNotice] = []

            def stop(notice: AssignmentNotice) -> None:
                heard.append(notice)  # noqa: B023 - called before the next attempt
                assert self.state() == before, "something was charged or recorded before"
                raise Stop

            try:
                attempt(stop)
            except Stop:
                pass
            else:
                raise AssertionError("the data holder was not told, or could not stop")
            assert heard == [expected], f"the data holder heard {list(map(vars, heard))}"
            assert self.state() == before, "an attempt that was stopped left a trace"
        return 2

    def measured_again(self, expected: AssignmentNotice) -> int:
        """Measure the first model again: new units are left out, after a notice."""
        before, heard, measured = self.state(), [], set[int]()

        def hear(notice: AssignmentNotice) -> None:
            heard.append(notice)
            assert self.state() == before, "something was charged before"

        source = str(self.folder / "visits.csv")
        with self.watched("measure", measured):
            remeasure(self.first.folder, source=source, on_notice=hear)
        both = self.trained & measured
        assert not both, f"{len(both)} of {len(measured)} measured rows were trained on"
        assert heard == [expected], f"the data holder heard {list(map(vars, heard))}"
        return len(measured)

    def goes_on(self, expected: AssignmentNotice) -> None:
        """Continue: the run is not rejected, and releases none of the figures in the notice."""
        heard: list[AssignmentNotice] = []
        try:
            made = self.fit(heard.append)
        except VeracalError as error:
            raise AssertionError(f"a run with new units was refused: {error}") from error
        assert heard == [made.notice] == [expected]
        other = replace(expected, new=1, known=1, absent=1)
        assert repr(made.notice) == repr(other), "repr shows what the data holder is told"
        first, later = (self.released(one) for one in (self.first, made))
        assert first == later, f"a run with new units releases {sorted(later - first)}, too"

    def released(self, made: RunResult) -> set[str]:
        """Every key in the files of a run, and in its entries of the ledger."""
        files = [json.loads(path.read_bytes()) for path in made.folder.glob("*.json")]
        entries = made.ledger.to_json(answers=True)["entries"]
        return keys([files, [one for one in entries if one.get("run") == made.ledger.run]])

    @contextmanager
    def watched(self, step: str, seen: set[int]) -> Iterator[None]:
        """Note whose records a job is trained on, or measured on."""
        original = getattr(RunPlan, step)

        def noted(job: RunPlan, *given: Any) -> Any:
            records = job.records.train if step == "train_model" else job.records.test
            ages = (np.asarray(records.X, np.float64)[:, 0] + 1) * UNITS / 2
            seen.update(np.rint(ages).astype(int).tolist())
            return original(job, *given)

        with mock.patch.object(RunPlan, step, noted):
            yield


def keys(value: object) -> set[str]:
    """Every key in a JSON value."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*map(keys, value.values()))
