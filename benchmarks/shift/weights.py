"""Published weights of the networks, converted from pickles to safetensors.

The files are those of https://github.com/akamaster/pytorch_resnet_cifar10 (BSD-2-Clause),
checked against the catalog's checksums before they are read, and read with ``weights_only``, so
that nothing in them is run. What is kept is in the cache, to be made again at will.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from benchmarks.datasets import entry, fetch
from benchmarks.datasets.sources import File, FromFolder, check_file
from benchmarks.shift.resnet import DEPTHS
from veracal.data import cache_folder, private_folder

ENTRY = "resnet-cifar10-weights"
_PREFIX = "module."  # networks were saved from inside a wrapper for several devices
_UNUSED = ".num_batches_tracked"


def folder() -> Path:
    """Where the benchmark keeps weights and logits: ``shift`` in Veracal's cache."""
    return cache_folder() / "shift"


def published(name: str) -> File:
    """Name, size and checksum of the file a network was published as."""
    (source,) = (source for source in entry(ENTRY).sources if isinstance(source, FromFolder))
    (found,) = (file for file in source.files if file.path.startswith(f"{name}-"))
    return found


def weights(name: str) -> dict[str, Tensor]:
    """Weights of a network by name, converted if they have not been yet.

    Raises
    ------
    FetchError
        If they are neither in the cache nor in the folder that ``$VERACAL_DATA`` names, or
        not with the published checksum.
    """
    assert name in DEPTHS
    place, file = folder() / f"{name}.safetensors", published(name)
    found = _read_cache(place, file.sha256)
    if found is None:
        source = fetch(ENTRY) / file.path
        check_file(file, source)
        found = converted(source)
        write_whole(place, _packed(found, file.sha256))
    return found


def converted(source: Path) -> dict[str, Tensor]:
    """Read a published file: tensors by name, without the wrapper's prefix."""
    state = torch.load(source, map_location="cpu", weights_only=True)["state_dict"]
    return {
        name.removeprefix(_PREFIX): value.contiguous()
        for name, value in state.items()
        if not name.endswith(_UNUSED)
    }


def write_whole(place: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all."""
    private_folder(place.parent)
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _packed(tensors: Mapping[str, Tensor], origin: str) -> bytes:
    """Bytes of a file that says what it was made from."""
    return save(dict(tensors), {"origin": origin, "sha256": digest(tensors)})


def _read_cache(place: Path, origin: str) -> dict[str, Tensor] | None:
    """Weights from the cache; None where there are none, or not these, or not whole."""
    try:
        with safe_open(place, "pt") as file:
            said = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    is_ours = said.get("origin") == origin and said.get("sha256") == digest(found)
    return found if is_ours else None


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and numbers."""
    total = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        total.update(f"{name}|{tuple(value.shape)}|{value.dtype}|".encode())
        total.update(value.numpy().tobytes())
    return total.hexdigest()
