"""Commands of a coordinator who recalibrates a model with several institutions."""

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _options, _output
from veracal.cli._signals import Log, until_stopped
from veracal.errors import DataError

if TYPE_CHECKING:
    from veracal.federation import SuperLink, TransportKind
    from veracal.workflow import Hospital, LocalFederation

    # A hospital, the command that serves it, and its process.
    Server = tuple[Hospital, list[str], subprocess.Popen[bytes]]


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Recalibrate a model with several institutions, each with its own privacy budget.",
)

Folder = Annotated[Path, typer.Argument(help="Folder of the federation.")]
# Further options if sources have nodes: of `source enroll`, and of `federation add`.
_NODE_OPTIONS = {
    "files": ("", ""),
    "flower": ("--node-key-out north.pub", "--node-key north.pub"),
}
_FLOWER = "flower"  # subfolder for Flower's files
_AUTHORITY = "ca.crt"  # certificate in it, which institutions need
_SOURCES = 3  # hospitals of a local federation
_HOST = "127.0.0.1"
_WAIT = 60  # seconds, for files that the courier carries
_POLL = 0.5  # seconds between two looks at the hospitals
_STOP_TIMEOUT = 60.0  # seconds for all processes, which are stopped one after another
_PROGRAM = [sys.executable, "-m", "veracal"]  # in this Python environment


@app.command(epilog="Example:  veracal federation init study --name 'Heart study'")
def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the federation.")],
    name: Annotated[str, typer.Option(help="Name of the study.")],
    transport: Annotated[
        str, typer.Option(help="How requests reach sources: files or flower.")
    ] = "files",
    address: Annotated[
        str, typer.Option(help="With flower: host and port of the SuperLink.")
    ] = "127.0.0.1:9092",
    json: _options.Json = False,
) -> None:
    """Create a coordinator's key and an empty list of sources.

    Give the public key to the institutions. Each enrolls it and returns its signed
    terms, which 'veracal federation add' adds to the list.
    """
    from veracal.federation import KEY_FILE, LIST_FILE, PUBLIC_KEY_FILE, create_federation

    with _output.usage_errors():
        public = create_federation(folder, name, transport=transport, address=address)  # type: ignore[arg-type]
    if json:
        _output.print_json(
            {
                "folder": str(folder),
                "public_key": public.text,
                "fingerprint": public.fingerprint,
                "listing": str(folder / LIST_FILE),
            }
        )
        return
    rows = [
        ("public key", public.text),
        ("fingerprint", public.fingerprint),
        ("as a file", str(folder / PUBLIC_KEY_FILE)),
        ("private key", f"{folder / KEY_FILE}; it signs requests, keep it private"),
        ("list", str(folder / LIST_FILE)),
    ]
    _output.print_table(f"{name}: the coordinator", ("", ""), rows)
    enroll_options, add_options = _NODE_OPTIONS[transport]
    for line in (
        "",
        "Give the public key to each institution, which runs on its own machine:",
        "",
        f"  veracal source enroll FOLDER --coordinator {PUBLIC_KEY_FILE} … {enroll_options}",
        "",
        "and add the terms that each of them returns:",
        "",
        f"  veracal federation add {folder} north.terms {add_options}",
    ):
        _output.print_line(line.rstrip())


@app.command(epilog="Example:  veracal federation add study north.terms south.terms")
def add(
    folder: Folder,
    terms: Annotated[list[Path], typer.Argument(help="Signed terms of sources.")],
    node_key: Annotated[
        list[Path] | None,
        typer.Option(help="With flower: public key of each source's node."),
    ] = None,
    yes: _options.Yes = False,
    json: _options.Json = False,
) -> None:
    """Add institutions by their signed terms.

    The signature does not prove who signed the terms: compare the fingerprint
    with what the institution reads out to you.
    """
    _options.check_confirmation(yes=yes, json=json)
    from veracal.federation import (
        LIST_FILE,
        add_source,
        check_compatible,
        describe_terms,
        read_public_node_key,
        read_source_list,
        read_terms,
    )

    node_keys = node_key or []
    keys: list[Path | None] = [None] * len(terms)
    listing = read_source_list(folder / LIST_FILE, allow_empty=True)
    if listing.transport["kind"] == "flower":
        if len(node_keys) != len(terms):
            raise typer.BadParameter(
                f"Give it once for each source, in the same order: expected {len(terms)}, got "
                f"{len(node_keys)}.",
                param_hint="--node-key",
            )
        for each in node_keys:
            read_public_node_key(each)  # reject a private key, which must stay at the source
        keys = list(node_keys)
    elif node_keys:
        raise typer.BadParameter("Only for federations over Flower.", param_hint="--node-key")
    added = []
    for path, key in zip(terms, keys, strict=True):
        source_terms, raw = read_terms(path)
        check_compatible(folder, source_terms)
        name = source_terms.name
        if not json:
            rows = describe_terms(source_terms)
            _output.print_table(f"{path.name}: the terms", ("", ""), rows)
        prompt = f"\nDid {name} read out the digits of 'its key', by telephone or in person?"
        if not (yes or typer.confirm(_output.escape_text(prompt, keep="\n"), err=True)):
            _output.print_status(f"{name} was not added.")
            raise typer.Exit(1)
        stored = add_source(folder, source_terms, raw, node_key=key)
        added.append({"name": name, "source": source_terms.source, "terms": str(stored)})
        if not json:
            _output.print_line(f"Added {name}: {stored}")
    if json:
        _output.print_json({"folder": str(folder), "added": added})


