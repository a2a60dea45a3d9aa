"""Commands of a coordinator who recalibrates a model with several institutions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _options, _output

if TYPE_CHECKING:
    import threading


app = typer.Typer(
    no_args_is_help=True,
    help="Recalibrate a model with several institutions, each with its own privacy budget.",
)

Folder = Annotated[Path, typer.Argument(help="Folder of the federation.")]
# Further options if sources have nodes: of `source enroll`, and of `federation add`.
_NODE_OPTIONS = {
    "files": ("", ""),
    "flower": ("--node-key-out north.pub", "--node-key north.pub"),
}


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
    if json and not yes:
        raise typer.BadParameter(
            "add --yes after comparing the fingerprints: with --json there is no prompt.",
            param_hint="--json",
        )
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
                f"give it once for each source, in the same order: expected {len(terms)}, got "
                f"{len(node_keys)}.",
                param_hint="--node-key",
            )
        for each in node_keys:
            read_public_node_key(each)  # reject a private key, which must stay at the source
        keys = list(node_keys)
    elif node_keys:
        raise typer.BadParameter("only for federations over Flower.", param_hint="--node-key")
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
    from veracal.cli import _federation_local as _superlink
    from veracal.cli._signals import Log, until_stopped
    from veracal.federation import LIST_FILE, read_source_list

    transport = read_source_list(folder / LIST_FILE, allow_empty=True).transport

    def work(stop: "threading.Event", log: Log) -> None:
        with _superlink.superlink(folder, listen, log=log) as link:
            for line in (
                f"A SuperLink listens at {link.address} (process {link.pid}). Give to each "
                "institution:",
                "",
                f"  {folder / _superlink.FLOWER / _superlink.AUTHORITY}",
                "",
                "Each institution runs, on its own machine:",
                "",
                f"  veracal source serve FOLDER --flower {transport['address']} --ca "
                f"{_superlink.AUTHORITY}",
            ):
                _output.print_line(line)
            stop.wait()

    until_stopped(work, "Stopped.", timeout=_superlink.STOP_TIMEOUT)


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
            "not with --by-hand, because the files must be carried.",
            param_hint="--then-recalibrate",
        )
    from veracal.cli import _federation_local as _local

    wait = 0 if by_hand else _local.WAIT
    federation, kind = _local.open_or_create(folder, sources, transport, port, wait=wait)
    if by_hand and kind != "files":
        raise typer.BadParameter("only with --transport files.", param_hint="--by-hand")
    if port is not None and kind != "flower":
        raise typer.BadParameter("only with --transport flower.", param_hint="--port")
    if then_recalibrate:
        with _local.running(federation, kind, courier=True):
            raise typer.Exit(_local.run_recalibration(federation))
    _local.keep_running(federation, kind, by_hand=by_hand)
