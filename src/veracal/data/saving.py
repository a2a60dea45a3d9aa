"""A matrix of records written to a folder, from which it can be mapped again.

Predictions written as they are made, a block at a time.
"""

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
from veracal.data.files import by_suffix, new_file, no_surprises
from veracal.data.labels import Label
from veracal.data.schema import Grouping, Schema
from veracal.errors import DataError

SCHEMA_FILE = "schema.toml"
_LONGEST_NAME = 255  # bytes, on the file systems in use


def save_matrix(dataset: Dataset, folder: str | Path, *, bounds: tuple[float, float]) -> Path:
    """Write a data set as ``X.npy``, ``y.npy`` and what belongs to it, with its schema.

    ``load(folder, schema=folder / "schema.toml")`` maps it again.

    Parameters
    ----------
    dataset : Dataset
        With features of shape (n, d).
    folder : path
        A new folder. It appears whole or not at all, and only its owner can enter it:
        features say almost as much about people as the records do.
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
    with no_surprises(folder.parent):
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            _write(dataset, work, bounds)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return folder


def new_folder(folder: str | Path) -> Path:
    """Return the path of a folder that is still to be made, or raise."""
    return new_file(Path(folder), "folder")


def check_group_names(dataset: Dataset) -> None:
    """Refuse groups whose names cannot be part of a file's."""
    for name in dataset.groups:
        long = len(os.fsencode(_group_file(name))) > _LONGEST_NAME
        if Path(name).name != name or "\0" in name or long:
            raise DataError(
                dataset.name,
                "groups whose names can be files'",
                repr(name[:80]),
                "Rename the group.",
            )


def matrix_schema(dataset: Dataset, bounds: tuple[float, float]) -> Schema:
    """Schema of a saved matrix: what was declared of the data set, and no more."""
    columns: dict[str, Column] = {
        "X": Vector(dataset.X.shape[1], *bounds, center=0, spread=1),
        "y": Target(dataset.classes),
    }
    if dataset.units is not None:
        columns["units"] = UnitColumn(dataset.at_most)
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
    """Write the files of a data set, its rows a block at a time."""
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
    """File with the groups of each row."""
    return f"group_{name}.npy"


def plain_ids(ids: Array) -> Array:
    """Ids in a type that npy files hold without pickling."""
    return np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind == "T" else ids


ABSTAINED = "abstained"
# Names of columns beside classes and probabilities, and whether each holds yes or no.
Columns = Mapping[str, bool]
_NO_COLUMNS: Columns = Frozen()
_NO_ARRAYS: Mapping[str, Array] = Frozen()
_NO_NUMBER = np.iinfo(np.int64).min  # what a class that is a number is where there is none


class PredictionWriter(Protocol):
    """Whatever writes predictions: opened on a file, fed in blocks, closed by leaving it."""

    def __enter__(self) -> Self:
        """Begin the file."""

    def __exit__(self, *raised: object) -> None:
        """End the file."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Add records.

        Parameters
        ----------
        rows : array of shape (n,)
            Their numbers in the table, from 0.
        predictions : array of shape (n,)
        probabilities : array of shape (n, classes)
        more : mapping of str to array of shape (n,)
            The further columns that were announced. Where one that is called ``abstained``
            says so, the prediction is left out.
        """


Writer = Callable[[BinaryIO, Sequence[Label], Columns], PredictionWriter]


def prediction_writer(path: Path) -> Writer:
    """What writes files of a suffix, or an error that names those there are."""
    return by_suffix(path, _WRITERS)


def block(
    rows: Ints,
    predictions: Array,
    probabilities: Floats,
    classes: Sequence[Label],
    more: Mapping[str, Array] = _NO_ARRAYS,
) -> pl.DataFrame:
    """One line for each record: its number from 1, its class, a probability of each class.

    Further columns follow. Where the classifier abstained, the class is null.
    """
    columns = {
        "row": pl.Series(rows + 1),
        "prediction": pl.Series(_with_gaps(predictions, more), dtype=_text_or_whole(classes)),
    }
    shares = {
        f"probability_{c}": p.copy() for c, p in zip(classes, probabilities.T, strict=True)
    }
    return pl.DataFrame({**columns, **shares, **more})


def _with_gaps(predictions: Array, more: Mapping[str, Array]) -> list[Label | None]:
    """Classes, and None where there is none."""
    labels: list[Label | None] = predictions.tolist()
    for at in np.flatnonzero(more.get(ABSTAINED, ())):
        labels[at] = None
    return labels


def _text_or_whole(classes: Sequence[Label]) -> type[pl.String] | type[pl.Int64]:
    """Type of a column of classes."""
    return pl.Int64 if isinstance(classes[0], int) else pl.String


