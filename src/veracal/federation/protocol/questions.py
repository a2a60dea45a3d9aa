"""Maps as short lists of whole numbers on public grids, so that questions can be about them.

Whoever reads one has the same map to the last bit, and nothing but numbers within the bounds
that a source has declared is a map.

The table from the kinds of a request to the questions that records are asked.

This is the one list of what can be asked from afar. A question is made of its kind, of whole
numbers within declared ranges, and of the source's own terms; a request carries no bound, no
bin, no clip, no code.

Terms in plain words, for the people who allow them and for those who rely on them.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal._types import Frozen
from veracal.accounting import MICRO, rounded_up
from veracal.calibration import (
    MAX_UNIFORM_WEIGHT,
    UNIFORM_WEIGHT_BITS,
    Binned,
    BinnedGap,
    Bins,
    BrierGain,
    CalibrationMap,
    CorrectTotal,
    CorrectWrong,
    Form,
    Gap,
    LossAt,
    MappedQuery,
    Platt,
    PlattCurvature,
    PlattEquations,
    Temperature,
    TemperatureGrid,
    UniformMixing,
    platt_counts,
)
from veracal.federation.protocol import envelopes as schema
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.terms import Terms
from veracal.queries import BinnedSum, Query

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


def map_units(map_: CalibrationMap, terms: Terms) -> dict[str, Any]:
    """A map as whole numbers; refuses one that the terms do not allow."""
    if isinstance(map_, Temperature):
        return {"inverse": inverse_units(map_.inverse, terms.temperatures)}
    if isinstance(map_, UniformMixing):
        inverse = inverse_units(map_.inverse, terms.temperatures)
        return {"doubt": _exact(map_.uniform_weight, UNIFORM_WEIGHT_BITS), "inverse": inverse}
    if isinstance(map_, Binned) and map_.bins.count == terms.bins:
        return {"accuracies": [_exact(float(a), ACCURACY_BITS) for a in map_.accuracies]}
    if isinstance(map_, Platt) and map_.reads in (None, terms.reads):
        units = list(terms.parameters.units(map_))
        return {"form": map_.form, "reads": map_.reads is not None, "units": units}
    raise OffGridError(
        f"Expected a map that a source can be asked about (a temperature, doubt, {terms.bins} "
        f"bins, an affine map), got {map_.kind!r}. Leave out the guard and the figures."
    )


def map_of(told: Mapping[str, Any], terms: Terms) -> CalibrationMap:
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
        return UniformMixing(found["inverse"] * step, found["doubt"] / 2**UNIFORM_WEIGHT_BITS)
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
    return math.floor(MAX_UNIFORM_WEIGHT * 2.0**UNIFORM_WEIGHT_BITS)


MOST_STEPS = 1_000
SCALE_BITS = 12  # of center and spread of the equations of an affine map
_MOST_SCALE = 1_024 << SCALE_BITS

Argument = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of question.

    Attributes
    ----------
    name : str
        As it stands in a request.
    words : str
        What is told by an answer, for the people who allow it.
    build : callable
        From terms and an argument to the question; raises an ``EnvelopeError`` for an argument
        that is not within the terms.
    argument : callable
        From a question to its argument; None if the question is of another kind.
    gaussian : bool
        Whether it is asked with Gaussian noise, so that a delta is needed.
    """

    name: str
    words: str
    build: Callable[[Terms, Mapping[str, Any]], Query]
    argument: Callable[[Terms, Query], Argument | None]
    gaussian: bool = False


def built(kind: str, argument: Mapping[str, Any], terms: Terms) -> Query:
    """The question that a source is asked, made of its own terms.

    Raises
    ------
    EnvelopeError
        For a kind that the source does not answer, and for an argument out of range.
    """
    if kind not in terms.kinds or kind not in KINDS:
        raise EnvelopeError("the request asks for a kind that is not enrolled")
    return KINDS[kind].build(terms, argument)


def encoded(query: Query, terms: Terms) -> tuple[str, Argument]:
    """Kind and argument of a question, as a request carries them.

    Raises
    ------
    ValueError
        If the source could not be asked that: nothing was sent, and nothing is charged.
    """
    for kind in KINDS.values():
        argument = kind.argument(terms, query)
        if argument is None:
            continue
        if not _same(kind.build(terms, argument), query):
            raise ValueError(
                f"Expected {query.name!r} with the bounds that {terms.name!r} has declared "
                f"({terms.classes} classes, {terms.bins} bins, losses up to {terms.clamp:g}), "
                f"got others: {dict(query.settings)}. Ask with the source's own."
            )
        if kind.name not in terms.kinds:
            raise ValueError(
                f"Expected a question that {terms.name!r} answers ({', '.join(terms.kinds)}), "
                f"got {kind.name!r}. Use another method, or ask the source to enroll for it."
            )
        return kind.name, argument
    raise ValueError(
        f"Expected a question that can be asked from afar ({', '.join(KINDS)}), got "
        f"{query.name!r}. Use another method."
    )


