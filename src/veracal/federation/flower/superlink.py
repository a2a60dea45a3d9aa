"""Flower's SuperLink, started so that it only carries messages, with its TLS certificates.

Programs are started as child processes that log to a file and end with this process. One
certificate authority for each federation signs the SuperLink's certificate.
"""

import errno
import http.client
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Any, Self

from veracal._checks import extra
from veracal.data import atomic_file
from veracal.errors import DataError, TransportError
from veracal.federation.flower import child
from veracal.federation.flower.wire import crypto, environment

_FORMS = "hazmat.primitives.serialization"
_STOP_TIMEOUT = 10.0  # seconds from SIGTERM to SIGKILL


def start_process(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a program that ends with this process, and appends its output to a log.

    Only the owner can read the log. Call it in a thread that lives as long as the program:
    Linux ends the program with the thread.
    """
    wrapped = [sys.executable, "-I", child.__file__, str(os.getpid()), *command]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            wrapped,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=handle,
            env=dict(environment),
            umask=0o077,  # only the owner can read its files
            start_new_session=True,  # signals of the terminal reach only this process
        )
    finally:
        os.close(handle)


def stop_process(process: "subprocess.Popen[bytes]", timeout: float = _STOP_TIMEOUT) -> None:
    """Terminate a program, kill it after a timeout, and wait for its end."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(log: Path) -> str:
    """Last line of a log, of bounded length."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "no output"
    output = [line.strip() for line in lines if line.strip()]
    return output[-1][:300] if output else "no output"


LOCAL_HOSTS = ("localhost", "127.0.0.1")
_AUTHORITY_LIFETIME = timedelta(days=3650)
_CERTIFICATE_LIFETIME = timedelta(days=365)
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class ServerFiles:
    """TLS files of a SuperLink."""

    authority: Path  # certificate of the authority, which clients have a copy of
    certificate: Path
    key: Path  # private key of the SuperLink's certificate


def make_server_files(folder: Path, hosts: Sequence[str] = LOCAL_HOSTS) -> ServerFiles:
    """Create a certificate for a SuperLink, signed by the authority in a folder.

    The authority is created once, so that clients need no new copy. The SuperLink's
    certificate is valid for one year and is replaced by each call. The files are ``ca.crt``,
    ``ca.key``, ``server.crt`` and ``server.key``.
    """
    if not hosts:
        raise ValueError("Expected at least one host for a certificate, got none.")
    files = ServerFiles(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    x509, curves = crypto("x509"), crypto("hazmat.primitives.asymmetric.ec")
    pem, sha384 = crypto(_FORMS).Encoding.PEM, crypto("hazmat.primitives.hashes").SHA384()
    if not files.authority.exists():
        signer = curves.generate_private_key(curves.SECP384R1())
        name = _x509_name("Veracal federation")
        signed = (
            _builder(name, name, signer.public_key(), _AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(signer, sha384)
        )
        _write_key(folder / "ca.key", signer)
        _write(files.authority, signed.public_bytes(pem))
    authority, signer = _read_certificate(files.authority), _read_key(folder / "ca.key")
    key = curves.generate_private_key(curves.SECP384R1())
    _write_key(files.key, key)
    names = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    server = crypto("x509.oid").ExtendedKeyUsageOID.SERVER_AUTH
    subject, issued_by = _x509_name(hosts[0]), authority.subject
    certificate = (
        _builder(subject, issued_by, key.public_key(), _CERTIFICATE_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([server]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, sha384)
    )
    _write(files.certificate, certificate.public_bytes(pem))
    return files


def check_server(files: ServerFiles, host: str) -> None:
    """Raise unless the certificate is currently valid for a host and matches its key."""
    certificate, authority = map(_read_certificate, (files.certificate, files.authority))
    if _read_key(files.key).public_key() != certificate.public_key():
        raise _mismatch(files.key, f"the key of {files.certificate}", "another key")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, crypto("exceptions").InvalidSignature) as cause:
        expected = f"a certificate signed by {files.authority}"
        raise _mismatch(
            files.certificate, expected, "a certificate of another authority"
        ) from cause
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(UTC) < last:
        actual = f"a certificate for {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise _mismatch(files.certificate, "a certificate that is valid now", actual)
    x509 = crypto("x509")
    hosts: list[str] = []
    with suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        hosts = [str(name.value) for name in names.value]
    if host not in hosts:
        actual = f"a certificate for {', '.join(hosts) or 'no host'}"
        raise _mismatch(files.certificate, f"a certificate for {host}", actual)


def _builder(subject: Any, issuer: Any, public: Any, lifetime: timedelta) -> Any:
    """Builder with the fields that every certificate has."""
    x509, now = crypto("x509"), datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(identifier, critical=False)
    )


def _usage(*, signs_certificates: bool) -> Any:
    """Key usage: signing certificates, or opening connections."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return crypto("x509").KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **dict.fromkeys((*others, "encipher_only", "decipher_only"), False),
    )


def _x509_name(name: str) -> Any:
    """A common name for a certificate, of at most 64 characters."""
    common = crypto("x509.oid").NameOID.COMMON_NAME
    return crypto("x509").Name([crypto("x509").NameAttribute(common, name[:64])])


