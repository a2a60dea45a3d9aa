"""The declarations of remote sources determine their queries."""

from dataclasses import replace

import pytest

from veracal.calibration import ParameterGrid, recalibrate
from veracal.calibration.methods import METHODS, MethodSettings
from veracal.calibration.recalibration.sources import EnrolledBounds, profile_source
from veracal.data import Scores
from veracal.queries import Pool, Public

ALL = EnrolledBounds(2, "logits", (0.5, 6.0), 15, 10.0, ParameterGrid(), ("pooled", "binning"))


class RemoteOptions(Public):
    """Records that are public, of a source that has declared something."""

    enrolled = ALL


@pytest.fixture
def source():
    return RemoteOptions(Scores.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 1]))


def test_declarations_complete_the_settings():
    result = ALL.apply_to(MethodSettings(1), METHODS["pooled"], bins=None)
    assert (result.classes, result.temperatures, result.reads) == (2, (0.5, 6.0), "logits")
    counting = ALL.apply_to(MethodSettings(1), METHODS["binning"], bins=None)
    assert counting.temperatures is None  # it searches for none
    narrow = ALL.apply_to(
        MethodSettings(1, temperatures=(1.0, 2.0)), METHODS["pooled"], bins=15
    )
    assert narrow.temperatures == (1.0, 2.0)


@pytest.mark.parametrize("wrong", [{"classes": 3}, {"temperatures": (0.4, 6.0)}])
def test_other_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="as the sources have declared"):
        ALL.apply_to(MethodSettings(1, **wrong), METHODS["pooled"], bins=None)


def test_several_sources_answer_what_all_have_declared():
    other = replace(ALL, reads="probabilities", temperatures=(1.0, 9.0), methods=("binning",))
    other = replace(other, guards=False, parameters=7)
    both = ALL.intersect(other)
    assert (both.reads, both.temperatures, both.methods) == (None, (1.0, 6.0), ("binning",))
    assert (both.guards, both.measures, both.parameters) == (False, True, 7)
    with pytest.raises(ValueError, match="overlap"):
        ALL.intersect(replace(ALL, temperatures=(7.0, 9.0)))
    for name, value in (("classes", 3), ("bins", 7), ("clamp", 3.0)):
        with pytest.raises(ValueError, match=f"the same {name}"):
            ALL.intersect(replace(ALL, **{name: value}))


def test_auto_falls_back_and_a_name_does_not():
    assert ALL.default_method("two-temperatures") == "pooled"
    assert replace(ALL, methods=("binning",)).default_method("pooled") == "binning"
    with pytest.raises(ValueError, match="counts and gap"):
        replace(ALL, methods=()).default_method("pooled")
    with pytest.raises(ValueError, match="pooled, binning"):
        ALL.check_method("acc-t")


def test_guard_and_figures_are_left_out_where_they_are_not_answered():
    method, changing = METHODS["pooled"], METHODS["binning"]
    assert ALL.limit_shares("auto", 0.2, method) == ("auto", 0.2)
    without = replace(ALL, guards=False, recounts=False)
    assert without.limit_shares("auto", "auto", method) == (None, "auto")
    assert without.limit_shares(None, "auto", changing) == (None, None)
    with pytest.raises(ValueError, match="Expected no guard"):
        without.limit_shares(0.1, None, method)
    with pytest.raises(ValueError, match="Expected no measure"):
        without.limit_shares(None, 0.1, changing)


def test_an_affine_map_with_too_many_parameters_is_rejected_before_any_query():
    small = replace(ALL, classes=3, parameters=6)
    known = METHODS["platt"]
    small.apply_to(MethodSettings(1, form="vector"), known, bins=None)
    with pytest.raises(ValueError, match="at most 6 parameters"):
        small.apply_to(MethodSettings(1, form="matrix"), known, bins=None)


def test_a_source_says_it_by_itself_and_a_pool_by_all_of_them(source):
    assert profile_source(source).enrolled == ALL
    assert profile_source(Pool([source, Public(source.records)])).enrolled == ALL
    assert profile_source(Public(source.records)).enrolled is None
    with pytest.raises(ValueError, match="classes=2"):
        recalibrate(source, "pooled", epsilon=1.0, classes=3)
