"""Small files in folders that strangers may write to: how they are named, read and put there.

A folder where files arrive by mail, SFTP or a stick holds whatever somebody has put there. A
name is looked up in the folder and used for nothing else; what is no plain file is not opened;
what is too long is not read.
"""

import os
import stat
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from veracal.data.files import placed
from veracal.data.limits import no_surprises
from veracal.errors import DataError
from veracal.privacy.ledger.chain import digest

REQUESTS, ANSWERS = ".request", ".answer"
MOST_NAMES = 10_000  # that one look at a folder takes note of
_SLUG = 40
_SHORT = 12
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Found:
    """A file, as it was when it was looked at.

    Attributes
    ----------
    name : str
    content : bytes or None
        None if it was not read.
    problem : str
        Why it was not read, for whoever owns the folder.
    age : float
        Seconds since it was last written to; of a time to come, until then.
    identity : tuple of int
        Changes when somebody writes to it, or puts another in its place.
    """

    name: str
    content: bytes | None
    problem: str
    age: float
    identity: tuple[int, ...]


def slug(name: str) -> str:
    """A name as a part of a file's name: small letters, digits and single hyphens.

    Examples
    --------
    >>> slug("Clínica Nord / 2")
    'clinica-nord-2'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = "".join(c if c.isalnum() else " " for c in plain).split()
    return "-".join(words)[:_SLUG].strip("-") or "source"


def stem(name: str, request: bytes) -> str:
    """What files about a request to a source are called, by their content alone.

    Whoever has the request has its name, so a file that was renamed on its way is answered
    under the right one.
    """
    return f"{slug(name)}-{digest(request)[:_SHORT]}"


def names(folder: Path, suffix: str) -> list[str]:
    """Names in a folder that end so, in order; not more than there can be in good faith."""
    with no_surprises(folder), os.scandir(folder) as entries:
        found = sorted(_first(e.name for e in entries if e.name.endswith(suffix)))
    return [name for name in found if not name.startswith(".")]


def look(folder: Path, name: str, most: int) -> Found | None:
    """Read a plain file of at most so many bytes; None if it is gone.

    Guarantees
    ----------
    Links are not followed, pipes and devices not waited for, and no byte of a file that is too
    long is read.
    """
    if os.sep in name or name in ("", ".", ".."):
        return Found(visible(name), None, "its name is a path", 0.0, ())
    try:
        handle = os.open(folder / name, _FLAGS)
    except FileNotFoundError:
        return None
    except OSError:  # a link, or somebody else's
        return Found(name, None, "it is a link, or cannot be opened", 0.0, ())
    try:
        return _read(handle, name, most)
    finally:
        os.close(handle)


def put(folder: Path, name: str, content: bytes, *, newer: bool = False) -> bool:
    """Write a file whole or not at all, unless it is there already with this content.

    Parameters
    ----------
    folder : path
    name : str
    content : bytes
    newer : bool
        Whether it takes the place of a plain file with other content.

    Returns
    -------
    bool
        Whether it was written.

    Raises
    ------
    DataError
        If something else has its name, or there is no room.
    """
    there = look(folder, name, len(content))
    replaceable = newer and (folder / name).is_file() and not (folder / name).is_symlink()
    if there is None or (replaceable and there.content != content):
        # By renaming: sticks have file systems without hard links.
        with placed(folder / name, force=True) as file:
            file.write(content)
        return True
    if there.content == content:
        return False
    raise DataError(
        str(folder / name),
        "no file, or the one that belongs there",
        "another",
        "Move it away; nothing was written over.",
    )


def visible(name: str) -> str:
    """A name that a stranger chose, for people: short, and without what a terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in name)[:80]


def _read(handle: int, name: str, most: int) -> Found:
    """Read what was opened, if it is plain and short."""
    told = os.fstat(handle)
    identity = (told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns)
    age = abs(time.time() - told.st_mtime)
    content, problem = None, ""
    if not stat.S_ISREG(told.st_mode):
        problem = "it is no plain file"
    elif told.st_size > most:
        problem = f"it is longer than {most:,} bytes"
    else:
        try:
            content = _bytes(handle, most)
        except OSError as cause:
            problem = f"it cannot be read: {cause.strerror}"
    return Found(name, content, problem, age, identity)


def _bytes(handle: int, most: int) -> bytes:
    """Everything there is, up to one byte more than is allowed."""
    parts, left = [], most + 1
    while left > 0 and (part := os.read(handle, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _first(found: Iterator[str]) -> Iterator[str]:
    """The first of many names."""
    for _, name in zip(range(MOST_NAMES), found, strict=False):
        yield name
