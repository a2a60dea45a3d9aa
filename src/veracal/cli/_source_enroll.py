"""Serving on the command line: one server, and one of the ways in which bytes get to it.

Enrolling on the command line: what is typed, what is shown before and after.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from veracal.calibration import ParameterGrid, TemperatureGrid
from veracal.cli import _output as _show
from veracal.cli._output import check_new
from veracal.cli._signals import Log, until_stopped
from veracal.cli._source_output import describe_allowance
from veracal.cli._source_records import EnrolledRecords, RecordPaths, read_records
from veracal.data import new_file, placed
from veracal.errors import DataError
from veracal.federation import (
    METHOD_KINDS,
    ENROLLED,
    KINDS,
    TERMS,
    DEFAULT_KINDS,
    Declaration,
    Proposal,
    SourceFolder,
    SourceServer,
    accept,
    data_event,
    open_source,
    find_problems,
    propose,
    read_enrollment,
    read_source,
    share_event,
)
from veracal.ledger import Amount, Ledger
from veracal.workflow import open_data_ledger

FLOWER = "flower"  # folder for what Flower keeps, inside the source's
NODE_KEY = "node.key"  # by which Flower knows the source
_PATIENCE = 2.0  # seconds for what is being written or signed off when it is stopped


@dataclass(frozen=True)
class TransportOptions:
    """How requests arrive, as it was typed."""

    inbox: Path | None
    outbox: Path | None
    flower: str | None
    ca: Path | None
    node_key: Path | None
    once: bool

    def check(self) -> None:
        """Refuse none, both, or half of one."""
        files = (self.inbox, self.outbox)
        network = (self.flower, self.ca)
        if not (any(files) ^ any((*network, self.node_key))):
            raise typer.BadParameter(
                "name one way: --inbox and --outbox for files, or --flower and --ca.",
                param_hint="--inbox",
            )
        if any(files) and not all(files):
            raise typer.BadParameter("--inbox and --outbox go together.", param_hint="--inbox")
        if not any(files) and not all(network):
            raise typer.BadParameter("--flower and --ca go together.", param_hint="--flower")
        if self.once and self.inbox is None:
            raise typer.BadParameter("is for files only.", param_hint="--once")


def serve_source(folder: Path, enrollment: str | None, ways: TransportOptions) -> None:
    """Answer until stopped, by Ctrl-C or by the system.

    What is being computed then is committed whole or undone by the ledger; what was not sent
    yet is sent when it is asked for again.
    """
    ways.check()

    def work(stop: threading.Event, tell: Log) -> None:
        server = _opened(folder, enrollment, tell)
        _serve(server, Path(folder).absolute(), ways, stop, tell)

    until_stopped(work, "Stopped. What was answered is kept.", patience=_PATIENCE)


def _opened(folder: Path, enrollment: str | None, tell: Log) -> SourceServer:
    """Open a server, and say who is answered and what stands in the way."""
    server, source = open_source(folder, enrollment, tell=tell), read_source(folder)
    terms = server.terms
    for problem in find_problems(source, read_enrollment(source, terms.source)):
        tell(f"warning: everything is refused for now. {problem}")
    tell(
        f"{terms.name} answers the coordinator {terms.coordinator.fingerprint} (enrollment "
        f"{terms.source[:12]}), {terms.deadline:g} seconds after each request. Ctrl-C stops it."
    )
    return server


def _serve(
    server: SourceServer, folder: Path, ways: TransportOptions, stop: threading.Event, tell: Log
) -> None:
    """By files or over Flower."""
    if ways.inbox is not None and ways.outbox is not None:
        from veracal.federation import serve_folder

        many = serve_folder(
            server, ways.inbox, ways.outbox, once=ways.once, stop=stop, tell=tell
        )
        if not stop.is_set():
            _show.say(f"Requests answered or refused: {many}.")
        return
    from veracal.federation import serve_node

    assert ways.flower is not None
    assert ways.ca is not None
    serve_node(
        server.answer,
        address=ways.flower,
        ca=ways.ca,
        node_key=ways.node_key or folder / NODE_KEY,
        home=folder / FLOWER,
        stop=stop,
        tell=tell,
    )


_NAMED: dict[str, tuple[str, ...]] = {
    "usual": DEFAULT_KINDS,
    "all": tuple(kind for kind in KINDS if not KINDS[kind].gaussian),
    **METHOD_KINDS,
}


@dataclass(frozen=True)
class OutputFiles:
    """Files to hand over, as they were typed: terms, and the public key of a node."""

    terms: Path
    node_key: Path | None

    def check(self) -> None:
        """Refuse places to write to, before the work and not after it."""
        for path, option in ((self.terms, "--out"), (self.node_key, "--node-key-out")):
            if path is not None:
                check_new(path, force=False, option=option)
                new_file(path)

    @property
    def words(self) -> str:
        """What to hand over."""
        return str(self.terms) if self.node_key is None else f"{self.terms} and {self.node_key}"


def parse_declaration(**told: Any) -> Declaration:
    """A declaration of options as they were typed."""
    kinds = [kind.strip() for kind in told.pop("kinds").split(",")]
    low, high = _numbers(told.pop("temperatures"), 2, float, "--temperatures")
    grid = _numbers(told.pop("parameters"), 3, int, "--parameters")
    return Declaration(
        kinds=tuple(dict.fromkeys(one for kind in kinds for one in _NAMED.get(kind, (kind,)))),
        temperatures=TemperatureGrid(low, high),
        parameters=ParameterGrid(*grid),
        **told,
    )


def enroll_source(
    folder: Path,
    places: RecordPaths,
    declared: Callable[[str], Declaration],
    outs: OutputFiles,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Check everything, show what it allows, and write it if that is wanted."""
    source = read_source(folder)
    budget = declared("0" * 64).budget(source)  # of what was typed
    outs.check()
    places.check()
    place = places.ledger_place()
    # What cannot be paid is refused before a record is read.
    if os.path.lexists(place):
        ledger = Ledger(place)
        places.check_partition(ledger.opening.parts)
        ledger.require(data_event(budget, ledger), "enrollment", part=places.partition)
    source.shares.require(share_event(budget), "enrollment")
    records = read_records(places, source.budget.relation, source.marks)
    _show.status("Trying every query once; the answers are thrown away.")
    proposal = propose(folder, records.scores, declared(records.model))
    if not json:
        _tell(proposal, "What you are about to allow", before=True)
        _show.say("")
        _show.say(_about(records))
    if not (yes or typer.confirm("\nAllow this?", err=True)):
        _show.status("Nothing was written, and nothing is allowed.")
        raise typer.Exit(1)
    if records.seal is not None:
        records.seal()
    terms = accept(
        proposal,
        records.scores,
        data=records.data,
        model=records.model_place,
        ledger=_ledger(source, place, places.records),
        part=places.partition,
    )
    _hand_over(source.path / ENROLLED / terms.source / TERMS, outs.terms)
    if outs.node_key is not None:
        _hand_over(_node_key(source.path), outs.node_key)
    if json:
        told = {"enrollment": terms.source, "out": str(outs.terms), "terms": terms.to_json()}
        _show.print_json(told)
    else:
        _afterwards(proposal, folder, outs)


