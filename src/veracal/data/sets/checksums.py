"""Sizes and checksums of published files, as folders and packages hold them."""

from collections.abc import Callable
from importlib.resources import files

from veracal.data.sets.sources import File

# Each line of the list: SHA-256, bytes, path below the folder or inside the package.
_LINES = files("veracal.data.sets").joinpath("checksums.txt").read_text().splitlines()
_FILES = {path: (sha256, int(size)) for sha256, size, path in map(str.split, _LINES)}


def in_folder(folder: str, *names: str) -> tuple[File, ...]:
    """Return the files of a folder, with their checksums."""
    known = [(name, *_FILES[f"{folder}/{name}"]) for name in names]
    return tuple(File(name, size, sha256) for name, sha256, size in known)


def in_package(
    member: str, path: str = "", convert: Callable[[bytes], bytes] | None = None
) -> File:
    """Return a member of a package, with its checksum and the name it is to have."""
    sha256, size = _FILES[member]
    return File(path or member.rpartition("/")[2], size, sha256, member, convert)
