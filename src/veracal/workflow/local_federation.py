"""A demonstration federation of synthetic hospitals in one folder.

The model is trained on a hospital where readmission depends strongly on age, stay and pulse. At
the other hospitals it depends on them less: the model is less accurate there, and equally
confident. A courier thread carries files between the hospitals and the coordinator.
"""

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from veracal import _checks
from veracal.accounting import Budget
from veracal.artifact import PrivateClassifier
from veracal.data import load, private_folder, translate_os_errors, write_new_text
from veracal.errors import DataError
from veracal.federation import (
    ANSWER_SUFFIX,
    ENROLLED,
    LIST_FILE,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    REQUEST_SUFFIX,
    TERMS,
    Declaration,
    PublicKey,
    Terms,
    TransportKind,
    add_source,
    create_federation,
    create_source,
    deliver_file,
    enroll,
    list_names,
    model_hash,
    prepare_folder,
    read_terms,
    read_untrusted_file,
    slug,
)
from veracal.workflow.config import (
    Config,
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)
from veracal.workflow.running import run

TABLE, SCHEMA = "visits.csv", "visits.toml"
TRAINING_SLOPE, HOSPITAL_SLOPE = 8.0, 1.3  # dependence of readmission on the columns
_SEED = 20  # public: the tables are synthetic
_COMPASS = ("north", "south", "west", "east", "hill", "lake", "port", "bridge")

SCHEMA_TEXT = """\
format = 1
name = "visits"
size = {size}

[columns.age]
kind = "number"
lower = 0
upper = 100

[columns.stay]
kind = "number"
lower = 0
upper = 30

[columns.pulse]
kind = "number"
lower = 40
upper = 160

[columns.readmitted]
kind = "target"
classes = ["no", "yes"]
"""


def hospital_names(count: int) -> tuple[str, ...]:
    """Names of synthetic hospitals."""
    more = tuple(f"hospital-{i}" for i in range(len(_COMPASS) + 1, count + 1))
    return (*_COMPASS, *more)[:count]


def visits(rows: int, *, slope: float, hospital: int) -> pl.DataFrame:
    """Generate visits; the slope is the dependence of readmission on age, stay and pulse.

    The number of the hospital determines the mean age and the random draws.
    """
    rng = np.random.default_rng([_SEED, hospital])
    age_shift = 6 * np.sin(hospital)
    age = np.clip(rng.normal(50 + age_shift, 20, rows), 0, 100).round()
    stay = np.clip(rng.gamma(2, 4, rows), 0, 30).round()
    pulse = np.clip(rng.normal(80, 15, rows), 40, 160).round()
    logit = slope * ((age - 50) / 20 + (stay - 8) / 6 + (pulse - 80) / 15)
    readmitted = rng.random(rows) < 1 / (1 + np.exp(-logit))
    columns = {"age": age.astype(int), "stay": stay.astype(int), "pulse": pulse.astype(int)}
    labels: Sequence[str] = np.where(readmitted, "yes", "no").tolist()
    return pl.DataFrame({**columns, "readmitted": labels})


MAX_SOURCES = 20
SOURCE_EPSILON, STUDY_EPSILON, ANSWER_EPSILON = 4.0, 1.0, 0.5
_TRAINING_ROWS, _HOSPITAL_ROWS = 5_000, 3_000
_DEADLINE, _TIMEOUT = 2.0, 45  # seconds: enough to kill a hospital and start it again
_STUDY = "study"

Log = Callable[[str], None]


@dataclass(frozen=True)
class Hospital:
    """A synthetic hospital: its folder, and the paths in it."""

    name: str
    folder: Path
    source: Path
    inbox: Path  # where request files arrive
    outbox: Path  # answer files to be carried
    node_key: Path  # private key of its Flower node
    log: Path  # of its server


@dataclass(frozen=True)
class LocalFederation:
    """The hospitals and paths of a local federation."""

    folder: Path
    hospitals: tuple[Hospital, ...]
    model: Path  # the artifact to recalibrate
    study: Path  # folder of the coordinator
    source_list: Path


def _locate(folder: Path, names: Sequence[str]) -> LocalFederation:
    """The paths of a federation of hospitals in a folder."""
    homes = {name: folder / "hospitals" / name for name in names}
    inside = ("source", "inbox", "outbox", "node.key", "serve.log")
    hospitals = tuple(
        Hospital(name, home, *(home / each for each in inside)) for name, home in homes.items()
    )
    study = folder / _STUDY
    return LocalFederation(folder, hospitals, folder / "model", study, study / LIST_FILE)


def exists_local(folder: Path) -> bool:
    """Whether a folder contains a complete local federation."""
    return (folder / _STUDY / LIST_FILE).is_file()


def open_local(folder: Path) -> LocalFederation:
    """Open the local federation in a folder."""
    with translate_os_errors(folder):
        names = {path.name for path in (folder / "hospitals").iterdir()}
    return _locate(folder, [name for name in hospital_names(MAX_SOURCES) if name in names])


