"""Fitters by the names they have on the command line, and their maps in words."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import typer

from veracal.calibration.fitters import (
    BetaCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MapFitter,
    PlattScaling,
    TemperatureScaling,
    TwoTemperatureScaling,
)
from veracal.calibration.maps import (
    Binned,
    Identity,
    Map,
    Platt,
    Temperature,
    TwoTemperatures,
)
from veracal.calibration.planning import is_enough_for_two
from veracal.calibration.private import (
    PrivateBinning,
    PrivatePlatt,
    PrivateTemperature,
    PrivateTwoTemperatures,
)
from veracal.data import Estimate, Scores
from veracal.privacy import Budget

PrivateMethod = PrivateTemperature | PrivateTwoTemperatures | PrivatePlatt | PrivateBinning
_BOTH = ("auto", "temperature", "two-temperatures", "platt", "binning")
_PRIVATE = (*_BOTH, "descent")
_OPEN = (*_BOTH, "isotonic", "beta")
_FORMS = ("scalar", "vector", "matrix")
_SHOWN = 8  # numbers of a map that are printed


def check_method(method: str, form: str, *, private: bool) -> None:
    """Refuse names that nothing has, before a file is read."""
    known = _PRIVATE if private else _OPEN
    if method not in known:
        raise typer.BadParameter(
            f"expected one of {', '.join(known)}, got {method!r}.", param_hint="--method"
        )
    if form not in _FORMS:
        raise typer.BadParameter(
            f"expected one of {', '.join(_FORMS)}, got {form!r}.", param_hint="--form"
        )


def chosen(method: str, size: int | None, budget: Budget) -> str:
    """The method that 'auto' stands for, by what is declared; others as they are.

    Without a size nothing is known of the number of records, which is private: one
    temperature does well for any.

    Parameters
    ----------
    method : str
    size : int or None
        Declared number of records.
    budget : Budget
        What the map may cost, and whom that protects.
    """
    if method != "auto":
        return method
    two = is_enough_for_two(size or 0, budget.epsilon, budget.relation, budget.unit)
    return "two-temperatures" if two else "temperature"


def private_fitter(
    method: str,
    scores: Scores,
    *,
    micro_epsilon: int,
    delta: float | None,
    size: int | None,
    form: str,
    bins: int,
) -> PrivateMethod:
    """A fitter that asks a ledger first."""
    if method == "binning":
        return PrivateBinning(micro_epsilon=micro_epsilon, bins=bins)
    told: dict[str, Any] = {"micro_epsilon": micro_epsilon, "classes": scores.n_classes}
    if method == "temperature":
        return PrivateTemperature("search", **told)
    if method == "two-temperatures":
        return PrivateTwoTemperatures(**told)
    told |= {"delta": delta, "size": size}
    if method == "descent":
        return PrivateTemperature("descent", **told)
    return PrivatePlatt(form, reads=scores.kind, **told)  # type: ignore[arg-type]


def temperatures(fitter: PrivateMethod) -> dict[str, Estimate]:
    """Temperatures that were fitted, with intervals; none of other maps."""
    names = {"temperature": "temperature_", "unsure": "unsure_", "sure": "sure_"}
    return {name: getattr(fitter, at) for name, at in names.items() if hasattr(fitter, at)}


def open_fitter(method: str, *, form: str, bins: int) -> MapFitter:
    """A fitter that is not private."""
    match method:
        case "two-temperatures":
            return TwoTemperatureScaling()
        case "platt":
            return PlattScaling(form)  # type: ignore[arg-type]
        case "binning":
            return HistogramBinning(bins)
        case "isotonic":
            return IsotonicCalibration()
        case "beta":
            return BetaCalibration()
        case _:
            return TemperatureScaling()


def words(map_: Map) -> str:
    """A map, as far as it fits on a line."""
    match map_:
        case Identity():
            return "none: scores stay as they are"
        case Temperature():
            return f"temperature {map_.value:.5g} (logits are divided by it)"
        case TwoTemperatures():
            ends = f"{1 / map_.unsure:.5g} for the unsure, {1 / map_.sure:.5g} for the sure"
            return f"temperatures {ends} (logits are divided by one between them)"
        case Platt():
            return f"weights {_some(map_.weights)}; bias {_some(map_.bias)}"
        case Binned():
            return f"accuracy by bin {_some(map_.accuracies)}"
        case _:
            return map_.kind


def _some(numbers: Any) -> str:
    """The first numbers of an array."""
    flat = np.asarray(numbers, dtype=np.float64).ravel().tolist()
    more = f", … ({len(flat)} numbers)" if len(flat) > _SHOWN else ""
    return _listed(flat[:_SHOWN]) + more


def _listed(numbers: Iterable[float]) -> str:
    """Numbers, shortly."""
    return ", ".join(f"{number:.3g}" for number in numbers)
