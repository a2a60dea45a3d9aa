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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any, Self

from veracal._checks import extra
from veracal.data import atomic_file
from veracal.errors import DataError, TransportError
from veracal.federation.flower import child
from veracal.federation.flower.wire import environment

_STOP_TIMEOUT = 10.0  # seconds from SIGTERM to SIGKILL


def start_process(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a program that ends with this process.

    Call it in a thread that lives as long as the program: Linux ends the program with the
    thread.

    Parameters
    ----------
    command : sequence of str
        Path of the program and its arguments.
    log : path
        File that its output is appended to. Only the owner can read it.
    environment : mapping
        Its environment variables.
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
    """TLS files of a SuperLink.

    Parameters
    ----------
    authority : path
        Certificate of the authority, which clients have a copy of.
    certificate, key : path
        Certificate and private key of the SuperLink.
    """

    authority: Path
    certificate: Path
    key: Path


def make_server_files(folder: Path, hosts: Sequence[str] = LOCAL_HOSTS) -> ServerFiles:
    """Create a certificate for a SuperLink, signed by the authority in a folder.

    The authority is created once, so that clients need no new copy. The SuperLink's
    certificate is valid for one year and is replaced by each call.

    Parameters
    ----------
    folder : path
        Folder of ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``.
    hosts : sequence of str
        Host names and addresses of the SuperLink.

    Returns
    -------
    ServerFiles
    """
    if not hosts:
        raise ValueError("Expected at least one host for a certificate, got none.")
    files = ServerFiles(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    if not files.authority.exists():
        _make_authority(files.authority, folder / "ca.key")
    authority = _read_certificate(files.authority)
    signer = _read_key(folder / "ca.key")
    key = _new_key()
    _write(files.key, _key_bytes(key))
    certificate = _sign_certificate(hosts, key.public_key(), authority, signer)
    _write(files.certificate, certificate.public_bytes(_encoding().PEM))
    return files


def check_server(files: ServerFiles, host: str) -> None:
    """Raise unless the certificate is currently valid for a host and matches its key.

    Parameters
    ----------
    files : ServerFiles
    host : str
        Host name that clients use.

    Raises
    ------
    DataError
        Names the file that does not match.
    """
    certificate, authority = map(_read_certificate, (files.certificate, files.authority))
    if _public_bytes(_read_key(files.key)) != _public_bytes(certificate):
        raise _mismatch(files.key, f"the key of {files.certificate}", "another key")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, _invalid_signature()) as cause:
        expected = f"a certificate signed by {files.authority}"
        raise _mismatch(
            files.certificate, expected, "a certificate of another authority"
        ) from cause
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(UTC) < last:
        actual = f"a certificate for {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise _mismatch(files.certificate, "a certificate that is valid now", actual)
    hosts = _certificate_hosts(certificate)
    if host not in hosts:
        actual = f"a certificate for {', '.join(hosts) or 'no host'}"
        raise _mismatch(files.certificate, f"a certificate for {host}", actual)


def _make_authority(certificate: Path, key: Path) -> None:
    """Write the key and the certificate of a new authority."""
    signer = _new_key()
    x509 = _x509()
    name = _x509_name("Veracal federation")
    signed = (
        _builder(name, name, signer.public_key(), _AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(signer, _hash())
    )
    _write(key, _key_bytes(signer))
    _write(certificate, signed.public_bytes(_encoding().PEM))


def _sign_certificate(hosts: Sequence[str], public: Any, authority: Any, signer: Any) -> Any:
    """Sign the certificate of a server."""
    x509 = _x509()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    server = extra("cryptography.x509.oid", "flower").ExtendedKeyUsageOID.SERVER_AUTH
    return (
        _builder(_x509_name(hosts[0]), authority.subject, public, _CERTIFICATE_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([server]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, hosts))), False)
        .add_extension(issuer, critical=False)
        .sign(signer, _hash())
    )


def _builder(subject: Any, issuer: Any, public: Any, lifetime: timedelta) -> Any:
    """Builder with the fields that every certificate has."""
    x509 = _x509()
    now = datetime.now(UTC)
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
    return _x509().KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> Any:
    """A host as a subject alternative name: an address or a DNS name."""
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate_hosts(certificate: Any) -> list[str]:
    """The hosts that a certificate is valid for."""
    x509 = _x509()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names.value]