def _ledger(source: SourceFolder, place: Path, records: str) -> Ledger:
    """The ledger of the data set, opened with the source's whole budget if there is none."""
    if os.path.lexists(place):
        return Ledger(place)
    ledger = open_data_ledger(place, source.budget, records)
    _show.status(
        f"Opened the ledger of {records} with the source's whole budget as caps: {place}. "
        "Further runs and enrollments of the same records are charged to it, too."
    )
    return ledger


def _node_key(folder: Path) -> Path:
    """The public half of the key of a source's node, which is made when first asked for."""
    from veracal.federation import make_node_key

    public = folder / f"{NODE_KEY}.pub"
    return public if public.exists() else make_node_key(folder / NODE_KEY)


def _hand_over(kept: Path, out: Path) -> None:
    """Copy a file to where it is wanted."""
    try:
        with placed(out) as file:
            file.write(kept.read_bytes())
    except DataError as cause:
        raise DataError(
            str(out),
            "a place to write",
            cause.found,
            f"The enrollment stands all the same: copy {kept} yourself.",
        ) from cause


def _afterwards(proposal: Proposal, folder: Path, outs: OutputFiles) -> None:
    """The same words again, and what to do next."""
    terms = proposal.terms
    _tell(proposal, "What you have allowed", before=False)
    _show.say("")
    _show.say(f"Enrollment   {terms.source}")
    _show.say(f"Your key    {terms.key.fingerprint}")
    _show.say("")
    _show.say(
        f"Hand over {outs.words}, and read the coordinator 'Your key' by telephone. Then:"
    )
    way = "--inbox IN --outbox OUT" if outs.node_key is None else "--flower HOST:PORT --ca FILE"
    _show.say(f"  veracal source serve {folder} {way}    answer requests")
    _show.say(f"  veracal source log {folder}    see what was asked, and what left")
    _show.say(f"  veracal source revoke {folder} {terms.source[:8]}    end it")


def _tell(proposal: Proposal, title: str, *, before: bool) -> None:
    """Say in plain words what an enrollment allows."""
    from rich.text import Text

    _show.console().print(Text(f"\n{title}\n", style="bold"))
    for line in describe_allowance(
        proposal.terms, _left(proposal, before=before), before=before
    ):
        _show.say(line)


def _left(proposal: Proposal, *, before: bool) -> Amount:
    """What other coordinators may still be granted, after this one."""
    left = proposal.folder.shares.remaining()
    if not before:
        return left
    share = proposal.terms.budget
    return Amount(round(left.epsilon - share.epsilon, 9), left.delta - share.delta)


def _about(records: EnrolledRecords) -> str:
    """What is enrolled, for its owner alone."""
    scores = records.scores
    where = "" if records.data is None else f" from {records.data.path}"
    return (
        f"On your side: {_show.counted(len(scores), 'record')}{where}, classes "
        f"{_show.listed(scores.classes)}. They are copied into the source's folder."
    )


def _numbers(text: str, many: int, kind: Callable[[str], Any], hint: str) -> list[Any]:
    """So many numbers between commas."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != many:
        raise typer.BadParameter(
            f"expected {many} numbers between commas, got {text!r}.", param_hint=hint
        )
    return found
