"""Features on disk, for the next time the same records are asked for.

Records as vectors: what a frozen network makes of each picture or text.
"""

import hashlib
import io
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from veracal._types import Array, Floats, Progress
from veracal.data import (
    DEFAULT_LIMITS,
    Dataset,
    Limits,
    MappedRows,
    Score,
    cache_folder,
    cache_secret,
    digests_of_records,
    no_surprises,
    private_folder,
)
from veracal.errors import DataError

_BLOCK = 2**20  # bytes hashed, read or written at a time
_TEXTS = 1_024  # texts hashed at a time
_DIGEST = hashlib.sha256().digest_size


def cache_key(dataset: Dataset, made_by: Mapping[str, str | int], secret: bytes) -> str:
    """Hash the features of a data set, and of what makes new ones, into a file name.

    Labels, groups and units stay out of it. Texts are hashed with their lengths, so that
    no two lists of texts run together into the same bytes. The hash is keyed by a secret
    (:func:`~veracal.data.files.cache_secret`): a name confirms no guess of the records.
    """
    settings = json.dumps(dict(made_by), sort_keys=True).encode()
    digest = hashlib.blake2b(settings, key=secret, digest_size=32)
    digest.update(f"|{dataset.X.dtype}|{dataset.X.shape}|".encode())
    is_text = dataset.X.dtype.kind == "T"
    rows = _TEXTS if is_text else max(1, _BLOCK * len(dataset) // max(1, dataset.X.nbytes))
    for part in dataset.batches(rows):
        digest.update(
            _serialize_texts(part.X[:]) if is_text else np.ascontiguousarray(part.X).data
        )
    return digest.hexdigest()


@dataclass(frozen=True)
class CachedFeatures:
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
            for block in _byte_blocks(result):
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
            _sync_folder(self.folder)

    def _write_to(self, file: io.BufferedWriter, features: Floats) -> None:
        """Write header, numbers and checksum, and wait until the disk has them."""
        header = self._header()
        digest = hashlib.sha256(self.key.encode() + header)
        file.write(header)
        for block in _byte_blocks(features):
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


def _byte_blocks(array: Floats) -> list[memoryview]:
    """Views of the bytes of an array, a megabyte each."""
    data = array.reshape(-1).view(np.uint8).data
    return [data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK)]


def _serialize_texts(rows: Array) -> bytes:
    """Bytes from which texts could be told again, given how many there are in a row."""
    texts = [text.encode() for row in rows.tolist() for text in row]
    return b"".join(len(text).to_bytes(8, "little") + text for text in texts)


def _sync_folder(folder: Path) -> None:
    """Wait until the disk knows the new name as well."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Extractor(Protocol):
    """A frozen record of how features are made; its settings are its fields.

    Whoever writes one promises that ``scorer`` treats each row by itself, and that
    ``fingerprint`` leaves out nothing that could change a feature but the record.
    """

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def dimension(self) -> int:
        """Numbers in one feature."""

    @property
    def block(self) -> int:
        """Records handed over at a time."""

    @property
    def norm(self) -> float | None:
        """Bound on the Euclidean norm of a feature that its settings promise, if any."""

    def check(self, X: Array | MappedRows, where: str) -> None:
        """Raise a :class:`DataError` for records of another kind, before reading them."""

    def fingerprint(self) -> dict[str, str | int]:
        """Everything but the record that a feature depends on."""

    def scorer(self, record: tuple[int, ...]) -> Score:
        """Load the network, for records of one shape."""


def extract(
    dataset: Dataset,
    extractor: Extractor,
    *,
    cache: Path | str | Literal[False] | None = None,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Dataset:
    """Replace pictures or texts by the vectors a frozen network makes of them.

    Parameters
    ----------
    dataset : Dataset
        Pictures as bytes, in memory or mapped, or text.
    extractor : Extractor
        ``EfficientNetLite0()`` or ``MiniLM()``, or one of your own.
    cache : path, False or None
        Folder to keep the features in; None for :func:`cache_folder`. They say almost as
        much about people as the records do: False keeps nothing.
    progress : function of (done, total), optional
        Called before the first block of records and after each; once if all were kept.
    limits : Limits
        ``memory_bytes`` bounds the features, which are held in memory; of the records
        only a block is.

    Returns
    -------
    Dataset
        X of shape (n, extractor.dimension) in float32, ``norm`` as the extractor declares
        it, no feature names; everything else as it was. ``row_digests`` stay those of the
        records: on another machine features differ in their last bits, and a split by the
        features would send the same individuals to other partitions.

    Guarantees
    ----------
    With either extractor of this module, a record's feature is a function of the record,
    the extractor's settings and this machine's arithmetic (:meth:`Extractor.fingerprint`):
    adding, removing, changing or reordering other records leaves it as it was, bit for
    bit, on the terms of :func:`~veracal.data.rows.each_by_itself`. Neighboring data
    sets thus become neighboring data sets, and extraction costs no privacy. The cache
    keeps that: it holds a whole data set under the hash of all that its features depend
    on, so what it returns is what would be computed. Entries for single records would not
    do better and would leave one file for each person.
    """
    where, n = f"{dataset.name}: features", len(dataset)
    extractor.check(dataset.X, where)
    limits.check("memory_bytes", 4 * n * extractor.dimension, where)
    tell = progress or _no_progress
    if cache is False:
        X = _compute_features(dataset, extractor, tell)
    else:
        X = _load_or_compute(dataset, extractor, cache_folder(cache), tell)
    identity = dataset.row_digests
    if identity is None and not dataset.encoded:
        identity = digests_of_records(dataset.X, dataset.y)
    return replace(
        dataset,
        X=X,
        feature_names=(),
        norm=extractor.norm,
        row_digests=identity,
        encoded=True,
    )


def _compute_features(dataset: Dataset, extractor: Extractor, tell: Progress) -> Floats:
    """Features of all records, a block at a time."""
    score, n, done = extractor.scorer(dataset.X.shape[1:]), len(dataset), 0
    features = np.empty((n, extractor.dimension), np.float32)
    tell(0, n)
    for part in dataset.batches(extractor.block):
        features[done : done + len(part)] = score(part.X[:])
        done += len(part)
        tell(done, n)
    return features


def _load_or_compute(
    dataset: Dataset, extractor: Extractor, folder: Path, tell: Progress
) -> Floats:
    """Features from the folder, or made now and kept there."""
    made_by, secret = extractor.fingerprint(), cache_secret(folder)
    key, n = cache_key(dataset, made_by, secret), len(dataset)
    entry = CachedFeatures(private_folder(folder / "features"), key, (n, extractor.dimension))
    kept = entry.read()
    if kept is not None:
        tell(n, n)
        return kept
    features = _compute_features(dataset, extractor, tell)
    if cache_key(dataset, made_by, secret) != key:
        raise DataError(
            f"{dataset.name}: features",
            "records that stay as they are",
            "others at the end than at the start",
            "Something else writes to them; wait for it and start again.",
        )
    try:
        entry.write(features)
    except DataError as cause:  # a full disk is no reason to throw the work away
        warnings.warn(f"Features were made but not kept. {cause}", stacklevel=3)
    return features


def _no_progress(done: int, total: int | None) -> None:
    """Progress for those who did not ask."""
