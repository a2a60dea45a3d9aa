"""A federation of real processes: a SuperLink, and nodes that come and go."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from veracal.federation.flower import superlink as children
from veracal.federation.flower.superlink import SuperLink, make_server_files
from veracal.federation.flower.transport import FlowerTransport, register_nodes
from veracal.federation.flower.wire import environment, make_node_key

STAND_IN = Path(__file__).with_name("stand_in.py")


def until(true: Callable[[], object], seconds: float = 240) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


class Federation:
    """A running SuperLink, and what is needed to join it."""

    def __init__(self, folder: Path, link: SuperLink) -> None:
        self.folder, self.link = folder, link
        self.user = folder / "user"  # the home of the user
        self.user.mkdir()
        self._started = ExitStack()

    def key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        if not path.exists():
            make_node_key(path)
        return path

    def node(self, name: str, mode: str = "echo", *, key: str | None = None):
        """Start a node; it is stopped with the federation."""
        log = self.log(name)
        paths = (self.link.files.authority, self.key(key or name), self.folder / f"{name}.home")
        command = [sys.executable, STAND_IN, mode, self.link.address, *paths]
        variables = environment(self.folder / f"{name}.home") | {"HOME": str(self.user)}
        process = children.start_process(
            list(map(str, command)), log=log, environment=variables
        )
        self._started.callback(children.stop_process, process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str, words: str, times: int = 1) -> None:
        """Wait until a node has said something so many times."""
        log = self.log(name)
        until(lambda: log.exists() and log.read_text().count(words) >= times)

    def public(self, name: str) -> Path:
        return self.key(name).with_suffix(".key.pub")

    def register(self, *names: str) -> dict[str, int]:
        nodes = {name: self.public(name) for name in names}
        ca, home = self.link.files.authority, self.folder / "coordinator.home"
        return register_nodes(self.link.address, ca=ca, nodes=nodes, home=home)

    def transport(self, *names: str) -> FlowerTransport:
        return FlowerTransport(
            self.link.address,
            ca=self.link.files.authority,
            secret=self.link.secret,
            nodes={name: self.public(name) for name in names},
            home=self.folder / "coordinator.home",
        )

    def close(self) -> None:
        self._started.close()


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    """A SuperLink with no nodes yet."""
    folder = tmp_path_factory.mktemp("federation")
    before = dict(os.environ)
    place = folder / "superlink"
    place.mkdir()
    with SuperLink(place, make_server_files(folder)) as link:
        created = Federation(folder, link)
        try:
            yield created
        finally:
            created.close()
            os.environ.clear()
            os.environ.update(before)  # a transport speaks to Flower through them
