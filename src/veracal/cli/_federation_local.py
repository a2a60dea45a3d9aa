"""The processes of a local federation, and a SuperLink for the folder of a federation."""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from veracal._checks import extra
from veracal.accounting import MICRO, format_up
from veracal.cli import _output
from veracal.cli._signals import Log, until_stopped
from veracal.errors import DataError
from veracal.federation import (
    LIST_FILE,
    LOCAL_HOSTS,
    TRANSPORT_KINDS,
    SuperLink,
    TransportKind,
    list_enrollments,
    make_server_files,
    read_source,
    read_source_list,
    register_nodes,
    start_process,
    stop_process,
)
from veracal.workflow import (
    STUDY_EPSILON,
    Courier,
    Hospital,
    LocalFederation,
    exists_local,
    make_local,
    open_local,
)

FLOWER = "flower"  # subfolder for Flower's files
AUTHORITY = "ca.crt"
STOP_TIMEOUT = 30.0  # seconds for Flower's processes to end
EPSILON = STUDY_EPSILON / 2  # cost of the printed recalibration at each hospital
_SOURCES = 3
_POLL = 0.5  # seconds
_STOP_TIMEOUT = 60.0  # for all processes, which are stopped one after another
WAIT = 60  # for files that the courier carries
_HOST = "127.0.0.1"
_PROGRAM = [sys.executable, "-m", "veracal"]  # in this Python environment


@contextmanager
def superlink(
    folder: Path,
    listen: str | None = None,
    *,
    log: Log = _output.print_status,
) -> Iterator[SuperLink]:
    """Run a SuperLink with the registered nodes of a federation.

    It listens at the address ``listen`` of this machine, by default at the federation's.
    """
    transport = read_source_list(folder / LIST_FILE, allow_empty=True).transport
    if transport["kind"] != "flower":
        raise DataError(
            str(folder),
            "a federation over Flower",
            "a federation by files",
            "It needs no SuperLink.",
        )
    address = transport["address"]
    host, _, text = address.rpartition(":")
    if not host or not text.isdecimal():
        raise DataError(
            str(folder), "an address such as localhost:9092", address, "Correct it."
        )
    port, home = int(text), folder / FLOWER
    home.mkdir(mode=0o700, exist_ok=True)
    names = tuple(dict.fromkeys((host, *LOCAL_HOSTS, *([] if listen is None else [listen]))))
    files = make_server_files(home, names)
    log(f"Starting a SuperLink at {host}:{port}, over TLS")
    with SuperLink(home, files, host=listen or host, port=port) as link:
        keys = read_source_list(folder / LIST_FILE, allow_empty=True).paths("node_key")
        if keys:
            local = link.address if listen is None else f"{LOCAL_HOSTS[1]}:{port}"
            register_nodes(local, ca=files.authority, nodes=keys, home=home / "home")
        yield link


Server = tuple[Hospital, list[str], "subprocess.Popen[bytes]"]  # with its command and process


def open_or_create(
    folder: Path,
    sources: int | None,
    transport: str | None,
    port: int | None,
    *,
    wait: int = WAIT,
) -> tuple[LocalFederation, TransportKind]:
    """Open the local federation in a folder, or create one."""
    if exists_local(folder):
        federation = open_local(folder)
        settings = read_source_list(federation.study / LIST_FILE).transport
        kind: TransportKind = "flower" if settings["kind"] == "flower" else "files"
        current: dict[str, object] = {"sources": len(federation.hospitals), "transport": kind}
        if kind == "flower":
            current["port"] = int(settings["address"].rpartition(":")[2])
        given = {"sources": sources, "transport": transport, "port": port}
        for option, value in current.items():
            if given[option] is not None and given[option] != value:
                raise DataError(
                    str(folder),
                    f"a federation with {option} {given[option]}",
                    f"a federation with {value}",
                    f"Omit --{option} to start that federation again, or choose another "
                    "folder.",
                )
        return federation, kind
    if transport is not None and transport not in TRANSPORT_KINDS:
        raise typer.BadParameter(
            f"expected {' or '.join(TRANSPORT_KINDS)}, got {transport!r}.",
            param_hint="--transport",
        )
    kind = "flower" if transport is None else transport
    address = ""
    if kind == "flower":
        extra("flwr", "flower")  # before anything is created
        from veracal.federation import find_port

        address = f"{_HOST}:{find_port(_HOST, port)}"
    count = _SOURCES if sources is None else sources
    federation = make_local(
        folder, count, transport=kind, address=address, wait=wait, log=_output.print_status
    )
    return federation, kind


