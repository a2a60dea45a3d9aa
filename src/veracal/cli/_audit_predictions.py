"""Runs that anybody made, from a file of arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from veracal._types import Array, Ints
from veracal.data import Dataset, Group
from veracal.data.labels import Label, encode_labels
from veracal.data.readers.arrays import read_npz
from veracal.errors import DataError
from veracal.multiplicity import Question, audit_engine
from veracal.multiplicity.engines.base import Kind
from veracal.multiplicity.engines.stored import StoredEngine
from veracal.pipeline.job import today
from veracal.report.audited import Audited

# Names of the array with the runs, and what its numbers are.
VALUES: Mapping[str, Kind] = {
    "decisions": "decision",
    "probabilities": "probability",
    "scores": "probability",
    "logits": "logit",
}
_OTHERS = ("labels", "classes", "deployed", "rows")
_GROUP = "group:"
_TIME = "Runs were made elsewhere; what differed between them is not known here."


def audited(path: Path, asked: Question) -> Audited:
    """Audit the runs of a file, all of them.

    Parameters
    ----------
    path : path
        An npz file. One of ``decisions`` (whole numbers of classes), ``probabilities`` (or
        ``scores``) and ``logits``, of shape (runs, people) or, but for decisions,
        (runs, people, classes). May hold ``labels`` and ``deployed``, one for each person, as
        numbers of classes or as ``classes`` writes them; ``classes``; ``rows``, numbers of
        people in a table; and attributes, ``group:NAME``.
    asked : Question
        Without groups, people are told apart by all that the file has.
    """
    arrays = read_npz(path)
    name = _named(arrays, path)
    engine = StoredEngine(arrays[name], _classes(arrays, path), VALUES[name])
    groups = _groups(arrays, engine.people, path)
    labels = _codes("labels", arrays, engine, path)
    codes = np.zeros(engine.people, dtype=np.int64) if labels is None else labels
    people = Dataset(np.zeros((engine.people, 1)), codes, engine.classes, groups)
    found = audit_engine(
        engine,
        people,
        replace(asked, runs=engine.runs, groups=asked.groups or tuple(groups)),
        deployed=_codes("deployed", arrays, engine, path),
        labeled=labels is not None,
    )
    return Audited(
        name=path.name,
        made=today(),
        what=f"{name} of runs that were made elsewhere",
        rows=_rows(arrays, engine.people, path),
        audits=(found,),
        epsilons=(),
        settings={"predictions": path.name, "arrays": sorted(arrays)},
        notes=(_TIME,),
    )


def _named(arrays: Mapping[str, Array], path: Path) -> str:
    """The one array that holds the runs."""
    strange = [
        name
        for name in arrays
        if name not in VALUES and name not in _OTHERS and not name.startswith(_GROUP)
    ]
    found = [name for name in VALUES if name in arrays]
    if strange or len(found) != 1:
        known = ", ".join((*_OTHERS, f"{_GROUP}NAME"))
        raise DataError(
            str(path),
            f"one array of {', '.join(VALUES)}, and beside it only {known}",
            ", ".join(map(repr, strange or found))[:200] or "none of them",
            "Name the arrays so:  np.savez(FILE, decisions=..., labels=...).",
        )
    return found[0]


def _classes(arrays: Mapping[str, Array], path: Path) -> Sequence[Label] | None:
    """Classes as they are written, if the file says."""
    if "classes" not in arrays:
        return None
    held = arrays["classes"]
    if held.ndim != 1 or held.dtype.kind not in "iuUT" or len(held) < 2:
        raise DataError(
            f"{path}: classes",
            "two or more names or whole numbers",
            f"{held.dtype} of shape {held.shape}",
            "Write all classes, in the order of their numbers.",
        )
    labels: list[Label] = held.tolist()
    return labels


def _codes(
    name: str, arrays: Mapping[str, Array], engine: StoredEngine, path: Path
) -> Ints | None:
    """Classes of people as numbers; None if the file does not tell."""
    if name not in arrays:
        return None
    held, where = _of_people(name, arrays, engine.people, path), f"{path}: {name}"
    if held.dtype.kind in "UT" or "classes" in arrays:
        return encode_labels(held, engine.classes, where)
    whole = held.dtype.kind in "biu"
    if not (whole and held.min() >= 0 and held.max() < len(engine.classes)):
        raise DataError(
            where,
            f"numbers of classes, 0 to {len(engine.classes) - 1}",
            "others",
            "Number them as the runs do, or add an array 'classes' with their names.",
        )
    codes: Ints = held.astype(np.int64)
    return codes


def _groups(arrays: Mapping[str, Array], people: int, path: Path) -> dict[str, Group]:
    """Attributes by their names; the file is its owner's, so that values may be read."""
    found = {}
    for name in arrays:
        if not name.startswith(_GROUP):
            continue
        held, called = _of_people(name, arrays, people, path), name.removeprefix(_GROUP)
        if held.dtype.kind not in "biuUT" or not called.strip() or "&" in called:
            raise DataError(
                f"{path}: {name}",
                "an attribute with a name (without '&') and words or whole numbers as values",
                str(held.dtype),
                "Give an age, say, as a range of years in words.",
            )
        values = held.astype(str)
        found[called] = Group.from_values(values, sorted(set(values.tolist())))
    return found


def _rows(arrays: Mapping[str, Array], people: int, path: Path) -> Ints:
    """Where people stand in a table, or their places in the file, counted from 1."""
    if "rows" not in arrays:
        return np.arange(1, people + 1)
    held = _of_people("rows", arrays, people, path)
    if held.dtype.kind not in "iu":
        raise DataError(
            f"{path}: rows", "whole numbers", str(held.dtype), "Number the rows of the table."
        )
    numbers: Ints = held.astype(np.int64)
    return numbers


def _of_people(name: str, arrays: Mapping[str, Array], people: int, path: Path) -> Array:
    """An array with one value for each person."""
    held = arrays[name]
    if held.shape != (people,):
        raise DataError(
            f"{path}: {name}",
            f"{people} values, one for each person",
            f"the shape {held.shape}",
            "Give them in the order of the runs' columns.",
        )
    return held
