"""The cost of a pipeline is the composition of its steps' costs."""

import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from tests.training.pipelines.steps import KNOWN, both, classifier, standardizer
from veracal.accounting import Composed, Gaussian, Unit, epsilon_for
from veracal.training import BoundedScaler, NormClipper
from veracal.training.pipeline import PrivatePipeline, make_private_pipeline
from veracal.training.pipeline_steps import fit_event


def test_a_pipeline_costs_the_composition_of_its_steps():
    steps = Gaussian(5.0), classifier().event()
    pipeline = make_pipeline(both(), PolynomialFeatures(), NormClipper(), classifier())
    assert fit_event(pipeline) == Composed(steps)
    assert PrivatePipeline(pipeline.steps).event() == Composed(steps)
    nested = make_private_pipeline(make_pipeline("passthrough", both()), classifier())
    assert nested.event() == Composed(steps)
    union = FeatureUnion([("a", standardizer()), ("b", standardizer(noise_multiplier=7.0))])
    assert fit_event(union) == Composed((Gaussian(5.0), Gaussian(7.0)))
    assert epsilon_for(Composed(steps), 1e-5) > epsilon_for(steps[1], 1e-5)


def test_one_charged_step_is_no_composition_and_none_costs_nothing():
    assert fit_event(make_pipeline(NormClipper(), classifier())) == classifier().event()
    free = make_pipeline(BoundedScaler((0, 1)), "passthrough", None, Normalizer())
    assert fit_event(free) is None
    assert make_private_pipeline(BoundedScaler((0, 1))).event() is None


@pytest.mark.parametrize(
    ("step", "instead"),
    [
        (StandardScaler(), "PrivateStandardizer"),
        (MinMaxScaler(), "BoundedScaler"),
        (OneHotEncoder(), "DeclaredOneHot"),
        (PCA(), "public records"),
        (SelectKBest(), "public records"),
    ],
    ids=repr,
)
def test_a_step_that_learns_without_a_cost_is_named(step, instead):
    wrapped = ColumnTransformer([("inner", make_pipeline("passthrough", step), [0])])
    for pipeline in (
        Pipeline([("mine", step), ("model", classifier())]),
        make_pipeline(wrapped, classifier()),
        make_pipeline(ColumnTransformer([], remainder=step), classifier()),
    ):
        with pytest.raises(ValueError, match=type(step).__name__) as values:
            fit_event(pipeline)
        assert instead in str(values.value)
    assert "as 'columntransformer__remainder'" in str(values.value)


def test_a_classifier_without_a_cost_is_named():
    with pytest.raises(ValueError, match="Use PrivateLogisticRegression"):
        fit_event(make_pipeline(NormClipper(), LogisticRegression()))


@pytest.mark.parametrize(
    "settings",
    [
        dict(handle_unknown="error"),
        dict(handle_unknown="warn"),
        dict(drop="first"),
        dict(min_frequency=3),
        dict(max_categories=2),
        dict(categories="auto"),
    ],
    ids=repr,
)
def test_an_encoder_that_may_learn_or_raise_is_rejected(settings):
    assert fit_event(KNOWN) is None
    with pytest.raises(ValueError, match="DeclaredOneHot"):
        fit_event(clone(KNOWN).set_params(**settings))


class Sly(Normalizer):
    """A subclass may do anything."""


def test_only_known_classes_are_accepted_as_row_wise():
    with pytest.raises(ValueError, match="Sly"):
        fit_event(make_pipeline(Sly(), classifier()))


def test_steps_must_agree_on_neighbors_and_on_units():
    with pytest.raises(ValueError, match="one neighboring relation"):
        make_private_pipeline(standardizer(relation="replace-one"), classifier()).event()
    other = standardizer(unit=Unit("patient"))
    with pytest.raises(ValueError, match="same unit"):
        make_private_pipeline(other, classifier()).event()
    assert make_private_pipeline(other, classifier(unit=Unit("patient"))).event() is not None
