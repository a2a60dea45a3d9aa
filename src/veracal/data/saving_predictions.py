"""Predictions written as they are made, a block at a time."""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Protocol, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet

from veracal._types import Array, Floats, Ints
from veracal.data.files import by_suffix
from veracal.data.labels import Label


class PredictionWriter(Protocol):
    """Whatever writes predictions: opened on a file, fed in blocks, closed by leaving it."""

    def __enter__(self) -> Self:
        """Begin the file."""

    def __exit__(self, *raised: object) -> None:
        """End the file."""

    def write(self, rows: Ints, predictions: Array, probabilities: Floats) -> None:
        """Add records: their numbers in the table, classes, and a column for each class."""


def prediction_writer(path: Path) -> "Callable[[BinaryIO, Sequence[Label]], PredictionWriter]":
    """What writes files of a suffix, or an error that names those there are."""
    return by_suffix(path, _WRITERS)


def block(
    rows: Ints, predictions: Array, probabilities: Floats, classes: Sequence[Label]
) -> pl.DataFrame:
    """One line for each record: its number from 1, its class, a probability of each class."""
    columns = {
        "row": pl.Series(rows + 1),
        "prediction": pl.Series(predictions.tolist(), dtype=_text_or_whole(classes)),
    }
    shares = {
        f"probability_{c}": p.copy() for c, p in zip(classes, probabilities.T, strict=True)
    }
    return pl.DataFrame({**columns, **shares})


def _text_or_whole(classes: Sequence[Label]) -> type[pl.String] | type[pl.Int64]:
    """Type of a column of classes."""
    return pl.Int64 if isinstance(classes[0], int) else pl.String


class CsvPredictions:
    """A table of text; numbers are written so that they come back as they are."""

    def __init__(self, file: BinaryIO, classes: Sequence[Label]) -> None:
        self._file, self._classes = file, tuple(classes)

    def __enter__(self) -> Self:
        none = np.zeros(0, dtype=np.int64)
        empty = block(none, none, np.zeros((0, len(self._classes))), self._classes)
        self._file.write(empty.write_csv().encode())
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to write."""

    def write(self, rows: Ints, predictions: Array, probabilities: Floats) -> None:
        """Add lines."""
        table = block(rows, predictions, probabilities, self._classes)
        self._file.write(table.write_csv(include_header=False).encode())


class ParquetPredictions:
    """A Parquet file with a row group for each block."""

    def __init__(self, file: BinaryIO, classes: Sequence[Label]) -> None:
        self._file, self._classes = file, tuple(classes)

    def __enter__(self) -> Self:
        label = pa.int64() if isinstance(self._classes[0], int) else pa.large_string()
        shares = [(f"probability_{c}", pa.float64()) for c in self._classes]
        fields = pa.schema([("row", pa.int64()), ("prediction", label), *shares])
        self._writer = pa.parquet.ParquetWriter(self._file, fields)
        return self

    def __exit__(self, *raised: object) -> None:
        self._writer.close()

    def write(self, rows: Ints, predictions: Array, probabilities: Floats) -> None:
        """Add a row group."""
        table = block(rows, predictions, probabilities, self._classes).to_arrow()
        self._writer.write_table(table.cast(self._writer.schema))


class NpzPredictions:
    """Arrays ``row``, ``prediction``, ``probabilities`` and ``classes``.

    An array begins with its length, which is known at the end: numbers wait in nameless files
    on the disk, not in memory.
    """

    def __init__(self, file: BinaryIO, classes: Sequence[Label]) -> None:
        self._file, self._classes, self._n = file, np.array(classes), 0

    def __enter__(self) -> Self:
        self._open = ExitStack()
        names = ("row", "prediction", "probabilities")
        self._waiting = {
            name: self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            for name in names
        }
        return self

    def write(self, rows: Ints, predictions: Array, probabilities: Floats) -> None:
        """Add to each array."""
        self._n += len(rows)
        kept = {
            "row": (rows + 1).astype(np.int64),
            "prediction": predictions.astype(self._classes.dtype),
            "probabilities": np.ascontiguousarray(probabilities, dtype=np.float64),
        }
        for name, values in kept.items():
            self._waiting[name].write(values.tobytes())

    def __exit__(self, *raised: object) -> None:
        with self._open:
            if raised[0] is not None:
                return
            kinds = {
                "row": (np.dtype(np.int64), (self._n,)),
                "prediction": (self._classes.dtype, (self._n,)),
                "probabilities": (np.dtype(np.float64), (self._n, len(self._classes))),
            }
            with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (kind, shape) in kinds.items():
                    self._member(archive, name, kind, shape)
                with archive.open("classes.npy", "w") as member:
                    np.lib.format.write_array(member, self._classes, allow_pickle=False)

    def _member(
        self, archive: zipfile.ZipFile, name: str, kind: np.dtype, shape: tuple[int, ...]
    ) -> None:
        """Write the head of an array, then its numbers."""
        described = np.lib.format.dtype_to_descr(kind)
        head = {"descr": described, "fortran_order": False, "shape": shape}
        waiting = self._waiting[name]
        waiting.seek(0)
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, head)
            shutil.copyfileobj(waiting, member)


class JsonPredictions:
    """The items of a JSON list, one object for each record; brackets are the caller's."""

    def __init__(self, file: BinaryIO, classes: Sequence[Label]) -> None:
        self._file, self._classes, self._first = file, tuple(classes), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to write."""

    def write(self, rows: Ints, predictions: Array, probabilities: Floats) -> None:
        """Add objects."""
        names = [str(label) for label in self._classes]
        every = zip(rows.tolist(), predictions.tolist(), probabilities.tolist(), strict=True)
        for row, label, shares in every:
            found = dict(zip(names, shares, strict=True))
            told = {"row": row + 1, "prediction": label, "probabilities": found}
            between = "\n  " if self._first else ",\n  "
            self._file.write((between + json.dumps(told, allow_nan=False)).encode())
            self._first = False


_WRITERS: Mapping[str, Callable[[BinaryIO, Sequence[Label]], PredictionWriter]] = {
    ".csv": CsvPredictions,
    ".parquet": ParquetPredictions,
    ".npz": NpzPredictions,
}
