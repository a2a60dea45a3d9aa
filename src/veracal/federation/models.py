"""The hash that identifies a model for sources and coordinators."""

import hashlib
from pathlib import Path

from veracal.artifact import WEIGHTS, PrivateClassifier
from veracal.data import check_readable, translate_os_errors
from veracal.ledger import canonical, digest

_BLOCK = 2**20  # bytes per read


def model_hash(path: str | Path) -> str:
    """Hash of a model: an artifact or any other file.

    Parameters
    ----------
    path : path
        A folder that ``veracal fit`` wrote, or a file such as the weights of a network.

    Returns
    -------
    str
        SHA-256 in hexadecimal: of the bytes of a file, or of everything that the scores of an
        artifact depend on before calibration. So it does not change when a calibration map is
        written to the artifact.

    Raises
    ------
    DataError
        If the path does not exist, or the artifact was changed.
    """
    path = Path(path)
    return artifact_hash(PrivateClassifier.load(path)) if path.is_dir() else file_hash(path)


def artifact_hash(classifier: PrivateClassifier) -> str:
    """Hash of everything that the scores of an artifact depend on before calibration."""
    manifest = classifier.manifest
    return digest(
        canonical(
            {
                "classes": list(manifest.classes),
                "features": manifest.features,
                "model": dict(manifest.model),
                "schema": manifest.schema,
                WEIGHTS: digest(classifier.weights.to_bytes()),
            }
        )
    )


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    sha256 = hashlib.sha256()
    with translate_os_errors(path), check_readable(path).open("rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
    return sha256.hexdigest()
