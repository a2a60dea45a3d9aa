"""Numbers of rows in the table that records came from."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from veracal._types import Array, Ints
from veracal.data import Dataset, Group, Schema, scan_rows
from veracal.pipeline.steps import Loaded

Content = tuple[int, bytes]  # number of a row, and all there is to tell it by


def row_numbers(part: Dataset, records: Loaded, source: str) -> Ints:
    """Where in the table each record of a part stands, counted from 1.

    Loading may have left out rows, and dealing keeps the others in their order: so a part is
    found again in the whole, and the whole in the table. Rows that are alike in everything
    the model sees may be taken for each other.

    Parameters
    ----------
    part : Dataset
        A part of ``records``, in its order.
    records : Loaded
    source : str
        The file, or the name of a built-in set, whose own rows count.
    """
    whole, path = records.whole, Path(source)
    within = found_in_order(contents(part), contents(whole))
    if not (whole.may_drop and path.is_file() and isinstance(records.schema, Schema)):
        return within + 1
    unlabeled = contents(whole, labeled=False)
    return found_in_order(unlabeled, _table(path, records.schema))[within] + 1


def found_in_order(some: Iterable[Content], among: Iterable[Content]) -> Ints:
    """Places of rows in a sequence that holds all of them in the same order.

    Examples
    --------
    >>> rows = list(enumerate([b"a", b"b", b"a", b"c"]))
    >>> found_in_order([(0, b"a"), (1, b"c")], rows)
    array([0, 3])
    """
    places, rest = [], iter(among)
    for _, wanted in some:
        place = next((number for number, content in rest if content == wanted), None)
        assert place is not None
        places.append(place)
    return np.array(places, dtype=np.int64)


def contents(records: Dataset, *, labeled: bool = True) -> Iterator[Content]:
    """Each record as bytes: its features, groups, unit and, if wanted, its label."""
    start = 0
    for batch in records.batches():
        labels = batch.y if labeled else None
        numbers = start + np.arange(len(batch))
        yield from _bytes(numbers, batch.X[:], batch.groups.values(), batch.units, labels)
        start += len(batch)


def _table(path: Path, schema: Schema) -> Iterator[Content]:
    """The rows of a file that its schema keeps, likewise."""
    for _, rows in scan_rows(path, schema):
        yield from _bytes(rows.numbers, rows.X, rows.groups.values(), rows.units, None)


def _bytes(
    numbers: Ints,
    X: Array,
    groups: Iterable[Group],
    units: Array | None,
    labels: Ints | None,
) -> Iterator[Content]:
    """Rows with their numbers."""
    columns = [group.codes for group in groups]
    columns += [] if labels is None else [labels]
    told = np.stack(columns, axis=1).tolist() if columns else [[]] * len(numbers)
    whose = [""] * len(numbers) if units is None else units.tolist()
    for number, row, codes, unit in zip(numbers.tolist(), X, told, whose, strict=True):
        yield number, row.tobytes() + repr((codes, unit)).encode()