def _x509_name(name: str) -> Any:
    """A common name for a certificate, of at most 64 characters."""
    x509 = _x509()
    common = extra("cryptography.x509.oid", "flower").NameOID.COMMON_NAME
    return x509.Name([x509.NameAttribute(common, name[:64])])


def _new_key() -> Any:
    """Generate a key on the curve P-384."""
    curves = extra("cryptography.hazmat.primitives.asymmetric.ec", "flower")
    return curves.generate_private_key(curves.SECP384R1())


def _key_bytes(key: Any) -> bytes:
    """Encode a private key for its file."""
    forms = _serialization()
    content: bytes = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    return content


def _public_bytes(owner: Any) -> bytes:
    """Encode the public key of a certificate or of a private key."""
    forms = _serialization()
    content: bytes = owner.public_key().public_bytes(
        forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo
    )
    return content


def _read_certificate(path: Path) -> Any:
    """Read a certificate."""
    try:
        return _x509().load_pem_x509_certificate(path.read_bytes())
    except OSError as cause:
        raise _mismatch(path, "a certificate", cause.strerror or "nothing") from cause
    except ValueError as cause:
        raise _mismatch(path, "a certificate (PEM)", "something else") from cause


def _read_key(path: Path) -> Any:
    """Read the private key of a certificate."""
    try:
        return _serialization().load_pem_private_key(path.read_bytes(), password=None)
    except OSError as cause:
        raise _mismatch(path, "a private key", cause.strerror or "nothing") from cause
    except (ValueError, TypeError) as cause:
        raise _mismatch(path, "a private key (PEM, no password)", "something else") from cause


def _mismatch(path: Path, expected: str, actual: str) -> DataError:
    """Error for a file that does not match the others."""
    remedy = "Use the files that were created together, or create new ones."
    return DataError(str(path), expected, actual, remedy)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    with atomic_file(path, force=True) as file:
        file.write(content)


def _x509() -> Any:
    """Certificates of the ``cryptography`` library."""
    return extra("cryptography.x509", "flower")


def _serialization() -> Any:
    """Key formats of the ``cryptography`` library."""
    return extra("cryptography.hazmat.primitives.serialization", "flower")


def _encoding() -> Any:
    """Encodings: PEM and DER."""
    return _serialization().Encoding


def _hash() -> Any:
    """Hash function of certificate signatures."""
    return extra("cryptography.hazmat.primitives.hashes", "flower").SHA384()


def _invalid_signature() -> type[Exception]:
    """Exception for an invalid signature."""
    kind: type[Exception] = extra("cryptography.exceptions", "flower").InvalidSignature
    return kind


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
        Its TLS files.
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
    def secret(self) -> Path:
        """File with the secret that authorizes the coordinator."""
        return self.folder / "superlink.secret"

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.folder / "superlink.log"

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
        """Wait until it responds."""
        end = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < end:
            if process.poll() is not None:
                line = last_line(self.log)
                raise TransportError(f"The SuperLink stopped: {line} (Its log: {self.log}.)")
            if _responds(self.host, self._port, self.files.authority):
                return
            time.sleep(_POLL)
        raise TransportError(
            f"The SuperLink did not respond within {_START_TIMEOUT:g} seconds. See {self.log}."
        )


def superlink_command(folder: Path, files: ServerFiles, host: str, port: int) -> list[str]:
    """Command line of a SuperLink that carries messages and runs no code."""
    extra("flwr", "flower")
    return [
        str(_program("flower-superlink")),
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


def _responds(host: str, port: int | None, authority: Path) -> bool:
    """Whether a SuperLink responds, with a certificate of the authority."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = host not in _ALL_INTERFACES
    target = "localhost" if host in _ALL_INTERFACES else host
    connection = http.client.HTTPSConnection(target, port, timeout=5, context=context)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _program(name: str) -> Path:
    """A program in the environment of this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise DataError(
            str(path), "Flower's program", "nothing", 'Install "veracal[flower]" again.'
        )
    return path