@app.command(epilog="Example:  veracal federation status study")
def status(folder: Folder, json: _options.Json = False) -> None:
    """Show the sources and their spending according to the coordinator's history.

    Each source's own ledger is authoritative. Requests without a reply count as
    charged here.
    """
    _options.check_exists(folder / "federation.toml")
    from veracal.accounting import format_down, format_up
    from veracal.federation import summarize_members

    members = summarize_members(folder)
    if json:
        sources = [member.to_json() for member in members]
        _output.print_json({"folder": str(folder), "sources": sources})
        return
    if not members:
        _output.print_line(f"No sources in {folder}. Add terms with 'veracal federation add'.")
        return
    rows = []
    for member in members:
        note, head = member.fault or "", member.head
        if not note and member.missing:
            note = f"its ledger has {member.missing} more entries than this history"
        elif not note and member.unknown:
            note = f"{member.unknown} not answered yet"
        rows.append(
            (
                member.terms.name,
                str(member.answered),
                format_up(member.spent[0], 6),
                format_down(member.left[0], 6),
                "none" if head is None else f"{head.index}: {head.hash[:12]}…",
                note,
            )
        )
    heads = ("institution", "answers", "spent", "left", "last signed head", "")
    _output.print_table(f"{folder}: sources", heads, rows, right=heads[1:4])


@app.command(epilog="Example:  veracal federation superlink study")
def superlink(
    folder: Folder,
    listen: Annotated[
        str | None,
        typer.Option(help="Address of this machine to listen on, if not the federation's."),
    ] = None,
) -> None:
    """Run Flower's SuperLink for a federation, until Ctrl-C.

    It carries signed messages and runs no code. An authority in the folder signs its
    certificate. Give the authority's certificate to the institutions.
    """
    from veracal.federation import LIST_FILE, read_source_list

    transport = read_source_list(folder / LIST_FILE, allow_empty=True).transport

    def work(stop: threading.Event, log: Log) -> None:
        with _run_superlink(folder, listen, log=log) as link:
            for line in (
                f"A SuperLink listens at {link.address} (process {link.pid}). Give to each "
                "institution:",
                "",
                f"  {folder / _FLOWER / _AUTHORITY}",
                "",
                "Each institution runs, on its own machine:",
                "",
                f"  veracal source serve FOLDER --flower {transport['address']} --ca {_AUTHORITY}",
            ):
                _output.print_line(line)
            stop.wait()

    until_stopped(work, "Stopped.", timeout=_STOP_TIMEOUT)


@contextmanager
def _run_superlink(
    folder: Path, listen: str | None = None, *, log: Log = _output.print_status
) -> "Iterator[SuperLink]":
    """Run a SuperLink with the registered nodes of a federation.

    It listens at the address ``listen`` of this machine, by default at the federation's.
    """
    from veracal.federation import (
        LIST_FILE,
        LOCAL_HOSTS,
        SuperLink,
        make_server_files,
        read_source_list,
        register_nodes,
    )

    listing = read_source_list(folder / LIST_FILE, allow_empty=True)
    transport = listing.transport
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
    port, home = int(text), folder / _FLOWER
    home.mkdir(mode=0o700, exist_ok=True)
    names = tuple(dict.fromkeys((host, *LOCAL_HOSTS, *([] if listen is None else [listen]))))
    files = make_server_files(home, names)
    log(f"Starting a SuperLink at {host}:{port}, over TLS")
    with SuperLink(home, files, host=listen or host, port=port) as link:
        keys = listing.paths("node_key")
        if keys:
            local = link.address if listen is None else f"{LOCAL_HOSTS[1]}:{port}"
            register_nodes(local, ca=files.authority, nodes=keys, home=home / "home")
        yield link


# ---------------------------------------------------------------- a federation on this machine