def make_local(
    folder: Path,
    sources: int,
    *,
    transport: TransportKind = "flower",
    address: str = "127.0.0.1:9092",
    wait: int = 0,
    log: Log = lambda line: None,
) -> LocalFederation:
    """Create a federation: tables, a private model, a coordinator, and enrolled sources.

    Parameters
    ----------
    folder : path
        A new or empty folder. It is removed again if an error occurs.
    sources : int
        Number of hospitals.
    transport : {"files", "flower"}
    address : str
        Address of the SuperLink, for Flower.
    wait : int
        With files: seconds that the coordinator waits for answers.
    log : callable
        Receives one line for each step.
    """
    _checks.whole(sources=sources)
    if sources > MAX_SOURCES:
        raise ValueError(f"Expected at most {MAX_SOURCES} sources here, got {sources!r}.")
    prepare_folder(folder)
    federation = _locate(folder, hospital_names(sources))
    try:
        log("Training a private model on synthetic visits to another hospital")
        training = private_folder(federation.folder / "elsewhere")
        table = visits(_TRAINING_ROWS, slope=TRAINING_SLOPE, hospital=0)
        table.write_csv(training / TABLE)
        write_new_text(training / SCHEMA, SCHEMA_TEXT.format(size=_TRAINING_ROWS))
        config = Config(
            DataConfig(str(training / TABLE), str(training / SCHEMA)),
            PrivacyConfig(3.0),
            "visits",
            ModelConfig(learning_rate=4.0),
            RecalibrationConfig("none"),
        )
        run(config, federation.model)
        log("The coordinator creates its key")
        temporary = federation.folder / f".{_STUDY}"  # renamed when all sources are members
        public = create_federation(
            temporary,
            "Readmissions",
            transport=transport,
            address=address,
            min_sources=max(1, len(federation.hospitals) - 1),
            timeout=_TIMEOUT,
            wait=wait,
        )
        for number, hospital in enumerate(federation.hospitals, start=1):
            log(
                f"{hospital.name} scores its visits with the model, and enrolls the coordinator"
            )
            terms = _enroll(federation, hospital, public, number)
            key = None
            if transport == "flower":
                from veracal.federation import make_node_key

                key = make_node_key(hospital.node_key)
            signed = read_terms(hospital.source / ENROLLED / terms.source / TERMS)
            add_source(temporary, *signed, node_key=key)
        temporary.rename(federation.study)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return federation


def _enroll(
    federation: LocalFederation, hospital: Hospital, public: PublicKey, number: int
) -> Terms:
    """Create a hospital's table and source, and enroll its scored records."""
    folder = private_folder(hospital.folder)
    table = folder / TABLE
    visits(_HOSPITAL_ROWS, slope=HOSPITAL_SLOPE, hospital=number).write_csv(table)
    for box in (hospital.inbox, hospital.outbox):
        private_folder(box)
    budget = Budget(SOURCE_EPSILON)
    create_source(hospital.source, hospital.name, budget, heads=folder / "heads-elsewhere")
    model = PrivateClassifier.load(federation.model)
    scores = model.scores(load(table, schema=model.schema), mapped=False)
    declaration = Declaration(
        public,
        model_hash(federation.model),
        STUDY_EPSILON,
        ANSWER_EPSILON,
        min_records=1_000,
        max_records=10_000,
        deadline=_DEADLINE,
    )
    return enroll(hospital.source, scores, declaration, data=table, model=federation.model)


_COURIER_POLL = 0.2  # seconds


class Courier:
    """Copies requests to hospitals, and their answers back, in a thread.

    It simulates a person with a USB stick, mail or SFTP. Only small regular files are copied.
    """

    def __init__(self, federation: LocalFederation) -> None:
        self._federation, self._carried = federation, set[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Courier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def carry(self) -> int:
        """Carry all waiting files, and return their number."""
        study, count = self._federation.study, 0
        for hospital in self._federation.hospitals:
            prefix = f"{slug(hospital.name)}-"
            for source, target, suffix, max_bytes in (
                (study / "requests", hospital.inbox, REQUEST_SUFFIX, MAX_REQUEST_BYTES),
                (hospital.outbox, study / "answers", ANSWER_SUFFIX, MAX_REPLY_BYTES),
            ):
                count += self._copy(source, target, prefix, suffix, max_bytes)
        return count

    def _copy(
        self, source: Path, target: Path, prefix: str, suffix: str, max_bytes: int
    ) -> int:
        """Copy the files of a hospital that were not copied before."""
        if not (source.is_dir() and target.is_dir()):
            return 0  # no request yet
        new = [
            name
            for name in list_names(source, suffix)
            if name.startswith(prefix) and name not in self._carried
        ]
        for name in new:
            file = read_untrusted_file(source, name, max_bytes)
            if file is not None and file.content is not None:
                deliver_file(target, name, file.content, newer=True)
            self._carried.add(name)
        return len(new)

    def _run(self) -> None:
        """Carry files until stopped."""
        while not self._stop.wait(_COURIER_POLL):
            try:
                self.carry()
            except (DataError, OSError):  # the folders are changing: try again
                continue
