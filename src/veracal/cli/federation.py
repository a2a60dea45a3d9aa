"""Commands of whoever brings institutions together to recalibrate a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veracal.cli import _output as _show

if TYPE_CHECKING:
    import threading

    from veracal.federation import MemberStatus, Terms


app = typer.Typer(
    no_args_is_help=True,
    help="Bring institutions together that recalibrate a model, each behind its own budget.",
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Folder = Annotated[Path, typer.Argument(help="Folder of the federation.")]
# What is typed beside the rest where sources have nodes: to make a key, and to list it.
_KEYS_OF_NODES = {
    "files": ("", ""),
    "flower": ("--node-key-out north.pub", "--node-key north.pub"),
}


@app.command(epilog="Example:  veracal federation init study --name 'Heart study'")
def init(
    folder: Annotated[Path, typer.Argument(help="New folder for the federation.")],
    name: Annotated[str, typer.Option(help="What the study is called.")],
    transport: Annotated[
        str, typer.Option(help="How requests get to sources: files or flower.")
    ] = "files",
    address: Annotated[
        str, typer.Option(help="With flower: host and port of the SuperLink.")
    ] = "127.0.0.1:9092",
    json: Json = False,
) -> None:
    """Make a coordinator's key, and a list of sources in which nobody stands yet.

    Hand the public key to the institutions: each enrolls it, by itself, and hands back
    its terms, which 'veracal federation add' adds to the list.
    """
    from veracal.errors import VeracalError
    from veracal.federation import KEY_FILE, LIST_FILE, PUBLIC_KEY_FILE, create_federation

    try:
        public = create_federation(folder, name, carrier=transport, address=address)  # type: ignore[arg-type]
    except VeracalError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if json:
        _show.print_json(
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
        ("private key", f"{folder / KEY_FILE}; whoever has it can ask in your name"),
        ("list", str(folder / LIST_FILE)),
    ]
    _show.console().print(_show.table(f"{name}: the coordinator", ("", ""), rows))
    _show.say("")
    _show.say("Hand the public key to each institution, which types, on its own machine:")
    _show.say("")
    made, listed = _KEYS_OF_NODES[transport]
    _show.say(
        f"  veracal source enroll FOLDER --coordinator {PUBLIC_KEY_FILE} … {made}".rstrip()
    )
    _show.say("")
    _show.say("and add the terms that each of them hands back:")
    _show.say("")
    _show.say(f"  veracal federation add {folder} north.terms {listed}".rstrip())


@app.command(epilog="Example:  veracal federation add study north.terms south.terms")
def add(
    folder: Folder,
    terms: Annotated[list[Path], typer.Argument(help="Terms that sources handed over.")],
    node_key: Annotated[
        list[Path] | None,
        typer.Option(help="With flower: public key of the source's node; one for each."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask whether the fingerprint was compared.")
    ] = False,
    json: Json = False,
) -> None:
    """Let institutions take part whose terms you were handed.

    Terms are signed, but by whom, only people can tell: compare the fingerprint
    with what the institution reads to you.
    """
    from veracal.federation import check_compatible, add_source, read_terms

    if json and not yes:
        raise typer.BadParameter(
            "add --yes once the fingerprints were compared: nobody is asked here.",
            param_hint="--json",
        )
    keys = _node_keys(folder, terms, node_key or [])
    added = []
    for path, key in zip(terms, keys, strict=True):
        found, raw = read_terms(path)
        check_compatible(folder, found)
        if not json:
            _show_terms(path, found)
        if not (yes or _confirmed(found.name)):
            _show.status(f"{found.name} was not added.")
            raise typer.Exit(1)
        place = add_source(folder, found, raw, node_key=key)
        added.append({"name": found.name, "source": found.source, "terms": str(place)})
        if not json:
            _show.say(f"{found.name} takes part: {place}")
    if json:
        _show.print_json({"folder": str(folder), "added": added})


@app.command(epilog="Example:  veracal federation status study")
def status(folder: Folder, json: Json = False) -> None:
    """Show who takes part, and what each has spent as far as the coordinator's history knows.

    Each source's own ledger decides; what was sent and not answered yet counts here as
    if it had been charged.
    """
    from veracal.federation import summarize_members

    found = summarize_members(folder)
    if json:
        told = [one.to_json() for one in found]
        _show.print_json({"folder": str(folder), "sources": told})
        return
    if not found:
        _show.say(
            f"Nobody takes part in {folder} yet: add terms with 'veracal federation add'."
        )
        return
    rows = [_standing_row(one) for one in found]
    heads = ("institution", "answers", "spent", "left", "last signed head", "")
    console = _show.console()
    right = ("answers", "spent", "left")
    console.print(_show.table(f"{folder}: who takes part", heads, rows, right=right))


@app.command(epilog="Example:  veracal federation superlink study")
def superlink(
    folder: Folder,
    listen: Annotated[
        str | None,
        typer.Option(help="Address of this machine to listen on, if not the federation's."),
    ] = None,
) -> None:
    """Run Flower's SuperLink for a federation, until Ctrl-C.

    It carries signed bytes and runs no code. Its certificate is made by an authority in
    the folder; hand that authority's certificate to the institutions.
    """
    from veracal.cli import _federation_local as _superlink
    from veracal.cli._signals import Log, until_stopped
    from veracal.federation import read_address

    def work(stop: "threading.Event", tell: Log) -> None:
        with _superlink.superlink(folder, listen, tell=tell) as link:
            _show.say(f"A SuperLink listens at {link.address} (process {link.pid}). Hand over:")
            _show.say("")
            _show.say(f"  {folder / _superlink.FLOWER / _superlink.AUTHORITY}")
            _show.say("")
            _show.say("Each institution types, on its own machine:")
            _show.say("")
            _show.say(
                f"  veracal source serve FOLDER --flower {read_address(folder)} --ca "
                f"{_superlink.AUTHORITY}"
            )
            stop.wait()

    until_stopped(work, "Stopped.", patience=_superlink.PATIENCE)


@app.command(epilog="Example:  veracal federation local trial --sources 3")
def local(
    folder: Annotated[
        Path, typer.Argument(help="New folder, or that of a federation made before.")
    ],
    sources: Annotated[
        int | None, typer.Option(min=1, max=20, help="How many hospitals: 3 by default.")
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="flower (over TLS, by default) or files.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="With flower: port on this machine; else any."),
    ] = None,
    by_hand: Annotated[
        bool, typer.Option("--by-hand", help="With files: carry them yourself.")
    ] = False,
    then_recalibrate: Annotated[
        bool,
        typer.Option(
            "--then-recalibrate", help="Recalibrate the model, show what came of it, and end."
        ),
    ] = False,
) -> None:
    """Make a whole federation on this machine, and keep it running until Ctrl-C.

    Made-up hospitals, each with a table, a key and a budget of its own, a private
    model that is too sure of itself there, and a coordinator. With Flower, a
    SuperLink and a node for each hospital run as processes of their own. What to
    type in a second terminal is printed.
    """
    from veracal.cli import _federation_local as _local

    if then_recalibrate and by_hand:
        raise typer.BadParameter(
            "somebody has to carry the files: leave out --by-hand.",
            param_hint="--then-recalibrate",
        )
    wait = 0 if by_hand else _local.WAIT
    made, carrier = _local.open_or_create(folder, sources, transport, port, wait=wait)
    if by_hand and carrier != "files":
        raise typer.BadParameter("is for --transport files only.", param_hint="--by-hand")
    if port is not None and carrier != "flower":
        raise typer.BadParameter("is for --transport flower only.", param_hint="--port")
    if then_recalibrate:
        with _local.running(made, carrier, courier=True):
            raise typer.Exit(_local.run_recalibration(made))
    _local.keep_running(made, carrier, by_hand=by_hand)


def _standing_row(one: "MemberStatus") -> tuple[str, ...]:
    """A line about a source."""
    from veracal.accounting import rounded_down, rounded_up

    words = one.fault or (f"{one.unknown} not answered yet" if one.unknown else "")
    if one.missing and not one.fault:
        words = (
            f"its ledger has {one.missing} more, paid for; this history knows nothing of them"
        )
    return (
        one.terms.name,
        str(one.answered),
        rounded_up(one.spent[0], 6),
        rounded_down(one.left[0], 6),
        "none" if one.head is None else f"{one.head.index}: {one.head.hash[:12]}…",
        words,
    )


def _show_terms(path: Path, terms: "Terms") -> None:
    """Print terms as people read them."""
    from veracal.federation import describe_terms

    _show.console().print(
        _show.table(f"{path.name}: the terms", ("", ""), describe_terms(terms))
    )


def _confirmed(name: str) -> bool:
    """Ask whether the key is the institution's."""
    query = f"\nDid {name} read you the digits of 'its key', by telephone or in person?"
    return typer.confirm(_show.visible(query, keep="\n"), err=True)


def _node_keys(folder: Path, terms: list[Path], keys: list[Path]) -> list[Path | None]:
    """Public keys of nodes where Flower is used, and none otherwise."""
    from veracal.federation import read_transport_kind

    if read_transport_kind(folder) != "flower":
        if keys:
            raise typer.BadParameter(
                "is for federations over Flower only.", param_hint="--node-key"
            )
        return [None] * len(terms)
    if len(keys) != len(terms):
        raise typer.BadParameter(
            f"say it once for each source, in their order: expected {len(terms)}, got "
            f"{len(keys)}.",
            param_hint="--node-key",
        )
    from veracal.federation import read_public_node_key

    for key in keys:
        read_public_node_key(key)  # and not the private half, which stays at the hospital
    return list(keys)