def _write_key(path: Path, key: Any) -> None:
    """Write a private key to a file that only its owner can read."""
    forms = crypto(_FORMS)
    pem, pkcs8 = forms.Encoding.PEM, forms.PrivateFormat.PKCS8
    _write(path, key.private_bytes(pem, pkcs8, forms.NoEncryption()))


def _read_certificate(path: Path) -> Any:
    """Read a certificate."""
    return _load(
        path, "a certificate", "a certificate (PEM)", crypto("x509").load_pem_x509_certificate
    )


def _read_key(path: Path) -> Any:
    """Read the private key of a certificate."""
    load = partial(crypto(_FORMS).load_pem_private_key, password=None)
    return _load(path, "a private key", "a private key (PEM, no password)", load)


def _load(path: Path, what: str, form: str, load: Callable[[bytes], Any]) -> Any:
    """Load the content of a file."""
    try:
        return load(path.read_bytes())
    except OSError as cause:
        raise _mismatch(path, what, cause.strerror or "nothing") from cause
    except (ValueError, TypeError) as cause:
        raise _mismatch(path, form, "something else") from cause


def _mismatch(path: Path, expected: str, actual: str) -> DataError:
    """Error for a file that does not match the others."""
    remedy = "Use the files that were created together, or create new ones."
    return DataError(str(path), expected, actual, remedy)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    with atomic_file(path, force=True) as file:
        file.write(content)


_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104  (recognized, never a default)
_START_TIMEOUT = 90.0  # seconds
_POLL = 0.1
_SECRET_BYTES = 32


class SuperLink:
    """A SuperLink that runs while its ``with`` block lasts.

    It writes only below ``folder``: ``superlink.db`` (registered nodes, messages in transit),
    ``superlink.log``, ``superlink.secret`` and ``home``.

    Parameters
    ----------
    folder : path
        A folder for this SuperLink only.
    files : ServerFiles
    host : str
        Address to listen on.
    port : int, optional
        By default a free port.

    Guarantees
    ----------
    It starts no program: only a holder of the secret can take a run, and the coordinator, which
    holds it, uses runs as channels and not for code. Nodes are served only over TLS and with
    registered keys.
    """

    def __init__(
        self,
        folder: Path,
        files: ServerFiles,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
    ) -> None:
        self.folder, self.files, self.host, self._fixed_port = folder, files, host, port
        self.secret = folder / "superlink.secret"  # authorizes the coordinator
        self.log = folder / "superlink.log"
        self._port: int | None = None
        self._process: Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Address that it listens on, as ``host:port``."""
        if self._port is None:
            raise RuntimeError("The SuperLink is not running. Use it in a with block.")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Id of its process, while it runs."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        if self.host not in _ALL_INTERFACES:
            check_server(self.files, self.host)
        self._port = find_port(self.host, self._fixed_port)
        if not self.secret.exists():
            with atomic_file(self.secret) as file:
                file.write(os.urandom(_SECRET_BYTES))
        home = self.folder / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        command = superlink_command(self.folder, self.files, self.host, self._port)
        self._process = start_process(command, log=self.log, environment=environment(home))
        try:
            self._wait(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            stop_process(self._process)
            self._process = None

    def _wait(self, process: "Popen[bytes]") -> None:
        """Wait until it responds, with a certificate of the authority."""
        context = ssl.create_default_context(cafile=str(self.files.authority))
        is_open = self.host in _ALL_INTERFACES
        context.check_hostname = not is_open
        target = "localhost" if is_open else self.host
        end = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < end:
            if process.poll() is not None:
                line = last_line(self.log)
                raise TransportError(f"The SuperLink stopped: {line} (Its log: {self.log}.)")
            probe = http.client.HTTPSConnection(target, self._port, timeout=5, context=context)
            with closing(probe), suppress(OSError, http.client.HTTPException):
                probe.request("GET", "/health")
                if probe.getresponse().status == http.HTTPStatus.OK:
                    return
            time.sleep(_POLL)
        raise TransportError(
            f"The SuperLink did not respond within {_START_TIMEOUT:g} seconds. See {self.log}."
        )


def superlink_command(folder: Path, files: ServerFiles, host: str, port: int) -> list[str]:
    """Command line of a SuperLink that carries messages and runs no code."""
    extra("flwr", "flower")
    program = Path(sys.executable).with_name("flower-superlink")
    if not program.exists():
        raise DataError(
            str(program), "Flower's program", "nothing", 'Install "veracal[flower]" again.'
        )
    return [
        str(program),
        *("--host", host, "--port", str(port)),
        *("--ssl-ca-certfile", str(files.authority.absolute())),
        *("--ssl-certfile", str(files.certificate.absolute())),
        *("--ssl-keyfile", str(files.key.absolute())),
        "--enable-supernode-auth",
        *("--isolation", "process"),  # otherwise it would run foreign code
        *("--superexec-auth-secret-file", str((folder / "superlink.secret").absolute())),
        "--disable-runtime-dependency-installation",
        *("--database", str((folder / "superlink.db").absolute())),
    ]


def find_port(host: str, port: int | None = None) -> int:
    """Return the port, or a free one by default; raise if it is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port or 0))
        except OSError as cause:
            if cause.errno == errno.EADDRINUSE:
                problem = "is in use by another program. Stop it, or choose another port"
            else:
                problem = f"is not available: {cause.strerror}. Choose another"
            raise TransportError(f"Port {port} of {host} {problem}.") from cause
        free: int = probe.getsockname()[1]
        return free
