"""Enroll and serve a source: its records, what is declared, confirmation, and transports."""

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer

from veracal.accounting import Relation
from veracal.artifact import PrivateClassifier
from veracal.calibration import ParameterGrid, TemperatureGrid
from veracal.cli import _options, _output, _payment
from veracal.cli._artifacts import read_table
from veracal.cli._payment import print_notice
from veracal.cli._signals import Log, until_stopped
from veracal.cli._source_output import print_allowance
from veracal.data import Dataset, Schema, Scores, atomic_file, new_file
from veracal.errors import DataError
from veracal.federation import (
    DEFAULT_KINDS,
    ENROLLED,
    KINDS,
    METHOD_KINDS,
    TERMS,
    Declaration,
    DigestKey,
    PublicKey,
    RecordFile,
    SourceFolder,
    accept,
    artifact_hash,
    data_event,
    find_problems,
    is_hexadecimal,
    model_hash,
    open_source,
    propose,
    read_enrollment,
    read_source,
    share_event,
)
from veracal.ledger import Ledger, PartitionRule, PartitionStore, split_and_assign
from veracal.workflow import open_data_ledger, partitions_path

FLOWER = "flower"  # subfolder for Flower's files
NODE_KEY = "node.key"  # private key of the source's Flower node
_MAX_KEY_BYTES = 4_096
_STOP_TIMEOUT = 2.0  # seconds to finish writing and to disconnect
_KINDS_BY_NAME: dict[str, tuple[str, ...]] = {
    "default": DEFAULT_KINDS,
    "all": tuple(kind for kind in KINDS if not KINDS[kind].gaussian),
    **METHOD_KINDS,
}


# ---------------------------------------------------------------- options


@dataclass(frozen=True)
class RecordPaths:
    """Options that say where the records and the model are."""

    scores: Path | None
    data: str | None
    model: Path | None
    model_hash: str | None
    classes: str | None
    unit: str | None
    ledger: Path | None = None
    partition: str | None = None

    @property
    def records(self) -> str:
        """The file or built-in set of the records."""
        return str(self.scores if self.data is None else self.data)

    def ledger_path(self) -> Path:
        """Path of the ledger of the records, which may not exist yet."""
        return _payment.find_ledger(self.records, self.ledger)

    def check(self) -> None:
        """Reject inconsistent options."""
        if (self.scores is None) == (self.data is None):
            raise typer.BadParameter(
                "Give the records once: --scores FILE, or --model ARTIFACT --data TABLE.",
                param_hint="--scores",
            )
        if (self.model is None) == (self.model_hash is None):
            raise typer.BadParameter(
                "Give the model that scored the records once: --model FILE or FOLDER, or "
                "--model-hash HEX.",
                param_hint="--model",
            )
        if self.data is None:
            if self.partition is not None:
                raise typer.BadParameter("This needs --data TABLE.", param_hint="--partition")
            return
        if self.model is None:
            raise typer.BadParameter("This needs --model ARTIFACT.", param_hint="--data")
        if self.classes is not None or self.unit is not None:
            raise typer.BadParameter(
                "Not with --data: the artifact's schema declares classes and units.",
                param_hint="--classes" if self.classes is not None else "--unit",
            )

    def check_partition(self, known: Collection[str]) -> None:
        """Reject an unknown partition."""
        if self.partition is not None and self.partition not in known:
            raise typer.BadParameter(
                f"Expected one of {', '.join(known)}, got {self.partition!r}.",
                param_hint="--partition",
            )


def parse_declaration(given: Mapping[str, Any], model: str) -> Declaration:
    """What the options of an enrollment declare for the records of a model, by its hash."""
    kinds = [kind.strip() for kind in given["kinds"].split(",")]
    expanded = [each for kind in kinds for each in _KINDS_BY_NAME.get(kind, (kind,))]
    low, high = _parse_numbers(given["temperatures"], 2, float, "--temperatures")
    grid = _parse_numbers(given["parameters"], 3, int, "--parameters")
    others = (
        "epsilon", "max_per_answer", "delta", "bins", "clamp", "min_records", "max_records",
        "deadline", "expires",
    )  # fmt: skip
    return Declaration(
        coordinator=_read_key(given["coordinator"]),
        model=model,
        kinds=tuple(dict.fromkeys(expanded)),
        temperatures=TemperatureGrid(low, high),
        parameters=ParameterGrid(*grid),
        **{name: given[name] for name in others},
    )


def _parse_numbers(text: str, count: int, kind: Callable[[str], Any], option: str) -> list[Any]:
    """Parse a fixed number of comma-separated numbers."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise typer.BadParameter(
            f"Expected {count} comma-separated numbers, got {text!r}.", param_hint=option
        )
    return numbers


def _read_key(text: str) -> PublicKey:
    """Read a coordinator's public key: its digits, or a file that contains them."""
    keys = {text}
    if not is_hexadecimal(text, 64):
        keys = set()
        try:
            with Path(text).open("rb") as file:
                words = file.read(_MAX_KEY_BYTES).decode("ascii", "replace").split()
            keys = {word for word in words if is_hexadecimal(word, 64)}
        except (OSError, ValueError):
            pass  # no key
    if len(keys) != 1:
        raise typer.BadParameter(
            f"Expected 64 hexadecimal digits, or a file that contains them, got {text[:80]!r}. "
            "`veracal federation init` prints them for the coordinator.",
            param_hint="--coordinator",
        )
    return PublicKey(keys.pop())


