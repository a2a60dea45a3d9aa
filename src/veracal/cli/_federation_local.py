"""A SuperLink for a federation: started with what its folder says.

A federation on this machine: its processes, who is well, and what to type next.
"""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer

from veracal._checks import extra
from veracal.accounting import MICRO, rounded_up
from veracal.cli import _output as _show
from veracal.cli._signals import Log, until_stopped
from veracal.errors import DataError
from veracal.federation import (
    TRANSPORT_KINDS,
    LOCAL_HOSTS,
    TransportKind,
    SuperLink,
    read_address,
    read_transport_kind,
    list_enrollments,
    read_node_keys,
    read_source,
    register_nodes,
    make_server_files,
    start_process,
    stop_process,
)
from veracal.workflow import (
    EACH,
    Courier,
    Hospital,
    LocalFederation,
    exists_local,
    make_local,
    open_local,
)

FLOWER = "flower"  # folder for all that is Flower's, inside the coordinator's
AUTHORITY = "ca.crt"
PATIENCE = 30.0  # seconds for Flower's processes to end when they are stopped


@contextmanager
def superlink(
    folder: Path, listen: str | None = None, *, tell: Callable[[str], None] = _show.status
) -> Iterator[SuperLink]:
    """A running SuperLink that lets in the nodes of those who take part.

    Parameters
    ----------
    folder : path
        Of the federation.
    listen : str, optional
        Address of this machine to listen on; by default the host of the federation's address.
    tell : callable
        Is told in a line what is done.
    """
    host, port = _address(folder)
    place = folder / FLOWER
    place.mkdir(mode=0o700, exist_ok=True)
    names = tuple(dict.fromkeys((host, *LOCAL_HOSTS, *([] if listen is None else [listen]))))
    files = make_server_files(place, names)
    tell(f"Starting a SuperLink at {host}:{port}, over TLS")
    with SuperLink(place, files, host=listen or host, port=port) as link:
        keys = read_node_keys(folder)
        if keys:
            near = link.address if listen is None else f"{LOCAL_HOSTS[1]}:{port}"
            register_nodes(near, ca=files.authority, nodes=keys, home=place / "home")
        yield link


def _address(folder: Path) -> tuple[str, int]:
    """Host and port of the federation's SuperLink."""
    if read_transport_kind(folder) != "flower":
        raise DataError(
            str(folder),
            "a federation over Flower",
            "one by files",
            "It needs no SuperLink.",
        )
    host, _, port = read_address(folder).rpartition(":")
    if not host or not port.isdecimal():
        raise DataError(
            str(folder), "an address as in localhost:9092", read_address(folder), "Correct it."
        )
    return host, int(port)


EPSILON = EACH / 2  # what the recalibration that is shown costs at each hospital
_SOURCES = 3
_LOOK = 0.5  # seconds
_PATIENCE = 60.0  # for all processes to end, which are stopped one after another
WAIT = 60  # for files that somebody carries at once
_HOST = "127.0.0.1"

Options = Callable[[Hospital], list[str]]


@dataclass
class Server:
    """A hospital's server: its process, and what was last told of it."""

    hospital: Hospital
    command: list[str]
    process: "subprocess.Popen[bytes]"
    told: str = field(default="")

    def line(self) -> str:
        """How it is, in a line."""
        code = self.process.poll()
        if code is None:
            how = f"served by process {self.process.pid}"
        else:
            how = "killed" if code < 0 else f"ended with exit code {code}"
            how = f"{how} (log: {self.hospital.log})"
        return f"{self.hospital.name}: {how}; {account(self.hospital)}"


def open_or_create(
    folder: Path,
    sources: int | None,
    transport: str | None,
    port: int | None,
    *,
    wait: int = WAIT,
) -> tuple[LocalFederation, TransportKind]:
    """The federation that is in a folder, or a new one."""
    if exists_local(folder):
        made, carrier = open_local(folder), read_transport_kind(folder / "study")
        _check_same(folder, "sources", sources, len(made.hospitals))
        _check_same(folder, "transport", transport, carrier)
        if carrier == "flower":
            _check_same(folder, "port", port, int(read_address(made.study).rpartition(":")[2]))
        return made, carrier
    if transport is not None and transport not in TRANSPORT_KINDS:
        raise typer.BadParameter(
            f"expected {' or '.join(TRANSPORT_KINDS)}, got {transport!r}.",
            param_hint="--transport",
        )
    chosen: TransportKind = "flower" if transport is None else transport
    address = ""
    if chosen == "flower":
        extra("flwr", "flower")  # before anything is made
        from veracal.federation import find_port

        address = f"{_HOST}:{find_port(_HOST, port)}"
    count = _SOURCES if sources is None else sources
    made = make_local(
        folder, count, carrier=chosen, address=address, wait=wait, tell=_show.status
    )
    return made, chosen