@contextmanager
def running(
    federation: LocalFederation,
    transport: TransportKind,
    *,
    courier: bool,
    log: Log = _output.print_status,
) -> Iterator[list[Server]]:
    """Run all processes while the block lasts. They end with this process."""
    with ExitStack() as stack:
        link = None
        if transport == "flower":
            link = stack.enter_context(superlink(federation.study, log=log))
        elif courier:
            stack.enter_context(Courier(federation))
        servers: list[Server] = []
        for hospital in federation.hospitals:
            options = ["--inbox", str(hospital.inbox), "--outbox", str(hospital.outbox)]
            if link is not None:
                options = [
                    *("--flower", link.address),
                    *("--ca", str(federation.study / FLOWER / AUTHORITY)),
                    *("--node-key", str(hospital.node_key)),
                ]
            command = [*_PROGRAM, "source", "serve", str(hospital.source), *options]
            process = start_process(command, log=hospital.log, environment=dict(os.environ))
            stack.callback(stop_process, process)
            servers.append((hospital, command, process))
        yield servers


def keep_running(
    federation: LocalFederation, transport: TransportKind, *, by_hand: bool
) -> None:
    """Run all processes until stopped; print instructions and status changes of hospitals."""

    def work(stop: threading.Event, log: Log) -> None:
        with running(federation, transport, courier=not by_hand, log=log) as servers:
            typer.echo(_instructions(federation, servers, by_hand=by_hand))
            printed: dict[str, str] = {}
            while not stop.is_set():
                for hospital, _, process in servers:
                    line = _status_line(hospital, process)
                    if line != printed.get(hospital.name):
                        printed[hospital.name] = line
                        log(line)
                stop.wait(_POLL)

    until_stopped(work, "Stopped. All answers stay charged.", timeout=_STOP_TIMEOUT)


def _status_line(hospital: Hospital, process: "subprocess.Popen[bytes]") -> str:
    """Status of a hospital in one line: process, answers and spending by its own ledger."""
    code = process.poll()
    if code is None:
        state = f"served by process {process.pid}"
    else:
        state = "killed" if code < 0 else f"ended with exit code {code}"
        state = f"{state} (log: {hospital.log})"
    (enrollment,) = list_enrollments(read_source(hospital.source))
    entries = enrollment.ledger.entries()
    spent = format_up(sum(entry.cost for entry in entries) / MICRO, 6)
    return (
        f"{hospital.name}: {state}; {_output.format_count(len(entries), 'answer')}, "
        f"epsilon {spent} of {STUDY_EPSILON:g} spent"
    )


def recalibration_command(federation: LocalFederation) -> list[str]:
    """Arguments of the command that recalibrates the model."""
    return [
        *("recalibrate", str(federation.model), "--sources", str(federation.source_list)),
        *("--epsilon", f"{EPSILON:g}", "--out", str(federation.folder / "recalibrated")),
    ]


def run_recalibration(federation: LocalFederation) -> int:
    """Run that command and return its exit code."""
    command = recalibration_command(federation)
    _output.print_status(f"$ veracal {shlex.join(command)}")
    return subprocess.run([*_PROGRAM, *command], check=False).returncode


def _instructions(federation: LocalFederation, servers: list[Server], *, by_hand: bool) -> str:
    """Commands for a second terminal."""
    (first, command, process), quote = servers[0], shlex.quote
    source, study = quote(str(first.source)), quote(str(federation.study))
    restart = f"veracal {shlex.join(command[len(_PROGRAM) :])}"
    carry = ""
    if by_hand:
        hospitals = federation.hospitals
        requests = quote(str(federation.study / "requests"))
        answers = quote(str(federation.study / "answers"))
        there = [
            f"  mv {requests}/{each.name}-*.request {quote(str(each.inbox))}"
            for each in hospitals
        ]
        back = [f"  mv {quote(str(each.outbox))}/*.answer {answers}" for each in hospitals]
        says = "It says which files to carry. In place of mail, SFTP or a USB stick:"
        again = "and repeat the first command for the next round."
        carry = "\n".join(["", says, "", *there, "", *back, "", again, ""])
    return f"""
{len(servers)} hospitals are running. In a second terminal, recalibrate the model:

  veracal {shlex.join(recalibration_command(federation))}
{carry}
Show the queries to {first.name}, its answers, and its remaining budget:

  veracal source log {source}
  veracal source status {source}
  veracal federation status {study}

Kill {first.name} during a recalibration, and start it again:

  kill -9 {process.pid}
  {restart}

Ctrl-C stops everything. Answers stay charged. The same command starts the hospitals again.
"""
