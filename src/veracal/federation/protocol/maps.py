"""Maps as short lists of whole numbers on public grids, so that questions can be about them.

Whoever reads one has the same map to the last bit, and nothing but numbers within the bounds
that a source has declared is a map.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from veracal.calibration.bins import Bins
from veracal.calibration.maps import Binned, Doubt, Map, Platt, Temperature
from veracal.calibration.maps.doubt import DOUBT_BITS, MOST_DOUBT
from veracal.calibration.maps.platt import Form
from veracal.calibration.private.golden_grid import TemperatureGrid
from veracal.federation.protocol import fields as schema
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.terms import Terms

ACCURACY_BITS = 20
_FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


class OffGridError(ValueError):
    """A number that cannot be asked about, because it is not on the source's grid."""


def inverse_units(inverse: float, grid: TemperatureGrid) -> int:
    """An inverse temperature as a whole number of steps of the grid, within its range.

    Examples
    --------
    >>> inverse_units(0.5, TemperatureGrid(0.5, 6.0))
    32768
    """
    units = inverse * 2.0**grid.bits
    if not (math.isfinite(units) and units == int(units) and in_range(int(units), grid)):
        raise OffGridError(
            f"Expected a temperature from {grid.low:g} to {grid.high:g} whose inverse is a "
            f"multiple of 2^-{grid.bits}, as the source has declared, got an inverse of "
            f"{inverse!r}. Search within that range: temperatures=({grid.low:g}, "
            f"{grid.high:g})."
        )
    return int(units)


def in_range(units: int, grid: TemperatureGrid) -> bool:
    """Whether steps of the grid are a temperature of its range."""
    steps = 2.0**grid.bits
    low, high = math.ceil(steps / grid.high), math.floor(steps / grid.low)
    return low <= units <= high


def inverse_check(terms: Terms) -> schema.Check:
    """Steps of the grid of temperatures, within the declared range."""
    return lambda value: type(value) is int and in_range(value, terms.temperatures)


def map_units(map_: Map, terms: Terms) -> dict[str, Any]:
    """A map as whole numbers; refuses one that the terms do not allow."""
    if isinstance(map_, Temperature):
        return {"inverse": inverse_units(map_.inverse, terms.temperatures)}
    if isinstance(map_, Doubt):
        inverse = inverse_units(map_.inverse, terms.temperatures)
        return {"doubt": _exact(map_.doubt, DOUBT_BITS), "inverse": inverse}
    if isinstance(map_, Binned) and map_.bins.count == terms.bins:
        return {"accuracies": [_exact(float(a), ACCURACY_BITS) for a in map_.accuracies]}
    if isinstance(map_, Platt) and map_.reads in (None, terms.reads):
        units = list(terms.parameters.units(map_))
        return {"form": map_.form, "reads": map_.reads is not None, "units": units}
    raise OffGridError(
        f"Expected a map that a source can be asked about (a temperature, doubt, {terms.bins} "
        f"bins, an affine map), got {map_.kind!r}. Leave out the guard and the figures."
    )


def map_of(told: Mapping[str, Any], terms: Terms) -> Map:
    """The map of whole numbers.

    Raises
    ------
    EnvelopeError
        For whatever is no map within the declared bounds.
    """
    step = 2.0**-terms.temperatures.bits
    if "doubt" in told:
        checks = {"doubt": schema.integer(0, _most_doubt()), "inverse": inverse_check(terms)}
        found = schema.closed(told, checks, "the map")
        return Doubt(found["inverse"] * step, found["doubt"] / 2**DOUBT_BITS)
    if "accuracies" in told:
        share = schema.integer(0, 2**ACCURACY_BITS)
        checks = {"accuracies": schema.listed(share, terms.bins, terms.bins)}
        found = schema.closed(told, checks, "the map")
        return Binned(Bins(terms.bins), np.array(found["accuracies"]) / 2**ACCURACY_BITS)
    if "units" in told:
        return _platt(told, terms)
    found = schema.closed(told, {"inverse": inverse_check(terms)}, "the map")
    return Temperature(found["inverse"] * step)


def _platt(told: Mapping[str, Any], terms: Terms) -> Platt:
    """An affine map within the declared bounds."""
    grid, k = terms.parameters, terms.classes
    most = max(grid.most_weight, grid.most_bias) << grid.bits
    checks: dict[str, schema.Check] = {
        "form": schema.one_of(_FORMS),
        "reads": lambda value: isinstance(value, bool),
        "units": schema.listed(schema.integer(-most, most), 1, k * (k + 1)),
    }
    found = schema.closed(told, checks, "the map")
    reads = terms.reads if found["reads"] else None
    try:
        return grid.map(found["units"], found["form"], k, reads)
    except ValueError as cause:
        raise EnvelopeError("the map is not within the declared bounds") from cause


def _exact(value: float, bits: int) -> int:
    """A number as a whole number of steps, if it is one."""
    units = value * 2.0**bits
    if units != int(units):
        raise OffGridError(f"Expected a multiple of 2^-{bits}, got {value!r}.")
    return int(units)


def _most_doubt() -> int:
    """The largest doubt, in steps."""
    return math.floor(MOST_DOUBT * 2.0**DOUBT_BITS)
