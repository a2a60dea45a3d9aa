"""Which model a federation is about, as one hash that both sides compute."""

import hashlib
from pathlib import Path

from veracal.artifact import WEIGHTS, PrivateClassifier
from veracal.data import no_surprises, readable
from veracal.ledger import canonical, digest

_BLOCK = 2**20  # bytes that are read at a time


def model_hash(path: str | Path) -> str:
    """Hash of a model: of an artifact's folder, or of any other file.

    Parameters
    ----------
    path : path
        A folder that ``veracal fit`` wrote, or a file, such as a network's weights.

    Returns
    -------
    str
        SHA-256 in hexadecimal. Of a file, that of its bytes. Of an artifact, that of all that
        its scores depend on before any map: so it stays as it is when a map is written into
        the artifact.

    Raises
    ------
    DataError
        If there is nothing, or an artifact that is not as it was written.
    """
    place = Path(path)
    return artifact_hash(PrivateClassifier.load(place)) if place.is_dir() else file_hash(place)


def artifact_hash(classifier: PrivateClassifier) -> str:
    """Hash of all that the scores of an artifact depend on before any map."""
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
    found = hashlib.sha256()
    with no_surprises(path), readable(path).open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