@app.command(epilog="Example:  veracal federation local trial --sources 3")
def local(
    folder: Annotated[
        Path, typer.Argument(help="New folder, or the folder of an existing local federation.")
    ],
    sources: Annotated[
        int | None, typer.Option(min=1, max=20, help="Number of hospitals, by default 3.")
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="flower (over TLS, the default) or files.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65_535, help="With flower: port on this machine; by default any."
        ),
    ] = None,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="With files: carry the files yourself.")
    ] = False,
    then_recalibrate: Annotated[
        bool,
        typer.Option(
            "--then-recalibrate", help="Recalibrate the model, show the result, and exit."
        ),
    ] = False,
) -> None:
    """Create a demonstration federation on this machine, and run it until Ctrl-C.

    It has synthetic hospitals, each with a table, a key and a budget, a private
    model that is overconfident there, and a coordinator. With Flower, a SuperLink
    and a node for each hospital run as separate processes. The commands for a
    second terminal are printed.
    """
    if then_recalibrate and by_hand:
        raise typer.BadParameter(
            "Not with --by-hand, because the files must be carried.",
            param_hint="--then-recalibrate",
        )
    federation, kind = _open_or_create(
        folder, sources, transport, port, wait=0 if by_hand else _WAIT
    )
    if by_hand and kind != "files":
        raise typer.BadParameter("Only with --transport files.", param_hint="--by-hand")
    if port is not None and kind != "flower":
        raise typer.BadParameter("Only with --transport flower.", param_hint="--port")
    if then_recalibrate:
        with _run_hospitals(federation, kind, courier=True):
            command = _recalibration_command(federation)
            _output.print_status(f"$ veracal {shlex.join(command)}")
            code = subprocess.run([*_PROGRAM, *command], check=False).returncode
        raise typer.Exit(code)

    def work(stop: threading.Event, log: Log) -> None:
        with _run_hospitals(federation, kind, courier=not by_hand, log=log) as servers:
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


def _open_or_create(
    folder: Path,
    sources: int | None,
    transport: str | None,
    port: int | None,
    *,
    wait: int,
) -> "tuple[LocalFederation, TransportKind]":
    """Open the local federation in a folder, or create one."""
    from veracal._checks import extra
    from veracal.federation import LIST_FILE, TRANSPORT_KINDS, find_port, read_source_list
    from veracal.workflow import exists_local, make_local, open_local

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
            f"Expected {' or '.join(TRANSPORT_KINDS)}, got {transport!r}.",
            param_hint="--transport",
        )
    kind = "flower" if transport is None else transport
    address = ""
    if kind == "flower":
        extra("flwr", "flower")  # before anything is created
        address = f"{_HOST}:{find_port(_HOST, port)}"
    count = _SOURCES if sources is None else sources
    federation = make_local(
        folder, count, transport=kind, address=address, wait=wait, log=_output.print_status
    )
    return federation, kind


@contextmanager
def _run_hospitals(
    federation: "LocalFederation",
    transport: "TransportKind",
    *,
    courier: bool,
    log: Log = _output.print_status,
) -> "Iterator[list[Server]]":
    """Run all processes while the block lasts. They end with this process."""
    from veracal.federation import start_process, stop_process
    from veracal.workflow import Courier

    with ExitStack() as stack:
        link = None
        if transport == "flower":
            link = stack.enter_context(_run_superlink(federation.study, log=log))
        elif courier:
            stack.enter_context(Courier(federation))
        servers: list[Server] = []
        for hospital in federation.hospitals:
            options = ["--inbox", str(hospital.inbox), "--outbox", str(hospital.outbox)]
            if link is not None:
                options = [
                    *("--flower", link.address),
                    *("--ca", str(federation.study / _FLOWER / _AUTHORITY)),
                    *("--node-key", str(hospital.node_key)),
                ]
            command = [*_PROGRAM, "source", "serve", str(hospital.source), *options]
            process = start_process(command, log=hospital.log, environment=dict(os.environ))
            stack.callback(stop_process, process)
            servers.append((hospital, command, process))
        yield servers


def _status_line(hospital: "Hospital", process: "subprocess.Popen[bytes]") -> str:
    """Status of a hospital in one line: process, answers and spending by its own ledger."""
    from veracal.accounting import MICRO, format_up
    from veracal.federation import list_enrollments, read_source
    from veracal.workflow import STUDY_EPSILON

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


def _recalibration_command(federation: "LocalFederation") -> list[str]:
    """Arguments of the command that recalibrates the model, for half of each budget."""
    from veracal.workflow import STUDY_EPSILON

    epsilon, out = f"{STUDY_EPSILON / 2:g}", str(federation.folder / "recalibrated")
    return [
        *("recalibrate", str(federation.model), "--sources", str(federation.source_list)),
        *("--epsilon", epsilon, "--out", out),
    ]


def _instructions(
    federation: "LocalFederation", servers: "list[Server]", *, by_hand: bool
) -> str:
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

  veracal {shlex.join(_recalibration_command(federation))}
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
