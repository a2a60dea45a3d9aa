"""Files of a folder or of a zip archive, by their relative names."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

from veracal.data.limits import Limits, inside, no_surprises, opened
from veracal.data.readers.archives import open_archive
from veracal.errors import DataError


class Files(Protocol):
    """Files that can be listed and read."""

    @property
    def names(self) -> tuple[str, ...]:
        """Relative names with forward slashes, sorted."""

    def read(self, name: str) -> bytes:
        """Bytes of one of them."""


@contextmanager
def open_files(path: Path, limits: Limits) -> Iterator[Files]:
    """Open a folder or a zip archive."""
    with no_surprises(path):
        is_folder = path.is_dir()
    if is_folder:
        yield Folder(path, limits)
        return
    with open_archive(path, limits) as archive:
        yield archive


class Folder:
    """Files below a folder, none of which is a link out of it."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder, self._limits = folder, limits
        self.names = tuple(sorted(self._walk()))

    def read(self, name: str) -> bytes:
        """Read one file."""
        with opened(inside(self._folder, Path(name)), self._limits) as file:
            self._limits.check("memory_bytes", os.fstat(file.fileno()).st_size, name)
            return file.read()

    def _walk(self) -> Iterator[str]:
        """Yield relative names, within the limit on their number."""
        count = 0
        with no_surprises(self._folder):
            for parent, folders, files in os.walk(self._folder, onerror=_refuse):
                for folder in folders:
                    self._check_link(Path(parent, folder))
                for file in files:
                    count += 1
                    self._limits.check("members", count, self._folder)
                    yield Path(parent, file).relative_to(self._folder).as_posix()

    def _check_link(self, folder: Path) -> None:
        """Refuse a link to a folder: outside it is not ours, inside it may go in circles."""
        if not folder.is_symlink():
            return
        inside(self._folder, folder.relative_to(self._folder))
        raise DataError(
            str(folder), "a folder", "a link to one", "Move the folder itself to this place."
        )


def _refuse(error: OSError) -> NoReturn:
    """Stop at a folder that cannot be listed, instead of passing over it."""
    raise error
