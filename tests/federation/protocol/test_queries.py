"""A remote query equals the local one, with bounds from the source's own terms."""

import numpy as np
import pytest

from tests.federation.protocol.example_terms import terms
from veracal.calibration import (
    AbsoluteGaps,
    Binned,
    BinnedGap,
    BrierGain,
    CorrectTotal,
    CorrectWrong,
    Gap,
    Identity,
    LossAt,
    ParameterGrid,
    Platt,
    PlattCurvature,
    PlattEquations,
    Temperature,
    TwoTemperatures,
    UniformMixing,
)
from veracal.calibration.bins import Bins
from veracal.calibration.queries.platt import platt_counts
from veracal.calibration.queries.scalars import MappedQuery, on_mapped_scores
from veracal.data import Scores
from veracal.federation.protocol.envelopes import EnvelopeError
from veracal.federation.protocol.queries import KINDS, build_query, encode_query

PLATT = Platt(np.array([1.0, 0.5, -2.0]), np.array([0.0, 0.25, -1.0]), "logits")
BINNED = Binned(Bins(15), np.arange(15) / 16)
QUESTIONS = {
    "counts": CorrectWrong(Bins(1)),
    "gap": Gap(0.5, 3),
    "loss": LossAt(0.5),
    "bin-gaps": BinnedGap(Bins(15), 0.25),
    "bins": CorrectWrong(Bins(15)),
    "bins-paper": CorrectTotal(Bins(15)),
    "map-gain": BrierGain(UniformMixing(0.25, 0.5)),
    "map-bin-gaps": MappedQuery(BinnedGap(Bins(15)), Temperature(0.5)),
    "map-counts": MappedQuery(CorrectWrong(Bins(1)), BINNED),
    "platt-counts": platt_counts(3, "logits"),
    "platt-curvature": PlattCurvature(0.5, 3),
    "platt-equations": PlattEquations(PLATT, 0.5, 1.25, 3),
}


def scores():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(200, 3))
    return Scores.from_logits(logits, rng.integers(3, size=200))


def test_the_cases_cover_every_kind():
    assert QUESTIONS.keys() == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_a_query_is_decoded_unchanged(name):
    query, records = QUESTIONS[name], scores()
    kind, argument = encode_query(query, terms())
    there = build_query(kind, argument, terms())

    assert kind == name
    assert np.array_equal(there.evaluate(records), query.evaluate(records))
    assert (there.name, there.grid, there.settings) == (query.name, query.grid, query.settings)
    for relation in ("add-remove", "replace-one"):
        assert there.sensitivity(relation) == query.sensitivity(relation)
        assert there.sensitivity_l2(relation) == query.sensitivity_l2(relation)


@pytest.mark.parametrize(
    "map_", [Temperature(0.5), UniformMixing(0.25, 0.5), BINNED, PLATT], ids=repr
)
def test_every_map_is_decoded_unchanged(map_):
    kind, argument = encode_query(BrierGain(map_), terms())

    assert build_query(kind, argument, terms()).map == map_


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_that_is_not_enrolled_is_rejected_on_both_sides(name):
    others = tuple(kind for kind in KINDS if kind != name)
    _, argument = encode_query(QUESTIONS[name], terms())

    with pytest.raises(ValueError, match="Expected a query that 'North' answers"):
        encode_query(QUESTIONS[name], terms(kinds=others))
    with pytest.raises(EnvelopeError, match="not enrolled"):
        build_query(name, argument, terms(kinds=others))


@pytest.mark.parametrize(
    "query",
    [
        Gap(0.5, 4),
        Gap(0.5),
        Gap(0.5, 3, bits=10),
        LossAt(0.5, clamp=5.0),
        LossAt(0.5, centered=False),
        BinnedGap(Bins(10)),
        PlattCurvature(0.5, 4),
        PlattEquations(PLATT, 0.5, 1.0, 3, ParameterGrid(10)),
    ],
    ids=repr,
)
def test_queries_with_other_bounds_are_rejected(query):
    with pytest.raises(ValueError, match="with the bounds that 'North' declared"):
        encode_query(query, terms())


@pytest.mark.parametrize(
    "query",
    [
        Gap(0.1, 3),
        Gap(2.5, 3),
        Gap(1 / 3, 3),
        BrierGain(Temperature(1 / 3)),
        BrierGain(UniformMixing(0.5, 1 / 3)),
        BrierGain(TwoTemperatures(1.0, 0.5)),
    ],
    ids=repr,
)
def test_a_query_off_the_grid_is_rejected_before_sending(query):
    with pytest.raises(ValueError, match="Expected"):
        encode_query(query, terms())


@pytest.mark.parametrize(
    "query", [AbsoluteGaps(Bins(15)), on_mapped_scores(AbsoluteGaps(Bins(15)), Identity())]
)
def test_a_query_without_a_kind_is_rejected(query):
    with pytest.raises(ValueError, match="Expected a query that remote sources can answer"):
        encode_query(query, terms())


BAD = {
    "counts": [{"inverse": 1}, {"bins": 3}],
    "gap": [
        {},
        {"inverse": 0},
        {"inverse": 1},
        {"inverse": 2**17 + 1},
        {"inverse": -32_768},
        {"inverse": 0.5},
        {"inverse": True},
        {"inverse": "1"},
        {"inverse": 10**400},
        {"inverse": 32_768, "classes": 2},
    ],
    "map-gain": [
        {},
        {"map": {}},
        {"map": {"inverse": 1}},
        {"map": {"doubt": 65_536, "inverse": 32_768}},
        {"map": {"doubt": -1, "inverse": 32_768}},
        {"map": {"accuracies": [0] * 14}},
        {"map": {"accuracies": [2**20 + 1] * 15}},
        {"map": {"form": "vector", "reads": False, "units": [0] * 5}},
        {"map": {"form": "vector", "reads": False, "units": [10**9] * 6}},
        {"map": {"form": "cubic", "reads": False, "units": [0] * 6}},
        {"map": {"form": "vector", "reads": None, "units": [0] * 6}},
        {"map": {"form": "vector", "reads": False, "units": [0.5] * 6}},
        {"map": {"kind": "platt"}},
    ],
    "platt-counts": [{}, {"reads": 1}],
    "platt-equations": [
        {},
        {"center": 0, "map": {"inverse": 32_768}, "spread": 4_096, "step": 0},
        {"center": 0, "map": {}, "spread": 0, "step": 0},
    ],
}


@pytest.mark.parametrize(
    ("kind", "argument"), [(kind, bad) for kind, every in BAD.items() for bad in every]
)
def test_an_argument_outside_of_the_terms_is_rejected(kind, argument):
    with pytest.raises(EnvelopeError):
        build_query(kind, argument, terms())


def test_an_unknown_kind_is_rejected_even_if_the_terms_name_it():
    with pytest.raises(EnvelopeError, match="not enrolled"):
        build_query("everything", {}, terms(kinds=("everything",)))
