"""Programs that we start: they log to a file, end with us, and leave nothing behind.

Who may call itself the SuperLink: a small authority of certificates for one federation.

A SuperLink of Flower's own, started so that it carries messages and runs no code.
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
from veracal.data import placed
from veracal.errors import DataError, TransportError
from veracal.federation.flower import child
from veracal.federation.flower.wire import environment

_PATIENCE = 10.0  # seconds from a kind request to an order


def start_process(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a program that ends when this one does.

    Call it in a thread that lives as long as the program should: Linux ends the program
    with the thread.

    Parameters
    ----------
    command : sequence of str
        Path of the program, and its arguments.
    log : path
        Where what it prints is appended, for its owner's eyes only.
    environment : mapping
        All its variables.
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
            umask=0o077,  # what it writes is for its owner, too
            start_new_session=True,  # what is typed at the terminal is for us to pass on
        )
    finally:
        os.close(handle)


def stop_process(process: "subprocess.Popen[bytes]", patience: float = _PATIENCE) -> None:
    """End a program, kindly if it listens, and wait until it is gone."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(log: Path) -> str:
    """What a program said last, in one line of bounded length."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "nothing was said"
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "nothing was said"


LOCAL_HOSTS = ("localhost", "127.0.0.1")
_YEARS = timedelta(days=3650)
_YEAR = timedelta(days=365)
_EARLY = timedelta(hours=1)  # clocks differ


@dataclass(frozen=True)
class ServerFiles:
    """What a SuperLink shows to those who call it.

    Parameters
    ----------
    authority : path
        Certificate of the authority. Everyone who calls has a copy.
    certificate, key : path
        The SuperLink's own.
    """

    authority: Path
    certificate: Path
    key: Path


def make_server_files(folder: Path, hosts: Sequence[str] = LOCAL_HOSTS) -> ServerFiles:
    """Make a certificate for a SuperLink, by the authority in a folder.

    The authority is made the first time and stays, so that those who know it need no new
    copy; the SuperLink's certificate, of one year, is made anew.

    Parameters
    ----------
    folder : path
        Where ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key`` are.
    hosts : sequence of str
        Names and addresses by which the SuperLink is called.

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
    """Raise unless the files belong together, now, for a host.

    Parameters
    ----------
    files : ServerFiles
    host : str
        As callers will write it.

    Raises
    ------
    DataError
        With the file that does not match.
    """
    certificate, authority = map(_read_certificate, (files.certificate, files.authority))
    if _public_bytes(_read_key(files.key)) != _public_bytes(certificate):
        raise _mismatch(files.key, f"the key of {files.certificate}", "the key of another")
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, _invalid_signature()) as cause:
        found = "one by another authority"
        wanted = f"a certificate by {files.authority}"
        raise _mismatch(files.certificate, wanted, found) from cause
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= datetime.now(UTC) < last:
        found = f"one for {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        raise _mismatch(files.certificate, "a certificate that is valid now", found)
    named = _certificate_hosts(certificate)
    if host not in named:
        found = f"one for {', '.join(named) or 'no host'}"
        raise _mismatch(files.certificate, f"a certificate for {host}", found)


def _make_authority(certificate: Path, key: Path) -> None:
    """Write a new authority, its key first."""
    signer = _new_key()
    x509 = _x509()
    name = _x509_name("Veracal federation")
    made = (
        _builder(name, name, signer.public_key(), _YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(signer, _hash())
    )
    _write(key, _key_bytes(signer))
    _write(certificate, made.public_bytes(_encoding().PEM))


def _sign_certificate(hosts: Sequence[str], public: Any, authority: Any, signer: Any) -> Any:
    """Certificate of a server, signed by an authority."""
    x509 = _x509()
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    server = extra("cryptography.x509.oid", "flower").ExtendedKeyUsageOID.SERVER_AUTH
    return (
        _builder(_x509_name(hosts[0]), authority.subject, public, _YEAR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([server]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, hosts))), False)
        .add_extension(issuer, critical=False)
        .sign(signer, _hash())
    )


