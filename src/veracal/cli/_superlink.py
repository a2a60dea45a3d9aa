"""A SuperLink for a federation: started with what its folder says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from veracal.cli import _show
from veracal.errors import DataError
from veracal.federation.calibrator.founding import address_of, carrier_of, node_keys
from veracal.federation.flower.certificates import LOCAL, server_files
from veracal.federation.flower.registering import register_nodes
from veracal.federation.flower.superlink import SuperLink

FLOWER = "flower"  # folder for all that is Flower's, inside the calibrator's
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
    names = tuple(dict.fromkeys((host, *LOCAL, *([] if listen is None else [listen]))))
    files = server_files(place, names)
    tell(f"Starting a SuperLink at {host}:{port}, over TLS")
    with SuperLink(place, files, host=listen or host, port=port) as link:
        keys = node_keys(folder)
        if keys:
            near = link.address if listen is None else f"{LOCAL[1]}:{port}"
            register_nodes(near, ca=files.authority, nodes=keys, home=place / "home")
        yield link


def _address(folder: Path) -> tuple[str, int]:
    """Host and port of the federation's SuperLink."""
    if carrier_of(folder) != "flower":
        raise DataError(
            str(folder),
            "a federation over Flower",
            "one by files",
            "It needs no SuperLink.",
        )
    host, _, port = address_of(folder).rpartition(":")
    if not host or not port.isdecimal():
        raise DataError(
            str(folder), "an address as in localhost:9092", address_of(folder), "Correct it."
        )
    return host, int(port)
