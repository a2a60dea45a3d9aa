"""Serving on the command line: one desk, and one of the ways in which bytes get to it."""

import threading
from dataclasses import dataclass
from pathlib import Path

import typer

from veracal.cli import _show
from veracal.cli._stopping import Tell, until_stopped
from veracal.federation.source.enrolment import read_enrolment
from veracal.federation.source.folder import read_source
from veracal.federation.source.history import problems_of
from veracal.federation.source.serving import Desk, open_source

FLOWER = "flower"  # folder for what Flower keeps, inside the source's
NODE_KEY = "node.key"  # by which Flower knows the source
_PATIENCE = 2.0  # seconds for what is being written or signed off when it is stopped


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

    What is being computed then is committed whole or undone by the ledger; what was not sent
    yet is sent when it is asked for again.
    """
    ways.check()

    def work(stop: threading.Event, tell: Tell) -> None:
        desk = _opened(folder, enrolment, tell)
        _serve(desk, Path(folder).absolute(), ways, stop, tell)

    until_stopped(work, "Stopped. What was answered is kept.", patience=_PATIENCE)


def _opened(folder: Path, enrolment: str | None, tell: Tell) -> Desk:
    """Open a desk, and say who is answered and what stands in the way."""
    desk, source = open_source(folder, enrolment, tell=tell), read_source(folder)
    terms = desk.terms
    for problem in problems_of(source, read_enrolment(source, terms.source)):
        tell(f"warning: everything is refused for now. {problem}")
    tell(
        f"{terms.name} answers the calibrator {terms.calibrator.fingerprint} (enrolment "
        f"{terms.source[:12]}), {terms.deadline:g} seconds after each request. Ctrl-C stops it."
    )
    return desk


def _serve(desk: Desk, folder: Path, ways: Ways, stop: threading.Event, tell: Tell) -> None:
    """By files or over Flower."""
    if ways.inbox is not None and ways.outbox is not None:
        from veracal.federation.transports.files import serve_folder

        many = serve_folder(desk, ways.inbox, ways.outbox, once=ways.once, stop=stop, tell=tell)
        if not stop.is_set():
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
        tell=tell,
    )
