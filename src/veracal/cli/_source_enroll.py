"""The commands that enroll and serve a source: options, summaries and confirmation."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from veracal.calibration import ParameterGrid, TemperatureGrid
from veracal.cli import _output
from veracal.cli._output import check_new
from veracal.cli._signals import Log, until_stopped
from veracal.cli._source_output import describe_allowance
from veracal.cli._source_records import EnrolledRecords, RecordPaths, read_records
from veracal.data import atomic_file, new_file
from veracal.errors import DataError
from veracal.federation import (
    DEFAULT_KINDS,
    ENROLLED,
    KINDS,
    METHOD_KINDS,
    TERMS,
    Declaration,
    Proposal,
    SourceFolder,
    SourceServer,
    accept,
    data_event,
    find_problems,
    open_source,
    propose,
    read_enrollment,
    read_source,
    share_event,
)
from veracal.ledger import EpsilonDelta, Ledger
from veracal.workflow import open_data_ledger

FLOWER = "flower"  # subfolder for Flower's files
NODE_KEY = "node.key"  # private key of the source's Flower node
_STOP_TIMEOUT = 2.0  # seconds to finish writing and to disconnect


@dataclass(frozen=True)
class TransportOptions:
    """Options that say how requests arrive."""

    inbox: Path | None
    outbox: Path | None
    flower: str | None
    ca: Path | None
    node_key: Path | None
    once: bool

    def check(self) -> None:
        """Require the options of exactly one transport."""
        files = (self.inbox, self.outbox)
        network = (self.flower, self.ca)
        if not (any(files) ^ any((*network, self.node_key))):
            raise typer.BadParameter(
                "choose one transport: --inbox and --outbox for files, or --flower and --ca.",
                param_hint="--inbox",
            )
        if any(files) and not all(files):
            raise typer.BadParameter("--inbox and --outbox go together.", param_hint="--inbox")
        if not any(files) and not all(network):
            raise typer.BadParameter("--flower and --ca go together.", param_hint="--flower")
        if self.once and self.inbox is None:
            raise typer.BadParameter("only for files.", param_hint="--once")


def serve_source(folder: Path, enrollment: str | None, transport: TransportOptions) -> None:
    """Answer requests until Ctrl-C or SIGTERM.

    The ledger commits or rolls back an answer that is being computed. An answer that was not
    sent is sent when its request is repeated.
    """
    transport.check()

    def work(stop: threading.Event, log: Log) -> None:
        server = _open_server(folder, enrollment, log)
        _serve(server, Path(folder).absolute(), transport, stop, log)

    until_stopped(work, "Stopped. All answers are stored.", timeout=_STOP_TIMEOUT)


def _open_server(folder: Path, enrollment: str | None, log: Log) -> SourceServer:
    """Open a server, and log which coordinator it answers and any problems."""
    server, source = open_source(folder, enrollment, log=log), read_source(folder)
    terms = server.terms
    for problem in find_problems(source, read_enrollment(source, terms.source)):
        log(f"warning: all requests are refused. {problem}")
    log(
        f"{terms.name} answers the coordinator {terms.coordinator.fingerprint} (enrollment "
        f"{terms.source[:12]}), {terms.deadline:g} seconds after each request. Stop it with "
        "Ctrl-C."
    )
    return server


def _serve(
    server: SourceServer,
    folder: Path,
    transport: TransportOptions,
    stop: threading.Event,
    log: Log,
) -> None:
    """Serve requests by files or over Flower."""
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
    serve_node(
        server.answer,
        address=transport.flower,
        ca=transport.ca,
        node_key=transport.node_key or folder / NODE_KEY,
        home=folder / FLOWER,
        stop=stop,
        log=log,
    )


_KINDS_BY_NAME: dict[str, tuple[str, ...]] = {
    "default": DEFAULT_KINDS,
    "all": tuple(kind for kind in KINDS if not KINDS[kind].gaussian),
    **METHOD_KINDS,
}


@dataclass(frozen=True)
class OutputFiles:
    """Files for the coordinator: terms, and the public key of a node."""

    terms: Path
    node_key: Path | None

    def check(self) -> None:
        """Refuse paths that cannot be written, before any work."""
        for path, option in ((self.terms, "--out"), (self.node_key, "--node-key-out")):
            if path is not None:
                check_new(path, force=False, option=option)
                new_file(path)

    def text(self) -> str:
        """The files by name."""
        return str(self.terms) if self.node_key is None else f"{self.terms} and {self.node_key}"


def parse_declaration(**options: Any) -> Declaration:
    """Convert options to a declaration."""
    kinds = [kind.strip() for kind in options.pop("kinds").split(",")]
    low, high = _numbers(options.pop("temperatures"), 2, float, "--temperatures")
    grid = _numbers(options.pop("parameters"), 3, int, "--parameters")
    expanded = [each for kind in kinds for each in _KINDS_BY_NAME.get(kind, (kind,))]
    return Declaration(
        kinds=tuple(dict.fromkeys(expanded)),
        temperatures=TemperatureGrid(low, high),
        parameters=ParameterGrid(*grid),
        **options,
    )


def enroll_source(
    folder: Path,
    paths: RecordPaths,
    declare: Callable[[str], Declaration],
    outputs: OutputFiles,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Check an enrollment, show what it allows, and write it after confirmation."""
    source = read_source(folder)
    budget = declare("0" * 64).budget(source)  # checks the options
    outputs.check()
    paths.check()
    ledger_path = paths.ledger_path()
    # Refuse what the budgets do not cover before a record is read.
    if os.path.lexists(ledger_path):
        ledger = Ledger(ledger_path)
        paths.check_partition(ledger.opening.partitions)
        ledger.require(data_event(budget, ledger), "enrollment", partition=paths.partition)
    source.shares.require(share_event(budget), "enrollment")
    records = read_records(paths, source.budget.relation, source.marks)
    _output.print_status("Evaluating every query once; the answers are discarded.")
    proposal = propose(folder, records.scores, declare(records.model))
    if not json:
        _print_allowance(proposal, "What you are about to allow", before=True)
        _output.print_line("")
        _output.print_line(_describe_records(records))
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
    _copy_output(source.path / ENROLLED / terms.source / TERMS, outputs.terms)
    if outputs.node_key is not None:
        from veracal.federation import make_node_key

        public = source.path / f"{NODE_KEY}.pub"
        if not public.exists():
            make_node_key(source.path / NODE_KEY)
        _copy_output(public, outputs.node_key)
    if json:
        _output.print_json(
            {"enrollment": terms.source, "out": str(outputs.terms), "terms": terms.to_json()}
        )
    else:
        _print_next_steps(proposal, folder, outputs)


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