# ---------------------------------------------------------------- records


@dataclass(frozen=True)
class EnrolledRecords:
    """Scored records and their origin."""

    scores: Scores
    model: str  # its hash
    data: RecordFile | None  # state of the file when it was read
    model_path: Path | None
    seal: Callable[[], None] | None = None  # records new individuals; call it before the charge


def read_records(
    paths: RecordPaths, relation: Relation, digest_key: DigestKey
) -> EnrolledRecords:
    """Read the records; a table is scored with the artifact, without its calibration map."""
    model, data = paths.model, paths.data
    if data is None:
        assert paths.scores is not None
        model_id = paths.model_hash or model_hash(model or "")
        if not is_hexadecimal(model_id, 64):
            raise typer.BadParameter(
                "Expected 64 hexadecimal digits, a SHA-256.", param_hint="--model-hash"
            )
        scored = RecordFile.read(paths.scores, digest_key)
        reading = _options.parse_reading(paths.classes, None, paths.unit, None)
        scores = _options.load_predictions(paths.scores, reading)
        return EnrolledRecords(scores, model_id, scored.verify(digest_key), model)
    assert model is not None
    classifier = PrivateClassifier.load(model)
    file = None if _options.is_name(data) else RecordFile.read(Path(data), digest_key)
    records = read_table(classifier, data, row_digests=paths.partition is not None)
    seal = None
    if paths.partition is not None:
        records, seal = partition(records, classifier.schema, paths)
    if relation == "replace-one" and records.may_drop:
        raise DataError(
            data,
            "the same number of rows after a record is replaced",
            "a table from which rows were dropped",
            "Create a source with --relation add-remove, or declare how to impute missing "
            "values.",
        )
    scores = _reorder_classes(classifier, classifier.scores(records, mapped=False))
    file = None if file is None else file.verify(digest_key)
    return EnrolledRecords(scores, artifact_hash(classifier), file, model, seal)


def partition(
    records: Dataset, schema: Schema | None, paths: RecordPaths
) -> tuple[Dataset, Callable[[], None]]:
    """Select the records of one partition, as the ledger of their data set assigned them.

    Returns
    -------
    tuple of (Dataset, callable)
        The records, and a function that records the new individuals among them.

    Raises
    ------
    LedgerError
        If the schema identifies individuals by other columns than earlier runs, which would
        assign them to other partitions.
    """
    ledger, name = paths.ledger_path(), paths.partition
    assert name is not None
    path = partitions_path(ledger)
    if not path.exists():
        raise DataError(
            records.name,
            f"the partitions that 'veracal fit' recorded beside {ledger}",
            "none",
            "Omit --partition to enroll all records and charge every partition.",
        )
    stored = PartitionStore(path).rule
    rule = PartitionRule.for_dataset(
        records, stored.fractions, stored.relation, stored.split_key, schema=schema
    )
    store = PartitionStore.obtain(path, rule, fresh=False)
    split, assignment = split_and_assign(records, store, fresh=False)
    paths.check_partition(split.parts)
    if assignment.notice is not None:
        print_notice(assignment.notice)
    return split.parts[name], partial(store.seal, assignment)


def _reorder_classes(classifier: PrivateClassifier, scores: Scores) -> Scores:
    """Order classes as in the artifact, as calibration maps expect."""
    classes = classifier.manifest.classes
    columns = [scores.classes.index(label) for label in classes]
    position = np.argsort(columns)
    return Scores(
        scores.values[:, columns],
        scores.kind,
        classes,
        position[scores.known_labels],
        units=scores.units,
        name=scores.name,
    )


# ---------------------------------------------------------------- enroll


