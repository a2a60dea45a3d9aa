"""Keys by which a SuperLink tells its nodes apart.

Flower takes keys on the curves of NIST only, in OpenSSH's form. They say who is connected;
what is asked and answered is signed by other keys, inside the bytes.
"""

from pathlib import Path
from typing import Any

from veracal._checks import extra
from veracal.data.files import new_file, placed
from veracal.errors import DataError

_MOST = 16_384  # bytes of a key file
_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def make_node_key(path: Path) -> Path:
    """Write a new key for a node, and beside it the half that the SuperLink is given.

    Parameters
    ----------
    path : path
        Of the private half, which its owner alone can read.

    Returns
    -------
    path
        Of the public half: the same name with ``.pub`` behind it.
    """
    public = path.with_name(f"{path.name}.pub")
    for new in (path, public):
        new_file(new, "key")
    curves, forms = _curves(), _serialization()
    key = curves.generate_private_key(curves.SECP384R1())
    pem, ssh = forms.Encoding.PEM, forms.Encoding.OpenSSH
    secret = key.private_bytes(pem, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    with placed(path) as file:
        file.write(secret)
    with placed(public) as file:
        file.write(key.public_key().public_bytes(ssh, forms.PublicFormat.OpenSSH) + b"\n")
    return public


def read_node_key(path: Path) -> Any:
    """Read the private half, if nobody else can.

    Raises
    ------
    DataError
        If it is not there, is no such key, or is open to others.
    """
    content = _read(path)
    if path.stat().st_mode & 0o077:
        expected = "a key that its owner alone can read"
        remedy = "Change its mode to 600; if others may have read it, make a new key."
        raise DataError(str(path), expected, "a file that others can read or write", remedy)
    try:
        key = _serialization().load_ssh_private_key(content, password=None)
    except (ValueError, TypeError, _unsupported()) as cause:
        raise _no_key(path, "private", "something else") from cause
    if not isinstance(key, _curves().EllipticCurvePrivateKey) or key.curve.name not in _CURVES:
        raise _no_key(path, "private", "a key of another kind")
    return key


def read_public_node_key(path: Path) -> bytes:
    """Read the public half, in the form (PEM) in which a SuperLink keeps it.

    Raises
    ------
    DataError
        If it is not there, or is no such key.
    """
    content = _read(path)
    try:
        key = _serialization().load_ssh_public_key(content)
    except (ValueError, TypeError, _unsupported()) as cause:
        raise _no_key(path, "public", "something else") from cause
    if not isinstance(key, _curves().EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise _no_key(path, "public", "a key of another kind")
    return public_form(key)


def public_form(public: Any) -> bytes:
    """A public key as a SuperLink keeps it."""
    forms = _serialization()
    form = forms.PublicFormat.SubjectPublicKeyInfo
    content: bytes = public.public_bytes(forms.Encoding.PEM, form)
    return content


def _read(path: Path) -> bytes:
    """Read a small file."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST)
    except OSError as cause:
        raise _no_key(path, "node's", cause.strerror or "nothing") from cause


def _no_key(path: Path, half: str, found: str) -> DataError:
    """Error for a file that is no key of a node."""
    remedy = "Make one with  ssh-keygen -t ecdsa -b 384 -N '' -f node.key"
    return DataError(str(path), f"a {half} key on a NIST curve (OpenSSH)", found, remedy)


def _curves() -> Any:
    """Elliptic curves."""
    return extra("cryptography.hazmat.primitives.asymmetric.ec", "flower")


def _serialization() -> Any:
    """How keys are written."""
    return extra("cryptography.hazmat.primitives.serialization", "flower")


def _unsupported() -> type[Exception]:
    """What is raised for a kind of key that is not known."""
    kind: type[Exception] = extra("cryptography.exceptions", "flower").UnsupportedAlgorithm
    return kind
