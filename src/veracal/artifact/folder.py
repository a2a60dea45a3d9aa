"""Folders that appear whole or not at all, and files in them that are what they say."""

import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from veracal.data.files import new_file
from veracal.data.limits import no_surprises
from veracal.errors import DataError, LimitError

# Names of the files that runs write. A folder with others in it is somebody's own.
OURS = frozenset(
    {
        "model.json",
        "model.safetensors",
        "results.json",
        "report.html",
        "MODEL_CARD.md",
        "report-internal.html",
    }
)


def check_place(path: Path, *, force: bool, more: Collection[str] = ()) -> None:
    """Refuse a place where a folder could not be put, before the work and not after it.

    Parameters
    ----------
    path : path
    force : bool
        Whether a folder that is there may be replaced: one of ours, or an empty one.
    more : collection of str
        Names of other files that are ours.
    """
    if path.name in ("", ".."):
        raise DataError(str(path), "a folder with a name of its own", "none", "Name another.")
    with no_surprises(path):
        replaceable = force and path.is_dir() and not path.is_symlink()
        there = {each.name for each in path.iterdir()} if replaceable else set()
        inside = replaceable and Path.cwd().is_relative_to(path.resolve())
    if inside:
        raise DataError(
            str(path),
            "another folder than the one this command runs in",
            "that one",
            "Go to the folder above, or name another.",
        )
    if others := there - OURS - set(more):
        raise DataError(
            str(path),
            "nothing but a model in a folder that is to be replaced",
            f"{min(others)!r} in it",
            "Move that elsewhere, or name another folder.",
        )
    if not replaceable:
        new_file(path, "folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise DataError(
            str(path),
            "a folder that can be written to",
            "no permission",
            "Name another place.",
        )


def write_folder(
    path: Path, files: Mapping[str, bytes], *, force: bool = False, shared: bool = True
) -> Path:
    """Write files into a folder that appears under its name once all of them are on the disk.

    Parameters
    ----------
    path : path
    files : mapping of name to bytes
    force : bool
        Whether it may take the place of a folder that is there, if nothing but files of ours
        is in that one. It is removed once the new one stands.
    shared : bool
        Whether others may look into it.
    """
    check_place(path, force=force, more=files)
    try:
        made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            for name, content in files.items():
                _write(made / name, content)
                if not shared:
                    (made / name).chmod(0o600)
            made.chmod(0o755 if shared else 0o700)
            sync_folder(made)
            _put(made, path, force=force)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as cause:
        raise DataError(
            str(path), "a place to write", cause.strerror or str(cause), "Name another place."
        ) from cause
    return path


def read_file(folder: Path, name: str, most: int) -> bytes:
    """Read a file of a folder that anybody may have made: no link, and no larger than said.

    Raises
    ------
    DataError
        If it is not there, is a link, a folder or a device, or changes while it is read.
    LimitError
        If it is larger than ``most`` bytes; nothing of it is read then.
    """
    path = folder / name
    try:
        # Not through a link: it could lead to anything that its maker cannot read but we can.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as cause:
        raise DataError(
            str(folder), f"a file {name}", "none", "Get the artifact again, all of it."
        ) from cause
    except OSError as cause:
        reason = "a link" if path.is_symlink() else cause.strerror or str(cause)
        raise DataError(str(path), "a file", reason, "Get the artifact again.") from cause
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise DataError(str(path), "a file", "something else", "Get the artifact again.")
    with os.fdopen(handle, "rb") as file:
        if found.st_size > most:
            raise LimitError(
                str(path), f"at most {most:,} bytes", f"{found.st_size:,}", "Do not trust it."
            )
        content = file.read(most + 1)
    if len(content) != found.st_size:
        raise DataError(str(path), f"{found.st_size} bytes", "others", "Read it again.")
    return content


def _write(path: Path, content: bytes) -> None:
    """Write a new file and have it on the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _put(made: Path, path: Path, *, force: bool) -> None:
    """Give a folder its name; one that is there steps aside first, and back on failure."""
    if not (force and path.is_dir()):
        made.rename(path)
        return
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        path.rename(aside)  # which is empty
    except BaseException:
        aside.rmdir()
        raise
    try:
        made.rename(path)
    except BaseException:
        aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