def _print_next_steps(proposal: Proposal, folder: Path, outputs: OutputFiles) -> None:
    """Print what was allowed, and the next commands."""
    terms = proposal.terms
    _print_allowance(proposal, "What you have allowed", before=False)
    _output.print_line("")
    _output.print_line(f"Enrollment  {terms.source}")
    _output.print_line(f"Your key    {terms.key.fingerprint}")
    _output.print_line("")
    _output.print_line(
        f"Give {outputs.text()} to the coordinator, and read out 'Your key' by telephone. Then:"
    )
    by_files = outputs.node_key is None
    options = "--inbox IN --outbox OUT" if by_files else "--flower HOST:PORT --ca FILE"
    _output.print_line(f"  veracal source serve {folder} {options}    answer requests")
    _output.print_line(f"  veracal source log {folder}    show requests and answers")
    _output.print_line(
        f"  veracal source revoke {folder} {terms.source[:8]}    revoke the enrollment"
    )


def _print_allowance(proposal: Proposal, title: str, *, before: bool) -> None:
    """Print in plain English what an enrollment allows."""
    from rich.text import Text

    left = proposal.folder.shares.remaining()
    if before:
        share = proposal.terms.budget
        left = EpsilonDelta(round(left.epsilon - share.epsilon, 9), left.delta - share.delta)
    _output.console().print(Text(f"\n{title}\n", style="bold"))
    for line in describe_allowance(proposal.terms, left, before=before):
        _output.print_line(line)


def _describe_records(records: EnrolledRecords) -> str:
    """Describe the enrolled records for their owner."""
    scores = records.scores
    origin = "" if records.data is None else f" from {records.data.path}"
    return (
        f"On your side: {_output.format_count(len(scores), 'record')}{origin}, classes "
        f"{_output.format_list(scores.classes)}. They are copied to the source's folder."
    )


def _numbers(text: str, count: int, kind: Callable[[str], Any], option: str) -> list[Any]:
    """Parse a fixed number of comma-separated numbers."""
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise typer.BadParameter(
            f"expected {count} comma-separated numbers, got {text!r}.", param_hint=option
        )
    return numbers