def _same(one: Query, other: Query) -> bool:
    """Whether two questions are one, by all that is public about them."""
    return (
        type(one) is type(other)
        and (one.name, one.grid, one.entries) == (other.name, other.grid, other.entries)
        and dict(one.settings) == dict(other.settings)
        and all(
            one.sensitivity(relation) == other.sensitivity(relation)
            and one.sensitivity_l2(relation) == other.sensitivity_l2(relation)
            for relation in ("add-remove", "replace-one")
        )
    )


def _plain(make: Callable[[Terms], Query], name: str) -> dict[str, Any]:
    """A question without an argument."""

    def build(terms: Terms, told: Mapping[str, Any]) -> Query:
        schema.closed(told, {}, "the argument")
        return make(terms)

    def argument(terms: Terms, query: Query) -> Argument | None:
        return {} if _same(make(terms), query) else None

    return {"name": name, "build": build, "argument": argument}


def _at(
    make: Callable[[Terms, float], Query], kind: type, name: str, **more: Any
) -> dict[str, Any]:
    """A question at an inverse temperature."""

    def build(terms: Terms, told: Mapping[str, Any]) -> Query:
        found = schema.closed(told, {"inverse": inverse_check(terms)}, "the argument")
        return make(terms, found["inverse"] / 2**terms.temperatures.bits)

    def argument(terms: Terms, query: Query) -> Argument | None:
        if type(query) is not kind:
            return None
        inverse = float(query.settings["inverse"])
        return {"inverse": inverse_units(inverse, terms.temperatures)}

    return {"name": name, "build": build, "argument": argument, **more}


def _about_map(
    make: Callable[[Terms, Any], Query], is_one: Callable[[Query], bool], name: str
) -> dict[str, Any]:
    """A question about what a map makes of the scores."""

    def build(terms: Terms, told: Mapping[str, Any]) -> Query:
        found = schema.closed(told, {"map": schema.is_object}, "the argument")
        return make(terms, map_of(found["map"], terms))

    def argument(terms: Terms, query: Query) -> Argument | None:
        return {"map": map_units(query.map, terms)} if is_one(query) else None  # type: ignore[attr-defined]

    return {"name": name, "build": build, "argument": argument}


def _equations() -> dict[str, Any]:
    """The equations of an affine map."""

    def build(terms: Terms, told: Mapping[str, Any]) -> Query:
        checks: dict[str, schema.Check] = {
            "center": schema.integer(-_MOST_SCALE, _MOST_SCALE),
            "map": schema.is_object,
            "spread": schema.integer(1, _MOST_SCALE),
            "step": schema.integer(0, MOST_STEPS),
        }
        found = schema.closed(told, checks, "the argument")
        map_ = map_of(found["map"], terms)
        try:
            return PlattEquations(
                map_,  # type: ignore[arg-type]
                found["center"] / 2**SCALE_BITS,
                found["spread"] / 2**SCALE_BITS,
                found["step"],
                terms.parameters,
            )
        except ValueError as cause:
            raise EnvelopeError("the argument is no affine map") from cause

    def argument(terms: Terms, query: Query) -> Argument | None:
        if not isinstance(query, PlattEquations):
            return None
        center, spread = (value * 2**SCALE_BITS for value in (query.center, query.spread))
        if center != int(center) or spread != int(spread):
            raise ValueError(f"Expected center and spread to be multiples of 2^-{SCALE_BITS}.")
        map_ = map_units(query.map, terms)
        return {
            "center": int(center),
            "map": map_,
            "spread": int(spread),
            "step": int(query.step),
        }

    return {"name": "platt-equations", "build": build, "argument": argument, "gaussian": True}


def _is_platt_counts(terms: Terms, told: Mapping[str, Any]) -> Query:
    """Numbers of right and wrong predictions, of scores of a declared form."""
    found = schema.closed(told, {"reads": lambda v: isinstance(v, bool)}, "the argument")
    return platt_counts(terms.classes, terms.reads if found["reads"] else None)


def _platt_counts_argument(terms: Terms, query: Query) -> Argument | None:
    """Whether the kind of scores matters."""
    if not isinstance(query, BinnedSum):
        return None
    both = {known: _is_platt_counts(terms, {"reads": known}) for known in (False, True)}
    return next(({"reads": known} for known, one in both.items() if _same(one, query)), None)


