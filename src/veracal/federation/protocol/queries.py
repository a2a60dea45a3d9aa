"""The queries that remote sources answer, and their encoding in requests.

:data:`KINDS` is the complete list. A query is built from its kind, an argument of integers
within declared ranges, and the source's own terms. A request carries no bound, bin, clip or
code.

A calibration map in an argument is a short list of integers on public grids. Both sides decode
it to the same map, bit for bit, and integers outside of the declared bounds are refused.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from veracal._types import Frozen
from veracal.accounting import MICRO, format_up
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
from veracal.queries import Query

ACCURACY_BITS = 20
FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


def inverse_units(inverse: float, grid: TemperatureGrid) -> int:
    """Encode an inverse temperature as an integer number of grid steps within the range.

    Examples
    --------
    >>> inverse_units(0.5, TemperatureGrid(0.5, 6.0))
    32768
    """
    units = inverse * 2.0**grid.bits
    if not (math.isfinite(units) and units == int(units) and in_range(int(units), grid)):
        raise ValueError(
            f"Expected a temperature from {grid.low:g} to {grid.high:g} whose inverse is a "
            f"multiple of 2^-{grid.bits}, as the source declared, got an inverse of "
            f"{inverse!r}. Search within that range: temperatures=({grid.low:g}, "
            f"{grid.high:g})."
        )
    return int(units)


def in_range(units: int, grid: TemperatureGrid) -> bool:
    """Whether a number of grid steps is an inverse temperature within the range."""
    steps = 2.0**grid.bits
    low, high = math.ceil(steps / grid.high), math.floor(steps / grid.low)
    return low <= units <= high


def inverse_check(terms: Terms) -> schema.Check:
    """Check for a number of grid steps within the declared range of temperatures."""
    return lambda value: type(value) is int and in_range(value, terms.temperatures)


def encode_map(map_: CalibrationMap, terms: Terms) -> dict[str, Any]:
    """Encode a calibration map as integers; refuse one that the terms do not allow."""
    if isinstance(map_, Temperature):
        return {"inverse": inverse_units(map_.inverse, terms.temperatures)}
    if isinstance(map_, UniformMixing):
        mixing = _to_steps(map_.uniform_weight, UNIFORM_WEIGHT_BITS)
        return {"inverse": inverse_units(map_.inverse, terms.temperatures), "mixing": mixing}
    if isinstance(map_, Binned) and map_.bins.count == terms.bins:
        return {"accuracies": [_to_steps(float(a), ACCURACY_BITS) for a in map_.accuracies]}
    if isinstance(map_, Platt) and map_.reads in (None, terms.reads):
        units = list(terms.parameters.units(map_))
        return {"form": map_.form, "reads": map_.reads is not None, "units": units}
    raise ValueError(
        f"Expected a map that can be sent to a source (temperature, uniform mixing, "
        f"{terms.bins} bins, affine map), got {map_.kind!r}. Leave out the guard and the "
        "measurement."
    )


def decode_map(body: Mapping[str, Any], terms: Terms) -> CalibrationMap:
    """Decode a calibration map from integers; refuse one outside of the declared bounds."""
    checks: dict[str, schema.Check]
    step = 2.0**-terms.temperatures.bits
    if "mixing" in body:
        max_mixing = math.floor(MAX_UNIFORM_WEIGHT * 2.0**UNIFORM_WEIGHT_BITS)
        checks = {"inverse": inverse_check(terms), "mixing": schema.integer(0, max_mixing)}
        fields = schema.check_fields(body, checks, "the map")
        return UniformMixing(
            fields["inverse"] * step, fields["mixing"] / 2**UNIFORM_WEIGHT_BITS
        )
    if "accuracies" in body:
        share = schema.integer(0, 2**ACCURACY_BITS)
        checks = {"accuracies": schema.list_of(share, terms.bins, terms.bins)}
        fields = schema.check_fields(body, checks, "the map")
        return Binned(Bins(terms.bins), np.array(fields["accuracies"]) / 2**ACCURACY_BITS)
    if "units" in body:  # an affine map
        grid, k = terms.parameters, terms.classes
        largest = max(grid.most_weight, grid.most_bias) << grid.bits
        checks = {
            "form": schema.one_of(FORMS),
            "reads": schema.instance(bool),
            "units": schema.list_of(schema.integer(-largest, largest), 1, k * (k + 1)),
        }
        fields = schema.check_fields(body, checks, "the map")
        reads = terms.reads if fields["reads"] else None
        try:
            return grid.map(fields["units"], fields["form"], k, reads)
        except ValueError as cause:
            raise EnvelopeError("the map is not within the declared bounds") from cause
    fields = schema.check_fields(body, {"inverse": inverse_check(terms)}, "the map")
    return Temperature(fields["inverse"] * step)


def _to_steps(value: float, bits: int) -> int:
    """Encode a multiple of 2^-bits as an integer."""
    units = value * 2.0**bits
    if units != int(units):
        raise ValueError(f"Expected a multiple of 2^-{bits}, got {value!r}.")
    return int(units)


MAX_STEPS = 1_000
SCALE_BITS = 12  # grid of the center and the spread in Platt equations
_MAX_SCALE = 1_024 << SCALE_BITS

Argument = dict[str, Any]


@dataclass(frozen=True)
class QueryKind:
    """A kind of query that a source can answer.

    Attributes
    ----------
    name : str
        Name in requests.
    description : str
        What an answer reveals, for the data holder who decides whether to allow it.
    build : callable
        ``build(terms, **values) -> Query``, with the decoded fields of an argument.
    fields : tuple of str
        Fields of the argument, of those that :func:`build_query` can decode.
    values : callable or None
        ``values(query)`` returns the decoded fields, or None for a query of another kind.
        Without it, the queries of this kind are those built with one of ``choices``.
    choices : tuple of dict
    gaussian : bool
        Whether the noise is Gaussian, which needs a delta.
    """

    name: str
    description: str
    build: Callable[..., Query]
    fields: tuple[str, ...] = ()
    values: Callable[[Any], Argument | None] | None = None
    choices: tuple[Argument, ...] = ({},)
    gaussian: bool = False


def build_query(kind: str, argument: Mapping[str, Any], terms: Terms) -> Query:
    """Build the query of a request from the source's own terms.

    Raises
    ------
    EnvelopeError
        If the source does not answer this kind, or the argument is out of range.
    """
    if kind not in terms.kinds or kind not in KINDS:
        raise EnvelopeError("the request names a kind of query that is not enrolled")
    return _build(KINDS[kind], argument, terms)


def _build(kind: QueryKind, argument: Mapping[str, Any], terms: Terms) -> Query:
    """Check and decode the fields of an argument, and build the query."""
    checks = {
        "center": schema.integer(-_MAX_SCALE, _MAX_SCALE),
        "inverse": inverse_check(terms),
        "map": schema.instance(dict),
        "reads": schema.instance(bool),
        "spread": schema.integer(1, _MAX_SCALE),
        "step": schema.integer(0, MAX_STEPS),
    }
    declared = {name: checks[name] for name in kind.fields}
    values = {**schema.check_fields(argument, declared, "the argument")}
    for name, value in values.items():
        if name == "map":
            values[name] = decode_map(value, terms)
        elif name == "inverse":
            values[name] = value / 2**terms.temperatures.bits
        elif name in ("center", "spread"):
            values[name] = value / 2**SCALE_BITS
    try:
        return kind.build(terms, **values)
    except ValueError as cause:
        raise EnvelopeError("the argument does not fit this kind of query") from cause


def encode_query(query: Query, terms: Terms) -> tuple[str, Argument]:
    """Kind and argument of a query for a request.

    Raises
    ------
    ValueError
        If the source does not answer this query. Nothing was sent or charged.
    """
    for kind in KINDS.values():
        if kind.values is not None:
            values = kind.values(query)
        else:
            fitting = (v for v in kind.choices if _same(kind.build(terms, **v), query))
            values = next(fitting, None)
        if values is None:
            continue
        argument = {**values}
        for name, value in values.items():
            if name == "map":
                argument[name] = encode_map(value, terms)
            elif name == "inverse":
                argument[name] = inverse_units(float(value), terms.temperatures)
            elif name in ("center", "spread"):
                argument[name] = _to_steps(value, SCALE_BITS)
        if not _same(_build(kind, argument, terms), query):
            raise ValueError(
                f"Expected {query.name!r} with the bounds that {terms.name!r} declared "
                f"({terms.classes} classes, {terms.bins} bins, losses up to {terms.clamp:g}), "
                f"got {dict(query.settings)}. Use the bounds of the source."
            )
        if kind.name not in terms.kinds:
            raise ValueError(
                f"Expected a query that {terms.name!r} answers ({', '.join(terms.kinds)}), "
                f"got {kind.name!r}. Use another method, or ask the source to enroll for it."
            )
        return kind.name, argument
    raise ValueError(
        f"Expected a query that remote sources can answer ({', '.join(KINDS)}), got "
        f"{query.name!r}. Use another method."
    )


def _same(one: Query, other: Query) -> bool:
    """Whether two queries agree in everything public."""
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


def _inverse(kind: type[Query]) -> Callable[[Query], Argument | None]:
    """Inverse temperature of a query of this type."""
    return lambda query: {"inverse": query.settings["inverse"]} if type(query) is kind else None


def _mapped(kind: type[Query]) -> Callable[[Query], Argument | None]:
    """Map of a query of this type on mapped scores."""
    return lambda query: (
        {"map": query.map}
        if type(query) is MappedQuery and isinstance(query.query, kind)
        else None
    )


_LISTED = (
    QueryKind(
        "counts",
        "how many predictions were right, and how many were wrong",
        lambda terms: CorrectWrong(Bins(1)),
    ),
    QueryKind(
        "gap",
        "how many more were right than the confidences predict, at a temperature",
        lambda terms, inverse: Gap(inverse, terms.classes),
        ("inverse",),
        _inverse(Gap),
    ),
    QueryKind(
        "loss",
        "the sum of the clamped losses, at a temperature",
        lambda terms, inverse: LossAt(inverse, terms.clamp),
        ("inverse",),
        _inverse(LossAt),
    ),
    QueryKind(
        "bin-gaps",
        "how many more were right than the confidences predict, in each bin of confidence, at "
        "a temperature",
        lambda terms, inverse: BinnedGap(Bins(terms.bins), inverse),
        ("inverse",),
        _inverse(BinnedGap),
    ),
    QueryKind(
        "bins",
        "how many were right and how many were wrong, in each bin of confidence",
        lambda terms: CorrectWrong(Bins(terms.bins)),
    ),
    QueryKind(
        "bins-paper",
        "how many were right, and how many there are, in each bin of confidence",
        lambda terms: CorrectTotal(Bins(terms.bins)),
    ),
    QueryKind(
        "map-gain",
        "by how much a map reduces the squared error (the Brier score)",
        lambda terms, map: BrierGain(map),
        ("map",),
        lambda query: {"map": query.map} if isinstance(query, BrierGain) else None,
    ),
    QueryKind(
        "map-bin-gaps",
        "how many more were right than the confidences predict, in each bin of confidence, "
        "after a map",
        lambda terms, map: MappedQuery(BinnedGap(Bins(terms.bins)), map),
        ("map",),
        _mapped(BinnedGap),
    ),
    QueryKind(
        "map-counts",
        "how many predictions were right and how many were wrong, after a map",
        lambda terms, map: MappedQuery(CorrectWrong(Bins(1)), map),
        ("map",),
        _mapped(CorrectWrong),
    ),
    QueryKind(
        "platt-counts",
        "how many predictions were right, and how many were wrong, by form of scores",
        lambda terms, reads: platt_counts(terms.classes, terms.reads if reads else None),
        ("reads",),
        choices=({"reads": False}, {"reads": True}),
        gaussian=True,
    ),
    QueryKind(
        "platt-curvature",
        "the variance of each predicted class, at a temperature",
        lambda terms, inverse: PlattCurvature(inverse, terms.classes),
        ("inverse",),
        _inverse(PlattCurvature),
        gaussian=True,
    ),
    QueryKind(
        "platt-equations",
        "the residual of an affine map for each class",
        lambda terms, map, center, spread, step: PlattEquations(
            map, center, spread, step, terms.parameters
        ),
        ("center", "map", "spread", "step"),
        lambda query: (
            {"center": query.center, "map": query.map, "spread": query.spread}
            | {"step": int(query.step)}
            if isinstance(query, PlattEquations)
            else None
        ),
        gaussian=True,
    ),
)
KINDS: Mapping[str, QueryKind] = Frozen({kind.name: kind for kind in _LISTED})
# What a pooled temperature needs, with its guard and measurement.
DEFAULT_KINDS = ("counts", "gap", "bin-gaps", "map-gain", "map-bin-gaps")


def describe_terms(terms: Terms) -> list[tuple[str, str]]:
    """Terms in plain English, as pairs of a label and a text.

    Everything in them is public: nothing was computed from the records.
    """
    delta = f" and delta {format_up(terms.delta)}" if terms.delta else ""
    descriptions = [
        KINDS[kind].description if kind in KINDS else f"{kind} (?)" for kind in terms.kinds
    ]
    grid = terms.temperatures
    return [
        ("institution", terms.name),
        ("its key", terms.key.fingerprint),
        ("answers only", f"the coordinator with the key {terms.coordinator.fingerprint}"),
        ("until", terms.expires or "it is revoked"),
        (
            "about",
            f"predictions of the model {terms.model[:12]}…, {terms.classes} classes, as "
            f"{terms.reads}",
        ),
        ("protects", f"{terms.unit}, under {terms.relation}"),
        (
            "budget",
            f"epsilon {terms.micro_epsilon / MICRO:g}{delta} in total; at most "
            f"{terms.max_per_answer / MICRO:g} for one answer",
        ),
        *(
            ("releases, with noise" if i == 0 else "", text)
            for i, text in enumerate(descriptions)
        ),
        ("temperatures", f"from {grid.low:g} to {grid.high:g}"),
        ("bins", f"{terms.bins}, of equal width"),
        ("largest loss", f"{terms.clamp:g} for one record"),
        ("records", f"at least {terms.min_records:,}, at most {terms.max_records:,}"),
        ("replies", f"{terms.deadline:g} seconds after each request"),
    ]