def _nothing(columns: Columns) -> dict[str, Array]:
    """Columns of no records."""
    return {name: np.zeros(0, dtype=bool if told else float) for name, told in columns.items()}


class CsvPredictions:
    """A table of text; numbers are written so that they come back as they are.

    Where the classifier abstained there is nothing between two commas.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: Columns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._columns = file, tuple(classes), columns

    def __enter__(self) -> Self:
        none, shares = np.zeros(0, dtype=np.int64), np.zeros((0, len(self._classes)))
        empty = block(none, none, shares, self._classes, _nothing(self._columns))
        self._file.write(empty.write_csv().encode())
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to write."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Add lines."""
        table = block(rows, predictions, probabilities, self._classes, more)
        words = pl.when(pl.col(pl.Boolean)).then(pl.lit("yes")).otherwise(pl.lit("no"))
        table = table.with_columns(words.name.keep())
        self._file.write(table.write_csv(include_header=False).encode())


class ParquetPredictions:
    """A Parquet file with a row group for each block; abstention is null."""

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: Columns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._columns = file, tuple(classes), columns

    def __enter__(self) -> Self:
        label = pa.int64() if isinstance(self._classes[0], int) else pa.large_string()
        shares = [(f"probability_{c}", pa.float64()) for c in self._classes]
        more = [(n, pa.bool_() if told else pa.float64()) for n, told in self._columns.items()]
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
        """Add a row group."""
        table = block(rows, predictions, probabilities, self._classes, more)
        self._writer.write_table(table.to_arrow().cast(self._writer.schema))


class NpzPredictions:
    """Arrays ``row``, ``prediction``, ``probabilities`` and ``classes``, and further columns.

    An array begins with its length, which is known at the end: numbers wait in nameless files
    on the disk, not in memory. Arrays know no null: where ``abstained`` is true the prediction
    is empty text, or the least of all 64-bit integers.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: Columns = _NO_COLUMNS
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
        self._waiting: dict[str, IO[bytes]] = {
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
        """Add to each array."""
        self._n += len(rows)
        kept = {"row": rows + 1, "prediction": predictions, "probabilities": probabilities}
        if ABSTAINED in more:
            nothing: Label = _NO_NUMBER if self._classes.dtype.kind == "i" else ""
            kept["prediction"] = np.where(more[ABSTAINED], nothing, predictions)
        for name, values in (kept | dict(more)).items():
            whole = np.ascontiguousarray(values, dtype=self._kinds[name][0])
            self._waiting[name].write(whole.tobytes())

    def __exit__(self, *raised: object) -> None:
        with self._open:
            if raised[0] is not None:
                return
            with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (kind, width) in self._kinds.items():
                    self._member(archive, name, kind, (self._n, *width))
                with archive.open("classes.npy", "w") as member:
                    np.lib.format.write_array(member, self._classes, allow_pickle=False)

    def _member(
        self, archive: zipfile.ZipFile, name: str, kind: np.dtype, shape: tuple[int, ...]
    ) -> None:
        """Write the head of an array, then its numbers."""
        described = np.lib.format.dtype_to_descr(kind)
        head = {"descr": described, "fortran_order": False, "shape": shape}
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_2_0(member, head)
            waiting = self._waiting[name]
            waiting.seek(0)
            shutil.copyfileobj(waiting, member)


class JsonPredictions:
    """The items of a JSON list, one object for each record; brackets are the caller's.

    Where the classifier abstained the prediction is null.
    """

    def __init__(
        self, file: BinaryIO, classes: Sequence[Label], columns: Columns = _NO_COLUMNS
    ) -> None:
        self._file, self._classes, self._first = file, tuple(classes), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to write."""

    def write(
        self,
        rows: Ints,
        predictions: Array,
        probabilities: Floats,
        more: Mapping[str, Array] = _NO_ARRAYS,
    ) -> None:
        """Add objects."""
        names = [str(label) for label in self._classes]
        labels = _with_gaps(predictions, more)
        columns = [values.tolist() for values in more.values()]
        every = zip(rows.tolist(), labels, probabilities.tolist(), *columns, strict=True)
        for row, label, shares, *others in every:
            found = dict(zip(names, shares, strict=True))
            told = {"row": row + 1, "prediction": label, "probabilities": found}
            told |= dict(zip(more, others, strict=True))
            between = "\n  " if self._first else ",\n  "
            self._file.write((between + json.dumps(told, allow_nan=False)).encode())
            self._first = False


_WRITERS: Mapping[str, Writer] = {
    ".csv": CsvPredictions,
    ".parquet": ParquetPredictions,
    ".npz": NpzPredictions,
}
