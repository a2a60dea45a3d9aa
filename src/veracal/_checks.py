"""Argument checks with uniform messages, and the import of optional packages."""

import importlib
import math
from collections.abc import Collection
from numbers import Real
from typing import Any

from veracal.errors import MissingExtraError


def positive(**values: float) -> None:
    """Raise unless every value is a finite number above zero."""
    for name, value in values.items():
        if not (_is_finite(value) and value > 0):
            raise ValueError(f"Expected a finite {name} > 0, got {name}={value!r}.")


def nonnegative(**values: float) -> None:
    """Raise unless every value is a finite number of at least zero."""
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise ValueError(f"Expected a finite {name} >= 0, got {name}={value!r}.")


def positive_or(otherwise: str, kind: Any, /, **values: Any) -> None:
    """Raise unless every value is an instance of ``kind``, or a finite number above zero."""
    for name, value in values.items():
        if isinstance(value, kind):
            continue
        if not (_is_finite(value) and value > 0):
            raise ValueError(
                f"Expected a finite {name} > 0 or {otherwise}, got {name}={value!r}."
            )


def fraction(**values: float) -> None:
    """Raise unless every value is a number in [0, 1]."""
    for name, value in values.items():
        if not (_is_number(value) and 0 <= value <= 1):
            raise ValueError(f"Expected {name} between 0 and 1, got {name}={value!r}.")


def below_one(**values: float) -> None:
    """Raise unless every value is a number in [0, 1)."""
    fraction(**values)
    for name, value in values.items():
        if value >= 1:
            raise ValueError(f"Expected {name} below 1, got {name}={value!r}.")


def open_fraction(**values: float) -> None:
    """Raise unless every value is a number in (0, 1)."""
    for name, value in values.items():
        if not (_is_number(value) and 0 < value < 1):
            raise ValueError(f"Expected {name} between 0 and 1, got {name}={value!r}.")


def whole(*, least: int = 1, **values: int) -> None:
    """Raise unless every value is an integer of at least ``least``."""
    for name, value in values.items():
        if not (_is_finite(value) and value == int(value) >= least):
            raise ValueError(f"Expected an integer {name} >= {least}, got {name}={value!r}.")


def one_of(allowed: Collection[str], **values: str) -> None:
    """Raise unless every value is one of the allowed strings."""
    for name, value in values.items():
        if value not in allowed:
            words = ", ".join(repr(word) for word in allowed)
            raise ValueError(f"Expected {name} to be one of {words}, got {name}={value!r}.")


def extra(module: str, name: str) -> Any:
    """Import an optional module, or raise an error that names its extra.

    Optional packages are imported by this function instead of an ``import`` statement, so that
    the import contract can forbid such statements and all errors read alike.
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        raise MissingExtraError(
            f"This needs {module.partition('.')[0]}, which is installed by an extra: "
            f'install it with  pip install "veracal[{name}]".'
        ) from cause


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold, other than infinity and NaN."""
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _is_number(value: object) -> bool:
    """Whether a value is a real number: no bool, no text, no NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def reject_unsplittable_fit(**estimators: object) -> None:
    """Reject estimators that cannot be fitted as a part of another estimator.

    One trained on several machines: the enclosing estimator reads the records of this machine
    only, and would pay for them here. One that resumes from a checkpoint: random choices of the
    enclosing estimator (splits, other steps) would be drawn again after an interruption, and
    the checkpoint belongs to the earlier ones.
    """
    for name, estimator in estimators.items():
        if not getattr(estimator, "_all_here", True):
            raise ValueError(
                f"Expected {name} to be trained on this machine alone, got {estimator!r}. "
                "Leave out across=..., or fit it separately with fit_records(dataset) on all "
                "ranks and pass the fitted model to the next step."
            )
        if getattr(estimator, "checkpoint", None) is not None:
            raise ValueError(
                f"Expected {name} without a checkpoint, got {estimator!r}: when interrupted, "
                "it would resume with other records or other preceding steps. "
                "Leave out checkpoint=..., or fit it separately."
            )
