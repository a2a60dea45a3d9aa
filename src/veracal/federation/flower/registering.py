"""Nodes whose keys a SuperLink lets in."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from veracal.errors import TransportError
from veracal.federation.flower.borrowed import flower
from veracal.federation.flower.environment import switch_off
from veracal.federation.flower.node_keys import read_public_node_key
from veracal.federation.flower.wire import (
    AROUND,
    Connection,
    ParcelError,
    distrust,
    refused,
    unreachable,
)

_LIST = 64 * AROUND  # bytes: some thousands of nodes


def register_nodes(
    address: str, *, ca: Path, nodes: Mapping[str, Path], home: Path
) -> dict[str, int]:
    """Have a SuperLink let nodes in; those it knows already stay as they are.

    Flower asks nobody who may do this: whoever reaches the SuperLink can. It decides who is
    connected, and not who is asked.

    Parameters
    ----------
    address : str
        Of the SuperLink, as ``host:port``.
    ca : path
        Certificate of the authority that vouches for it.
    nodes : mapping of str to path
        Public keys of nodes, by name.
    home : path
        A folder in which Flower may write.

    Returns
    -------
    dict of str to int
        The numbers that the nodes have at the SuperLink.

    Raises
    ------
    TransportError
        If the SuperLink is not there, not who it should be, or does not take a key.
    """
    keys = {name: read_public_node_key(path) for name, path in nodes.items()}
    if len(set(keys.values())) < len(keys):
        raise ValueError("Expected a key of its own for each node, got one key twice.")
    switch_off(home)
    with closing(Connection(flower().ControlClient, address, ca, most=_LIST)) as link:
        try:
            return _registered(link, keys)
        except refused() as problem:
            raise TransportError(
                f"The SuperLink at {address} does not take a node's key. One that was removed "
                "once is never taken again: make a new key for that node."
            ) from problem
        except (unreachable(), ParcelError) as problem:
            raise distrust(problem, address, ca) or TransportError(
                f"There is no SuperLink at {address}. Check that it runs, and its address."
            ) from problem


def _registered(link: Connection, keys: Mapping[str, bytes]) -> dict[str, int]:
    """Numbers of nodes by name, once all of them are known."""
    control = flower().control
    listed = link.call("ListNodes", control.ListNodesRequest()).nodes_info
    numbers = {bytes(node.public_key): node.node_id for node in listed}
    for key in keys.values():
        if key not in numbers:
            request = control.RegisterNodeRequest(public_key=key)  # its name is for us
            numbers[key] = link.call("RegisterNode", request).node_id
    return {name: numbers[key] for name, key in keys.items()}
