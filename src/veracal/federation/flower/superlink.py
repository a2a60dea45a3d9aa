"""A SuperLink of Flower's own, started so that it carries messages and runs no code."""

import errno
import http.client
import os
import socket
import ssl
import sys
import time
from pathlib import Path
from subprocess import Popen
from typing import Self

from veracal._checks import extra
from veracal.data.files import placed
from veracal.errors import DataError, TransportError
from veracal.federation.flower import children
from veracal.federation.flower.certificates import ServerFiles, check_server
from veracal.federation.flower.environment import environment

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (recognized, never our choice)
_START = 90.0  # seconds
_LOOK = 0.1
_SECRET = 32  # bytes


class SuperLink:
    """A running SuperLink, for as long as the ``with`` block lasts.

    Everything it writes is below ``folder``: ``superlink.db`` (registered nodes, messages on
    their way), ``superlink.log``, ``superlink.secret`` and ``home``.

    Parameters
    ----------
    folder : path
        A folder for this SuperLink alone.
    files : ServerFiles
        Its certificate.
    host : str
        Where it listens.
    port : int, optional
        Default: one that is free.

    Guarantees
    ----------
    It starts no program: a run is only ever carried out by whoever holds the secret, and
    that is the calibrator, which takes it for a channel and not for code. Nodes are served
    over TLS, and only with registered keys.
    """

    def __init__(
        self,
        folder: Path,
        files: ServerFiles,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        self.folder, self.files, self.host, self._asked = folder, files, host, port
        self._port: int | None = None
        self._process: Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens, as ``host:port``."""
        if self._port is None:
            raise RuntimeError("Expected a SuperLink that was started. Use it in a with block.")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self._port}"

    @property
    def secret(self) -> Path:
        """File by which a calibrator shows that the SuperLink is its own."""
        return self.folder / "superlink.secret"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "superlink.log"

    @property
    def pid(self) -> int | None:
        """Number of its process, while there is one."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        if self.host not in _EVERYWHERE:
            check_server(self.files, self.host)
        self._port = free_port(self.host, self._asked)
        _make_secret(self.secret)
        home = self.folder / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        command = superlink_command(self.folder, self.files, self.host, self._port)
        self._process = children.start(command, log=self.log, environment=environment(home))
        try:
            self._wait(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            children.stop(self._process)
            self._process = None

    def _wait(self, process: "Popen[bytes]") -> None:
        """Return once it answers."""
        end = time.monotonic() + _START
        while time.monotonic() < end:
            if process.poll() is not None:
                said = children.last_line(self.log)
                raise TransportError(f"The SuperLink stopped: {said} (Its log: {self.log}.)")
            if _answers(self.host, self._port, self.files.authority):
                return
            time.sleep(_LOOK)
        raise TransportError(
            f"The SuperLink did not answer within {_START:g} seconds. Look into {self.log}."
        )


def superlink_command(folder: Path, files: ServerFiles, host: str, port: int) -> list[str]:
    """The command line of a SuperLink that carries messages and runs no code."""
    extra("flwr", "flower")
    return [
        str(_program("flower-superlink")),
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(files.authority.absolute())),
        *("--ssl-certfile", str(files.certificate.absolute())),
        *("--ssl-keyfile", str(files.key.absolute())),
        "--enable-supernode-auth",
        *("--isolation", "process"),  # otherwise it would run what anyone sends it
        *("--superexec-auth-secret-file", str((folder / "superlink.secret").absolute())),
        "--disable-runtime-dependency-installation",
        *("--database", str((folder / "superlink.db").absolute())),
    ]


def free_port(host: str, port: int | None = None) -> int:
    """Return the port, or a free one if none is given; raise if another program has it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port or 0))
        except OSError as cause:
            if cause.errno == errno.EADDRINUSE:
                problem = "is in use by another program. Stop that one, or name another port"
            else:
                problem = f"cannot be listened on: {cause.strerror}. Name another"
            raise TransportError(f"Port {port} of {host} {problem}.") from cause
        found: int = probe.getsockname()[1]
        return found


def _answers(host: str, port: int | None, authority: Path) -> bool:
    """Whether a SuperLink answers, with a certificate by the authority."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = host not in _EVERYWHERE
    reached = "localhost" if host in _EVERYWHERE else host
    connection = http.client.HTTPSConnection(reached, port, timeout=5, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _make_secret(path: Path) -> None:
    """Write a secret, unless there is one."""
    if not path.exists():
        with placed(path) as file:
            file.write(os.urandom(_SECRET))


def _program(name: str) -> Path:
    """A program that was installed beside this Python."""
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        raise DataError(
            str(found), "Flower's program", "nothing", 'Install "veracal[flower]" anew.'
        )
    return found
