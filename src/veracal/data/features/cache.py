"""Features on disk, for the next time the same records are asked for."""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veracal._types import Array, Floats
from veracal.data.dataset import Dataset
from veracal.data.limits import no_surprises

_BLOCK = 2**20  # bytes hashed, read or written at a time
_TEXTS = 1_024  # texts hashed at a time
_DIGEST = hashlib.sha256().digest_size


def records_key(dataset: Dataset, made_by: Mapping[str, str | int], secret: bytes) -> str:
    """Hash the features of a data set, and of what makes new ones, into a file name.

    Labels, groups and units stay out of it. Texts are hashed with their lengths, so that
    no two lists of texts run together into the same bytes. The hash is keyed by a secret
    (:func:`~veracal.data.places.cache_secret`): a name confirms no guess of the records.
    """
    settings = json.dumps(dict(made_by), sort_keys=True).encode()
    digest = hashlib.blake2b(settings, key=secret, digest_size=32)
    digest.update(f"|{dataset.X.dtype}|{dataset.X.shape}|".encode())
    is_text = dataset.X.dtype.kind == "T"
    rows = _TEXTS if is_text else max(1, _BLOCK * len(dataset) // max(1, dataset.X.nbytes))
    for part in dataset.batches(rows):
        digest.update(_text_bytes(part.X[:]) if is_text else np.ascontiguousarray(part.X).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """One array of features on disk: a ``.npy`` file with a checksum after its end.

    Attributes
    ----------
    folder : Path
        Folder it lives in.
    key : str
        Its name, from :func:`records_key`.
    shape : tuple of int
        Rows and columns it must have.

    Guarantees
    ----------
    What :meth:`read` returns is what :meth:`write` was given under the same key: the
    length, the header and a SHA-256 of key, header and numbers must all agree. The file
    appears whole or not at all, and only its owner can read it. Nothing is unpickled.
    """

    folder: Path
    key: str
    shape: tuple[int, int]

    @property
    def path(self) -> Path:
        """Where the file is, or would be."""
        return self.folder / f"{self.key}.npy"

    def read(self) -> Floats | None:
        """Read the features back; None where there are none, or not these, or not whole."""
        header, result = self._header(), np.empty(self.shape, np.float32)
        size = len(header) + result.nbytes + _DIGEST
        if not self.path.exists():
            return None
        with no_surprises(self.path), self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size or file.read(len(header)) != header:
                return None
            digest = hashlib.sha256(self.key.encode() + header)
            for block in _blocks(result):
                file.readinto(block)
                digest.update(block)
            return result if file.read() == digest.digest() else None

    def write(self, features: Floats) -> None:
        """Write features of the right shape, or raise and leave nothing behind."""
        assert features.shape == self.shape
        assert features.dtype == np.float32
        with no_surprises(self.folder):
            handle, name = tempfile.mkstemp(
                dir=self.folder, prefix=self.key[:8], suffix=".part"
            )
            try:
                with os.fdopen(handle, "wb") as file:  # mkstemp: readable by the owner alone
                    self._write_to(file, features)
                Path(name).replace(self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            _settle(self.folder)

    def _write_to(self, file: io.BufferedWriter, features: Floats) -> None:
        """Write header, numbers and checksum, and wait until the disk has them."""
        header = self._header()
        digest = hashlib.sha256(self.key.encode() + header)
        file.write(header)
        for block in _blocks(features):
            file.write(block)
            digest.update(block)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())

    def _header(self) -> bytes:
        """Header the file must have, byte for byte, so that none is ever parsed."""
        header = io.BytesIO()
        form = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(header, form)
        return header.getvalue()


def _blocks(array: Floats) -> list[memoryview]:
    """Views of the bytes of an array, a megabyte each."""
    data = array.reshape(-1).view(np.uint8).data
    return [data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK)]


def _text_bytes(rows: Array) -> bytes:
    """Bytes from which texts could be told again, given how many there are in a row."""
    texts = [text.encode() for row in rows.tolist() for text in row]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def _settle(folder: Path) -> None:
    """Wait until the disk knows the new name as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