def _builder(subject: Any, issuer: Any, public: Any, lasts: timedelta) -> Any:
    """What every certificate has."""
    x509 = _x509()
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + lasts)
        .add_extension(identifier, critical=False)
    )


def _usage(*, signs_certificates: bool) -> Any:
    """What a key may be used for: to sign certificates, or to open connections."""
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
    """A host as certificates write it: an address or a name."""
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate_hosts(certificate: Any) -> list[str]:
    """The hosts a certificate is for."""
    x509 = _x509()
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found.value]


def _x509_name(name: str) -> Any:
    """A name as certificates write it; there it has at most 64 characters."""
    x509 = _x509()
    common = extra("cryptography.x509.oid", "flower").NameOID.COMMON_NAME
    return x509.Name([x509.NameAttribute(common, name[:64])])


def _new_key() -> Any:
    """A fresh key on the curve P-384."""
    curves = extra("cryptography.hazmat.primitives.asymmetric.ec", "flower")
    return curves.generate_private_key(curves.SECP384R1())


def _key_bytes(key: Any) -> bytes:
    """A private key as its file holds it."""
    forms = _serialization()
    content: bytes = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    return content


def _public_bytes(owner: Any) -> bytes:
    """The public key of a certificate or of a private key."""
    forms = _serialization()
    content: bytes = owner.public_key().public_bytes(
        forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo
    )
    return content


def _read_certificate(path: Path) -> Any:
    """Read a certificate, or raise."""
    try:
        return _x509().load_pem_x509_certificate(path.read_bytes())
    except OSError as cause:
        raise _mismatch(path, "a certificate", cause.strerror or "nothing") from cause
    except ValueError as cause:
        raise _mismatch(path, "a certificate (PEM)", "something else") from cause


def _read_key(path: Path) -> Any:
    """Read the private key of a certificate, or raise."""
    try:
        return _serialization().load_pem_private_key(path.read_bytes(), password=None)
    except OSError as cause:
        raise _mismatch(path, "a private key", cause.strerror or "nothing") from cause
    except (ValueError, TypeError) as cause:
        raise _mismatch(path, "a private key (PEM, no password)", "something else") from cause


def _mismatch(path: Path, expected: str, found: str) -> DataError:
    """Error for a file that does not belong to the others."""
    remedy = "Name the files that were made together, or make new ones."
    return DataError(str(path), expected, found, remedy)


def _write(path: Path, content: bytes) -> None:
    """Write a file for its owner's eyes."""
    with placed(path, force=True) as file:
        file.write(content)


def _x509() -> Any:
    """Certificates."""
    return extra("cryptography.x509", "flower")


def _serialization() -> Any:
    """How keys are written."""
    return extra("cryptography.hazmat.primitives.serialization", "flower")


def _encoding() -> Any:
    """PEM and DER."""
    return _serialization().Encoding


def _hash() -> Any:
    """What certificates are signed over."""
    return extra("cryptography.hazmat.primitives.hashes", "flower").SHA384()


def _invalid_signature() -> type[Exception]:
    """What is raised for a signature by somebody else."""
    kind: type[Exception] = extra("cryptography.exceptions", "flower").InvalidSignature
    return kind


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
    that is the coordinator, which takes it for a channel and not for code. Nodes are served
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
        """File by which a coordinator shows that the SuperLink is its own."""
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
        self._port = find_port(self.host, self._asked)
        _make_secret(self.secret)
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
        """Return once it answers."""
        end = time.monotonic() + _START
        while time.monotonic() < end:
            if process.poll() is not None:
                said = last_line(self.log)
                raise TransportError(f"The SuperLink stopped: {said} (Its log: {self.log}.)")
            if _responds(self.host, self._port, self.files.authority):
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


def find_port(host: str, port: int | None = None) -> int:
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


def _responds(host: str, port: int | None, authority: Path) -> bool:
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