@contextmanager
def running(
    made: LocalFederation, carrier: TransportKind, *, courier: bool, tell: Log = _show.status
) -> Iterator[list[Server]]:
    """Everything that runs, for as long as the block lasts; it ends with this process."""
    with ExitStack() as stack:
        options: Options = _by_files
        if carrier == "flower":
            options = _by_flower(made, stack, tell)
        elif courier:
            stack.enter_context(Courier(made))
        servers = []
        for hospital in made.hospitals:
            command = _program("source", "serve", str(hospital.source), *options(hospital))
            process = start_process(command, log=hospital.log, environment=dict(os.environ))
            stack.callback(stop_process, process)
            servers.append(Server(hospital, command, process))
        yield servers


def keep_running(made: LocalFederation, carrier: TransportKind, *, by_hand: bool) -> None:
    """Run everything until stopped; say what to type, and tell what changes at a hospital."""

    def work(stop: threading.Event, tell: Log) -> None:
        with running(made, carrier, courier=not by_hand, tell=tell) as servers:
            typer.echo(instructions(made, servers, by_hand=by_hand))
            while not stop.is_set():
                for server in servers:
                    line = server.line()
                    if line != server.told:
                        server.told = line
                        tell(line)
                stop.wait(_LOOK)

    closing = "Everything ends. What was answered stays paid for."
    until_stopped(work, closing, patience=_PATIENCE)


def account(hospital: Hospital) -> str:
    """What a hospital has answered and spent, by its own ledger."""
    (enrollment,) = list_enrollments(read_source(hospital.source))
    entries = enrollment.ledger.entries()
    spent = rounded_up(sum(entry.cost for entry in entries) / MICRO, 6)
    return f"{_show.counted(len(entries), 'answer')}, epsilon {spent} of {EACH:g} spent"


def recalibration_command(made: LocalFederation) -> list[str]:
    """The command that recalibrates the model."""
    return [
        *("recalibrate", str(made.model), "--sources", str(made.listing)),
        *("--epsilon", f"{EPSILON:g}", "--out", str(made.folder / "recalibrated")),
    ]


def run_recalibration(made: LocalFederation) -> int:
    """Run that command, and give its exit code."""
    _show.status(f"$ veracal {shlex.join(recalibration_command(made))}")
    return subprocess.run(_program(*recalibration_command(made)), check=False).returncode


def instructions(made: LocalFederation, servers: list[Server], *, by_hand: bool) -> str:
    """What to type in a second terminal."""
    first = servers[0]
    source, study = shlex.quote(str(first.hospital.source)), shlex.quote(str(made.study))
    return f"""
{len(servers)} hospitals are served. In a second terminal, recalibrate the model:

  veracal {shlex.join(recalibration_command(made))}
{_carrying(made) if by_hand else ""}
See what {first.hospital.name} was asked, what left it, and what is left of its budget:

  veracal source log {source}
  veracal source status {source}
  veracal federation status {study}

Kill {first.hospital.name} while it is asked, and start it again:

  kill -9 {first.process.pid}
  {_shown(first.command)}

Ctrl-C ends everything. What was answered stays paid for; the same command starts the
hospitals again.
"""


def _carrying(made: LocalFederation) -> str:
    """How files are carried by hand."""
    lines = ["", "It says what to carry. In place of mail, SFTP or a stick:", ""]
    requests = shlex.quote(str(made.study / "requests"))
    answers = shlex.quote(str(made.study / "answers"))
    for one in made.hospitals:
        box = shlex.quote(str(one.inbox))
        lines.append(f"  mv {requests}/{one.name}-*.request {box}")
    lines.append("")
    for one in made.hospitals:
        lines.append(f"  mv {shlex.quote(str(one.outbox))}/*.answer {answers}")
    return "\n".join([*lines, "", "and type the first line again, for the next round.", ""])


def _shown(command: list[str]) -> str:
    """A command as it is typed, by the name of the program."""
    return f"veracal {shlex.join(command[len(_program()) :])}"


def _by_files(hospital: Hospital) -> list[str]:
    """How a hospital serves files."""
    return ["--inbox", str(hospital.inbox), "--outbox", str(hospital.outbox)]


def _by_flower(made: LocalFederation, stack: ExitStack, tell: Log) -> Options:
    """How a hospital connects to a SuperLink, which is started."""
    pass

    link = stack.enter_context(superlink(made.study, tell=tell))

    def options(hospital: Hospital) -> list[str]:
        return [
            *("--flower", link.address),
            *("--ca", str(made.study / FLOWER / AUTHORITY)),
            *("--node-key", str(hospital.node_key)),
        ]

    return options


def _program(*words: str) -> list[str]:
    """Veracal, as this Python runs it."""
    return [sys.executable, "-m", "veracal", *words]


def _check_same(folder: Path, what: str, asked: object, there: object) -> None:
    """Refuse another setting than that of the federation in a folder."""
    if asked is not None and asked != there:
        raise DataError(
            str(folder),
            f"a federation with {what} {asked}",
            f"one with {there}",
            f"Leave out --{what} to start that one again, or name another folder.",
        )
