"""Features of a frozen network in place of images or texts, with a disk cache."""

import hashlib
import io
import json
import os
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
    atomic_file,
    cache_folder,
    cache_secret,
    digests_of_records,
    private_folder,
    translate_os_errors,
)
from veracal.errors import DataError

_BLOCK = 2**20  # bytes hashed, read or written at a time
_TEXTS = 1_024  # texts hashed at a time
_DIGEST = hashlib.sha256().digest_size


def cache_key(dataset: Dataset, fingerprint: Mapping[str, str | int], secret: bytes) -> str:
    """Hash of the features of a data set and of the extractor's fingerprint, as a file name.

    Labels, groups and units are not included. Texts are hashed with their lengths, so that no
    two lists of texts give the same bytes. The hash is keyed by a secret
    (:func:`~veracal.data.files.cache_secret`): a file name confirms no guess of the records.
    """
    settings = json.dumps(dict(fingerprint), sort_keys=True).encode()
    digest = hashlib.blake2b(settings, key=secret, digest_size=32)
    digest.update(f"|{dataset.X.dtype}|{dataset.X.shape}|".encode())
    is_text = dataset.X.dtype.kind == "T"
    rows = _TEXTS if is_text else max(1, _BLOCK * len(dataset) // max(1, dataset.X.nbytes))
    for part in dataset.batches(rows):
        if not is_text:
            digest.update(np.ascontiguousarray(part.X).data)
            continue
        for text in (text.encode() for row in part.X[:].tolist() for text in row):
            digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


@dataclass(frozen=True)
class CachedFeatures:
    """One array of features on disk: a ``.npy`` file followed by a checksum.

    Its name comes from :func:`cache_key`, and ``shape`` is the expected one.

    Guarantees
    ----------
    :meth:`read` returns what :meth:`write` was given under the same key: the length, the header
    and a SHA-256 of key, header and numbers must all agree. The file is written completely or
    not at all, and only its owner can read it. Nothing is unpickled.
    """

    folder: Path
    key: str
    shape: tuple[int, int]

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / f"{self.key}.npy"

    def read(self) -> Floats | None:
        """Read the features; None if they are missing, different or incomplete."""
        header, result = self._header(), np.empty(self.shape, np.float32)
        size = len(header) + result.nbytes + _DIGEST
        if not self.path.exists():
            return None
        with translate_os_errors(self.path), self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size or file.read(len(header)) != header:
                return None
            digest = hashlib.sha256(self.key.encode() + header)
            for block in _byte_blocks(result):
                file.readinto(block)
                digest.update(block)
            return result if file.read() == digest.digest() else None

    def write(self, features: Floats) -> None:
        """Write features of the right shape; an error leaves no file behind."""
        assert features.shape == self.shape
        assert features.dtype == np.float32
        header = self._header()
        digest = hashlib.sha256(self.key.encode() + header)
        with atomic_file(self.path, force=True) as file:
            file.write(header)
            for block in _byte_blocks(features):
                file.write(block)
                digest.update(block)
            file.write(digest.digest())

    def _header(self) -> bytes:
        """The expected header, byte for byte, so that none is ever parsed."""
        header = io.BytesIO()
        form = {"descr": "<f4", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(header, form)
        return header.getvalue()


def _byte_blocks(array: Floats) -> list[memoryview]:
    """Views of the bytes of an array, one megabyte each."""
    data = array.reshape(-1).view(np.uint8).data
    return [data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK)]


class Extractor(Protocol):
    """A frozen feature extractor; its settings are its fields.

    An implementation promises that ``scorer`` treats each row independently, and that
    ``fingerprint`` contains everything that could change a feature except the record.
    """

    @property
    def name(self) -> str:
        """Name of the extractor."""

    @property
    def dimension(self) -> int:
        """Length of a feature."""

    @property
    def block(self) -> int:
        """Number of records per call."""

    @property
    def norm(self) -> float | None:
        """Guaranteed bound on the Euclidean norm of a feature, if any."""

    def check(self, X: Array | MappedRows, where: str) -> None:
        """Raise a :class:`DataError` for records of another type, before reading them."""

    def fingerprint(self) -> dict[str, str | int]:
        """Everything except the record that a feature depends on."""

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
    """Replace images or texts by the feature vectors of a frozen network.

    Parameters
    ----------
    dataset : Dataset
        Image bytes, in memory or mapped, or text.
    extractor : Extractor
        ``EfficientNetLite0()`` or ``MiniLM()``, or a user-defined one.
    cache : path, False or None
        Cache folder; None for :func:`cache_folder`. Features reveal almost as much about
        individuals as the records do: False stores nothing.
    progress : function of (done, total), optional
        Called before the first block of records and after each; once if all were cached.
    limits : Limits
        ``memory_bytes`` bounds the features, which are held in memory; of the records only a
        block is.

    Returns
    -------
    Dataset
        X of shape (n, extractor.dimension) in float32, ``norm`` as the extractor declares it,
        no feature names; everything else unchanged. ``row_digests`` stay those of the records:
        on another machine features differ in their last bits, and a split by the features would
        send the same individuals to other partitions.

    Guarantees
    ----------
    With any extractor of this package, a record's feature is a function of the record, the
    extractor's settings and this machine's arithmetic (:meth:`Extractor.fingerprint`): adding,
    removing, changing or reordering other records does not change it, bit for bit, under the
    conditions of :func:`~veracal.data.score_independently`. Neighboring data sets thus become
    neighboring data sets, and extraction costs no privacy. The cache preserves that: it stores
    a whole data set under the hash of everything that its features depend on, so it returns
    what would be computed. Entries for single records would not be better and would leave one
    file for each individual.
    """
    where, n = f"{dataset.name}: features", len(dataset)
    extractor.check(dataset.X, where)
    limits.check("memory_bytes", 4 * n * extractor.dimension, where)
    report_progress = progress or (lambda done, total: None)
    features = entry = None
    if cache is not False:
        folder, settings = cache_folder(cache), extractor.fingerprint()
        secret = cache_secret(folder)
        key, shape = cache_key(dataset, settings, secret), (n, extractor.dimension)
        entry = CachedFeatures(private_folder(folder / "features"), key, shape)
        features = entry.read()
    if features is not None:
        report_progress(n, n)
    else:
        score, done = extractor.scorer(dataset.X.shape[1:]), 0
        features = np.empty((n, extractor.dimension), np.float32)
        report_progress(0, n)
        for part in dataset.batches(extractor.block):
            features[done : done + len(part)] = score(part.X[:])
            done += len(part)
            report_progress(done, n)
        if entry is not None:
            if cache_key(dataset, settings, secret) != key:
                raise DataError(
                    where,
                    "records that stay as they are",
                    "records that changed during extraction",
                    "Wait until no other process writes to them, and start again.",
                )
            try:
                entry.write(features)
            except DataError as cause:  # the features are valid even if the disk is full
                warnings.warn(f"Features were computed but not cached. {cause}", stacklevel=2)
    identity = dataset.row_digests
    if identity is None and not dataset.encoded:
        identity = digests_of_records(dataset.X, dataset.y)
    return replace(
        dataset,
        X=features,
        feature_names=(),
        norm=extractor.norm,
        row_digests=identity,
        encoded=True,
    )
