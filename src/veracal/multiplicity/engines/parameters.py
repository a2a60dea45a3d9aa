"""What a model is told to do, as what JSON can hold."""

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from veracal.multiplicity.engines.base import fingerprint

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of memory: another one in every process
_DRAWN = "random_state"


def told(value: Any) -> Any:
    """A model, a function or a parameter, the same in every process that means the same.

    Estimators and records become their class and their parameters, functions their names,
    arrays a hash. ``random_state`` is left out, since every run is given another. What is
    none of these is told by its ``repr``.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> told(LogisticRegression(C=2.0))["parameters"]["C"]
    2.0
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.generic):
        return told(value.item())
    if isinstance(value, np.ndarray):
        return fingerprint(value.astype(str) if value.dtype.kind in "TO" else value)
    if isinstance(value, Mapping):
        return {str(key): told(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [told(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((told(item) for item in value), key=repr)
    return _told_object(value)


def _told_object(value: Any) -> Any:
    """Likewise, of what has parts or a name."""
    if isinstance(value, partial):
        return {"function": told(value.func), "given": told([value.args, value.keywords])}
    if callable(getattr(value, "get_params", None)) and not isinstance(value, type):
        return _parts(value, value.get_params(deep=False))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _parts(value, {field.name: getattr(value, field.name) for field in fields})
    if hasattr(value, "__qualname__"):
        return name_of(value)
    return {"class": name_of(type(value)), "shown": _ADDRESS.sub("", repr(value))}


def _parts(value: Any, parts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "class": name_of(type(value)),
        "parameters": {name: told(part) for name, part in parts.items() if name != _DRAWN},
    }


def name_of(value: Any) -> str:
    """Qualified name of a function or a class; of another callable, that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