_LISTED = (
    Kind(
        words="how many predictions were right, and how many wrong",
        **_plain(lambda terms: CorrectWrong(Bins(1)), "counts"),
    ),
    Kind(
        words="how many more were right than their confidence says, at a temperature",
        **_at(lambda terms, inverse: Gap(inverse, terms.classes), Gap, "gap"),
    ),
    Kind(
        words="the sum of the clamped losses, at a temperature",
        **_at(lambda terms, inverse: LossAt(inverse, terms.clamp), LossAt, "loss"),
    ),
    Kind(
        words="how many more were right than their confidence says, in each bin of "
        "confidence, at a temperature",
        **_at(
            lambda terms, inverse: BinnedGap(Bins(terms.bins), inverse), BinnedGap, "bin-gaps"
        ),
    ),
    Kind(
        words="how many were right and how many wrong, in each bin of confidence",
        **_plain(lambda terms: CorrectWrong(Bins(terms.bins)), "bins"),
    ),
    Kind(
        words="how many were right and how many there are, in each bin of confidence",
        **_plain(lambda terms: CorrectTotal(Bins(terms.bins)), "bins-paper"),
    ),
    Kind(
        words="how much smaller a map makes the squared error (the Brier score)",
        **_about_map(
            lambda terms, map_: BrierGain(map_), lambda q: isinstance(q, BrierGain), "map-gain"
        ),
    ),
    Kind(
        words="how many more were right than their confidence says, in each bin of "
        "confidence, after a map",
        **_about_map(
            lambda terms, map_: MappedQuery(BinnedGap(Bins(terms.bins)), map_),
            lambda q: type(q) is MappedQuery and isinstance(q.query, BinnedGap),
            "map-bin-gaps",
        ),
    ),
    Kind(
        words="how many predictions were right and how many wrong, after a map",
        **_about_map(
            lambda terms, map_: MappedQuery(CorrectWrong(Bins(1)), map_),
            lambda q: type(q) is MappedQuery and isinstance(q.query, CorrectWrong),
            "map-counts",
        ),
    ),
    Kind(
        "platt-counts",
        "how many predictions were right, and how many wrong, of scores of a declared form",
        _is_platt_counts,
        _platt_counts_argument,
        gaussian=True,
    ),
    Kind(
        words="how unsure the classes are, at a temperature",
        **_at(
            lambda terms, inverse: PlattCurvature(inverse, terms.classes),
            PlattCurvature,
            "platt-curvature",
            gaussian=True,
        ),
    ),
    Kind(words="by how much an affine map is off, for each class", **_equations()),
)
KINDS: Mapping[str, Kind] = Frozen({kind.name: kind for kind in _LISTED})
# What a temperature of many sources needs, its guard and its figures included.
USUAL = ("counts", "gap", "bin-gaps", "map-gain", "map-bin-gaps")


def told_terms(terms: Terms) -> list[tuple[str, str]]:
    """Lines of a subject and what the terms say of it.

    Everything in them is public: nothing was read off the records.
    """
    return [
        ("institution", terms.name),
        ("its key", terms.key.fingerprint),
        ("answers only to", f"the calibrator of the key {terms.calibrator.fingerprint}"),
        ("until", terms.expires or "it is revoked"),
        ("about", f"predictions of the model {terms.model[:12]}…, {_scores(terms)}"),
        ("protects", f"{terms.unit}, under {terms.relation}"),
        ("budget", _budget(terms)),
        *_questions(terms),
        *_bounds(terms),
        ("replies", f"{terms.deadline:g} seconds after a request, whatever it is"),
    ]


def _scores(terms: Terms) -> str:
    """What the records hold."""
    return f"{terms.classes} classes, as {terms.reads}"


def _budget(terms: Terms) -> str:
    """All that may be spent, and on one answer."""
    delta = f" and delta {rounded_up(terms.delta)}" if terms.delta else ""
    return (
        f"epsilon {terms.micro_epsilon / MICRO:g}{delta} in all, for good; at most "
        f"{terms.most_each / MICRO:g} for one answer"
    )


def _questions(terms: Terms) -> Iterator[tuple[str, str]]:
    """What is told, with noise."""
    for i, kind in enumerate(terms.kinds):
        known = KINDS.get(kind)
        yield "tells, with noise" if i == 0 else "", known.words if known else f"{kind} (?)"


def _bounds(terms: Terms) -> Iterator[tuple[str, str]]:
    """What was declared, so that nothing need be read off the records."""
    grid = terms.temperatures
    yield "temperatures", f"from {grid.low:g} to {grid.high:g}"
    yield "bins", f"{terms.bins}, of equal width"
    yield "largest loss", f"{terms.clamp:g} for one record"
    yield "records", f"at least {terms.least_records:,}, at most {terms.most_records:,}"
