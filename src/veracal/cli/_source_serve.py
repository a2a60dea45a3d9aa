"""Serving on the command line: one desk, and one of the ways in which bytes get to it."""

import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import typer

from veracal.cli import _show
from veracal.federation.source.enrolment import read_enrolment
from veracal.federation.source.folder import read_source
from veracal.federation.source.history import problems_of
from veracal.federation.source.serving import Desk, open_source

FLOWER = "flower"  # folder for what Flower keeps, inside the source's
NODE_KEY = "node.key"  # by which Flower knows the source


@dataclass(frozen=True)
class Ways:
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


def run(folder: Path, enrolment: str | None, ways: Ways) -> None:
    """Answer until stopped, by Ctrl-C or by the system.

    What is being answered then goes on in a thread of its own, or is undone: either way
    nothing is half-charged.
    """
    ways.check()
    stop = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        desk = _opened(folder, enrolment)
        _serve(desk, Path(folder).absolute(), ways, stop)
    except KeyboardInterrupt:
        _show.status("Stopped. What was answered is kept.")
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, before)


def _opened(folder: Path, enrolment: str | None) -> Desk:
    """Open a desk, and say who is answered and what stands in the way."""
    desk, source = open_source(folder, enrolment, tell=_show.status), read_source(folder)
    terms = desk.terms
    for problem in problems_of(source, read_enrolment(source, terms.source)):
        _show.status(f"warning: everything is refused for now. {problem}")
    _show.status(
        f"{terms.name} answers the calibrator {terms.calibrator.fingerprint} (enrolment "
        f"{terms.source[:12]}), {terms.deadline:g} seconds after each request. Ctrl-C stops it."
    )
    return desk


def _serve(desk: Desk, folder: Path, ways: Ways, stop: threading.Event) -> None:
    """By files or over Flower."""
    if ways.inbox is not None and ways.outbox is not None:
        from veracal.federation.transports.files import serve_folder

        many = serve_folder(desk, ways.inbox, ways.outbox, once=ways.once, tell=_show.status)
        _show.say(f"Requests answered or refused: {many}.")
        return
    from veracal.federation.flower.supernode import serve_node

    assert ways.flower is not None
    assert ways.ca is not None
    serve_node(
        desk.answer,
        address=ways.flower,
        ca=ways.ca,
        node_key=ways.node_key or folder / NODE_KEY,
        home=folder / FLOWER,
        stop=stop,
        tell=_show.status,
    )
