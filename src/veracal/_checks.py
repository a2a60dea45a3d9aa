"""Checks of arguments that every room makes."""

import importlib
import math
from collections.abc import Collection
from numbers import Real
from typing import Any

from veracal.errors import MissingExtraError


def positive(**values: float) -> None:
    """Raise unless every value is a finite number above zero."""
    for name, value in values.items():
        if not (_is_number(value) and math.isfinite(value) and value > 0):
            raise ValueError(f"Expected a finite {name} > 0, got {name}={value!r}.")


def positive_or(otherwise: str, kind: Any, /, **values: Any) -> None:
    """Raise unless every value is of a kind, or a finite number above zero."""
    for name, value in values.items():
        if isinstance(value, kind):
            continue
        if not (_is_number(value) and math.isfinite(value) and value > 0):
            raise ValueError(
                f"Expected a finite {name} > 0 or {otherwise}, got {name}={value!r}."
            )


def fraction(**values: float) -> None:
    """Raise unless every value is a number in [0, 1]."""
    for name, value in values.items():
        if not (_is_number(value) and 0 <= value <= 1):
            raise ValueError(f"Expected {name} between 0 and 1, got {name}={value!r}.")


def whole(*, least: int = 1, **values: int) -> None:
    """Raise unless every value is an integer of at least ``least``."""
    for name, value in values.items():
        if not (_is_number(value) and math.isfinite(value) and value == int(value) >= least):
            raise ValueError(f"Expected an integer {name} >= {least}, got {name}={value!r}.")


def one_of(allowed: Collection[str], **values: str) -> None:
    """Raise unless every value is one of the allowed words."""
    for name, value in values.items():
        if value not in allowed:
            words = ", ".join(repr(word) for word in allowed)
            raise ValueError(f"Expected {name} to be one of {words}, got {name}={value!r}.")


def extra(module: str, name: str) -> Any:
    """Import an optional module, or say in one sentence which extra brings it.

    Imports of optional packages go through here instead of an ``import`` statement, so
    that the import contract can forbid them everywhere and one sentence serves them all.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise MissingExtraError(
            f"This needs {module.partition('.')[0]}, which comes with an extra: "
            f'install it with  pip install "veracal[{name}]".'
        ) from cause


def _is_number(value: object) -> bool:
    """Tell whether a value is a real number: not a truth value, not text, not NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def as_part(**estimators: object) -> None:
    """Refuse an estimator that can only be fitted by itself.

    One that is trained on several machines: whatever it is a part of reads the records of this
    one alone, and would pay for them here. One that goes on after a break: whatever is around
    it (coins of a split, other steps) would be drawn anew, and its run was on what they were.
    """
    for name, estimator in estimators.items():
        if not getattr(estimator, "_all_here", True):
            raise ValueError(
                f"Expected {name} to be trained on this machine alone, got {estimator!r}. "
                "Leave out across=..., or fit it by itself, by fit_records(dataset) on all "
                "ranks, and give the fitted model to what comes after."
            )
        if getattr(estimator, "checkpoint", None) is not None:
            raise ValueError(
                f"Expected {name} without a checkpoint, got {estimator!r}: after a break it "
                "would go on with records or steps around it that are no longer the same. "
                "Leave out checkpoint=..., or fit it by itself."
            )
