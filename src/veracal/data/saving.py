"""Data sets saved as folders of npy files, and predictions written in blocks."""

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO, Protocol, Self

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet

from veracal._types import Array, Floats, Frozen, Ints
from veracal.data.columns import Category, Column, Slot, Target, UnitColumn, Vector
from veracal.data.dataset import Dataset
from veracal.data.files import by_suffix, new_file, translate_os_errors
from veracal.data.labels import Label
from veracal.data.schema import Grouping, Schema
from veracal.errors import DataError

SCHEMA_FILE = "schema.toml"
_LONGEST_NAME = 255  # bytes, on the file systems in use


def save_matrix(dataset: Dataset, folder: str | Path, *, bounds: tuple[float, float]) -> Path:
    """Save a data set as ``X.npy``, ``y.npy``, its ids and groups, and its schema.

    ``load(folder, schema=folder / "schema.toml")`` maps it from disk.

    Parameters
    ----------
    dataset : Dataset
        With features of shape (n, d).
    folder : path
        A new folder. It is created atomically, and only its owner can enter it: features
        reveal almost as much about individuals as the records.
    bounds : two floats
        Public bounds on every number of X.
    """
    folder = new_folder(folder)
    if dataset.X.ndim != 2 or dataset.X.dtype.kind != "f":
        raise DataError(
            dataset.name,
            "features of shape (n, d)",
            f"{dataset.X.dtype} of shape {dataset.X.shape}",
            "Extract features first.",
        )
    check_group_names(dataset)
    with translate_os_errors(folder.parent):
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            _write(dataset, work, bounds)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return folder


def new_folder(folder: str | Path) -> Path:
    """Return the path of a folder to be created, or raise."""
    return new_file(Path(folder), "folder")


def check_group_names(dataset: Dataset) -> None:
    """Reject groups whose names cannot be part of a file name."""
    for name in dataset.groups:
        long = len(os.fsencode(_group_file(name))) > _LONGEST_NAME
        if Path(name).name != name or "\0" in name or long:
            raise DataError(
                dataset.name,
                "groups whose names can be file names",
                repr(name[:80]),
                "Rename the group.",
            )


def matrix_schema(dataset: Dataset, bounds: tuple[float, float]) -> Schema:
    """Schema of a saved matrix, from the declared facts of the data set only."""
    columns: dict[str, Column] = {
        "X": Vector(dataset.X.shape[1], *bounds, center=0, spread=1),
        "y": Target(dataset.classes),
    }
    if dataset.units is not None:
        columns["units"] = UnitColumn(dataset.max_contributions)
    if dataset.slots is not None:
        columns["slots"] = Slot()
    for name, group in dataset.groups.items():
        columns[f"group_{name}"] = Category(group.names, feature=False)
    return Schema(
        columns,
        groups={name: Grouping(f"group_{name}") for name in dataset.groups},
        norm=dataset.norm,
        size=dataset.size,
        name=dataset.name,
    )


def _write(dataset: Dataset, folder: Path, bounds: tuple[float, float]) -> None:
    """Write the files of a data set, its rows in blocks."""
    X = np.lib.format.open_memmap(
        folder / "X.npy", "w+", dtype=dataset.X.dtype, shape=dataset.X.shape
    )
    done = 0
    for batch in dataset.batches():
        X[done : done + len(batch)] = batch.X[:]
        done += len(batch)
    X.flush()
    np.save(folder / "y.npy", dataset.labels)
    if dataset.units is not None:
        np.save(folder / "units.npy", plain_ids(dataset.units))
    if dataset.slots is not None:
        np.save(folder / "slots.npy", plain_ids(dataset.slots))
    for name, group in dataset.groups.items():
        np.save(folder / _group_file(name), np.asarray(group.names)[group.codes])
    (folder / SCHEMA_FILE).write_text(
        matrix_schema(dataset, bounds).to_toml(), encoding="utf-8"
    )
    for file in folder.iterdir():
        file.chmod(0o600)


def _group_file(name: str) -> str:
    """Name of the file with the group of each row."""
    return f"group_{name}.npy"


def plain_ids(ids: Array) -> Array:
    """Convert ids to a type that npy files hold without pickling."""
    return np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind == "T" else ids


ABSTAINED = "abstained"
# Names of columns beside classes and probabilities, and whether each is boolean.
ExtraColumns = Mapping[str, bool]
_NO_COLUMNS: ExtraColumns = Frozen()
_NO_ARRAYS: Mapping[str, Array] = Frozen()
_NO_NUMBER = np.iinfo(np.int64).min  # integer class of an abstention in npz files


class PredictionWriter(Protocol):
    """A context manager that writes predictions to a file in blocks."""

    def __enter__(self) -> Self:
        """Write the start of the file."""

    def __exit__(self, *raised: object) -> None:
        """Write the end of the file."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Append records.

        Parameters
        ----------
        rows : array of shape (n,)
            Row numbers in the table, from 0.
        predictions : array of shape (n,)
        probabilities : array of shape (n, classes)
        more : mapping of str to array of shape (n,)
            The further columns that were declared. Where the column ``abstained`` is true,
            the prediction is left out.
        """


PredictionWriterFactory = Callable[[BinaryIO, Sequence[Label], ExtraColumns], PredictionWriter]


def prediction_writer(path: Path) -> PredictionWriterFactory:
    """Return the writer for the suffix of a path, or raise."""
    return by_suffix(path, _WRITERS)


