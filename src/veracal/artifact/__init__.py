"""A saved classifier: weights, schema, calibration map and statement, without code."""

from typing import TYPE_CHECKING

from veracal._lazy import attach

if TYPE_CHECKING:
    from veracal.artifact.classifier import FrozenEncoder, PrivateClassifier
    from veracal.artifact.records import (
        LedgerHead,
        RecalibrationRecord,
        SourceCost,
        decode,
        encode,
    )
    from veracal.artifact.storage import (
        MANIFEST,
        check_output_folder,
        invalid,
        read_file,
        read_manifest,
        read_verified,
        sync_folder,
        write_folder,
    )
    from veracal.artifact.weights import WEIGHTS

__all__ = [
    "MANIFEST",
    "WEIGHTS",
    "FrozenEncoder",
    "LedgerHead",
    "PrivateClassifier",
    "RecalibrationRecord",
    "SourceCost",
    "check_output_folder",
    "decode",
    "encode",
    "invalid",
    "read_file",
    "read_manifest",
    "read_verified",
    "sync_folder",
    "write_folder",
]

__getattr__, __dir__ = attach(__name__)
