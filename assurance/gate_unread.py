"""A run that exceeds the caps is rejected before a record is read.

What a run costs follows from what is declared: the schema of a file, the facts of a
built-in set, and under replace-one the number of slots, which the first run recorded. The first
build loaded named sets, pictures, arrays, texts and everything under replace-one before it
refused. Here the function that loads records raises, and further runs and comparisons beyond
the caps must be refused all the same; those within the caps must reach it.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from veracal.accounting import Budget
from veracal.data import loading
from veracal.errors import BudgetError, VeracalError
from veracal.ledger import Ledger
from veracal.workflow import Config, Configuration, charging, compare, records
from veracal.workflow import run as fit
from veracal.workflow.config import (
    DataConfig,
    MeasurementConfig,
    ModelConfig,
    PrivacyConfig,
    RecalibrationConfig,
)

NAME = "unread"
SECONDS = 6
ROWS = 120
HEAD = """format = 1
size = 120
name = "visits"
[columns.ill]
kind = "target"
classes = [0, 1]
"""
AGE = """[columns.age]
kind = "number"
lower = 0
upper = 120
"""
SLOT = """[columns.bed]
kind = "slot"
"""
VECTOR = """[columns.X]
kind = "vector"
size = 3
lower = -9
upper = 9
"""
NAMED = {  # built-in sets, and the model that is trained on each
    "breast-cancer": "logistic",
    "digits": "cnn",
    "wine": "features",
    "synthetic-clipping": "mlp",
}
PRIVACY = PrivacyConfig(1.0, 1e-5)
FURTHER = replace(PRIVACY, epsilon=1.5)
WAYS = (Configuration("logistic", "none"), Configuration("logistic", "temperature"))


@dataclass(frozen=True)
class Subject:
    """The library with some of its names replaced."""

    patches: tuple[tuple[str, object], ...] = ()


REFUSE, DECLARE = charging.check_before_loading, loading.declare


def only_schemas(config: Config, *given: Any) -> None:
    """Refuse early what a schema describes by add-remove, as the first build did."""
    if config.data.schema is not None and config.privacy.relation == "add-remove":
        REFUSE(config, *given)


def never(*_: Any) -> None:
    """Load first."""


def by_loading(what: Any, *, schema: Any = None) -> Any:
    """Take what is declared from the records."""
    found = vars(records)["load"](what, schema=schema, row_digests=True)
    return found.take(np.arange(0))


def uncapped(ledger: Any, *_: Any, **__: Any) -> None:
    """Plan, and refuse nothing."""


def early(new: object) -> Subject:
    """A library that refuses early in another way."""
    return Subject((("veracal.workflow.running.check_before_loading", new),))


CORRECT = Subject()
MUTANTS = {
    "records are loaded first": early(never),
    "only tables are planned before they are read": early(only_schemas),
    "what is declared is read from the records": Subject(
        (("veracal.workflow.records.declare", by_loading),)
    ),
    "the plan is not compared with the caps": Subject(
        (("veracal.ledger.ledger.Ledger.require_run", uncapped),)
    ),
}


def run(subject: Subject, *, long: bool) -> str:
    """Try further runs on records of every kind while none can be read."""
    refused = 0
    with world(subject) as folder:
        for kind in ("table", "slots", "npz", *NAMED):
            refused += beyond(folder, kind)
    return f"{refused} runs and comparisons refused with no record read"


def beyond(folder: Path, kind: str) -> int:
    """A run and a comparison beyond the caps are refused unread; within them, they read."""
    chosen, place = config(folder, kind), folder / f"{kind}.ledger"
    if kind in NAMED:
        declared = records.declare_records(chosen)
        budget = replace(records.run_budget(chosen, declared), epsilon=1.0)
        charging.open_data_ledger(place, Budget(**vars(budget)), "")
    else:
        fit(chosen, folder / f"{kind} 1", ledger=place)
    further = replace(chosen, privacy=replace(FURTHER, relation=chosen.privacy.relation))
    head, refused = Ledger(place).head, 0
    with unread() as read:
        for number, attempt in enumerate(attempts(further)):
            out = folder / f"{kind} further {number}"
            try:
                attempt(out, place)
            except BudgetError:
                refused += 1
            except ReadError:
                pass
            assert not read, (
                f"{kind}: records were read before a run beyond the caps was refused"
            )
        assert Ledger(place).head == head, f"{kind}: a run beyond the caps was charged"
        Ledger(place).extend(epsilon=3.0, delta=1e-4)
        for number, attempt in enumerate(attempts(further)):
            try:
                attempt(folder / f"{kind} within {number}", place)
            except ReadError:
                continue
            except VeracalError as error:
                raise AssertionError(f"{kind}: refused within the caps: {error}") from error
        assert refused and len(read) == refused, f"{kind}: a run within the caps was not begun"
    return refused


def attempts(chosen: Config) -> Iterator[Any]:
    """What costs something: a fit, and a comparison where models of tables can be compared."""
    yield lambda out, place: fit(chosen, out, ledger=place)
    if chosen.model.kind == "logistic":
        yield lambda out, place: compare(chosen, WAYS, out, ledger=place)


class ReadError(Exception):
    """A record was read."""


@contextmanager
def unread() -> Iterator[list[Any]]:
    """Record each request for records, and return none."""
    asked: list[Any] = []

    def read(*given: Any, **_: Any) -> Any:
        asked.append(given)
        raise ReadError

    with mock.patch("veracal.workflow.records.load", read):
        yield asked


def config(folder: Path, kind: str) -> Config:
    """A quick run on records of a kind."""
    model = NAMED.get(kind, "logistic")
    data, relation = DataConfig(kind), "add-remove"
    labels = np.arange(ROWS) % 2
    if kind not in NAMED:
        schema = folder / f"{kind}.toml"
        source = folder / f"{kind}.{'npz' if kind == 'npz' else 'csv'}"
        data = DataConfig(str(source), str(schema))
        if kind == "npz":
            schema.write_text(HEAD + VECTOR)
            rows = np.random.default_rng(0).uniform(-9, 9, (ROWS, 3))
            np.savez(source, X=rows, ill=labels)
        else:
            relation = "replace-one" if kind == "slots" else relation
            schema.write_text(HEAD + AGE + (SLOT if kind == "slots" else ""))
            beds = [f",{i}" if kind == "slots" else "" for i in range(ROWS)]
            lines = [f"{labels[i]},{i}{beds[i]}" for i in range(ROWS)]
            head = "ill,age" + (",bed" if kind == "slots" else "")
            source.write_text("\n".join([head, *lines]))
    return Config(
        data,
        replace(PRIVACY, relation=relation),  # type: ignore[arg-type]
        "visits",
        ModelConfig(model, epochs=2.0),  # type: ignore[arg-type]
        RecalibrationConfig("none"),
        MeasurementConfig(reserve=0, bins=2),
    )


@contextmanager
def world(subject: Subject) -> Iterator[Path]:
    """A folder with its own ledgers, and the library of the subject."""
    folder = Path(tempfile.mkdtemp())
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