def block(
    rows: Ints,
    predictions: Array,
    probabilities: Floats,
    classes: Sequence[Label],
    more: Mapping[str, Array] = _NO_ARRAYS,
) -> pl.DataFrame:
    """Table with the number of each record from 1, its class and class probabilities.

    Further columns follow. The class of an abstention is null.
    """
    columns = {
        "row": pl.Series(rows + 1),
        "prediction": pl.Series(
            _labels_or_none(predictions, more),
            dtype=pl.Int64 if isinstance(classes[0], int) else pl.String,
        ),
    }
    shares = {
        f"probability_{c}": p.copy() for c, p in zip(classes, probabilities.T, strict=True)
    }
    return pl.DataFrame({**columns, **shares, **more})


def _labels_or_none(predictions: Array, more: Mapping[str, Array]) -> list[Label | None]:
    """Predicted classes, None for abstentions."""
    labels: list[Label | None] = predictions.tolist()
    for index in np.flatnonzero(more.get(ABSTAINED, ())):
        labels[index] = None
    return labels


class CsvPredictions:
    """Predictions as CSV, with numbers that are read back exactly.

    The prediction of an abstention is empty.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: ExtraColumns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._columns = file, tuple(classes), columns

    def __enter__(self) -> Self:
        none, shares = np.zeros(0, dtype=np.int64), np.zeros((0, len(self._classes)))
        kinds = {name: bool if is_bool else float for name, is_bool in self._columns.items()}
        more = {name: np.zeros(0, dtype=kind) for name, kind in kinds.items()}
        empty = block(none, none, shares, self._classes, more)
        self._file.write(empty.write_csv().encode())
        return self

    def __exit__(self, *raised: object) -> None:
        """Do nothing: the file is complete."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Append lines."""
        table = block(rows, predictions, probabilities, self._classes, more)
        yes_or_no = pl.when(pl.col(pl.Boolean)).then(pl.lit("yes")).otherwise(pl.lit("no"))
        table = table.with_columns(yes_or_no.name.keep())
        self._file.write(table.write_csv(include_header=False).encode())


class ParquetPredictions:
    """Predictions as Parquet with a row group for each block; abstentions are null."""

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: ExtraColumns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._columns = file, tuple(classes), columns

    def __enter__(self) -> Self:
        label = pa.int64() if isinstance(self._classes[0], int) else pa.large_string()
        shares = [(f"probability_{c}", pa.float64()) for c in self._classes]
        kinds = {True: pa.bool_(), False: pa.float64()}
        more = [(name, kinds[is_bool]) for name, is_bool in self._columns.items()]
        fields = pa.schema([("row", pa.int64()), ("prediction", label), *shares, *more])
        self._writer = pa.parquet.ParquetWriter(self._file, fields)
        return self

    def __exit__(self, *raised: object) -> None:
        self._writer.close()

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Append a row group."""
        table = block(rows, predictions, probabilities, self._classes, more)
        self._writer.write_table(table.to_arrow().cast(self._writer.schema))


class NpzPredictions:
    """Arrays ``row``, ``prediction``, ``probabilities`` and ``classes``, and further columns.

    The header of an array holds its length, which is known only at the end. Until then,
    numbers are kept in unnamed temporary files and not in memory. Arrays have no null: the
    prediction of an abstention is empty text, or the smallest 64-bit integer.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: ExtraColumns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._n = file, np.array(classes), 0
        self._kinds = {
            "row": (np.dtype(np.int64), ()),
            "prediction": (self._classes.dtype, ()),
            "probabilities": (np.dtype(np.float64), (len(classes),)),
            **{name: (np.dtype(bool if t else float), ()) for name, t in columns.items()},
        }

    def __enter__(self) -> Self:
        self._open = ExitStack()
        self._buffers: dict[str, IO[bytes]] = {
            name: self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            for name in self._kinds
        }
        return self

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Append to each array."""
        self._n += len(rows)
        columns = {"row": rows + 1, "prediction": predictions, "probabilities": probabilities}
        if ABSTAINED in more:
            null: Label = _NO_NUMBER if self._classes.dtype.kind == "i" else ""
            columns["prediction"] = np.where(more[ABSTAINED], null, predictions)
        for name, values in (columns | dict(more)).items():
            block = np.ascontiguousarray(values, dtype=self._kinds[name][0])
            self._buffers[name].write(block.tobytes())

    def __exit__(self, *raised: object) -> None:
        with self._open:
            if raised[0] is not None:
                return
            with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (kind, width) in self._kinds.items():
                    self._write_array(archive, name, kind, (self._n, *width))
                with archive.open("classes.npy", "w") as member:
                    np.lib.format.write_array(member, self._classes, allow_pickle=False)

    def _write_array(
        self, archive: zipfile.ZipFile, name: str, kind: np.dtype, shape: tuple[int, ...]
    ) -> None:
        """Write the header of an array, then its numbers."""
        descr = np.lib.format.dtype_to_descr(kind)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, header)
            self._buffers[name].seek(0)
            shutil.copyfileobj(self._buffers[name], member)


class JsonPredictions:
    """Items of a JSON list, one object for each record; the caller writes the brackets.

    The prediction of an abstention is null.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: ExtraColumns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._first = file, tuple(classes), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Do nothing: the file is complete."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Append objects."""
        names = [str(label) for label in self._classes]
        labels = _labels_or_none(predictions, more)
        columns = [values.tolist() for values in more.values()]
        records = zip(rows.tolist(), labels, probabilities.tolist(), *columns, strict=True)
        for row, label, shares, *others in records:
            by_class = dict(zip(names, shares, strict=True))
            item = {"row": row + 1, "prediction": label, "probabilities": by_class}
            item |= dict(zip(more, others, strict=True))
            separator = "\n  " if self._first else ",\n  "
            self._file.write((separator + json.dumps(item, allow_nan=False)).encode())
            self._first = False


_WRITERS: Mapping[str, PredictionWriterFactory] = {
    ".csv": CsvPredictions,
    ".parquet": ParquetPredictions,
    ".npz": NpzPredictions,
}