def enroll_source(
    folder: Path,
    paths: RecordPaths,
    declare: Callable[[str], Declaration],
    out: Path,
    node_key_out: Path | None,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Check an enrollment, show what it allows, and write it after confirmation.

    The signed terms and, if wanted, the public key of a node are written to new files.
    """
    source = read_source(folder)
    budget = declare("0" * 64).budget(source)  # checks the options
    for path in (out, node_key_out):
        if path is not None:
            new_file(path)  # fail before any work
    paths.check()
    ledger_path = paths.ledger_path()
    # Reject what the budgets do not cover before a record is read.
    if os.path.lexists(ledger_path):
        ledger = Ledger(ledger_path)
        paths.check_partition(ledger.opening.partitions)
        ledger.require(data_event(budget, ledger), "enrollment", partition=paths.partition)
    source.shares.require(share_event(budget), "enrollment")
    records = read_records(paths, source.budget.relation, source.digest_key)
    _output.print_status("Evaluating every query once; the answers are discarded.")
    proposal = propose(folder, records.scores, declare(records.model))
    if not json:
        print_allowance(proposal, before=True)
        scores, data = records.scores, records.data
        origin = "" if data is None else f" from {data.path}"
        _output.print_line("")
        _output.print_line(
            f"On your side: {_output.format_count(len(scores), 'record')}{origin}, classes "
            f"{_output.format_list(scores.classes)}. They are copied to the source's folder."
        )
    if not (yes or typer.confirm("\nAllow this?", err=True)):
        _output.print_status("Nothing was written, and nothing is allowed.")
        raise typer.Exit(1)
    if records.seal is not None:
        records.seal()
    terms = accept(
        proposal,
        records.scores,
        data=records.data,
        model=records.model_path,
        ledger=_ledger(source, ledger_path, paths.records),
        partition=paths.partition,
    )
    _copy_output(source.path / ENROLLED / terms.source / TERMS, out)
    if node_key_out is not None:
        from veracal.federation import make_node_key

        public = source.path / f"{NODE_KEY}.pub"
        if not public.exists():
            make_node_key(source.path / NODE_KEY)
        _copy_output(public, node_key_out)
    if json:
        _output.print_json(
            {"enrollment": terms.source, "out": str(out), "terms": terms.to_json()}
        )
        return
    print_allowance(proposal, before=False)
    given, options = str(out), "--inbox IN --outbox OUT"
    if node_key_out is not None:
        given, options = f"{given} and {node_key_out}", "--flower HOST:PORT --ca FILE"
    for line in (
        "",
        f"Enrollment  {terms.source}",
        f"Your key    {terms.key.fingerprint}",
        "",
        f"Give {given} to the coordinator, and read out 'Your key' by telephone. Then:",
        f"  veracal source serve {folder} {options}    answer requests",
        f"  veracal source log {folder}    show requests and answers",
        f"  veracal source revoke {folder} {terms.source[:8]}    revoke the enrollment",
    ):
        _output.print_line(line)


def _ledger(source: SourceFolder, path: Path, records: str) -> Ledger:
    """The ledger of the data set, created with the source's whole budget if there is none."""
    if os.path.lexists(path):
        return Ledger(path)
    ledger = open_data_ledger(path, source.budget, records)
    _output.print_status(
        f"Created the ledger of {records} with the source's whole budget: {path}. Other runs "
        "and enrollments of the same records are charged to it too."
    )
    return ledger


def _copy_output(stored: Path, out: Path) -> None:
    """Copy a stored file to the path that the user gave."""
    try:
        with atomic_file(out) as file:
            file.write(stored.read_bytes())
    except DataError as cause:
        raise DataError(
            str(out),
            "a path that can be written",
            cause.found,
            f"The enrollment is complete: copy {stored} yourself.",
        ) from cause


# ---------------------------------------------------------------- serve


@dataclass(frozen=True)
class TransportOptions:
    """Options that say how requests arrive: by files, or over Flower."""

    inbox: Path | None
    outbox: Path | None
    flower: str | None
    ca: Path | None
    node_key: Path | None
    once: bool


def serve_source(folder: Path, enrollment: str | None, transport: TransportOptions) -> None:
    """Answer requests until Ctrl-C or SIGTERM.

    The ledger commits or rolls back an answer that is being computed. An answer that was not
    sent is sent when its request is repeated.
    """
    work = partial(_serve, folder, enrollment, transport)
    until_stopped(work, "Stopped. All answers are stored.", timeout=_STOP_TIMEOUT)


def _serve(
    folder: Path,
    enrollment: str | None,
    transport: TransportOptions,
    stop: threading.Event,
    log: Log,
) -> None:
    """Log which coordinator is answered and any problems, and serve requests."""
    server, source = open_source(folder, enrollment, log=log), read_source(folder)
    terms = server.terms
    for problem in find_problems(source, read_enrollment(source, terms.source)):
        log(f"warning: all requests are refused. {problem}")
    log(
        f"{terms.name} answers the coordinator {terms.coordinator.fingerprint} (enrollment "
        f"{terms.source[:12]}), {terms.deadline:g} seconds after each request. Stop it with "
        "Ctrl-C."
    )
    if transport.inbox is not None and transport.outbox is not None:
        from veracal.federation import serve_folder

        count = serve_folder(
            server, transport.inbox, transport.outbox, once=transport.once, stop=stop, log=log
        )
        if not stop.is_set():
            _output.print_line(f"Requests answered or refused: {count}.")
        return
    from veracal.federation import serve_node

    assert transport.flower is not None
    assert transport.ca is not None
    home = folder.absolute()
    serve_node(
        server.answer,
        address=transport.flower,
        ca=transport.ca,
        node_key=transport.node_key or home / NODE_KEY,
        home=home / FLOWER,
        stop=stop,
        log=log,
    )
