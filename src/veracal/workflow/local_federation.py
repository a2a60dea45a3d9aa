"""Visits that nobody made to hospitals that are not there, to try a federation with.

A model learns from one hospital where readmission follows age, stay and pulse closely. At the
others it follows them less: there the model is right less often, and as sure as before.

A whole federation in one folder, of made-up hospitals, to try everything with.

Somebody who carries files between made-up hospitals and their coordinator, all day.
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
from veracal.data import load, no_surprises, private_folder, write_new
from veracal.errors import DataError
from veracal.federation import (
    ANSWER_SUFFIX,
    ENROLLED,
    LIST_FILE,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    REQUEST_SUFFIX,
    TERMS,
    TransportKind,
    Declaration,
    PublicKey,
    Terms,
    create_source,
    prepare_folder,
    enroll,
    create_federation,
    add_source,
    read_untrusted_file,
    model_hash,
    list_names,
    deliver_file,
    read_terms,
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
AT_HOME, ELSEWHERE = 8.0, 1.3  # how closely readmission follows
_SEED = 20  # public: the table is made up
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

[columns.back]
kind = "target"
classes = ["no", "yes"]
"""


def hospital_names(count: int) -> tuple[str, ...]:
    """What made-up hospitals are called."""
    more = tuple(f"hospital-{i}" for i in range(len(_COMPASS) + 1, count + 1))
    return (*_COMPASS, *more)[:count]


def visits(rows: int, *, closeness: float, which: int) -> pl.DataFrame:
    """Made-up visits to one hospital.

    Parameters
    ----------
    rows : int
    closeness : float
        How closely readmission follows age, stay and pulse.
    which : int
        Number of the hospital; patients of another are a little older, or younger.
    """
    rng = np.random.default_rng([_SEED, which])
    older = 6 * np.sin(which)
    age = np.clip(rng.normal(50 + older, 20, rows), 0, 100).round()
    stay = np.clip(rng.gamma(2, 4, rows), 0, 30).round()
    pulse = np.clip(rng.normal(80, 15, rows), 40, 160).round()
    logit = closeness * ((age - 50) / 20 + (stay - 8) / 6 + (pulse - 80) / 15)
    back = rng.random(rows) < 1 / (1 + np.exp(-logit))
    columns = {"age": age.astype(int), "stay": stay.astype(int), "pulse": pulse.astype(int)}
    labels: Sequence[str] = np.where(back, "yes", "no").tolist()
    return pl.DataFrame({**columns, "back": labels})


MOST_SOURCES = 20
ALL, EACH, ANSWER = 4.0, 1.0, 0.5  # epsilon: of a hospital, for this study, for one answer
_TAUGHT, _ROWS = 5_000, 3_000
_DEADLINE, _TIMEOUT = 2.0, 45  # seconds: a hospital can be killed and started again
_MODEL, _STUDY, _HOSPITALS, _SOURCE = "model", "study", "hospitals", "source"
_KEY = "node.key"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Hospital:
    """One of the made-up hospitals.

    Attributes
    ----------
    name : str
    folder : path
        Everything that is the hospital's.
    """

    name: str
    folder: Path

    @property
    def source(self) -> Path:
        """Folder of its source."""
        return self.folder / _SOURCE

    @property
    def inbox(self) -> Path:
        """Where requests arrive, as files."""
        return self.folder / "inbox"

    @property
    def outbox(self) -> Path:
        """Where answers wait to be carried, as files."""
        return self.folder / "outbox"

    @property
    def node_key(self) -> Path:
        """Key of its node, with Flower."""
        return self.folder / _KEY

    @property
    def log(self) -> Path:
        """What its server says."""
        return self.folder / "serve.log"


@dataclass(frozen=True)
class LocalFederation:
    """Where everything is.

    Attributes
    ----------
    folder : path
    hospitals : tuple of Hospital
    """

    folder: Path
    hospitals: tuple[Hospital, ...]

    @property
    def model(self) -> Path:
        """The artifact that is to be recalibrated."""
        return self.folder / _MODEL

    @property
    def study(self) -> Path:
        """The coordinator's folder."""
        return self.folder / _STUDY

    @property
    def listing(self) -> Path:
        """The list of sources."""
        return self.study / LIST_FILE


def exists_local(folder: Path) -> bool:
    """Whether a federation was made in a folder before, to its end."""
    return (folder / _STUDY / LIST_FILE).is_file()


def open_local(folder: Path) -> LocalFederation:
    """The federation that was made in a folder."""
    with no_surprises(folder):
        places = sorted((folder / _HOSPITALS).iterdir())
    order = {name: i for i, name in enumerate(hospital_names(MOST_SOURCES))}
    there = sorted((p for p in places if p.name in order), key=lambda p: order[p.name])
    return LocalFederation(folder, tuple(Hospital(place.name, place) for place in there))


def make_local(
    folder: Path,
    sources: int,
    *,
    carrier: TransportKind = "flower",
    address: str = "127.0.0.1:9092",
    wait: int = 0,
    tell: Tell = lambda line: None,
) -> LocalFederation:
    """Make a federation: tables, a private model, a coordinator, and sources that enrolled it.

    Parameters
    ----------
    folder : path
        New, or empty.
    sources : int
        How many hospitals.
    carrier : {"files", "flower"}
    address : str
        Of the SuperLink, for Flower.
    wait : int
        With files: seconds that the coordinator watches for answers.
    tell : callable
        Is told what is being made.

    Raises
    ------
    DataError
        If something is in the folder; if making fails, it is removed again.
    """
    _checks.whole(sources=sources)
    if sources > MOST_SOURCES:
        raise ValueError(f"Expected at most {MOST_SOURCES} sources here, got {sources!r}.")
    prepare_folder(folder)
    made = LocalFederation(
        folder,
        tuple(Hospital(name, folder / _HOSPITALS / name) for name in hospital_names(sources)),
    )
    try:
        _make(made, tell, carrier=carrier, address=address, wait=wait)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return made


def _make(
    made: LocalFederation, tell: Tell, *, carrier: TransportKind, address: str, wait: int
) -> None:
    """Everything, in the order in which it happens between institutions."""
    tell("Training a private model on made-up visits to another hospital")
    _train(made)
    tell("The coordinator makes its key")
    building = made.folder / f".{_STUDY}"  # under its own name once everybody takes part
    public = create_federation(
        building,
        "Readmissions",
        carrier=carrier,
        address=address,
        least=max(1, len(made.hospitals) - 1),
        timeout=_TIMEOUT,
        wait=wait,
    )
    for number, hospital in enumerate(made.hospitals, start=1):
        tell(f"{hospital.name} scores its visits with the model, and enrolls the coordinator")
        terms = _enrolled(made, hospital, public, number)
        key = _node_key(hospital) if carrier == "flower" else None
        read, raw = read_terms(hospital.source / ENROLLED / terms.source / TERMS)
        add_source(building, read, raw, node_key=key)
    building.rename(made.study)


def _train(made: LocalFederation) -> None:
    """A model of another hospital's visits, where they are easy to foresee."""
    place = private_folder(made.folder / "elsewhere")
    visits(_TAUGHT, closeness=AT_HOME, which=0).write_csv(place / TABLE)
    write_new(place / SCHEMA, SCHEMA_TEXT.format(size=_TAUGHT))
    config = Config(
        DataConfig(str(place / TABLE), str(place / SCHEMA)),
        PrivacyConfig(3.0),
        "visits",
        ModelConfig(learning_rate=4.0),
        RecalibrationConfig("none"),
    )
    run(config, made.model)


def _enrolled(
    made: LocalFederation, hospital: Hospital, public: PublicKey, number: int
) -> Terms:
    """A hospital with a table, a source, and an enrollment of its scored records."""
    place = private_folder(hospital.folder)
    table = place / TABLE
    visits(_ROWS, closeness=ELSEWHERE, which=number).write_csv(table)
    for box in (hospital.inbox, hospital.outbox):
        private_folder(box)
    create_source(hospital.source, hospital.name, Budget(ALL), heads=place / "heads-elsewhere")
    model = PrivateClassifier.load(made.model)
    scores = model.scores(load(table, schema=model.schema), mapped=False)
    declared = Declaration(
        public,
        model_hash(made.model),
        EACH,
        ANSWER,
        min_records=1_000,
        max_records=10_000,
        deadline=_DEADLINE,
    )
    return enroll(hospital.source, scores, declared, data=table, model=made.model)


def _node_key(hospital: Hospital) -> Path:
    """A key for the hospital's node; the half that the coordinator gets."""
    from veracal.federation import make_node_key

    return make_node_key(hospital.node_key)


_EVERY = 0.2  # seconds


class Courier:
    """Copies requests to the hospitals they are for, and answers back.

    It stands for a person with a stick, a mail program or an SFTP client, and believes
    nobody: only small plain files are carried.

    Parameters
    ----------
    made : LocalFederation
    """

    def __init__(self, made: LocalFederation) -> None:
        self._made, self._carried = made, set[str]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._walk, daemon=True)

    def __enter__(self) -> "Courier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def go(self) -> int:
        """Carry what there is, and say how many files that were."""
        requests, answers = self._made.study / "requests", self._made.study / "answers"
        count = 0
        for hospital in self._made.hospitals:
            mine = f"{slug(hospital.name)}-"
            count += self._carry(
                requests, hospital.inbox, mine, REQUEST_SUFFIX, MAX_REQUEST_BYTES
            )
            count += self._carry(hospital.outbox, answers, mine, ANSWER_SUFFIX, MAX_REPLY_BYTES)
        return count

    def _carry(self, here: Path, there: Path, mine: str, suffix: str, most: int) -> int:
        """Copy the files of a hospital that were not carried before."""
        if not (here.is_dir() and there.is_dir()):
            return 0  # nothing was asked yet
        new = [
            n for n in list_names(here, suffix) if n.startswith(mine) and n not in self._carried
        ]
        for name in new:
            found = read_untrusted_file(here, name, most)
            if found is not None and found.content is not None:
                deliver_file(there, name, found.content, newer=True)
            self._carried.add(name)
        return len(new)

    def _walk(self) -> None:
        """Go back and forth until it is time to stop."""
        while not self._stop.wait(_EVERY):
            try:
                self.go()
            except (DataError, OSError):  # somebody is rearranging folders: once more
                continue
